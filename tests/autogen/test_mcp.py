"""A workbench whose tools are another process's: a real server of the Model Context Protocol, over stdio."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams

from letitloop import effect
from letitloop.adapters.autogen import AutoGenStateSerializer
from letitloop.errors import InvalidArgument
from tests.autogen.scripted import Scripted, call, results

SERVER = Path(__file__).with_name("mcp_server.py")


class Died(Exception):
    """Stands for the death of a program in the middle of a model call."""


def desk(notes):
    notes.touch()
    return McpWorkbench(StdioServerParams(command=sys.executable, args=[str(SERVER), str(notes)], read_timeout_seconds=60))


def script(dies):
    def answer(messages, settings):
        done = results(messages)
        if done == 0:
            return [call("look", "1", what="invoice"), call("pay", "2", number=7, amount=12)]
        return Died("died") if dies else " and ".join(one.content for one in messages[-1].content)

    return answer


async def test_its_calls_never_repeat(tmp_path):
    notes = tmp_path / "notes"
    for dies in (True, False, False):
        policies = {"pay": effect(key="invoice/{number}")}
        with AutoGenStateSerializer(session_id="desk", store=tmp_path / "store", tools=policies) as durability:
            async with desk(notes) as workbench:
                client = Scripted(script(dies))
                agent = durability.wrap_agent(AssistantAgent("clerk", client, workbench=workbench, max_tool_iterations=3))
                if dies:
                    with pytest.raises(Died):
                        await agent.run(task="go")
                else:
                    result = await agent.run(task="go")
    assert result.messages[-1].content == "invoice: found and paid 12"
    assert client.asked == []
    assert sorted(notes.read_text().splitlines()) == ["look invoice", "pay 7"]


async def test_a_misspelt_name_is_refused_once_the_server_has_told_its_tools(tmp_path):
    notes = tmp_path / "notes"
    policies = {"pya": effect(key="invoice/{number}")}
    with AutoGenStateSerializer(session_id="desk", store=tmp_path / "store", tools=policies) as durability:
        async with desk(notes) as workbench:
            agent = durability.wrap_agent(AssistantAgent("clerk", Scripted(script(False)), workbench=workbench))
            with pytest.raises(InvalidArgument, match="'pay' has no policy"):
                await agent.run(task="go")
    assert notes.read_text() == ""
