"""What recorded calls put into an agent's list memory: it is there in later lives, which make those calls no more."""

from __future__ import annotations

import copy

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core.memory import ListMemory, MemoryContent, MemoryMimeType

from tests.autogen.inside import Mortal, by_run, by_tool, dies_and_goes_on, in_thread, in_tool
from tests.autogen.scripted import call, results

held: dict[str, ListMemory] = {}


def text(said, **metadata):
    return MemoryContent(content=said, mime_type=MemoryMimeType.TEXT, metadata=metadata or None)


def knows(messages, settings):
    """Say what is remembered."""
    return str([one.content[-80:] for one in messages if one.type == "SystemMessage"][-1:])


class Diary(ListMemory):
    """One that remembers how often it was asked."""

    async def update_context(self, model_context):
        await self.add(text(f"asked {len(self.content)}"))
        return await super().update_context(model_context)


def expert(kind=ListMemory):
    held["memory"] = kind("memory", [text("at first")])
    return AssistantAgent("expert", Mortal(knows), memory=[held["memory"]])


async def adds(agent, said):
    await held["memory"].add(text(said, source="tool"))
    return "noted"


async def adds_through_its_agent(agent, said):
    await agent._memory[0].add(text(said))
    return "noted"


async def clears_and_adds(agent, said):
    if said == "q1":
        await held["memory"].clear()
    return await adds(agent, said)


async def adds_and_asks(agent, said):
    await adds(agent, said)
    return await by_run(agent, said)


@pytest.mark.parametrize("kind", [ListMemory, Diary])
@pytest.mark.parametrize("place", [in_tool, in_thread])
@pytest.mark.parametrize("way", [adds, adds_through_its_agent, clears_and_adds, adds_and_asks])
async def test_what_a_tool_adds_is_there_after_a_crash(world, kind, place, way, caplog):
    _, last = await dies_and_goes_on(world, lambda: expert(kind), lambda one: by_tool(one, way, place))
    assert "q1" in last
    assert ("q0" in last) == (way is not clears_and_adds)
    assert "after a crash" not in caplog.text


async def test_of_two_agents_that_share_it(world):
    def script(messages, settings):
        return [call("ask", q=f"q{results(messages)}")] if results(messages) < 2 else knows(messages, settings)

    def boss(one):
        return AssistantAgent("boss", Mortal(script), tools=in_tool(one, adds), max_tool_iterations=9, memory=[held["memory"]])

    _, last = await dies_and_goes_on(world, expert, boss)
    assert "q1" in last


async def test_what_two_calls_of_one_answer_add(world, caplog):
    def script(messages, settings):
        return "done" if results(messages) else [call("ask", q="q0"), call("ask", q="q1")]

    def boss(one):
        return AssistantAgent("boss", Mortal(script), tools=in_tool(one, adds), max_tool_iterations=9)

    _, last = await dies_and_goes_on(world, expert, boss)
    assert last.count("q0") == last.count("q1") == 1


async def test_a_memory_is_what_it_was(world):
    durability, agent = world.begin(), expert()
    durability.wrap_agent(agent)
    twin = copy.deepcopy(held["memory"])
    await twin.add(text("more"))
    assert (len(twin.content), len(held["memory"].content)) == (2, 1)
    assert type(twin).__dict__.keys().isdisjoint(vars(twin))
    durability.unwrap()
    assert "add" not in vars(held["memory"])
