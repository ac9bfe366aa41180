"""What callbacks, tools and readers do to an agent while it runs: it is durable all the same, and is the agent's own."""

from __future__ import annotations

import copy
import pickle

import PIL.Image
import pytest
from smolagents import CodeAgent, ToolCallingAgent
from smolagents.memory import ActionStep

from letitloop import InvalidArgument, effect
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


def test_the_tool_itself_is_copied_pickled_and_set_up():
    class Registered(Counting):
        kinds = []  # noqa: RUF012 - it is the class's
        ready = 0

        def __init_subclass__(cls, *, kind):
            Registered.kinds.append(kind)

        def setup(self):
            self.ready += 1
            super().setup()

    pay, tool = Pay(), Registered()
    agent = durable_agent(CodeAgent(tools=[pay, tool], model=Script([]), **QUIET), session_id="itself")
    assert type(pickle.loads(pickle.dumps(agent.tools["pay"]))) is Pay
    shown = agent.tools["probe"]
    for made in (copy.copy(shown), copy.deepcopy(shown)):
        assert type(made) is Registered
        assert (made(1), made.count, tool.count) == ("<1>", 1, 0)
    shown.setup()
    assert (shown("a"), tool.ready, tool.kinds) == ("<a>", 1, [])
    shown.forward = lambda what: f"otherwise {what}"
    assert shown("a") == tool("a") == "otherwise a"


@pytest.mark.parametrize("options", [{"planning_interval": 1}, {"max_steps": 1}], ids=["plan", "last answer"])
def test_a_model_that_the_reader_of_the_steps_swaps_is_recorded(next_life, options):
    asked = []
    for _ in range(2):
        answers = [calls((str(n), "probe", {"what": n})) for n in range(2)] + [DONE]
        strong = Script(answers, model_id="strong")
        agent = ToolCallingAgent(tools=[Probe()], model=Script(answers), **{**QUIET, **options})
        for step in durable_agent(agent, session_id="read").run("go", stream=True):
            if isinstance(step, ActionStep):
                agent.model = strong
        asked.append(strong.asked)
        next_life()
    assert asked[0]
    assert asked[1] == []


@pytest.mark.parametrize("kind", ["tool", "agent"])
def test_what_a_call_gives_to_a_later_call_of_its_answer_is_recorded(next_life, kind):
    done = []
    for _ in range(2):
        late, model = Probe(name="late"), Script([code("final_answer(1)")])
        given = CodeAgent(tools=[], model=model, name="late", description="helps", **QUIET)

        def give(what):
            if kind == "tool":
                agent.tools["late"] = late  # noqa: B023 - it is called in this life
            else:
                given.inputs, given.output_type = HELPERS_INPUTS, "string"  # noqa: B023
                agent.managed_agents["late"] = given  # noqa: B023

        asked = {"what": 2} if kind == "tool" else {"task": "go"}
        answers = [calls(("1", "give", {"what": 1}), ("2", "late", asked)), DONE]
        tools = [Probe(answer=give, name="give")]
        agent = ToolCallingAgent(tools=tools, model=Script(answers), max_tool_threads=1, **QUIET)
        durable_agent(agent, session_id="one answer", tools={"give": "rerun"})
        assert agent.run("go") == "done"
        done.append(late.seen if kind == "tool" else model.asked)
        next_life()
    assert len(done[0]) == 1
    assert done[1] == []


HELPERS_INPUTS = {
    "task": {"type": "string", "description": "what to do"},
    "additional_args": {"type": "object", "description": "more", "nullable": True},
}


@pytest.mark.parametrize("how", ["own list", "agent's list", "another list"])
def test_checks_that_come_later_are_recorded(next_life, how):
    judged = []

    def judge(answer, memory, agent):
        judged.append(answer)
        agent.final_answer_checks.remove(judge)  # it is asked once
        return True

    for _ in range(2):
        checks = [lambda answer, memory, agent: True]

        def add(what):
            if how == "own list":
                checks.append(judge)  # noqa: B023 - it is called in this life
            elif how == "agent's list":
                agent.final_answer_checks.append(judge)  # noqa: B023
            else:
                agent.final_answer_checks = [*agent.final_answer_checks, judge]  # noqa: B023

        model = Script([code("probe(what=1)\nfinal_answer(2)")])
        agent = CodeAgent(tools=[Probe(answer=add)], model=model, final_answer_checks=checks, **QUIET)
        durable_agent(agent, session_id="checks", tools={"probe": "rerun", "python_interpreter": "rerun"})
        assert agent.run("go") == 2
        assert agent.memory.steps[-1].error is None
        next_life()
    assert judged == [2]


@pytest.mark.parametrize("way", ["callback", "in a managed agent", "in one answer"])
def test_a_policy_that_nearly_has_the_name_of_a_tool_that_comes_later_is_refused(next_life, way):
    late = Probe(name="payment")

    def give(*_, **__):
        agents[0].tools["payment"] = late

    answers = [calls(("1", "probe", {"what": 1})), calls(("2", "payment", {"what": 2})), DONE]
    if way == "in one answer":
        answers = [calls(("1", "probe", {"what": 1}), ("2", "payment", {"what": 2})), DONE]
    for _ in range(2):
        probe = Probe(answer=give if way == "in one answer" else None)
        callbacks = [] if way == "in one answer" else [give]
        options = {"name": "helper", "description": "helps", "max_tool_threads": 1, **QUIET}
        agents = [ToolCallingAgent(tools=[probe], model=Script(answers), step_callbacks=callbacks, **options)]
        if way == "in a managed agent":
            model = Script([code("final_answer(helper(task='go'))")])
            agents.append(CodeAgent(tools=[], model=model, managed_agents=[agents[0]], **QUIET))
        policies = {"payments": effect(key="pay/{what}"), "probe": "rerun"}
        durable_agent(agents[-1], session_id="near", tools=policies)
        for _ in range(2):
            with pytest.raises(InvalidArgument, match=r"'payments'.*'payment' has no policy"):
                agents[-1].run("go")
        next_life()
    assert late.seen == []
