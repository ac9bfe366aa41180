"""The state that steps share: what a step in flight sees and writes when it runs again, beside steps that have ended since."""

from contextlib import suppress
from dataclasses import field

import pytest
from llama_index.core.memory import ChatMemoryBuffer
from pydantic import BaseModel
from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

from letitloop.adapters.llamaindex import LetItLoopRuntime
from tests.llamaindex.helpers import Crash, made, trouble
from tests.llamaindex.pairs import Done, First, Pair, Second, again, crashed, die, until


async def by_edit(store):
    async with store.edit_state() as state:
        number = state["n"]
        state["n"] = number + 1
    return number


async def by_get_and_set(store):
    number = await store.get("n")
    await store.set("n", number + 1)
    return number


async def by_state(store):
    state = await store.get_state()
    number = state["n"]
    state["n"] = number + 1
    await store.set_state(state)
    return number


async def by_path(store):
    number = await store.get("box.n")
    await store.set("box.n", number + 1)
    return number


async def by_list(store):
    names = await store.get("names")
    number = len(names)
    names.append("name")  # in place, and then set
    await store.set("names", names)
    return number


async def by_default(store):
    number = await store.get("absent", default=0)
    await store.set("absent", number + 1)
    return number


async def by_error(store):
    try:
        number = await store.get("absent")
    except ValueError:
        number = 0
    await store.set("absent", number + 1)
    return number


async def by_failed_edit(store):
    """The first to come writes; whoever finds that written gives up its block."""
    with suppress(LookupError):
        async with store.edit_state() as state:
            if state["n"]:
                raise LookupError
            state["n"] = 1
    number = (await store.get_state())["m"]
    await store.set("m", number + 1)
    return number


WAYS = [by_edit, by_get_and_set, by_state, by_path, by_list, by_default, by_error, by_failed_edit]


@pytest.mark.parametrize("way", WAYS)
async def test_a_step_in_flight_takes_the_number_that_it_took(way):
    class Numbers(Pair):
        async def prepare(self, store):
            for name, value in {"n": 0, "m": 0, "box": {"n": 0}, "names": []}.items():
                await store.set(name, value)

        async def in_flight(self, ctx):
            numbers = [await way(ctx.store)]
            made.append("taken")
            if trouble:
                await until("ended second")
            die()
            return [*numbers, await way(ctx.store)]

        async def beside(self, ctx):
            await until("taken")
            return await way(ctx.store)

    await crashed(Numbers)
    assert await again(Numbers) == {"first": [0, 2], "second": 1}


class Typed(BaseModel):
    n: int = 0
    rows: list[int] = field(default_factory=list)


@pytest.mark.parametrize("way", ["edit", "get", "state"])
async def test_a_typed_state_is_seen_as_it_was(way):
    async def number_of(store):
        if way == "edit":
            async with store.edit_state() as state:
                state.n += 1
                state.rows.append(state.n)
                return state.n - 1
        if way == "get":
            number = await store.get("n")
            await store.set("n", number + 1)
            return number
        state = (await store.get_state()).model_copy(deep=True)
        state.n += 1
        await store.set_state(state)
        return state.n - 1

    class TypedPair(Workflow):
        @step
        async def begin(self, ctx: Context[Typed], ev: StartEvent) -> First | Second | None:
            ctx.send_event(First())
            ctx.send_event(Second())
            return None

        @step
        async def first(self, ctx: Context[Typed], ev: First) -> Done:
            number = await number_of(ctx.store)
            made.append("taken")
            if trouble:
                await until("ended second")
            die()
            return Done(name="first", found=(number, await number_of(ctx.store)))

        @step
        async def second(self, ctx: Context[Typed], ev: Second) -> Done:
            await until("taken")
            return Done(name="second", found=await number_of(ctx.store))

        @step
        async def join(self, ctx: Context[Typed], ev: Done) -> StopEvent | None:
            made.append(f"ended {ev.name}")
            done = ctx.collect_events(ev, [Done] * 2)
            return None if done is None else StopEvent(result=(sorted(str(one.found) for one in done), await ctx.store.get("n")))

    await crashed(TypedPair)
    assert await again(TypedPair) == (["(0, 2)", "1"], 3)


async def test_what_is_read_after_the_last_recorded_write_is_read_anew():
    class Modes(Pair):
        async def prepare(self, store):
            await store.set("mode", "old")

        async def in_flight(self, ctx):
            modes = [await ctx.store.get("mode")]
            await ctx.store.set("begun", modes)
            made.append("begun")
            if trouble:
                await until("ended second")
            modes.append(await ctx.store.get("mode"))
            die()
            return modes

        async def beside(self, ctx):
            await until("begun")
            await ctx.store.set("mode", "new")

    await crashed(Modes)
    assert (await again(Modes))["first"] == ["old", "new"]


class Beside(Event):
    number: int


class Turns(Workflow):
    """Takes numbers, each before a step beside it takes one; dies after as many as there were lives."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> First:
        await ctx.store.set("n", 0)
        return First()

    @step
    async def first(self, ctx: Context, ev: First) -> StopEvent:
        numbers = []
        for turn in range(4):
            numbers.append(await by_edit(ctx.store))
            ctx.send_event(Beside(number=turn))
            await until(f"ended {turn}")
            if len(trouble) == turn + 1:
                raise Crash
        return StopEvent(result=(numbers, await ctx.store.get("n")))

    @step
    async def beside(self, ctx: Context, ev: Beside) -> Done:
        await by_edit(ctx.store)
        return Done(name=str(ev.number))

    @step
    async def join(self, ev: Done) -> None:
        made.append(f"ended {ev.name}")


async def test_a_step_that_dies_again_and_again_sees_the_same():
    """Each life writes once more, and each record holds what is new in it."""
    for life in range(3):
        trouble[life] = True
        with pytest.raises(Crash):
            await Turns(runtime=LetItLoopRuntime(), disable_validation=True).run(run_id="a")
    trouble.clear()
    assert await Turns(runtime=LetItLoopRuntime(), disable_validation=True).run(run_id="a") == ([0, 2, 4, 6], 8)


class Doubtful(Workflow):
    """Its first block raises where it finds a number; in a later life it does not."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> First:
        await ctx.store.set("n", 1)
        return First()

    @step
    async def first(self, ctx: Context, ev: First) -> StopEvent:
        found = []
        with suppress(LookupError):
            async with ctx.store.edit_state() as state:
                found.append(state["n"])
                if len(trouble) == 3:
                    raise LookupError
                state["n"] += 1
        await ctx.store.set("m", len(found))
        ctx.send_event(Beside(number=len(trouble)))
        await until(f"ended {len(trouble)}")
        die()
        return StopEvent(result=(found, await ctx.store.get("n")))

    @step
    async def beside(self, ev: Beside) -> Done:
        return Done(name=str(ev.number))

    @step
    async def join(self, ev: Done) -> None:
        made.append(f"ended {ev.name}")


async def test_a_block_that_raised_then_and_does_not_now_writes():
    """It has seen what it saw; a program that does otherwise than it did is one that was mended."""
    trouble.update(dict.fromkeys(range(3), True))
    while trouble:
        with pytest.raises(Crash):
            await Doubtful(runtime=LetItLoopRuntime(), disable_validation=True).run(run_id="a")
        trouble.popitem()
        made.extend(f"ended {number}" for number in range(4))
    assert await Doubtful(runtime=LetItLoopRuntime(), disable_validation=True).run(run_id="a") == ([1], 2)


async def test_chat_memory_is_what_it_is_now():
    """What is decoded of one would be put into the memory that the program gave the run."""
    memory = ChatMemoryBuffer.from_defaults(token_limit=100)

    class Chats(Pair):
        async def prepare(self, store):
            await store.set("memory", memory)

        async def in_flight(self, ctx):
            await ctx.store.get("memory")
            async with ctx.store.edit_state() as state:
                state["n"] = len(state["memory"].get_all())
            made.append("taken")
            if trouble:
                await until("ended second")
            die()
            return await ctx.store.get("n")

        async def beside(self, ctx):
            await until("taken")

    await crashed(Chats)
    assert await again(Chats) == {"first": 0, "second": None}
