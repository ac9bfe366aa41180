"""What a run waits for from outside: a person's answer, which may take days. That time is not counted as time that it runs.

The framework counts the time between two ticks. A run that waits for an answer, and for nothing else, is told of a new session
before the answer reaches it: what went by until then is treated as the time between two processes is.
"""

# workflows.runtime is typed; its folder has no __init__.py, which hides that
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from workflows.events import HumanResponseEvent, InputRequiredEvent
from workflows.runtime.types.results import AddWaiter, DeleteWaiter, StepWorkerResult
from workflows.runtime.types.ticks import (
    TickAddEvent,
    TickIdleCheck,
    TickPublishEvent,
    TickSessionStart,
    TickStepResult,
    TickTimeout,
    TickWaiterTimeout,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workflows.events import Event
    from workflows.runtime.types.step_id import StepId
    from workflows.runtime.types.ticks import WorkflowTick

__all__ = ["NOTHING", "Waiter", "Waiting", "Written", "came_from_outside"]

_SLACK = 0.02
"""Seconds: the framework's own timer is a little later than the tick that starts it."""


def came_from_outside(tick: WorkflowTick) -> bool:
    """Tell whether a tick brings something that no earlier record implies."""
    if isinstance(tick, TickAddEvent):
        return tick.emission is None
    return not isinstance(tick, (TickSessionStart, TickIdleCheck, TickPublishEvent))


class Waiter(NamedTuple):
    """A call of ``wait_for_event`` that has no answer yet."""

    asked: AddWaiter[Any]
    step_id: StepId
    since: float


class Written(NamedTuple):
    """What a step wrote to the stream.

    Attributes:
        events: all of it.
        passed: the places in it of questions that a run inside the step has asked, and has had answered when the step ends.
    """

    events: Sequence[Event] = ()
    passed: Sequence[int] = ()


NOTHING = Written()


class Waiting:
    """What a run waits for.

    Attributes:
        waiters: the calls of ``wait_for_event``, by their ids.
        questions: the events that asked for an answer without waiting for it in a step.
        idle: whether nothing else goes on.
    """

    def __init__(self) -> None:
        self.waiters: dict[str, Waiter] = {}
        self.questions: list[Event] = []
        self.idle = False
        self._written: dict[str, list[tuple[Event, str, bool]]] = {}
        self._held: WorkflowTick | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._wakers: list[asyncio.TimerHandle] = []

    def see(self, tick: WorkflowTick, item: str = "", written: Written = NOTHING) -> None:
        """Take in a tick.

        Args:
            tick: the tick.
            item: the step and its work item that it is the result of.
            written: what the step wrote to the stream.
        """
        if not isinstance(tick, (TickIdleCheck, TickTimeout)):  # a timer that was due meanwhile starts nothing
            self.idle = False
        if isinstance(tick, TickAddEvent):
            if tick.emission is None and isinstance(tick.event, HumanResponseEvent):
                self._answered(tick.event)
        elif isinstance(tick, TickWaiterTimeout):
            self.waiters.pop(tick.waiter_id, None)
        elif isinstance(tick, TickStepResult):
            self._note_written(tick, item, written)
            for result in tick.result:
                self._see(result, tick)

    def _see(self, result: object, tick: TickStepResult) -> None:
        if isinstance(result, AddWaiter):
            since = tick.stamped_at or time.time()
            self.waiters.setdefault(result.waiter_id, Waiter(result, tick.step_id, since))
        elif isinstance(result, DeleteWaiter):
            self.waiters.pop(result.waiter_id, None)
        elif isinstance(result, StepWorkerResult) and isinstance(result.result, InputRequiredEvent):
            self.questions.append(result.result)

    # --- questions -----------------------------------------------------------------------------------------------------------

    def _note_written(self, tick: TickStepResult, item: str, written: Written) -> None:
        """Note the questions that a step wrote to the stream: of the answer that it waits for then, or of none that it waits for.

        A step that waits runs again from the top, and writes again what it wrote before.
        """
        asked = [(event, at in written.passed) for at, event in enumerate(written.events) if isinstance(event, InputRequiredEvent)]
        noted = self._written.setdefault(item, [])
        waiter = next((result.waiter_id for result in tick.result if isinstance(result, AddWaiter)), "")
        noted += [(event, waiter, passed) for event, passed in asked[len(noted) :]]
        if any(isinstance(result, StepWorkerResult) for result in tick.result):
            del self._written[item]
            self.questions += [event for event, waiter, passed in noted if not waiter and not passed]

    def _answered(self, event: Event) -> None:
        """Take away the question that an event answers: what it says tells which one, or else the oldest is meant."""
        if any(_is_for(event, waiter.asked) for waiter in self.waiters.values()):
            return
        said = _fields(event)
        best = max(self.questions, key=lambda question: _in_common(said, question), default=None)
        self.questions = [question for question in self.questions if question is not best]

    def settled(self) -> dict[str, list[bool]]:
        """Return by work item which of the questions that it wrote, in their order, have been answered."""
        return {item: [waiter not in self.waiters for _, waiter, _ in noted] for item, noted in self._written.items()}

    def asked(self) -> list[Event]:
        """Return the questions that nobody has answered."""
        written = [event for noted in self._written.values() for event, waiter, _ in noted if waiter in self.waiters]
        named = [waiter.asked.waiter_event for waiter in self.waiters.values()]
        return [*self.questions, *written, *(event for event in named if event is not None)]

    # --- time ----------------------------------------------------------------------------------------------------------------

    def begin(self, send: Callable[[WorkflowTick], None]) -> None:
        """Nothing goes on but what is waited for.

        Args:
            send: sends the run a tick.
        """
        if not self.waiters and not self.questions:
            return  # it waits for nobody: its timeout is to end it
        self._sleep_on()
        self.idle = True
        loop, now = asyncio.get_running_loop(), time.time()
        for waiter in self.waiters.values():
            if waiter.asked.timeout is not None:
                left = max(0.0, waiter.since + waiter.asked.timeout - now) + _SLACK
                self._wakers.append(loop.call_later(left, send, TickSessionStart()))

    def end(self) -> None:
        """The run has ended in this process."""
        self._sleep_on()
        for timer in self._timers:
            timer.cancel()

    def _sleep_on(self) -> None:
        while self._wakers:
            self._wakers.pop().cancel()

    def resume(self, send: Callable[[WorkflowTick], None]) -> None:
        """Let the timeouts of what is waited for run anew, in a process that goes on with the run."""
        loop = asyncio.get_running_loop()
        for name, waiter in list(self.waiters.items()):
            self.waiters[name] = waiter._replace(since=time.time())
            if waiter.asked.timeout is not None:
                tick = TickWaiterTimeout(step_id=waiter.step_id, waiter_id=name)
                self._timers.append(loop.call_later(waiter.asked.timeout, send, tick))

    def held(self) -> WorkflowTick | None:
        """Return the tick that ended the wait, once the run has been told that a new session begins."""
        tick, self._held = self._held, None
        return tick

    def receive(self, tick: WorkflowTick) -> WorkflowTick | None:
        """Return what the run is told first when a tick reaches it; None: nothing.

        A new session begins only where nothing goes on: it would begin all work in flight anew.
        """
        if not self.idle:
            return None if isinstance(tick, TickSessionStart) else tick
        self.idle = False
        self._sleep_on()
        if isinstance(tick, TickSessionStart):
            return tick
        self._held = tick
        return TickSessionStart()


def _is_for(event: Event, asked: AddWaiter[Any]) -> bool:
    if not isinstance(event, asked.event_type):
        return False
    return all(getattr(event, name, None) == value for name, value in asked.requirements.items())


def _in_common(said: dict[str, Any], question: Event) -> int:
    """Return how much of a question an answer repeats: its number, or whom it is for."""
    return sum(name in said and bool(said[name] == value) for name, value in _fields(question).items())


def _fields(event: Event) -> dict[str, Any]:
    """Return what an event says and what can be compared."""
    declared = {name: getattr(event, name) for name in type(event).model_fields}
    return {name: value for name, value in {**declared, **dict(event.items())}.items() if isinstance(value, Hashable)}
