"""Wrapped agents and teams that a recorded call runs: it is answered without them, and they know what they knew."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest
from autogen_agentchat.agents import (
    ApprovalResponse,
    AssistantAgent,
    CodeExecutorAgent,
    UserProxyAgent,
)
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core import SingleThreadedAgentRuntime
from autogen_core.code_executor import CodeExecutor, CodeResult
from autogen_core.memory import Memory, MemoryQueryResult, UpdateContextResult
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import UserMessage

from letitloop import StepChanged, carry
from letitloop_autogen import kept
from tests.autogen.inside import (
    ASKED,
    EXPERTS,
    HANG,
    WAYS,
    Mortal,
    assistant,
    by_run,
    by_tool,
    dies_and_goes_on,
    in_thread,
    in_tool,
    recall,
)
from tests.autogen.scripted import call


@pytest.mark.parametrize("expert", EXPERTS)
async def test_whoever_a_tool_runs_knows_what_was_said(world, expert, caplog):
    _, last = await dies_and_goes_on(world, EXPERTS[expert], lambda expert: by_tool(expert, by_run), every=3)
    assert "q0" in last or expert == "buffered"
    assert "crash" not in caplog.text


@pytest.mark.parametrize("way", WAYS)
async def test_however_it_is_asked(world, way):
    await dies_and_goes_on(world, assistant, lambda expert: by_tool(expert, WAYS[way]), every=2)


def in_thread_of_its_own(carried):
    def place(expert, way):
        def ask(q: str) -> str:
            """Ask the expert, in a thread that the tool begins."""
            answer = Future()

            def work():
                try:
                    answer.set_result(asyncio.run(way(expert, q)))
                except Exception as error:
                    answer.set_exception(error)

            threading.Thread(target=carry(work) if carried else work).start()
            return answer.result(HANG)

        return [ask]

    return place


@pytest.mark.parametrize("place", [in_thread, in_thread_of_its_own(True)], ids=["pool", "own"])
async def test_from_a_thread(world, place, caplog):
    await dies_and_goes_on(world, assistant, lambda expert: by_tool(expert, by_run, place))
    assert "thread" not in caplog.text


async def test_a_thread_that_knows_nothing_of_its_call_is_told(world, caplog):
    await world.live(assistant, lambda expert: by_tool(expert, by_run, in_thread_of_its_own(False)))
    assert caplog.text.count("'expert' is run in a thread while 'tool ask 1.0' is carried out in another") == 1


async def test_by_a_tool_of_whom_a_tool_runs(world):
    def in_chain(expert, way):
        middle = AssistantAgent(
            "middle",
            Mortal(lambda m, s: recall(m, s) if m[-1].type != "UserMessage" else [call("ask", q=m[-1].content)]),
            tools=in_tool(expert, way),
            reflect_on_tool_use=True,
        )
        return in_tool(world.wrap(middle), by_run)

    await dies_and_goes_on(world, assistant, lambda expert: by_tool(expert, by_run, in_chain))


async def test_on_a_runtime_of_the_users(world):
    """Its tasks were begun outside the call that the team runs in."""
    runtime = SingleThreadedAgentRuntime()
    runtime.start()

    def make():
        return RoundRobinGroupChat([assistant("one"), assistant("two")], max_turns=3, runtime=runtime)

    await dies_and_goes_on(world, make, lambda expert: by_tool(expert, by_run), every=4)
    await runtime.stop()


# --- other calls that are recorded ------------------------------------------------------------------------------------------


class Executor(CodeExecutor):
    component_type = "code_executor"

    def __init__(self, expert):
        self.expert = expert

    async def execute_code_blocks(self, code_blocks, cancellation_token):
        return CodeResult(exit_code=0, output=await by_run(self.expert, code_blocks[0].code))

    async def start(self):
        pass

    async def stop(self):
        pass

    async def restart(self):
        pass


class Asking(Memory):
    def __init__(self, expert):
        self.expert = expert

    async def update_context(self, model_context):
        await model_context.add_message(UserMessage(content=await by_run(self.expert, "m"), source="memory"))
        return UpdateContextResult(memories=MemoryQueryResult(results=[]))

    async def query(self, query, cancellation_token=None, **kwargs):
        return MemoryQueryResult(results=[])

    async def add(self, content, cancellation_token=None):
        pass

    async def clear(self):
        pass

    async def close(self):
        pass


def round_robin(*agents):
    return RoundRobinGroupChat(list(agents), name="boss", max_turns=7)


def by_selector(expert):
    async def select(thread):
        return "ab"["q1" in await by_run(expert, f"q{len(thread)}")]

    agents = [assistant("a"), assistant("b")]
    return SelectorGroupChat(agents, Mortal(recall), name="boss", selector_func=select, max_turns=4)


def by_person(expert):
    async def answer(prompt, token):
        return await by_run(expert, "person")

    return round_robin(assistant("a"), UserProxyAgent("person", input_func=answer))


def by_executor(expert):
    coder = AssistantAgent("coder", Mortal(lambda m, s: f"```python\n{len(m)}\n```"))
    return round_robin(
        coder,
        CodeExecutorAgent("runner", Executor(expert), approval_func=lambda request: ApprovalResponse(approved=True, reason="")),
    )


def by_memory(expert):
    return round_robin(assistant("a", memory=[Asking(expert)]), assistant("b"))


@pytest.mark.parametrize("boss", [by_selector, by_person, by_executor, by_memory])
async def test_whoever_asks(world, boss):
    await dies_and_goes_on(world, assistant, boss, every=3)


async def test_a_conversation_is_not_recorded_again_each_time(world, tmp_path, monkeypatch):
    """The record of a call holds what the call has added."""
    sizes = []
    real = kept.Inside.changes

    async def changes(inside):
        found = await real(inside)
        sizes.append(len(str(found)))
        return found

    monkeypatch.setattr(kept.Inside, "changes", changes)
    await world.live(lambda: AssistantAgent("expert", Mortal(lambda m, s: "yes")), lambda expert: by_tool(expert, by_run))
    asked = [one for one in sizes if one > 2]
    assert len(asked) == ASKED
    assert max(asked) - min(asked) < 4  # digits


async def test_a_changed_conversation_is_named(world):
    def boss(expert):
        return by_tool(expert, by_run)

    expected = await world.live(assistant, boss, session_id="changed")
    other = AssistantAgent(
        "expert", Mortal(recall), model_context=UnboundedChatCompletionContext([UserMessage(content="!", source="me")])
    )
    with pytest.raises(StepChanged, match="'expert', whose conversation was another one"):
        await world.live(lambda: other, boss, session_id="changed")
    answer, _ = await world.live(assistant, boss, session_id="changed", on_change="reuse")
    assert answer == expected[0]
