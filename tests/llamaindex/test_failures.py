"""Workflows that fail, time out, are cancelled, or meet what must reach the caller: all is told, and what is finished stays so."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest
from workflows import Context, Workflow, catch_error, step
from workflows.errors import WorkflowCancelledByUser, WorkflowTimeoutError
from workflows.events import StartEvent, StepFailedEvent, StopEvent, WorkflowCancelledEvent, WorkflowFailedEvent

import letitloop
from letitloop import LogPoisoned, RunHalted, UnknownOutcome
from letitloop.adapters.llamaindex import LetItLoopRuntime
from tests.llamaindex.helpers import Counted, Crash, Middle, Slow, made, make, simple, stream, trouble


async def test_a_failure_that_ended_the_run_is_tried_again():
    """A failure tick in the log must not poison it: stock, the next resume has no work and hangs until its timeout."""
    trouble["error"] = ValueError("disk full")
    for _ in range(2):
        handler = simple().run(run_id="a", value=1)
        seen = stream(handler)
        with pytest.raises(ValueError, match="disk full"):
            await handler
        assert isinstance((await seen)[-1], WorkflowFailedEvent)
    trouble.clear()
    assert await simple().run(run_id="a", value=1) == [1]
    assert made == ["one", "two", "two", "two"]


class FailingLeaf(Workflow):
    @step
    async def one(self, ctx: Context, ev: StartEvent) -> StopEvent:
        letitloop.step("done", make, "done")
        await ctx.store.set("count", await ctx.store.get("count", default=0) + 1)

        def act():
            make("act")
            if trouble:
                raise OSError(28, "no space")
            return "acted"

        return StopEvent(result=(letitloop.step("act", act), await ctx.store.get("count")))


async def test_a_failed_leaf_is_tried_again_and_finished_ones_are_not():
    trouble["error"] = True
    for _ in range(2):
        with pytest.raises(OSError, match="no space"):
            await FailingLeaf(runtime=LetItLoopRuntime()).run(run_id="a")
    trouble.clear()
    assert await FailingLeaf(runtime=LetItLoopRuntime()).run(run_id="a") == ("acted", 1)
    assert made == ["done", "act", "act", "act"]


async def test_a_timeout_begins_anew():
    trouble["wait"] = True
    handler = Slow(timeout=0.05, runtime=LetItLoopRuntime()).run(run_id="a")
    with pytest.raises(WorkflowTimeoutError):
        await handler
    trouble.clear()
    assert await Slow(timeout=30, runtime=LetItLoopRuntime()).run(run_id="a") == "done"
    assert made == ["leaf"]


async def test_a_cancelled_run_goes_on():
    trouble["wait"] = True
    handler = Slow(runtime=LetItLoopRuntime()).run(run_id="a")
    seen = stream(handler)
    while not made:
        await asyncio.sleep(0)
    await handler.cancel_run()
    with pytest.raises(WorkflowCancelledByUser):
        await handler
    assert isinstance((await seen)[-1], WorkflowCancelledEvent)
    trouble.clear()
    assert await Slow(runtime=LetItLoopRuntime()).run(run_id="a") == "done"
    assert made == ["leaf"]


async def test_an_aborted_run_ends_its_stream_and_goes_on():
    trouble["wait"] = True
    handler = Slow(runtime=LetItLoopRuntime()).run(run_id="a")
    seen = stream(handler)
    while not made:
        await asyncio.sleep(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handler.cancel()
    assert isinstance((await seen)[-1], WorkflowCancelledEvent)
    del handler
    gc.collect()
    trouble.clear()
    assert await Slow(runtime=LetItLoopRuntime()).run(run_id="a") == "done"
    assert made == ["leaf"]


class Handled(Workflow):
    """A step fails, and another one takes its failure."""

    @step
    async def one(self, ev: StartEvent) -> Middle:
        make("one")
        raise Own("no", code=5) if ev.get("own") else ValueError("no")

    @catch_error
    async def rescue(self, ev: StepFailedEvent) -> Counted:
        make((type(ev.exception).__name__, str(ev.exception), type(ev.input_event).__name__))
        return Counted(number=ev.attempts)

    @step
    async def never(self, ev: Middle) -> StopEvent:
        raise AssertionError("one() has failed")

    @step
    async def end(self, ev: Counted) -> StopEvent:
        if trouble:
            raise Crash
        return StopEvent(result=ev.number)


class Own(Exception):
    """One that cannot be made of its text, and holds what cannot be recorded."""

    def __init__(self, text, *, code):
        super().__init__(text)
        self.code, self.live = code, lambda: code


@pytest.mark.parametrize("own", [False, True])
async def test_a_run_whose_failed_step_was_handled_goes_on(own):
    """Its start event, which no log has, is what the step has failed with."""
    trouble["crash"] = True
    with pytest.raises(Crash):
        await Handled(runtime=LetItLoopRuntime()).run(run_id="a", own=own, live=lambda: None)
    trouble.clear()
    assert await Handled(runtime=LetItLoopRuntime()).run(run_id="a", own=own, live=lambda: None) == 1
    assert made == ["one", ("Own" if own else "ValueError", "no", "StartEvent")]


# --- Halt --------------------------------------------------------------------------------------------------------------------


class Wide(Workflow):
    """A fan-out of four, of which one meets what must reach the caller."""

    @step
    async def one(self, ev: StartEvent) -> list[Middle]:
        return [Middle(number=number) for number in range(4)]

    @step(num_workers=4)
    async def two(self, ev: Middle) -> Middle | None:
        if ev.number == 2 and trouble:
            try:
                raise trouble["error"]
            finally:
                make("raised")
        if trouble:
            await asyncio.Event().wait()
        return None

    @step
    async def never(self, evs: list[Middle]) -> StopEvent:
        return StopEvent(result=len(evs))


async def test_unknown_reaches_the_caller_and_ends_the_stream():
    """Stock, whoever reads the events of a run that a BaseException ended waits for ever."""
    trouble["error"] = UnknownOutcome("it may have happened", namespace="shop", key="order/42", reason="no reply")
    handler = Wide(runtime=LetItLoopRuntime(), disable_validation=True).run(run_id="a")
    seen = stream(handler)
    with pytest.raises(UnknownOutcome) as caught:
        await handler
    assert caught.value.key == "order/42"
    last = (await seen)[-1]
    assert isinstance(last, WorkflowFailedEvent)
    assert isinstance(last.exception, RunHalted)
    assert last.exception.__cause__ is caught.value


async def test_a_failed_write_lets_nothing_more_happen(monkeypatch):
    """The framework's own server logs that a tick could not be stored, and goes on."""
    real = letitloop.wal.log.Log._put

    def fails(log, data):
        if made:
            raise OSError(28, "no space left")
        real(log, data)

    monkeypatch.setattr(letitloop.wal.log.Log, "_put", fails)
    handler = simple().run(run_id="a", value=1)
    seen = stream(handler)
    with pytest.raises(LogPoisoned):
        await handler
    assert isinstance((await seen)[-1], WorkflowFailedEvent)
    assert made == ["one"]
    monkeypatch.undo()
    made.clear()
