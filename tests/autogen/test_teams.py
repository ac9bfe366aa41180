"""Wrapped teams, and what stock AutoGen does not survive: cancelled and failing tool calls, exceptions that lose their class."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent, SocietyOfMindAgent
from autogen_agentchat.base import Response
from autogen_agentchat.conditions import (
    ExternalTermination,
    FunctionalTermination,
    MaxMessageTermination,
    TextMentionTermination,
    TimeoutTermination,
    TokenUsageTermination,
)
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken, SingleThreadedAgentRuntime
from autogen_core.tools import TextResultContent, ToolResult, Workbench
from autogen_ext.models.replay import ReplayChatCompletionClient

from letitloop import Ledger, StepChanged, UnknownOutcome, effect, step
from letitloop.adapters.autogen import AutoGenStateSerializer
from letitloop.runs.history import list_runs
from letitloop.store.directory import DirectoryStore
from letitloop_autogen.streams import _let_go
from tests.autogen.scripted import INFO, Scripted, call, results, said
from tests.effects.bank import Bank

HANG = 30
"""Seconds after which something hangs; nothing is measured."""


class Died(Exception):
    """Stands for the death of a program in the middle of a model call."""


def hearing(dies_at=None):
    def script(messages, settings):
        heard = len(messages)
        return Died("died") if heard == dies_at else f"heard {heard}"

    return script


def outermost(kind, agent):
    """The agent alone, in a team, or in a team in a team."""
    if kind == "agent":
        return agent
    team = RoundRobinGroupChat([agent], max_turns=1)
    if kind == "team":
        return team
    if kind == "nested":
        return RoundRobinGroupChat([team], max_turns=1, name="outer")
    if kind == "mind":
        return SocietyOfMindAgent("mind", team, ReplayChatCompletionClient(["summary"]))
    boss = Scripted(lambda m, s: "done" if results(m) else [call(agent.name, task="go")])
    return AssistantAgent("boss", boss, tools=[AgentTool(agent)])


KINDS = ["agent", "team", "nested", "mind", "tool"]


def wrapped(durability, runner):
    return durability.wrap_agent(runner) if isinstance(runner, BaseChatAgent) else durability.wrap_team(runner)


# --- resuming ----------------------------------------------------------------------------------------------------------------


async def test_counters_of_conditions_and_turns_are_those_of_the_uninterrupted_run(begin):
    for dies_at in (4, None):
        client = Scripted(hearing(dies_at))
        condition = MaxMessageTermination(7) & TokenUsageTermination(max_total_token=100) | TextMentionTermination("never")
        team = RoundRobinGroupChat([AssistantAgent(one, client) for one in "abc"], termination_condition=condition)
        begin().wrap_team(team)
        if dies_at:
            with pytest.raises(RuntimeError, match="died"):
                await team.run(task="go")
            assert len(client.asked) == 3
        else:
            result = await team.run(task="go")
    assert [one.source for one in result.messages] == ["user", *"abcabc"]
    assert len(client.asked) == 4


async def test_a_second_run_of_a_team(begin):
    for life in range(2):
        client = Scripted(hearing())
        team = begin().wrap_team(RoundRobinGroupChat([AssistantAgent(one, client) for one in "ab"], max_turns=3))
        answers = [said(await team.run(task=task))[-1] for task in ("one", "two", None)]
        assert [one[2] for one in answers] == ["heard 4", "heard 8", "heard 11"]
        assert len(client.asked) == (0 if life else 9)


@pytest.mark.parametrize("same", [False, True], ids=["each its own task", "one task"])
async def test_runs_begun_at_once_keep_their_places(begin, tmp_path, same):
    """Teams of one name, whichever thread opens the log first; by ``run`` and by ``run_stream``."""

    async def streamed(team, task):
        return [one async for one in team.run_stream(task=task)][-1]

    votes = []
    for life in range(6):
        durability = begin(store=tmp_path / "votes")
        clients = [Scripted(lambda m, s, n=number: f"vote of team {n}") for number in range(8)]
        teams = [durability.wrap_team(RoundRobinGroupChat([AssistantAgent("voter", one)], max_turns=1)) for one in clients]
        tasks = ["vote" if same else f"vote {number}" for number in range(8)]
        runs = [team.run(task=task) if task[-1] in "246" else streamed(team, task) for team, task in zip(teams, tasks, strict=True)]
        votes.append([result.messages[-1].content for result in await asyncio.gather(*runs)])
        assert life == 0 or not any(client.asked for client in clients)
    assert votes == [[f"vote of team {number}" for number in range(8)]] * 6


async def test_what_is_not_the_same_each_time_is_recorded(begin):
    chosen, ended = [], []

    def choose(thread):
        chosen.append(len(thread))
        return "ab"[len(chosen) % 2]

    def candidates(thread):
        raise AssertionError("the selector chooses")

    def ends(messages):
        ended.append(len(messages))
        return len(ended) > 3

    for _ in range(2):
        client = Scripted(hearing())
        external = ExternalTermination()
        team = SelectorGroupChat(
            [AssistantAgent(one, client) for one in "ab"],
            client,
            selector_func=choose,
            candidate_func=candidates,
            allow_repeated_speaker=True,
            termination_condition=FunctionalTermination(ends) | external | TimeoutTermination(3600),
        )
        begin().wrap_team(team)
        result = await team.run(task="go")
        assert [one.source for one in result.messages] == ["user", "b", "a", "b"]
    assert len(chosen) == 3
    external.set()
    assert "External" in (await team.run()).stop_reason


async def test_a_runtime_of_the_users_own(begin):
    for life in range(2):
        runtime = SingleThreadedAgentRuntime()
        runtime.start()
        client = Scripted(hearing())
        condition = MaxMessageTermination(5)
        agents = [AssistantAgent(one, client) for one in "ab"]
        team = begin().wrap_team(RoundRobinGroupChat(agents, termination_condition=condition, runtime=runtime))
        result = await asyncio.wait_for(team.run(task="go"), HANG)
        assert [one.content for one in result.messages[1:]] == ["heard 2", "heard 3", "heard 4", "heard 5"]
        assert len(client.asked) == (0 if life else 4)
        await runtime.stop()


class Slow(Scripted):
    """Answers when the gate is open."""

    gate = asyncio.Event()

    async def create(self, messages, **settings):
        await self.gate.wait()
        return await super().create(messages, **settings)


async def open_after_b(team, gate):
    async for item in team.run_stream(task="begin"):
        if isinstance(item, TextMessage) and item.source == "b":
            gate.set()


async def test_agents_that_run_side_by_side_end_in_the_recorded_order(begin):
    """a has one call to make and b many, and a comes to its end last; in the next life a could be first, and must not."""
    prompts = []
    for life in range(2):
        gate = Slow.gate = asyncio.Event()

        def work(number: int) -> str:
            """Work."""
            return "worked"

        def steps(messages, settings):
            return "b" if results(messages) == 4 else [call("work", number=1)]

        def last(messages, settings, life=life):
            prompts.append([one.content for one in messages])
            return "done" if life else Died("died")

        start = AssistantAgent("start", Scripted(lambda m, s: "go"))
        a = AssistantAgent("a", Slow(lambda m, s: "a"))
        b = AssistantAgent("b", Scripted(steps), tools=[work], max_tool_iterations=9)
        d = AssistantAgent("d", Scripted(last))
        builder = DiGraphBuilder()
        for node in (start, a, b, d):
            builder.add_node(node)
        builder.add_edge(start, a).add_edge(start, b).add_edge(a, d).add_edge(b, d)
        team = begin().wrap_team(GraphFlow(builder.get_participants(), graph=builder.build()))
        if life:
            await asyncio.wait_for(team.run(task="begin"), HANG)
        else:
            with pytest.raises(RuntimeError, match="died"):
                await open_after_b(team, gate)
    assert prompts[0][-2:] == ["b", "a"]
    assert prompts[1] == prompts[0]


async def test_a_graph_with_a_cycle(begin):
    for life in range(2):
        client = Scripted(lambda m, s: "again" if len(m) < 8 else "good")
        writer, critic = AssistantAgent("writer", client), AssistantAgent("critic", client)
        end = AssistantAgent("finish", client)
        builder = DiGraphBuilder()
        builder.add_node(writer).add_node(critic).add_node(end)
        builder.add_edge(writer, critic)
        builder.add_edge(critic, writer, condition="again").add_edge(critic, end, condition="good")
        builder.set_entry_point(writer)
        team = GraphFlow(builder.get_participants(), graph=builder.build(), termination_condition=MaxMessageTermination(20))
        result = await begin().wrap_team(team).run(task="go")
        assert [one.source for one in result.messages[-2:]] == ["critic", "finish"]
        assert len(client.asked) == (0 if life else len(result.messages) - 1)


# --- what stops a run --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unknown_outcome_reaches_the_caller_and_no_model(begin, tmp_path, kind):
    bank = Bank(tmp_path / "bank", "opaque", "lost")

    def pay(number: int) -> str:
        """Pay."""

    def work(number: int) -> str:
        """Work."""
        return "worked"

    client = Scripted(lambda m, s: "done" if results(m) else [call("pay", number=1), call("work", number=1)])
    policy = {"pay": effect(key="invoice/{number}", provider=bank)}
    for _ in range(2):
        agent = AssistantAgent("payer", client, tools=[pay, work], max_tool_iterations=3)
        runner = wrapped(begin(tools=policy), outermost(kind, agent))
        with pytest.raises(UnknownOutcome, match="invoice/1"):
            await asyncio.wait_for(runner.run(task="go"), HANG)
        assert len(client.asked) == 1  # it was never told
    assert len(bank.requests()) == 1
    begin().close()
    Ledger().resolve("default", "invoice/1", outcome="succeeded", evidence="the books", by="Ada", result="paid by hand")
    agent = AssistantAgent("payer", client, tools=[pay, work], max_tool_iterations=3)
    result = await wrapped(begin(tools=policy), outermost(kind, agent)).run(task="go")
    assert len(client.asked) == 2
    assert result.messages


def orchestrate(messages, settings):
    if "json" not in str(messages[-1].content).lower():
        return "facts"
    answers = {
        "is_request_satisfied": any("paid" in str(one.content) for one in messages),
        "is_progress_being_made": True,
        "is_in_loop": False,
        "instruction_or_question": "pay",
        "next_speaker": "payer",
    }
    return json.dumps({name: {"reason": "so it is", "answer": answer} for name, answer in answers.items()})


def graph_of(*agents):
    builder = DiGraphBuilder()
    for agent in agents:
        builder.add_node(agent)
    builder.add_edge(agents[0], agents[1]).add_edge(agents[0], agents[2])
    return GraphFlow(builder.get_participants(), graph=builder.build())


TEAMS = {
    "selector": lambda payer, other: SelectorGroupChat([payer, other], Scripted(lambda m, s: "payer"), max_turns=1),
    "selector_func": lambda payer, other: SelectorGroupChat(
        [payer, other], Scripted(None), selector_func=lambda thread: "payer", max_turns=1
    ),
    "swarm": lambda payer, other: Swarm([payer, other], max_turns=1),
    "magentic": lambda payer, other: MagenticOneGroupChat([payer, other], Scripted(orchestrate), max_turns=3),
    "graph": lambda payer, other: graph_of(AssistantAgent("first", Scripted(hearing())), payer, other),
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("kind", TEAMS)
async def test_an_unknown_outcome_leaves_every_kind_of_team(begin, tmp_path, kind, streams):
    """With its own class and its fields, once the action is sent and again in the next life, until somebody has looked."""
    bank = Bank(tmp_path / "bank", "opaque", "lost")

    def pay(number: int) -> str:
        """Pay."""

    async def run(team):
        if streams:
            return [item async for item in team.run_stream(task="go")][-1]
        return await team.run(task="go")

    def build(durability):
        payer = AssistantAgent("payer", client, description="Pays.", tools=[pay], max_tool_iterations=3)
        return durability.wrap_team(TEAMS[kind](payer, AssistantAgent("other", Scripted(hearing()), description="Other.")))

    client = Scripted(lambda m, s: "it is paid" if results(m) else [call("pay", number=1)])
    policy = {"pay": effect(key="invoice/{number}", provider=bank)}
    for _ in range(2):
        with pytest.raises(UnknownOutcome, match="invoice/1") as caught:
            await asyncio.wait_for(run(build(begin(tools=policy))), HANG)
        assert caught.value.key == "invoice/1"
        assert len(client.asked) == 1  # no model was told
    assert len(bank.requests()) == 1
    begin().close()
    Ledger().resolve("default", "invoice/1", outcome="succeeded", evidence="the books", by="Ada", result="paid by hand")
    result = await asyncio.wait_for(run(build(begin(tools=policy))), HANG)
    assert len(client.asked) == 2
    assert "it is paid" in " ".join(one.to_text() for one in result.messages)


async def test_candidates_are_recorded(begin):
    said, asked = [], []

    def candidates(thread):
        asked.append(len(thread))
        return ["b"] if len(asked) % 2 else ["a", "b"]

    for life in range(2):
        client, select = Scripted(hearing()), Scripted(lambda m, s: "a")
        team = SelectorGroupChat(
            [AssistantAgent(one, client) for one in "ab"],
            select,
            candidate_func=candidates,
            allow_repeated_speaker=True,
            max_turns=4,
        )
        begin().wrap_team(team)
        said.append([one.source for one in (await team.run(task="go")).messages])
        assert len(client.asked) == (0 if life else 4)
    assert said[0] == said[1] == ["user", "b", "a", "b", "a"]
    assert len(asked) == 4


@pytest.mark.parametrize("kind", KINDS)
async def test_a_changed_prompt_reaches_the_caller(begin, kind, caplog):
    for prompt in ("Be kind.", "Be rude."):
        client = Scripted(hearing())
        runner = wrapped(begin(), outermost(kind, AssistantAgent("speaker", client, system_message=prompt)))
        if prompt == "Be kind.":
            await runner.run(task="go")
        else:
            with pytest.raises(StepChanged, match="'system_message'"):
                await asyncio.wait_for(runner.run(task="go"), HANG)
            assert client.asked == []
            tracebacks = [one for one in caplog.records if one.name == "autogen_core" and one.exc_info]
            assert tracebacks == []  # the caller has it


async def test_a_halt_of_a_custom_agents_step_leaves_a_team(begin):
    class Stepping(BaseChatAgent):
        produced_message_types = (TextMessage,)

        def __init__(self, number):
            super().__init__("stepping", "Steps.")
            self.number = number

        async def on_messages(self, messages, cancellation_token):
            return Response(chat_message=TextMessage(content=step("count", str, self.number), source=self.name))

        async def on_reset(self, cancellation_token):
            pass

    await begin().wrap_team(RoundRobinGroupChat([Stepping(1)], max_turns=1)).run(task="go")
    with pytest.raises(StepChanged, match="count"):
        await asyncio.wait_for(begin().wrap_team(RoundRobinGroupChat([Stepping(2)], max_turns=1)).run(task="go"), HANG)


class Failing(Workbench):
    """A workbench that raises, which stock AutoGen does not survive."""

    def __init__(self, where, error):
        self.where = where
        self.error = error
        self.listed = 0

    async def list_tools(self):
        self.listed += 1
        if self.where == "list" and self.listed > 1:
            raise self.error
        return [{"name": "work", "description": "", "parameters": {"type": "object", "properties": {}}}]

    async def call_tool(self, name, arguments=None, cancellation_token=None, call_id=None):
        if self.where == "call":
            raise self.error
        return ToolResult(name=name, result=[TextResultContent(content="worked")])

    async def start(self):
        pass

    stop = reset = start

    async def save_state(self):
        return {}

    async def load_state(self, state):
        pass


class Odd(BaseException):
    """No Exception."""


@pytest.mark.parametrize("where", ["call", "list"])
@pytest.mark.parametrize(
    "error", [RuntimeError("broken"), asyncio.CancelledError("broken"), Odd("broken")], ids=lambda one: type(one).__name__
)
@pytest.mark.parametrize("kind", ["agent", "team"])
async def test_a_workbench_that_raises_does_not_hang(begin, kind, where, error):
    client = Scripted(lambda m, s: "done" if results(m) else [call("work")])
    agent = AssistantAgent("worker", client, workbench=Failing(where, error), max_tool_iterations=3)
    with pytest.raises(type(error), match=r"broken|cancelled"):
        await asyncio.wait_for(wrapped(begin(), outermost(kind, agent)).run(task="go"), HANG)
    assert len(client.asked) == 1


@pytest.mark.parametrize("kind", ["agent", "team", "nested", "tool"])
@pytest.mark.parametrize("sync", [True, False])
async def test_a_cancelled_tool_call_does_not_hang(begin, kind, sync):
    started, release, did = threading.Event(), threading.Event(), []
    token = CancellationToken()

    def hold(number: int) -> str:
        """Hold."""
        started.set()
        release.wait(HANG)
        did.append(number)
        return "held"

    async def ahold(number: int) -> str:
        """Hold."""
        started.set()
        await asyncio.sleep(HANG if not release.is_set() else 0)
        did.append(number)
        return "held"

    tool = hold if sync else ahold
    tool.__name__ = "hold"

    def build(durability):
        client = Scripted(lambda m, s: "done" if results(m) else [call("hold", number=1)])
        agent = AssistantAgent("holder", client, tools=[tool], max_tool_iterations=3)
        return wrapped(durability, outermost(kind, agent))

    durability = begin()
    run = asyncio.ensure_future(build(durability).run(task="go", cancellation_token=token))
    await asyncio.to_thread(started.wait, HANG)
    token.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, HANG)
    release.set()
    if sync:  # nothing stops a thread: what it did in the end is on record
        await asyncio.gather(*_let_go, return_exceptions=True)
        assert did == [1]
    result = await asyncio.wait_for(build(begin()).run(task="go"), HANG)
    assert result.messages[-1].content.endswith("done")
    assert did == [1]


async def test_a_cancelled_task(begin):
    """The task that awaits the run is cancelled, not its token."""
    asked = asyncio.Event()

    class Waiting(Scripted):
        async def create(self, messages, **settings):
            asked.set()
            await asyncio.Event().wait()

    agent = begin().wrap_agent(AssistantAgent("agent", Waiting(hearing())))
    run = asyncio.ensure_future(agent.run(task="go"))
    await asked.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, HANG)
    agent = begin().wrap_agent(AssistantAgent("agent", Scripted(hearing())))
    assert (await agent.run(task="go")).messages[-1].content == "heard 2"


# --- the objects -------------------------------------------------------------------------------------------------------------


async def test_teams_are_what_they_were(begin):
    def build():
        model = ReplayChatCompletionClient(["a", "b"], model_info=INFO)
        agents = [AssistantAgent(one, model) for one in "ab"]
        condition = MaxMessageTermination(3) | TimeoutTermination(60)
        return SelectorGroupChat(agents, model, termination_condition=condition)

    team = build()
    participants = list(team._participants)
    before = dict(vars(team))
    durability = begin()
    agent = durability.wrap_agent(team._participants[0])
    assert durability.wrap_team(team) is team
    assert durability.wrap_team(team) is team
    assert team._participants[0] is agent
    assert isinstance(team, SelectorGroupChat)
    assert team.dump_component() == build().dump_component()
    durability.unwrap()
    assert vars(team) == before
    assert team._participants == participants
    assert type(agent._model_client) is ReplayChatCompletionClient
    assert "run" not in vars(agent)


async def test_a_session_is_finished_when_its_runs_are(tmp_path):
    store = DirectoryStore(tmp_path)
    for answers in ([], ["hi"]):  # a model that fails, and the next life
        durability = AutoGenStateSerializer(session_id="listed", store=store)
        agent = durability.wrap_agent(AssistantAgent("clerk", ReplayChatCompletionClient(answers)))
        if answers:
            await agent.run(task="hello")
        else:
            with pytest.raises(Exception, match="No more mock responses"):
                await agent.run(task="hello")
        durability.close()
        (run,) = list_runs(store)
        assert run.status == ("finished" if answers else "interrupted")
