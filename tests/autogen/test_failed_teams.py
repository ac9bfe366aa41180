"""A team that fails and whose failure is told to somebody: the text is the same in each life, and as stock AutoGen has it."""

from __future__ import annotations

import asyncio
import contextlib
import re

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent, SocietyOfMindAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core.models import UserMessage
from autogen_ext.models.replay import ReplayChatCompletionClient

from letitloop import step
from letitloop.adapters.autogen import AutoGenStateSerializer
from letitloop.errors import Halt
from tests.autogen.scripted import Scripted, call, results, said

HANG = 30
"""Seconds after which something hangs; nothing is measured."""


class Killed(Halt):
    """Stands for the end of a process."""


class Models:
    """The models of a program; the process ends at one of their calls."""

    def __init__(self, dies_at=None):
        self.dies_at = dies_at
        self.asked = []

    def __call__(self, script):
        def answer(messages, settings):
            self.asked.append([str(one.content) for one in messages])
            if len(self.asked) == self.dies_at:
                raise Killed
            found = script(messages, settings)
            if isinstance(found, Exception):
                raise found
            return found

        return Scripted(answer)


def failing(messages, settings):
    return ValueError("rate limit") if len(messages) < 4 else f"heard {len(messages)}"


def of_no_module(messages, settings):
    """Fail with what a log cannot give back."""

    class Refused(Exception):
        def __init__(self, *, after):
            super().__init__(f"wait {after}")

    return Refused(after=len(messages)) if len(messages) < 4 else f"heard {len(messages)}"


def team(models, script=failing, depth=0):
    found = RoundRobinGroupChat([AssistantAgent("x", models(script))], max_turns=1)
    for number in range(depth):
        found = RoundRobinGroupChat([found], max_turns=1, name=f"outer{number}")
    return found


def boss(models, tool):
    def script(messages, settings):
        done = results(messages)
        return [call("inner", task=f"go {done}")] if done < 2 else f"done {done}"

    return AssistantAgent("boss", models(script), tools=[tool], max_tool_iterations=4)


class Lead(BaseChatAgent):
    """Tells its model of what its team has met."""

    produced_message_types = (TextMessage,)

    def __init__(self, client, team, tell):
        super().__init__("lead", "Leads.")
        self.client, self.team, self.tell = client, team, tell

    async def on_messages(self, messages, cancellation_token):
        try:
            text = said(await self.team.run(task="go"))[-1][-1]
        except RuntimeError as error:
            text = await self.tell(self, str(error))
        return Response(chat_message=TextMessage(content=text, source=self.name))

    async def on_reset(self, cancellation_token):
        pass


async def to_model(lead, text):
    return str((await lead.client.create([UserMessage(content=text, source="lead")])).content)


async def to_a_step(lead, text):
    length = step("note", len, text)
    return f"{length} {await to_model(lead, 'it failed')}"


async def to_the_caller(lead, text):
    return text


def handled(messages, settings):
    return "handled"


KINDS = {
    "team tool": lambda models: boss(models, TeamTool(team(models), name="inner", description="Works.")),
    "team in a team tool": lambda models: boss(models, TeamTool(team(models, depth=1), name="inner", description="Works.")),
    "agent tool": lambda models: boss(models, AgentTool(AssistantAgent("inner", models(of_no_module)))),
    "mind tool": lambda models: boss(models, AgentTool(SocietyOfMindAgent("inner", team(models), ReplayChatCompletionClient([])))),
    "of no module": lambda models: boss(models, TeamTool(team(models, of_no_module), name="inner", description="Works.")),
    "model": lambda models: Lead(models(handled), team(models), to_model),
    "model, deep": lambda models: Lead(models(handled), team(models, depth=2), to_model),
    "model, of no module": lambda models: Lead(models(handled), team(models, of_no_module), to_model),
    "step": lambda models: Lead(models(handled), team(models), to_a_step),
    "caller": lambda models: Lead(models(handled), team(models), to_the_caller),
    "program": team,
    "program, deep": lambda models: team(models, depth=1),
    "program, of no module": lambda models: team(models, of_no_module),
}


async def program(one):
    """Go on after a failure, and tell of it."""
    task, told = "go", []
    for _ in range(2):
        try:
            told.append(said(await asyncio.wait_for(one.run(task=task), HANG)))
        except RuntimeError as error:
            told.append(str(error))
            task = f"It failed: {error}. Try again."
    return told


def wrapped(durability, one):
    return durability.wrap_agent(one) if isinstance(one, BaseChatAgent) else durability.wrap_team(one)


def unnumbered(told):
    return re.sub(r"line \d+", "line", str(told))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_failure_that_is_told(tmp_path, kind):
    models, stock = Models(), None
    if kind == "step":  # which there is none of in a stock run
        calls = 3
    else:
        stock = await program(KINDS[kind](models))
        calls = len(models.asked)
    for dies_at in range(1, calls + 2):
        asked = 0
        for dies in (dies_at, None, None):
            models = Models(dies)
            with AutoGenStateSerializer(session_id="failing", store=tmp_path / f"{dies_at}") as durability:
                one = wrapped(durability, KINDS[kind](models))
                with pytest.raises(Killed) if dies and dies <= calls else contextlib.nullcontext():
                    told = await program(one)
                    assert stock is None or unnumbered(told) == unnumbered(stock)
                    assert "letitloop" not in str(told)
            asked += len(models.asked)
        assert not models.asked
        assert asked <= calls + 2 * (dies_at <= calls)  # a failure that nothing has followed yet is met again


@pytest.mark.parametrize("outer", ["tool", "lead", "team"])
async def test_a_failure_that_nobody_has_gone_on_after_is_of_no_account(tmp_path, outer):
    """The next life tries again, and what it meets is what it tells: another failure, another text."""

    def make(models, script):
        inner = team(models, script, depth=1)
        return inner if outer == "team" else Lead(models(handled), inner, raises)

    async def raises(lead, text):
        raise RuntimeError(text)

    asked = []
    for number in range(4):
        models = Models()
        script = (lambda m, s, n=number: ValueError(f"failure {n}")) if number < 2 else (lambda m, s: "fine")
        with AutoGenStateSerializer(session_id="again", store=tmp_path / "store") as durability:
            one = wrapped(durability, make(models, script))
            with pytest.raises(RuntimeError, match=f"failure {number}") if number < 2 else contextlib.nullcontext() as told:
                assert said(await asyncio.wait_for(one.run(task="go"), HANG))[-1][-1] == "fine"
            assert number != 1 or "failure 0" not in str(told.value)
        asked.append(len(models.asked))
    assert asked == [1, 1, 1, 0]
