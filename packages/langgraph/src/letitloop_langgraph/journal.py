"""What a thread's run knows of its steps, although its log may be made smaller while tasks are under way.

Pruning (:mod:`letitloop_langgraph.compaction`) rewrites a log in which steps are being asked for, called and recorded. What a task
under way holds across that, and why it may:

- its place: as long as the task is under way, its steps' records and the PLACE records of its path stay, whichever checkpoints go;
- the log: the same object, before and after. What a step records meanwhile waits in its queue and comes behind what was kept;
- the lock's slot in which a call is noted: it belongs to the lock, which is not touched;
- numbers of records (where a call began, which record was a failure, from where on a VOID counts): what goes leaves an empty record
  in its stead, so they mean the same afterwards, unless no step at all is kept: then no task is under way;
- records of the journal: those that stay are the same objects at their new offsets; those that go leave it before the guard is
  free. Whoever looks for an answer holds the guard, from the look into the index to the bytes that were read, so nobody reads where
  a record has been. A record that has answered, or was made by this process, is not offered again: the journal loses what went, and
  gains nothing.

The guard is never held while a step's function runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from letitloop.runs.journal import Changed, Failure, Journal, Value

if TYPE_CHECKING:
    import threading

    from letitloop.codecs import Codecs
    from letitloop.wal.format import Entry
    from letitloop.wal.log import Log

__all__ = ["ThreadJournal"]

_OURS = 128  # kinds from here on are the saver's


class ThreadJournal(Journal):
    """The index of one opening of a thread's log.

    Args:
        log: the open log.
        guard: the thread's, held while a compaction is under way.
        codecs: the thread's.
    """

    def __init__(self, log: Log, guard: threading.RLock, codecs: Codecs) -> None:
        super().__init__([entry for entry in log.entries if entry.kind < _OURS], log.read, codecs, log.path)
        self.upto = log.next_seq
        self._guard = guard

    def recall(self, key: bytes, base: bytes, fingerprint: bytes, prefix: bytes) -> Value | Failure | Changed | None:
        with self._guard:
            return super().recall(key, base, fingerprint, prefix)

    def reuse(self, changed: Changed, prefix: bytes) -> Value | Failure | None:
        with self._guard:
            return super().reuse(changed, prefix)

    def void(self, first: int, prefix: bytes) -> None:
        with self._guard:
            super().void(first, prefix)

    def compacted(self, log: Log) -> None:
        """Forget the records that the log has no more; called with the guard held since before they went."""
        there = {id(entry) for entry in log.entries}

        def left(entries: list[Entry]) -> list[Entry]:
            return [entry for entry in entries if id(entry) in there]

        self._entries, self._ended = left(self._entries), left(self._ended)
        self.index = {key: entry for key, entry in self.index.items() if id(entry) in there}
        self._others = {key: others for key, all_of_it in self._others.items() if (others := left(all_of_it))}
        self._alike = None  # made again, of what is left, when it is needed
        self.upto = min(self.upto, log.next_seq)
