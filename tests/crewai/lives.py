"""Lives of one program, each with objects of its own, what its models say, and tools that several tests give them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.crewai.scripted import Scripted, action, final, prompt_of  # sets the environment first

# isort: split
from crewai import Agent, Task
from crewai.tools import BaseTool, tool
from pydantic import BaseModel

from letitloop import Trusted
from letitloop.adapters.crewai import CrewAIDurabilityHandler


class Died(Exception):
    """Stands for the death of a program in the middle of a model call: one that CrewAI does not ask again."""


Died.__module__ = "litellm.exceptions"  # what comes from there is not tried again


class Lives:
    """Lives of one program: each with objects of its own."""

    def __init__(self, place):
        self.place = place
        self.done = []
        self.open = None

    def begin(self, **options):
        self.end()
        self.open = CrewAIDurabilityHandler(session_id="lives", store=str(self.place), **options)
        return self.open

    def end(self):
        if self.open is not None:
            self.open.unwrap()
            self.open.close()
            self.open = None

    def worker(self):
        @tool
        def work(what: str) -> str:
            """Work on something."""
            self.done.append(what)
            return f"worked on {what}"

        return work

    def agent(self, script, *, tools=None, native=False, **options):
        llm = Scripted(script, native=native)
        options.setdefault("cache", False)  # what it is by default changed within 1.15
        tools = [self.worker()] if tools is None else tools
        return Agent(role=options.pop("role", "worker"), goal="work", backstory="long", llm=llm, tools=tools, **options)


class PayArguments(BaseModel):
    number: int
    account: str


class Pay(BaseTool):
    """Pays for an account that no model names; ``banked`` where a bank does it."""

    name: str = "pay"
    description: str = "Pay."
    args_schema: type[BaseModel] = PayArguments
    banked: bool = False

    def _run(self, number: int, account: Trusted[str]) -> str:
        assert not self.banked, "the bank pays"
        return f"paid {number} from {account}"


def paying():
    """A tool that pays, by a bank."""

    @tool
    def pay(number: int) -> str:
        """Pay."""
        raise AssertionError("the bank pays")

    return pay


def mcp_shop(orders):
    """A server that sells, as a process of its own; it notes each order."""
    from crewai.mcp import MCPServerStdio

    return MCPServerStdio(command=sys.executable, args=[str(Path(__file__).with_name("mcp_server.py")), str(orders)])


def results(messages):
    return sum(one["role"] == "tool" or (one["role"] == "assistant" and "Observation:" in str(one["content"])) for one in messages)


def task_in(messages):
    return re.search("Current Task: (.*)", prompt_of(messages))[1]


def works(*items, then="done"):
    """Works on the items one by one, then concludes."""

    def script(messages, asked):
        done = results(messages)
        return action("work", what=items[done]) if done < len(items) else final(f"{then} {task_in(messages)!r}")

    return script


def tasks(agent, *words, **options):
    return [Task(description=one, expected_output="x", agent=agent, **options) for one in words]


def asked(crew):
    return sum(len(agent.llm.asked) for agent in crew.agents)
