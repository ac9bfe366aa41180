"""Agents that a recorded call runs: what cannot be put right is told, and what stops a run is no answer of the call."""

from __future__ import annotations

import asyncio

import pytest
from autogen_agentchat.agents import (
    AssistantAgent,
)
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken

from letitloop import Ledger, StepChanged, UnknownOutcome, effect
from tests.autogen.inside import (
    HANG,
    Died,
    Forgetful,
    Mortal,
    assistant,
    by_run,
    by_step,
    by_tool,
    in_thread,
    in_tool,
    recall,
)
from tests.autogen.scripted import Scripted, call, results
from tests.effects.bank import Bank

# --- what cannot be put right is told ---------------------------------------------------------------------------------------


async def test_what_an_agent_does_not_say_is_told(world, caplog):
    await world.live(lambda: Forgetful("expert"), lambda expert: by_tool(expert, by_run))
    assert caplog.text.count("'expert' is run inside 'tool ask 1.0', and keeps something in its attributes") == 1


async def test_two_calls_at_once_are_told(world, caplog):
    def script(messages, settings):
        return [call("ask", q=f"q{i}") for i in range(2)] if not results(messages) else "done"

    def boss(expert):
        return AssistantAgent("boss", Mortal(script), tools=in_tool(expert, by_run), max_tool_iterations=2)

    expected = await world.live(assistant, boss)
    assert "'expert' is run or changed by 'tool ask 1.0' and 'tool ask 1.1' at the same time" in caplog.text
    assert await world.live(assistant, boss) == expected
    with pytest.raises(Died):
        await world.live(assistant, boss, 3, session_id="dies")
    assert await world.live(assistant, boss, session_id="dies") == expected


async def test_an_agent_of_another_session_is_told(world, caplog):
    def make():
        return world.begin("other").wrap_agent(assistant())

    def boss(expert):
        world.begin("inside", default="record")
        return by_tool(expert, by_run)

    world.wrap = lambda one: one if getattr(one.run, "letitloop_session", None) else world.open[-1].wrap_agent(one)
    await world.live(make, boss, session_id="unused")
    assert "'expert' is run inside 'tool ask 1.0' of another session" in caplog.text


async def test_an_agent_that_a_call_makes_and_others_use_is_told(world, caplog):
    made = []

    async def late(_, text):
        if not made:
            made.append(world.open[-1].wrap_agent(assistant("late")))
        return await by_run(made[0], text)

    async def fresh(_, text):
        return await by_run(world.open[-1].wrap_agent(assistant("fresh")), text)

    await world.live(assistant, lambda expert: by_tool(expert, fresh))
    assert "fresh" not in caplog.text
    await world.live(assistant, lambda expert: by_tool(expert, late), session_id="late")
    assert caplog.text.count("'late' was made inside a recorded call") == 1


@pytest.mark.parametrize("begun", [False, True])
async def test_a_run_that_outlives_its_call_is_told(world, caplog, begun):
    left = []

    async def leave(expert, text):
        left.append(asyncio.ensure_future(by_run(expert, text)))
        if begun:
            await asyncio.sleep(0)
        return "left"

    await world.live(assistant, lambda expert: by_tool(expert, leave))
    await asyncio.wait_for(asyncio.gather(*left), HANG)
    assert caplog.text.count("is run by something that 'tool ask 1.0' leaves behind") == 1


@pytest.mark.parametrize("how", ["step", "effect"])
async def test_a_step_or_an_effect_that_runs_an_agent_is_told(world, caplog, how):
    options = {}
    if how == "effect":
        options["tools"] = {"ask": effect(key="ask/{q}", recover="resend")}
    await world.live(assistant, lambda expert: by_tool(expert, by_step if how == "step" else by_run), **options)
    assert caplog.text.count("whose record says nothing of it, and is run again") == 1


# --- what stops a run -------------------------------------------------------------------------------------------------------


def in_tool_that_catches(expert, way):
    async def ask(q: str) -> str:
        """Ask the expert, and make the best of it."""
        try:
            return await way(expert, q)
        except Exception as error:
            return f"no answer: {error}"

    return [ask]


@pytest.mark.parametrize("team", [False, True], ids=["agent", "team"])
@pytest.mark.parametrize("place", [in_tool, in_tool_that_catches, in_thread])
async def test_an_unknown_outcome_inside_a_call_is_not_its_answer(world, tmp_path, place, team):
    """It reaches the caller; when it is known what happened, the call is made again, and the model reads its answer."""
    bank = Bank(tmp_path / "bank", "opaque", "lost")

    def pay(number: int) -> str:
        """Pay."""

    def payer():
        script = Mortal(lambda m, s: f"told {m[-1].content[0].content}" if results(m) else [call("pay", number=1)])
        agent = AssistantAgent("payer", script, tools=[pay], max_tool_iterations=2)
        return RoundRobinGroupChat([agent], max_turns=1) if team else agent

    def boss(messages, settings):
        return str(messages[-1].content[0].content) if results(messages) else [call("ask", q="pay")]

    async def live():
        world.end()
        durability = world.begin(tools={"pay": effect(key="invoice/{number}", provider=bank)})
        agent = AssistantAgent("boss", Mortal(boss), tools=place(world.wrap(payer()), by_run), max_tool_iterations=2)
        return (await asyncio.wait_for(durability.wrap_agent(agent).run(task="go"), HANG)).messages[-1].to_text()

    for _ in range(2):
        with pytest.raises(UnknownOutcome, match="invoice/1"):
            await live()
    world.end()
    Ledger().resolve("default", "invoice/1", outcome="succeeded", evidence="the books", by="Ada", result="paid by hand")
    assert await live() == "told paid by hand"
    assert len(bank.requests()) == 1


async def test_a_change_inside_a_call_is_not_its_answer(world):
    def boss(expert):
        return by_tool(expert, by_run, in_tool_that_catches)

    def with_helper():
        """It dies in the middle of the first call, when the expert has been answered once."""
        helper = AgentTool(assistant("helper"))
        script = Mortal(lambda m, s: "done" if results(m) else [call("helper", task="t")])
        return AssistantAgent("expert", script, tools=[helper], system_message=prompt[0], max_tool_iterations=2)

    prompt = ["one"]
    expected = await world.live(with_helper, boss, session_id="uninterrupted")
    with pytest.raises(Died):
        await world.live(with_helper, boss, 2)
    prompt[0] = "two"
    with pytest.raises(StepChanged, match="system_message"):
        await world.live(with_helper, boss)
    prompt[0] = "one"
    assert await world.live(with_helper, boss) == expected


@pytest.mark.parametrize("how", ["task", "token"])
async def test_a_cancelled_call_that_the_program_survives(world, how):
    """What the expert was told before the cancellation it knows in the runs after it, in each life."""

    class Slow(Scripted):
        async def create(self, messages, **settings):
            if str(messages[-1].content) == "slow":
                waiting.set()
                await asyncio.Event().wait()
            return await super().create(messages, **settings)

    def boss(messages, settings):
        return "done" if results(messages) == 2 else [call("ask", q=["fast", "slow"][results(messages)])]

    async def live(dies=False):
        world.end()
        durability = world.begin()
        expert = durability.wrap_agent(AssistantAgent("expert", Slow(recall)))
        agent = AssistantAgent("boss", Scripted(boss), tools=in_tool(expert, by_run), max_tool_iterations=3)
        durability.wrap_agent(agent)
        token = CancellationToken()
        run = asyncio.ensure_future(agent.run(task="go", cancellation_token=token))
        if not slow_once:
            await asyncio.wait_for(waiting.wait(), HANG)
            slow_once.append(True)
            run.cancel() if how == "task" else token.cancel()
        elif how == "task":  # as the same timeout would
            asyncio.get_running_loop().call_later(0.3, run.cancel)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(run, HANG)
        said = [await by_run(expert, "then")]
        if dies:
            raise Died
        return [*said, await by_run(expert, "last")]

    waiting, slow_once = asyncio.Event(), []
    with pytest.raises(Died):
        await live(dies=True)
    expected = ["[5 fast slow then]", "[7 fast slow then last]"]
    assert await live() == expected
    assert await live() == expected
