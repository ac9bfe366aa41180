"""What went wrong and was survived is history: failures that a model was shown, and ends of runs that the program went on from."""

from __future__ import annotations

import pytest
from smolagents import AgentError, CodeAgent, ToolCallingAgent
from smolagents.utils import AgentGenerationError

from letitloop.adapters.smolagents import SmolagentsWALCallback, durable_agent
from letitloop.runs.history import list_runs
from letitloop.store.directory import DirectoryStore
from tests.smolagents.conftest import Died
from tests.smolagents.helpers import QUIET
from tests.smolagents.scripted import Probe, Script, calls, code


class Mortal(Script):
    """Ends the process at the call that ``die`` says."""

    def __init__(self, answers, die=0):
        super().__init__(answers)
        self.die = die

    def generate(self, *args, **kwargs):
        answer = super().generate(*args, **kwargs)
        if len(self.asked) == self.die:
            raise Died
        return answer


class Lost(Exception):
    def __init__(self, order, *, late):
        super().__init__(f"no reply about {order}")
        self.late = late


def lose(what):
    raise Lost(what, late=True)


def told(agent):
    return [(getattr(one, "observations", None), str(getattr(one, "error", None))) for one in agent.memory.steps]


def by_calls(model, probe):
    return ToolCallingAgent(tools=[probe], model=model, **QUIET)


def by_code(model, probe, **kwargs):
    return CodeAgent(tools=[probe], model=model, **QUIET, **kwargs)


def by_helper(model, probe):
    helper = by_calls(Script([calls(("1", "probe", {"what": "a"})), calls(("2", "final_answer", {"answer": "sorry"}))]), probe)
    helper.name, helper.description = "helper", "helps"
    return CodeAgent(tools=[], model=model, managed_agents=[helper], **QUIET)


CAUGHT = "try:\n    probe(what='a')\nexcept Exception as e:\n    said = str(e)\nprint(said)"
KINDS = {
    "calls": (by_calls, [calls(("1", "probe", {"what": "a"})), calls(("2", "final_answer", {"answer": "done"}))]),
    "several calls": (
        by_calls,
        [
            calls(("1", "probe", {"what": "a"}), ("2", "probe", {"what": "b"})),
            calls(("2", "final_answer", {"answer": "done"})),
        ],
    ),
    "code that fails": (by_code, [code("probe(what='a')"), code("final_answer('done')")]),
    "code that goes on": (by_code, [code(CAUGHT), code("final_answer('done')")]),
    "a managed agent": (by_helper, [code("x = helper(task='do')"), code("final_answer('done')")]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_that_the_model_is_shown_is_no_call_in_flight(next_life, caplog, kind):
    """Even if the process dies while the model is asked about it."""
    make, answers = KINDS[kind]
    probe = Probe(answer=lose)
    memories = []
    for life in range(3):
        model = Mortal(answers, die=2 if life == 0 else 0)
        agent = durable_agent(make(model, probe), session_id="failures")
        if life == 0:
            with pytest.raises(Died):
                agent.run("go")
            made = len(probe.seen)
        else:
            assert str(agent.run("go")) == "done"
            memories.append(told(agent))
            assert len(model.asked) == (1 if life == 1 else 0)
        next_life()
    assert len(probe.seen) == made == (2 if kind == "several calls" else 1)
    assert memories[0] == memories[1]
    if kind != "a managed agent":
        assert "no reply about a" in str(memories[0])
    assert "being carried out" not in caplog.text


def test_a_failure_in_code_that_was_in_flight_is_not_tried_again(next_life):
    probe = Probe(answer=lambda what: lose(what) if what == "a" else what)
    switch = {"on": True}

    def end(what):
        if switch.pop("on", False):
            raise Died

    for life in range(2):
        agent = CodeAgent(
            tools=[probe, Probe(answer=end, name="end")],
            model=Script([code(CAUGHT + "\nend(what=1)\nfinal_answer(said)")]),
            **QUIET,
        )
        durable_agent(agent, session_id="in flight")
        if life == 0:
            with pytest.raises(Died):
                agent.run("go")
        else:
            assert agent.run("go") == "no reply about a"
        next_life()
    assert probe.seen == ["a"]


def test_a_check_that_raised_is_not_made_again(next_life):
    seen = []

    def good(answer, memory, agent):
        seen.append(answer)
        if answer == 1:
            raise Lost(answer, late=False)
        return True

    for life in range(3):
        model = Mortal([code("final_answer(1)"), code("final_answer(2)")], die=2 if life == 0 else 0)
        agent = by_code(model, Probe(), final_answer_checks=[good])
        durable_agent(agent, session_id="checks")
        if life == 0:
            with pytest.raises(Died):
                agent.run("go")
        else:
            assert agent.run("go") == 2
            assert "Check good failed with error: no reply about 1" in str(agent.memory.steps[1].error)
        next_life()
    assert seen == [1, 2]


# --- ends of runs ------------------------------------------------------------------------------------------------------------


class Stopping(Script):
    """Somebody else does something while it is asked."""

    def __init__(self, answers, meanwhile):
        super().__init__(answers)
        self.meanwhile = meanwhile

    def generate(self, *args, **kwargs):
        self.meanwhile(len(self.asked))
        return super().generate(*args, **kwargs)


STEPS = ["x = 1", "x = x + 1", "x = x + 10", "final_answer(x)"]


def two_runs(meanwhile, callback=lambda step: None, *, stream=False, reset=False, session="ends"):
    """Return what became of two runs, the agent's memory after each, and how often the model was asked."""
    model = Stopping([code(one) for one in STEPS], lambda n: meanwhile(n, agent))
    agent = CodeAgent(tools=[], model=model, step_callbacks=[callback], **QUIET)
    durable_agent(agent, session_id=session)
    ends = []
    for task in ("one", "two"):
        try:
            if stream:
                ends.append(list(agent.run(task, reset=reset, stream=True))[-1].output)
            else:
                ends.append(agent.run(task, reset=reset))
        except Exception as exc:
            ends.append((type(exc), str(exc)))
        ends.append(told(agent))
    return ends, len(model.asked)


def interrupting(at):
    return lambda n, agent: agent.interrupt() if n == at else None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("reset", [False, True])
def test_an_interruption_that_the_program_survived_is_history(next_life, at, stream, reset):
    ends, asked = two_runs(interrupting(at), stream=stream, reset=reset)
    assert ends[0] == (AgentError, "Agent interrupted.")
    assert asked == 4 + (at + 1 if reset else 0)
    for _ in range(2):
        next_life()
        assert two_runs(lambda n, agent: None, stream=stream, reset=reset) == (ends, 0)


@pytest.mark.parametrize("when", ["before the steps are read", "by a callback"])
def test_other_times_to_interrupt(next_life, when):
    results = []
    for life in range(3):
        model = Script([code(one) for one in STEPS])

        def watch(step, agent, life=life):
            if when == "by a callback" and step.step_number == 2 and life == 0:
                agent.interrupt()

        agent = CodeAgent(tools=[], model=model, step_callbacks=[watch], **QUIET)
        durable_agent(agent, session_id="when")
        ends = []
        for task in ("one", "two"):
            steps = agent.run(task, reset=False, stream=True)
            if when != "by a callback" and task == "one" and life == 0:
                agent.interrupt()
            try:
                ends.append(list(steps)[-1].output)
            except AgentError as exc:
                ends.append(str(exc))
        results.append((ends, told(agent)))
        assert len(model.asked) == (0 if life else 4)
        next_life()
    assert results[0] == results[1] == results[2]
    assert results[0][0] == ["Agent interrupted.", 12]


def test_an_interruption_with_which_the_process_ended_is_gone_on_from(next_life):
    """And from then on it ended nothing: it may come again, at the same step or at another one."""
    current = [None]
    for at in (0, 0, 0):
        model = Stopping([code(one) for one in STEPS], lambda n, at=at: n == at and current[0].interrupt())
        current[0] = agent = CodeAgent(tools=[], model=model, **QUIET)
        durable_agent(agent, session_id="gone on")
        with pytest.raises(AgentError):
            agent.run("one")
        assert len(model.asked) == 1
        next_life()
    for asked in (1, 0):
        model = Stopping([code(one) for one in STEPS], lambda n: None)
        agent = CodeAgent(tools=[], model=model, **QUIET)
        durable_agent(agent, session_id="gone on")
        assert agent.run("one") == 12
        assert len(model.asked) == asked
        next_life()


def test_an_interruption_at_one_point_in_life_after_life(next_life):
    for life in range(4):
        model = Script([code(one) for one in STEPS])

        def watch(step, agent, life=life):
            if step.step_number == 1 and life < 2:
                agent.interrupt()

        agent = CodeAgent(tools=[], model=model, step_callbacks=[watch], **QUIET)
        durable_agent(agent, session_id="one point")
        if life < 2:
            with pytest.raises(AgentError):
                agent.run("one")
        else:
            assert agent.run("one") == 12
        assert len(model.asked) == [1, 0, 3, 0][life]
        next_life()


def test_an_interrupted_run_that_is_called_again_goes_on(next_life):
    model = Stopping([code(one) for one in STEPS], lambda n: agent.interrupt() if n == 1 else None)
    agent = CodeAgent(tools=[], model=model, **QUIET)
    durable_agent(agent, session_id="again")
    with pytest.raises(AgentError):
        agent.run("one")
    assert agent.run("one") == 12
    assert len(model.asked) == 4
    next_life()
    model = Stopping([code(one) for one in STEPS], lambda n: None)
    agent = CodeAgent(tools=[], model=model, **QUIET)
    durable_agent(agent, session_id="again")
    assert agent.run("one") == 12
    assert model.asked == []


def test_a_managed_agent_that_was_interrupted(next_life):
    memories, current = [], [None]
    for life in range(2):
        model = Stopping([code("x = 1"), code("final_answer(x)")], lambda n, life=life: n or life or current[0].interrupt())
        current[0] = helper = CodeAgent(tools=[], model=model, name="helper", description="helps", **QUIET)
        boss = ToolCallingAgent(
            tools=[],
            managed_agents=[helper],
            model=Script([calls(("1", "helper", {"task": "do"})), calls(("2", "final_answer", {"answer": "done"}))]),
            **QUIET,
        )
        durable_agent(boss, session_id="managed")
        assert boss.run("go") == "done"
        memories.append((told(boss), told(helper)))
        assert len(model.asked) == (0 if life else 1)
        next_life()
    assert memories[0] == memories[1]
    assert "Agent interrupted." in str(memories[0])


class Enough(Exception):
    pass


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_a_step_callback_that_the_program_survived_is_history(next_life, stream):
    def enough(step):
        if step.step_number == 2 and not getattr(enough, "over", False):
            enough.over = True
            raise Enough("too dear")

    ends, asked = two_runs(lambda n, agent: None, enough, stream=stream)
    assert ends[0] == (Enough, "too dear")
    assert asked == 5  # a step whose callback fails is no part of the memory: the second run asks for it again
    for _ in range(2):
        next_life()
        assert two_runs(lambda n, agent: None, enough, stream=stream) == (ends, 0)


@pytest.mark.parametrize("reset", [False, True])
def test_a_model_failure_that_the_program_survived_is_history(next_life, reset):
    def fail(n, agent):
        if n == 1 and not getattr(fail, "over", False):
            fail.over = True
            raise RuntimeError("overloaded")

    ends, asked = two_runs(fail, reset=reset)
    assert ends[0][0] is AgentGenerationError
    for _ in range(2):
        next_life()
        assert two_runs(lambda n, agent: None, reset=reset) == (ends, 0)
    assert asked == (5 if reset else 4)


def test_a_failure_says_that_it_is_replaying(next_life):
    callback = SmolagentsWALCallback(session_id="told")
    for replayed in (False, True):
        seen = []
        agent = ToolCallingAgent(
            tools=[Probe(answer=lose)],
            model=Script(KINDS["calls"][1]),
            step_callbacks=[seen.append],
            **QUIET,
        )
        callback.bind(agent)
        agent.run("go")
        assert [step._lil_replayed for step in seen] == [replayed, replayed]
        next_life()


def test_a_session_is_finished_when_its_runs_are(tmp_path):
    store = DirectoryStore(tmp_path)
    for die in (1, 0):
        callback = SmolagentsWALCallback(session_id="listed", store=store)
        agent = CodeAgent(tools=[], model=Mortal([code("final_answer(1)")], die), step_callbacks=[callback], **QUIET)
        if die:
            with pytest.raises(Died):
                agent.run("go")
        else:
            assert agent.run("go") == 1
        callback.close()
        (run,) = list_runs(store)
        assert run.status == ("interrupted" if die else "finished")
