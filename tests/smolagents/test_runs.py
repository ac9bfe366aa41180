"""Whole runs of an agent: their results, streams, callbacks, failures and plans, answered from the log or gone on with."""

from __future__ import annotations

import pytest
from smolagents import CodeAgent
from smolagents.agents import RunResult
from smolagents.memory import ActionStep
from smolagents.monitoring import Timing
from smolagents.utils import AgentGenerationError, AgentMaxStepsError

from letitloop import InvalidArgument, StepChanged, durable, effect, step
from letitloop.adapters.smolagents import SmolagentsWALCallback, durable_agent
from tests.smolagents.conftest import Died
from tests.smolagents.helpers import QUIET, DyingOnce, calling_agent, code_agent
from tests.smolagents.scripted import Probe, Script, Streaming, calls, code


def test_other_callbacks_can_tell_a_replayed_step(next_life):
    switch = {"on": True}
    told = []
    callback = SmolagentsWALCallback(session_id="told")

    def watch(step, agent=None):
        told.append((step.step_number, step._lil_replayed, callback.is_replaying))

    steps = ["x = 1", "die(what=1)", "final_answer(x)"]
    for life in range(2):
        agent = CodeAgent(
            tools=[DyingOnce(switch)], model=Script([code(one) for one in steps]), step_callbacks=[watch, callback], **QUIET
        )
        if life == 0:
            with pytest.raises(Died):
                agent.run("go")
            told.clear()
            switch["on"] = False
            next_life()
        else:
            agent.run("go")
    assert told == [(1, True, True), (2, False, False), (3, False, False)]


def test_final_answer_checks_are_not_asked_again(next_life):
    asked = []

    def good(answer, memory, agent):
        asked.append(answer)
        return answer == 2

    for _ in range(2):
        agent, model = code_agent(["final_answer(1)", "final_answer(2)"], final_answer_checks=[good])
        assert agent.run("go") == 2
        assert "Check good failed" in str(agent.memory.steps[1].error)
        next_life()
    assert asked == [1, 2]
    assert model.asked == []


def test_the_recorded_result_of_a_full_run(next_life):
    results = []
    for _ in range(2):
        agent, model = code_agent(["x = 1", "final_answer('done')"])
        results.append(agent.run("go", return_full_result=True))
        next_life()
    assert isinstance(results[1], RunResult)
    assert results[0] == results[1]
    assert type(results[0].output) is type(results[1].output)
    assert model.asked == []


def test_a_result_that_cannot_be_recorded_is_made_again(next_life):
    for _ in range(2):
        agent, model = code_agent(["final_answer(n for n in [probe(what=1)])"], [Probe()])
        assert list(agent.run("go")) == ["<1>"]
        next_life()
    assert model.asked == []


@pytest.mark.parametrize("kind", ["code", "calls"])
def test_a_stream_that_is_cut_at_its_last_piece_is_asked_again(next_life, kind):
    class Cut(Streaming):
        on = True

        def generate_stream(self, *args, **kwargs):
            pieces = list(super().generate_stream(*args, **kwargs))
            yield from pieces[:-1]
            if Cut.on:
                raise Died
            yield pieces[-1]

    for life in range(3):
        Cut.on = life == 0
        if kind == "code":
            agent, model = code_agent(["final_answer(probe(what='a'))"], [Probe()], model=Cut, stream_outputs=True)
        else:
            answers = [
                calls(("", "probe", {"what": "a"}), ("", "probe", {"what": "b"})),
                calls(("1", "final_answer", {"answer": "<a>"})),
            ]
            agent, model = calling_agent(answers, [Probe()], model=Cut, stream_outputs=True)
        if life == 0:
            with pytest.raises(Died):
                agent.run("go")
        else:
            assert agent.run("go") == "<a>"
        assert len(model.asked) == (1 if life == 0 else 0 if life == 2 else len(model.answers))
        next_life()


def test_a_stream_of_steps(next_life):
    for asked in (2, 0):
        agent, model = code_agent(["x = 1", "final_answer(x)"])
        steps = list(agent.run("go", stream=True))
        assert steps[-1].output == 1
        assert len(model.asked) == asked
        next_life()


def test_whoever_stops_reading_a_stream_can_run_again(next_life):
    for asked in (3, 0):
        agent, model = code_agent(["x = 1", "final_answer(x)"])
        steps = agent.run("go", stream=True)
        for one in steps:
            if isinstance(one, ActionStep):
                break
        steps.close()
        assert agent.run("go") == 1
        assert len(model.asked) == asked
        next_life()


def test_steps_that_nobody_read_to_their_end_are_given_up(next_life):
    for asked in (3, 0):
        agent, model = code_agent(["x = 1", "final_answer(x)"])
        steps = agent.run("go", stream=True)
        next(one for one in steps if isinstance(one, ActionStep))
        assert agent.run("go") == 1
        with pytest.raises(InvalidArgument, match="given up"):
            next(steps)
        assert len(model.asked) == asked
        next_life()


def test_an_agent_that_is_being_run_refuses_another_run():
    agent, model = code_agent(["try:\n    probe(what=1)\nexcept Exception as e:\n    said = str(e)\nfinal_answer(said)"], [Probe()])
    agent.tools["probe"].answer = lambda what: agent.run("inside")
    with pytest.raises(InvalidArgument, match="being run already"):
        agent.run("go")
    assert len(model.asked) == 1


def test_a_model_that_failed_is_asked_again_and_nothing_else(next_life):
    probe = Probe()
    agent, model = code_agent(["x = probe(what=1)", "final_answer(x)"], [probe])
    good, model.answers[1] = model.answers[1], RuntimeError("overloaded")
    with pytest.raises(AgentGenerationError):
        agent.run("go")
    model.answers[1] = good
    assert agent.run("go") == "<1>"  # in the same process
    assert [one.partition(" ")[0] for one in model.asked] == ["0", "1", "1"]
    assert probe.seen == [1]
    next_life()
    agent, model = code_agent(["x = probe(what=1)", "final_answer(x)"], [probe])
    assert agent.run("go") == "<1>"
    assert model.asked == []


def test_a_failure_that_the_script_survived_is_history(next_life):
    for asked in (2, 0):
        agent, model = code_agent(["final_answer(1)"])
        model.answers = [RuntimeError("no")]
        with pytest.raises(AgentGenerationError):
            agent.run("first")
        model.answers = [code("final_answer(1)")]
        assert agent.run("second") == 1
        assert len(model.asked) == asked
        next_life()


def test_inside_a_durable_function(next_life):
    probe = Probe()

    @durable(goal_id="around an agent")
    def work():
        agent, model = code_agent(["final_answer(probe(what=1))"], [probe])
        before = step("before", len, "abc")
        return before, str(agent.run("go")), str(agent.run("go")), len(model.asked)

    assert work() == (3, "<1>", "<1>", 2)
    next_life()
    assert work() == (3, "<1>", "<1>", 2)
    assert probe.seen == [1, 1]


def test_planning_is_recorded(next_life):
    for asked in (4, 0):
        agent, model = code_agent(["x = 1", "y = 2", "final_answer(x)"], planning_interval=3)
        assert agent.run("go") == 1
        assert len(model.asked) == asked
        next_life()


HANDED = {
    "plain": ({}, {}),
    "full, by argument": ({}, {"return_full_result": True}),
    "full, by the agent": ({"return_full_result": True}, {}),
    "not full, by argument": ({"return_full_result": True}, {"return_full_result": False}),
    "streamed": ({}, {"stream": True}),
    "streamed, full": ({"return_full_result": True}, {"stream": True}),
}


@pytest.mark.parametrize("later", HANDED)
@pytest.mark.parametrize("first", HANDED)
def test_a_recorded_result_is_handed_over_as_it_is_wanted_now(next_life, first, later):
    for how in (first, later):
        options, arguments = HANDED[how]
        agent, model = code_agent(["x = probe(what=1)", "final_answer(x)"], [Probe()], **options)
        result = agent.run("go", **arguments)
        if "stream" in arguments:
            result = list(result)[-1].output
        assert isinstance(result, RunResult) == (how.startswith("full"))
        assert getattr(result, "output", result) == "<1>"
        next_life()
    assert model.asked == []


def by_argument(number):
    return {}, {"max_steps": number}


def by_the_agent(number):
    return {"max_steps": number}, {}


def streamed(number):
    return {"max_steps": number}, {"stream": True}


def planned(number):
    return {"max_steps": number, "planning_interval": 2}, {}


@pytest.mark.parametrize("said", [by_argument, by_the_agent, streamed, planned])
def test_a_run_that_was_out_of_steps_goes_on_with_more_of_them(next_life, caplog, said):
    steps = ["x = [probe(what=1)]", "x.append(probe(what=2))", "x.append(probe(what=3))", "final_answer(x)"]
    asked, found = [], []
    for number in (2, 2, 3, 9, 9):
        options, arguments = said(number)
        probe = Probe()
        agent, model = code_agent(steps, [probe], **options)
        result = agent.run("go", **arguments)
        found.append(list(result)[-1].output if "stream" in arguments else result)
        asked.append((len(model.asked), probe.seen))
        next_life()
    plans = [1, 0, 1, 0, 0] if said is planned else [0] * 5
    assert asked == [
        (n + plan, seen) for (n, seen), plan in zip([(3, [1, 2]), (0, []), (2, [3]), (1, []), (0, [])], plans, strict=True)
    ]
    assert found[0] == found[1] == code(steps[2])  # what the model said when it was asked for a last answer
    assert found[3:] == [["<1>", "<2>", "<3>"]] * 2
    assert len([one for one in caplog.messages if "goes on there" in one]) == 2


@pytest.mark.parametrize("kind", ["a managed agent's", "with an effect at its end"])
def test_a_run_that_was_out_of_steps_and_cannot_go_on_is_told(next_life, kind):
    steps, sent = ["x = 1", "x = 2", "final_answer(x)"], []
    managed = kind.startswith("a")

    @effect(key="ended/{number}")
    def send(number):
        sent.append(number)

    def tell(step, agent):
        if isinstance(step.error, AgentMaxStepsError):
            send(step.step_number)

    for number in (2, 2, 3):
        if managed:
            member = CodeAgent(
                tools=[], model=Script([code(one) for one in steps]), name="helper", description="helps", max_steps=number, **QUIET
            )
            agent, _ = calling_agent(
                [calls(("1", "helper", {"task": "go"})), calls(("2", "final_answer", {"answer": "x"}))], managed_agents=[member]
            )
        else:
            agent, _ = code_agent(steps, callbacks=[tell], max_steps=number)
        if number == 2:
            agent.run("go")
        else:
            with pytest.raises(StepChanged):
                agent.run("go")
            assert agent.model.asked == []
        next_life()
    assert sent == ([] if managed else [3])
    assert not managed or member.model.asked == []


def test_fewer_steps_than_a_run_had_are_told(next_life):
    steps = ["x = 1", "x = 2", "final_answer(x)"]
    agent, _ = code_agent(steps)
    assert agent.run("go") == 2
    next_life()
    agent, model = code_agent(steps)
    with pytest.raises(StepChanged):
        agent.run("go", max_steps=2)
    assert model.asked == []
    next_life()
    agent, model = code_agent(steps)
    assert agent.run("go", max_steps=3) == 2
    assert model.asked == []


def test_a_step_outside_a_run_is_told_once(next_life, caplog):
    agent, model = code_agent(["x = 1", "final_answer(2)"], session="by hand")
    durable_agent(agent, session_id="by hand")
    agent.python_executor.send_tools(agent.tools)
    for number in (1, 2):
        step = ActionStep(number, Timing(0.0))
        answer = agent.step(step)
        agent.memory.steps.append(step)
    assert (answer.output, answer.is_final_answer) == (2, True)
    assert len(model.asked) == 2
    told = [one.getMessage() for one in caplog.records if "outside run()" in one.getMessage()]
    assert len(told) == 1
    assert "agent 'CodeAgent' of session 'by hand'" in told[0]
    caplog.clear()
    assert agent.run("go") == 2
    assert not [one for one in caplog.records if "outside run()" in one.getMessage()]
