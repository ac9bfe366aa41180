"""The state that steps share: what a step in flight sees and writes when it runs again, beside steps that have ended since."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from llama_index.core.memory import ChatMemoryBuffer
from pydantic import BaseModel, PrivateAttr
from workflows import Context, Workflow, step
from workflows.events import Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent

import letitloop
from letitloop import InvalidArgument
from letitloop.adapters.llamaindex import LetItLoopRuntime, durable_tool

happened: list[str] = []
trouble: list[bool] = []


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.setenv("LETITLOOP_STORE", str(tmp_path / "store"))
    happened.clear()
    trouble.clear()


async def until(what):
    while what not in happened:
        await asyncio.sleep(0)


class Crash(BaseException):
    """Ends a run as the end of its process would: nothing is recorded of it."""


async def crashed(workflow):
    """Run it until it dies; from here on nothing dies."""
    trouble.append(True)
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


class Third(Event):
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
        happened.append(f"ended {ev.name}")
        done = ctx.collect_events(ev, [Done] * 2)
        return None if done is None else StopEvent(result={one.name: one.found for one in done})

    async def prepare(self, store):
        pass

    async def in_flight(self, ctx):
        raise NotImplementedError

    async def beside(self, ctx):
        raise NotImplementedError


# --- a step in flight --------------------------------------------------------------------------------------------------------


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
            happened.append("taken")
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
            happened.append("taken")
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
            happened.append(f"ended {ev.name}")
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
            happened.append("begun")
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
        happened.append(f"ended {ev.name}")


async def test_a_step_that_dies_again_and_again_sees_the_same():
    """Each life writes once more, and each record holds what is new in it."""
    for _ in range(3):
        trouble.append(True)
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
        happened.append(f"ended {ev.name}")


async def test_a_block_that_raised_then_and_does_not_now_writes():
    """It has seen what it saw; a program that does otherwise than it did is one that was mended."""
    trouble.extend([True] * 3)
    while trouble:
        with pytest.raises(Crash):
            await Doubtful(runtime=LetItLoopRuntime(), disable_validation=True).run(run_id="a")
        trouble.pop()
        happened.extend(f"ended {number}" for number in range(4))
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
            happened.append("taken")
            if trouble:
                await until("ended second")
            die()
            return await ctx.store.get("n")

        async def beside(self, ctx):
            await until("taken")

    await crashed(Chats)
    assert await again(Chats) == {"first": 0, "second": None}


# --- tools -------------------------------------------------------------------------------------------------------------------


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
                happened.append("booking")
                await until("v1" if held else "ended second")
                await writes(ctx.store)
                happened.append("booked")
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
            happened.append("v1")
            if held:
                await until("booked")
            await ctx.store.set("k", "v2")

        @step
        async def join(self, ctx: Context, ev: Done) -> StopEvent | None:
            happened.append(f"ended {ev.name}")
            if ctx.collect_events(ev, [Done] * 2) is None:
                return None
            return StopEvent(result=dict((await ctx.store.get_state()).items()))

    await crashed(Trip)
    assert await again(Trip) == TOOLS[writes]
    assert happened.count("booked") == 1


async def test_a_tool_may_write_by_a_context_that_it_was_not_given_and_call_a_tool_that_writes():
    class Trip(Pair):
        async def in_flight(self, ctx):
            async def inner(ctx: Context) -> str:
                """Book a flight."""
                await ctx.store.set("flight", len(happened))
                return "flight"

            async def book() -> str:
                """Book."""
                await durable_tool(inner).acall(ctx=ctx)
                await ctx.store.set("hotel", "H")
                happened.append("booked")
                return "booked"

            await durable_tool(book).acall()
            die()
            return await ctx.store.get("flight"), await ctx.store.get("hotel")

        async def beside(self, ctx):
            await until("booked")

    await crashed(Trip)
    assert (await again(Trip))["first"] == (0, "H")


class Ask(InputRequiredEvent):
    pass


class Reply(HumanResponseEvent):
    pass


async def test_a_step_that_waited_does_not_write_again_what_its_tools_wrote():
    class Waits(Pair):
        async def in_flight(self, ctx):
            async def take(ctx: Context) -> str:
                """Take it."""
                await ctx.store.set("k", "tool")
                happened.append("taken")
                return "taken"

            await durable_tool(take).acall(ctx=ctx)
            await ctx.wait_for_event(Reply, waiter_event=Ask(), timeout=None)
            if trouble:
                happened.append("replied")
                await until("ended second")
            die()
            return await ctx.store.get("k")

        async def beside(self, ctx):
            await until("taken")
            await ctx.store.set("k", "beside")

    for life in range(2):
        handler = Waits(runtime=LetItLoopRuntime()).run(run_id="a")
        if life == 0:
            trouble.append(True)
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


# --- what changed ------------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    key: str
    note: str = field(default="", compare=False)


class Card(BaseModel):
    key: str
    _note: list[str] = PrivateAttr(default_factory=list)

    def __repr__(self):
        return f"Card({self.key}, {self._note})"


def note_row(rows):
    rows[0].note = "noted"


def note_card(rows):
    rows[0]._note.append("noted")


def note_event(rows):
    rows[0]["note"] = "noted"


def to_bool(rows):
    rows[0]["n"] = True


def to_float(rows):
    rows[0]["n"] = 1.0


def reorder(rows):
    rows[0]["n"] = rows[0].pop("n")


def fill(rows):
    rows[0][1] = 7


CHANGES = {
    note_row: [Row("a")],
    note_card: [Card(key="a")],
    note_event: [Event(key="a")],
    to_bool: [{"n": 1, "m": 2}],
    to_float: [{"n": 1, "m": 2}],
    reorder: [{"n": 1, "m": 2}],
    fill: [np.arange(3)],
}


@pytest.mark.parametrize("change", CHANGES)
async def test_an_item_that_is_changed_in_place_is_recorded_whatever_equality_says(change):
    class Changes(Workflow):
        @step
        async def one(self, ctx: Context, ev: StartEvent) -> First:
            await ctx.store.set("rows", CHANGES[change])
            return First()

        @step
        async def two(self, ctx: Context, ev: First) -> Second:
            rows = await ctx.store.get("rows")
            change(rows)
            happened.append(repr(rows))
            return Second()

        @step
        async def three(self, ctx: Context, ev: Second) -> StopEvent:
            die()
            return StopEvent(result=repr(await ctx.store.get("rows")))

    await crashed(Changes)
    assert [await again(Changes)] == happened
