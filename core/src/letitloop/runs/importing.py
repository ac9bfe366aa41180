"""While a command imports a program for what it defines, the program does not run: nothing is recorded, and nothing is sent."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from letitloop.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["check_may_run", "only_imported"]

_modules: list[str] = []


@contextmanager
def only_imported(module: str) -> Generator[None]:
    """Refuse, inside the block, every run and every action: whatever the module does when it is imported."""
    _modules.append(module)
    try:
        yield
    finally:
        _modules.pop()


def check_may_run(what: str) -> None:
    """Refuse what would happen while a module is imported.

    Args:
        what: what would happen, as a subject: ``"a run"``.

    Raises:
        InvalidArgument: a module is being imported for what it defines.
    """
    if _modules:
        raise InvalidArgument(
            f"{what} of module {_modules[-1]!r} was about to begin while it was imported for what it defines: it was refused, and "
            "nothing was recorded or sent. Let what the program does begin under: if __name__ == '__main__':"
        )
