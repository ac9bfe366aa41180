"""Framework adapters; each lives in a distribution of its own, and is imported from here: ``letitloop.adapters.langgraph``."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from typing import Any

GROUP = "letitloop.adapters"


def installed() -> dict[str, EntryPoint]:
    """Return the adapters that installed distributions announce, by name."""
    from importlib.metadata import entry_points

    return {one.name: one for one in entry_points(group=GROUP)}


def __getattr__(name: str) -> Any:
    """Return the adapter of a third party; those of this project have modules here."""
    found = None if name.startswith("_") else installed().get(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found.load()
