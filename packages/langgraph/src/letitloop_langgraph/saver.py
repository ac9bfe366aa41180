"""``LetItLoopCheckpointSaver``: LangGraph's checkpoints in the write-ahead log."""

from __future__ import annotations

import asyncio
import copy
import random
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)

from letitloop.errors import InvalidArgument, LogLocked, LogPoisoned
from letitloop.runs.importing import check_may_run
from letitloop.store.directory import resolve_store
from letitloop_langgraph.answers import without_fetched
from letitloop_langgraph.breakpoints import calling_loop, hold, told
from letitloop_langgraph.compaction import drop, keep_latest, over_limit, shrink
from letitloop_langgraph.config import check_inputs
from letitloop_langgraph.history import begun, delta_history, needed_ancestors, newest_of_run
from letitloop_langgraph.lease import ROOM
from letitloop_langgraph.paths import where_in
from letitloop_langgraph.records import CHECKPOINT, run_digest
from letitloop_langgraph.room import room_of
from letitloop_langgraph.serde import CodecSerializer

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
    from typing import Literal, TypeVar

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, DeltaChannelHistory
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from letitloop.store.protocol import Store
    from letitloop_langgraph.contents import Contents
    from letitloop_langgraph.index import Stored
    from letitloop_langgraph.room import Room
    from letitloop_langgraph.thread import Thread

    T = TypeVar("T")

__all__ = ["LetItLoopCheckpointSaver"]

_random = random.SystemRandom().random  # a program that seeds random must not get equal versions on two branches


class LetItLoopCheckpointSaver(BaseCheckpointSaver[Any]):
    """A checkpointer whose threads are write-ahead logs: one file a thread, sync and async alike, no set-up and no server.

    When ``put`` or ``put_writes`` returns, what it was given is on disk; concurrent calls share one sync, and an event loop never
    waits for one. Steps and effects inside nodes are recorded in the same log. Savers of one store share everything that is open.

    Args:
        store: a store or a directory; ``LETITLOOP_STORE`` or ``./.letitloop`` by default.
        serde: how values become bytes; by default the core's codecs, exactly or refused, which also read what LangGraph's own
            serialiser wrote, and import or call nothing at load.
        retain: keep this many checkpoints of each namespace; older ones go when the log is made smaller. None keeps all.
        sync: what a record survives: ``"power"`` (a power cut) or ``"process"`` (SIGKILL and OOM). Savers of one store and process
            share its threads, and if one of them wants ``"power"`` all have it.
        patience: seconds to wait for a thread that another process works on right now.

    Raises:
        InvalidArgument: an option has a value that means nothing.

    Example:
        >>> from letitloop import MemoryStore
        >>> saver = LetItLoopCheckpointSaver(store=MemoryStore())
        >>> saver.get_tuple({"configurable": {"thread_id": "1"}}) is None
        True
    """

    def __init__(
        self,
        *,
        store: Store | str | os.PathLike[str] | None = None,
        serde: SerializerProtocol | None = None,
        retain: int | None = None,
        sync: Literal["power", "process"] = "power",
        patience: float = 60.0,
    ) -> None:
        if retain is not None and (type(retain) is not int or retain < 1):
            raise InvalidArgument(f"LetItLoopCheckpointSaver(retain={retain!r}): it is 1 or more, or None. Nothing was opened.")
        if sync not in ("power", "process"):
            raise InvalidArgument(f"LetItLoopCheckpointSaver(sync={sync!r}): it is 'power' or 'process'. Nothing was opened.")
        super().__init__(serde=serde or CodecSerializer())
        self._store = store
        self._retain = retain
        self._sync = sync
        self._patience = patience
        self._shared: dict[str, Room] = {}  # one object for all clones

    @property
    def room(self) -> Room:
        """The threads of this saver's store."""
        room = self._shared.get("room")
        if room is None:
            # looked up at the first use: an environment variable may be set after the graph is compiled
            store = resolve_store(self._store)
            room = self._shared.setdefault("room", room_of(store, sync=self._sync, patience=self._patience))
        return room

    @property
    def store(self) -> Store:
        """The store that the threads lie in."""
        return self.room.store

    def close(self) -> None:
        """Let other processes have the threads at once; the next use opens them again. Calling it is never needed."""
        if "room" in self._shared:
            self.room.close()

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> LetItLoopCheckpointSaver:
        """Return a clone that reads these classes where LangGraph's serialiser wrote them; it shares all that is open."""
        if not isinstance(self.serde, CodecSerializer):
            return super().with_allowlist(extra_allowlist)  # type: ignore[return-value]  # a clone of this class
        clone = copy.copy(self)
        clone.serde = self.serde.with_allowlist(extra_allowlist)
        return clone

    def get_next_version(self, current: Any, channel: None = None) -> Any:
        """Return a version greater than another one, and different from what any other branch has.

        The whole part counts; the fraction is random, so that two branches of a thread never mean two values by one version.
        """
        if isinstance(current, str):  # of a thread that another saver began
            return f"{int(current.partition('.')[0]) + 1:032}.{_random():016}"
        return (0 if current is None else int(current)) + 1 + _random()

    # --- put -----------------------------------------------------------------------------------------------------------------

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        """Store a checkpoint; when this returns, it is on disk.

        Raises:
            ThreadConflict: another process went on with the thread meanwhile.
            UnencodableError: a value cannot be recorded exactly.
            LogPoisoned: a write failed, now or earlier in this process.
            LogLocked: another process held the thread for longer than the patience.
        """
        thread, ns = self._place(config)
        identity = checkpoint["id"]
        try:
            log = thread.enter()
        except BaseException as exc:
            thread.settle(ns, identity, exc)
            raise
        try:
            self._put(thread, ns, config, checkpoint, metadata, new_versions, thread.queue)
            try:
                thread.sync(log)
            except BaseException as exc:
                thread.settle(ns, identity, exc)
                raise
            thread.settle(ns, identity, None)
        finally:
            thread.leave()
        self._tidy(thread)
        return _config(thread, ns, identity)

    async def aput(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        """Do as :meth:`put`; the event loop does not wait for the disk."""
        thread, ns = self._place(config)
        identity = checkpoint["id"]
        try:
            await thread.enter_on_loop()
        except BaseException as exc:
            thread.settle(ns, identity, exc)
            raise
        try:
            durable = self._put(thread, ns, config, checkpoint, metadata, new_versions, thread.on_loop)
            if durable is None:
                thread.settle(ns, identity, None)
            else:
                durable.add_done_callback(lambda done: thread.settle(ns, identity, _error_of(done)))
                await asyncio.shield(durable)
        finally:
            thread.leave()
        if self._overdue(thread):
            await asyncio.to_thread(self._tidy, thread)
        return _config(thread, ns, identity)

    def _put(
        self,
        thread: Thread,
        ns: str,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        append: Any,
    ) -> Any:
        parent, merged = get_checkpoint_id(config), get_checkpoint_metadata(config, metadata)
        more = told(calling_loop(), thread, self.serde, ns, parent) if metadata.get("source") == "loop" else {}
        return thread.put(self.serde, ns, parent, checkpoint, {**merged, **more}, new_versions, append)

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Store what a task wrote; when this returns, it is on disk. Errors are those of :meth:`put`."""
        thread, ns = self._place(config)
        log = thread.enter()
        try:
            thread.put_writes(self.serde, ns, config["configurable"]["checkpoint_id"], writes, task_id, task_path, thread.queue)
            thread.sync(log)
        except LogPoisoned as exc:
            thread.settle(ns, None, exc)
            raise
        finally:
            thread.leave()

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Do as :meth:`put_writes`; the event loop does not wait for the disk."""
        thread, ns = self._place(config)
        await thread.enter_on_loop()
        try:
            checkpoint = config["configurable"]["checkpoint_id"]
            durable = thread.put_writes(self.serde, ns, checkpoint, writes, task_id, task_path, thread.on_loop)
            if durable is not None:
                await durable
        except LogPoisoned as exc:
            thread.settle(ns, None, exc)
            raise
        finally:
            thread.leave()

    # --- get -----------------------------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint: the one that the config names, else the newest of its namespace; None if there is none.

        Raises:
            InputsChanged: the config is one of :func:`durable_config`, and its run is on record with other inputs.
            DecodeError: a value on record cannot be read.
            LogLocked: a graph is about to run, and another process held the thread for longer than the patience.
        """
        return self._get_tuple(config, calling_loop())

    def _get_tuple(self, config: RunnableConfig, loop: Any) -> CheckpointTuple | None:
        thread, ns = self._place(config)
        conf = config["configurable"]
        wanted = get_checkpoint_id(config)
        running = "__pregel_runtime" in conf
        if running:
            check_may_run(f"a run of thread {thread.id!r}")
            thread.loops[ns] = where_in(config.get("metadata") or {}) if ns else ""
            thread.barrier.broken.pop(ns, None)
            if not ns:
                thread.places.begins()

        def look(contents: Contents) -> CheckpointTuple | None:
            stored, adopts = self._stored(thread, contents, ns, wanted, config if running else {})
            if not wanted or stored is not None:
                thread.handed_out(ns, None if stored is None else stored.id)
            if stored is None:
                return None
            found = contents.checkpoint(stored)
            if adopts:  # LangGraph goes on with a run only from a checkpoint that bears its name
                found = found._replace(metadata={**found.metadata, "run_id": config["metadata"]["run_id"]})
            if running:
                found = without_fetched(contents, ns, found)
                if loop is not None and not wanted:
                    if ns and not begun(contents, ns, conf, found.metadata):
                        loop.config["configurable"]["__pregel_resuming"] = False  # it begins, on top of what it remembers
                    hold(loop, contents, stored, found)
                thread.remember(self.serde, ns, found.checkpoint["channel_versions"], found.checkpoint["channel_values"])
            return found

        found = thread.glance(self.serde, look, run=running)
        if found is None and running:
            thread.handed_out(ns, None)
        return found  # type: ignore[no-any-return]  # what look returned

    def _stored(
        self, thread: Thread, contents: Contents, ns: str, wanted: str | None, config: Mapping[str, Any]
    ) -> tuple[Stored | None, bool]:
        """Return the checkpoint that is asked for, and whether it goes on with the run that asks without bearing its name."""
        index = contents.index
        if wanted:
            return index.checkpoints.get(ns, {}).get(wanted), False
        newest = index.latest(ns)
        metadata = config.get("metadata") or {}
        run_id = metadata.get("run_id")
        if newest is None or ns or run_id is None:
            return newest, False
        run = run_digest(run_id)
        line = None if newest.run == run else newest_of_run(contents, ns, run)
        if line is None:
            check_inputs(contents, newest, metadata)
            return newest, False
        own, last = line
        if last is not newest:  # the thread has moved past the run: asked for again, it returns what it came to
            thread.behind[last.id] = str(run_id)
        check_inputs(contents, own, metadata)
        return last, last.run != run

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Do as :meth:`get_tuple`, in a thread."""
        return await asyncio.to_thread(self._get_tuple, config, calling_loop())

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - named by the base class
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first; nothing is locked while one is looked at.

        Args:
            config: the thread, and perhaps a namespace and a checkpoint; None: all threads.
            filter: metadata that a checkpoint must have, by name; compared by equality.
            before: only checkpoints older than this one.
            limit: how many at most.
        """
        threads = self.room.ids() if config is None else [str(config["configurable"]["thread_id"])]
        conf: Mapping[str, Any] = {} if config is None else config["configurable"]
        older = None if before is None else get_checkpoint_id(before)
        found: Any = []  # of pairs: this method hides the name of the builtin
        for thread_id in threads:
            found += [(thread_id, stored) for stored in self._listed(thread_id, conf, older)]
        if len(threads) > 1:
            found.sort(key=lambda one: one[1].id, reverse=True)
        left = limit
        for thread_id, stored in found:
            if left is not None and left <= 0:
                return
            one = self._read(thread_id, stored, filter)
            if one is not None:
                if left is not None:
                    left -= 1
                yield one

    def _listed(self, thread_id: str, conf: Mapping[str, Any], older: str | None) -> Sequence[Stored]:
        wanted = conf.get("checkpoint_id")

        def look(contents: Contents) -> Sequence[Stored]:
            found = contents.index.newest_first(conf.get("checkpoint_ns"), older)
            return [stored for stored in found if not wanted or stored.id == wanted]

        return self.room.thread(thread_id).glance(self.serde, look) or ()

    def _read(self, thread_id: str, listed: Stored, wanted: Mapping[str, Any] | None) -> CheckpointTuple | None:
        def look(contents: Contents) -> CheckpointTuple | None:
            stored = contents.index.checkpoints.get(listed.ns, {}).get(listed.id)
            if stored is None:
                return None  # deleted meanwhile
            if wanted:
                metadata = contents.metadata(stored)
                if any(name not in metadata or metadata[name] != value for name, value in wanted.items()):
                    return None
            return contents.checkpoint(stored)

        return self.room.thread(thread_id).glance(self.serde, look)  # type: ignore[no-any-return]  # what look returned

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - named by the base class
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Do as :meth:`list`, each checkpoint in a thread."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (one := await asyncio.to_thread(next, found, None)) is not None:
            yield one

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        """Return what delta channels were written along a checkpoint's ancestors, and the value they started from."""
        if not channels:
            return {}
        thread, ns = self._place(config)
        wanted = get_checkpoint_id(config)

        def look(contents: Contents) -> Mapping[str, DeltaChannelHistory]:
            stored = contents.index.checkpoints.get(ns, {}).get(wanted) if wanted else contents.index.latest(ns)
            return delta_history(contents, stored, channels)

        return thread.glance(self.serde, look) or {channel: {"writes": []} for channel in channels}

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Do as :meth:`get_delta_channel_history`, in a thread."""
        return await asyncio.to_thread(lambda: self.get_delta_channel_history(config=config, channels=channels))

    # --- deleting and copying ------------------------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread with everything in it; one that is absent is no error. What effects did stays in the ledger.

        Raises:
            LogLocked: a run is under way in it.
        """
        thread = self.room.thread(str(thread_id))
        with thread.guard:
            if thread.users:
                raise LogLocked(f"thread {thread.id!r} is in use in this process. Nothing was deleted: let its run end first.")
            thread.close()
            self.store.remove(ROOM, thread.name)
            thread.forget()

    async def adelete_thread(self, thread_id: str) -> None:
        """Do as :meth:`delete_thread`."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of some runs, from all threads and namespaces, with their writes.

        Those that a delta channel of a later run is rebuilt from stay: without them its value would be lost.
        """
        digests = {run_digest(run_id) for run_id in run_ids}
        for thread_id in self.room.ids() if digests else ():
            thread = self.room.thread(thread_id)

            if thread.glance(self.serde, lambda contents: _of_runs(contents, digests)):
                self._change(thread, lambda contents, thread=thread: drop(thread, _of_runs(contents, digests)))  # type: ignore[misc]

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Do as :meth:`delete_for_runs`."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread into another one; ids stay. Steps are not copied: they run again."""
        source, target = self.room.thread(str(source_thread_id)), self.room.thread(str(target_thread_id))
        if source is target:
            return

        def look(contents: Contents) -> Any:
            index = contents.index
            entries = {id(entry): entry for entry, _ in index.blobs.values()}
            entries |= {id(one.entry): one.entry for of_ns in index.checkpoints.values() for one in of_ns.values()}
            for writes in (index.writes, index.shadows):
                entries |= {id(record[2]): record[2] for records in writes.values() for record in records}
            kept = sorted(entries.values(), key=lambda entry: (entry.seq < 0, entry.seq))
            gone = {_named(entry) for entry in kept if entry.kind == CHECKPOINT} | set(index.shadows)
            gone -= {(one.ns, one.id) for of_ns in index.checkpoints.values() for one in of_ns.values()}
            return [(entry.kind, entry.key, contents.read(entry)) for entry in kept], gone

        found: Any = source.glance(self.serde, look)
        if found is None:
            return
        records, gone = found

        def take(contents: Contents) -> None:
            log = target.log
            assert log is not None, "the caller entered"
            entries = [log.queue(*record) for record in records]
            log.write()
            contents.index.load(entries, log.read)
            drop(target, gone)

        self._change(target, take)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Do as :meth:`copy_thread`."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Make threads smaller, and their files.

        Args:
            thread_ids: which.
            strategy: ``"keep_latest"`` keeps the newest checkpoint of each namespace, and the ancestors that its delta channels are
                rebuilt from; ``"delete"`` removes the threads.

        Raises:
            InvalidArgument: the strategy is unknown.
        """
        if strategy not in ("keep_latest", "delete"):
            raise InvalidArgument(f"prune(strategy={strategy!r}): it is 'keep_latest' or 'delete'. Nothing was removed.")
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            thread = self.room.thread(str(thread_id))
            if thread.glance(self.serde, lambda contents: bool(contents.index.ids)):
                self._change(thread, lambda contents, thread=thread: drop(thread, keep_latest(contents, 1)))  # type: ignore[misc]

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Do as :meth:`prune`."""
        await asyncio.to_thread(lambda: self.prune(thread_ids, strategy=strategy))

    def _change(self, thread: Thread, change: Callable[[Contents], Any]) -> None:
        """Change a thread, make that durable, and give back the bytes that nothing needs any more."""
        log = thread.enter()
        try:
            with thread.guard:
                change(thread.look(self.serde, log))
            log.flush()
            with thread.guard:
                shrink(thread, self.serde)
        finally:
            thread.leave()

    def _overdue(self, thread: Thread) -> bool:
        return self._retain is not None and over_limit(thread, self._retain)

    def _tidy(self, thread: Thread) -> None:
        if self._retain is not None and self._overdue(thread):
            retain = self._retain
            self._change(thread, lambda contents: drop(thread, keep_latest(contents, retain)))
            thread.stayed = {ns: len(of_ns) for ns, of_ns in thread.index.checkpoints.items()}

    # --- where ---------------------------------------------------------------------------------------------------------------

    def _place(self, config: RunnableConfig) -> tuple[Thread, str]:
        conf = config["configurable"]
        return self.room.thread(str(conf["thread_id"])), conf.get("checkpoint_ns") or ""


def _of_runs(contents: Contents, digests: Collection[bytes]) -> Collection[tuple[str, str]]:
    """Return the checkpoints of some runs, by namespace and id; not those that others need."""
    gone = {(one.ns, one.id) for digest in digests for one in contents.index.of_run(digest)}
    children = [
        one
        for of_ns in contents.index.checkpoints.values()
        for one in of_ns.values()
        if (one.ns, one.id) not in gone and (one.ns, one.parent) in gone
    ]
    return gone - {(one.ns, one.id) for child in children for one in needed_ancestors(contents, child)}


def _config(thread: Thread, ns: str, identity: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread.id, "checkpoint_ns": ns, "checkpoint_id": identity}}


def _error_of(done: asyncio.Future[None]) -> BaseException | None:
    return asyncio.CancelledError() if done.cancelled() else done.exception()


def _named(entry: Any) -> tuple[str, str]:
    from letitloop_langgraph.records import unpack, whole

    ns, identity, *_ = unpack(entry.key)
    return ns, whole(identity)
