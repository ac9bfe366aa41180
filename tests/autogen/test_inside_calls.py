"""Wrapped agents and teams that a recorded call runs: it is answered without them, and they know what they knew."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest
from autogen_agentchat.agents import (
    ApprovalResponse,
    AssistantAgent,
    BaseChatAgent,
    CodeExecutorAgent,
    SocietyOfMindAgent,
    UserProxyAgent,
)
from autogen_agentchat.base import Response
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken, SingleThreadedAgentRuntime
from autogen_core.code_executor import CodeExecutor, CodeResult
from autogen_core.memory import Memory, MemoryQueryResult, UpdateContextResult
from autogen_core.model_context import BufferedChatCompletionContext, UnboundedChatCompletionContext
from autogen_core.models import AssistantMessage, UserMessage

from letitloop import Ledger, StepChanged, UnknownOutcome, carry, effect, step
from letitloop.adapters.autogen import AutoGenStateSerializer
from letitloop.errors import Halt
from letitloop_autogen import kept
from tests.autogen.scripted import Scripted, call, results
from tests.effects.bank import Bank

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


@pytest.fixture
def world():
    found = World()
    yield found
    found.end()


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


# --- what cannot be put right is told ---------------------------------------------------------------------------------------


async def test_what_an_agent_does_not_say_is_told(world, caplog):
    await world.live(lambda: Forgetful("expert"), lambda expert: by_tool(expert, by_run))
    assert caplog.text.count("'expert' is run inside 'tool ask 1.0', and keeps something in its attributes") == 1


async def test_two_calls_at_once_are_told(world, caplog):
    def script(messages, settings):
        return [call("ask", q=f"q{i}") for i in range(2)] if not results(messages) else "done"

    def boss(expert):
        return AssistantAgent("boss", Mortal(script), tools=in_tool(expert, by_run), max_tool_iterations=2)

    expected = await world.live(assistant, boss)
    assert "'expert' is run by 'tool ask 1.0' and 'tool ask 1.1' at the same time" in caplog.text
    assert await world.live(assistant, boss) == expected
    with pytest.raises(Died):
        await world.live(assistant, boss, 3, session_id="dies")
    assert await world.live(assistant, boss, session_id="dies") == expected


async def test_an_agent_of_another_session_is_told(world, caplog):
    def make():
        return world.begin("other").wrap_agent(assistant())

    def boss(expert):
        world.begin("inside", default="record")
        return by_tool(expert, by_run)

    world.wrap = lambda one: one if getattr(one.run, "letitloop_session", None) else world.open[-1].wrap_agent(one)
    await world.live(make, boss, session_id="unused")
    assert "'expert' is run inside 'tool ask 1.0' of another session" in caplog.text


async def test_an_agent_that_a_call_makes_and_others_use_is_told(world, caplog):
    made = []

    async def late(_, text):
        if not made:
            made.append(world.open[-1].wrap_agent(assistant("late")))
        return await by_run(made[0], text)

    async def fresh(_, text):
        return await by_run(world.open[-1].wrap_agent(assistant("fresh")), text)

    await world.live(assistant, lambda expert: by_tool(expert, fresh))
    assert "fresh" not in caplog.text
    await world.live(assistant, lambda expert: by_tool(expert, late), session_id="late")
    assert caplog.text.count("'late' was made inside a recorded call") == 1


@pytest.mark.parametrize("begun", [False, True])
async def test_a_run_that_outlives_its_call_is_told(world, caplog, begun):
    left = []

    async def leave(expert, text):
        left.append(asyncio.ensure_future(by_run(expert, text)))
        if begun:
            await asyncio.sleep(0)
        return "left"

    await world.live(assistant, lambda expert: by_tool(expert, leave))
    await asyncio.wait_for(asyncio.gather(*left), HANG)
    assert caplog.text.count("is run by something that 'tool ask 1.0' leaves behind") == 1


@pytest.mark.parametrize("how", ["step", "effect"])
async def test_a_step_or_an_effect_that_runs_an_agent_is_told(world, caplog, how):
    options = {}
    if how == "effect":
        options["tools"] = {"ask": effect(key="ask/{q}", recover="resend")}
    await world.live(assistant, lambda expert: by_tool(expert, by_step if how == "step" else by_run), **options)
    assert caplog.text.count("whose record says nothing of it, and is run again") == 1


# --- what stops a run -------------------------------------------------------------------------------------------------------


def in_tool_that_catches(expert, way):
    async def ask(q: str) -> str:
        """Ask the expert, and make the best of it."""
        try:
            return await way(expert, q)
        except Exception as error:
            return f"no answer: {error}"

    return [ask]


@pytest.mark.parametrize("team", [False, True], ids=["agent", "team"])
@pytest.mark.parametrize("place", [in_tool, in_tool_that_catches, in_thread])
async def test_an_unknown_outcome_inside_a_call_is_not_its_answer(world, tmp_path, place, team):
    """It reaches the caller; when it is known what happened, the call is made again, and the model reads its answer."""
    bank = Bank(tmp_path / "bank", "opaque", "lost")

    def pay(number: int) -> str:
        """Pay."""

    def payer():
        script = Mortal(lambda m, s: f"told {m[-1].content[0].content}" if results(m) else [call("pay", number=1)])
        agent = AssistantAgent("payer", script, tools=[pay], max_tool_iterations=2)
        return RoundRobinGroupChat([agent], max_turns=1) if team else agent

    def boss(messages, settings):
        return str(messages[-1].content[0].content) if results(messages) else [call("ask", q="pay")]

    async def live():
        world.end()
        durability = world.begin(tools={"pay": effect(key="invoice/{number}", provider=bank)})
        agent = AssistantAgent("boss", Mortal(boss), tools=place(world.wrap(payer()), by_run), max_tool_iterations=2)
        return (await asyncio.wait_for(durability.wrap_agent(agent).run(task="go"), HANG)).messages[-1].to_text()

    for _ in range(2):
        with pytest.raises(UnknownOutcome, match="invoice/1"):
            await live()
    world.end()
    Ledger().resolve("default", "invoice/1", outcome="succeeded", evidence="the books", by="Ada", result="paid by hand")
    assert await live() == "told paid by hand"
    assert len(bank.requests()) == 1


async def test_a_change_inside_a_call_is_not_its_answer(world):
    def boss(expert):
        return by_tool(expert, by_run, in_tool_that_catches)

    def with_helper():
        """It dies in the middle of the first call, when the expert has been answered once."""
        helper = AgentTool(assistant("helper"))
        script = Mortal(lambda m, s: "done" if results(m) else [call("helper", task="t")])
        return AssistantAgent("expert", script, tools=[helper], system_message=prompt[0], max_tool_iterations=2)

    prompt = ["one"]
    expected = await world.live(with_helper, boss, session_id="uninterrupted")
    with pytest.raises(Died):
        await world.live(with_helper, boss, 2)
    prompt[0] = "two"
    with pytest.raises(StepChanged, match="system_message"):
        await world.live(with_helper, boss)
    prompt[0] = "one"
    assert await world.live(with_helper, boss) == expected


@pytest.mark.parametrize("how", ["task", "token"])
async def test_a_cancelled_call_that_the_program_survives(world, how):
    """What the expert was told before the cancellation it knows in the runs after it, in each life."""

    class Slow(Scripted):
        async def create(self, messages, **settings):
            if str(messages[-1].content) == "slow":
                waiting.set()
                await asyncio.Event().wait()
            return await super().create(messages, **settings)

    def boss(messages, settings):
        return "done" if results(messages) == 2 else [call("ask", q=["fast", "slow"][results(messages)])]

    async def live(dies=False):
        world.end()
        durability = world.begin()
        expert = durability.wrap_agent(AssistantAgent("expert", Slow(recall)))
        agent = AssistantAgent("boss", Scripted(boss), tools=in_tool(expert, by_run), max_tool_iterations=3)
        durability.wrap_agent(agent)
        token = CancellationToken()
        run = asyncio.ensure_future(agent.run(task="go", cancellation_token=token))
        if not slow_once:
            await asyncio.wait_for(waiting.wait(), HANG)
            slow_once.append(True)
            run.cancel() if how == "task" else token.cancel()
        elif how == "task":  # as the same timeout would
            asyncio.get_running_loop().call_later(0.3, run.cancel)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(run, HANG)
        said = [await by_run(expert, "then")]
        if dies:
            raise Died
        return [*said, await by_run(expert, "last")]

    waiting, slow_once = asyncio.Event(), []
    with pytest.raises(Died):
        await live(dies=True)
    expected = ["[5 fast slow then]", "[7 fast slow then last]"]
    assert await live() == expected
    assert await live() == expected
