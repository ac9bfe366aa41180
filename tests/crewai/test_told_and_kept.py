"""What a user's strings say counts; what a model was told counts; and what a tool raised is told as it was."""

from __future__ import annotations

import json
import warnings

import pytest

from tests.crewai.lives import Died, asked, results, tasks
from tests.crewai.scripted import Scripted, action, call, final, text_of  # sets the environment first

# isort: split
from crewai import Crew, Process, Task
from crewai.agent.planning_config import PlanningConfig
from crewai.tasks.llm_guardrail import LLMGuardrail
from crewai.tools import tool
from pydantic import BaseModel

from letitloop import effect
from letitloop.errors import StepChanged
from letitloop_crewai.asking import _messages, _told, digest
from tests.effects.bank import Bank

pytestmark = pytest.mark.filterwarnings("default")

ADDRESSES = ["contract at 0x52aa8400098527886e0f7030069857d2e4169ee7", "contract at 0x99bb1111198527886e0f7030069857d2e4169ff8"]
ARTIFACTS = ["tool-result-" + "a" * 22, "tool-result-" + "b" * 22]


@pytest.mark.parametrize("words", [ADDRESSES, ARTIFACTS])
def test_words_of_users_are_never_taken_for_what_is_new_each_time(words):
    one, other = words
    for shape in (str, lambda w: [w], lambda w: {"q": w}, lambda w: {w: 1}, lambda w: {w}):
        assert digest(shape(one)) != digest(shape(other))
    assert _messages(one, None) != _messages(other, None)


def test_a_deferred_result_has_no_other_name_in_another_life():
    def said(name, then, user=""):
        told = f"was stored as temporary artifact `{name}` at relative file path `{name}/result.md`."
        return [
            {"role": "user", "content": f"go {user}"},
            {"role": "tool", "content": told},
            {"role": "assistant", "content": f"read {then}/result.md"},
        ]

    one, other = ARTIFACTS
    assert _messages(said(one, one), None) == _messages(said(other, other), None) == _messages(said(other, one), None)
    assert _messages(said(one, one, "tool-result-" + "c" * 22), None) != _messages(said(one, one, "tool-result-" + "d" * 22), None)


def test_a_kickoff_with_another_address_is_another(lives):
    def kickoff(q):
        crew = Crew(agents=[one := lives.agent(lambda m, a: final("done"))], tasks=tasks(one, "look"))
        return lives.begin().wrap_crew(crew).kickoff(inputs={"q": q})

    kickoff(ADDRESSES[0])
    with pytest.raises(StepChanged, match="'q' differs"):
        kickoff(ADDRESSES[1])


class Number(BaseModel):
    n: int


class Odd(Exception):
    def __init__(self, *, code):
        super().__init__(f"odd {code}")


def failing(kind):
    class Local(Exception):
        pass

    if kind == "validation":
        Number(n="abc")
    raise {"local": Local("loc"), "odd": Odd(code=3)}[kind]


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("kind", ["validation", "local", "odd"])
def test_what_a_tool_raised_is_read_as_it_was(lives, kind, native):
    seen = []

    def life(dies):
        def script(messages, asked):
            if not results(messages) and len(messages) < 3:
                return [call("look", q="x")] if native else action("look", q="x")
            seen.append(text_of(messages))
            return Died("power") if dies else final("done")

        @tool
        def look(q: str) -> str:
            """Look."""
            failing(kind)

        one = lives.agent(script, tools=[look], native=native)
        return lives.begin().wrap_crew(Crew(agents=[one], tasks=tasks(one, "look"))).kickoff()

    with pytest.raises(Died):
        life(dies=True)
    life(dies=False)
    assert seen[0] == seen[-1]


@pytest.mark.parametrize("where", ["tool", "callback"])
def test_an_effect_is_one_wherever_the_tool_is_called(lives, tmp_path, where):
    bank = Bank(str(tmp_path / "bank"), "window")

    @tool
    def pay(n: int) -> str:
        """Pay."""
        raise AssertionError("the bank pays")

    @tool
    def settle(n: int) -> str:
        """Settle."""
        return f"settled {pay.run(n=n) if where == 'tool' else n}"

    def script(messages, asked):
        return final("done") if results(messages) else [call("settle", n=1)]

    one = lives.agent(script, tools=[settle, pay], native=True)
    options = {"callback": lambda output: pay.run(n=1)} if where == "callback" else {}
    crew = Crew(agents=[one], tasks=tasks(one, "settle", **options))
    for _ in range(2):
        lives.begin(tools={"pay": effect(key="p/{n}", provider=bank)}).wrap_crew(crew).kickoff()
    assert len(bank.done()) == 1


def test_models_of_planners_and_guardrails_are_asked_once(lives):
    planner = Scripted(lambda m, a: "Plan: look.\n\nREADY: I am ready to execute the task.")
    judge = Scripted(lambda m, a: json.dumps({"valid": True, "feedback": ""}))
    dying = []

    def life(*, dies):
        def fails(output):
            dying.append(dies)
            if dies:
                raise Died("power")
            return True, output.raw

        one = lives.agent(lambda m, a: final("done"), tools=[], planning_config=PlanningConfig(llm=planner, max_attempts=1))
        task = Task(description="t", expected_output="x", agent=one, guardrails=[LLMGuardrail("be good", judge), fails])
        return lives.begin().wrap_crew(Crew(agents=[one], tasks=[task])).kickoff()

    with pytest.raises(Died):
        life(dies=True)
    counts = len(planner.asked), len(judge.asked)
    life(dies=False)
    assert counts == (len(planner.asked), len(judge.asked))
    assert all(counts)


@pytest.mark.parametrize(
    ("task", "agent", "told"),
    [
        ({"markdown": True}, {}, "markdown"),
        ({}, {"system_template": "S {{ .System }}", "prompt_template": "P {{ .Prompt }}"}, "agent system_template"),
        ({}, {"inject_date": True}, "agent inject_date"),
        ({}, {"use_system_prompt": False}, "agent use_system_prompt"),
        ({}, {"words": "only in the register"}, "tools"),
    ],
)
def test_what_a_model_is_told_otherwise_is_named(lives, task, agent, told):
    def kickoff(task, agent):
        agent = dict(agent)

        @tool
        def look(q: str) -> str:
            """Look."""
            return "x"

        look.description = agent.pop("words", look.description)
        one = lives.agent(lambda m, a: final("done"), tools=[look], **agent)
        lives.begin(on_change="raise").wrap_crew(crew := Crew(agents=[one], tasks=tasks(one, "look", **task))).kickoff()
        return asked(crew)

    assert kickoff({}, {}) == 1
    assert kickoff({}, {}) == 0
    with pytest.raises(StepChanged, match=told):
        kickoff(task, agent)


def test_another_coworker_is_named(lives):
    def kickoff(model):
        coworker = lives.agent(lambda m, a: final("done"), tools=[], role="cw")
        coworker.llm = Scripted(lambda m, a: final("done"), model=model)
        crew = Crew(
            agents=[coworker],
            tasks=[Task(description="d", expected_output="x")],
            process=Process.hierarchical,
            manager_llm=Scripted(lambda m, a: final("end")),
        )
        lives.begin(on_change="raise").wrap_crew(crew).kickoff()

    kickoff("old")
    kickoff("old")
    with pytest.raises(StepChanged, match="coworker cw"):
        kickoff("new")


def test_a_tool_that_ended_the_run_is_called_again(lives):
    pytest.importorskip("crewai.tools.tool_failure", reason="early versions of 1.15 tell models of every failure")
    calls = []

    def life():
        @tool
        def look(q: str) -> str:
            """Look."""
            calls.append(q)
            if len(calls) == 1:
                raise ConnectionError("503")
            return "it"

        look.tool_failure_policy = "raise"
        one = lives.agent(lambda m, a: final("got") if results(m) else [call("look", q="x")], tools=[look], native=True)
        return lives.begin().wrap_crew(Crew(agents=[one], tasks=tasks(one, "look"))).kickoff().raw

    with pytest.raises(Exception, match="503"):
        life()
    assert len(calls) == 1
    life()
    assert len(calls) == 2


def test_looking_at_an_agent_warns_of_nothing(lives):
    one = lives.agent(lambda m, a: final("got"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _told(None, one) == {}
