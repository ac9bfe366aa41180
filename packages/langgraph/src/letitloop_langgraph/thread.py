"""One thread: its log, what is known of it in memory, and how checkpoints and writes get into it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import warnings
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import WRITES_IDX_MAP

from letitloop.codecs import default_codecs
from letitloop.errors import LogLocked, StoreError
from letitloop.runs.drive_async import Syncer
from letitloop.runs.records import START, as_fields
from letitloop.version import __version__
from letitloop.wal.format import SUSPECT, TORN
from letitloop_langgraph.answers import NOBODY, RESUME
from letitloop_langgraph.barrier import Barrier
from letitloop_langgraph.contents import Contents, rows_of
from letitloop_langgraph.errors import ThreadConflict
from letitloop_langgraph.forms import Forms, Recent, size_of
from letitloop_langgraph.index import Index, Stored
from letitloop_langgraph.lease import Lease, log_name
from letitloop_langgraph.places import ERROR, Places
from letitloop_langgraph.records import BLOB, CHECKPOINT, WRITES, pack, run_digest, short, unpack
from letitloop_langgraph.sealed import ThreadCodecs
from letitloop_langgraph.serde import TAG, CodecSerializer, items_of
from letitloop_langgraph.values import Grown, Items, Kept, Newest, Watched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from langgraph.checkpoint.serde.base import SerializerProtocol

    from letitloop.store.protocol import Store
    from letitloop.wal.format import Entry
    from letitloop.wal.log import Log

__all__ = ["Thread"]

if TYPE_CHECKING:
    Record = tuple[int, bytes, bytes]
    Append = Callable[[int, bytes, bytes], tuple[Entry, asyncio.Future[None] | None]]

_OWN_FIELDS = ("v", "ts", "channel_versions", "versions_seen", "updated_channels")  # of a checkpoint; plain data
_INLINE_MOST = 1024  # a larger value has a record of its own
_KEY_MOST = 60_000
_RECENT_MOST = 32  # checkpoints whose writes are remembered
_CHANNELS_MOST = 256  # channels, of all namespaces, whose values are remembered
_BASIS_MOST = 4096  # checkpoints that graphs went on from

_log = logging.getLogger("letitloop")


def _lasts(place: tuple[Any, ...]) -> bool:
    """Tell whether a channel's namespace, the last part but one, is no single call's: a turn may call hundreds of subgraphs."""
    return ":" not in place[-2]


class Thread(Lease):
    """A thread of a store, as all savers of this process share it.

    Attributes:
        id: the thread's id.
        index: the log's records.
        barrier: what steps wait at until their checkpoints are durable.
        places: where steps and effects of its nodes belong.
        loops: the namespaces that a running graph loaded from here: their checkpoints come here as well. For each subgraph, at
            which step and position the task around it is.
        stayed: how many checkpoints of each namespace the last deletion of old ones had to leave.
        codecs: how what its steps record becomes bytes.
        behind: checkpoints of runs that the thread had moved past when they were asked for again, and whose they are.
    """

    def __init__(self, store: Store, thread_id: str, *, sync: str, patience: float) -> None:
        super().__init__(store, log_name(thread_id), sync=sync, patience=patience)
        self.id = thread_id
        self.index = Index()
        self.loops: dict[str, str] = {}
        self.stayed: dict[str, int] = {}
        self.behind: dict[str, str] = {}
        self.instance = ""
        self.syncer: Syncer | None = None
        self.codecs = ThreadCodecs()
        self.barrier = Barrier(thread_id, self.guard, lambda: self.index.ids)
        self.places = Places(self)
        self._loaded: tuple[bytes, list[Entry]] | None = None  # the log's uuid, and its records that are in the index
        self._grown: dict[tuple[int, str, str], Grown] = Newest(_CHANNELS_MOST, _lasts)
        self._kept: dict[tuple[str, str], Kept] = Newest(_CHANNELS_MOST, _lasts)
        self._watched: dict[tuple[str, str], Watched] = Newest(_CHANNELS_MOST, _lasts)
        self._warned: set[tuple[str, str]] = set()
        self._recent: dict[tuple[str, str], Recent] = Newest(_RECENT_MOST)
        self._foreign: dict[str, list[str]] = {}
        self._basis: dict[tuple[str, str | None], int] = Newest(_BASIS_MOST)

    # --- opening and closing -------------------------------------------------------------------------------------------------

    def opened(self, log: Log) -> None:
        """Learn what the log holds, and what another process added to it."""
        if log.recovered.verdict in (TORN, SUSPECT):
            _log.warning(
                "letitloop: thread %r: %s; %d bytes were cut off and kept in the store's torn folder",
                self.id, log.recovered.detail, log.recovered.tail,
            )  # fmt: skip
        start = next((entry for entry in log.entries if entry.kind == START), None)
        if start is None:
            self._begin(log)
        else:
            described = as_fields(default_codecs.decode(log.read(start)), instance=str, goal=str)
            if described["goal"] != f"langgraph:{self.id}":
                raise StoreError(
                    f"{log.path} belongs to {described['goal']!r}, not to thread {self.id!r}: somebody renamed or copied it. "
                    "It was left as it is. To copy a thread, use copy_thread()."
                )
            self.instance = str(described["instance"])
        self._learn(log.entries, log.read, log.header.uuid)
        self.places.opened(log)

    def _begin(self, log: Log) -> None:
        self.instance = os.urandom(16).hex()
        description: dict[str, object] = {
            "goal": f"langgraph:{self.id}",
            "function": "langgraph",
            "named": True,
            "arguments": b"",
            "source": b"",
            "created": time.time(),
            "pid": os.getpid(),
            "instance": self.instance,
            "parent": None,
            "version": __version__,
            "thread_id": self.id,
        }
        log.queue(START, b"", default_codecs.encode(description))
        log.write()

    def _learn(self, entries: list[Entry], read: Callable[[Entry], bytes], uuid: bytes) -> None:
        """Bring the index up to date; checkpoints that were not in it are another process's."""
        known = self._loaded
        before = {ns: set(of_ns) for ns, of_ns in self.index.checkpoints.items()}
        if known is not None and known[0] == uuid and len(entries) >= len(known[1]):
            entries[: len(known[1])] = known[1]  # the very objects that the index names
            self.index.load(entries[len(known[1]) :], read)
        else:
            self.index = Index()
            self.index.load(entries, read)
            self._grown.clear()
            self._kept.clear()
            self._recent.clear()
        self._loaded = (uuid, entries)
        for ns, of_ns in self.index.checkpoints.items():
            fresh = [identity for identity in of_ns if identity not in before.get(ns, ())]
            if fresh:
                self._foreign.setdefault(ns, []).extend(sorted(fresh))

    def closing(self, log: Log) -> None:
        """Make the log as small as it should be, and forget what lives only while it is open."""
        log.flush()
        self._loaded = (log.header.uuid, list(log.entries))
        self.places.closing(log)
        if self.syncer is not None:
            self.syncer.stop()
            self.syncer = None

    def survive_power_cuts(self) -> None:
        with self.guard:
            super().survive_power_cuts()
            if self.syncer is not None:  # it is one that never waits for a sync
                self.syncer.stop()
                self.syncer = None
                self.places.synced_by(None)

    def busy(self) -> bool:
        """Tell whether a task that recorded steps is still under way."""
        return self.places.busy()

    def forked(self) -> None:
        """Start anew in the child of a fork."""
        store, sync, patience, owner = self.store, self._sync, self.patience, self.owner
        self.__init__(store, self.id, sync=sync, patience=patience)  # type: ignore[misc]  # all of it is the parent's
        self.owner = owner

    # --- writing -------------------------------------------------------------------------------------------------------------

    def put(
        self,
        serde: SerializerProtocol,
        ns: str,
        parent: str | None,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
        append: Append,
    ) -> asyncio.Future[None] | None:
        """Queue a checkpoint's records, inside :meth:`enter`; the caller waits until they are durable, and says so.

        Args:
            serde: writes values.
            ns: the namespace.
            parent: the checkpoint that it follows.
            checkpoint: the checkpoint.
            metadata: its metadata.
            new_versions: the channels that have a new version.
            append: takes the last record, and may return a future that is done when it is durable.

        Raises:
            ThreadConflict: another process went on from the same checkpoint.
            UnencodableError: a value cannot be recorded; nothing was queued.
        """
        identity = checkpoint["id"]
        with self.guard:
            log = self.log
            assert log is not None, "the caller entered"
            try:
                self._check_conflict(ns, parent, identity)
                if metadata.get("source") == "loop":
                    self.places.check_swallowed(ns, parent)
                records, stored = self._checkpoint_records(serde, ns, parent, checkpoint, metadata, new_versions)
                self.barrier.expect(identity)
                durable = self._append(log, records, stored, append)
            except BaseException as exc:
                self.settle(ns, identity, exc)
                raise
            self.index.put(stored)
            self._basis[ns, identity] = len(self._foreign.get(ns, ()))
            self.places.superseded(ns, parent, identity)
            if parent in self.behind:
                self._tell_of_fork(parent, metadata)
            self._recent.pop((ns, parent or ""), None)
        return durable

    def _tell_of_fork(self, parent: str, metadata: Mapping[str, Any]) -> None:
        """A run that was not finished goes on, behind one that came after it."""
        run_id = self.behind.pop(parent)
        if metadata.get("run_id") == run_id:
            name = run_id.partition(":")[2]
            which = f"run {name!r}" if name else "the first run"
            warnings.warn(
                f"letitloop: {which} of thread {self.id!r} was not finished, and goes on now "
                f"from its own checkpoint {parent}. What later runs added to the thread is not part of it, and what is invoked "
                "next goes on from here. Finish a run before you begin the next one, or give each a thread of its own.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _append(self, log: Log, records: list[Record], stored: Stored, append: Append) -> asyncio.Future[None] | None:
        *blobs, last = records
        for kind, key, payload in blobs:
            entry = log.queue(kind, key, payload)
            _, channel, version = unpack(key)
            self.index.blobs[stored.ns, channel, version] = entry, -1
        stored.entry, durable = append(*last)
        return durable

    def settle(self, ns: str, identity: str | None, error: BaseException | None) -> None:
        """A checkpoint is durable, or neither it nor one after it will ever be.

        Args:
            ns: its namespace.
            identity: its id; None if a task's writes failed.
            error: what kept it from being stored.
        """
        with self.guard:
            if identity is not None and error is not None:
                self.index.drop([(ns, identity)])
            self.barrier.settle(ns, identity, error)

    def _checkpoint_records(
        self,
        serde: SerializerProtocol,
        ns: str,
        parent: str | None,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
    ) -> tuple[list[Record], Stored]:
        values: Mapping[str, Any] = checkpoint["channel_values"]
        versions: Mapping[str, Any] = checkpoint["channel_versions"]
        recent = self._recent.get((ns, parent or ""))
        if recent is not None:  # what was deleted meanwhile can be referred to no more
            recent = recent.of({task for task, _, _ in self.index.writes.get((ns, parent or ""), ())})
        maker = Forms(self._grown, self.index, serde, ns, parent, recent)
        carried: list[list[Any]] = []
        forms: list[list[Any]] = []
        records: list[Record] = []
        for channel, version in {**versions, **new_versions}.items():
            if channel in new_versions and (ns, channel, version) in self.index.blobs:
                self._kept.pop((ns, channel), None)  # the version is put again
            if channel in new_versions or (channel in values and (ns, channel, version) not in self.index.blobs):
                form = maker.form(channel, version, values[channel]) if channel in values else []
                if size_of(form) > _INLINE_MOST:
                    records.append((BLOB, pack([ns, channel, version]), pack(form)))
                else:
                    carried.append([channel, version])
                    forms.append(form)
                if channel in values:
                    self._watch(ns, channel, version, values[channel])
            elif channel in values:
                self._look_for_mutation(ns, channel, version, values[channel])
        extras = {
            channel: list(serde.dumps_typed(value))
            for channel, value in values.items()
            if channel not in versions and channel not in new_versions
        }
        fields = {name: checkpoint[name] for name in _OWN_FIELDS if name in checkpoint}
        more = {
            name: value for name, value in checkpoint.items() if name not in _OWN_FIELDS and name not in ("id", "channel_values")
        }
        run = run_digest(metadata.get("run_id"))
        key = pack([ns, short(checkpoint["id"]), None if parent is None else short(parent), run, carried])
        if len(key) > _KEY_MOST:
            records += [(BLOB, pack([ns, *place]), pack(form)) for place, form in zip(carried, forms, strict=True)]
            carried, forms = [], []
            key = pack([ns, short(checkpoint["id"]), None if parent is None else short(parent), run, carried])
        payload = pack(
            [fields, list(serde.dumps_typed(dict(metadata))), forms, extras, list(serde.dumps_typed(more)) if more else None]
        )
        records.append((CHECKPOINT, key, payload))
        maker.keep()
        return records, Stored(ns, checkpoint["id"], parent, run, carried, None)  # type: ignore[arg-type]  # set when queued

    def put_writes(
        self,
        serde: SerializerProtocol,
        ns: str,
        checkpoint: str,
        writes: Sequence[tuple[str, Any]],
        task: str,
        path: str,
        append: Append,
    ) -> asyncio.Future[None] | None:
        """Queue a task's writes, inside :meth:`enter`; arguments and errors are much as those of :meth:`put`.

        Raises:
            Halt: one was raised in this task and swallowed: what it wrote does not count.
            UnencodableError: a value cannot be recorded; nothing was queued.
        """
        rows: list[list[Any]] = []
        for at, (channel, value) in enumerate(writes):
            # an error is recorded for people, as LangGraph's serialiser does, and the task is tried again
            error = channel == ERROR and isinstance(value, BaseException)
            tag, body = serde.dumps_typed(repr(value) if error else value)
            rows.append([WRITES_IDX_MAP.get(channel, at), channel, tag, body])
        with self.guard:
            log = self.log
            assert log is not None, "the caller entered"
            self.places.wrote(task, writes)
            mine = [record for record in self.index.writes.get((ns, checkpoint), ()) if record[0] == task]
            if mine:
                known = rows_of(mine, log.read)
                rows = [row for row in rows if row[0] < 0 or (task, row[0]) not in known]
                rows = [
                    row
                    for row in rows
                    if row[0] >= 0
                    or (task == NOBODY and row[1] == RESUME)  # the same answer again is a new one: when it came tells whose it is
                    or known.get((task, row[0]), (None,) * 6)[3:] != tuple(row[1:])
                ]
            if not rows:
                return None
            entry, durable = append(WRITES, pack([ns, short(checkpoint), short(task), path]), pack(rows))
            self.index.add_writes(ns, checkpoint, task, path, entry)
            self._remember(ns, checkpoint, path, task, rows)
            return durable

    def _remember(self, ns: str, checkpoint: str, path: str, task: str, rows: list[list[Any]]) -> None:
        recent = self._recent.get((ns, checkpoint))
        if recent is None:
            recent = self._recent[ns, checkpoint] = Recent()
        for index, channel, tag, body in rows:
            if index >= 0 and body:
                recent.add(channel, path, task, index, tag, body)

    # --- durability ----------------------------------------------------------------------------------------------------------

    def sync(self, log: Log) -> None:
        """Make what is queued durable at the log's level; called without the guard.

        Raises:
            LogPoisoned: it could not be.
        """
        if log.syncs:
            log.flush()
        else:
            log.write()

    def queue(self, kind: int, key: bytes, payload: bytes) -> tuple[Entry, None]:
        """Append a record for :meth:`sync`."""
        assert self.log is not None, "the caller entered"
        return self.log.queue(kind, key, payload), None

    def on_loop(self, kind: int, key: bytes, payload: bytes) -> tuple[Entry, asyncio.Future[None] | None]:
        """Append a record on an event loop; return a future that is done when it is durable, None if it is."""
        with self.guard:
            assert self.log is not None, "the caller entered"
            if self.syncer is None:
                self.syncer = Syncer(self.log)
                self.places.run()  # made now: a task's first step may come when the log has been given back
                self.places.synced_by(self.syncer)
            return self.syncer.append(kind, key, payload)

    # --- other processes -----------------------------------------------------------------------------------------------------

    def handed_out(self, ns: str, identity: str | None) -> None:
        """A graph is about to go on from a checkpoint, as the log is now."""
        self._basis[ns, identity] = len(self._foreign.get(ns, ()))

    def _check_conflict(self, ns: str, parent: str | None, identity: str) -> None:
        basis = self._basis.get((ns, parent))
        foreign = self._foreign.get(ns, ())
        if basis is None or len(foreign) <= basis or identity in foreign[basis:]:
            return
        newest = max(foreign[basis:])
        raise ThreadConflict(
            f"thread {self.id!r}: another process went on with it: it stored checkpoint {newest}"
            f"{f' in namespace {ns!r}' if ns else ''} after this process had loaded {parent or 'the empty thread'}. What "
            "this process was about to store was not stored, and the other's work stands. Invoke the graph again to go on from "
            "there, with None or with the next input.",
            thread_id=self.id,
            checkpoint_ns=ns,
            parent_id=parent or "",
            newest_id=newest,
        )

    # --- reading -------------------------------------------------------------------------------------------------------------

    def look(self, serde: SerializerProtocol, log: Log) -> Contents:
        """Return what the open log says, inside :meth:`enter`."""
        which = id(serde.codecs) if isinstance(serde, CodecSerializer) else 0
        grown = {
            (ns, channel): one.kept for (whose, ns, channel), one in self._grown.items() if whose == which and one.kept is not None
        }
        return Contents(self.id, self.index, log.read, serde, grown, self._kept)

    def glance(self, serde: SerializerProtocol, look: Callable[[Contents], Any], *, run: bool = False) -> Any:
        """Return what a function finds in the thread, None if there is no such thread.

        Args:
            serde: reads values.
            look: given the contents.
            run: it is a graph that is about to run: what is written next must find the log open, and as it was looked at.

        Raises:
            LogLocked: a graph is about to run, and another process held the thread for longer than the patience.
        """
        try:
            log = self.enter(glance=not run, create=False)
        except FileNotFoundError:
            return None
        except LogLocked:
            if run:
                raise
            return self._view(serde, look)
        try:
            with self.guard:
                return look(self.look(serde, log))
        finally:
            self.leave()

    def _view(self, serde: SerializerProtocol, look: Callable[[Contents], Any]) -> Any:
        try:
            view = self.view()
        except FileNotFoundError:
            return None
        try:
            index = Index()
            index.load(view.entries, view.read)
            return look(Contents(self.id, index, view.read, serde, {}, {}))
        finally:
            view.close()

    def remember(self, serde: SerializerProtocol, ns: str, versions: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """A graph goes on with these very objects: changes in place are noticed, and lists that grow are known by their start."""
        contents = None
        for channel, value in values.items():
            version = versions.get(channel)
            if version is None:
                continue
            self._watch(ns, channel, version, value)
            if type(value) is list and value and isinstance(serde, CodecSerializer):
                if contents is None and self.log is not None:
                    contents = self.look(serde, self.log)
                parts = None if contents is None else contents.parts(ns, channel, version)
                items = None if not parts else parts[0] if len(parts) == 1 else Items(0, [])
                if isinstance(items, tuple) and items[0] == TAG:
                    found = items_of(items[1])
                    items = None if found is None else Items(found[0], [items[1][found[1] :]])
                elif parts and len(parts) > 1 and all(isinstance(part, Items) for part in parts):
                    items = Items(sum(part.count for part in parts), [chunk for part in parts for chunk in part.chunks])
                if isinstance(items, Items) and items.count == len(value):
                    kept = Kept()
                    kept.extend(version, items.count, items.data())
                    self._grown[id(serde.codecs), ns, channel] = Grown(version, value, kept)

    def _watch(self, ns: str, channel: str, version: Any, value: Any) -> None:
        if (ns, channel) not in self._warned and type(value) is not list:
            watched = Watched(version, value)
            self._watched[ns, channel] = watched

    def _look_for_mutation(self, ns: str, channel: str, version: Any, value: Any) -> None:
        if (ns, channel) in self._warned:
            return
        if type(value) is list:
            grown = next((one for (_, *where), one in self._grown.items() if where == [ns, channel]), None)
            mutated = (
                grown is not None
                and grown.version == version
                and (len(value) != len(grown.items) or not grown.starts(value))
                and all(a is b for a, b in zip(value, grown.items, strict=False))
            )
        else:
            watched = self._watched.get((ns, channel))
            mutated = watched is not None and watched.changed(version, value)
            if watched is None:
                self._watch(ns, channel, version, value)
        if mutated:
            self._warned.add((ns, channel))
            warnings.warn(
                f"letitloop: the value of channel {channel!r} of thread {self.id!r} was changed in place by a node that did not "
                "return it. The change is not recorded and is lost when the thread is resumed: return the channel from the node.",
                RuntimeWarning,
                stacklevel=2,
            )

    def rewritten(self) -> None:
        """The log was made smaller, and what was on record of steps may have gone; called with the guard held all the time."""
        assert self.log is not None, "the caller entered"
        self.places.rewritten(self.log)

    def forget(self) -> None:
        """The log was removed: nothing of what is in memory is true any more."""
        self.index = Index()
        self._loaded = None
        self._grown.clear()
        self._kept.clear()
        self._watched.clear()
        self._recent.clear()
        self._foreign.clear()
        self._basis.clear()
        self.loops.clear()
        self.behind.clear()
        self.barrier.forget()
        self.places.forget()
