"""Steps that run side by side, of which one is in flight when the other has ended, and their process dies."""

import asyncio
from typing import Any

import pytest
from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

from letitloop.adapters.llamaindex import LetItLoopRuntime
from tests.llamaindex.helpers import Crash, made, trouble


async def until(what):
    while what not in made:
        await asyncio.sleep(0)


async def crashed(workflow):
    """Run it until it dies; from here on nothing dies."""
    trouble["crash"] = True
    with pytest.raises(Crash):
        await workflow(runtime=LetItLoopRuntime()).run(run_id="a")
    trouble.clear()


async def again(workflow):
    return await workflow(runtime=LetItLoopRuntime()).run(run_id="a")


def die():
    if trouble:
        raise Crash


class First(Event):
    pass


class Second(Event):
    pass


class Done(Event):
    name: str
    found: Any = None


class Pair(Workflow):
    """Two steps that run side by side: the first is in flight when the second has ended, and its process dies."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> First | Second | None:
        await self.prepare(ctx.store)
        ctx.send_event(First())
        ctx.send_event(Second())
        return None

    @step
    async def first(self, ctx: Context, ev: First) -> Done:
        return Done(name="first", found=await self.in_flight(ctx))

    @step
    async def second(self, ctx: Context, ev: Second) -> Done:
        return Done(name="second", found=await self.beside(ctx))

    @step
    async def join(self, ctx: Context, ev: Done) -> StopEvent | None:
        made.append(f"ended {ev.name}")
        done = ctx.collect_events(ev, [Done] * 2)
        return None if done is None else StopEvent(result={one.name: one.found for one in done})

    async def prepare(self, store):
        pass

    async def in_flight(self, ctx):
        raise NotImplementedError

    async def beside(self, ctx):
        raise NotImplementedError
