"""Whether a watched process gets further, and where its runs go on: read from the logs that it opens."""

from __future__ import annotations

import os
import shlex
import tempfile
import time

from letitloop.errors import Halt, LetItLoopError
from letitloop.runs.history import describe_run
from letitloop.runs.opening import ROOM
from letitloop.runs.records import ATTEMPT, EFFECT, END, ENDED, FAILED, OK, RESUME, START, VOID
from letitloop.store.directory import DirectoryStore
from letitloop.store.supervised import VARIABLE, level_entry
from letitloop.wal.recovery import view_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from letitloop.runs.history import RunInfo
    from letitloop.wal.format import Entry

__all__ = ["Progress"]

_NO_PROGRESS = frozenset((START, RESUME, FAILED, ATTEMPT, VOID, ENDED))
"""What every life writes, however far it gets."""

_FIRST_OF_ALL = 16  # kinds below are the log's own


class _Opened:
    """A log that the process has opened.

    Attributes:
        room: its room in its store.
        name: its name there.
        path: its file.
        known: how many records it had when this life of the process opened it.
    """

    __slots__ = ("known", "name", "path", "room")

    def __init__(self, room: str, name: str, path: str, known: int) -> None:
        self.room = room
        self.name = name
        self.path = path
        self.known = known


class Progress:
    """What the logs of one supervision say.

    Args:
        around: the variable's value in this process: the watchers around this one.

    Attributes:
        file: takes a line from the process for each log that it opens.
    """

    def __init__(self, around: str) -> None:
        handle, self.file = tempfile.mkstemp(prefix="letitloop-watch-")
        self._inode = os.fstat(handle).st_ino
        os.close(handle)
        self._around = around
        self._read = 0
        self._partial = b""
        self._opened: dict[str, _Opened] = {}
        self._since = 0.0

    def environment(self, life: int, reason: str) -> dict[str, str]:
        """Return what a life's process is told.

        Args:
            life: which one it is, from 1.
            reason: what ended the one before.
        """
        return {VARIABLE: os.pathsep.join(filter(None, (level_entry(life, reason, self.file), self._around)))}

    def begin(self) -> None:
        """A life begins, with an empty file: whatever became of it in the life before."""
        self._opened.clear()
        self._read, self._partial, self._since = 0, b"", time.time()
        try:
            handle = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
            self._inode = os.fstat(handle).st_ino
            os.close(handle)
        except OSError:  # the process makes it, when there is room
            pass

    def _look(self) -> None:
        """Read which logs were opened since the last look; the last one is the newest."""
        try:
            with open(self.file, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:  # somebody cleaned up, and the process has made it anew
                    self._inode, self._read, self._partial = inode, 0, b""
                file.seek(self._read)
                data = file.read()
        except OSError:
            return
        self._read += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            parts = os.fsdecode(line).split("\t", 3)
            if len(parts) == 4 and parts[0].isdigit():
                known, room, name, path = parts
                before = self._opened.pop(path, None)
                self._opened[path] = before or _Opened(room, name, path, int(known))

    def idle(self) -> float:
        """Return for how many seconds no log has grown in this life."""
        self._look()
        newest = self._since
        for log in self._opened.values():
            try:
                newest = max(newest, os.stat(log.path).st_mtime)
            except OSError:
                continue
        return max(0.0, time.time() - newest)

    def restart_clock(self) -> None:
        """Count the time without growth from now on: the process was stopped until now."""
        self._since = time.time()

    @property
    def watched(self) -> bool:
        """Whether the process has opened a log in this life."""
        return bool(self._opened)

    def made(self) -> bool:
        """Tell whether this life got further than those before it: a step, an effect or an end that was not on record."""
        self._look()
        return any(_grew(log) for log in self._opened.values())

    def where(self) -> list[str]:
        """Say for each run that this life has opened where it goes on, the newest first."""
        said: list[str] = []
        for log in reversed(self._opened.values()):
            if log.room == ROOM and len(said) < 5:
                try:
                    store = DirectoryStore(os.path.dirname(os.path.dirname(log.path)))
                    said += _where(describe_run(store, log.name))
                except (LetItLoopError, Halt, OSError, ValueError, TypeError, LookupError):  # it says nothing then
                    continue
        return said

    def close(self) -> None:
        """The supervision is over."""
        try:
            os.unlink(self.file)
        except OSError:
            pass


def _grew(log: _Opened) -> bool:
    try:
        view = view_log(log.path)
    except (LetItLoopError, OSError):
        return False
    try:
        entries = view.entries
    finally:
        view.close()
    if len(entries) < log.known:  # a finished run was begun anew, and its log with it
        return any(entry.kind in (OK, END) for entry in entries)
    before = {_sign(entry) for entry in entries[: log.known]}
    return any(_counts(entry) and _sign(entry) not in before for entry in entries[log.known :])


def _counts(entry: Entry) -> bool:
    return entry.kind >= _FIRST_OF_ALL and entry.kind not in _NO_PROGRESS


def _sign(entry: Entry) -> tuple[int, bytes]:
    """A step that runs again because its inputs changed is no progress, nor an effect that is begun again."""
    return (entry.kind, entry.key) if entry.kind in (OK, EFFECT, END) else (-1 - entry.seq, b"")


def _where(run: RunInfo) -> list[str]:
    goal = run.goal_id or run.id
    if run.parent is not None:
        return []  # it is told by the run around it
    if run.status == "finished":
        return [f"{goal} is finished"]
    if run.status == "damaged":
        return [f"the log of {goal} is damaged: lil verify {shlex.quote(run.id)}"]
    done = len({step.key for step in run.steps if step.status == "ok"})
    if not done:
        return [f"starting {goal} again, no step is recorded"]
    return [f"resuming {goal} at step {done} of {done} recorded"]
