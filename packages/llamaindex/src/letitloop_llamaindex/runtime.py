"""The runtime: workflows as the framework runs them, with every tick on record before anything comes of it."""

# workflows.runtime is typed; its folder has no __init__.py, which hides that
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

from workflows.plugins.basic import BasicRuntime, InternalAsyncioAdapter
from workflows.runtime.types.plugin import RegisteredWorkflow, WaitResultTick
from workflows.runtime.types.results import RetryAttempt

from letitloop.codecs import default_codecs
from letitloop.integration.policies import Policies
from letitloop_llamaindex.driving import Drive, driving
from letitloop_llamaindex.late import let_agents_take_a_runtime, make_durable
from letitloop_llamaindex.logs import Options, RunLog
from letitloop_llamaindex.names import Names
from letitloop_llamaindex.serializers import ExactSerializer

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from workflows.context.serializers import BaseSerializer
    from workflows.events import Event, StartEvent, StopEvent
    from workflows.runtime.types.internal_state import BrokerState
    from workflows.runtime.types.named_task import NamedTask, PendingStart
    from workflows.runtime.types.plugin import (
        ExternalRunAdapter,
        InternalRunAdapter,
        WaitForNextTaskResult,
        WaitResult,
        WorkflowRunFunction,
    )
    from workflows.runtime.types.results import StepWorkerState
    from workflows.runtime.types.step_function import StepWorkerFunction
    from workflows.runtime.types.ticks import WorkflowTick
    from workflows.workflow import Workflow

    from letitloop.integration.policies import Policy
    from letitloop.store.protocol import Store

__all__ = ["LetItLoopRuntime"]


class LetItLoopRuntime(BasicRuntime):
    """Runs workflows so that they go on where they died.

    ``workflow.run(run_id="order-42", …)`` run again after a crash skips the steps that had finished; those in flight run again,
    with their finished model and tool calls answered from the log. A run that had come to its end returns its recorded result.

    Args:
        tools: what is done about an agent's tool call that happened before, by tool name: ``"record"``, ``"rerun"``, or an
            :func:`letitloop.effect`.
        default: the policy of every other tool.
        store: a store or a directory; ``LETITLOOP_STORE`` or ``./.letitloop`` by default.
        on_change: what other inputs than the recorded ones do: ``"raise"`` :class:`~letitloop.StepChanged`, ``"rerun"``, or
            ``"reuse"`` what is recorded.
        sync: what a finished step survives: ``"power"`` or ``"process"``.

    Raises:
        InvalidArgument: an option has a value that means nothing.

    Example:
        >>> import asyncio
        >>> from workflows import Workflow, step
        >>> from workflows.events import StartEvent, StopEvent
        >>> class Greeting(Workflow):
        ...     @step
        ...     async def greet(self, ev: StartEvent) -> StopEvent:
        ...         return StopEvent(result=f"Hello {ev.name}")
        >>> async def main() -> str:
        ...     return await Greeting(runtime=LetItLoopRuntime(store="memory:greetings")).run(run_id="greeting-1", name="Ada")
        >>> asyncio.run(main())
        'Hello Ada'
    """

    def __init__(
        self,
        *,
        tools: Mapping[str, Policy] | None = None,
        default: Policy = "record",
        store: Store | str | os.PathLike[str] | None = None,
        on_change: Literal["raise", "rerun", "reuse"] = "raise",
        sync: Literal["power", "process"] = "power",
    ) -> None:
        super().__init__()
        self.policies = Policies(dict(tools or {}), default)
        self.names = Names(self.policies)
        self._options = Options(store, sync, on_change)
        self._options.spec("checked")
        self._default_serializer = ExactSerializer()
        let_agents_take_a_runtime()

    def track_workflow(self, workflow: Workflow) -> None:
        """Note a workflow for the names of its tools alone: none needs to be launched."""
        self.names.track(workflow)

    def untrack_workflow(self, workflow: Workflow) -> None:
        """Forget a workflow that has another runtime now."""
        self.names.untrack(workflow)

    def register(self, workflow: Workflow) -> RegisteredWorkflow:
        """Return the workflow's functions, with what makes them durable."""
        stock = super().register(workflow)
        steps = {name: self._in_its_scope(fn) for name, fn in stock.steps.items()}
        return RegisteredWorkflow(workflow, self._durable(stock.workflow_run_fn), steps)

    def run_workflow(
        self,
        run_id: str,
        workflow: Workflow,
        init_state: BrokerState,
        start_event: StartEvent | None = None,
        serialized_state: dict[str, Any] | None = None,
        serializer: BaseSerializer | None = None,
    ) -> ExternalRunAdapter:
        """Begin a run, or go on with it."""
        make_durable(workflow, self.names)
        self.names.track(workflow)
        self.names.check()
        queues = self._queues.get(run_id)
        if queues is not None and queues.complete.done():
            del self._queues[run_id]  # it has ended in this process, and is run again
        inputs = default_codecs.fingerprint((start_event.to_dict() if start_event is not None else None,), {})
        log = RunLog(self._options, run_id, f"workflow {type(workflow).__qualname__} {inputs[:4].hex()}")
        drive = Drive(log, workflow, run_id, self.names)
        token = driving.set(drive)
        try:
            adapter = super().run_workflow(run_id, workflow, init_state, start_event, serialized_state, serializer)
        finally:
            driving.reset(token)
        drive.begun(self._queues[run_id])
        return adapter

    def get_internal_adapter(self, workflow: Workflow) -> InternalRunAdapter:
        """Return what the framework's loop tells its ticks to."""
        drive = driving.get()
        assert drive is not None and drive.queues is not None, "a run of this runtime"  # noqa: PT018 - one condition
        return _Adapter(drive)

    def _durable(self, stock: WorkflowRunFunction) -> WorkflowRunFunction:
        async def run(
            init_state: BrokerState, start_event: StartEvent | None = None, tags: dict[str, Any] | None = None
        ) -> StopEvent:
            drive = driving.get()
            assert drive is not None, "set by run_workflow"
            return await drive.run(stock, init_state, start_event, tags)

        return run

    def _in_its_scope(self, stock: StepWorkerFunction) -> StepWorkerFunction:
        @wraps(stock)
        async def worker(
            state: StepWorkerState,
            step_name: str,
            event: Event,
            workflow: Workflow,
            bound_events: dict[str, Event] | None = None,
            retry: RetryAttempt = RetryAttempt(),  # noqa: B008 - frozen, and the framework's own default
        ) -> Any:
            drive = driving.get()
            assert drive is not None, "set by run_workflow"
            with drive.executing(step_name, state, retry), self.registering():
                return await stock(state, step_name, event, workflow, bound_events, retry)

        return worker


class _Adapter(InternalAsyncioAdapter):
    """The framework's own, with its ticks recorded before anything comes of them."""

    def __init__(self, drive: Drive) -> None:
        assert drive.queues is not None, "the run has begun"
        super().__init__(drive.queues)
        self._drive = drive

    async def on_tick(self, tick: WorkflowTick) -> None:
        await self._drive.on_tick(tick)
        await super().on_tick(tick)

    async def wait_receive(self, timeout_seconds: float | None = None) -> WaitResult:
        waiting = self._drive.waiting
        held = waiting.held()
        if held is not None:
            return WaitResultTick(held)
        while isinstance(received := await super().wait_receive(timeout_seconds), WaitResultTick):
            tick = waiting.receive(received.tick)
            if tick is not None:
                return WaitResultTick(tick)
        return received

    async def wait_for_next_task(
        self, running: list[NamedTask], pending: list[PendingStart], timeout: float | None = None
    ) -> WaitForNextTaskResult:
        # while it waits for a person, the run's own timeout is no reason to wake up
        return await super().wait_for_next_task(running, pending, None if self._drive.waiting.idle else timeout)

    async def send_event(self, tick: WorkflowTick) -> None:
        await super().send_event(self._drive.sends(tick))

    async def write_to_event_stream(self, event: Event) -> None:
        if self._drive.wrote(event):
            await super().write_to_event_stream(event)
