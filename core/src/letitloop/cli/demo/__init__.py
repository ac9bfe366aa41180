"""``lil demo``: runs that are really killed and really resumed, to watch."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from letitloop.cli.demo.command import demo as demo

__all__ = ["demo"]


def __getattr__(name: str) -> object:
    # the killed process imports this package too, and needs no click for it
    if name == "demo":
        from letitloop.cli.demo.command import demo

        return demo
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
