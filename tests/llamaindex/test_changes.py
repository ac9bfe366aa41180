"""What a program says otherwise than it said: names in ``tools=``, what an agent is made of, effects that would become void."""

import logging

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel
from workflows import Workflow, step
from workflows.events import StartEvent, StopEvent

from letitloop import InvalidArgument, StepChanged, effect
from letitloop.adapters.llamaindex import LetItLoopRuntime, durable_tool, durable_workflow
from letitloop.effects.providers import FunctionProvider
from tests.llamaindex.helpers import made as paid
from tests.llamaindex.helpers import trouble
from tests.llamaindex.scripted import Scripted, call, results


def act(number: int) -> str:
    paid.append(number)
    return f"paid {number}"


def pay(number: int) -> str:
    """Pay an invoice."""
    raise AssertionError("the bank pays")


def look(what: str) -> str:
    """Look something up."""
    return what * 2


PAY = effect(key="invoice/{number}", provider=FunctionProvider(act, identity="bank/1"))


def payer(messages, tools):
    if results(messages) == 0:
        return [call("pay", number=1)]
    if trouble:
        return trouble.popitem()[1]
    return "done"


def agent(runtime=None, **fields):
    return FunctionAgent(**{"llm": Scripted(payer), "tools": [look, pay], "runtime": runtime or LetItLoopRuntime(), **fields})


# --- names -------------------------------------------------------------------------------------------------------------------


def teams(runtime):
    yield agent(runtime)
    yield ReActAgent(llm=Scripted(payer), tools=[look, pay], runtime=runtime)
    yield AgentWorkflow([FunctionAgent(llm=Scripted(payer), tools=[look, pay])], runtime=runtime)
    yield durable_workflow(FunctionAgent(llm=Scripted(payer), tools=[look, pay]), runtime=runtime)


@pytest.mark.parametrize("team", range(4))
async def test_a_misspelt_name_is_named_before_anything_is_run(team):
    with pytest.raises(InvalidArgument, match=r"'pya'.*and 'pay' has no policy: is that the one meant\? Nothing was run"):
        await list(teams(LetItLoopRuntime(tools={"pya": PAY})))[team].run("pay", run_id="a")
    assert paid == []


async def test_a_name_of_no_tool_is_warned_of_once(caplog):
    runtime = LetItLoopRuntime(tools={"pay": PAY, "refund_everything": PAY, "look": "record", "absent": "record"})
    for run_id in ("a", "b"):
        await agent(runtime).run("pay", run_id=run_id)
    said = [one.getMessage() for one in caplog.records if "guards nothing" in one.getMessage()]
    assert len(said) == 1
    assert "'refund_everything'" in said[0]


async def test_a_tool_of_another_agent_of_the_runtime_is_known():
    runtime = LetItLoopRuntime(tools={"pay": PAY, "payer": PAY})

    def payer_(number: int) -> str:
        """Pay as well."""
        return ""

    other = agent(runtime, tools=[FunctionTool.from_defaults(payer_, name="payer")])
    await agent(runtime).run("pay", run_id="a")
    del other


class ByHand(Workflow):
    @step
    async def one(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=(await durable_tool(pay, ev.policy).acall(number=1)).content)


async def test_a_name_that_no_step_has_called_is_warned_of_when_the_run_has_ended(caplog):
    with caplog.at_level(logging.WARNING):
        assert await ByHand(runtime=LetItLoopRuntime(tools={"pay": PAY})).run(run_id="a", policy=PAY) == "paid 1"
        assert "guards nothing" not in caplog.text
        assert await ByHand(runtime=LetItLoopRuntime(tools={"refund": PAY})).run(run_id="b", policy=PAY) == "paid 1"
    assert "'refund'" in caplog.text


async def test_a_tool_by_hand_without_the_effect_that_the_runtime_has_for_its_name_is_refused():
    with pytest.raises(InvalidArgument, match="tools= is for the tools of agents"):
        await ByHand(runtime=LetItLoopRuntime(tools={"pay": PAY})).run(run_id="a", policy="record")


# --- what an agent is made of ------------------------------------------------------------------------------------------------


class Answer(BaseModel):
    text: str


class Longer(BaseModel):
    text: str
    length: int


class Named(Scripted):
    temperature: float = 0.1


def look_up(what: str) -> str:
    """Look something up."""
    return what


CHANGES = {
    "system_prompt": ({"system_prompt": "Be brief."}, {"system_prompt": "Be kind."}),
    "description": ({"description": "pays"}, {"description": "looks"}),
    "state_prompt": ({"state_prompt": "{state} {msg}"}, {"state_prompt": "{msg} {state}"}),
    "tools": ({}, {"tools": [look_up, pay]}),
    "llm": ({"llm": Named(payer)}, {"llm": Named(payer, temperature=0.9)}),
    "output_cls": ({"output_cls": Answer}, {"output_cls": Longer}),
    "can_handoff_to": ({}, {"can_handoff_to": ["other"]}),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_changed_agent_is_named(name):
    first, then = CHANGES[name]
    trouble["late"] = RuntimeError("late")
    with pytest.raises(RuntimeError, match="late"):
        await agent(name="clerk", **first).run("pay", run_id="a")
    for _ in range(2):
        with pytest.raises(StepChanged, match="agent clerk") as caught:
            await agent(name="clerk", **then).run("pay", run_id="a")
        assert caught.value.arguments == (name,)
        assert caught.value.step == "agent clerk"
    if name != "output_cls":
        assert str(await agent(name="clerk", **first).run("pay", run_id="a")) == "done"


async def test_a_changed_team_is_named():
    def team(**fields):
        agents = [
            FunctionAgent(name=name, description=name, llm=Scripted(payer), tools=[pay], can_handoff_to=["payer"])
            for name in ("triage", "payer")
        ]
        return AgentWorkflow(agents, **{"root_agent": "triage", "runtime": LetItLoopRuntime(), **fields})

    trouble["late"] = RuntimeError("late")
    with pytest.raises(RuntimeError, match="late"):
        await team().run("pay", run_id="a")
    with pytest.raises(StepChanged) as caught:
        await team(root_agent="payer", handoff_prompt="Go: {agent_info}").run("pay", run_id="a")
    assert sorted(caught.value.arguments) == ["handoff_prompt", "root_agent"]


async def test_what_a_changed_agent_may_do():
    """Reuse goes on; rerun begins anew, and is refused where an effect has happened; a finished run has its result."""
    runs = {"plain": LetItLoopRuntime(), "effect": LetItLoopRuntime(tools={"pay": PAY})}

    def plain(number: int) -> str:
        """Pay an invoice."""
        return act(number)

    tools = {"plain": [FunctionTool.from_defaults(plain, name="pay")], "effect": [pay]}
    for kind, runtime in runs.items():
        trouble["late"] = RuntimeError("late")
        with pytest.raises(RuntimeError, match="late"):
            await agent(runtime, tools=tools[kind], system_prompt="old").run("pay", run_id=kind)
    changed = {"system_prompt": "new"}
    rerun = LetItLoopRuntime(tools={"pay": PAY}, on_change="rerun")
    with pytest.raises(StepChanged, match="would take back effects that were begun"):
        await agent(rerun, tools=tools["effect"], **changed).run("pay", run_id="effect")
    assert paid == [1, 1]
    anew = LetItLoopRuntime(on_change="rerun")
    assert str(await agent(anew, tools=tools["plain"], **changed).run("pay", run_id="plain")) == "done"
    assert paid == [1, 1, 1]
    reuse = LetItLoopRuntime(tools={"pay": PAY}, on_change="reuse")
    model = Scripted(payer)
    assert str(await agent(reuse, tools=tools["effect"], llm=model, **changed).run("pay", run_id="effect")) == "done"
    assert len(model.asked) == 1
    assert str(await agent(LetItLoopRuntime(), tools=tools["effect"], **changed).run("pay", run_id="effect")) == "done"
    assert paid == [1, 1, 1]


async def test_a_finished_run_with_an_effect_is_not_run_anew():
    runtime = LetItLoopRuntime(tools={"pay": PAY})
    await agent(runtime).run("pay", run_id="a")
    rerun = LetItLoopRuntime(tools={"pay": PAY}, on_change="rerun")
    model = Scripted(payer)
    with pytest.raises(StepChanged, match=r"effects that have happened \(.*invoice%2F1\), so it is refused"):
        await agent(rerun, llm=model).run("pay again", run_id="a")
    assert model.asked == []
    assert paid == [1]
