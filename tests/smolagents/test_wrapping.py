"""How an agent becomes durable, once and in one session, how it is a stock agent again, and which ways are refused."""

from __future__ import annotations

import copy
import os
import threading

import pytest
from smolagents import CodeAgent, LocalPythonExecutor, ToolCallingAgent, tool
from smolagents.agents import MultiStepAgent
from smolagents.memory import AgentMemory

from letitloop import InvalidArgument, effect
from letitloop.adapters.smolagents import SmolagentsWALCallback, durable_agent, restore_agent_memory, unwrap
from tests.smolagents.helpers import QUIET, calling_agent, code_agent
from tests.smolagents.scripted import Probe, Script, Streaming, calls, code


def test_an_agent_without_the_callback_is_untouched(tmp_path):
    SmolagentsWALCallback(session_id="somebody else's")
    probe, model = Probe(), Script([code("final_answer(probe(what=1))")])
    agent = CodeAgent(tools=[probe], model=model, **QUIET)
    executor = agent.python_executor
    assert agent.run("go") == "<1>"
    assert agent.model is model
    assert agent.python_executor is executor
    assert agent.tools["probe"] is probe
    assert not (tmp_path / "letitloop-store").exists()


def test_the_class_is_patched_once():
    SmolagentsWALCallback(session_id="one")
    first = MultiStepAgent.run
    SmolagentsWALCallback(session_id="two")
    assert MultiStepAgent.run is first


def test_wrapping_twice_changes_nothing():
    probe, model = Probe(), Script([code("final_answer(probe(what=1))")])
    agent = CodeAgent(tools=[probe], model=model, **QUIET)
    callback = SmolagentsWALCallback(session_id="twice")
    assert callback.bind(agent) is agent
    inside = agent.model, agent.python_executor, agent.tools["probe"], agent.run
    callback.bind(agent)
    durable_agent(agent)
    durable_agent(agent, session_id="twice")
    assert (agent.model, agent.python_executor, agent.tools["probe"], agent.run) == inside
    assert agent.run("go") == "<1>"
    assert model.asked == ["0 of " + model.asked[0].partition(" of ")[2]]
    assert probe.seen == [1]
    with pytest.raises(InvalidArgument, match="unwrap"):
        durable_agent(agent, session_id="another")


def test_unwrap_gives_the_stock_agent_back():
    helper = CodeAgent(tools=[], model=Script([]), name="helper", description="helps", **QUIET)
    probe, model = Probe(), Script([code("final_answer(probe(what=1))")])
    agent = CodeAgent(tools=[probe], model=model, managed_agents=[helper], final_answer_checks=[len], **QUIET)
    before = dict(vars(agent)), dict(vars(helper)), dict(agent.tools)
    executor = agent.python_executor
    durable_agent(agent, session_id="unwrap")
    assert agent.model is not model
    assert helper.model is not before[1]["model"]
    unwrap(agent)
    assert (dict(vars(agent)), dict(vars(helper)), dict(agent.tools)) == before
    assert agent.python_executor is executor
    agent.final_answer_checks = []
    assert agent.run("go") == "<1>"


def test_unwrap_takes_the_callback_away():
    agent, model = code_agent(["final_answer(1)"])
    unwrap(agent)
    agent.run("go")
    unwrap(agent).run("go")
    assert len(model.asked) == 2
    assert type(agent.model) is Script


def test_a_wrapped_agent_passes_for_what_it_is():
    agent, _ = code_agent(["final_answer(1)"], [Probe()], session="kinds")
    stock = CodeAgent(tools=[Probe()], model=Script([]), **QUIET)
    durable_agent(agent, session_id="kinds")
    assert isinstance(agent.model, Script)
    assert isinstance(agent.python_executor, LocalPythonExecutor)
    assert type(agent.model).__name__ == "Script"
    assert not hasattr(agent.model, "generate_stream")
    agent.model.temperature = 3
    assert agent.model.temperature == 3
    assert isinstance(agent.tools["probe"], Probe)
    assert agent.system_prompt == stock.system_prompt
    streaming, _ = code_agent(["final_answer(1)"], model=Streaming, session="kinds-2")
    durable_agent(streaming, session_id="kinds-2")
    assert hasattr(streaming.model, "generate_stream")


@tool
def double(n: int) -> int:
    """Doubles a number.

    Args:
        n: the number.
    """
    return 2 * n


def test_to_dict_still_works():
    stock = CodeAgent(tools=[double], model=Script([]), **QUIET).to_dict()
    agent, _ = code_agent([], [double], session="to_dict")
    durable_agent(agent, session_id="to_dict")
    assert agent.to_dict() == stock


@pytest.mark.parametrize("way", ["callback", "bound"])
def test_a_class_with_a_run_of_its_own(next_life, way):
    class Brief(CodeAgent):
        prepared = 0

        def run(self, task, **kwargs):
            Brief.prepared += 1
            return super().run(f"Be brief. {task}", **kwargs)

    for life in range(2):
        callback = SmolagentsWALCallback(session_id="brief")
        agent = Brief(
            tools=[], model=Script([code("final_answer(1)")]), step_callbacks=[callback] if way == "callback" else [], **QUIET
        )
        if way == "bound":
            durable_agent(agent, session_id="brief")
        for n in (1, 2):
            assert agent.run("go") == 1
            assert agent.memory.steps[0].task == "Be brief. go"
            assert Brief.prepared == 2 * life + n
        assert len(agent.model.asked) == (0 if life else 2)
        next_life()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tools": {"probe": "rerun"}}, "tools"),
        ({"default": "rerun"}, "default"),
        ({"on_change": "reuse"}, "on_change"),
        ({"agent_name": "another"}, "agent_name"),
        ({"store": "memory:another"}, "store"),
        ({"session_id": "another"}, "another callback"),
    ],
)
@pytest.mark.parametrize("way", ["callback", "bound"])
def test_wrapping_again_otherwise_is_refused(way, options, named):
    policies = {"probe": effect(key="probe/{what}")}
    callback = SmolagentsWALCallback(session_id="again", tools=policies)
    agent = CodeAgent(tools=[Probe()], model=Script([]), step_callbacks=[callback] if way == "callback" else [], **QUIET)
    if way == "bound":
        durable_agent(agent, session_id="again", tools=policies)
    inside = agent.model
    with pytest.raises(InvalidArgument, match=named if options.keys() != {"session_id"} else "unwrap"):
        durable_agent(agent, **{"session_id": "again", **options})
    assert agent.model is inside
    assert durable_agent(agent, session_id="again", tools={"probe": effect(key="probe/{what}")}) is agent


def test_a_managed_agent_that_is_bound_otherwise_is_refused():
    helper = CodeAgent(tools=[Probe()], model=Script([]), name="helper", description="helps", **QUIET)
    durable_agent(helper, session_id="helper", tools={"probe": "rerun"})
    agent = CodeAgent(tools=[], model=Script([]), managed_agents=[helper], **QUIET)
    with pytest.raises(InvalidArgument, match="helper"):
        durable_agent(agent, session_id="its manager")


def test_a_policy_for_no_tool_is_refused_or_told(caplog):
    helper = CodeAgent(tools=[Probe()], model=Script([]), name="helper", description="helps", **QUIET)
    agent = CodeAgent(tools=[double], model=Script([]), managed_agents=[helper], **QUIET)
    with pytest.raises(InvalidArgument, match=r"'probes'.*'probe' has no policy"):
        durable_agent(agent, session_id="names", tools={"probes": "rerun"})
    durable_agent(agent, session_id="names", tools={"probe": "rerun", "double": "rerun", "python_interpreter": "record"})
    assert caplog.messages == []
    agent, _ = code_agent(["final_answer(1)"], policies={"probes": "rerun"})
    assert agent.run("go") == 1  # a callback may give the agent such a tool later
    assert [one for one in caplog.messages if "'probes'" in one and "guards nothing" in one]


def test_two_threads_in_one_session_are_refused():
    inside, go_on = threading.Event(), threading.Event()

    def wait(what):
        inside.set()
        go_on.wait()
        return what

    first, _ = code_agent(["final_answer(probe(what=1))"], [Probe(answer=wait)], session="one session")
    second, model = code_agent(["final_answer(2)"], session="one session")
    results = []
    thread = threading.Thread(target=lambda: results.append(first.run("go")))
    thread.start()
    inside.wait()
    try:
        with pytest.raises(InvalidArgument, match="another thread"):
            second.run("go")
    finally:
        go_on.set()
        thread.join()
    assert (results, model.asked) == ([1], [])
    assert second.run("go") == 2


def test_an_agent_that_a_tool_runs_in_the_same_session(next_life):
    for asked in (1, 0):
        inner, model = code_agent(["final_answer(2)"], session="one session", options={"agent_name": "inner"})
        outer, _ = code_agent(
            ["final_answer(probe(what=1))"],
            [Probe(answer=lambda what, inner=inner: inner.run("inside"))],
            session="one session",
            policies={"probe": "rerun"},
            max_steps=2,
        )
        assert outer.run("go") == 2
        assert len(model.asked) == asked
        next_life()


def test_a_tool_object_that_two_agents_share(next_life):
    probe = Probe()
    for _ in range(2):
        one, first = code_agent(["final_answer(probe(what='a'))"], [probe], session="one")
        other, second = calling_agent(
            [calls(("1", "probe", {"what": "b"})), calls(("2", "final_answer", {"answer": "x"}))], [probe], session="other"
        )
        assert one.run("go") == "<a>"
        assert other.run("go") == "x"
        next_life()
    assert probe.seen == ["a", "b"]
    assert "forward" not in vars(probe)
    assert (first.asked, second.asked) == ([], [])


def test_a_model_object_that_two_agents_share(next_life):
    model = Script([code("final_answer(probe(what='a'))")])
    for _ in range(2):
        one = CodeAgent(tools=[Probe()], model=model, step_callbacks=[SmolagentsWALCallback(session_id="one")], **QUIET)
        two = CodeAgent(tools=[Probe()], model=model, step_callbacks=[SmolagentsWALCallback(session_id="two")], **QUIET)
        assert [one.run("go"), two.run("go")] == ["<a>", "<a>"]
        three = CodeAgent(tools=[Probe()], model=one.model, step_callbacks=[SmolagentsWALCallback(session_id="three")], **QUIET)
        assert three.run("go") == "<a>"
        next_life()
    assert len(model.asked) == 3
    assert "generate" not in vars(model)


def test_a_tool_without_forward(next_life):
    from smolagents.tools import BaseTool

    class Bare(BaseTool):
        name = "bare"
        description = "Does something."
        inputs = {}  # noqa: RUF012 - as smolagents wants it
        output_type = "any"

        def __call__(self, *args, **kwargs):
            return 7

        def to_code_prompt(self):
            return "def bare() -> any: ..."

    agent, _ = code_agent(["final_answer(bare())"], [Bare()])
    with pytest.raises(InvalidArgument, match="rerun"):
        agent.run("go")
    agent, _ = code_agent(["final_answer(bare())"], [Bare()], policies={"bare": "rerun"}, session="bare")
    assert agent.run("go") == 7


def test_what_means_nothing_is_refused():
    with pytest.raises(InvalidArgument, match="no agent"):
        durable_agent(object(), session_id="x")
    with pytest.raises(InvalidArgument, match="business key"):
        SmolagentsWALCallback(session_id="x", tools={"python_interpreter": effect(key="a/{b}")})
    with pytest.raises(InvalidArgument, match="policy"):
        SmolagentsWALCallback(session_id="x", tools={"probe": "sometimes"})


def test_compatibility_words(tmp_path, next_life):
    options = {"wal_dir": str(tmp_path / "wal"), "auto_resume": False}
    agent, _ = code_agent(["final_answer(1)"], options=options)
    assert agent.run("go") == 1
    assert os.listdir(tmp_path / "wal" / "runs")
    next_life()
    agent, model = code_agent(["final_answer(1)"], options=options)
    assert agent.run("go") == 1
    assert len(model.asked) == 1  # a new log: the earlier one is left as it is
    assert len(list((tmp_path / "wal" / "runs").glob("*.wal"))) == 2
    next_life()
    options["auto_resume"] = True
    agent, model = code_agent(["final_answer(1)"], options=options)
    assert agent.run("go") == 1
    next_life()
    options["auto_resume"] = False
    agent, model = code_agent(["final_answer(1)"], options=options)
    assert restore_agent_memory(agent) > 2
    assert agent.run("go") == 1
    assert model.asked == []
    bare = CodeAgent(tools=[], model=Script([code("final_answer(1)")]), **QUIET)
    durable_agent(bare, session_id="agent", wal_dir=str(tmp_path / "wal"), auto_resume=True, agent_name="named")
    assert bare.run("go") == 1
    assert len(bare.model.asked) == 1
    with pytest.raises(InvalidArgument, match="wal_dir"):
        SmolagentsWALCallback(session_id="x", store="memory:", wal_dir="y")


def test_a_name_for_the_agent_in_the_log(next_life):
    agent, _ = code_agent(["final_answer(1)"], options={"agent_name": "analyst"})
    agent.run("go")
    next_life()
    callback = SmolagentsWALCallback(session_id="agent")
    assert b"run analyst/model" in callback.session.root().run.journal.results(100)


class Copied(CodeAgent):
    def __copy__(self):
        made = object.__new__(type(self))
        made.__dict__.update(self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__)
        return made


class Slim(CodeAgent):
    def __getstate__(self):
        return {name: one for name, one in self.__dict__.items() if name != "note"}


def traced(agent):
    stock = agent.run
    agent.run = lambda *args, **kwargs: ["traced", stock(*args, **kwargs)]


@pytest.mark.parametrize("when", ["before a run", "after a run", "by a callback"])
@pytest.mark.parametrize("way", ["callback", "bound"])
@pytest.mark.parametrize("cls", [CodeAgent, ToolCallingAgent, Slim, Copied])
def test_a_copy_runs_itself(next_life, cls, way, when):
    def answers(what):
        if cls is ToolCallingAgent:
            return [calls(("1", "probe", {"what": what})), calls(("2", "final_answer", {"answer": what}))]
        return [code(f"probe(what={what!r})"), code(f"final_answer({what!r})")]

    def copied(one):
        made = copy.copy(one)
        made.model, made.memory = Script(answers("copy")), AgentMemory("s")
        copies.append(made)

    def watch(step, agent):
        if when == "by a callback" and agent is original and not copies:
            copied(agent)

    for life in range(2):
        copies = []
        probe = Probe()
        callback = SmolagentsWALCallback(session_id="copies")
        original = cls(
            tools=[probe],
            model=Script(answers("original")),
            step_callbacks=[watch, callback] if way == "callback" else [watch],
            final_answer_checks=[lambda answer, memory, agent: True],
            **QUIET,
        )
        model = original.model
        if way == "bound":
            durable_agent(original, session_id="copies")
        if when == "before a run":
            copied(original)
        assert original.run("go") == "original"
        if when == "after a run":
            copied(original)
        made = copies[0]
        assert isinstance(made.model, Script)
        assert made.run("go") == "copy"
        assert len(made.memory.steps) == 3
        assert len(original.memory.steps) == 3
        # the copy of an agent with the callback has the callback, and so is durable itself
        again = way == "bound" or not life
        assert probe.seen == [*(["original"] if not life else []), *(["copy"] if again else [])]
        assert len(model.asked) == (0 if life else 2)
        assert original.run("go") == "original"
        made = copy.copy(original)
        assert unwrap(made) is made
        next_life()


def test_a_copy_keeps_what_the_program_put_into_the_agent():
    agent = CodeAgent(tools=[], model=Script([code("final_answer(1)")]), **QUIET)
    traced(agent)
    durable_agent(agent, session_id="traced")
    assert copy.copy(agent).run("go") == ["traced", 1]
    other = durable_agent(copy.copy(agent), session_id="the copy")
    assert other.run("go") == ["traced", 1]
