"""Calls of one answer go by their position in it, however alike they are and whichever comes first."""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from smolagents import CodeAgent, Tool, ToolCallingAgent, agents
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole, Model

from letitloop import InvalidArgument
from letitloop.adapters.smolagents import durable_agent
from tests.smolagents.scripted import Probe, Script, calls, code

QUIET = {"verbosity_level": -1}
ON = "final_answer(on(what=1))"


class Alike(Model):
    """Calls one tool several times in its first answer, with the very same arguments."""

    def __init__(self, name, arguments, times=3):
        super().__init__(model_id="alike")
        self.wanted = [(name, arguments)] * times

    def generate(self, messages, **options):
        wanted = self.wanted
        if any(message.role == MessageRole.TOOL_RESPONSE for message in messages):
            wanted = [("final_answer", {"answer": "done"})]
        made = [
            ChatMessageToolCall(id=str(n), type="function", function=ChatMessageToolCallFunction(name=name, arguments=arguments))
            for n, (name, arguments) in enumerate(wanted)
        ]
        return ChatMessage(role=MessageRole.ASSISTANT, content="I call.", tool_calls=made)


class Tell(Tool):
    """Tells the how-manieth call it is, without being asked anything."""

    name = "tell"
    description = "Tells."
    inputs = {}  # noqa: RUF012 - as smolagents wants it
    output_type = "any"

    def __init__(self):
        super().__init__()
        self.numbers = itertools.count(1)

    def forward(self):
        return f"told {next(self.numbers)}"


@pytest.fixture
def in_turn(monkeypatch):
    """Let the calls of an answer be carried out in another order than that of the answer."""

    def set_order(order):
        class Ordered(ThreadPoolExecutor):
            def __init__(self, *args):
                super().__init__(len(order))
                self.number = itertools.count()
                self.ended = [threading.Event() for _ in order]

            def submit(self, work, *args):
                turn = order.index(next(self.number))

                def when_it_may():
                    if turn:
                        self.ended[turn - 1].wait()
                    try:
                        return work(*args)
                    finally:
                        self.ended[turn].set()

                return super().submit(when_it_may)

        monkeypatch.setattr(agents, "ThreadPoolExecutor", Ordered)

    return set_order


@pytest.mark.parametrize("arguments", [{}, None, "", "{}"], ids=repr)
def test_calls_without_arguments(next_life, in_turn, arguments):
    told = []
    for order in ([2, 0, 1], [0, 1, 2], [1, 2, 0]):
        agent = ToolCallingAgent(tools=[Tell()], model=Alike("tell", arguments), **QUIET)
        in_turn(order)
        durable_agent(agent, session_id="alike")
        assert agent.run("go") == "done"
        told.append((agent.memory.steps[1].observations, json.dumps([call.dict() for call in agent.memory.steps[1].tool_calls])))
        next_life()
    assert told == [told[0]] * 3


@pytest.mark.parametrize("arguments", [{"what": 1}, '{"what": 1}', "text"], ids=repr)
def test_calls_with_one_object_for_their_arguments(next_life, in_turn, arguments):
    told = []
    for order in ([2, 0, 1], [0, 1, 2]):
        numbers = itertools.count(1)
        probe = Probe(answer=lambda what, numbers=numbers: f"{what} {next(numbers)}")
        agent = ToolCallingAgent(tools=[probe], model=Alike("probe", arguments), **QUIET)
        in_turn(order)
        durable_agent(agent, session_id="alike")
        assert agent.run("go") == "done"
        told.append(agent.memory.steps[1].observations)
        next_life()
    assert told == [told[0]] * 2


def test_what_a_reader_of_the_stream_and_a_callback_see_is_what_the_model_said():
    for arguments in ({}, None, "", {"what": 1}):
        agent = ToolCallingAgent(tools=[Tell(), Probe()], model=Alike("probe" if arguments else "tell", arguments), **QUIET)
        durable_agent(agent, session_id=f"seen {arguments!r}")
        seen = [one for one in agent.run("go", stream=True) if type(one).__name__ in ("ToolCall", "ToolOutput")]
        found = [getattr(one, "tool_call", one).arguments for one in seen][:6]
        assert [(type(one), one) for one in found] == [(type(arguments), arguments)] * 6


# --- tools that run agents ---------------------------------------------------------------------------------------------------


def asker(name, agent, before=lambda: None):
    def ask(what):
        before()
        return agent.run(what)

    return Probe(answer=ask, name=name)


def helper(name="helper", tools=(), model=None):
    agent = CodeAgent(tools=list(tools), model=model or Script([code(ON)]), name=name, description="helps", **QUIET)
    return durable_agent(agent, session_id="team")


def boss_of(*tools):
    wanted = [(str(n), one.name, {"what": "A"}) for n, one in enumerate(tools)]
    model = Script([calls(*wanted), calls(("9", "final_answer", {"answer": "done"}))])
    return durable_agent(ToolCallingAgent(tools=list(tools), model=model, **QUIET), session_id="team")


class Slow(Script):
    """Answers only when another tool is about to run the agent, too."""

    inside, waiting = threading.Event(), threading.Event()

    def generate(self, *args, **kwargs):
        self.inside.set()
        self.waiting.wait()
        return super().generate(*args, **kwargs)

    def run_meanwhile(self):
        self.inside.wait()
        self.waiting.set()


@pytest.mark.parametrize("names", [["left", "right"], ["right", "left"]], ids=" ".join)
def test_different_tools_that_run_one_agent_wait_for_each_other(next_life, names):
    for asked in (2, 0):
        model = Slow([code("final_answer(7)")])
        shared = helper(model=model)
        befores = [lambda: None, model.run_meanwhile if asked else lambda: None]
        tools = {name: asker(name, shared, before) for name, before in zip(names, befores, strict=True)}
        boss = boss_of(tools["left"], tools["right"])
        assert boss.run("go") == "done"
        assert boss.memory.steps[1].observations.split() == ["7", "7"]
        assert len(model.asked) == asked
        model.inside.clear()
        model.waiting.clear()
        next_life()


def test_tools_that_would_wait_for_each_other_for_ever_are_refused():
    """The left one runs A, which runs B; the right one runs B, which runs A."""
    both = threading.Barrier(2)
    inner = {}
    a = helper("a", [Probe(answer=lambda what: (both.wait(), inner["b"].run(what))[1], name="on")])
    b = helper("b", [Probe(answer=lambda what: (both.wait(), inner["a"].run(what))[1], name="on")])
    inner.update(a=a, b=b)
    with pytest.raises(InvalidArgument, match="is being run already"):
        boss_of(asker("left", a), asker("right", b)).run("go")
