"""Where steps and effects inside a node belong: a scope for each attempt of each task, in the thread's own log.

The path of a task's steps is its namespace, which names the node and the task at every level. A task hangs on a checkpoint, and
its id comes from that checkpoint's, so a step is executed only when that checkpoint is durable (:class:`Place` waits for it):
resumed from it, the task has the same id and finds its steps. Where checkpoints come at the end alone (``durability="exit"``), or
not at all (a subgraph without a checkpointer), the path is made of the graph's structure instead: node, step and position.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from langgraph.errors import GraphBubbleUp

from letitloop.codecs import default_codecs
from letitloop.errors import CodecError, Halt, LogPoisoned
from letitloop.runs.failures import chain, encode_failure
from letitloop.runs.identity import ASYNC, escape, step_kind
from letitloop.runs.journal import Changed, Journal, Value
from letitloop.runs.records import ENDED, STEP_KINDS
from letitloop.runs.run import Call, Run
from letitloop.runs.scope import Scope, running_loop
from letitloop.wal.lock import NOTE_SIZE
from letitloop_langgraph.errors import bubbling
from letitloop_langgraph.records import PLACE, pack, short

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from letitloop.runs.drive_async import Syncer
    from letitloop.runs.journal import Failure
    from letitloop.wal.log import Log
    from letitloop_langgraph.thread import Thread

__all__ = ["Place", "Places", "ThreadRun"]

ERROR = "__error__"
_UNFINISHED = (ERROR, "__interrupt__")
_STRUCTURE = "exit "
_OURS = 128  # kinds from here on are the saver's
_log = logging.getLogger("letitloop")


class Place(Scope):
    """Where the steps of one attempt of one task belong.

    Attributes:
        info: LangGraph's description of the attempt, which tells this attempt from the next.
        task: the task's id.
        needed: the checkpoints, by namespace and id, that must be durable before a step is executed.
        hangs_on: namespace and id of the nearest checkpoint that the task hangs on.
        anchor: in exit mode the checkpoint of the root graph that the run went on from, empty for none; else None.
        halted: what was raised in it and must reach the caller.
        live: whether the task has not written anything yet.
    """

    __slots__ = ("anchor", "halted", "hangs_on", "info", "live", "needed", "ready", "task", "told")

    def __init__(
        self,
        run: ThreadRun,
        prefix: bytes,
        info: Any,
        needed: Sequence[tuple[str, str]],
        hangs_on: tuple[str, str],
        anchor: str | None = None,
    ) -> None:
        super().__init__(run, prefix, nested=True)
        self.info = info
        self.task = str(info.task_id)
        self.needed = tuple(needed)
        self.hangs_on = hangs_on
        self.anchor = anchor
        self.halted: Halt | CodecError | None = None
        self.live = True
        self.ready = not needed
        self.told = False

    def inner(self, name: str) -> Scope:
        """Reserve a scope inside this one."""
        return _Inside(super().inner(name), self)


class _Inside(Scope):
    """A scope inside a place."""

    __slots__ = ("place",)

    def __init__(self, scope: Scope, place: Place) -> None:
        super().__init__(scope.run, scope.prefix, nested=True)
        self.place = place

    def inner(self, name: str) -> Scope:
        return _Inside(super().inner(name), self.place)


def place_of(scope: Scope) -> Place | None:
    """Return the place that a scope lies in."""
    while isinstance(scope, Call):
        scope = scope.scope
    if isinstance(scope, _Inside):
        return scope.place
    return scope if isinstance(scope, Place) else None


class ThreadRun(Run):
    """A thread as a run: its steps are recorded in the thread's log, whichever opening of it is current."""

    __slots__ = ("known", "thread")

    def __init__(self, thread: Thread, log: Log) -> None:
        self.thread = thread
        self.known: set[bytes] = set()  # the steps that were on record when a former opening ended
        super().__init__(
            name=thread.name,
            goal=f"langgraph:{thread.id}",
            store=thread.store,
            log=log,
            journal=_journal(log),
            codecs=default_codecs,
            on_change="raise",
            description={"instance": thread.instance},
            in_flight=_in_flight(log),
        )
        self.woken = self._woken

    async def _woken(self) -> None:
        """Have the log open: a step that has to wait for another process would keep the event loop waiting."""
        if self.thread.log is None:
            await self.thread.enter_on_loop()
            self.thread.leave()

    def moved(self, log: Log, *, anew: bool) -> None:
        """Go on in another opening of the log.

        Args:
            log: the open log.
            anew: no scope of the former opening is in use any more: every record may answer.
        """
        journal = _journal(log)
        journal.run = self.id
        if anew:
            self.known, self._live = set(), {}
        else:
            waiting = self.journal.index
            for key in [key for key in journal.index if key in self.known and key not in waiting]:
                del journal.index[key]  # it has answered, or was recorded by a step of this process
                journal._others.pop(key, None)
        self.log, self.journal, self.epoch, self.in_flight = log, journal, log.epoch, _in_flight(log)
        self.syncer = self.thread.syncer

    # --- what a step does ----------------------------------------------------------------------------------------------------

    def recall(self, call: Call) -> Value | Failure | None:
        """Return what is known of a call; None leaves the log open until :meth:`finish`."""
        self.thread.enter()
        known: Value | Failure | None = None
        held = False
        try:
            known = super().recall(call)
            held = known is None
        except CodecError as exc:
            self._halted = None  # that of one task, not of the thread
            place = place_of(call.scope)
            if place is not None:
                place.halted = exc
            raise
        finally:
            if held:
                call.held = True  # type: ignore[attr-defined]  # a call has a dict
            else:
                self.thread.leave()
        return known

    def begin(self, call: Call) -> None:
        """A call's function is about to be called: wait until its checkpoint is durable."""
        place = place_of(call.scope)
        if place is not None:
            if place.halted is not None:
                raise place.halted
            if not place.ready:
                self._wait(place, call)
        super().begin(call)

    def _wait(self, place: Place, call: Call) -> None:
        thread = self.thread
        if not thread.barrier.missing(place.needed):
            place.ready = True
        elif running_loop() is None:
            thread.barrier.wait(place.needed)
            place.ready = True
        elif step_kind(call.fn, call.name) == ASYNC:
            call.fn = _after(place, thread, call.fn)
        elif "coroutine" in call.__dict__:  # a plain function of async_step, which runs in a worker thread
            call.fn = _after_in_worker(place, thread, call.fn)
        elif not place.told:
            # on an event loop's thread nothing can be waited for; what is queued is written with the step's own record
            place.told = True
            _log.warning(
                "letitloop: step %r of thread %r is a plain function called on the event loop, before checkpoint %s is on disk. "
                "After a crash right now it would be called again. Use async_step(), or an async function.",
                call.key.decode("utf-8", "replace"), thread.id, place.needed[-1][1],
            )  # fmt: skip

    def failed(self, call: Call, error: Exception) -> bytes:
        """Return the payload of a failure; an interrupt is none, and nothing of it is recorded."""
        if isinstance(error, GraphBubbleUp):
            call.failed = True  # its note is wiped
            raise error
        return super().failed(call, error)

    def finish(self, call: Call) -> None:
        """A call has ended."""
        if not call.recorded and isinstance(sys.exc_info()[1], GraphBubbleUp):
            call.failed = True
        try:
            super().finish(call)
        finally:
            if getattr(call, "held", False):
                call.held = False  # type: ignore[attr-defined]  # a call has a dict
                self.thread.leave()

    def halted_at(self, call: Call, halted: Halt) -> Halt:
        """Remember a Halt in its task, and return it as LangGraph lets it through."""
        place = place_of(call.scope)
        if isinstance(halted, LogPoisoned) and (place is None or place.halted is None):
            halted = LogPoisoned(
                f"step {call.key.decode()!r} of thread {self.thread.id!r} is not recorded: {halted}", path=halted.path
            )
        halted = bubbling(halted)
        if place is not None and place.halted is None:
            place.halted = halted
            place.live = False  # nothing more is executed in it, and the thread may be another process's
        return halted

    def halt(self, halted: Halt) -> None:
        """A Halt was met in another thread: it is its caller's."""

    def _changed(self, call: Call, changed: Changed) -> Value | Failure | None:
        if not call.key.startswith(_STRUCTURE.encode()):
            return super()._changed(call, changed)
        # the graph began again from other inputs: its structure is a place, and no promise that the same is asked there
        policy, self._on_change = self._on_change, "rerun"
        try:
            return super()._changed(call, changed)
        finally:
            self._on_change = policy


def _journal(log: Log) -> Journal:
    journal = Journal([entry for entry in log.entries if entry.kind < _OURS], log.read, default_codecs, log.path)
    journal.upto = log.next_seq
    return journal


def _in_flight(log: Log) -> tuple[str, ...]:
    done = {entry.key[:NOTE_SIZE] for entry in log.entries if entry.kind in STEP_KINDS}
    return tuple(note.decode("utf-8", "replace") for note in log.lock.left_behind if note not in done)


def _path(parts: Sequence[str]) -> bytes:
    """Return the path of these scopes, each in the other."""
    return ("/".join(escape(part[:512] or "-", "node") for part in parts) + "/").encode()


def _after(place: Place, thread: Thread, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def waited(*args: Any, **kwargs: Any) -> Any:
        await thread.barrier.async_wait(place.needed)
        place.ready = True
        return await fn(*args, **kwargs)

    return waited


def _after_in_worker(place: Place, thread: Thread, fn: Callable[..., Any]) -> Callable[..., Any]:
    def waited(*args: Any, **kwargs: Any) -> Any:
        thread.barrier.wait(place.needed)
        place.ready = True
        return fn(*args, **kwargs)

    return waited


class Places:
    """The places of one thread that are in use."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._run: ThreadRun | None = None
        self._places: dict[tuple[str, str], Place] = {}
        self._shared: dict[bytes, Place] = {}  # of structural paths: tasks that run side by side may have the same one
        self._anchors: dict[str, str] = {}
        self._later: list[tuple[Place, tuple[str, str]]] = []  # what is to be noted when the log is open again
        self._told = False

    # --- the resolver's side -------------------------------------------------------------------------------------------------

    def find(self, info: Any, config: Any) -> Place:
        """Return the place of the attempt that LangGraph describes."""
        known = self._places.get((info.checkpoint_ns, info.task_id))
        if known is not None and known.info is info:
            return known
        thread = self._thread
        if self._run is not None and running_loop() is not None:  # which must not wait for a log that another process has
            with thread.guard:
                return self._make(self._run, info, config)
        thread.enter()
        try:
            with thread.guard:
                return self._make(self.run(), info, config)
        finally:
            thread.leave()

    def run(self) -> ThreadRun:
        """Return the thread as a run; called with the guard held, and the log open if it was never asked for."""
        if self._run is None:
            assert self._thread.log is not None, "the caller entered"
            self._run = ThreadRun(self._thread, self._thread.log)
            self._run.syncer = self._thread.syncer
        return self._run

    def _make(self, run: ThreadRun, info: Any, config: Any) -> Place:
        thread = self._thread
        conf = config["configurable"]
        above: dict[str, str] = conf.get("checkpoint_map") or {}
        exits = conf.get("__pregel_durability") == "exit"
        stored = [] if exits else [(ns, identity) for ns, identity in above.items() if ns == "" or ns in thread.loops]
        own = next((ns for ns, identity in above.items() if identity == info.checkpoint_id), "")
        structural = exits or (own, info.checkpoint_id) not in stored
        if structural:
            place = self._structural(run, info, config, list(above.items()), stored, own, exits=exits)
        else:
            parts = info.checkpoint_ns.split("|")
            if info.task_id not in info.checkpoint_ns:
                parts.append(info.task_id)
            place = Place(run, _path(parts), info, stored, (own, info.checkpoint_id))
        self._places[info.checkpoint_ns, info.task_id] = place
        self._note(place, place.hangs_on)
        return place

    def _structural(
        self,
        run: ThreadRun,
        info: Any,
        config: Any,
        above: list[tuple[str, str]],
        stored: list[tuple[str, str]],
        own: str,
        *,
        exits: bool,
    ) -> Place:
        """Make a place whose path is the graph's structure: below what the run went on from, or below the nearest stored task."""
        metadata = config.get("metadata") or {}
        position = [str(part) for part in metadata.get("langgraph_path", ())[1:] if not isinstance(part, tuple)]
        names = [part.partition(":")[0] for part in info.checkpoint_ns.split("|")]
        tail = [f"{metadata.get('langgraph_step')} {' '.join(position)}", *([] if metadata else [str(info.task_id)])]
        anchor = ""
        if exits:
            self._tell_exit()
            anchor = self._anchor()
            hangs_on = (own, info.checkpoint_id)
            head = [f"{_STRUCTURE}{anchor or 'start'}", str(metadata.get("run_id") or "-")]
        else:
            hangs_on = max(stored, key=lambda one: len(one[0])) if stored else ("", "")
            depth = len(hangs_on[0].split("|")) if hangs_on[0] else 0
            head = [_STRUCTURE.strip(), *info.checkpoint_ns.split("|")[: depth + 1]]
            names = names[depth + 1 :]
        end = _path([*names, *tail])
        prefix = _path(head) + end
        if exits:  # a run that was interrupted, or failed, stored this checkpoint at its end: its tasks go on
            places = self._thread.index.places
            former = [known for place in above for known in places.get(place, ()) if known.endswith(b"/" + end)]
            prefix = former[0] if former else prefix
        shared = self._shared.get(prefix)
        if shared is not None and info.node_attempt == 1 and shared.live and shared.task != str(info.task_id):
            return shared
        place = Place(run, prefix, info, stored, hangs_on, anchor if exits else None)
        self._shared[prefix] = place
        for one in above if exits else ():
            self._note(place, one)
        return place

    def _anchor(self) -> str:
        """Return the newest checkpoint of the root graph: in exit mode the one that the run went on from."""
        newest = self._thread.index.latest("")
        return "" if newest is None else newest.id

    def _tell_exit(self) -> None:
        if not self._told:
            self._told = True
            _log.warning(
                'letitloop: thread %r runs with durability="exit": no checkpoint is stored until the run ends. After a crash the '
                "graph begins again where the run began; steps and effects that were done are answered from the log as long as the "
                'graph takes the same way. Use durability="sync" or "async" to resume in the middle.',
                self._thread.id,
            )

    def _note(self, place: Place, hangs_on: tuple[str, str]) -> None:
        """Record on which checkpoint the task's steps hang, so that they go when it goes."""
        thread = self._thread
        ns, identity = hangs_on
        known = thread.index.places.setdefault((ns, identity), {})
        if place.prefix in known:
            return
        if thread.log is None:
            self._later.append((place, hangs_on))
        else:
            known[place.prefix] = thread.log.queue(PLACE, pack([ns, short(identity)]), place.prefix)

    # --- the saver's side ----------------------------------------------------------------------------------------------------

    def opened(self, log: Log) -> None:
        """The thread's log was opened."""
        later, self._later = self._later, []
        for place, hangs_on in later:
            self._note(place, hangs_on)
        if self._run is not None:
            self._run.moved(log, anew=not self._in_use())
            if not self._in_use():
                self._places.clear()
                self._shared.clear()

    def closing(self, log: Log) -> None:
        """The thread's log is about to be closed."""
        if self._run is not None:
            self._run.known |= {entry.key for entry in log.entries if entry.kind in STEP_KINDS}
            self._run.syncer = None

    def synced_by(self, syncer: Syncer) -> None:
        """The thread's log has a syncer, which async steps use as well."""
        if self._run is not None:
            self._run.syncer = syncer

    def _in_use(self) -> bool:
        return any(place.live for place in self._places.values())

    def busy(self) -> bool:
        """Tell whether a task that recorded steps is still under way."""
        return self._in_use()

    def wrote(self, task: str, writes: Sequence[tuple[str, Any]]) -> None:
        """A task has ended, or was interrupted.

        Raises:
            Halt: one was raised in it, and it went on all the same: what it wrote does not count.
        """
        for place in [place for place in self._places.values() if place.task == task]:
            error = next((value for channel, value in writes if channel == ERROR), None)
            if isinstance(error, BaseException):
                self._note_error(error)
            place.live = False
            if place.halted is not None and not any(channel in _UNFINISHED for channel, _ in writes):
                raise place.halted

    def check_swallowed(self, ns: str, parent: str | None) -> None:
        """Refuse a checkpoint that would follow a task in which a Halt was swallowed.

        Raises:
            Halt: that one.
        """
        for place in self._places.values():
            if place.halted is not None and place.hangs_on == (ns, parent or ""):
                raise place.halted

    def _note_error(self, error: BaseException) -> None:
        """Record that an exception left a task, and which steps it came from: those are tried again."""
        run = self._run
        if run is None or not run._failures or not isinstance(error, Exception):
            return
        ids = {id(one) for one in chain(error)}
        steps = [seq for one, seq in run._failures if id(one) in ids]
        run._failures = [pair for pair in run._failures if id(pair[0]) not in ids][-1000:]
        if steps:
            import time

            said = {"steps": steps, "at": time.time(), "error": encode_failure(error, default_codecs)}
            run.log.queue(ENDED, b"", default_codecs.encode(said))

    def superseded(self, ns: str, parent: str | None, identity: str) -> None:
        """A checkpoint was stored: the tasks of the one before it are over, and in exit mode all but those that hang on it."""
        before = parent or ""
        gone = [
            key
            for key, place in self._places.items()
            if place.hangs_on == (ns, before) or (not ns and place.anchor == before and place.hangs_on[1] != identity)
        ]
        if not gone or self._run is None:
            return
        live = self._run._live
        for key in gone:
            place = self._places.pop(key)
            self._shared.pop(place.prefix, None)
            for step in [step for step in list(live) if step.startswith(place.prefix)]:
                live.pop(step, None)

    def forget(self) -> None:
        """The thread was deleted."""
        self._run = None
        self._later.clear()
        self._places.clear()
        self._shared.clear()
