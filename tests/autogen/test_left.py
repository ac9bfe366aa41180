"""Calls that an agent of the user's begins and leaves: the faster of two answers counts, or a timeout runs out."""

from __future__ import annotations

import asyncio

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import UserMessage
from autogen_core.tools import FunctionTool, StaticWorkbench

from letitloop import StepChanged
from letitloop_autogen import left
from tests.autogen.inside import HANG, Died, Mortal, fate


class Slow(Mortal):
    """A model that never answers what is slow."""

    def __init__(self):
        super().__init__(lambda messages, settings: f"heard {messages[-1].content[-12:]}")
        self.begun = []
        self.reached = asyncio.Event()

    async def create(self, messages, **settings):
        self.begun.append(str(messages[-1].content))
        if "slow" in self.begun[-1]:
            self.reached.set()
            await asyncio.Event().wait()
        await self.reached.wait()  # the slow one is under way before a fast one is answered
        return await super().create(messages, **settings)


async def look(what: str) -> str:
    """Look."""
    if what == "slow":
        await asyncio.Event().wait()
    return f"saw {what}"


class Leaving(BaseChatAgent):
    produced_message_types = (TextMessage,)

    def __init__(self, client, way):
        super().__init__("leaving", "Leaves calls.")
        self.client = client
        self.bench = StaticWorkbench([FunctionTool(look, "Look")])
        self.helpers = {text: AssistantAgent(f"helper_{text}", client) for text in ("slow", "fast")}
        self.way = way

    async def ask(self, text):
        return (await self.client.create([UserMessage(content=text, source="u")])).content

    async def call(self, text):
        return (await self.bench.call_tool("look", {"what": text})).to_text()

    async def run_helper(self, text):
        return (await self.helpers[text].run(task=text)).messages[-1].content

    async def on_messages(self, messages, token):
        return Response(chat_message=TextMessage(content=await self.way(self), source=self.name))

    async def on_reset(self, token):
        pass


def hedge(ask, *, cancels=True):
    async def way(agent):
        tasks = [asyncio.ensure_future(getattr(agent, ask)(text)) for text in ("slow", "fast")]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in pending if cancels else ():
            one.cancel()
        return done.pop().result()

    return way


async def timeout(agent):
    try:
        return await asyncio.wait_for(agent.ask("slow"), 0.05)
    except asyncio.TimeoutError:
        return await agent.ask("fast")


WAYS = {
    "hedged models": hedge("ask"),
    "hedged tools": hedge("call"),
    "hedged agents": hedge("run_helper"),
    "models that are not waited for": hedge("ask", cancels=False),
    "timeout": timeout,
}


async def live(world, way, dies_after=None, **options):
    world.end()
    durability, model = world.begin(**options), Slow()
    if way == WAYS["hedged tools"]:
        model.reached.set()
    if dies_after is not None:
        fate.append(dies_after)
    team = RoundRobinGroupChat([Leaving(model, way), AssistantAgent("other", model)], max_turns=4)
    try:
        result = await asyncio.wait_for(durability.wrap_team(team).run(task="go"), HANG)
        return [one.to_text() for one in result.messages], model.begun
    finally:
        model.reached.set()


@pytest.mark.parametrize("way", WAYS)
async def test_what_was_left_is_left_again(world, way):
    """Killed at each model call, too; a finished run asks nothing at all."""
    expected, begun = await live(world, WAYS[way], session_id="whole")
    answered = [one for one in begun if "slow" not in one]
    assert await live(world, WAYS[way], session_id="whole") == (expected, [])
    for dies_after in range(len(answered)):
        options = {"session_id": f"dies {dies_after}"}
        with pytest.raises(Died):
            await live(world, WAYS[way], dies_after, **options)
        said, again = await live(world, WAYS[way], **options)
        assert said == expected
        assert [one for one in again if "slow" not in one] == answered[dies_after:]
        assert await live(world, WAYS[way], **options) == (expected, [])


async def test_what_is_left_no_more_is_told(world, monkeypatch):
    monkeypatch.setattr(left, "_PATIENCE", 0.05)
    await live(world, timeout)

    async def waits(agent):
        return await agent.ask("slow")

    with pytest.raises(StepChanged, match="not on record"):
        await live(world, waits)


async def test_another_call_of_a_finished_run_is_told_at_once(world):
    await live(world, timeout)

    async def asks_more(agent):
        return f"{await timeout(agent)} {await agent.ask('something new')}"

    with pytest.raises(StepChanged):
        await live(world, asks_more)
