"""One run of a workflow in this process: what it has recorded, and what it records."""

# workflows.runtime is typed; its folder has no __init__.py, which hides that
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import asyncio
import inspect
import logging
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from workflows.context.context_types import SerializedContext
from workflows.context.state_store import InMemoryStateStore
from workflows.errors import WorkflowCancelledByUser
from workflows.events import (
    Event,
    InputRequiredEvent,
    InternalDispatchEvent,
    StopEvent,
    WorkflowCancelledEvent,
    WorkflowFailedEvent,
    WorkflowIdleEvent,
)
from workflows.runtime.types.internal_state import BrokerState
from workflows.runtime.types.results import StepWorkerFailed, StepWorkerResult, StepWorkerStateContextVar
from workflows.runtime.types.ticks import TickAddEvent, TickSessionStart, TickStepResult
from workflows.workflow import Workflow

from letitloop.codecs import default_codecs
from letitloop.errors import Halt, RunHalted
from letitloop.integration.sessions import entered
from letitloop.runs.scope import restore
from letitloop_llamaindex.folding import NOBODY, AlreadySent, Folded
from letitloop_llamaindex.late import configuration_of, is_memory
from letitloop_llamaindex.serializers import ExactSerializer
from letitloop_llamaindex.states import StateLog
from letitloop_llamaindex.stores import CountingStore, attempt_of, current_attempt, item_of
from letitloop_llamaindex.ticks import TickCodec
from letitloop_llamaindex.traces import doing
from letitloop_llamaindex.waiting import Waiting, Written, came_from_outside

if TYPE_CHECKING:
    from collections.abc import Generator

    from workflows.events import StartEvent
    from workflows.plugins.basic import AsyncioAdapterQueues
    from workflows.runtime.types.plugin import WorkflowRunFunction
    from workflows.runtime.types.results import RetryAttempt, StepWorkerState
    from workflows.runtime.types.ticks import WorkflowTick

    from letitloop_llamaindex.logs import RunLog
    from letitloop_llamaindex.names import Names

__all__ = ["Drive", "Stopped", "driving"]


class Stopped(Halt):
    """Carries an ordinary exception past an agent, which would show it to its model as text."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


driving: ContextVar[Drive | None] = ContextVar("letitloop_llamaindex_drive", default=None)


class Drive:
    """A run while it is driven.

    Args:
        log: where it is recorded.
        workflow: whose run it is.
        run_id: the name that the framework knows it by.
        names: of the tools of its runtime.
    """

    def __init__(self, log: RunLog, workflow: Workflow, run_id: str, names: Names) -> None:
        self.names = names
        self._log = log
        self._workflow = workflow
        self._run_id = run_id
        self._codec = TickCodec()
        self._state = StateLog(self._codec)
        self._sent: dict[str, list[Event]] = {}
        self._attempts: dict[str | None, str] = {}
        self._shown: list[Event] = []
        self._written: dict[str | None, list[Event]] = {}
        self._around = driving.get()  # the run whose step begins this one
        self._asked_inside: list[Event] = []
        self._settled: dict[str, list[bool]] = {}
        self.waiting = Waiting()
        self._ended = False
        self.queues: AsyncioAdapterQueues | None = None

    # --- from its start to its end -------------------------------------------------------------------------------------------

    async def run(
        self, stock: WorkflowRunFunction, init_state: BrokerState, start_event: StartEvent | None, tags: dict[str, Any] | None
    ) -> StopEvent:
        """Drive the run to its end; one that has come to it returns what is recorded."""
        error: BaseException | None = None
        try:
            return await self._run(stock, init_state, start_event, tags)
        except Stopped as stopped:
            error = stopped.error
            raise error from error.__cause__
        except BaseException as exc:
            error = exc
            raise
        finally:
            self.waiting.end()
            await self._log.close()
            if error is not None:  # the last: whoever reads the stream may begin the run anew
                self._end_stream(error)

    async def _run(
        self, stock: WorkflowRunFunction, init_state: BrokerState, start_event: StartEvent | None, tags: dict[str, Any] | None
    ) -> StopEvent:
        await self._log.open()
        if self._log.finished is not None and await self._log.answers(self._question(start_event)):
            return await self._recall(self._log.finished, start_event)
        folded = await self._resume(init_state, start_event)
        try:
            if folded.stopped is not None:
                result = folded.stopped
                self._publish(result)
            elif folded.final and folded.error is not None:
                raise folded.error
            else:
                result = await stock(folded.state, None if folded.started else start_event, tags)
        except BaseException as exc:
            self._log.fail(exc)
            raise
        await self._log.finish({**await self._final(result), "asked": self._question(start_event)})
        if not folded.started:
            self.names.check_again()
        return result

    async def _resume(self, init_state: BrokerState, start_event: StartEvent | None) -> Folded:
        """Put together what earlier lives have recorded; a first life finds nothing."""
        queues = self._live(start_event)
        asked = _asked(start_event)
        begun = {"run_id": self._run_id, "broker": _continued(init_state)}
        begun = self._log.once("start", {"workflow": type(self._workflow).__qualname__, **asked}, begun)
        for name, made_of in configuration_of(self._workflow).items():
            self._log.once(name, made_of, None)
        if begun["broker"] is not None:
            recorded = SerializedContext.model_validate(begun["broker"])
            init_state = BrokerState.from_serialized(recorded, self._workflow, ExactSerializer())
        folded = Folded(init_state, begun["run_id"])
        for record in self._log.ticks():
            if record["tick"] == "again":
                folded.again()
                continue
            self._codec.take_in(record["new"])
            self._state.apply(record.get("state", {}))
            self._store.take_in(record)
            written = self._codec.decode_value(record["stream"]) if "stream" in record else []
            await folded.add(self._codec.decode(record["data"]), Written(written, record.get("passed", [])))
            self._show_again(written)
        if folded.error is not None and not folded.final:
            folded.again()
            await self._log.record({"tick": "again"}, wait=False)
        await self._state.restore(self._store)
        self._sent = folded.sent
        queues.init_state = folded.state
        if folded.stopped is None:
            self._ask_again(folded)
        return folded

    def _ask_again(self, folded: Folded) -> None:
        """Publish the questions that nobody has answered."""
        self.waiting = folded.waiting
        for event in folded.open_questions():
            self._publish(event)
        self._settled = self.waiting.settled()
        self.waiting.resume(self._send)
        if folded.idle:
            self.waiting.begin(self._send)

    async def _recall(self, finished: Any, start_event: StartEvent | None) -> StopEvent:
        """Return a finished run's result, with its state where the caller expects it."""
        queues = self._live(start_event)
        codec = self._codec
        codec.take_in(finished["new"])
        result: StopEvent = codec.decode_value(finished["result"])
        self._state.apply(finished["state"])
        await self._state.restore(self._store)
        queues.init_state.is_running = False
        self._show_again(codec.decode_value(finished["stream"]))
        self._publish(result)
        return result

    def _question(self, start_event: StartEvent | None) -> dict[str, str]:
        """Return what the run is asked, by name; compared, and never recorded: it may hold live objects."""
        asked = {"workflow": type(self._workflow).__qualname__, **_asked(start_event)}
        return {name: default_codecs.fingerprint((value,), {}).hex() for name, value in asked.items()}

    async def _final(self, result: StopEvent) -> dict[str, Any]:
        codec = TickCodec()
        state = await InMemoryStateStore.get_state(self._store)
        final: dict[str, Any] = {"state": await StateLog(codec).changes(state)}
        final["result"] = codec.encode_value(result, "result")
        final["stream"] = codec.encode_value(self._shown, "stream")
        return {"new": codec.take_new(), **final}

    def _live(self, start_event: StartEvent | None) -> AsyncioAdapterQueues:
        assert self.queues is not None, "the run has begun"
        self._codec.start = start_event
        memory = start_event.get("memory") if start_event is not None else None
        if is_memory(memory):
            self._codec.live["memory"] = memory
        return self.queues

    # --- ticks ---------------------------------------------------------------------------------------------------------------

    async def on_tick(self, tick: WorkflowTick) -> None:
        """Record a tick before anything comes of it, in one record with the state and the events of the step that it ends.

        Raises:
            UnencodableError: the tick, or a value in the state, cannot be recorded.
            LogPoisoned: the disk refused the record.
        """
        record: dict[str, Any] = {"tick": _label(tick)}
        attempt = ""
        written: list[Event] = []
        if isinstance(tick, TickStepResult):
            attempt = self._attempts.pop(tick.invocation_id, "")
            if not any(isinstance(result, StepWorkerFailed) for result in tick.result):
                # one that has failed may be what ends the run, and be tried again
                waits = not any(isinstance(result, StepWorkerResult) for result in tick.result)
                if self._store.end(attempt, waits=waits):
                    record["waits" if waits else "ended"] = attempt
            state = await InMemoryStateStore.get_state(self._store)
            if held := self._store.take_new():  # before anything else happens: the state holds these, and no others
                record["held"] = held
            record["state"] = await self._state.changes(state)
            written = self._written.pop(tick.invocation_id, [])
            if written:
                self._shown += _told(written)
                record["stream"] = self._codec.encode_value(written, "stream")
                passed = [at for at, event in enumerate(written) if any(event is one for one in self._asked_inside)]
                record.update({"passed": passed} if passed else {})
        record["data"] = self._codec.encode(tick)
        record["new"] = self._codec.take_new()
        if not isinstance(tick, TickSessionStart):
            self.waiting.see(tick, item_of(attempt), Written(written, record.get("passed", [])))
        await self._log.record(record, wait=came_from_outside(tick))
        if isinstance(tick, TickStepResult) and all(isinstance(result, StepWorkerResult) for result in tick.result):
            self._log.settle(attempt)

    def wrote(self, event: Event) -> bool:
        """Note an event that is published; those that a step writes are recorded with its result.

        Returns:
            Whether it is to be published: not a question that was answered in an earlier life, and is written by a step that runs
            again from the top because of that.
        """
        if isinstance(event, StopEvent):
            self._ended = True
        elif isinstance(event, WorkflowIdleEvent):
            self.waiting.begin(self._send)
        self._tell_around(event)
        step = StepWorkerStateContextVar.get(None)
        if step is None or isinstance(event, InternalDispatchEvent) or type(event).__name__ == "AgentStream":
            return True
        written = self._written.setdefault(step.state.invocation_id, [])
        settled = self._settled.get(item_of(current_attempt() or ""), [])
        number = len(written) - len(_told(written))
        if self._codec.can(event):
            written.append(event)
        else:
            logging.getLogger("letitloop").debug("letitloop: run %s: %s is not shown again", self._run_id, type(event).__name__)
        return not (isinstance(event, InputRequiredEvent) and number < len(settled) and settled[number])

    @contextmanager
    def executing(self, step_name: str, state: StepWorkerState, retry: RetryAttempt) -> Generator[None]:
        """Make a step's attempt at one work item the place that the program is in, inside the block.

        Raises:
            StepChanged: the step has ended, and left out calls that it had made.
        """
        name = self._attempts[state.invocation_id] = attempt_of(step_name, state.work_item_id, retry.retry_number)
        token = doing.set(self._store.begin(name))
        try:
            function = self._workflow._get_steps()[step_name]
            scope = self._log.step(name, sync=not inspect.iscoroutinefunction(inspect.unwrap(function)))
            with entered(scope):
                yield
            scope.check_all_made()
        finally:
            restore(doing, token)

    def sends(self, tick: WorkflowTick) -> WorkflowTick:
        """Return what becomes of an event that a step sends: one that it sent in an earlier life has been delivered."""
        left = self._sent.get(current_attempt() or "")
        if not left or not isinstance(tick, TickAddEvent) or tick.emission is None:
            return tick
        alike = [event for event in left if type(event) is type(tick.event)]
        if not alike:
            return tick
        same = [event for event in alike if self._codec.same(event, tick.event)]
        left.remove((same or alike)[0])
        # an item's number of its own would move those of all that comes
        return tick.model_copy(update={"event": AlreadySent(), "step_id": NOBODY, "work_item_id": str(NOBODY)})

    @property
    def _store(self) -> CountingStore:
        assert self.queues is not None, "the run has begun"
        assert isinstance(self.queues.state_store, CountingStore), "put there by begun()"
        return self.queues.state_store

    def begun(self, queues: AsyncioAdapterQueues) -> None:
        """Take the framework's queues for this run, and put a store of its own in them."""
        stock: Any = queues.state_store
        queues.state_store = CountingStore(stock, self._codec)
        self.queues = queues

    # --- its stream ----------------------------------------------------------------------------------------------------------

    def _show_again(self, events: list[Event]) -> None:
        told = _told(events)
        self._shown += told
        for event in told:
            self._publish(event)

    def _publish(self, event: Event) -> None:
        assert self.queues is not None, "the run has begun"
        self._ended = self._ended or isinstance(event, StopEvent)
        self._tell_around(event)
        self.queues.publish_queue.put_nowait(event)

    def _tell_around(self, event: Event) -> None:
        """Let the run around know whose question it is: it may show it as well, and has not asked it."""
        if self._around is not None and isinstance(event, InputRequiredEvent):
            self._around._asked_inside.append(event)

    def _send(self, tick: WorkflowTick) -> None:
        assert self.queues is not None, "the run has begun"
        self.queues.receive_queue.put_nowait(tick)

    def _end_stream(self, exc: BaseException) -> None:
        """Let whoever reads the run's events not wait for more of them."""
        if self._ended or self.queues is None:
            return
        if isinstance(exc, (asyncio.CancelledError, WorkflowCancelledByUser)):
            self._publish(WorkflowCancelledEvent())
            return
        if not isinstance(exc, Exception):
            halted = RunHalted(f"run {self._run_id} has to stop: {exc}")
            halted.__cause__ = exc
            exc = halted
        self._publish(WorkflowFailedEvent(step_name="", exception=exc))


def _continued(state: BrokerState) -> dict[str, Any] | None:
    """Return what is recorded of the state that a run begins with: that of a context which another run has left, else nothing."""
    if not state.journal_seq and not state.work_item_seq:
        return None
    return state.to_serialized(ExactSerializer()).model_dump(mode="python")


def _told(events: list[Event]) -> list[Event]:
    """Return the events without the questions among them: those are asked as long as nobody has answered them."""
    return [event for event in events if not isinstance(event, InputRequiredEvent)]


def _label(tick: WorkflowTick) -> str:
    what = getattr(tick, "step_id", None) or type(getattr(tick, "event", None)).__name__
    return f"{tick.type} {what}" if what != "NoneType" else str(tick.type)


def _asked(start_event: StartEvent | None) -> dict[str, Any]:
    if start_event is None:
        return {}
    fields = {**{name: getattr(start_event, name) for name in type(start_event).model_fields}, **start_event.to_dict()}
    live = {name for name, value in fields.items() if isinstance(value, Workflow) or is_memory(value)}
    return {name: value for name, value in fields.items() if name not in live and value is not None}
