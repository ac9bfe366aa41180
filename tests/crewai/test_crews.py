"""Wrapped crews: what is answered from the log, what is done again, and what is left as it was."""

from __future__ import annotations

import os

import pytest

from tests.crewai.lives import Died, Pay, asked, results, tasks, works
from tests.crewai.scripted import action, call, final, prompt_of, text_of  # sets the environment first

# isort: split
from crewai import Crew, Task
from crewai.tools import tool
from pydantic import BaseModel

from letitloop import effect, effect_context
from letitloop.adapters.crewai import CrewAIDurabilityHandler, wrap_crew
from letitloop.errors import InvalidArgument
from letitloop_crewai import models
from tests.effects.bank import Bank

pytestmark = pytest.mark.filterwarnings("default")


class Answer(BaseModel):
    number: int
    parts: tuple[int, ...] = (1, 2)


# --- going on ----------------------------------------------------------------------------------------------------------------


def test_a_kickoff_that_was_completed_answers_from_the_log(lives, monkeypatch):
    outputs = []
    for life in range(2):
        monkeypatch.setattr(models, "_counted", set())  # as if each life were a process
        agent = lives.agent(lambda m, a: final('{"number": 3}') if "count" in prompt_of(m) else works("a")(m, a))
        typed = Task(description="count", expected_output="x", agent=agent, output_pydantic=Answer)
        crew = Crew(agents=[agent], tasks=[*tasks(agent, "look"), typed])
        lives.begin().wrap_crew(crew)
        output = crew.kickoff()
        outputs.append((output.model_dump(), output.pydantic, crew.usage_metrics, [one.pydantic for one in output.tasks_output]))
        assert asked(crew) == (0 if life else 3)
        assert [one.output is not None for one in crew.tasks] == [True, True]
    assert outputs[0] == outputs[1]
    assert outputs[1][1] == Answer(number=3)
    assert outputs[1][2].successful_requests == 3
    assert lives.done == ["a"]


def test_a_kickoff_that_died_goes_on_where_it_died(lives):
    for life in range(2):
        agent = lives.agent(lambda m, a, life=life: Died() if results(m) == 2 and not life else works("a", "b")(m, a))
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
        if life:
            assert crew.kickoff().raw == "done 'one'"
        else:
            with pytest.raises(Died):
                crew.kickoff()
    assert (lives.done, asked(crew)) == (["a", "b"], 1)


def test_one_that_failed_goes_on_in_the_same_process_too(lives):
    down = [True]
    agent = lives.agent(lambda m, a: Died() if results(m) == 1 and down else works("a")(m, a))
    crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
    with pytest.raises(Died):
        crew.kickoff()
    down.clear()
    assert crew.kickoff().raw == "done 'one'"
    assert lives.done == ["a"]
    assert crew.usage_metrics.successful_requests == 2  # each call once, although the log answered one in the same process
    crew.kickoff()  # the next one is another one
    assert lives.done == ["a", "a"]


def test_the_same_call_twice_is_two_calls_and_both_replay(lives):
    for life in range(2):
        agent = lives.agent(
            lambda m, a, life=life: Died() if results(m) == 4 and not life else works("a", "b", "a", "b")(m, a), max_iter=30
        )
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
        if life:
            crew.kickoff()
        else:
            with pytest.raises(Died):
                crew.kickoff()
    assert lives.done == ["a", "b", "a", "b"]


def test_an_effect_happens_once_for_its_key(lives, tmp_path):
    bank = Bank(tmp_path / "bank")

    @tool
    def pay(number: int, amount: int) -> str:
        """Pay."""
        raise AssertionError("the bank pays")

    for life in range(2):
        script = lambda m, a, life=life: (  # noqa: E731
            Died() if results(m) == 1 and not life else final("paid") if results(m) else action("pay", number=1, amount=2)
        )
        agent = lives.agent(script, tools=[pay])
        crew = lives.begin(tools={"pay": effect(key="n/{number}", provider=bank)}).wrap_crew(
            Crew(agents=[agent], tasks=tasks(agent, "one"))
        )
        if life:
            assert crew.kickoff().raw == "paid"
        else:
            with pytest.raises(Died):
                crew.kickoff()
    assert len(bank.requests()) == 1


def test_a_trusted_parameter_is_not_shown_to_the_model(lives, tmp_path):
    bank, shown = Bank(tmp_path / "bank"), []

    def script(messages, asked):
        shown.append(text_of(messages))
        return final("paid") if results(messages) else action("pay", number=1)

    agent = lives.agent(script, tools=[Pay(banked=True)])
    policy = effect(key="{account}/{number}", provider=bank)
    crew = lives.begin(tools={"pay": policy}).wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
    with effect_context(account="ours"):
        assert crew.kickoff().raw == "paid"
    assert "account" not in shown[0]
    assert bank.done()[0]["arguments"] == {"number": 1, "account": "ours"}


def test_what_a_decorated_function_does_is_its_effect(lives, tmp_path):
    bank = Bank(tmp_path / "bank")

    @tool
    @effect(key="n/{number}", provider=bank)
    def pay(number: int) -> str:
        """Pay."""
        raise AssertionError("the bank pays")

    agent = lives.agent(lambda m, a: final("paid") if results(m) else action("pay", number=1), tools=[pay])
    crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one", "two")))
    assert crew.kickoff().raw == "paid"
    assert len(bank.requests()) == 1


def test_a_pure_tool_is_done_again(lives):
    for _ in range(2):
        agent = lives.agent(lambda m, a: Died() if results(m) else works("a")(m, a))
        crew = lives.begin(tools={"work": "rerun"}).wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
        with pytest.raises(Died):
            crew.kickoff()
    assert lives.done == ["a", "a"]


def test_a_failing_tool_is_history(lives):
    tried = []

    @tool
    def fail(what: str) -> str:
        """Fail."""
        tried.append(what)
        raise KeyError(what)

    texts = []
    for life in range(2):

        def script(messages, asked, life=life):
            if not results(messages):
                return action("fail", what="it")
            texts.append(text_of(messages))
            return final("sad") if life else Died()

        agent = lives.agent(script, tools=[fail])
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
        if life:
            assert crew.kickoff().raw == "sad"
        else:
            with pytest.raises(Died):
                crew.kickoff()
    assert tried == ["it"]
    assert texts[0] == texts[1]


# --- what CrewAI does again without a crash ----------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [False, True], ids=["words", "native"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["stock", "wrapped"])
def test_in_process_repeats_are_guarded(lives, native, wrapped):
    sent, down = [], []

    @tool
    def send(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        raise TimeoutError("no answer")

    def raising(messages, asked):
        return final("done") if results(messages) else [call("send", to="ada")] if native else action("send", to="ada")

    def crew(script, tools):
        agent = lives.agent(script, tools=tools, native=native)
        crew = Crew(agents=[agent], tasks=tasks(agent, "mail"), cache=False)
        return lives.begin(auto_resume=False).wrap_crew(crew) if wrapped else crew

    crew(raising, [send]).kickoff()
    assert len(sent) == (1 if wrapped or native else 6)

    def failing(messages, asked):
        if not results(messages):
            return [call("work", what="a")] if native else action("work", what="a")
        if len(down) < 2:
            down.append(1)
            return RuntimeError("the model is down")
        return final("done")

    made = crew(failing, None)
    made.kickoff()
    assert (len(lives.done), asked(made)) == ((1, 4) if wrapped else (3, 6))


# --- objects -----------------------------------------------------------------------------------------------------------------


def test_what_is_shared_with_a_crew_that_is_not_wrapped_is_left_alone(lives):
    agent = lives.agent(works("a"))
    wrapped = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
    other = Crew(agents=[agent], tasks=tasks(agent, "one"))
    wrapped.kickoff()
    other.kickoff()
    other.kickoff()
    assert lives.done == ["a", "a", "a"]


def test_wrapping_is_done_once_and_taken_back(lives):
    agent = lives.agent(works("a"))
    task = tasks(agent, "one")[0]
    before = [dict(vars(one)) for one in (agent.llm, task, agent.tools[0])]
    crew = Crew(agents=[agent], tasks=[task])
    handler = lives.begin()
    assert handler.wrap_crew(crew) is handler.wrap_crew(crew) is crew
    other = CrewAIDurabilityHandler("another", store=str(lives.place))
    with pytest.raises(InvalidArgument, match="'lives' already"):
        other.wrap_crew(crew)
    second = other.wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "two")))
    handler.unwrap()
    assert "kickoff" not in vars(crew)
    second.kickoff()  # the shared ones are still held by the other
    other.unwrap()
    other.close()
    assert [
        {name: one for name, one in vars(now).items() if name in was}
        for now, was in zip((agent.llm, task, agent.tools[0]), before, strict=True)
    ]
    assert not [name for name in vars(agent.llm) if name in ("call", "acall")]
    assert not hasattr(agent.tools[0].func, "__letitloop_wraps__")
    assert "_execute_core" not in vars(task)
    crew.kickoff()
    assert lives.done == ["a", "a"]


def test_the_short_form_and_the_older_words(lives):
    agent = lives.agent(works("a"))
    crew = Crew(agents=[agent], tasks=tasks(agent, "one"))
    assert wrap_crew(crew, session_id="short", wal_dir=str(lives.place)) is wrap_crew(crew, session_id="short") is crew
    crew.kickoff()
    assert any("short" in name for name in os.listdir(lives.place / "runs"))
    with pytest.raises(InvalidArgument, match="they mean the same"):
        CrewAIDurabilityHandler("x", store="a", wal_dir="b")
    with pytest.raises(InvalidArgument, match="which is no crew"):
        CrewAIDurabilityHandler("x").wrap_crew(agent)
    with pytest.raises(InvalidArgument, match="policy of tool 'a'"):
        CrewAIDurabilityHandler("x", tools={"a": "sometimes"})


def test_without_auto_resume_each_process_begins_anew(lives):
    for _ in range(2):
        agent = lives.agent(works("a"))
        lives.begin(auto_resume=False).wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one"))).kickoff()
    assert lives.done == ["a", "a"]


def test_keys_and_random_ids_are_never_written(lives):
    agent = lives.agent(works("a"))
    agent.llm.api_key = "sk-SECRET"
    agent.llm.base_url = "https://SECRET.example"
    crew = Crew(agents=[agent], tasks=tasks(agent, "one"))
    lives.begin().wrap_crew(crew).kickoff()
    lives.end()
    written = b"".join(path.read_bytes() for path in lives.place.rglob("*") if path.is_file())
    assert b"SECRET" not in written
    assert b"worked on a" in written
    for one in (crew.id, crew.tasks[0].id, agent.id, agent.fingerprint.uuid_str):
        assert str(one).encode() not in written


def test_the_event_bus_is_not_needed(lives):
    from crewai.events.event_bus import crewai_event_bus

    with crewai_event_bus.scoped_handlers():
        for life in range(2):
            agent = lives.agent(works("a"))
            crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
            assert crew.kickoff().raw == "done 'one'"
            assert asked(crew) == (0 if life else 2)
