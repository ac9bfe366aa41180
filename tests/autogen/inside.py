"""Agents that a recorded call runs, the programs that have them asked, and their deaths."""

from __future__ import annotations

import asyncio

from autogen_agentchat.agents import (
    AssistantAgent,
    BaseChatAgent,
    SocietyOfMindAgent,
)
from autogen_agentchat.base import Response
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken
from autogen_core.model_context import BufferedChatCompletionContext, UnboundedChatCompletionContext
from autogen_core.models import AssistantMessage, UserMessage

from letitloop import step
from letitloop.adapters.autogen import AutoGenStateSerializer
from letitloop.errors import Halt
from tests.autogen.scripted import Scripted, call, results

HANG = 30
"""Seconds after which something hangs; nothing is measured."""

ASKED = 2
"""How often the boss asks its tool."""


class Died(Halt):
    """Stands for the death of a program in the middle of a model call: no tool and no team survives it."""


fate: list[int] = []
"""After how many model calls the program dies."""


class Mortal(Scripted):
    async def create(self, messages, **settings):
        if fate:
            fate[0] -= 1
            if fate[0] < 0:
                raise Died
        return await super().create(messages, **settings)


def recall(messages, settings):
    """Say all that one was told, and what one said."""
    return f"[{len(messages)} {' '.join(str(one.content)[:40] for one in messages if one.type == 'UserMessage')}]"


def assistant(name="expert", **settings):
    return AssistantAgent(name, Mortal(recall), **settings)


class Historian(BaseChatAgent):
    """An agent of the user's: with a context, and no ``save_state`` of its own."""

    produced_message_types = (TextMessage,)

    def __init__(self, name):
        super().__init__(name, "Remembers.")
        self.client = Mortal(recall)
        self.context = UnboundedChatCompletionContext()

    async def on_messages(self, messages, cancellation_token):
        for one in messages:
            await self.context.add_message(UserMessage(content=one.to_text(), source="user"))
        answer = (await self.client.create(await self.context.get_messages())).content
        await self.context.add_message(AssistantMessage(content=answer, source=self.name))
        return Response(chat_message=TextMessage(content=answer, source=self.name))

    async def on_reset(self, cancellation_token):
        await self.context.clear()


class Saver(Historian):
    """One that counts as well, and says so when its state is saved."""

    def __init__(self, name):
        super().__init__(name)
        self.turns = 0

    async def on_messages(self, messages, cancellation_token):
        self.turns += 1
        response = await super().on_messages(messages, cancellation_token)
        response.chat_message.content += f" turn {self.turns}"
        return response

    async def save_state(self):
        return {"turns": self.turns}

    async def load_state(self, state):
        self.turns = state["turns"]


class Forgetful(Historian):
    """One that counts, and does not say so."""

    def __init__(self, name):
        super().__init__(name)
        self.log = []

    async def on_messages(self, messages, cancellation_token):
        self.log.append(len(messages))
        return await super().on_messages(messages, cancellation_token)


def graph():
    one, two = assistant("one"), assistant("two")
    builder = DiGraphBuilder()
    builder.add_node(one).add_node(two).add_edge(one, two)
    return GraphFlow([one, two], graph=builder.build())


def society():
    inner = RoundRobinGroupChat([assistant("one"), assistant("two")], name="inner", max_turns=3)
    return SocietyOfMindAgent("expert", team=inner, model_client=Mortal(recall))


EXPERTS = {
    "agent": assistant,
    "buffered": lambda: assistant(model_context=BufferedChatCompletionContext(3)),
    "agent with an agent tool": lambda: AssistantAgent(
        "expert",
        Mortal(lambda m, s: recall(m, s) if m[-1].type != "UserMessage" else [call("helper", task=m[-1].content)]),
        tools=[AgentTool(assistant("helper"))],
        reflect_on_tool_use=True,
    ),
    "own agent": lambda: Historian("expert"),
    "own agent with a state": lambda: Saver("expert"),
    "society": society,
    "round robin": lambda: RoundRobinGroupChat([assistant("one"), Saver("two")], max_turns=3),
    "selector": lambda: SelectorGroupChat(
        [assistant("one"), assistant("two")],
        Mortal(lambda m, s: "one" if str(m).count("[") % 2 else "two"),
        allow_repeated_speaker=True,
        max_turns=3,
    ),
    "swarm": lambda: Swarm([assistant("one", handoffs=["two"]), assistant("two")], max_turns=2),
    "graph": graph,
    "team in a team": lambda: RoundRobinGroupChat(
        [RoundRobinGroupChat([assistant("one"), assistant("two")], name="inner", max_turns=3), assistant("three")], max_turns=3
    ),
}


async def by_run(expert, text):
    return (await expert.run(task=text)).messages[-1].to_text()


async def by_stream(expert, text):
    async for item in expert.run_stream(task=text):
        last = item
    return last.messages[-1].to_text()


async def by_stream_left_early(expert, text):
    async for item in expert.run_stream(task=text):
        if item.source == "expert":
            return item.to_text()
    raise AssertionError("it says nothing")


async def by_message(expert, text):
    return (await expert.on_messages([TextMessage(content=text, source="user")], CancellationToken())).chat_message.to_text()


async def with_a_reset(expert, text):
    if text == "q1":
        await expert.on_reset(CancellationToken())
    return await by_run(expert, text)


async def with_a_reset_alone(expert, text):
    if text != "q1":
        return await by_run(expert, text)
    await expert.on_reset(CancellationToken())
    return "reset"


async def with_a_state(expert, text):
    before = await expert.save_state()
    answer = await by_run(expert, text)
    if text == "q1":
        await expert.load_state(before)
    return answer


async def by_step(expert, text):
    return await step("ask", by_run, expert, text)


WAYS = {
    one.__name__: one
    for one in (by_run, by_stream, by_stream_left_early, by_message, with_a_reset, with_a_reset_alone, with_a_state)
}


def in_tool(expert, way):
    async def ask(q: str) -> str:
        """Ask the expert."""
        return await way(expert, q)

    return [ask]


def in_thread(expert, way):
    def ask(q: str) -> str:
        """Ask the expert, on an event loop of another thread."""
        return asyncio.run(way(expert, q))

    return [ask]


def boss_script(messages, settings):
    done = results(messages)
    return [call("ask", q=f"q{done}")] if done < ASKED else str([one.content[0].content for one in messages[3::2]])


def by_tool(expert, way, place=in_tool):
    """The boss asks an expert by a tool."""
    return AssistantAgent("boss", Mortal(boss_script), tools=place(expert, way), max_tool_iterations=9)


class World:
    def __init__(self):
        self.open = []

    def begin(self, session_id="inside", **options):
        self.open.append(AutoGenStateSerializer(session_id=session_id, **options))
        return self.open[-1]

    def end(self):
        fate.clear()
        while self.open:
            self.open.pop().close()

    def wrap(self, one):
        return self.open[-1].wrap_agent(one) if hasattr(one, "on_messages") else self.open[-1].wrap_team(one)

    async def live(self, make, boss, dies_after=None, **options):
        """One life of a program whose boss has an expert asked; return what all of them said."""
        self.end()
        self.begin(**options)
        expert = self.wrap(make())
        whole = self.wrap(boss(expert))
        if dies_after is not None:
            fate.append(dies_after)
        answer = [one.to_text() for one in (await whole.run(task="go")).messages]
        return answer, await by_run(expert, "q9")  # what it knows then, as well


async def dies_and_goes_on(world, make, boss, every=1):
    """Let a program die at its model calls; return what it says if it does not."""
    expected, after = await world.live(make, boss, session_id="uninterrupted"), 1
    while True:
        try:
            await world.live(make, boss, after, session_id=f"dies {after}")
            break  # it has lived
        except Died:
            pass
        assert await world.live(make, boss, session_id=f"dies {after}") == expected
        after += every
    return expected
