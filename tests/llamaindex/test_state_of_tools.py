"""What tools write to the state that steps share: written again by those that answer from the log, and nothing else is."""

import pytest
from workflows import Context, Workflow, step
from workflows.events import StartEvent, StopEvent

import letitloop
from letitloop import InvalidArgument
from letitloop.adapters.llamaindex import LetItLoopRuntime, durable_tool
from tests.llamaindex.helpers import Ask, Crash, Reply, made, trouble
from tests.llamaindex.pairs import Done, Pair, again, crashed, die, until


async def writes_nothing(store):
    await store.get("k")


async def writes_by_set(store):
    await store.set("hotel", "H")
    await store.set("flight.number", 7)


async def writes_by_edit(store):
    async with store.edit_state() as state:
        state["hotel"] = "H"
        state["flight"] = {"number": 7}


async def writes_by_state(store):
    state = (await store.get_state()).model_copy(deep=True)
    state["hotel"] = "H"
    state["flight"] = {"number": 7}
    await store.set_state(state)


async def writes_by_a_state_in_place(store):
    state = await store.get_state()
    state["hotel"] = "H"
    state["flight"] = {"number": 7}
    await store.set_state(state)


async def writes_by_no_set(store):
    state = await store.get_state()
    state["hotel"] = "H"
    state["flight"]["number"] = 7


async def writes_in_place(store):
    (await store.get("flight"))["number"] = 7
    (await store.get_state())["notes"].append("noted")
    await store.set("hotel", "H")


WROTE = {"k": "v2", "hotel": "H", "flight": {"number": 7}, "notes": [], "a": "done"}
TOOLS = {
    writes_nothing: {"k": "v2", "flight": {}, "notes": [], "a": "done"},
    writes_by_set: WROTE,
    writes_by_edit: WROTE,
    writes_by_state: WROTE,
    writes_by_a_state_in_place: WROTE,
    writes_by_no_set: WROTE,
    writes_in_place: {**WROTE, "notes": ["noted"]},
}


@pytest.mark.parametrize("held", [True, False], ids=["held", "new"])
@pytest.mark.parametrize("writes", TOOLS)
async def test_a_tool_that_answers_from_the_log_writes_its_own_writes_and_nothing_else(writes, held):
    """What steps beside it write while it runs, or after it, is theirs; what its step writes after it is not taken for its own."""

    class Trip(Pair):
        async def prepare(self, store):
            await store.set("k", "v0")
            await store.set("flight", {})
            await store.set("notes", [])

        async def in_flight(self, ctx):
            async def book(ctx: Context) -> str:
                """Book."""
                made.append("booking")
                await until("v1" if held else "ended second")
                await writes(ctx.store)
                made.append("booked")
                return "booked"

            answer = await durable_tool(book).acall(ctx=ctx)
            if trouble and held:
                await until("ended second")
            die()
            await ctx.store.set("a", "done")
            return answer.content

        async def beside(self, ctx):
            await until("booking")
            await ctx.store.set("k", "v1")
            made.append("v1")
            if held:
                await until("booked")
            await ctx.store.set("k", "v2")

        @step
        async def join(self, ctx: Context, ev: Done) -> StopEvent | None:
            made.append(f"ended {ev.name}")
            if ctx.collect_events(ev, [Done] * 2) is None:
                return None
            return StopEvent(result=dict((await ctx.store.get_state()).items()))

    await crashed(Trip)
    assert await again(Trip) == TOOLS[writes]
    assert made.count("booked") == 1


async def test_a_tool_may_write_by_a_context_that_it_was_not_given_and_call_a_tool_that_writes():
    class Trip(Pair):
        async def in_flight(self, ctx):
            async def inner(ctx: Context) -> str:
                """Book a flight."""
                await ctx.store.set("flight", len(made))
                return "flight"

            async def book() -> str:
                """Book."""
                await durable_tool(inner).acall(ctx=ctx)
                await ctx.store.set("hotel", "H")
                made.append("booked")
                return "booked"

            await durable_tool(book).acall()
            die()
            return await ctx.store.get("flight"), await ctx.store.get("hotel")

        async def beside(self, ctx):
            await until("booked")

    await crashed(Trip)
    assert (await again(Trip))["first"] == (0, "H")


async def test_a_step_that_waited_does_not_write_again_what_its_tools_wrote():
    class Waits(Pair):
        async def in_flight(self, ctx):
            async def take(ctx: Context) -> str:
                """Take it."""
                await ctx.store.set("k", "tool")
                made.append("taken")
                return "taken"

            await durable_tool(take).acall(ctx=ctx)
            await ctx.wait_for_event(Reply, waiter_event=Ask(), timeout=None)
            if trouble:
                made.append("replied")
                await until("ended second")
            die()
            return await ctx.store.get("k")

        async def beside(self, ctx):
            await until("taken")
            await ctx.store.set("k", "beside")

    for life in range(2):
        handler = Waits(runtime=LetItLoopRuntime()).run(run_id="a")
        if life == 0:
            trouble["crash"] = True
            async for event in handler.stream_events():
                if isinstance(event, Ask):
                    await until("ended second")
                    handler.ctx.send_event(Reply())
            with pytest.raises(Crash):
                await handler
            trouble.clear()
    assert (await handler)["first"] == "beside"


async def test_a_recorded_call_that_is_no_tool_may_not_write():
    """Its step runs again, and it does not."""

    class Writes(Pair):
        async def in_flight(self, ctx):
            async def write():
                await ctx.store.set("k", await ctx.store.get("k", default="absent"))

            await letitloop.step("write", write)

        async def beside(self, ctx):
            pass

    with pytest.raises(InvalidArgument, match="writes to the workflow's state, and is a recorded call"):
        await again(Writes)


async def test_a_tool_of_another_run_s_context_is_refused():
    async def write(ctx: Context) -> str:
        """Write."""
        raise AssertionError("it is not called")

    class Stock(Workflow):
        @step
        async def one(self, ctx: Context, ev: StartEvent) -> StopEvent:
            return StopEvent(result=await durable_tool(write).acall(ctx=ctx))

    @letitloop.durable(goal_id="around")
    async def around():
        return await Stock().run()

    with pytest.raises(InvalidArgument, match="context of another run"):
        await around()
