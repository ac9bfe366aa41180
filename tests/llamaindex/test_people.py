"""People who are asked: in another process too, once, and for as long as they take."""

from __future__ import annotations

import asyncio
import gc

import pytest
from workflows import Context, Workflow, step
from workflows.events import StartEvent, StopEvent

import letitloop
from letitloop.adapters.llamaindex import LetItLoopRuntime
from tests.llamaindex.helpers import Answered, Ask, Middle, Reply, made, make, trouble


class Waits(Workflow):
    @step
    async def one(self, ctx: Context, ev: StartEvent) -> StopEvent:
        letitloop.step("before", make, "before")
        reply = await ctx.wait_for_event(Reply, waiter_event=Ask(), timeout=ev.get("patience"))
        return StopEvent(result=reply.text)


async def abandoned(handler, until=Ask):
    """Read the events of a run until one of a class, and let the process's end be the run's."""
    async for event in handler.stream_events():
        if isinstance(event, until):
            break
    task = handler._external_adapter._queues.complete
    task.cancel()
    await asyncio.wait([task])


async def test_an_answer_that_comes_in_another_process(monkeypatch):
    runtime = LetItLoopRuntime()
    await abandoned(Waits(timeout=5, runtime=runtime).run(run_id="a"))
    gc.collect()
    clock = asyncio.get_running_loop().time() + 1_000_000
    monkeypatch.setattr("time.time", lambda: clock)  # days later
    handler = Waits(timeout=5, runtime=LetItLoopRuntime()).run(run_id="a")
    asked = []
    async for event in handler.stream_events():
        if isinstance(event, Ask):
            asked.append(event)
            handler.ctx.send_event(Reply(text="yes"))
    assert await handler == "yes"
    assert len(asked) == 1
    assert made == ["before"]


async def test_an_answered_question_is_not_asked_again():
    trouble["wait"] = True

    async def life():
        handler = Answered(runtime=LetItLoopRuntime()).run(run_id="a")
        asked = 0
        async for event in handler.stream_events():
            if isinstance(event, Ask):
                asked += 1
                handler.ctx.send_event(Reply(text="yes"))
            elif isinstance(event, Middle) and trouble:
                task = handler._external_adapter._queues.complete
                task.cancel()
                await asyncio.wait([task])
                return asked, None
        return asked, await handler

    assert await life() == (1, None)
    gc.collect()
    trouble.clear()
    assert await life() == (0, "yes")


async def test_waiting_for_a_person_does_not_count_as_running(monkeypatch):
    """Stock, a run of 0.2 s that waits for an answer for longer times out, and its question with it."""
    now = [1_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    for workflow in (Waits, Answered):
        handler = workflow(timeout=0.2, runtime=LetItLoopRuntime()).run(run_id=workflow.__name__)
        idle = handler._external_adapter._queues
        async for event in handler.stream_events(expose_internal=True):
            if type(event).__name__ == "WorkflowIdleEvent":
                break
        now[0] += 86_400
        handler.ctx.send_event(Reply(text="yes"))
        assert await handler == "yes"
        assert idle.complete.done()


async def test_a_wait_has_its_own_timeout():
    handler = Waits(timeout=30, runtime=LetItLoopRuntime()).run(run_id="a", patience=0.02)
    with pytest.raises(asyncio.TimeoutError, match="Reply"):
        await handler


async def test_a_wait_times_out_in_the_next_process_as_well():
    await abandoned(Waits(timeout=30, runtime=LetItLoopRuntime()).run(run_id="a", patience=0.05))
    gc.collect()
    with pytest.raises(asyncio.TimeoutError, match="Reply"):
        await Waits(timeout=30, runtime=LetItLoopRuntime()).run(run_id="a", patience=0.05)
