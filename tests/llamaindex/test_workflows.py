"""Workflows: which run is which, what one hands on to another, and which of them the runtime makes durable."""

from __future__ import annotations

import asyncio
import json

import pytest
from workflows import Context, Workflow, step
from workflows.events import StartEvent, StopEvent, WorkflowFailedEvent

import letitloop
from letitloop import InvalidArgument, LogLocked, StepChanged, StepOutsideRun, UnencodableError, durable
from letitloop.adapters.llamaindex import LetItLoopRuntime, durable_workflow
from tests.llamaindex.helpers import Answered, Middle, Simple, Slow, made, make, simple, stream, trouble

# --- identity ----------------------------------------------------------------------------------------------------------------


async def test_a_finished_run_returns_its_result_and_does_nothing():
    first = await simple().run(run_id="a", value={1, 2})
    handler = simple().run(run_id="a", value={1, 2})
    seen = stream(handler)
    assert await handler == first == [{1, 2}]
    assert [type(event) for event in await seen] == [StopEvent]
    assert await handler.ctx.store.get("value") == {1, 2}
    assert made == ["one", "two"]


async def test_another_run_id_is_another_run():
    assert await simple().run(run_id="a", value=1) == [1]
    assert await simple().run(run_id="b", value=2) == [2]
    assert made == ["one", "two"] * 2


async def test_a_run_without_an_id_can_be_resumed_by_whoever_kept_the_handlers():
    trouble["error"] = ValueError("once")
    handler = simple().run(value=1)
    with pytest.raises(ValueError, match="once"):
        await handler
    trouble.clear()
    assert await simple().run(run_id=handler.run_id, value=1) == [1]
    assert made == ["one", "two", "two"]


async def test_other_inputs_under_the_same_id_are_noticed():
    trouble["error"] = ValueError("once")
    with pytest.raises(ValueError, match="once"):
        await simple().run(run_id="a", value=1)
    handler = simple().run(run_id="a", value=2)
    seen = stream(handler)
    with pytest.raises(StepChanged) as caught:
        await handler
    assert caught.value.arguments == ("value",)
    assert isinstance((await seen)[-1], WorkflowFailedEvent)
    trouble.clear()
    assert await simple(on_change="rerun").run(run_id="a", value=2) == [2]
    assert made == ["one", "two", "one", "two"]


async def test_other_inputs_or_another_workflow_under_the_id_of_a_finished_run_are_noticed():
    assert await simple().run(run_id="a", value=1) == [1]
    with pytest.raises(StepChanged) as caught:
        await simple().run(run_id="a", value=2)
    assert caught.value.arguments == ("value",)
    with pytest.raises(StepChanged) as caught:
        await Slow(runtime=LetItLoopRuntime()).run(run_id="a")
    assert caught.value.arguments == ("workflow", "value")
    assert await simple().run(run_id="a", value=1) == [1]
    assert await simple(on_change="reuse").run(run_id="a", value=2) == [1]
    assert made == ["one", "two"]
    assert await simple(on_change="rerun").run(run_id="a", value=2) == [2]
    assert await simple().run(run_id="a", value=2) == [2]
    assert made == ["one", "two", "one", "two"]


async def test_two_live_drives_of_one_run_are_refused():
    trouble["wait"] = True
    workflow = Slow(runtime=LetItLoopRuntime())
    handler = workflow.run(run_id="a")
    while not made:
        await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="already exists"):
        workflow.run(run_id="a")
    with pytest.raises(LogLocked):
        await Slow(runtime=LetItLoopRuntime()).run(run_id="a")
    await handler.cancel_run()
    assert made == ["leaf"]


# --- state and results -------------------------------------------------------------------------------------------------------


async def test_a_state_key_that_cannot_be_recorded_is_an_error():
    """The framework drops a key called memory with a warning, and the resume fails for want of it."""
    handler = Keeps(runtime=LetItLoopRuntime()).run(run_id="a")
    seen = stream(handler)
    with pytest.raises(UnencodableError, match=r"state\['memory'\]") as caught:
        await handler
    assert "cannot record" in str(caught.value)
    assert isinstance((await seen)[-1], WorkflowFailedEvent)


class Keeps(Workflow):
    @step
    async def one(self, ctx: Context, ev: StartEvent) -> Middle:
        await ctx.store.set("memory", object())
        return Middle()

    @step
    async def two(self, ctx: Context, ev: Middle) -> StopEvent:
        raise AssertionError("the state was not recorded")


async def test_a_context_continues_exactly():
    handler = simple().run(run_id="a", value=(1, 2))
    await handler
    second = Simple(runtime=LetItLoopRuntime())
    handler = second.run(run_id="b", value={3}, ctx=handler.ctx)
    assert await handler == [{3}]
    kept = json.loads(json.dumps(handler.ctx.to_dict()))
    third = Simple(runtime=LetItLoopRuntime())
    ctx = Context.from_dict(third, kept)
    assert await ctx.store.get("value") == {3}
    assert await third.run(run_id="c", value=b"4", ctx=ctx) == [b"4"]


async def test_inside_a_durable_function_a_run_is_a_part_of_it():
    @durable(goal_id="report")
    async def report():
        found = [await Simple(runtime=LetItLoopRuntime()).run(value=number) for number in (1, 1)]
        letitloop.step("end", make, "end")
        if trouble:
            raise trouble["late"]
        return found

    trouble["late"] = ValueError("late")
    with pytest.raises(ValueError, match="late"):
        await report()
    assert made == ["one", "two", "one", "two", "end"]
    trouble.clear()
    assert await report() == [[1], [1]]
    assert made == ["one", "two", "one", "two", "end"]


# --- wrapping ----------------------------------------------------------------------------------------------------------------


class Parent(Workflow):
    def __init__(self, child, **options):
        super().__init__(**options)
        self.child = child

    @step
    async def one(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=await self.child.run(value=5))


async def test_durable_workflow_wraps_what_a_workflow_has():
    parent = durable_workflow(Parent(Simple(verbose=True)), store="memory:wrapped")
    runtime = parent.runtime
    assert isinstance(runtime, LetItLoopRuntime)
    assert parent.child.runtime._decorated is runtime
    assert await parent.run(run_id="a") == [5]
    assert made == ["one", "two"]


async def test_a_workflow_that_has_run_is_refused():
    workflow = Answered()
    handler = workflow.run()
    with pytest.raises(InvalidArgument, match="has been run already"):
        durable_workflow(workflow)
    await handler.cancel_run()
    with pytest.raises(InvalidArgument, match="no workflow"):
        durable_workflow(print)
    with pytest.raises(InvalidArgument, match="policy of tool"):
        LetItLoopRuntime(tools={"pay": "once"})


async def test_registering_gives_workflows_this_runtime():
    """A decorator of the framework's own kind would give them the runtime inside it."""
    runtime = LetItLoopRuntime()
    with runtime.registering():
        workflow = Simple()
    assert workflow.runtime is runtime


async def test_a_step_of_a_workflow_without_the_runtime_is_outside_any_run():
    with pytest.raises(StepOutsideRun):
        await Simple().run(value=1)
