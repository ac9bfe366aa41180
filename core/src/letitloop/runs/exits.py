"""The exit code of a program that a :class:`~letitloop.errors.Halt` ends: whoever starts it again must be able to tell.

An exception that nothing catches ends Python with exit code 1, whatever it is. Another try passes over many of them; it does not
pass over an outcome that is not known, or over changed inputs. So the first of these that leaves a run puts a hook in place, which
prints what the former hook prints and then ends the program with a code of its own.
"""

from __future__ import annotations

import sys

from letitloop.errors import StepChanged, UnknownOutcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

__all__ = ["CODES", "announce", "exit_code"]

CODES: dict[type[BaseException], int] = {UnknownOutcome: 80, StepChanged: 81}
"""Outside the codes of ``sysexits.h`` (64 to 78), of shells (126 and more) and of containers (125)."""

_armed = False


def exit_code(exc: BaseException) -> int:
    """Return the exit code of a program that this exception ends, 0 if it has none of its own; a group has that of its members.

    >>> exit_code(StepChanged("x")), exit_code(ValueError("x"))
    (81, 0)
    """
    for kind, code in CODES.items():
        if isinstance(exc, kind):
            return code
    members: Any = getattr(exc, "exceptions", ())
    if not isinstance(members, tuple):
        return 0
    group: tuple[Any, ...] = members  # pyright: ignore[reportUnknownVariableType]  # an attribute of anybody's class
    return next(filter(None, (exit_code(one) for one in group if isinstance(one, BaseException))), 0)


def announce(exc: BaseException) -> None:
    """Let a program that this exception ends have its exit code; of any other exception nothing is done."""
    global _armed
    if _armed or not exit_code(exc):
        return
    _armed = True
    former = sys.excepthook

    def end(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        former(kind, error, traceback)
        code = exit_code(error)
        if code:
            raise SystemExit(code)  # the interpreter takes it from here: threads are joined, handlers at exit run

    sys.excepthook = end
