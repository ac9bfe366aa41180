"""Runs, and calls of one agent, that go on side by side: they come in another order in each life, and answer as if in the same."""

from __future__ import annotations

import asyncio
import json
from random import Random

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core.models import UserMessage
from autogen_core.tools import FunctionTool, StaticWorkbench

from letitloop import StepChanged, scope
from tests.autogen.inside import HANG, Mortal, fate
from tests.autogen.scripted import call

BRANCHES = 3


class Paced(Mortal):
    """A model that takes its time: not the same in each life."""

    def __init__(self, script, pace):
        super().__init__(script)
        self.pace = pace
        self.answered = []

    async def create(self, messages, **settings):
        for _ in range(self.pace.randrange(60)):
            await asyncio.sleep(0)
        result = await super().create(messages, **settings)
        self.answered.append(str(messages[-1].content))
        return result


async def text_of(run):
    return (await run).messages[-1].to_text()


async def streamed(one, task):
    return [item async for item in one.run_stream(task=task)][-1].messages[-1].to_text()


# --- pipelines of agents and teams that have one name ------------------------------------------------------------------------


def agent(durability, model, name):
    return durability.wrap_agent(AssistantAgent(name, model))


def round_robin(durability, model, name):
    return durability.wrap_team(RoundRobinGroupChat([AssistantAgent("a", model)], name=name, max_turns=1))


def selector(durability, model, name):
    agents = [AssistantAgent("a", model), AssistantAgent("b", model)]
    return durability.wrap_team(SelectorGroupChat(agents, model_client=model, selector_func=lambda _: "a", name=name, max_turns=1))


def pipelines(make, run):
    async def program(durability, model, pace):
        async def pipeline(number):
            text = f"document {number}"
            for stage in ("reader", "writer", "editor"):
                text = await run(make(durability, model, stage), text)
                for _ in range(pace.randrange(30)):
                    await asyncio.sleep(0)  # work of its own: perhaps none of its runs is under way
            return text

        return await asyncio.gather(*map(pipeline, range(BRANCHES)), return_exceptions=True)

    return program


# --- branches of one agent ---------------------------------------------------------------------------------------------------

worked: list[str] = []


def look(what: str) -> str:
    """Look."""
    worked.append(what)
    return f"saw {len(worked)}"


class Branching(BaseChatAgent):
    """Asks, calls the tool that the model asks for, and asks again; in several branches."""

    produced_message_types = (TextMessage,)

    def __init__(self, client, branch):
        super().__init__("branching", "Branches.")
        self.client = client
        self.bench = StaticWorkbench([FunctionTool(look, "Look")])
        self.branch = branch

    async def ask(self, text, token):
        return (await self.client.create([UserMessage(content=text, source="u")], cancellation_token=token)).content

    async def call(self, wanted, token):
        return (await self.bench.call_tool(wanted.name, json.loads(wanted.arguments), token, wanted.id)).to_text()

    async def on_messages(self, messages, token):
        branches = (self.branch(self, number, token) for number in range(BRANCHES))
        said = await asyncio.gather(*branches, return_exceptions=True)  # each comes to its end, whatever ends another
        for one in said:
            if isinstance(one, BaseException):
                raise one
        return Response(chat_message=TextMessage(content="|".join(said), source=self.name))

    async def on_reset(self, token):
        pass


async def plain_branch(agent, number, token):
    wanted = await agent.ask(f"document {number}", token)
    return await agent.ask(f"sum up {number}: {await agent.call(wanted[0], token)}", token)


async def one_branch_after_another_tool(agent, number, token):
    text = f"document {number}"
    for _ in range(2):
        for wanted in await agent.ask(text, token):
            text += await agent.call(wanted, token)
    return await agent.ask(f"sum up {text}", token)


async def scoped_branch(agent, number, token):
    async with scope(f"branch {number}"):
        return await plain_branch(agent, number, token)


async def scoped_branch_of_its_own_calls(agent, number, token):
    """One that calls the tool by itself, twice, and not because the model asks for it."""
    async with scope(f"branch {number}"):
        seen = [(await agent.bench.call_tool("look", {"what": what}, token)).to_text() for what in ("it", "more")]
        return await agent.ask(f"sum up {number}: {seen}", token)


async def asked_in_a_scope_and_called_outside(agent, number, token):
    async with scope(f"branch {number}"):
        wanted = await agent.ask(f"document {number}", token)
    return await agent.ask(f"sum up {number}: {await agent.call(wanted[0], token)}", token)


def branches(branch):
    async def program(durability, model, pace):
        return await asyncio.gather(text_of(durability.wrap_agent(Branching(model, branch)).run(task="go")), return_exceptions=True)

    return program


def model_of_branches(messages, settings):
    text = messages[-1].content
    return text.upper() if text.startswith("sum up") else [call("look", "1", what="it")] * (1 + text.count("saw"))


PROGRAMS = {
    "agents": pipelines(agent, lambda one, task: text_of(one.run(task=task))),
    "agents that stream": pipelines(agent, streamed),
    "teams": pipelines(round_robin, lambda one, task: text_of(one.run(task=task))),
    "teams that stream": pipelines(selector, streamed),
    **{
        one.__name__.replace("_", " "): branches(one)
        for one in (
            plain_branch,
            one_branch_after_another_tool,
            scoped_branch,
            scoped_branch_of_its_own_calls,
            asked_in_a_scope_and_called_outside,
        )
    },
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", PROGRAMS)
async def test_what_goes_on_side_by_side_comes_in_any_order(world, kind, seed):
    """Killed anywhere, and killed again: nothing that was finished is asked again, and all come to the same."""
    script = model_of_branches if "branch" in kind or "scope" in kind else lambda m, s: f"{m[-1].content}!"

    async def live(name, life, dies_after=None):
        world.end()
        durability, pace = world.begin(name, store="memory:beside"), Random(f"{kind} {seed} {name} {life}")
        model = Paced(script, pace)
        if dies_after is not None:
            fate.append(dies_after)
        return await asyncio.wait_for(PROGRAMS[kind](durability, model, pace), HANG), model.answered

    worked.clear()
    _, asked = await live(f"{kind} {seed} whole", 0)
    tools, calls = len(worked), len(asked)
    for dies_after in range(calls):
        name, done = f"{kind} {seed} {dies_after}", []
        worked.clear()
        for life, after in enumerate((dies_after, (calls - dies_after) // 2, None, None)):
            said, answered = await live(name, life, after)
            assert not [one for one in said if isinstance(one, StepChanged)]
            done += answered
        assert all(isinstance(one, str) for one in said)
        assert not answered
        assert (len(done), len(worked)) == (calls, tools)
