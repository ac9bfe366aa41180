"""Cancelled runs, by their token or with the task that awaits them: they end, and are history if the program goes on."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent, CodeExecutorAgent, UserProxyAgent
from autogen_agentchat.base import Response, TerminationCondition
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat, SelectorGroupChat
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeResult
from autogen_core.memory import ListMemory, UpdateContextResult
from autogen_core.models import UserMessage

from letitloop import StepChanged
from letitloop.adapters.autogen import AutoGenStateSerializer
from letitloop_autogen import cancelling
from tests.autogen.programs import Shell
from tests.autogen.scripted import Scripted, call, results

HANG = 30
"""Seconds after which something hangs; nothing is measured."""


class Block:
    """Where the first life waits until it is cancelled."""

    def __init__(self):
        self.reached = asyncio.Event()
        self.waits = True

    async def wait(self):
        if self.waits:
            self.reached.set()
            await asyncio.Event().wait()


class Waiting(Scripted):
    """A model that waits at its first question of some kind."""

    def __init__(self, block, at=lambda messages: True, script=lambda m, s: f"heard {len(m)}"):
        super().__init__(script)
        self.block = block
        self.at = at

    async def create(self, messages, **settings):
        if self.at(messages):
            await self.block.wait()
        return await super().create(messages, **settings)


class Notes(ListMemory):
    def __init__(self, block):
        super().__init__("notes")
        self.block = block

    async def update_context(self, model_context):
        await self.block.wait()
        return UpdateContextResult(memories=await self.query(""))


class Condition(TerminationCondition):
    terminated = False

    def __init__(self, block, late):
        self.block = block
        self.late = late

    async def __call__(self, messages):
        if not self.late or messages[0].source != "user":
            await self.block.wait()

    async def reset(self):
        pass


class Machine(Shell):
    def __init__(self, block):
        self.block = block

    async def execute_code_blocks(self, code_blocks, cancellation_token):
        await self.block.wait()
        return CodeResult(0, "ran")


class Custom(BaseChatAgent):
    produced_message_types = (TextMessage,)

    def __init__(self, block):
        super().__init__("custom", "Waits by itself.")
        self.block = block

    async def on_messages(self, messages, cancellation_token):
        await self.block.wait()
        return Response(chat_message=TextMessage(content="done", source=self.name))

    async def on_reset(self, cancellation_token):
        pass


def speaker(name="a", **settings):
    return AssistantAgent(name, Scripted(lambda m, s: f"heard {len(m)}"), **settings)


def with_tool(block):
    async def work(number: int) -> str:
        """Work."""
        await block.wait()
        return "worked"

    script = Scripted(lambda m, s: "done" if m[-1].type == "FunctionExecutionResultMessage" else [call("work", number=len(m))])
    return AssistantAgent("a", script, tools=[work], max_tool_iterations=2)


def with_code(block):
    asked = TextMessage(content="```python\n1\n```", source="user")
    return CodeExecutorAgent("a", Machine(block)), asked


def select(block, **settings):
    model = settings.pop("model", None) or Scripted(lambda m, s: "a")
    return SelectorGroupChat([speaker(), speaker("b")], model, allow_repeated_speaker=True, max_turns=2, **settings)


def chooser(block):
    async def choose(thread):
        await block.wait()
        return "a"

    return choose


def human(block):
    async def ask(prompt, cancellation_token=None):
        await block.wait()
        return "yes"

    return UserProxyAgent("a", input_func=ask)


def team(agent):
    return RoundRobinGroupChat([agent], max_turns=1)


def ending(condition):
    return RoundRobinGroupChat([speaker()], termination_condition=condition, max_turns=2)


PLACES = {
    "model": lambda block: AssistantAgent("a", Waiting(block)),
    "stream": lambda block: AssistantAgent("a", Waiting(block), model_client_stream=True),
    "tool": with_tool,
    "memory": lambda block: speaker(memory=[Notes(block)]),
    "code": lambda block: with_code(block)[0],
    "human": human,
    "custom": Custom,
    "team: model": lambda block: team(AssistantAgent("a", Waiting(block))),
    "team: tool": lambda block: team(with_tool(block)),
    "team: memory": lambda block: team(speaker(memory=[Notes(block)])),
    "team: custom": lambda block: team(Custom(block)),
    "nested": lambda block: RoundRobinGroupChat([team(AssistantAgent("a", Waiting(block)))], name="outer", max_turns=1),
    "selector": lambda block: select(block, model=Waiting(block, script=lambda m, s: "a")),
    "selector_func": lambda block: select(block, selector_func=chooser(block)),
    "first condition": lambda block: ending(Condition(block, late=False)),
    "condition": lambda block: ending(Condition(block, late=True)),
}


def wrapped(store, one, session="cancelled"):
    durability = AutoGenStateSerializer(session_id=session, store=store)
    return durability, durability.wrap_agent(one) if isinstance(one, BaseChatAgent) else durability.wrap_team(one)


def where_it_was_cancelled(monkeypatch):
    """Return an event that is set when a run has come to where it was cancelled before."""
    there, again, settle = asyncio.Event(), cancelling.Cut.again, cancelling._some_rounds
    begun = []

    async def noticed(self):
        begun.append(self)
        return await again(self)

    async def settled():
        await settle()
        if begun:
            there.set()

    monkeypatch.setattr(cancelling.Cut, "again", noticed)
    monkeypatch.setattr(cancelling, "_some_rounds", settled)
    return there


async def streamed(one, **settings):
    return [item async for item in one.run_stream(**settings)][-1]


def start(one, block, how, token):
    task = TextMessage(content="```python\n1\n```", source="user")
    if how.startswith("stream"):
        return asyncio.ensure_future(streamed(one, task=task, cancellation_token=token))
    return asyncio.ensure_future(one.run(task=task, cancellation_token=token))


def asks(one):
    """How many questions all models in an agent or a team were asked."""
    found = 0
    for part in [one, *getattr(one, "_participants", ())]:
        if part is not one and hasattr(part, "_participants"):
            found += asks(part)
        elif isinstance(getattr(part, "_model_client", None), Scripted) or hasattr(getattr(part, "_model_client", None), "asked"):
            found += len(part._model_client.asked)
    return found


@pytest.mark.filterwarnings("ignore:No approval function")
@pytest.mark.parametrize("how", ["token", "task", "stream: token", "stream: task"])
@pytest.mark.parametrize("place", PLACES)
async def test_a_cancelled_run_ends_and_is_history_if_the_program_goes_on(tmp_path, monkeypatch, place, how):
    """It ends while what it waits for never does; the object can be used again; and the whole program can be run again."""
    heard, unrecorded = [], "custom" in place
    there = where_it_was_cancelled(monkeypatch)
    for life in range(2):
        block, token = Block(), CancellationToken()
        durability, one = wrapped(tmp_path / "store", PLACES[place](block))
        run = start(one, block, how, token)
        if not life:
            await asyncio.wait_for(block.reached.wait(), HANG)
        elif not unrecorded and how.endswith("task"):
            await asyncio.wait_for(there.wait(), HANG)  # a timeout of the program, which comes again
        elif unrecorded:
            await asyncio.wait_for(block.reached.wait(), HANG)
        if how.endswith("task"):
            run.cancel()
        elif not life or unrecorded:
            token.cancel()  # in the second life nobody has to: the run ends by what is on record
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(run, HANG)
        assert life == 0 or unrecorded or not block.reached.is_set()
        block.waits = False
        asked = asks(one)
        result = await asyncio.wait_for(one.run(task=TextMessage(content="```python\n2\n```", source="user")), HANG)
        heard.append([m.to_text() for m in result.messages])
        assert asks(one) == asked or not life
        durability.close()
    assert heard[0] == heard[1]
    assert len(heard[0]) > 1


async def test_a_cancelled_run_does_not_wait_for_what_does_not_end(tmp_path):
    """An agent that swallows every cancellation."""

    class Stubborn(Custom):
        async def on_messages(self, messages, cancellation_token):
            self.block.reached.set()
            while self.block.waits:
                try:
                    await asyncio.sleep(HANG)
                except asyncio.CancelledError:
                    pass

    for how in ("token", "task"):
        block, token = Block(), CancellationToken()
        _, one = wrapped(tmp_path / how, team(Stubborn(block)))
        run = start(one, block, how, token)
        await block.reached.wait()
        token.cancel() if how == "token" else run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(run, HANG)
        block.waits = False
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()


async def test_a_cancellation_that_ended_the_process_is_gone_on_from(tmp_path):
    for life in range(2):
        block = Block()
        block.waits = not life
        durability, one = wrapped(tmp_path / "store", AssistantAgent("a", Waiting(block)))
        run = asyncio.ensure_future(one.run(task="go"))
        if life:
            assert (await run).messages[-1].content == "heard 2"
        else:
            await block.reached.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        durability.close()


@pytest.mark.parametrize("how", ["wait_for", "token"])
async def test_a_timeout_that_the_program_survives(tmp_path, how):
    """The second run's prompt depends on how far the first one came."""
    said = []
    for life in range(2):
        block = Block()
        did: list[int] = []

        def work(number: int) -> str:
            """Work."""
            did.append(number)  # noqa: B023 - this life's
            return "worked"

        def script(messages, settings):
            return f"heard {len(messages)}" if results(messages) else [call("work", number=1)]

        client = Waiting(block, lambda m: results(m) == 1, script)
        durability, one = wrapped(tmp_path / "store", AssistantAgent("a", client, tools=[work], max_tool_iterations=3))
        token = CancellationToken()
        if how == "token" and not life:
            asyncio.ensure_future(block.reached.wait()).add_done_callback(lambda _, token=token: token.cancel())
        with pytest.raises(TimeoutError if how == "wait_for" else asyncio.CancelledError):
            await asyncio.wait_for(one.run(task="one", cancellation_token=token), 1 if how == "wait_for" else HANG)
        block.waits = False
        said.append((await one.run(task="two")).messages[-1].content)
        assert len(client.asked) == (0 if life else 2)
        assert did == ([] if life else [1])
        durability.close()
    assert said[0] == said[1]


async def test_what_a_thread_did_after_the_cancellation_does_not_move_the_next_life(tmp_path):
    """The tool's result is on record, and came too late for the run that asked."""
    said = []
    for life in range(2):
        started, release = threading.Event(), threading.Event()

        def hold(number: int) -> str:
            """Hold."""
            started.set()  # noqa: B023 - this life's
            release.wait(HANG)  # noqa: B023 - this life's
            return "held"

        client = Scripted(lambda m, s: f"heard {len(m)}" if len(m) != 2 else [call("hold", number=1)])
        durability, one = wrapped(tmp_path / "store", AssistantAgent("a", client, tools=[hold], max_tool_iterations=3))
        token = CancellationToken()
        run = asyncio.ensure_future(one.run(task="one", cancellation_token=token))
        if not life:
            await asyncio.to_thread(started.wait, HANG)
            token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(run, HANG)
        release.set()
        from letitloop_autogen.streams import _let_go

        await asyncio.gather(*_let_go, return_exceptions=True)
        assert started.is_set() == (not life)
        said.append((await one.run(task="two")).messages[-1].content)
        assert len(client.asked) == (0 if life else 2)
        durability.close()
    assert said[0] == said[1]


async def test_a_timeout_that_is_gone_is_told(tmp_path, monkeypatch):
    from letitloop_autogen import cancelling

    for life in range(2):
        block = Block()
        durability, one = wrapped(tmp_path / "store", AssistantAgent("a", Waiting(block)))
        run = asyncio.ensure_future(one.run(task="one"))
        if not life:
            await block.reached.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            block.waits = False
            await one.run(task="two")
        else:
            monkeypatch.setattr(cancelling, "_PATIENCE", 0.0)
            with pytest.raises(StepChanged, match=r"was cancelled at .* before, and the program went on without it"):
                await asyncio.wait_for(run, HANG)
        durability.close()


async def test_agents_that_ended_before_the_cancellation_end_before_it_again(tmp_path):
    """a and b run side by side; b waits for ever, a had come to its end."""
    prompts = []
    for life in range(2):
        block = Block()
        ended = asyncio.Event()
        first, a, c = speaker("first"), speaker("a"), speaker("c")
        b = AssistantAgent("b", Waiting(block))
        builder = DiGraphBuilder()
        for node in (first, a, b, c):
            builder.add_node(node)
        builder.add_edge(first, a).add_edge(first, b).add_edge(a, c).add_edge(b, c)
        durability, one = wrapped(tmp_path / "store", GraphFlow(builder.get_participants(), graph=builder.build()))

        async def read(one=one, ended=ended):
            async for item in one.run_stream(task="go"):
                if item.source == "a":
                    ended.set()

        run = asyncio.ensure_future(read())
        await asyncio.wait_for(ended.wait(), HANG)
        if not life:
            await block.reached.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(run, HANG)
        later = durability.wrap_agent(a)
        await later.run(task="and now?")
        prompts.append([str(one.content) for one in await a._model_context.get_messages()])
        durability.close()
    assert prompts[0] == prompts[1]


async def test_a_stream_that_is_left_and_a_run_after_it(tmp_path):
    said = []
    for life in range(2):
        client = Scripted(lambda m, s: f"heard {len(m)}")
        agents = [AssistantAgent(name, client) for name in "abc"]
        durability, one = wrapped(tmp_path / "store", RoundRobinGroupChat(agents, max_turns=6))
        stream = one.run_stream(task="one")
        async for item in stream:
            if item.source == "b":
                break
        await stream.aclose()
        await one.reset()
        said.append([one.to_text() for one in (await asyncio.wait_for(one.run(task="two"), HANG)).messages])
        assert life == 0 or client.asked == []
        durability.close()
    assert said[0] == said[1]


async def test_a_model_in_a_custom_agent_that_passes_no_token(tmp_path):
    block = Block()

    class Asking(Custom):
        def __init__(self, client):
            super().__init__(None)
            self.clients = {"slow": client}

        async def on_messages(self, messages, cancellation_token):
            answer = await asyncio.shield(self.clients["slow"].create([UserMessage(content="hi", source="me")]))
            return Response(chat_message=TextMessage(content=answer.content, source=self.name))

    durability, one = wrapped(tmp_path / "store", team(Asking(Waiting(block))))
    run = asyncio.ensure_future(one.run(task="go"))
    await block.reached.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, HANG)
    durability.close()


# --- Ctrl+C, and what leaves the program -------------------------------------------------------------------------------------


def press():
    asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.run knows nothing of Ctrl+C")
@pytest.mark.parametrize(("kind", "caught"), [("agent", "outside"), ("agent", "inside"), ("team", "inside")])  # of one event loop
def test_ctrl_c_that_the_program_survives(tmp_path, kind, caught):
    """It is history: the next life is interrupted at the same place, and has the same second run."""
    said = []
    for life in range(2):
        block = Block()
        client = Waiting(block, lambda m: press() is None)
        durability, one = wrapped(
            tmp_path / "store", AssistantAgent("a", client) if kind == "agent" else team(AssistantAgent("a", client))
        )

        async def both(one=one, client=client):
            try:
                await one.run(task="one")
            except asyncio.CancelledError:
                said.append("stopped")
            client.at = lambda messages: False
            return await one.run(task="two")

        if caught == "inside":
            result = asyncio.run(both())
        else:
            with pytest.raises(KeyboardInterrupt):
                asyncio.run(one.run(task="one"))
            said.append("stopped")
            client.at = lambda messages: False
            result = asyncio.run(one.run(task="two"))
        said.append([one.to_text() for one in result.messages])
        assert len(client.asked) == (0 if life else 1)
        durability.close()
    assert said[:2] == said[2:]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_tool_that_leaves_the_program_which_goes_on(tmp_path, error):
    """Its call is not on record: it is made again, and leaves again."""
    said = []
    for life in range(2):
        did = []

        async def work(number: int) -> str:
            """Work."""
            did.append(number)  # noqa: B023 - this life's
            raise error("out")

        script = Scripted(lambda m, s: "done" if m[-1].content == "two" else [call("work", number=1)])
        durability, one = wrapped(tmp_path / "store", AssistantAgent("a", script, tools=[work]))
        with pytest.raises(error):
            asyncio.run(one.run(task="one"))
        said.append([one.to_text() for one in asyncio.run(one.run(task="two")).messages])
        assert did == [1]
        assert len(script.asked) == (0 if life else 2)
        durability.close()
    assert said[0] == said[1]


@pytest.mark.parametrize("where", ["model", "tool"])
async def test_an_answer_that_comes_after_the_cancellation_came_too_late(where):
    """It is on record, and the agent goes on without it, in each life."""

    def work() -> str:
        """Work."""
        if where == "tool":
            tokens[-1].cancel()
        return "worked"

    def script(messages, settings):
        if where == "model" and len(messages) == 2:
            tokens[-1].cancel()
        return [call("work")] if messages[-1].type == "UserMessage" else f"done {len(messages)}"

    async def live():
        with AutoGenStateSerializer(session_id=f"late {where}") as durability:
            agents = [AssistantAgent(one, Scripted(script), tools=[work], reflect_on_tool_use=True) for one in "ab"]
            team = durability.wrap_team(RoundRobinGroupChat(agents, max_turns=2))
            tokens.append(CancellationToken())
            with pytest.raises(asyncio.CancelledError):
                await team.run(task="go", cancellation_token=tokens[-1])
            tokens.append(CancellationToken())
            return [one.to_text() for one in (await team.run(task="more")).messages]

    tokens = []
    assert await live() == await live()
