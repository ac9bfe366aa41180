"""A step that had sent events when its process died runs again: what it had sent is delivered once, and shifts nothing."""

from __future__ import annotations

import asyncio

import pytest
from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

import letitloop
from letitloop.adapters.llamaindex import LetItLoopRuntime
from letitloop.codecs import default_codecs
from letitloop.runs.history import describe_run, list_runs
from letitloop.store.directory import resolve_store


class Crash(BaseException):
    """Stands for a process that dies."""


class Item(Event):
    number: int


class Counted(Event):
    number: int


class Last(Event):
    pass


class Sending(Workflow):
    """Sends two events one by one, dies after the first was delivered, and goes on to steps after them."""

    def __init__(self, *, dies, **kwargs):
        super().__init__(**kwargs)
        self.dies = dies
        self.counted = asyncio.Event()

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Item | None:
        ctx.send_event(Item(number=1))
        if self.dies:
            await self.counted.wait()
            raise Crash
        ctx.send_event(Item(number=2))
        return None

    @step(num_workers=1)
    async def count(self, ctx: Context, ev: Item) -> Counted:
        self.counted.set()
        return Counted(number=letitloop.step("look", lambda number: number, ev.number))

    @step
    async def collect(self, ctx: Context, ev: Counted) -> Last | None:
        return Last() if ctx.collect_events(ev, [Counted] * 2) else None

    @step
    async def end(self, ctx: Context, ev: Last) -> StopEvent:
        return StopEvent(result=letitloop.step("last", lambda: "done"))


def keys(store):
    (run,) = list_runs(resolve_store(store))
    found = describe_run(resolve_store(store), run.id, codecs=default_codecs)
    return sorted(one.key for one in found.steps if not one.key.startswith("tick"))


async def test_records_lie_where_those_of_the_uninterrupted_run_lie(tmp_path):
    assert await Sending(dies=False, runtime=LetItLoopRuntime(store=tmp_path / "whole")).run(run_id="a") == "done"
    with pytest.raises(Crash):
        await Sending(dies=True, runtime=LetItLoopRuntime(store=tmp_path / "killed")).run(run_id="a")
    assert await Sending(dies=False, runtime=LetItLoopRuntime(store=tmp_path / "killed")).run(run_id="a") == "done"
    assert keys(tmp_path / "killed") == keys(tmp_path / "whole")
    assert any(key.endswith("look") for key in keys(tmp_path / "whole"))
