"""What an agent of 300 model calls and 300 tool calls costs when it is recorded, and when it is replayed."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import time
import warnings
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from measure import Contention, Row, ratio, raw_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from measure import Bench

CALLS = 300
ROUNDS = 7
SAID = "The shipment left the harbour of Rotterdam in the morning and is expected in nine days. " * 6
"""What the model says beside each call; the tool's answer is as long."""

Drive = Callable[["Path | None"], None] if TYPE_CHECKING else None


def autogen(bench: Bench) -> Iterator[Row]:
    """An AssistantAgent that calls a tool 300 times in one turn."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core import FunctionCall
    from autogen_core.models import ChatCompletionClient, CreateResult, RequestUsage

    from letitloop.adapters.autogen import AutoGenStateSerializer

    warnings.simplefilter("ignore")
    info = {"vision": False, "function_calling": True, "json_output": True, "family": "unknown", "structured_output": True}

    class Client(ChatCompletionClient):  # type: ignore[misc]  # the stubs' base is of unknown type without the package
        component_type = "model"
        model_info = capabilities = info

        async def create(self, messages: Any, **_: Any) -> Any:
            n = sum(one.type == "FunctionExecutionResultMessage" for one in messages)
            asked = [FunctionCall(id=str(n), name="look", arguments=json.dumps({"number": n}))]
            return CreateResult(
                finish_reason="stop" if n >= CALLS else "function_calls",
                content="done" if n >= CALLS else asked,
                thought=SAID,
                usage=RequestUsage(100, 50),
                cached=False,
            )

        async def create_stream(self, messages: Any, **_: Any) -> Any:
            yield await self.create(messages)

        async def close(self) -> None: ...

        def actual_usage(self) -> Any:
            return RequestUsage(0, 0)

        total_usage = actual_usage

        def count_tokens(self, *_: Any, **__: Any) -> int:
            return 0

        remaining_tokens = count_tokens

    def look(number: int) -> str:
        """Look something up."""
        return f"{number}: {SAID}"

    def drive(store: Path | None) -> None:
        agent = AssistantAgent("agent", Client(), tools=[look], max_tool_iterations=CALLS + 1)
        if store is not None:
            AutoGenStateSerializer(session_id="bench", store=str(store)).wrap_agent(agent)
        result = asyncio.run(agent.run(task="Go."))
        assert result.messages[-1].content == "done", result.messages[-1]

    yield from _judged(bench, "AutoGen", drive)


def smolagents(bench: Bench) -> Iterator[Row]:
    """An agent that calls tools, and one that does it by code."""
    yield from _smolagents_calls(bench)
    yield from _smolagents_code(bench)


def _smolagents_calls(bench: Bench) -> Iterator[Row]:
    """A ToolCallingAgent of 300 steps with a tool call each."""
    from smolagents import Tool, ToolCallingAgent
    from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole, Model

    from letitloop.adapters.smolagents import durable_agent

    class Scripted(Model):  # type: ignore[misc]  # as above
        def generate(self, messages: Any, **_: Any) -> Any:
            n = sum(message.role == MessageRole.TOOL_RESPONSE for message in messages)
            name, arguments = ("look", {"number": n}) if n < CALLS else ("final_answer", {"answer": "done"})
            function = ChatMessageToolCallFunction(name=name, arguments=arguments)
            call = ChatMessageToolCall(id=str(n), type="function", function=function)
            return ChatMessage(role=MessageRole.ASSISTANT, content=SAID, tool_calls=[call])

    class Look(Tool):  # type: ignore[misc]  # as above
        name = "look"
        description = "Looks something up."
        inputs = {"number": {"type": "integer", "description": "what"}}  # noqa: RUF012 - as smolagents wants it
        output_type = "string"

        def forward(self, number: int) -> str:
            return f"{number}: {SAID}"

    def drive(store: Path | None) -> None:
        agent: Any = ToolCallingAgent(tools=[Look()], model=Scripted(), max_steps=CALLS + 1, verbosity_level=-1)
        if store is not None:
            agent = durable_agent(agent, session_id="bench", store=str(store))
        assert agent.run("Go.") == "done"

    yield from _judged(bench, "smolagents", drive)


def _smolagents_code(bench: Bench) -> Iterator[Row]:
    """A CodeAgent of 300 steps, each of which calls a tool and puts what it said into a list."""
    from smolagents import CodeAgent, Tool
    from smolagents.models import ChatMessage, MessageRole, Model

    from letitloop.adapters.smolagents import durable_agent

    class Scripted(Model):  # type: ignore[misc]  # as above
        def generate(self, messages: Any, **_: Any) -> Any:
            n = sum(message.role == MessageRole.ASSISTANT for message in messages)
            code = "rows = []" if not n else f"rows.append(look(number={n}))" if n < CALLS else "final_answer(len(rows))"
            return ChatMessage(role=MessageRole.ASSISTANT, content=f"{SAID}\n<code>\n{code}\n</code>")

    class Look(Tool):  # type: ignore[misc]  # as above
        name = "look"
        description = "Looks something up."
        inputs = {"number": {"type": "integer", "description": "what"}}  # noqa: RUF012 - as smolagents wants it
        output_type = "string"

        def forward(self, number: int) -> str:
            return f"{number}: {SAID}"

    def drive(store: Path | None) -> None:
        agent: Any = CodeAgent(tools=[Look()], model=Scripted(), max_steps=CALLS + 1, verbosity_level=-1)
        if store is not None:
            agent = durable_agent(agent, session_id="bench", store=str(store))
        assert agent.run("Go.") == CALLS - 1

    yield from _judged(bench, "smolagents, code", drive)


def _judged(bench: Bench, framework: str, drive: Drive) -> Iterator[Row]:
    """Drive an agent stock, recorded and replayed in shuffled rounds, and judge the three figures."""
    drive(None)  # imports, and what the framework makes once
    first = bench.fresh("replayed")
    _in_a_process(lambda: drive(first))
    data = os.urandom(_size(first) // (2 * CALLS))
    variants = {
        "raw": lambda: sum(raw_loop(bench.fresh("raw"), data, 2 * CALLS)),
        "stock": lambda: _in_a_process(lambda: drive(None), time.process_time),
        "recorded": lambda: _in_a_process(partial(drive, bench.fresh("recorded"))),
        "replayed": lambda: _in_a_process(lambda: drive(first)),
    }
    with Contention() as others:
        found = bench.rounds(variants, ROUNDS)
    noise = others.noise()
    budget = [raw + stock for raw, stock in zip(found["raw"], found["stock"], strict=True)]
    told = {name: f"{median(times) * 1e3:.0f}" for name, times in found.items()}
    row = Row(
        f"{framework}, {CALLS} model and {CALLS} tool calls recorded, to raw write+fdatasync and the stock run's CPU", 1.5, "x"
    )
    note = f"{told['recorded']} of {told['raw']} + {told['stock']} ms"
    yield row.judge(ratio(found["recorded"], budget), note=note, noise=noise, seconds=found)
    row = Row(f"{framework}, the same replayed, to the stock run", 0.5, "x")
    yield row.judge(ratio(found["replayed"], found["stock"]), note=f"{told['replayed']} of {told['stock']} ms", noise=noise)
    answers = 2 * CALLS * len(SAID.encode())
    row = Row(f"{framework}, the log to the recorded answers", 3.0, "x")
    yield row.judge(_size(first) / answers, note=f"{_size(first) / 1e3:.0f} of {answers / 1e3:.0f} kB")


def _in_a_process(work: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how long it takes in a process of its own: what a process has run once, it runs anew instead of replaying it."""
    source, sink = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(source)
            start = clock()
            work()
            os.write(sink, struct.pack("d", clock() - start))
            code = 0
        finally:
            os._exit(code)
    os.close(sink)
    with open(source, "rb") as pipe:
        said = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0, "the agent failed"
    return float(struct.unpack("d", said)[0])


def _size(store: Path) -> int:
    return sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
