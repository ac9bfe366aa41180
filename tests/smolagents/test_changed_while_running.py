"""What callbacks, tools and readers do to an agent while it runs: it is durable all the same, and is the agent's own."""

from __future__ import annotations

import PIL.Image
import pytest
from smolagents import CodeAgent, ToolCallingAgent
from smolagents.memory import ActionStep

from letitloop import effect
from letitloop.adapters.smolagents import SmolagentsWALCallback, durable_agent, unwrap
from tests.effects.bank import Bank
from tests.smolagents.conftest import Died
from tests.smolagents.helpers import QUIET, DyingOnce
from tests.smolagents.scripted import Pay, Probe, Script, calls, code

DONE = calls(("9", "final_answer", {"answer": "done"}))


def lives_of(make, next_life, *, at):
    """Run an agent uninterrupted, then with a death and again; return the two results, and the agent of the last life."""
    results = []
    for session, deaths in (("whole", [False]), ("killed", [True, False, False])):
        for dies in deaths:
            agent = make(session, dies, at)
            if dies:
                with pytest.raises(Died):
                    agent.run("go")
            else:
                results.append((agent.run("go"), [str(getattr(one, "observations", None)) for one in agent.memory.steps]))
            next_life()
    assert results == [results[0]] * 3
    return agent


@pytest.mark.parametrize("policy", ["record", "effect"])
def test_a_tool_that_comes_later_is_recorded(next_life, tmp_path, policy):
    bank = Bank(tmp_path / "bank")
    late = []

    def make(session, dies, at):
        pay = Pay() if policy == "effect" else Probe(answer=lambda what: late.append(what) or "paid", name="pay")
        asked = {"number": "7", "amount": 3} if policy == "effect" else {"what": session}

        def give(step, agent):
            agent.tools["pay"] = pay

        key = {"pay": effect(key=f"{session}/{{number}}", provider=bank)} if policy == "effect" else {}
        callback = SmolagentsWALCallback(session_id=session, tools=key)
        answers = [calls(("1", "probe", {"what": 1})), calls(("2", "pay", asked)), calls(("3", "die", {"what": 2})), DONE]
        tools = [Probe(), DyingOnce({"on": dies})]
        return ToolCallingAgent(tools=tools, model=Script(answers), step_callbacks=[give, callback], **QUIET)

    agent = lives_of(make, next_life, at=2)
    assert agent.model.inner.asked == []
    if policy == "effect":
        assert len(bank.requests()) == 2
    else:
        assert late == ["whole", "killed"]


@pytest.mark.parametrize("kind", ["code", "calls"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_model_that_is_swapped_is_recorded(next_life, kind, at):
    strong_asked = []

    def make(session, dies, at):
        if kind == "code":
            answers = ["x = probe(what=1)", "y = probe(what=2)", "z = probe(what=3)", "final_answer([x, y, z])"]
            answers[at] = f"die(what=1)\n{answers[at]}"
            answers = list(map(code, answers))
        else:
            answers = [calls((str(n), "probe", {"what": n})) for n in range(4)] + [DONE]
            answers.insert(at, calls(("d", "die", {"what": 1})))
        strong = Script(answers, name="strong", model_id="strong")

        def escalate(step, agent):
            agent.model = strong

        made = CodeAgent if kind == "code" else ToolCallingAgent
        tools = [Probe(), DyingOnce({"on": dies})]
        callback = SmolagentsWALCallback(session_id=session)
        agent = made(tools=tools, model=Script(answers), step_callbacks=[escalate, callback], **QUIET)
        strong_asked.append(strong.asked)
        return agent

    lives_of(make, next_life, at=at)
    whole, first, second, third = strong_asked
    assert len(first) + len(second) == len(whole)
    assert third == []


def shrink(step, agent):
    for old in agent.memory.steps:
        if isinstance(old, ActionStep) and old.observations_images:
            old.observations_images[:] = [image.resize((2, 2)) for image in old.observations_images]


def add_image(step, agent):
    step.observations_images = [PIL.Image.new("RGB", (8, 8), (step.step_number, 0, 0))]


def elide(step, agent):
    for old in agent.memory.steps:
        for call in getattr(old, "tool_calls", None) or ():
            if isinstance(call.arguments, dict):
                call.arguments["what"] = "(elided)"
            else:
                call.arguments = "(elided)"


def tell_less(step, agent):
    for old in agent.memory.steps:
        if getattr(old, "error", None) is not None:
            old.error.args = ("it failed",)


@pytest.mark.parametrize("callbacks", [[add_image, shrink], [elide], [tell_less]], ids=["images", "arguments", "errors"])
@pytest.mark.parametrize("kind", ["code", "calls"])
def test_a_callback_that_changes_older_steps_in_place(next_life, callbacks, kind):
    def make(session, dies, at):
        if kind == "code":
            answers = [code(f"x = probe(what={n})\nif {n} == 1:\n    1 / 0") for n in range(3)]
            answers += [code("die(what=1)"), code("final_answer(x)")]
        else:
            answers = [calls((str(n), "probe" if n != 1 else "unknown", {"what": n})) for n in range(3)]
            answers += [calls(("d", "die", {"what": 1})), DONE]
        made = CodeAgent if kind == "code" else ToolCallingAgent
        tools = [Probe(), DyingOnce({"on": dies})]
        callback = SmolagentsWALCallback(session_id=session)
        return made(tools=tools, model=Script(answers), step_callbacks=[*callbacks, callback], **QUIET)

    assert lives_of(make, next_life, at=3).model.inner.asked == []


class Counting(Probe):
    """A tool with a state of its own."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, what):
        self.count += 1
        return super().forward(what)


def test_the_state_of_a_tool_is_the_tools():
    tool = Counting()
    agent = CodeAgent(tools=[tool], model=Script([code("probe(what=1)\nprobe(what=2)\nfinal_answer(0)")]), **QUIET)
    durable_agent(agent, session_id="state")
    assert agent.run("go") == 0
    shown = agent.tools["probe"]
    assert (shown.count, tool.count) == (2, 2)
    shown.count = 5
    assert tool.count == 5
    assert isinstance(shown, Counting)
    assert shown.__class__ is Counting
    assert "forward" not in vars(tool)
    unwrap(agent)
    assert agent.tools["probe"] is tool
