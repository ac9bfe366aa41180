"""What a process that is watched tells its watcher: which logs it has opened. And what the watcher tells it: which life it is in.

The variable ``LETITLOOP_SUPERVISION`` holds one entry for each watcher around the process, the nearest first, separated as paths
are: ``LIFE@REASON@FILE``. LIFE counts the lives of what is watched, from 1; REASON says what ended the life before; FILE takes one
line for each log that is opened, and is made anew if somebody has cleaned up (``%`` and the separator of paths are ``%25`` and
``%3A`` in it). Whatever is wrong with it, nothing fails for it: it is for people and for restarts.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from letitloop.wal.log import Log

__all__ = ["VARIABLE", "Level", "level_entry", "levels", "tell"]

VARIABLE = "LETITLOOP_SUPERVISION"
_SEPARATOR = f"%{ord(os.pathsep):02X}"
_APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
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


def level_entry(life: int, reason: str, file: str) -> str:
    r"""Return a watcher's entry in the variable.

    Args:
        life: which life is to begin, from 1.
        reason: what ended the life before; whatever cannot stand in a variable of the environment becomes a blank.
        file: takes a line for each log that is opened.

    Example:
        >>> level_entry(2, "ValueError: a\0b", "/tmp/one")
        '2@ValueError  a b@/tmp/one'
    """
    said = "".join(char if char.isprintable() and char not in "@" + os.pathsep else " " for char in reason[:200])
    return f"{life}@{said}@{file.replace('%', '%25').replace(os.pathsep, _SEPARATOR)}"


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
            found.append(Level(int(life), reason, file.replace(_SEPARATOR, os.pathsep).replace("%25", "%")))
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
            handle = os.open(level.file, _APPENDING, 0o600)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)
        except OSError:  # a watcher that is gone
            continue
