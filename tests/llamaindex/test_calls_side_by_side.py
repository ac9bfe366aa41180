"""Calls that a step makes side by side: another order is no change, another question is one. And other inputs and states."""

import asyncio

import pytest
from pydantic import BaseModel
from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

import letitloop
from letitloop import StepChanged
from letitloop.adapters.llamaindex import LetItLoopRuntime, durable_llm, durable_tool
from tests.llamaindex.helpers import Crash, made, trouble
from tests.llamaindex.scripted import Scripted


async def fetch(url: str) -> str:
    """Fetch a page."""
    if url == "slow" and "crash" in trouble:
        await asyncio.Event().wait()  # its process dies meanwhile
    made.append(f"fetch {url}")
    return f"page {url}"


async def summarise(text: str) -> str:
    """Summarise a page."""
    made.append(f"ask {text}")
    return f"sum of {text}"


def answer(messages, tools):
    made.append(f"ask {messages[-1].content}")
    return f"sum of {messages[-1].content}"


async def ask(kind, text):
    if kind == "llm":
        return str(await durable_llm(Scripted(answer)).acomplete(text))
    if kind == "tool":
        return (await durable_tool(summarise).acall(text=text)).content
    return await letitloop.async_step("summarise", summarise, text)


class Pages(Workflow):
    @step
    async def read(self, ev: StartEvent) -> StopEvent:
        async def page(url):
            return (await durable_tool(fetch).acall(url=url)).content

        async def one(url):
            text = await ask(ev.kind, trouble.get("prompt", "") + await page(url))
            if url == "quick" and "crash" in trouble:
                raise trouble.pop("crash")
            return text

        if ev.way == "gather":
            return StopEvent(result=await asyncio.gather(one("slow"), one("quick")))
        found = []
        for ready in asyncio.as_completed([page("slow"), page("quick")]):  # asks in the step's own task
            found.append(await ask(ev.kind, trouble.get("prompt", "") + await ready))
            if "crash" in trouble:
                raise trouble.pop("crash")
        return StopEvent(result=sorted(found, reverse=True))


def read(kind, way, on_change="raise"):
    return Pages(runtime=LetItLoopRuntime(on_change=on_change)).run(run_id="a", kind=kind, way=way)


async def crashed(kind, way):
    trouble["crash"] = Crash()
    with pytest.raises(Crash):
        await read(kind, way)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


@pytest.mark.parametrize("way", ["gather", "completed"])
@pytest.mark.parametrize("kind", ["llm", "tool", "step"])
@pytest.mark.parametrize("on_change", ["raise", "rerun", "reuse"])
async def test_another_order_is_no_change(kind, way, on_change):
    await crashed(kind, way)
    assert made == ["fetch quick", "ask page quick"]
    for _ in range(2):
        assert await read(kind, way, on_change) == ["sum of page slow", "sum of page quick"]
    assert sorted(made) == ["ask page quick", "ask page slow", "fetch quick", "fetch slow"]


@pytest.mark.parametrize("way", ["gather", "completed"])
@pytest.mark.parametrize("kind", ["llm", "tool", "step"])
async def test_a_changed_question_is_named_each_time_and_the_old_program_still_goes_on(kind, way):
    await crashed(kind, way)
    trouble["prompt"] = "In short: "
    for _ in range(2):
        with pytest.raises(StepChanged, match="did not ask what it had asked") as caught:
            await read(kind, way)
        assert caught.value.run_id
        assert "read" in caught.value.step
    assert made.count("ask In short: page slow") == 1
    assert await read(kind, way, "rerun") == ["sum of In short: page slow", "sum of In short: page quick"]


async def test_what_differs_is_named():
    await crashed("llm", "gather")
    trouble["prompt"] = "In short: "
    with pytest.raises(StepChanged) as caught:
        await read("llm", "gather")
    assert caught.value.arguments == ("messages",)


class Alone(Workflow):
    @step
    async def one(self, ev: StartEvent) -> StopEvent:
        text = await ask("llm", trouble.get("prompt", "as before"))
        if "crash" in trouble:
            raise trouble.pop("crash")
        return StopEvent(result=text)


async def test_a_changed_call_that_nothing_runs_beside_is_refused_before_it_is_made():
    trouble["crash"] = Crash()
    with pytest.raises(Crash):
        await Alone(runtime=LetItLoopRuntime()).run(run_id="a")
    trouble["prompt"] = "changed"
    with pytest.raises(StepChanged, match="messages"):
        await Alone(runtime=LetItLoopRuntime()).run(run_id="a")
    assert made == ["ask as before"]


# --- inputs by the names that agents use ----------------------------------------------------------------------------------------


class Machine(Workflow):
    @step
    async def one(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=[ev.get("memory"), ev.get("workflow")])


@pytest.mark.parametrize("name", ["memory", "workflow"])
async def test_a_changed_input_of_a_name_that_agents_use_is_named(name):
    await Machine(runtime=LetItLoopRuntime()).run(run_id="a", **{name: "16 GB"})
    with pytest.raises(StepChanged) as caught:
        await Machine(runtime=LetItLoopRuntime()).run(run_id="a", **{name: "64 GB"})
    assert caught.value.arguments == (name,)


# --- a state of a class of its own ----------------------------------------------------------------------------------------------


class Notes(BaseModel):
    lines: list[str] = []
    count: int = 0


class Note(Event):
    number: int = 0


class Growing(Workflow):
    @step
    async def begin(self, ev: StartEvent) -> Note:
        return Note()

    @step
    async def add(self, ctx: Context[Notes], ev: Note) -> Note | StopEvent:
        async with ctx.store.edit_state() as state:
            state.lines.append(f"{ev.number:01000}")
            state.count += 1
        if ev.number == 30 and "crash" in trouble:
            raise trouble.pop("crash")
        return (
            Note(number=ev.number + 1)
            if ev.number < 40
            else StopEvent(result=(state.count, len(state.lines), type(state).__name__))
        )


async def test_a_typed_state_grows_the_log_by_what_is_new(tmp_path):
    trouble["crash"] = Crash()
    runtime = LetItLoopRuntime(store=str(tmp_path))
    with pytest.raises(Crash):
        await Growing(runtime=runtime).run(run_id="a")
    assert await Growing(runtime=runtime).run(run_id="a") == (41, 41, "Notes")
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 400_000
