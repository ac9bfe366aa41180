"""What a user's strings say counts; what a model was told counts; and what a tool raised is told as it was."""

from __future__ import annotations

import json
import warnings

import pytest

from tests.crewai.lives import Died, asked, results, tasks
from tests.crewai.scripted import Scripted, action, call, final, text_of  # sets the environment first

# isort: split
from crewai import Agent, Crew, Process, Task
from crewai.agent.planning_config import PlanningConfig
from crewai.flow import start
from crewai.tasks.llm_guardrail import LLMGuardrail
from crewai.tools import tool
from pydantic import BaseModel

from letitloop import effect, step
from letitloop.errors import StepChanged
from letitloop_crewai.asking import _messages, _told, digest
from tests.crewai.flows import Quiet
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


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("way", ["raises", "returns"])
def test_a_tool_that_ended_the_run_is_called_again(lives, way, native):
    failures = pytest.importorskip("crewai.tools.tool_failure", reason="early versions of 1.15 tell models of every failure")
    calls = []

    def life():
        @tool
        def look(q: str) -> str:
            """Look."""
            calls.append(q)
            if len(calls) > 2:
                return "it"
            if way == "raises":
                raise ConnectionError("503")
            return failures.ToolFailure(message="503")

        look.tool_failure_policy = "raise"

        def script(messages, asked):
            if results(messages):
                return final("got")
            return [call("look", q="x")] if native else action("look", q="x")

        one = lives.agent(script, tools=[look], native=native)
        return lives.begin().wrap_crew(Crew(agents=[one], tasks=tasks(one, "look"))).kickoff().raw

    for tried in (1, 2):
        with pytest.raises(Exception, match="503"):
            life()
        assert len(calls) == tried
    for _ in range(2):
        assert life().endswith("got")
        assert len(calls) == 3


@pytest.mark.parametrize("way", ["raises", "returns"])
def test_a_tools_failure_that_a_flow_went_on_from_stays(handlers, way):
    failures = pytest.importorskip("crewai.tools.tool_failure", reason="early versions of 1.15 tell models of every failure")
    calls, said, down = [], [], [True]

    class Going(Quiet):
        @start()
        def run(self):
            @tool
            def look(q: str) -> str:
                """Look."""
                calls.append(q)
                if way == "raises":
                    raise ConnectionError("503")
                return failures.ToolFailure(message="503", code="busy", details={"wait": 3})

            look.tool_failure_policy = "raise"
            llm = Scripted(lambda *_: [call("look", q="x")], native=True)
            one = Agent(role="w", goal="g", backstory="b", llm=llm, tools=[look])
            crew = handler.wrap_crew(Crew(agents=[one], tasks=tasks(one, "look")))
            with pytest.raises(failures.ToolExecutionFailedError) as caught:
                crew.kickoff()
            said.append(caught.value.record.failure.model_dump())
            step("after", lambda: None)
            if down:
                raise Died
            return "went on"

    handler = handlers()
    with pytest.raises(Died):
        handler.wrap_flow(Going()).kickoff()
    down.clear()
    handler = handlers()
    assert handler.wrap_flow(Going()).kickoff() == "went on"
    assert said[0] == said[1]
    assert calls == ["x"]


@pytest.mark.parametrize("kind", ["task", "list", "agent"])
def test_the_objection_that_ended_the_run_is_not_the_last_word(lives, handlers, kind):
    """The next life asks the guardrail again what it was asked last; no answer of a model is thrown away."""
    looked, asked, strict = [], [], [True]

    def guardrail(output):
        """Look."""
        looked.append(output.raw)
        return (False, "more") if strict or len(looked) < 2 else (True, output)

    def script(messages, _):
        asked.append(1)
        return final(f"answer {len(asked)}")

    def life(retries=1):
        if kind == "agent":

            class One(Quiet):
                @start()
                def run(self):
                    one = Agent(role="w", goal="g", backstory="b", llm=Scripted(script), guardrail=guardrail)
                    one.guardrail_max_retries = retries
                    return one.kickoff("do it").raw

            return handlers().wrap_flow(One()).kickoff()
        one = lives.agent(script)
        options = {"guardrails": [guardrail]} if kind == "list" else {"guardrail": guardrail}
        crew = Crew(agents=[one], tasks=tasks(one, "look", guardrail_max_retries=retries, **options))
        return lives.begin().wrap_crew(crew).kickoff().raw

    for _ in range(2):
        with pytest.raises(Exception, match="after 1 retries"):
            life()
        assert len(asked) == 2
    assert looked == ["answer 1", "answer 2", "answer 2"]
    with pytest.raises(Exception, match="after 2 retries"):
        life(retries=2)
    assert len(asked) == 3
    strict.clear()
    for _ in range(2):
        assert life(retries=2) == "answer 3"
    assert len(asked) == 3
    assert looked[-2:] == ["answer 3", "answer 3"]


def test_looking_at_an_agent_warns_of_nothing(lives):
    one = lives.agent(lambda m, a: final("got"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _told(None, one) == {}
