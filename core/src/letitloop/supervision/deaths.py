"""How a process ended, and whether another try could end otherwise. Pure: from an exit status and what was said last."""

from __future__ import annotations

import re

from letitloop.runs.exits import CODES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PERMANENT", "Death", "is_permanent", "last_exception", "signal_name", "what_ended"]

USAGE = 2
"""The exit code of a command line that means nothing, by convention of argparse, click, getopt and the shell."""

PERMANENT = frozenset(
    f"letitloop.errors.{name}"
    for name in (
        *("StepChanged", "UnknownOutcome"),
        *("InvalidArgument", "StepOutsideRun", "AsyncMisuse", "GeneratorFunction", "UnencodableError"),
        *("ActionConflict", "ApprovalRequired", "NotAuthorized", "IntentPruned", "RunFinished"),
        *("ForeignFile", "LogVersionError", "LogCorrupt", "LogSuspect", "SealError"),
    )
)
"""Errors that another try of the same program meets again: somebody has to do something first."""

_SYNTAX = frozenset(("SyntaxError", "IndentationError", "TabError"))
_IMPORT = frozenset(("ImportError", "ModuleNotFoundError"))
_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File ".*", line \d+(?:, in (.*))?$')
_RAISED = re.compile(r"([A-Za-z_][\w.<>]*)(?:: (.*))?$")
_NO_TARGET = (": can't open file ", ": can't find '__main__' module in ", ": No module named ", ": Error while finding module")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # Python 3.13 colours what it prints to a terminal
_LONGEST_MESSAGE = 50  # lines after the first one of an exception's message, beyond which a program went on
_COMPILED = 12  # lines at the end within which the error of a script that could not be compiled lies
_GROUP = re.compile(r"^  [+|] ?(?:Exception Group )?")  # what is drawn beside a group's traceback


class Death:
    """The end of a process that did not succeed.

    Attributes:
        code: its exit code; 128+n for signal n.
        signal: the signal that ended it, 0 if none did.
        cause: what ended it, in words: ``SIGKILL``, ``exit code 3``, ``ValueError: no luck``, ``no progress for 300 s``.
        crashed: whether an exception that nothing caught ended it.
        permanent: why another try would end in the same way; empty if it may not.
        stopped: whether the watcher ended it to start it again.
    """

    __slots__ = ("cause", "code", "crashed", "permanent", "signal", "stopped")

    def __init__(
        self, code: int, *, signal: int = 0, cause: str = "", crashed: bool = False, permanent: str = "", stopped: bool = False
    ) -> None:
        self.code = code
        self.signal = signal
        self.cause = cause or (signal_name(signal) if signal else f"exit code {code}")
        self.crashed = crashed
        self.permanent = permanent
        self.stopped = stopped

    def __repr__(self) -> str:
        return f"<death by {self.cause}>"


def signal_name(number: int) -> str:
    """Return a signal's name.

    >>> signal_name(9)
    'SIGKILL'
    """
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def what_ended(status: int, said: str, *, by: str = "") -> Death:
    r"""Tell how a process ended.

    Args:
        status: its exit code; negative: the signal that ended it.
        said: what it wrote to standard error last.
        by: what the watcher ended it for, in words; empty if it ended by itself.

    Example:
        >>> what_ended(-9, "")
        <death by SIGKILL>
        >>> what_ended(1, "Traceback (most recent call last):\n  File ...\nValueError: no luck\n")
        <death by ValueError: no luck>
    """
    if by:
        return Death(128 - status if status < 0 else status, signal=max(0, -status), cause=by, stopped=True)
    if status < 0:
        return Death(128 - status, signal=-status)
    told = next((kind.__name__ for kind, code in CODES.items() if code == status), "")
    # an exception that nothing caught ends Python with 1; with any other code a program had its say, whatever it logged before
    raised = last_exception(said) if status == 1 or told else None
    if told:
        cause = _shortened(f"{raised[0]}: {raised[1]}") if raised is not None and raised[0].endswith(told) else told
        return Death(status, cause=cause, crashed=True, permanent=f"{told} is not mended by another try")
    if raised is None:
        permanent = _missing(said) if status in (1, USAGE) else ""
        if status == USAGE and not permanent:
            permanent = "exit code 2 says that its command line means nothing"
        return Death(status, permanent=permanent)
    name, text, functions = raised
    cause = _shortened(f"{name}: {text}" if text else name)
    return Death(status, cause=cause, crashed=True, permanent=is_permanent(name, functions))


def _missing(said: str) -> str:
    """Return why the interpreter found nothing to run; empty if it did."""
    last = said.rstrip().rpartition("\n")[2]
    return f"there is nothing to run ({last})" if any(mark in last for mark in _NO_TARGET) else ""


def last_exception(said: str) -> tuple[str, str, tuple[str, ...]] | None:
    """Find the exception that ended a Python program in what it said last.

    Returns:
        Its class as it is printed, its message's first line, and the functions of its traceback, outermost first; a program that
        was never compiled has none. None if there is no traceback at the end.
    """
    lines = [_GROUP.sub("", line) for line in _COLOUR.sub("", said).splitlines()]
    start = max((number for number, line in enumerate(lines) if line == _HEADER), default=-1)
    if start < 0:
        return _uncompiled(lines)
    functions: list[str] = []
    for number, line in enumerate(lines[start + 1 :], start + 1):
        frame = _FRAME.match(line)
        if frame is not None:
            if frame[1] is not None:
                functions.append(frame[1])
        elif line and not line[0].isspace():
            raised = _RAISED.match(line)
            if raised is None:
                return None
            # a traceback that was logged is no end; a message may have many lines, though
            return None if len(lines) - number > _LONGEST_MESSAGE else (raised[1], raised[2] or "", tuple(functions))
    return None


def _uncompiled(lines: list[str]) -> tuple[str, str, tuple[str, ...]] | None:
    """Find the error of a script that could not be compiled: it is printed without a traceback."""
    for number in range(len(lines) - 1, max(-1, len(lines) - _COMPILED), -1):
        raised = _RAISED.match(lines[number])
        if raised is not None and raised[1] in _SYNTAX:
            above = lines[max(0, number - 6) : number]
            return (raised[1], raised[2] or "", ()) if any(_FRAME.match(line) for line in above) else None
    return None


def is_permanent(name: str, functions: Iterable[str]) -> str:
    """Return why an exception would be raised again by the next try; empty if it may pass.

    Args:
        name: its class, with the module unless it is a builtin.
        functions: the functions it came through, outermost first.

    Example:
        >>> is_permanent("ModuleNotFoundError", ["<module>"])
        'the target cannot be imported'
        >>> is_permanent("ConnectionError", ["<module>", "main", "fetch"])
        ''
    """
    if name in PERMANENT:
        return f"{name.rpartition('.')[2]} is not mended by another try"
    # while it is imported, a program runs no function: what a function imports or compiles later may differ each time
    importing = all(function in ("<module>", "_run_module_as_main", "_run_code", "_get_module_details") for function in functions)
    if importing and name in _SYNTAX:
        return "the target cannot be compiled"
    if importing and name in _IMPORT:
        return "the target cannot be imported"
    return ""


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"
