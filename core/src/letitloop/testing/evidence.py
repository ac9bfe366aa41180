"""What really happened in a run that was killed: counted outside the run, in a file that only grows.

:class:`CallLog` is used by the program under test; :func:`judge` reads what several lives of it left behind and holds it
against the life that nobody interrupted.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

__all__ = ["EVIDENCE", "CallLog", "Life", "judge", "read_lives"]

EVIDENCE = "LETITLOOP_EVIDENCE"
"""The environment variable that names the evidence directory of the trial, for scripts that are not given it."""

_FILE = "calls.log"


class CallLog:
    """A file of what a program really did, one line an event, appended with one ``write`` each.

    Threads, tasks and processes may share one. What is written survives a SIGKILL of the writer at once.

    Args:
        directory: the evidence directory; default: the one that ``LETITLOOP_EVIDENCE`` names.
        sync: ``fsync`` each line as well, so that it survives a power cut too.

    Example:
        >>> import tempfile
        >>> from letitloop.testing import CallLog
        >>> calls = CallLog(tempfile.mkdtemp())
        >>> with calls.call("fetch"):
        ...     pass
        >>> calls.count("fetch")
        1
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, *, sync: bool = False) -> None:
        self.path = Path(directory if directory is not None else os.environ[EVIDENCE]) / _FILE
        self._sync = sync
        self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _write(self, what: str, name: str) -> None:
        if "\n" in name:
            raise ValueError(f"the name of a call is one line, not {name!r}")
        os.write(self._handle, f"{what} {name}\n".encode())
        if self._sync:
            os.fsync(self._handle)

    @contextlib.contextmanager
    def call(self, name: str) -> Generator[None, None, None]:
        """Count a real execution: its start, and its end where it comes that far (also by an exception)."""
        self.started(name)
        try:
            yield
        finally:
            self.finished(name)

    def started(self, name: str) -> None:
        """Tell that the work ``name`` starts for real."""
        self._write("started", name)

    def finished(self, name: str) -> None:
        """Tell that the work ``name`` has ended for real."""
        self._write("finished", name)

    def returned(self, name: str) -> None:
        """Tell that the *step* around the work ``name`` has returned: from here on it must never start again."""
        self._write("returned", name)

    def life(self, number: int) -> None:
        """Tell that another process takes over (the sweep does it)."""
        self._write("life", str(number))

    def count(self, name: str) -> int:
        """Return how often ``name`` was started, in all lives."""
        return sum(life.started[name] for life in read_lives(self.path.parent))

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


@dataclass
class Life:
    """What one process did."""

    started: Counter[str] = field(default_factory=Counter[str])
    finished: Counter[str] = field(default_factory=Counter[str])
    returned: Counter[str] = field(default_factory=Counter[str])


def read_lives(directory: str | os.PathLike[str]) -> list[Life]:
    """Return what each life did, in order; without ``life`` lines there is one."""
    path = Path(directory) / _FILE
    lives: list[Life] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        what, _, name = line.partition(" ")
        if what == "life" or not lives:
            lives.append(Life())
        if what != "life":
            counter: Counter[str] = getattr(lives[-1], what)
            counter[name] += 1
    return lives


def judge(lives: Sequence[Life], alone: Life, *, in_flight: int | None = None) -> list[str]:
    """Return what the lives did wrong, measured by a life that nobody interrupted.

    Args:
        lives: the lives of one run, in order.
        alone: the uninterrupted life.
        in_flight: how many calls may be under way at one instant, and so may run again after one kill. With ``None`` only calls
            whose step is told with :meth:`CallLog.returned` are held to that they never run again.
    """
    wrong: list[str] = []
    returned: Counter[str] = Counter()
    started: Counter[str] = Counter()
    for number, life in enumerate(lives):
        again = [name for name in life.started if started[name]]
        for name in again:
            if alone.returned[name] and returned[name] >= alone.returned[name]:
                wrong.append(f"{name} had returned and ran again in life {number}")
            if life.started[name] > alone.started[name]:
                wrong.append(f"{name} ran {life.started[name]} times in life {number}, {alone.started[name]} times uninterrupted")
        if in_flight is not None and len(again) > in_flight:
            wrong.append(f"{len(again)} calls ran again in life {number}, at most {in_flight} were in flight: {', '.join(again)}")
        started += life.started
        returned += life.returned
    strangers = started.keys() - alone.started.keys()
    missing = alone.started.keys() - started.keys()
    wrong.extend(f"{name} ran, but does not run uninterrupted" for name in sorted(strangers))
    wrong.extend(f"{name} never ran" for name in sorted(missing))
    return wrong
