"""What a thread's log holds, by namespace, checkpoint, channel and task; built from the records' keys alone."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any

from letitloop_langgraph.counters import Numbers
from letitloop_langgraph.records import BLOB, CHECKPOINT, DROP, NUMBER, PLACE, WRITES, unpack, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from letitloop.wal.format import Entry

__all__ = ["Index", "Stored"]


class Stored:
    """A checkpoint on record.

    Attributes:
        ns: its namespace.
        id: its id.
        parent: its parent's id, None for a root.
        run: the digest of its run's id.
        entry: its record.
        carried: the channels and versions that its record brings values of.
    """

    __slots__ = ("carried", "entry", "id", "ns", "parent", "run")

    def __init__(self, ns: str, identity: str, parent: str | None, run: bytes, carried: list[list[Any]], entry: Entry) -> None:
        self.ns = ns
        self.id = identity
        self.parent = parent
        self.run = run
        self.carried = carried
        self.entry = entry


class Index:
    """The saver's records of one log.

    Attributes:
        checkpoints: by namespace and id.
        blobs: by namespace, channel and version: the record that has the value, and which of its forms, -1 for a BLOB record.
        writes: by namespace and checkpoint: the WRITES records, each with its task and the task's path, in their order.
        shadows: writes of checkpoints that are deleted: values of others may be told as theirs.
        places: by namespace and checkpoint: the paths of the steps of tasks that hang on it.
        ids: every checkpoint's id.
        numbers: what the leaves of tasks took of LangGraph's counters.
    """

    def __init__(self) -> None:
        self.checkpoints: dict[str, dict[str, Stored]] = {}
        self.blobs: dict[tuple[str, str, Any], tuple[Entry, int]] = {}
        self.writes: dict[tuple[str, str], list[tuple[str, str, Entry]]] = {}
        self.shadows: dict[tuple[str, str], list[tuple[str, str, Entry]]] = {}
        self.places: dict[tuple[str, str], dict[bytes, Entry]] = {}
        self.ids: set[str] = set()
        self.numbers = Numbers()
        self._order: dict[str, list[str]] = {}

    def load(self, entries: Iterable[Entry], read: Callable[[Entry], bytes]) -> None:
        """Take in the records of a log, in their order; those of other kinds are passed over."""
        for entry in entries:
            kind = entry.kind
            if kind == CHECKPOINT:
                ns, identity, parent, run, carried = unpack(entry.key)
                self.put(Stored(ns, whole(identity), None if parent is None else whole(parent), run, carried, entry))
            elif kind == WRITES:
                ns, checkpoint, task, path = unpack(entry.key)
                self.add_writes(ns, whole(checkpoint), whole(task), path, entry)
            elif kind == BLOB:
                ns, channel, version = unpack(entry.key)
                self.blobs[ns, channel, version] = entry, -1
            elif kind == DROP:
                self.drop((ns, whole(identity)) for ns, identity in unpack(read(entry)))
            elif kind == PLACE:
                ns, checkpoint = unpack(entry.key)
                self.places.setdefault((ns, whole(checkpoint)), {})[read(entry)] = entry
            elif kind == NUMBER:
                self.numbers.load(entry.key, read(entry))

    def put(self, stored: Stored) -> None:
        """Take in a checkpoint, or another version of it."""
        of_ns = self.checkpoints.setdefault(stored.ns, {})
        if stored.id not in of_ns:
            insort(self._order.setdefault(stored.ns, []), stored.id)
        of_ns[stored.id] = stored
        self.ids.add(stored.id)
        for at, (channel, version) in enumerate(stored.carried):
            self.blobs[stored.ns, channel, version] = stored.entry, at

    def add_writes(self, ns: str, checkpoint: str, task: str, path: str, entry: Entry) -> None:
        """Take in writes, perhaps of a checkpoint that is not on record yet, or never will be."""
        self.writes.setdefault((ns, checkpoint), []).append((task, path, entry))

    def drop(self, gone: Iterable[tuple[str, str]]) -> None:
        """Forget checkpoints and their writes; the values that came with them stay readable for others."""
        for ns, identity in gone:
            of_ns = self.checkpoints.get(ns, {})
            if of_ns.pop(identity, None) is not None:
                order = self._order[ns]
                del order[bisect_left(order, identity)]
                self.ids.discard(identity)
            if not of_ns:
                self.checkpoints.pop(ns, None)
                self._order.pop(ns, None)
            hidden = self.writes.pop((ns, identity), None)
            if hidden:
                self.shadows.setdefault((ns, identity), []).extend(hidden)

    def latest(self, ns: str) -> Stored | None:
        """Return the checkpoint of a namespace with the greatest id."""
        order = self._order.get(ns)
        return self.checkpoints[ns][order[-1]] if order else None

    def newest_first(self, ns: str | None, before: str | None = None) -> list[Stored]:
        """Return the checkpoints of a namespace, or of all of them, newest first.

        Args:
            ns: the namespace; None for all.
            before: only those whose ids are less.
        """
        found: list[Stored] = []
        for name in self._order if ns is None else (ns,):
            order = self._order.get(name, [])
            stop = len(order) if before is None else bisect_left(order, before)
            of_ns = self.checkpoints.get(name, {})
            found += [of_ns[identity] for identity in reversed(order[:stop])]
        if ns is None and len(self._order) > 1:
            found.sort(key=lambda stored: stored.id, reverse=True)
        return found

    def of_run(self, run: bytes) -> list[Stored]:
        """Return the checkpoints of a run, of all namespaces."""
        return [stored for of_ns in self.checkpoints.values() for stored in of_ns.values() if stored.run == run]
