"""Agents whose ``run`` takes what it is given in its own way: the agent's class has one of its own, or the program put one in."""

from __future__ import annotations

import pytest
from smolagents import CodeAgent, ToolCallingAgent

from letitloop import StepChanged
from letitloop.adapters.smolagents import SmolagentsWALCallback, durable_agent
from tests.smolagents.conftest import Died
from tests.smolagents.helpers import QUIET
from tests.smolagents.scripted import Probe, Script, calls, code

STEPS = ["x = probe(what='a')", "final_answer(x)", "final_answer('checked ' + x)"]


class Unnamed(CodeAgent):
    def run(self, *args, **kwargs):
        return super().run(*args, **kwargs)


class Renamed(CodeAgent):
    def run(self, question):
        return super().run(question)


class WithOptions(CodeAgent):
    def run(self, question, *more, **options):
        return super().run(question, *more, **options)


class Twice(CodeAgent):
    def run(self, question):
        return [super().run(question), super().run("check", reset=False)]


class Yielding(CodeAgent):
    def run(self, task):
        yield from super().run(task, stream=True)


class Reading(CodeAgent):
    def run(self, task):
        return list(super().run(task, stream=True))[-1].output


class Decorated(CodeAgent):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        stock = self.run
        self.run = lambda *args, **kwargs: stock(*args, **kwargs)


CLASSES = [Unnamed, Renamed, WithOptions, Twice, Yielding, Reading, Decorated]


class Mortal(Script):
    """Ends the process at an answer, once."""

    def __init__(self, answers, at, **kwargs):
        super().__init__(answers, **kwargs)
        self.at = at

    def generate(self, *args, **kwargs):
        if len(self.asked) == self.at:
            raise Died
        return super().generate(*args, **kwargs)


def made(cls, at=None, **kwargs):
    return cls(tools=[Probe()], model=Mortal([code(one) for one in STEPS], at), **QUIET, **kwargs)


def told(agent):
    words = ("task", "observations", "error")
    return [[str(getattr(one, word, None)) for word in words] for one in agent.memory.steps]


def read(result):
    return [str(getattr(one, "output", type(one))) for one in result] if hasattr(result, "__next__") else result


@pytest.mark.parametrize("at", [0, 1, None])
@pytest.mark.parametrize("way", ["callback", "bound"])
@pytest.mark.parametrize("cls", CLASSES)
def test_it_is_run_as_stock(next_life, cls, way, at):
    stock = made(cls)
    expected = read(stock.run("go"))
    for dies in (True, False):
        callback = SmolagentsWALCallback(session_id="own run")
        agent = made(cls, at if dies else None, step_callbacks=[callback] if way == "callback" else [])
        if way == "bound":
            durable_agent(agent, session_id="own run")
        if dies and at is not None:
            with pytest.raises(Died):
                read(agent.run("go"))
        else:
            assert read(agent.run("go")) == expected
            assert told(agent) == told(stock)
        next_life()
    assert len(agent.model.asked) == (0 if at is None else len(stock.model.asked) - at)
    assert agent.tools["probe"].seen == (["a"] if at == 0 else [])


@pytest.mark.parametrize("boss", ["code", "calls"])
@pytest.mark.parametrize("cls", [one for one in CLASSES if one is not Yielding])
def test_it_is_a_managed_agent_as_stock(next_life, cls, boss):
    def work(durable):
        member = made(cls, name="member", description="helps")
        kind, answers = ToolCallingAgent, [calls(("1", "member", {"task": "go"})), calls(("2", "final_answer", {"answer": "x"}))]
        if boss == "code":
            kind, answers = CodeAgent, [code("r = member(task='go')\nprint(r)"), code("final_answer(r)")]
        agent = kind(tools=[], managed_agents=[member], model=Script(answers), **QUIET)
        if durable:
            durable_agent(agent, session_id="own run")
        return agent.run("go"), told(agent), told(member), len(member.model.asked) + len(agent.model.asked)

    stock = work(durable=False)
    assert work(durable=True) == stock
    next_life()
    assert work(durable=True) == (*stock[:3], 0)


@pytest.mark.parametrize("cls", [Unnamed, WithOptions, Decorated])
def test_what_it_is_asked_is_told_apart(next_life, cls):
    durable_agent(made(cls), session_id="own run").run("go")
    next_life()
    if cls is not WithOptions:
        assert durable_agent(made(cls, 0), session_id="own run").run(task="go", stream=False) == "<a>"
        next_life()
    agent = durable_agent(made(cls), session_id="own run")
    with pytest.raises(StepChanged, match="additional_args"):
        agent.run("go", additional_args={"n": 1})
    assert agent.model.asked == []
