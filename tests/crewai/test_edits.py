"""Programs that were edited, or say what they do not mean: what runs again, what is refused before it is done, what is told."""

from __future__ import annotations

import logging
import re

import pytest

from tests.crewai.lives import mcp_shop, paying, results, task_in, tasks, works
from tests.crewai.scripted import action, final, prompt_of  # sets the environment first

# isort: split
from crewai import Crew, Process, Task
from crewai.tasks.conditional_task import ConditionalTask
from crewai.tools import tool

from letitloop import StepChanged, effect
from letitloop.errors import InvalidArgument
from tests.effects.bank import Bank

pytestmark = pytest.mark.filterwarnings("default")


# --- what runs again ---------------------------------------------------------------------------------------------------------


def edited(lives, words, *, names=None, caplog=None, options=None, context=True, tools=None):
    """Kick a crew of these tasks off; return what it came to, and which tasks really asked."""
    agents = [lives.agent(lambda m, a: final(f"did {task_in(m)}")) for _ in words]
    made = [
        Task(description=one, expected_output="x", agent=agent, name=name, **({} if context else {"context": None}))
        for one, agent, name in zip(words, agents, names or [None] * len(words), strict=True)
    ]
    crew = lives.begin(**(options or {})).wrap_crew(Crew(agents=agents, tasks=made))
    output = crew.kickoff()
    return [one.raw for one in output.tasks_output], [one for one, agent in zip(words, agents, strict=True) if agent.llm.asked]


def test_unchanged_tasks_are_reused_and_changed_ones_run_again_with_what_depends_on_them(lives, caplog):
    caplog.set_level(logging.INFO, "letitloop")
    names = ["first", "second", "third"]
    edited(lives, ["a", "b", "c"], names=names)
    caplog.clear()
    outputs, ran = edited(lives, ["a", "changed", "c"], names=names)
    assert (outputs, ran) == (["did a", "did changed", "did c"], ["changed", "c"])
    told = [one.getMessage() for one in caplog.records if "task '" in one.getMessage()]
    assert [re.sub(" of run [^ ]*", "", one) for one in told] == [
        "letitloop: task 'first' is answered from the log",
        "letitloop: task 'second' is executed again: description changed",
        "letitloop: task 'third' is executed again: context changed",
    ]


def test_a_change_without_names_is_another_task(lives):
    edited(lives, ["a", "b", "c"])
    assert edited(lives, ["a", "changed", "c"]) == (["did a", "did changed", "did c"], ["changed", "c"])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_inserted_task_never_gets_anothers_output(lives, place):
    words = ["a", "b"]
    edited(lives, words)
    words.insert(place, "new")
    outputs, ran = edited(lives, words)
    assert outputs == [f"did {one}" for one in words]
    assert ran == words[place:]  # those after it have another context


def test_tasks_in_another_order_keep_their_outputs(lives):
    edited(lives, ["a", "b"], context=False)
    assert edited(lives, ["b", "a"], context=False) == (["did b", "did a"], [])


def test_equal_tasks_are_two(lives):
    assert edited(lives, ["a", "a"]) == (["did a", "did a"], ["a", "a"])
    assert edited(lives, ["a", "a"])[1] == []


def test_changes_raise_or_are_passed_over_as_asked(lives):
    edited(lives, ["a", "b"], names=["first", "second"])
    with pytest.raises(StepChanged, match="'description' differs"):
        edited(lives, ["a", "changed"], names=["first", "second"], options={"on_change": "raise"})
    with pytest.raises(StepChanged, match="no task of crew crew is that one any more"):
        edited(lives, ["a"], names=["first"], options={"on_change": "raise"})
    outputs, ran = edited(lives, ["a", "changed"], names=["first", "second"], options={"on_change": "reuse"})
    assert (outputs, ran) == (["did a", "did b"], [])


@pytest.mark.parametrize("edit", ["named", "unnamed", "gone", "upstream"])
def test_a_task_that_had_effects_is_not_discarded(lives, tmp_path, edit):
    bank, pay = Bank(tmp_path / "bank"), paying()

    def kick(*words, name=None):
        agent = lives.agent(
            lambda m, a: action("pay", number=7) if "pay" in prompt_of(m) and not results(m) else final(prompt_of(m)), tools=[pay]
        )
        made = [Task(description=one, expected_output="x", agent=agent, name=name if "pay" in one else None) for one in words]
        policy = {"pay": effect(key="invoice/{number}", provider=bank)}
        return lives.begin(tools=policy).wrap_crew(Crew(agents=[agent], tasks=made)).kickoff()

    name = "payment" if edit == "named" else None
    kick("ask", "pay it", name=name)
    later = {"named": ("ask", "pay now"), "unnamed": ("ask", "pay now"), "gone": ("ask",), "upstream": ("ask again", "pay it")}
    with pytest.raises(StepChanged, match="invoice%2F7"):
        kick(*later[edit], name=name)
    kick("ask", "pay it", name=name)  # put back as it was, it goes on
    assert len(bank.requests()) == 1


def test_other_inputs_are_an_error_that_names_them(lives):
    for life in range(2):
        agent = lives.agent(works())
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "about {topic} of {year}")))
        if life:
            with pytest.raises(StepChanged, match="'topic' differs") as raised:
                crew.kickoff({"topic": "b", "year": 1})
            assert raised.value.arguments == ("topic",)
        else:
            crew.kickoff({"topic": "a", "year": 1})


# --- what is refused or told -------------------------------------------------------------------------------------------------


@pytest.fixture
def kick(lives, tmp_path):
    """Kick a crew off whose task "pay it" pays, and return which tasks asked a model."""
    bank, pay = Bank(tmp_path / "bank"), paying()

    def kick(*words, on_change="rerun", contexts=(), agents=(), left_out=(), **options):
        ran = kick.ran = []

        def script(messages, asked):
            said = re.search("Current Task: (.*)", prompt_of(messages))[1]
            ran.append(said)
            return action("pay", number=7) if "pay" in said and not results(messages) else final(f"did {said}")

        made = []
        for number, one in enumerate(words):
            agent = lives.agent(script, tools=[pay])
            for name, value in dict(agents).get(number, {}).items():
                setattr(agent, name, value)
            context = {"context": [made[at] for at in dict(contexts)[number]]} if number in dict(contexts) else {}
            kind = {"condition": lambda _, one=one: one not in left_out} if one.startswith("if ") else {}
            made.append((ConditionalTask if kind else Task)(description=one, expected_output="x", agent=agent, **context, **kind))
        policy = {"pay": effect(key="invoice/{number}", provider=bank)}
        crew = Crew(agents=[one.agent for one in made], tasks=made, **options)
        lives.begin(tools=policy, on_change=on_change).wrap_crew(crew).kickoff()
        return ran

    kick.ran = []
    kick.bank, kick.pay = bank, pay
    return kick


def test_a_change_that_would_void_a_payment_is_refused_before_anything_is_run(kick):
    kick("ask", "check", "pay it")
    for words in (("ask again", "check", "pay it"), ("new", "ask", "check", "pay it"), ("ask", "check", "new", "pay it")):
        with pytest.raises(StepChanged, match="invoice%2F7") as raised:
            kick(*words)
        assert kick.ran == []
        told = str(raised.value)
        assert "No task was executed, and every record of it is kept" in told
        assert "it is not on record" in told
        assert raised.value.step.startswith("task ")
        assert not raised.value.step.endswith("asked")
    assert kick("ask", "check", "pay it") == []
    assert len(kick.bank.requests()) == 1


def test_what_a_payment_does_not_depend_on_may_change(kick):
    apart = {1: [], 2: [1]}
    kick("ask", "check", "pay it", contexts=apart)
    assert kick("ask again", "check", "pay it", contexts=apart) == ["ask again"]
    assert kick("ask again", "check", "pay it", "thank", contexts=apart) == ["thank"]
    with pytest.raises(StepChanged, match="'check anew': it is not on record"):
        kick("ask again", "check anew", "pay it", contexts=apart)
    assert kick.ran == []


def test_what_of_the_agent_changed_is_named(kick):
    kick("ask", "pay it")
    with pytest.raises(StepChanged, match="'agent goal' differs from what is on record") as raised:
        kick("ask", "pay it", agents={1: {"goal": "earn"}})
    assert raised.value.arguments == ("agent goal",)
    with pytest.raises(StepChanged, match="'ask': 'agent role', 'agent backstory' differ"):
        kick("ask", "pay it", agents={0: {"backstory": "short", "role": "boss"}})
    assert kick.ran == []


def test_what_of_the_agent_changed_is_told(lives, caplog):
    for goal, model in (("work", "a"), ("rest", "a"), ("rest", "b")):
        agent = lives.agent(lambda m, a: final("done"))
        agent.goal, agent.llm.model = goal, model
        lives.begin().wrap_crew(Crew(agents=[agent], tasks=[Task(description="one", expected_output="x", agent=agent)])).kickoff()
    told = [one.getMessage() for one in caplog.records if "executed again" in one.getMessage()]
    assert [one.partition(": ")[2].partition("again: ")[2] for one in told] == ["agent goal changed", "model name changed"]


def test_a_conditional_task_that_was_left_out_is_no_new_one(kick):
    kick("ask", "if asked", "pay it", left_out=["if asked"])
    assert kick("ask", "if asked", "pay it", left_out=["if asked"]) == []


def test_when_it_is_seen_late_it_says_what_was_done(kick):
    @tool
    def more(what: str) -> str:
        """More."""
        return what

    apart = {1: []}
    kick("ask", "pay it", contexts=apart)
    with pytest.raises(StepChanged, match="invoice%2F7") as raised:  # which tools a task gets is known when it is its turn
        kick("ask again", "pay it", contexts=apart, agents={1: {"tools": [more]}})
    assert kick.ran == ["ask again"]
    assert "Executed before it were: 'ask again' (not on record). It was not" in str(raised.value)
    assert raised.value.arguments == ("tools",)


@pytest.mark.parametrize("mode", ["raise", "reuse"])
def test_other_modes(kick, mode):
    kick("ask", "check")
    if mode == "reuse":
        assert kick("new", "ask", "check", on_change=mode) == ["new"]
        return
    with pytest.raises(StepChanged, match="on_change='raise' asks for that to be told"):
        kick("new", "ask", "check", on_change=mode)
    assert kick.ran == []


def test_what_answered_in_this_process_counts_as_recorded(lives, kick, monkeypatch):
    """A kickoff that is interrupted between finished tasks goes on in the same process, though a later one has had effects."""
    from letitloop_crewai import tasks

    kick("ask", "pay it")
    stock, interrupted = tasks.thaw, []

    def thaw(*args):
        if not interrupted:
            interrupted.append(1)
            raise KeyboardInterrupt
        return stock(*args)

    monkeypatch.setattr(tasks, "thaw", thaw)
    agent = lives.agent(lambda m, a: final("never"), tools=[])
    made = [Task(description=one, expected_output="x", agent=agent) for one in ("ask", "pay it")]
    crew = lives.begin(on_change="rerun").wrap_crew(Crew(agents=[agent], tasks=made))
    for task in made:
        task.tools = [kick.pay]
    with pytest.raises(KeyboardInterrupt):
        crew.kickoff()
    assert [one.raw for one in crew.kickoff().tasks_output] == ["did ask", "did pay it"]
    assert agent.llm.asked == []


# --- names of tools ----------------------------------------------------------------------------------------------------------


def shop(lives, policies, where="agent", **options):
    @tool("Send Mail")
    def send(to: str) -> str:
        """Send."""
        return f"mailed {to}"

    agent = lives.agent(lambda m, a: final("done"), tools=[send] if where == "agent" else [])
    task = Task(description="one", expected_output="x", agent=agent, tools=[send] if where == "task" else [])
    crew = lives.begin(tools=policies, **options).wrap_crew(Crew(agents=[agent], tasks=[task]))
    if where == "later":
        agent.tools = [send]
    if where == "manager":
        boss = lives.agent(lambda m, a: final("done"), tools=[], role="boss")
        crew = Crew(agents=[agent], tasks=[task], process=Process.hierarchical, manager_agent=boss)
        agent.tools = [send]
        lives.open.wrap_crew(crew)
    return crew


POLICY = effect(key="mail/{to}")


@pytest.mark.parametrize("where", ["agent", "task", "later", "manager"])
@pytest.mark.parametrize("name", ["send_mial", "Sendmail", "send_mails", "send mail"])
def test_a_misspelt_name_is_refused(lives, name, where):
    crew = shop(lives, {name: POLICY}, where)
    with pytest.raises(InvalidArgument, match="is that the one meant"):
        crew.kickoff()
    assert all(not agent.llm.asked for agent in crew.agents)


@pytest.mark.parametrize("name", ["send_mail", "Send Mail"])
def test_a_name_that_is_meant_is_not(lives, name, caplog):
    assert shop(lives, {name: POLICY}).kickoff().raw == "done"
    assert "guards nothing" not in caplog.text


def test_a_name_of_nothing_is_told(lives, caplog):
    crew = shop(lives, {"launch_rocket": POLICY, "send_mail": "rerun", "whatever": "record"})
    crew.kickoff()
    crew.kickoff()
    told = [one.getMessage() for one in caplog.records if "guards nothing" in one.getMessage()]
    assert len(told) == 1
    assert "'launch_rocket'" in told[0]


@pytest.mark.parametrize("name", ["ordr", "launch_rocket", "order"])
def test_names_of_a_servers_tools_are_known_when_it_tells_them(lives, tmp_path, name, caplog):
    agent = lives.agent(lambda m, a: final("done"), tools=[], mcps=[mcp_shop(tmp_path / "orders")])
    crew = lives.begin(tools={name: "rerun"}).wrap_crew(
        Crew(agents=[agent], tasks=[Task(description="one", expected_output="x", agent=agent)])
    )
    if name == "ordr":
        with pytest.raises(InvalidArgument, match="'order' has no policy: is that the one meant"):
            crew.kickoff()
        assert agent.llm.asked == []
        return
    crew.kickoff()
    assert ("guards nothing" in caplog.text) == (name == "launch_rocket")
