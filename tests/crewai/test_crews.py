"""Wrapped crews: what is answered from the log, what is done again, what is refused, and what is left as it was."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from types import SimpleNamespace

import pytest

from tests.crewai.lives import Died, asked, results, task_in, tasks, works
from tests.crewai.scripted import Scripted, action, call, final, prompt_of, text_of  # sets the environment first

# isort: split
from crewai import Crew, Process, Task
from crewai.tools import BaseTool, tool
from pydantic import BaseModel

from letitloop import Ledger, StepChanged, Trusted, UnknownOutcome, current_run, durable, effect, effect_context, step
from letitloop.adapters.crewai import CrewAIDurabilityHandler, wrap_crew
from letitloop.errors import ApprovalRequired, InvalidArgument, UnencodableError
from letitloop_crewai import models
from tests.effects.bank import Bank

pytestmark = pytest.mark.filterwarnings("default")


class PayArguments(BaseModel):
    number: int
    account: str


class Pay(BaseTool):
    name: str = "pay"
    description: str = "Pay."
    args_schema: type[BaseModel] = PayArguments

    def _run(self, number: int, account: Trusted[str]) -> str:
        raise AssertionError("the bank pays")


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

    agent = lives.agent(script, tools=[Pay()])
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


# --- editing -----------------------------------------------------------------------------------------------------------------


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
    bank = Bank(tmp_path / "bank")

    @tool
    def pay(number: int) -> str:
        """Pay."""
        raise AssertionError("the bank pays")

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


# --- what must reach the caller ----------------------------------------------------------------------------------------------


def unknown_crew(lives, tmp_path, **options):
    @tool
    def pay(number: int) -> str:
        """Pay."""
        raise AssertionError("the bank pays")

    def script(messages, asked):
        if "delegate" in text_of(messages) and "Current Task: boss" in prompt_of(messages):
            return action("delegate_work_to_coworker", coworker="worker", task="pay", context="now")
        return action("pay", number=1)

    agent = lives.agent(script, tools=[pay], **options.pop("agent", {}))
    bank = Bank(tmp_path / "bank", "opaque", "lost")
    task = Task(description="boss", expected_output="x", agent=None if "process" in options else agent, **options.pop("task", {}))
    if "process" in options:
        options["manager_llm"] = Scripted(script)
    crew = Crew(agents=[agent], tasks=[task], **options)
    lives.begin(tools={"pay": effect(key="n/{number}", provider=bank)}).wrap_crew(crew)
    return crew, bank


async def streamed(crew):
    async for _ in await crew.akickoff():
        pass


WAYS = {
    "kickoff": ({}, lambda crew: crew.kickoff()),
    "kickoff_async": ({}, lambda crew: asyncio.run(crew.kickoff_async())),
    "akickoff": ({}, lambda crew: asyncio.run(crew.akickoff())),
    "for_each": ({}, lambda crew: crew.kickoff_for_each([{}])),
    "akickoff_for_each": ({}, lambda crew: asyncio.run(crew.akickoff_for_each([{}]))),
    "async task": ({"task": {"async_execution": True}}, lambda crew: crew.kickoff()),
    "async task in a loop": ({"task": {"async_execution": True}}, lambda crew: asyncio.run(crew.akickoff())),
    "delegated": ({"process": Process.hierarchical}, lambda crew: crew.kickoff()),
    "limited in time": ({"agent": {"max_execution_time": 60}}, lambda crew: crew.kickoff()),
    "stream": ({"stream": True}, lambda crew: list(crew.kickoff())),
    "stream in a loop": ({"stream": True}, lambda crew: asyncio.run(streamed(crew))),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_unknown_outcome_reaches_the_caller_as_such(lives, tmp_path, way):
    options, kick = WAYS[way]
    crew, bank = unknown_crew(
        lives, tmp_path, **{name: value.copy() if isinstance(value, dict) else value for name, value in options.items()}
    )
    with pytest.raises(UnknownOutcome, match="n/1"):
        try:
            kick(crew)
        except Exception as swallowed:  # nothing that handles Exceptions may get it
            pytest.fail(f"an ordinary exception: {swallowed!r}")
    assert len(bank.requests()) == 1
    if way != "delegated":  # a manager of CrewAI's own making serves once in the oldest 1.15
        with pytest.raises(UnknownOutcome):
            kick(crew)
    assert len(bank.requests()) == 1
    outcome = {"outcome": "succeeded", "evidence": "the books", "by": "Ada", "result": {"moved": 1}}
    Ledger(store=str(lives.place)).resolve("default", "n/1", **outcome)
    for agent in crew.agents:
        agent.llm._script = lambda m, a: final("paid") if results(m) else action("pay", number=1)
    if way == "kickoff":
        assert crew.kickoff().raw == "paid"


def test_what_no_model_may_read_reaches_the_caller(lives, tmp_path):
    from letitloop import Approval

    @tool
    def pay(number: int) -> str:
        """Pay."""
        return "paid"

    agent = lives.agent(lambda m, a: action("pay", number=1), tools=[pay])
    policy = effect(key="n/{number}", approval=Approval())
    crew = lives.begin(tools={"pay": policy}).wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
    with pytest.raises(ApprovalRequired):
        crew.kickoff()
    assert len(agent.llm.asked) == 1


def test_a_result_that_cannot_be_recorded_is_told(lives):
    @tool
    def fetch(what: str) -> object:
        """Fetch."""
        return lambda: what

    agent = lives.agent(lambda m, a: action("fetch", what="a"), tools=[fetch])
    crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
    with pytest.raises(UnencodableError):
        crew.kickoff()


def test_crewais_own_checkpoints_are_refused(lives):
    agent = lives.agent(works())
    crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
    with pytest.raises(InvalidArgument, match="from_checkpoint"):
        crew.kickoff(from_checkpoint=object())


# --- steps around a task -----------------------------------------------------------------------------------------------------


def test_callbacks_and_files_are_steps_of_their_own(lives, tmp_path):
    called, down = [], [True]

    def second(output):
        called.append("crew")
        if down:
            raise Died

    for life in range(3):
        agent = lives.agent(works("a"), step_callback=lambda _: called.append("step"))
        task = Task(
            description="one", expected_output="x", agent=agent, callback=lambda _: called.append("task"), output_file="out.txt"
        )
        crew = Crew(agents=[agent], tasks=[task], task_callback=second)
        lives.begin().wrap_crew(crew)
        if life:
            assert crew.kickoff().raw == "done 'one'"
            assert (tmp_path / "out.txt").read_text() == "done 'one'"
            (tmp_path / "out.txt").unlink()  # the next life writes it again
        else:
            with pytest.raises(Died):
                crew.kickoff()
            down.clear()
    assert called == ["step", "step", "task", "crew", "crew"]
    assert lives.done == ["a"]


def test_a_callback_that_both_name_is_called_once(lives):
    called = []
    agent = lives.agent(works())
    crew = Crew(agents=[agent], tasks=tasks(agent, "one"), task_callback=lambda _: called.append(1))
    lives.begin().wrap_crew(crew).kickoff()
    assert called == [1]


def test_kickoff_callbacks_are_done_once(lives):
    called = []

    def before(inputs):
        called.append("before")
        return {**inputs, "number": len(called)}

    def after(output):
        called.append("after")
        output.raw += "!"
        return output

    for _ in range(2):
        agent = lives.agent(works())
        crew = Crew(
            agents=[agent],
            tasks=tasks(agent, "number {number}"),
            before_kickoff_callbacks=[before],
            after_kickoff_callbacks=[after],
        )
        assert lives.begin().wrap_crew(crew).kickoff({}).raw == "done 'number 1'!"
    assert called == ["before", "after"]


def test_memory_and_knowledge_are_asked_once(lives):
    asked_of = []

    class Memory(SimpleNamespace):
        read_only = False

        def recall(self, query, limit):
            asked_of.append("recall")
            return [SimpleNamespace(format=lambda: f"remembered {len(asked_of)}")]

        def extract_memories(self, content):
            asked_of.append("extract")
            return ["fact"]

        def remember_many(self, contents, agent_role=None, root_scope=None):
            asked_of.append(("save", *contents))
            return []

        def drain_writes(self):
            if asked_of[-1] == ("save", "fact"):  # CrewAI does it at the end of a kickoff too
                asked_of.append("drained")

    class Knowledge(SimpleNamespace):
        def query(self, query, **options):
            asked_of.append("knowledge")
            return [{"content": f"known {len(asked_of)}", "score": 1.0}]

    prompts = []
    for life in range(2):

        def script(messages, asked, life=life):
            prompts.append(prompt_of(messages))
            if "Current Task: two" in prompt_of(messages) and not life:
                return Died()
            return final("done")

        agent = lives.agent(script, tools=[])
        object.__setattr__(agent, "memory", Memory())
        object.__setattr__(agent, "knowledge", Knowledge())
        object.__setattr__(agent, "_get_knowledge_search_query", lambda prompt, task: "what")
        object.__setattr__(agent, "set_knowledge", lambda crew_embedder=None: None)
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one", "two")))
        object.__setattr__(crew, "_prepare_tools", lambda agent, task, tools: tools)
        if life:
            crew.kickoff()
        else:
            with pytest.raises(Died):
                crew.kickoff()
    assert "remembered" in prompts[-1]
    assert "known" in prompts[-1]
    assert prompts[1] == prompts[2]
    once = ["recall", "knowledge", "extract", ("save", "fact"), "drained"]
    assert asked_of == [*once, *once]


def test_tools_of_an_mcp_server_are_called_once(lives, tmp_path):
    from crewai.mcp import MCPServerStdio

    server = tmp_path / "server.py"
    server.write_text(
        "from mcp.server.fastmcp import FastMCP\n"
        "server = FastMCP('shop')\n"
        "@server.tool()\n"
        "def order(item: str) -> str:\n"
        "    'Order an item.'\n"
        f"    open({str(tmp_path / 'orders')!r}, 'a').write(item + '\\n')\n"
        "    return f'ordered {item}'\n"
        "server.run()\n"
    )
    import sys

    for life in range(2):

        def script(messages, asked, life=life):
            if not results(messages):
                name = re.search(r"only one name of \[(\S+)\]", text_of(messages))[1]
                return action(name, item="tea")
            return final(text_of(messages).rpartition("Observation:")[2].strip()[:11]) if life else Died()

        agent = lives.agent(script, tools=[], mcps=[MCPServerStdio(command=sys.executable, args=[str(server)])])
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
        if life:
            assert crew.kickoff().raw == "ordered tea"
        else:
            with pytest.raises(Died):
                crew.kickoff()
    assert (tmp_path / "orders").read_text() == "tea\n"


def test_results_that_crewai_keeps_for_later_tasks_survive(lives):
    for life in range(2):

        def script(messages, asked, life=life):
            if "Current Task: two" in prompt_of(messages) and not life:
                return Died()
            return works("a")(messages, asked)

        agent = lives.agent(script, cache=True)
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one", "two"), cache=True))
        if life:
            crew.kickoff()
        else:
            with pytest.raises(Died):
                crew.kickoff()
    assert lives.done == ["a"]  # as stock: the second task finds the first one's result


def test_steps_of_the_users_own_are_steps_inside_tools(lives):
    stepped = []

    @tool
    def fetch(what: str) -> str:
        """Fetch."""
        step("part", stepped.append, what)
        if len(stepped) < 2 and what == "die":
            raise SystemExit
        return f"{what} in {current_run().goal_id}"

    agent = lives.agent(lambda m, a: final(text_of(m)[-400:]) if results(m) else action("fetch", what="it"), tools=[fetch])
    crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
    assert "it in crewai:lives" in crew.kickoff().raw
    assert stepped == ["it"]


def test_a_crew_in_a_durable_function_is_a_part_of_its_run(lives):
    ran = []

    @durable(goal_id="outer", store=str(lives.place), on_complete="restart")
    def outer(fail):
        agent = lives.agent(works("a"))
        crew = lives.begin().wrap_crew(Crew(agents=[agent], tasks=tasks(agent, "one")))
        raw = crew.kickoff().raw
        ran.append(asked(crew))
        if len(ran) == 1:
            raise Died
        return raw

    with pytest.raises(Died):
        outer(1)
    assert outer(1) == "done 'one'"
    assert ran == [2, 0]


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
