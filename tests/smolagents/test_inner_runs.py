"""Runs inside runs: agents that a tool, a model or a step runs, and managed agents that several calls of one answer meet in."""

from __future__ import annotations

import threading

import pytest
from smolagents import CodeAgent, ToolCallingAgent

from letitloop import InvalidArgument, durable, step
from letitloop.adapters.smolagents import durable_agent
from tests.smolagents.conftest import Died
from tests.smolagents.helpers import QUIET
from tests.smolagents.scripted import Probe, Script, calls, code

EXPERT = [code("found = probe(what=q)"), code("final_answer('expert on ' + found)")]


class Mortal(Script):
    """Ends the process at the call that ``lives`` says."""

    def __init__(self, answers, lives, **kwargs):
        super().__init__(answers, **kwargs)
        self.lives = lives

    def generate(self, *args, **kwargs):
        answer = super().generate(*args, **kwargs)
        self.lives["asked"] += 1
        if self.lives["asked"] == self.lives["die"]:
            raise Died
        return answer


class Running(Script):
    """A model that asks an agent."""

    def __init__(self, answers, ask):
        super().__init__(answers)
        self.ask = ask

    def generate(self, *args, **kwargs):
        answer = super().generate(*args, **kwargs)
        answer.content += self.ask(f"thinking {self.asked[-1]}")
        return answer


def expert_of(lives, session="one"):
    expert = CodeAgent(tools=[Probe()], model=Mortal(EXPERT, lives), name="expert", description="knows", **QUIET)
    durable_agent(expert, session_id=session)
    return lambda q: expert.run(q, additional_args={"q": q})


QUESTIONS = ["x", "x", "y"]


def in_calls(lives, policy="record", session="one"):
    boss = ToolCallingAgent(
        tools=[Probe(answer=expert_of(lives, session), name="ask")],
        model=Mortal(
            [*(calls(("1", "ask", {"what": q})) for q in QUESTIONS), calls(("2", "final_answer", {"answer": "done"}))], lives
        ),
        **QUIET,
    )
    durable_agent(boss, session_id="one", tools={"ask": policy})
    return boss.run("go"), [getattr(one, "observations", None) for one in boss.memory.steps]


def in_code(lives, policy="record", session="one"):
    steps = [*(f"s{n} = ask(what={q!r})" for n, q in enumerate(QUESTIONS)), "final_answer([s0, s1, s2])"]
    boss = CodeAgent(
        tools=[Probe(answer=expert_of(lives, session), name="ask")], model=Mortal([code(one) for one in steps], lives), **QUIET
    )
    durable_agent(boss, session_id="one", tools={"ask": policy})
    return boss.run("go")


def in_a_check(lives):
    ask = expert_of(lives)
    boss = CodeAgent(
        tools=[],
        model=Mortal([code(f"final_answer({n})") for n in range(3)], lives),
        final_answer_checks=[lambda answer, memory, agent: answer == 2 and ask("is it two?") and ask("is it two?")],
        **QUIET,
    )
    durable_agent(boss, session_id="one")
    return boss.run("go"), [str(getattr(one, "error", None)) for one in boss.memory.steps]


def in_a_callback(lives):
    ask = expert_of(lives)
    said = []
    boss = CodeAgent(
        tools=[],
        model=Mortal([code("x = 1"), code("y = 2"), code("final_answer(x + y)")], lives),
        step_callbacks=[lambda step: step.model_output and said.append(ask("same"))],
        **QUIET,
    )
    durable_agent(boss, session_id="one")
    return boss.run("go"), said


def in_a_model(lives):
    boss = CodeAgent(tools=[], model=Running([code("x = 1"), code("final_answer(x)")], expert_of(lives)), **QUIET)
    durable_agent(boss, session_id="one")
    boss.run("go")
    return [getattr(one, "model_output", None) for one in boss.memory.steps]


def in_durable_steps(lives):
    @durable(goal_id="around experts")
    def work():
        ask = expert_of(lives)
        return [step("ask", lambda q: str(ask(q)), q) for q in QUESTIONS]

    return work()


PLACES = {
    "calls": in_calls,
    "code": in_code,
    "calls of a tool that runs again": lambda lives: in_calls(lives, "rerun"),
    "code with a tool that runs again": lambda lives: in_code(lives, "rerun"),
    "calls, another session": lambda lives: in_calls(lives, session="other"),
    "code, another session": lambda lives: in_code(lives, session="other"),
    "code that runs again, another session": lambda lives: in_code(lives, "rerun", "other"),
    "a check": in_a_check,
    "a callback": in_a_callback,
    "a model": in_a_model,
    "durable steps": in_durable_steps,
}


@pytest.mark.parametrize("place", PLACES)
def test_an_agent_that_is_run_inside_is_a_part_of_what_runs_it(next_life, tmp_path, monkeypatch, place):
    def live(die, folder):
        monkeypatch.setenv("LETITLOOP_STORE", str(tmp_path / folder))
        lives = {"asked": 0, "die": die}
        try:
            return PLACES[place](lives), lives["asked"]
        except Died:
            return None, lives["asked"]
        finally:
            next_life()

    whole, asked = live(0, "whole")
    assert live(0, "whole") == (whole, 0)
    for die in range(1, asked + 1):
        assert live(die, f"killed {die}") == (None, die)
        result, again = live(0, f"killed {die}")
        assert result == whole
        assert again <= asked - die + 1
        assert live(0, f"killed {die}") == (whole, 0)


# --- calls of one answer -----------------------------------------------------------------------------------------------------


class Held(Script):
    """Answers when it may, and tells that it was asked."""

    def __init__(self, answers, inside, go_on):
        super().__init__(answers)
        self.inside, self.go_on = inside, go_on

    def generate(self, *args, **kwargs):
        self.inside.set()
        self.go_on.wait()
        return super().generate(*args, **kwargs)


def last_first(boss, came):
    """Let the call that is told A begin after another one has begun."""
    log = boss.logger.log

    def held(what, *args, **kwargs):
        text = str(getattr(what, "renderable", ""))
        if text.startswith("Calling tool"):
            came.wait() if "'A'" in text else came.set()
        return log(what, *args, **kwargs)

    boss.logger.log = held


def team(wanted, helpers, tools=()):
    boss = ToolCallingAgent(
        tools=list(tools),
        managed_agents=helpers,
        model=Script([calls(*wanted), calls(("9", "final_answer", {"answer": "done"}))]),
        **QUIET,
    )
    durable_agent(boss, session_id="team")
    return boss


COUNT = "try:\n    n = n + 1\nexcept Exception:\n    n = 1\nfinal_answer(n)"


def helper_of(name="helper", managed=()):
    return CodeAgent(
        tools=[Probe()], model=Script([code(COUNT)]), name=name, description="helps", managed_agents=list(managed), **QUIET
    )


def test_calls_of_one_managed_agent_wait_for_each_other_in_their_order(next_life):
    texts = []
    for asked in (3, 0):
        helper = helper_of()
        wanted = [(str(n), "helper", {"task": task}) for n, task in enumerate("BAC")]
        boss = team(wanted, [helper])
        assert boss.run("go") == "done"
        texts.append(boss.memory.steps[1].observations)
        assert len(helper.model.asked) == asked
        assert helper.python_executor.state["n"] == 3
        next_life()
    assert texts[0] == texts[1]
    assert [line for line in texts[0].splitlines() if line.isdigit()] == ["1", "2", "3"]


@pytest.mark.parametrize("shared", ["agent", "managed by both", "run by a tool"])
def test_the_second_call_waits_though_it_comes_first(next_life, shared):
    for asked in (2, 0):
        deep = helper_of("deep")
        ask = [code("final_answer(deep(task=str(1)))")]
        names = ["helper", "helper"]
        helpers, tools = [deep], []
        if shared == "agent":
            names = ["deep", "deep"]
        elif shared == "managed by both":
            names = ["left", "right"]
            helpers = [
                CodeAgent(tools=[], model=Script(ask), name=one, description="asks", managed_agents=[deep], **QUIET)
                for one in names
            ]
        else:
            durable_agent(deep, session_id="team")
            names = ["ask", "ask"]
            helpers, tools = [], [Probe(answer=lambda what, deep=deep: deep.run(what), name="ask")]
        word = "what" if tools else "task"
        boss = team([("1", names[0], {word: "A"}), ("2", names[1], {word: "B"})], helpers, tools)
        last_first(boss, threading.Event())
        assert boss.run("go") == "done"
        assert boss.memory.steps[1].error is None
        numbers = [line for line in boss.memory.steps[1].observations.splitlines() if line.isdigit()]
        assert numbers == ["1", "2"]
        assert len(deep.model.asked) == asked
        next_life()


def test_managed_agents_that_share_nothing_do_not_wait(next_life):
    barrier = threading.Barrier(2)

    class Meeting(Script):
        def generate(self, *args, **kwargs):
            barrier.wait()
            return super().generate(*args, **kwargs)

    helpers = [
        CodeAgent(tools=[], model=Meeting([code("final_answer(1)")]), name=one, description="helps", **QUIET)
        for one in ("left", "right")
    ]
    boss = team([("1", "left", {"task": "A"}), ("2", "right", {"task": "B"})], helpers)
    assert boss.run("go") == "done"
    assert boss.memory.steps[1].error is None


def test_an_agent_that_another_thread_runs_is_refused_to_the_caller(next_life):
    """Also where the caller's agent runs it by a tool: no model is told."""
    inside, go_on = threading.Event(), threading.Event()
    shared = CodeAgent(tools=[], model=Held([code("final_answer(1)")], inside, go_on), name="shared", description="helps", **QUIET)
    durable_agent(shared, session_id="a thread's")
    results = []
    thread = threading.Thread(target=lambda: results.append(shared.run("go")))
    thread.start()
    inside.wait()
    try:
        with pytest.raises(InvalidArgument, match="'shared' is being run already"):
            shared.run("go")
        boss = team(
            [("1", "ask", {"what": "B"}), ("2", "fail", {"what": "B"})],
            [],
            [Probe(answer=shared.run, name="ask"), Probe(answer=lambda what: 1 / 0, name="fail")],
        )
        with pytest.raises(InvalidArgument, match="'shared' is being run already"):
            boss.run("go")
        assert len(boss.model.asked) == 1
    finally:
        go_on.set()
        thread.join()
    assert results == [1]
    next_life()
    shared.model.go_on.set()
    assert boss.run("go") == "done"
    assert "<" not in str(boss.memory.steps[1].error)


def test_of_several_calls_that_fail_the_first_is_told(next_life):
    texts = []
    for first in "AB":
        came = threading.Event()

        def fail(what, first=first, came=came):
            if what == first:
                came.set()
            else:
                came.wait()
            raise ValueError(f"{what} broke")

        wanted = [("1", "probe", {"what": "A"}), ("2", "probe", {"what": "B"}), ("3", "final_answer", {"answer": "no"})]
        boss = team(wanted, [], [Probe(answer=fail)])
        assert boss.run("go") == "done"
        texts.append(str(boss.memory.steps[1].error))
        next_life()
        boss = team(wanted, [], [Probe(answer=None)])
        assert boss.run("go") == "done"
        texts.append(str(boss.memory.steps[1].error))
        assert boss.model.asked == []
        next_life()
    assert len(set(texts)) == 1
    assert "A broke" in texts[0]
