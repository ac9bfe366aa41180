"""What a process that is watched tells its watcher: which logs it has opened. And what the watcher tells it: which life it is in.

The variable ``LETITLOOP_SUPERVISION`` holds one entry for each watcher around the process, the nearest first, separated as paths
are: ``LIFE@REASON@FILE``. LIFE counts the lives of what is watched, from 1; REASON says what ended the life before; FILE takes one
line for each log that is opened. Whatever is wrong with it, nothing fails for it: it is for people and for restarts.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from letitloop.wal.log import Log

__all__ = ["VARIABLE", "Level", "levels", "tell"]

VARIABLE = "LETITLOOP_SUPERVISION"
_told: set[tuple[str, str]] = set()


class Level:
    """A watcher around this process.

    Attributes:
        name: the supervision's random name.
        life: which life of what it watches this is, from 1.
        reason: what ended the life before; empty in the first.
        file: takes a line for each log that is opened.
    """

    __slots__ = ("file", "life", "name", "reason")

    def __init__(self, life: int, reason: str, file: str) -> None:
        self.life = life
        self.reason = reason
        self.file = file
        self.name = os.path.basename(file)


def levels(value: str | None = None) -> list[Level]:
    """Return the watchers around this process, the nearest first.

    Args:
        value: what the variable holds; this process's own by default.

    Example:
        >>> [(level.life, level.reason, level.name) for level in levels("3@SIGKILL@/tmp/one")]
        [(3, 'SIGKILL', 'one')]
    """
    if value is None:
        value = os.environ.get(VARIABLE, "")
    found: list[Level] = []
    for part in value.split(os.pathsep) if value else ():
        life, _, rest = part.partition("@")
        reason, _, file = rest.partition("@")
        if file and life.isascii() and life.isdigit():
            found.append(Level(int(life), reason, file))
    return found


def tell(room: str, name: str, path: str, log: Log) -> None:
    """Tell the watchers, if there are any, that this process has opened a log; once for each log.

    Args:
        room: the log's room in its store.
        name: its name there.
        path: its file.
        log: the open log.
    """
    value = os.environ.get(VARIABLE)
    if not value or (value, path) in _told:
        return
    _told.add((value, path))
    line = os.fsencode(f"{log.next_seq}\t{room}\t{name}\t{path}\n")
    for level in levels(value):
        try:
            handle = os.open(level.file, os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0))
            try:
                os.write(handle, line)
            finally:
                os.close(handle)
        except OSError:  # a watcher that is gone
            continue
