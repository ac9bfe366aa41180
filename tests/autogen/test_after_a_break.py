"""Teams whose run came to no end of its own, for whatever reason: every later run is as long as it would be without it."""

from __future__ import annotations

import asyncio
import sys

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response, TerminationCondition
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import HandoffMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_core import CancellationToken

from letitloop.adapters.autogen import AutoGenStateSerializer
from letitloop.errors import Halt
from tests.autogen.scripted import Scripted

HANG = 30
"""Seconds after which something hangs; nothing is measured."""


class Stop(Halt):
    """What no agent and no team may swallow."""


class Breaking(BaseChatAgent):
    """Hands over to the next one; the first time that it is asked, it does something else."""

    produced_message_types = (HandoffMessage,)

    def __init__(self, name, to, first=None):
        super().__init__(name, "Hands over.")
        self.to = to
        self.first = first

    async def on_messages(self, messages, cancellation_token):
        first, self.first = self.first, None
        if first is not None:
            await first()
        return Response(chat_message=HandoffMessage(content="over", target=self.to, source=self.name))

    async def on_reset(self, cancellation_token):
        pass


def three(first=None):
    return [Breaking(one, to, first if one == "b" else None) for one, to in ("ab", "bc", "ca")]


def graph(*edges):
    def make(participants):
        found = {one.name: one for one in participants}
        builder = DiGraphBuilder()
        for one in participants:
            builder.add_node(one)
        for source, target in edges:
            builder.add_edge(found[source], found[target])
        return GraphFlow(participants, graph=builder.build())

    return make


def model(messages, settings):
    """Select whoever was handed over to."""
    history = str(messages[0].content).partition("history:")[2]
    return "abc"[history.count("over") % 3]


TEAMS = {
    "turns": lambda agents: RoundRobinGroupChat(agents, max_turns=4),
    "messages": lambda agents: RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(6)),
    "function": lambda agents: SelectorGroupChat(
        agents, Scripted(model), selector_func=lambda thread: "abc"[sum(one.source != "user" for one in thread) % 3], max_turns=4
    ),
    "model": lambda agents: SelectorGroupChat(
        agents,
        Scripted(model),
        selector_prompt="{roles} {participants} history:{history}",
        allow_repeated_speaker=True,
        max_turns=4,
    ),
    "swarm": lambda agents: Swarm(agents, max_turns=4),
    "chain": graph("ab", "bc"),
    "fan": graph("ab", "ac"),
    "nested": lambda agents: RoundRobinGroupChat(
        [RoundRobinGroupChat(agents, max_turns=4), Breaking("d", "a")], name="outer", max_turns=2
    ),
}


def raising(error):
    async def first():
        raise error

    return first


told = pytest.mark.skipif(sys.version_info < (3, 11), reason="a task does not tell whether it is being cancelled")
CUTS = ("task", "token", "reader")
BREAKS = {
    "error": (lambda: raising(RuntimeError("broken")), RuntimeError),
    "halt": (lambda: raising(Stop("broken")), Stop),
    "out of nowhere": (lambda: raising(asyncio.CancelledError()), asyncio.CancelledError),
}


async def lengths(team):
    found = []
    for _ in range(2):
        result = await asyncio.wait_for(team.run(task="go"), HANG)
        found.append((len(result.messages), result.stop_reason))
    return found


async def break_off(team, how, reached):
    """Run a team, and end that in the middle of the second agent's turn."""
    if how in BREAKS:
        with pytest.raises(BREAKS[how][1]):
            await asyncio.wait_for(team.run(task="go"), HANG)
        return
    if how == "reader":
        stream = team.run_stream(task="go")
        async for item in stream:
            if item.source == "a":
                break
        await asyncio.wait_for(reached.wait(), HANG)
        await asyncio.wait_for(stream.aclose(), HANG)
        return
    token = CancellationToken()
    run = asyncio.ensure_future(team.run(task="go", cancellation_token=token))
    await asyncio.wait_for(reached.wait(), HANG)
    token.cancel() if how == "token" else run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, HANG)


@pytest.mark.parametrize("reset", [False, True], ids=["goes on", "reset"])
@pytest.mark.parametrize("how", [pytest.param(one, marks=told) if "nowhere" in one else one for one in (*BREAKS, *CUTS)])
@pytest.mark.parametrize("kind", TEAMS)
async def test_later_runs_are_as_long_as_ever(tmp_path, kind, how, reset):
    expected = await lengths(TEAMS[kind](three()))
    assert all(length > 3 for length, _ in expected)
    for _ in range(2):
        reached = asyncio.Event()

        async def wait(reached=reached):
            reached.set()
            await asyncio.Event().wait()

        team = TEAMS[kind](three(BREAKS[how][0]() if how in BREAKS else wait))
        with AutoGenStateSerializer(session_id="broken", store=tmp_path / "store") as durability:
            durability.wrap_team(team)
            await break_off(team, how, reached)
            if reset:
                await team.reset()
            assert await lengths(team) == expected


class Asking(Breaking):
    def __init__(self, client):
        super().__init__("b", "c")
        self.client = client

    async def on_messages(self, messages, cancellation_token):
        await self.client.create([])
        return await super().on_messages(messages, cancellation_token)


@pytest.mark.parametrize("kind", TEAMS)
async def test_a_model_that_fails_once(tmp_path, kind):
    """The failure is on record; the next life has it again."""
    found = []
    for life in range(2):
        client = Scripted(lambda m, s: "fine" if len(client.asked) > 1 else RuntimeError("overloaded"))  # noqa: B023 - this life's
        a, _, c = three()
        team = TEAMS[kind]([a, Asking(client), c])
        with AutoGenStateSerializer(session_id="failing", store=tmp_path / "store") as durability:
            durability.wrap_team(team)
            with pytest.raises(RuntimeError, match="overloaded"):
                await asyncio.wait_for(team.run(task="go"), HANG)
            found.append(await lengths(team))
        assert bool(client.asked) == (not life)
    assert found == [await lengths(TEAMS[kind](three()))] * 2


# --- a CancelledError out of nowhere -----------------------------------------------------------------------------------------


class Cancelling(TerminationCondition):
    terminated = False

    async def __call__(self, messages):
        raise asyncio.CancelledError("of its own")

    async def reset(self):
        pass


def cancels(*_):
    return asyncio.CancelledError("of its own")


async def chooses(thread):
    raise cancels()


PARTS = {
    "model": lambda: RoundRobinGroupChat([AssistantAgent("a", Scripted(cancels))], max_turns=1),
    "stream": lambda: RoundRobinGroupChat([AssistantAgent("a", Scripted(cancels), model_client_stream=True)], max_turns=1),
    "nested": lambda: RoundRobinGroupChat(
        [RoundRobinGroupChat([AssistantAgent("a", Scripted(cancels))], max_turns=1)], name="outer", max_turns=1
    ),
    "selector": lambda: SelectorGroupChat(three(), Scripted(cancels), max_turns=2),
    "streaming selector": lambda: SelectorGroupChat(three(), Scripted(cancels), model_client_streaming=True, max_turns=2),
    "function": lambda: SelectorGroupChat(three(), Scripted(cancels), selector_func=chooses, max_turns=2),
    "condition": lambda: RoundRobinGroupChat(three(), termination_condition=Cancelling(), max_turns=2),
    "agent": lambda: AssistantAgent("a", Scripted(cancels)),
}


@told
@pytest.mark.parametrize("part", PARTS)
async def test_what_cancels_itself_does_not_hang(tmp_path, part):
    one = PARTS[part]()
    with AutoGenStateSerializer(session_id="cancels", store=tmp_path / "store") as durability:
        durability.wrap_agent(one) if isinstance(one, BaseChatAgent) else durability.wrap_team(one)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(one.run(task="go"), HANG)
