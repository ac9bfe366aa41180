"""A step that was in flight runs again, and what it had written and sent by then does not come twice."""

from __future__ import annotations

import asyncio

import pytest
from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

from letitloop.adapters.llamaindex import LetItLoopRuntime
from tests.llamaindex.helpers import Counted, Crash, Middle, made, make, trouble


class Sent(Event):
    number: int


class Counting(Workflow):
    """Two steps that run side by side count in the state, one of them in flight at the end of the first life."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Middle | None:
        await ctx.store.set("count", 0)
        await ctx.store.set("names", [])
        ctx.send_event(Middle(number=0))
        ctx.send_event(Middle(number=1))
        return None

    @step(num_workers=2)
    async def count(self, ctx: Context, ev: Middle) -> Counted | Sent:
        await ctx.store.set("count", await ctx.store.get("count") + 1)
        names = await ctx.store.get("names")
        names.append(ev.number)  # in place, and then set: what is read is not changed twice either
        await ctx.store.set("names", names)
        async with ctx.store.edit_state() as state:
            state["edited"] = state.get("edited", 0) + 1
        ctx.send_event(Sent(number=ev.number))
        if ev.number == 1 and trouble:
            while "ended 0" not in made:
                await asyncio.sleep(0)
            raise Crash
        return Counted(number=ev.number)

    @step
    async def sent(self, ctx: Context, ev: Sent) -> Counted:
        make(f"sent {ev.number}")
        return Counted(number=10 + ev.number)

    @step
    async def end(self, ctx: Context, ev: Counted) -> StopEvent | None:
        make(f"ended {ev.number}")
        found = ctx.collect_events(ev, [Counted] * 4)
        if found is None:
            return None
        state = await ctx.store.get_state()
        return StopEvent(result=(sorted(one.number for one in found), state["count"], sorted(state["names"]), state["edited"]))


async def test_a_step_that_runs_again_writes_and_sends_nothing_twice():
    """Its writes are in the record of the step beside it, and its event has been delivered; stock, both come twice."""
    trouble["crash"] = True
    with pytest.raises(Crash):
        await Counting(runtime=LetItLoopRuntime()).run(run_id="a")
    trouble.clear()
    assert await Counting(runtime=LetItLoopRuntime()).run(run_id="a") == ([0, 1, 10, 11], 2, [0, 1], 2)
    assert sorted(what for what in made if what.startswith("sent")) == ["sent 0", "sent 1"]
