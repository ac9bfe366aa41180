"""A map in a write-ahead log: the newest record of a key counts, and what does not count is given back from time to time.

Records, beside the START record that says whose log it is::

    128 PUT     key: the key     payload: the value
    129 DELETE  key: the key     payload: empty
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from letitloop.codecs import default_codecs
from letitloop.runs.identity import run_name
from letitloop.runs.records import START
from letitloop.version import __version__
from letitloop_langgraph.lease import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from letitloop.store.protocol import Store
    from letitloop.wal.format import Entry
    from letitloop.wal.log import Log

__all__ = ["KeyValueLog"]

PUT = 128
DELETE = 129
_SLACK = 1024  # records that do not count, before the log is rewritten


class KeyValueLog(Lease):
    """A map of bytes to bytes that several processes may use, one after the other.

    Args:
        store: the store it lies in.
        name: what it is called there.
        sync: what a record survives: ``"power"`` or ``"process"``.
        patience: seconds to wait for another process that uses it right now.
        changed: called with the log's contents when another process changed them.
    """

    def __init__(
        self, store: Store, name: str, *, sync: str, patience: float, changed: Callable[[dict[bytes, bytes]], None]
    ) -> None:
        # hashed apart from threads, and of another form of goal: a thread may have any id, this one's name too
        super().__init__(store, run_name(name, b"langgraph map"), sync=sync, patience=patience)
        self._goal = f"langgraph {name}"
        self._changed = changed
        self._entries: dict[bytes, Entry] = {}
        self._known: tuple[bytes, int] | None = None

    def opened(self, log: Log) -> None:
        if not any(entry.kind == START for entry in log.entries):
            description = {
                "goal": self._goal, "function": "langgraph", "named": True, "arguments": b"", "source": b"", "created": time.time(),
                "pid": os.getpid(), "instance": os.urandom(16).hex(), "parent": None, "version": __version__,
            }  # fmt: skip
            log.queue(START, b"", default_codecs.encode(description))
            log.write()
        self._entries = {}
        for entry in log.entries:
            if entry.kind == PUT:
                self._entries[entry.key] = entry
            elif entry.kind == DELETE:
                self._entries.pop(entry.key, None)
        if self._known != (log.header.uuid, sum(entry.kind in (PUT, DELETE) for entry in log.entries)):
            self._changed({key: log.read(entry) for key, entry in self._entries.items()})

    def closing(self, log: Log) -> None:
        if len(log.entries) > 2 * len(self._entries) + _SLACK:
            log.compact(lambda all_of_it: [one for one in all_of_it if one.kind == START or self._entries.get(one.key) is one])
        self._known = (log.header.uuid, sum(entry.kind in (PUT, DELETE) for entry in log.entries))

    def forked(self) -> None:
        super().forked()
        self._known = None

    @contextmanager
    def used(self) -> Generator[Log]:
        """Keep the log open, with its contents known, inside the block."""
        log = self.enter()
        try:
            yield log
        finally:
            self.leave()

    def write(self, log: Log, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Make changes durable; None deletes."""
        with self.guard:
            for key, value in changes:
                if value is None:
                    if self._entries.pop(key, None) is not None:
                        log.queue(DELETE, key, b"")
                else:
                    self._entries[key] = log.queue(PUT, key, value)
        if log.syncs:
            log.flush()
        else:
            log.write()
