"""The types of wrapped objects, stated. This file is never run: mypy checks it (``nox -s autogen``)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ChatCompletionClient
from typing_extensions import assert_type

from letitloop import effect
from letitloop.adapters.autogen import AutoGenStateSerializer, tool_call_key


class MyAgent(AssistantAgent):
    """An agent of the user's own."""

    mine: int = 1


async def wrapped_objects(client: ChatCompletionClient, some: ChatAgent, group: Team) -> None:
    durability = AutoGenStateSerializer(
        session_id="x",
        store=Path("store"),
        tools={"pay": effect(key="invoice/{number}"), "look": "record", "think": "rerun"},
        default="record",
        on_change="raise",
        auto_resume=True,
    )
    agent = durability.wrap_agent(AssistantAgent("a", client))
    assert_type(agent, AssistantAgent)
    assert_type(durability.wrap_agent(MyAgent("b", client), agent_name="named").mine, int)
    assert_type(durability.wrap_agent(some), ChatAgent)
    team = durability.wrap_team(RoundRobinGroupChat([agent]))
    assert_type(team, RoundRobinGroupChat)
    assert_type(durability.wrap_team(group), Team)
    assert_type(await agent.run(task="x"), TaskResult)
    assert_type(await team.run(task="x"), TaskResult)
    assert_type(team.run_stream(task="x"), AsyncGenerator[BaseAgentEvent | BaseChatMessage | TaskResult, None])
    assert_type(durability.session_id, str)
    assert_type(tool_call_key(), str)
    with durability as same:
        assert_type(same, AutoGenStateSerializer)
    durability.unwrap()
    durability.close()


def what_is_refused(client: ChatCompletionClient, agent: AssistantAgent, team: RoundRobinGroupChat) -> None:
    durability = AutoGenStateSerializer("x")
    durability.wrap_agent(client)  # type: ignore[type-var]
    durability.wrap_agent(team)  # type: ignore[type-var]
    durability.wrap_team(agent)  # type: ignore[type-var]
    AutoGenStateSerializer("x", tools={"pay": "always"})  # type: ignore[dict-item]
    AutoGenStateSerializer("x", on_change="ignore")  # type: ignore[arg-type]
    AutoGenStateSerializer()  # type: ignore[call-arg]
