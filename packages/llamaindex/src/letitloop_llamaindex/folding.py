"""What a run's recorded ticks come to: the framework's own reducer folds them, as it did when they happened."""

# workflows.runtime is typed; its folder has no __init__.py, which hides that
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workflows.events import InputRequiredEvent
from workflows.runtime.control_loop import replay_ticks_stream
from workflows.runtime.types.commands import CommandCompleteRun
from workflows.runtime.types.step_id import StepId
from workflows.runtime.types.ticks import (
    TickAddEvent,
    TickCancelRun,
    TickIdleCheck,
    TickStepResult,
    TickTimeout,
)

from letitloop_llamaindex.stores import attempt_of, item_of
from letitloop_llamaindex.waiting import NOTHING, Waiting, Written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from workflows.events import Event, StopEvent
    from workflows.runtime.types.internal_state import BrokerState
    from workflows.runtime.types.ticks import WorkflowTick

__all__ = ["NOBODY", "AlreadySent", "Folded"]


class AlreadySent(InputRequiredEvent):
    """Stands for an event that a step which runs again has sent before: nothing takes it."""


NOBODY = StepId.root("(already sent)")


@dataclass
class Folded:
    """A run as its records have it.

    Attributes:
        state: the framework's state.
        waiting: what it waits for.
        started: whether its start event is among the ticks.
        stopped: the event that the run has come to its end with.
        error: what ended it; it may be tried again.
        final: whether that would only happen again.
        sent: by the name of an attempt in flight, the events that it has sent and that were delivered.
    """

    state: BrokerState
    run_id: str
    waiting: Waiting = field(default_factory=Waiting)
    started: bool = False
    stopped: StopEvent | None = None
    error: Exception | None = None
    final: bool = False
    sent: dict[str, list[Event]] = field(default_factory=dict[str, "list[Event]"])
    _ended: tuple[str, list[Event]] = ("", [])
    _before: BrokerState | None = None
    _last: WorkflowTick | None = None

    async def add(self, tick: WorkflowTick, written: Written = NOTHING) -> None:
        """Fold a further tick, with what its step wrote to the stream."""
        item = item_of(self._attempt(tick.invocation_id) or "") if isinstance(tick, TickStepResult) else ""
        self._before, self._last = self.state, tick
        self._note_sends(tick)
        folded = await replay_ticks_stream(self.state, _one(tick), run_id=self.run_id)
        self.state = folded.state
        self.waiting.see(tick, item, written)
        self.started = self.started or isinstance(tick, TickAddEvent)
        end = folded.exit_command
        if isinstance(end, CommandCompleteRun):
            self.stopped = end.result
        elif end is not None:
            self.error, self.final = end.exception, isinstance(tick, TickIdleCheck)

    def _note_sends(self, tick: WorkflowTick) -> None:
        """Note what steps have sent before they ended: they run again, and what they sent must not be sent twice."""
        if isinstance(tick, TickAddEvent) and tick.emission is not None and not isinstance(tick.event, AlreadySent):
            attempt = self._attempt(tick.emission.invocation_id)
            if attempt is not None:
                self.sent.setdefault(attempt, []).append(tick.event)
        elif isinstance(tick, TickStepResult):
            attempt = self._attempt(tick.invocation_id) or ""
            self._ended = attempt, self.sent.pop(attempt, [])

    def _attempt(self, invocation_id: str | None) -> str | None:
        for step_id, worker in self.state.workers.items():
            for one in worker.in_progress:
                if one.invocation_id == invocation_id:
                    return attempt_of(str(step_id), one.work_item_id, one.attempts)
        return None

    @property
    def idle(self) -> bool:
        """Whether nothing of it goes on by itself."""
        busy = any(worker.queue or worker.in_progress for worker in self.state.workers.values())
        return self.state.is_running and not busy and not self.state.deliveries

    def open_questions(self) -> list[Event]:
        """Return the questions that nobody has answered; what has been answered is waited for no more."""
        workers: list[Any] = list(self.state.workers.values())
        waiters = [waiter for worker in workers for waiter in worker.collected_waiters]
        unanswered = {waiter.waiter_id for waiter in waiters if waiter.resolved_event is None and not waiter.timed_out}
        for name in self.waiting.waiters.keys() - unanswered:
            del self.waiting.waiters[name]
        return self.waiting.asked()

    def again(self) -> None:
        """Take back what ended the run: the work that failed is in flight again, and a timeout begins anew."""
        if self.error is None or self._before is None:
            return
        self.state, self.error = self._before, None
        if isinstance(self._last, TickStepResult) and self._ended[1]:
            self.sent[self._ended[0]] = self._ended[1]
        if isinstance(self._last, (TickTimeout, TickCancelRun)):
            self.state.elapsed_alive = 0.0


async def _one(tick: WorkflowTick) -> AsyncIterator[WorkflowTick]:
    yield tick
