"""Small workflows that several tests run, what is to go wrong in them, and what they have done."""

from __future__ import annotations

import asyncio
from typing import Any

from workflows import Context, Workflow, step
from workflows.events import Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent

import letitloop
from letitloop.adapters.llamaindex import LetItLoopRuntime

made: list[Any] = []
"""What was done, in its order."""
trouble: dict[Any, Any] = {}
"""What is to go wrong, while there is any."""


def make(what):
    made.append(what)
    return what


def stream(handler):
    async def collect():
        return [event async for event in handler.stream_events()]

    return asyncio.create_task(collect())


class Crash(BaseException):
    """Ends a run as the end of its process would: nothing is recorded of it."""


class Ask(InputRequiredEvent):
    pass


class Reply(HumanResponseEvent):
    pass


class Middle(Event):
    number: int = 0


class Counted(Event):
    number: int


class Simple(Workflow):
    @step
    async def one(self, ctx: Context, ev: StartEvent) -> Middle:
        letitloop.step("leaf", make, "one")
        await ctx.store.set("value", ev.get("value"))
        return Middle()

    @step
    async def two(self, ctx: Context, ev: Middle) -> StopEvent:
        make("two")
        if error := ev.get("error", None) or trouble.get("error"):
            raise error
        return StopEvent(result=[await ctx.store.get("value")])


def simple(**options):
    return Simple(runtime=LetItLoopRuntime(**options))


class Slow(Workflow):
    @step
    async def one(self, ev: StartEvent) -> StopEvent:
        letitloop.step("leaf", make, "leaf")
        if trouble:
            await asyncio.Event().wait()
        return StopEvent(result="done")


class Answered(Workflow):
    @step
    async def one(self, ev: StartEvent) -> Ask:
        return Ask()

    @step
    async def two(self, ctx: Context, ev: Reply) -> StopEvent:
        ctx.write_event_to_stream(Middle())
        while trouble:
            await asyncio.sleep(0)
        return StopEvent(result=ev.text)
