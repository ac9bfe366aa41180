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
from letitloop.errors import CodecError, Halt, InvalidArgument, LetItLoopError, LogPoisoned
from letitloop.runs.failures import chain, encode_failure
from letitloop.runs.identity import ASYNC, step_kind
from letitloop.runs.journal import Value
from letitloop.runs.records import ENDED, STEP_KINDS
from letitloop.runs.run import Call, Run
from letitloop.runs.scope import Scope, current, running_loop
from letitloop.wal.lock import NOTE_SIZE
from letitloop_langgraph.counters import finished, watch
from letitloop_langgraph.errors import bubbling, explained
from letitloop_langgraph.journal import ThreadJournal
from letitloop_langgraph.paths import name_of, path_of, where_in
from letitloop_langgraph.records import PLACE, pack, short

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from letitloop.runs.drive_async import Syncer
    from letitloop.runs.journal import Failure
    from letitloop.wal.log import Log
    from letitloop_langgraph.counters import Task
    from letitloop_langgraph.thread import Thread

__all__ = ["ERROR", "Place", "Places", "ThreadRun"]

ERROR = "__error__"
_UNFINISHED = (ERROR, "__interrupt__")
_STRUCTURE = "exit "
_log = logging.getLogger("letitloop")


class Place(Scope):
    """Where the steps of one attempt of one task belong.

    Attributes:
        tasks: the ids of the tasks under way in it: one, but for those that the graph's structure does not tell apart.
        needed: the checkpoints, by namespace and id, that must be durable before a step is executed.
        hangs_on: namespace and id of the nearest checkpoint that the task hangs on.
        above: the checkpoint of each namespace above the task, by namespace.
        anchor: in exit mode the checkpoint of the root graph that the run went on from, empty for none; else None.
        halted: what was raised in it and must reach the caller.
    """

    __slots__ = ("above", "anchor", "halted", "hangs_on", "needed", "ready", "tasks", "told")

    def __init__(
        self,
        run: ThreadRun,
        prefix: bytes,
        task: str,
        needed: Sequence[tuple[str, str]],
        hangs_on: tuple[str, str],
        above: Mapping[str, str],
        anchor: str | None = None,
    ) -> None:
        super().__init__(run, prefix, nested=True)
        self.tasks = {task}
        self.above = above
        self.needed = tuple(needed)
        self.hangs_on = hangs_on
        self.anchor = anchor
        self.halted: Halt | LetItLoopError | None = None
        self.ready = not needed
        self.told = False

    @property
    def live(self) -> bool:
        """Whether a task in it has not written anything yet."""
        return bool(self.tasks)

    def halt(self, halted: Halt | LetItLoopError) -> None:
        """Have nothing more executed in it, and nothing that it writes count, whoever swallows what was raised in it."""
        if self.halted is None:
            self.halted = halted
            self.tasks.clear()  # the thread may be another process's

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

    __slots__ = ("known", "numbered", "thread")

    def __init__(self, thread: Thread, log: Log) -> None:
        self.thread = thread
        self.numbered: set[bytes] = set()  # of the leaves recorded in this opening, those that took numbers
        self.known: set[bytes] = set()  # the steps that were on record when a former opening ended
        super().__init__(
            name=thread.name,
            goal=f"langgraph:{thread.id}",
            store=thread.store,
            log=log,
            journal=ThreadJournal(log, thread.guard, thread.codecs),
            codecs=thread.codecs,
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
        journal = ThreadJournal(log, self.thread.guard, self.codecs)
        journal.run = self.id
        if anew:
            self.known, self._live = set(), {}
        else:
            waiting = self.journal.index
            journal.upto = min(journal.upto, self.journal.upto)  # what this process records is never taken back by itself
            for key in [key for key in journal.index if key in self.known and key not in waiting]:
                del journal.index[key]  # it has answered, or was recorded by a step of this process
                journal._others.pop(key, None)
        self.numbered = set()
        self.log, self.journal, self.epoch, self.in_flight = log, journal, log.epoch, _in_flight(log)
        self.syncer = self.thread.syncer

    # --- what a step does ----------------------------------------------------------------------------------------------------

    def recall(self, call: Call) -> Value | Failure | None:
        """Return what is known of a call; None leaves the log open until :meth:`finish`."""
        self.thread.enter()
        known: Value | Failure | None = None
        held = False
        try:
            task = watch(self)  # before it is answered: what it took is nobody else's
            known = super().recall(call)
            held = known is None
            if task is not None:
                if held:
                    call.task = task  # type: ignore[attr-defined]  # a call has a dict
                    task.under_way[call] = None
                else:
                    task.answered()
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
        task: Task | None = getattr(call, "task", None)
        if task is not None:
            task.began(call)

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

    def ok(self, call: Call, value: object) -> bytes:
        """Return the payload of a result; there is none in a task that was refused and went on all the same."""
        place = place_of(call.scope)
        if place is not None and isinstance(place.halted, InvalidArgument):
            raise place.halted
        payload = super().ok(call, value)
        if getattr(call, "numbered", False):
            self.numbered.add(call.key)
        return payload

    def effect(self, key: str) -> None:
        """Record that a marker or an intent of this key began."""
        super().effect(key)
        call = current.get()
        if isinstance(call, Call) and call.key.decode("utf-8", "surrogatepass") == key:  # an intent is a step of its own
            call.acts = True  # type: ignore[attr-defined]  # a call has a dict

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
        task: Task | None = getattr(call, "task", None)
        if task is not None:
            task.ended(call)
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
        halted = bubbling(explained(halted))
        if place is not None:
            place.halt(halted)
        return halted

    def halt(self, halted: Halt) -> None:
        """A Halt was met in another thread: it is its caller's."""

    def _policy_for(self, call: Call) -> str:
        said = super()._policy_for(call)
        # in exit mode the graph began again from other inputs: its structure is a place, and no promise that the same is asked
        policy = "rerun" if call.key.startswith(_STRUCTURE.encode()) else said
        if policy == "rerun" and self._took_numbers(call):
            return "reuse" if said == "reuse" else "raise"
        return policy

    def _took_numbers(self, call: Call) -> bool:
        """Tell whether a human was asked, or a subgraph or ``@task`` called, in a call or in one that its task did after it.

        LangGraph knows what came of that by its number: made anew, another question would be answered with it.
        """
        place, prefix = place_of(call.scope), call.scope.prefix
        numbers = [self.thread.index.numbers.of(task) for task in (place.tasks if place else ())]
        leaves = [(*one.around, key) for of in numbers for key, each in of.items() for one in each]
        inside = {next(key for key in keys if key.startswith(prefix)) for keys in leaves if keys[-1].startswith(prefix)}
        return any(key in self.journal.index for key in inside) or not inside <= finished(self, inside)

    def _ways_on(self, step: str, effects: list[str]) -> str:
        done = f" (effects that have happened, {', '.join(effects)}, do not happen again)" if effects else ""
        anew = (
            "is refused, since it would take those back"
            if effects
            else "makes it anew, unless a human was asked, or a subgraph or @task called, in it or after it"
        )
        return (
            "Ask what was asked before; or call app.update_state(config, None): that stores a checkpoint of its own, from which "
            f"the waiting tasks run anew with the new inputs, their steps too{done}. Of a model or tool call, on_change='reuse' of "
            f"DurableMiddleware or durable_tool_call hands the recorded answer on, and on_change='rerun' {anew}."
        )


def _in_flight(log: Log) -> tuple[str, ...]:
    done = {entry.key[:NOTE_SIZE] for entry in log.entries if entry.kind in STEP_KINDS}
    return tuple(note.decode("utf-8", "replace") for note in log.lock.left_behind if note not in done)


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
        self._places: dict[tuple[str, str], tuple[Any, Place]] = {}  # with LangGraph's description of the attempt
        self._shared: dict[bytes, Place] = {}  # of structural paths: tasks may have the same one
        self._later: list[tuple[Place, tuple[str, str]]] = []  # what is to be noted when the log is open again
        self._refused: dict[str, LetItLoopError] = {}  # by the tasks that must not swallow it, and the checkpoints they hang on
        self._told = False

    # --- the resolver's side -------------------------------------------------------------------------------------------------

    def find(self, info: Any, config: Any) -> Place:
        """Return the place of the attempt that LangGraph describes."""
        known = self._known(info)
        if known is not None:
            return known
        thread, run = self._thread, self._run
        if run is not None and running_loop() is not None:  # which must not wait for a log that another process has
            with thread.guard:
                return self._known(info) or self._make(run, info, config)
        thread.enter()
        try:
            with thread.guard:
                return self._known(info) or self._make(self.run(), info, config)
        finally:
            thread.leave()

    def refuse(self, ns: str, refused: LetItLoopError) -> None:
        """Have nothing that a task writes count, nor what the tasks around it write, whoever swallows what is raised."""
        tasks = {part.rpartition(":")[2] for part in ns.split("|") if ":" in part}
        self._refused.update(dict.fromkeys(tasks, refused))
        for (_, owner), (_, place) in list(self._places.items()):
            if str(owner) in tasks:
                self._refused.update(dict.fromkeys(place.above.values(), refused))
                place.halt(refused)

    def begins(self) -> None:
        """The graph is invoked: what was refused before is over."""
        self._refused.clear()

    def _known(self, info: Any) -> Place | None:
        """Return the place that an attempt has; asked again with the guard held, since its threads may all come first at once."""
        described, place = self._places.get((info.checkpoint_ns, info.task_id), (None, None))
        return place if described is info else None

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
        task = str(info.task_id)
        exits = conf.get("__pregel_durability") == "exit"
        stored = [] if exits else [(ns, identity) for ns, identity in above.items() if ns == "" or ns in thread.loops]
        own = next((ns for ns, identity in above.items() if identity == info.checkpoint_id), "")
        structural = exits or (own, info.checkpoint_id) not in stored
        if structural:
            place = self._structural(run, info, config, above, stored, own, exits=exits)
        else:
            parts = info.checkpoint_ns.split("|")
            if task not in info.checkpoint_ns:
                parts.append(task)
            place = Place(run, path_of(parts), task, stored, (own, info.checkpoint_id), above)
        self._places[info.checkpoint_ns, info.task_id] = info, place
        watch(run)
        self._note(place, place.hangs_on)
        return place

    def _structural(
        self,
        run: ThreadRun,
        info: Any,
        config: Any,
        above: Mapping[str, str],
        stored: list[tuple[str, str]],
        own: str,
        *,
        exits: bool,
    ) -> Place:
        """Make a place whose path is the graph's structure: below what the run went on from, or below the nearest stored task."""
        metadata = config.get("metadata") or {}
        parts, task = info.checkpoint_ns.split("|"), str(info.task_id)
        names = [*(self._structure("|".join(parts[:at])) for at in range(1, len(parts))), name_of(parts[-1])]
        tail = [where_in(metadata), *([] if metadata else [task])]
        anchor = ""
        if exits:
            self._tell_exit()
            anchor = self._anchor()
            hangs_on = (own, info.checkpoint_id)
            head = [f"{_STRUCTURE}{anchor or 'start'}", str(metadata.get("run_id") or "-")]
        else:
            hangs_on = max(stored, key=lambda one: len(one[0])) if stored else ("", "")
            depth = len(hangs_on[0].split("|")) if hangs_on[0] else 0
            head = [_STRUCTURE.strip(), *parts[: depth + 1]]
            names = names[depth + 1 :]
        end = path_of([*names, *tail])
        prefix = path_of(head) + end
        if exits:  # a run that was interrupted, or failed, stored this checkpoint at its end: its tasks go on
            places = self._thread.index.places
            depth = len(head)
            former = [known for place in above.items() for known in places.get(place, ()) if known.split(b"/", depth)[-1] == end]
            prefix = former[0] if former else prefix
        shared = self._shared.get(prefix)
        if shared is None or info.node_attempt != 1 or not shared.live or task in shared.tasks:
            shared = self._shared[prefix] = Place(run, prefix, task, stored, hangs_on, above, anchor if exits else None)
        else:
            self._check_order(shared, info, above)
            shared.tasks.add(task)
        for one in above.items() if exits else ():
            self._note(shared, one)
        return shared

    def _check_order(self, place: Place, info: Any, above: Mapping[str, str]) -> None:
        """Let tasks of one structure share a place only if they come one after the other: then the order tells their steps apart.

        Raises:
            InvalidArgument: they run side by side, in any order.
        """
        parts = info.checkpoint_ns.split("|")
        for at in range(len(parts)):
            ns = "|".join(parts[:at])
            if ns in place.above and place.above[ns] != above.get(ns):
                return  # another superstep of that graph, or another call of it
            if at and ns not in place.above:
                raise InvalidArgument(
                    f"thread {self._thread.id!r}: several tasks of node {name_of(parts[at - 1])!r} run a subgraph side by side, "
                    "and nothing that a later life of the program could recognise tells their steps apart: LangGraph asks for "
                    "no checkpoint of the subgraph (checkpointer=False). This step was not executed. Compile the subgraph without "
                    "that, or record what it does in a step of the node around it."
                )

    def _structure(self, ns: str) -> str:
        """Return what a task around a subgraph is called where its id means nothing: its name, and its step and position."""
        name, where = name_of(ns.rpartition("|")[2]), self._thread.loops.get(ns)
        return f"{name} {where}" if where else name

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

    def rewritten(self, log: Log) -> None:
        """The thread's log was made smaller; called with the guard held since before that."""
        run = self._run
        if run is not None:
            assert isinstance(run.journal, ThreadJournal)
            run.journal.compacted(log)
        if not self._in_use():
            self.opened(log)  # no scope counts on what has answered: every record may answer

    def paths_in_use(self) -> set[bytes]:
        """Return the paths of the tasks that are under way: their steps stay, whichever checkpoints go."""
        return {place.prefix for _, place in self._places.values() if place.live}

    def synced_by(self, syncer: Syncer | None) -> None:
        """The thread's log has a syncer, which async steps use as well; None: the next one who needs one makes it."""
        if self._run is not None:
            self._run.syncer = syncer

    def _in_use(self) -> bool:
        return any(place.live for _, place in self._places.values())

    def busy(self) -> bool:
        """Tell whether a task that recorded steps is still under way."""
        return self._in_use()

    def wrote(self, task: str, writes: Sequence[tuple[str, Any]]) -> None:
        """A task has ended, or was interrupted.

        Raises:
            Halt: one was raised in it, and it went on all the same: what it wrote does not count.
        """
        for place in [place for (_, owner), (_, place) in self._places.items() if str(owner) == task]:
            error = next((value for channel, value in writes if channel == ERROR), None)
            if isinstance(error, BaseException):
                self._note_error(error)
            place.tasks.discard(task)
            if place.halted is not None and not any(channel in _UNFINISHED for channel, _ in writes):
                raise place.halted
        if task in self._refused and not any(channel in _UNFINISHED for channel, _ in writes):
            raise self._refused[task]

    def check_swallowed(self, ns: str, parent: str | None) -> None:
        """Refuse a checkpoint that would follow a task in which a Halt was swallowed.

        Raises:
            Halt: that one.
        """
        for _, place in self._places.values():
            if place.halted is not None and place.hangs_on == (ns, parent or ""):
                raise place.halted
        if parent in self._refused:
            raise self._refused[parent]

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

            said = {"steps": steps, "at": time.time(), "error": encode_failure(error, run.codecs)}
            run.log.queue(ENDED, b"", default_codecs.encode(said))

    def superseded(self, ns: str, parent: str | None, identity: str) -> None:
        """A checkpoint was stored: the tasks of the one before it are over, and in exit mode all but those that go on from it.

        A run that failed or was interrupted in exit mode stores where it stands, its subgraphs as well: what hangs on that, at any
        depth, goes on when the thread is invoked again.
        """
        before = parent or ""
        gone = [
            key
            for key, (_, place) in self._places.items()
            if (place.hangs_on == (ns, before) and place.above.get(ns) != identity)
            or (place.anchor is not None and place.above.get(ns, identity) != identity and (ns or place.anchor == before))
        ]
        if not gone or self._run is None:
            return
        ended = {self._places.pop(key)[1].prefix for key in gone} - {place.prefix for _, place in self._places.values()}
        live = self._run._live
        for prefix in ended:
            self._shared.pop(prefix, None)
            for step in [step for step in list(live) if step.startswith(prefix)]:
                live.pop(step, None)

    def forget(self) -> None:
        """The thread was deleted."""
        self._run = None
        self._later.clear()
        self._places.clear()
        self._shared.clear()
