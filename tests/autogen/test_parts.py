"""What makes calls is found wherever the author of an agent put it, or named; and nothing of it stays when it is unwrapped."""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core.code_executor import CodeBlock
from autogen_core.memory import ListMemory, MemoryContent, MemoryMimeType
from autogen_core.models import RequestUsage, UserMessage
from autogen_core.tools import FunctionTool, StaticWorkbench, ToolResult, Workbench
from autogen_ext.models.replay import ReplayChatCompletionClient
from pydantic import BaseModel, ConfigDict, PrivateAttr

from letitloop import effect, step
from letitloop.adapters.autogen import AutoGenStateSerializer
from letitloop.errors import InvalidArgument
from tests.autogen.programs import Shell
from tests.autogen.scripted import INFO, Scripted, call, results
from tests.effects.bank import Bank


class Keeper(BaseChatAgent):
    """An agent of the user's own, which keeps what it needs in a way of its own."""

    produced_message_types = (TextMessage,)

    def __init__(self, work, **kept):
        super().__init__("keeper", "Keeps.")
        self.work = work
        for name, value in kept.items():
            setattr(self, name, value)

    async def on_messages(self, messages, cancellation_token):
        return Response(chat_message=TextMessage(content=await self.work(self), source=self.name))

    async def on_reset(self, cancellation_token):
        pass


async def ask(client):
    return (await client.create([UserMessage(content="hi", source="me")])).content


# --- wherever it lies --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frozen:
    client: Any


class Slots:
    __slots__ = ("__hidden", "client")

    def __init__(self, client):
        self.client = client
        self.__hidden = client

    @property
    def hidden(self):
        return self.__hidden


class Model(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    client: Any
    _private: Any = PrivateAttr(None)


class Pair(NamedTuple):
    fast: Any
    smart: Any


class Classy:
    """Its client lies in its class."""

    client: Any = None


class Mine(dict):
    """A dictionary of the user's own."""


def private(client):
    model = Model(client=None)
    model._private = client
    return model


def classy(client):
    return type("Classier", (Classy,), {"client": client})()


HELD = {
    "dict": (lambda c: {"fast": c}, lambda held: held["fast"]),
    "dict of dicts": (lambda c: {"all": {"fast": [c]}}, lambda held: held["all"]["fast"][0]),
    "dictionary of one's own": (lambda c: Mine(fast=c), lambda held: held["fast"]),
    "list": (lambda c: [c], lambda held: held[0]),
    "deque": (lambda c: deque([c]), lambda held: held[0]),
    "tuple": (lambda c: (1, c), lambda held: held[1]),
    "named tuple": (lambda c: Pair(c, None), lambda held: held.fast),
    "set": (lambda c: {c}, lambda held: next(iter(held))),
    "namespace": (lambda c: SimpleNamespace(client=c), lambda held: held.client),
    "helper": (lambda c: SimpleNamespace(inner=Frozen([c])), lambda held: held.inner.client[0]),
    "frozen": (Frozen, lambda held: held.client),
    "slots": (Slots, lambda held: held.client),
    "hidden slot": (Slots, lambda held: held.hidden),
    "pydantic": (lambda c: Model(client=c), lambda held: held.client),
    "private": (private, lambda held: held._private),
    "class": (classy, lambda held: held.client),
    "method": (lambda c: c.create, lambda held: SimpleNamespace(create=held)),
    "partial": (lambda c: partial(c.create, json_output=None), lambda held: SimpleNamespace(create=held)),
}


@pytest.mark.parametrize("how", HELD)
async def test_a_client_anywhere_in_a_custom_agent(begin, how):
    hold, get = HELD[how]

    async def work(agent):
        return await ask(get(agent.held))

    for life in range(2):
        client = Scripted(lambda m, s, life=life: f"life {life}")
        held = hold(client)
        agent = Keeper(work, held=held)
        durability = begin()
        durability.wrap_agent(agent)
        assert (await agent.run(task="go")).messages[-1].content == "life 0"
        assert len(client.asked) == (0 if life else 1)
        durability.unwrap()
        assert agent.held == held
        back = get(agent.held)
        assert back is client or back.create in (client.create, getattr(held, "func", None)) or back.create is held
        assert "letitloop" not in repr(vars(agent))


async def test_queues_and_cycles(begin):
    async def work(agent):
        client = agent.pool.get_nowait()
        agent.pool.put_nowait(client)
        return await ask(client)

    for life in range(2):
        client = Scripted(lambda m, s: "pooled")
        pool = asyncio.Queue()
        pool.put_nowait(client)
        loop: dict[str, Any] = {}
        loop["self"] = loop
        agent = Keeper(work, pool=pool, loop=loop)
        agent.helper = SimpleNamespace(agent=agent, back=loop)
        begin().wrap_agent(agent)
        await agent.run(task="go")
        assert len(client.asked) == (0 if life else 1)


async def test_everything_else_that_makes_calls(begin):
    did = []

    def look(number: int) -> str:
        """Look."""
        did.append(number)
        return f"saw {number}"

    async def work(agent):
        kept = agent.kept
        seen = await kept["tools"].call_tool("look", {"number": 1})
        noted = await kept["notes"].query("x")
        ran = await kept["shell"].execute_code_blocks([CodeBlock(code="1", language="python")], None)
        return f"{seen.to_text()} {noted.results[0].content} {ran.output}"

    class Notes(ListMemory):
        async def query(self, *args, **kwargs):
            did.append("asked")
            return await super().query(*args, **kwargs)

    class Machine(Shell):
        def __init__(self):
            pass

        async def execute_code_blocks(self, code_blocks, cancellation_token):
            did.append("ran")
            from autogen_core.code_executor import CodeResult

            return CodeResult(0, "ran")

    for _ in range(2):
        notes = Notes("notes", [MemoryContent(content="note", mime_type=MemoryMimeType.TEXT)])
        kept = {"tools": StaticWorkbench([FunctionTool(look, "Look.", "look")]), "notes": notes, "shell": Machine()}
        agent = begin().wrap_agent(Keeper(work, kept=kept))
        assert (await agent.run(task="go")).messages[-1].content == "saw 1 note ran"
    assert did == [1, "asked", "ran"]


async def test_a_helper_that_agents_share_works_for_whoever_uses_it(begin):
    """Its calls are recorded where the agent is that makes them; an agent that is not wrapped is untouched."""

    async def work(agent):
        return await ask(agent.helper.client)

    for life in range(2):
        client = Scripted(None)
        client.script = lambda m, s, client=client: f"answer {len(client.asked)}"
        helper = SimpleNamespace(client=client)
        agents = [Keeper(work, helper=helper) for _ in range(3)]
        for number, agent in enumerate(agents):
            agent._name = f"keeper{number}"
        durability = begin()
        for agent in agents[:2]:
            durability.wrap_agent(agent)
        said = await asyncio.gather(*(agent.run(task="go") for agent in agents[:2]))
        assert sorted(one.messages[-1].content for one in said) == ["answer 1", "answer 2"]
        assert len(client.asked) == (0 if life else 2)
        await agents[2].run(task="go")
        assert len(client.asked) == (1 if life else 3)


async def test_a_helper_of_two_sessions_is_refused(begin, tmp_path):
    helper = SimpleNamespace(clients={"fast": Scripted(lambda m, s: "x")})
    one, other = (Keeper(None, helper=helper) for _ in range(2))
    begin().wrap_agent(one)
    with AutoGenStateSerializer(session_id="other") as second, pytest.raises(InvalidArgument, match=r"wrapped.*container of its"):
        second.wrap_agent(other)
    assert "run" not in vars(other)


async def test_what_cannot_be_replaced_is_refused_and_nothing_is_changed(begin):
    client = Scripted(lambda m, s: "x")
    agent = Keeper(None, first={"client": client}, clients=MappingProxyType({"fast": client}))
    before = dict(vars(agent))
    durability = begin()
    with pytest.raises(InvalidArgument, match=r"'keeper'.*'clients', a mappingproxy.*Nothing was changed"):
        durability.wrap_agent(agent)
    assert vars(agent) == before
    assert agent.first == {"client": client}
    agent.clients = dict(agent.clients)
    durability.wrap_agent(agent)


async def test_what_a_function_has_got_hold_of_is_told(begin, caplog):
    client = Scripted(lambda m, s: "x")
    agent = Keeper(None, pick=lambda: client, keys={client: 1})
    with caplog.at_level(logging.WARNING, "letitloop"):
        begin().wrap_agent(agent)
    assert "function at 'pick' that uses a Scripted of its own" in caplog.text
    assert "a Scripted as a key at 'keys'" in caplog.text


async def test_agents_inside_a_helper_are_durable_as_parts_of_its_runs_alone(begin):
    async def work(agent):
        return (await agent.app.expert.run(task="help")).messages[-1].content

    for life in range(2):
        client = Scripted(lambda m, s: "advice")
        expert = AssistantAgent("expert", client)
        agent = begin().wrap_agent(Keeper(work, app=SimpleNamespace(expert=expert)))
        assert (await agent.run(task="go")).messages[-1].content == "advice"
        assert len(client.asked) == (0 if life else 1)
        await expert.run(task="alone")  # as a stock agent
        assert len(client.asked) == (1 if life else 2)


async def test_calls_inside_a_recorded_call_belong_to_it(begin):
    """A tool asks the agent's own client and workbench: in the next life the tool is not called, and nothing else moves."""
    died = []

    async def work(agent):
        first = await agent.bench.call_tool("outer", {})
        text = await ask(agent.client)
        second = await agent.bench.call_tool("inner", {})
        if not died:
            died.append(True)
            raise RuntimeError("died")
        return " ".join([first.to_text(), text, second.to_text(), await ask(agent.client)])

    did = []
    for _ in range(2):
        client = Scripted(None)
        client.script = lambda m, s, client=client: f"answer {len(client.asked)}"

        async def outer() -> str:
            """Use the others."""
            did.append("outer")
            inner = await agent.bench.call_tool("inner", {})  # noqa: B023 - this life's
            return f"{inner.to_text()} {await ask(agent.client)}"  # noqa: B023 - this life's

        def inner() -> str:
            """Work."""
            did.append("inner")
            return f"inner {len(did)}"

        bench = StaticWorkbench([FunctionTool(one, one.__name__, one.__name__) for one in (outer, inner)])
        agent = begin().wrap_agent(Keeper(work, bench=bench, client=client))
        try:
            text = (await agent.run(task="go")).messages[-1].content
        except RuntimeError:
            continue
    assert text == "inner 2 answer 1 answer 2 inner 3 answer 1"
    assert did == ["outer", "inner", "inner"]


async def test_a_client_in_a_step(begin):
    for life in range(2):
        client = Scripted(None)
        client.script = lambda m, s, client=client: f"answer {len(client.asked)}"

        async def work(agent):
            async def twice():
                return [await ask(agent.client), await ask(agent.client)]

            return str([*await step("twice", twice), await ask(agent.client)])

        agent = begin().wrap_agent(Keeper(work, client=client))
        assert (await agent.run(task="go")).messages[-1].content == "['answer 1', 'answer 2', 'answer 3']"
        assert len(client.asked) == (0 if life else 3)


async def test_parallel_calls_of_a_custom_agent(begin):
    async def work(agent):
        texts = ("one", "two", "three")
        asked = [[UserMessage(content=text, source="me")] for text in texts]
        said = await asyncio.gather(*(agent.clients[i % 2].create(one) for i, one in enumerate(asked)))
        return " ".join(one.content for one in said)

    for life in range(2):
        client = Scripted(lambda m, s: m[0].content.upper())
        agent = begin().wrap_agent(Keeper(work, clients=(client, client)))
        assert (await agent.run(task="go")).messages[-1].content == "ONE TWO THREE"
        assert len(client.asked) == (0 if life else 3)


async def test_from_a_thread(begin):
    """A wrapped agent that is driven by an event loop of another thread."""
    for life in range(2):
        client = Scripted(lambda m, s: "threaded")
        agent = begin().wrap_agent(AssistantAgent("agent", client))
        said = []
        thread = threading.Thread(target=lambda agent=agent, said=said: said.append(asyncio.run(agent.run(task="go"))))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert said[0].messages[-1].content == "threaded"
        assert len(client.asked) == (0 if life else 1)


async def test_two_wrapped_agents_share_a_tool_object(begin):
    did = []

    def look(number: int) -> str:
        """Look."""
        did.append(number)
        return f"saw {number}"

    for life in range(2):
        tool = FunctionTool(look, "Look.", "look")
        client = Scripted(lambda m, s: "done" if m[-1].type == "FunctionExecutionResultMessage" else [call("look", number=len(m))])
        agents = [AssistantAgent(name, client, tools=[tool], max_tool_iterations=2) for name in ("one", "two")]
        team = begin().wrap_team(RoundRobinGroupChat(agents, max_turns=2))
        result = await team.run(task="go")
        assert [one.content for one in result.messages if isinstance(one, TextMessage)] == ["go", "done", "done"]
        assert len(client.asked) == (0 if life else 4)
        assert tool._func is look
    assert did == [2, 3]


# --- what is changed later ---------------------------------------------------------------------------------------------------


async def test_a_client_that_is_put_there_later_is_recorded(begin):
    for life in range(2):
        first, second, third = (Scripted(lambda m, s, text=text: text) for text in ("first", "second", "third"))
        agent = AssistantAgent("agent", first)
        durability = begin()
        durability.wrap_agent(agent)
        assert (await agent.run(task="go")).messages[-1].content == "first"
        agent._model_client = second
        assert (await agent.run(task="go")).messages[-1].content == "second"
        agent._model_client = third
        assert len(first.asked) == len(second.asked) == (0 if life else 1)
        team = durability.wrap_team(RoundRobinGroupChat([agent], max_turns=1))
        assert (await team.run(task="go")).messages[-1].content == "third"
        assert len(third.asked) == (0 if life else 1)
        durability.unwrap()
        assert agent._model_client is third
        assert "total_usage" not in vars(first)


async def test_a_team_that_has_been_run_is_refused(begin):
    agents = [AssistantAgent(name, Scripted(lambda m, s: "a")) for name in "ab"]
    team = SelectorGroupChat(agents, Scripted(lambda m, s: "a"), max_turns=1)
    outer = RoundRobinGroupChat([team], max_turns=1)
    before = dict(vars(agents[0]))
    await team.run(task="go")
    for late in (team, outer):
        with pytest.raises(InvalidArgument, match=r"has been run or reset before it was wrapped.*make a new one"):
            begin().wrap_team(late)
    assert "run" not in vars(outer)
    assert vars(agents[0]) == before
    durability = begin()
    again = durability.wrap_team(RoundRobinGroupChat(agents, max_turns=1))
    await again.run(task="go")
    assert durability.wrap_team(again) is again  # twice, after its run: it was wrapped before


@dataclass
class Unhashable(ReplayChatCompletionClient):
    """A dataclass has an equality of its own, and no hash."""

    answers: list[str] = field(default_factory=lambda: ["hello"])

    def __post_init__(self):
        super().__init__(self.answers, INFO)


@dataclass
class UnhashableMemory(ListMemory):
    number: int = 0

    def __post_init__(self):
        super().__init__("notes")


@pytest.mark.parametrize("kind", ["agent", "team", "holder"])
async def test_a_deep_copy_is_refused_and_never_drives_the_original(begin, kind):
    client = Scripted(lambda m, s: "heard")
    agent = AssistantAgent("a", client)
    team = RoundRobinGroupChat([agent], max_turns=1)
    whole = {"agent": agent, "team": team, "holder": {"agents": [agent]}}[kind]
    durability = begin()
    durability.wrap_team(team)
    with pytest.raises(InvalidArgument, match=r"is wrapped by the session 'program', and was to be copied"):
        copy.deepcopy(whole)
    durability.unwrap()
    copied = copy.deepcopy(agent)
    await copied.run(task="go")
    assert client.asked == []
    assert len(copied._model_client.asked) == 1


async def test_a_deep_copy_of_what_a_stand_in_was_put_into_is_stock(begin):
    class Helper:
        def __init__(self, client):
            self.client = client

    helper = Helper(Scripted(lambda m, s: "heard"))
    begin().wrap_agent(Keeper(lambda one: ask(one.helper.client), helper=helper))
    copied = copy.deepcopy(helper)
    assert type(copied.client) is Scripted
    assert copied.client is not helper.client._inner


async def test_objects_are_told_apart_by_identity(begin):
    usage = []
    for _ in range(2):
        clients = [Unhashable(), Unhashable()]
        assert clients[0] == clients[1]
        durability = begin()
        for name, client in zip("ab", clients, strict=True):
            agent = durability.wrap_agent(AssistantAgent(name, client, memory=[UnhashableMemory(), UnhashableMemory()]))
            assert (await agent.run(task="go")).messages[-1].content == "hello"
        usage.append([client.total_usage() for client in clients])
    assert usage[0] == usage[1]
    assert usage[0][0] != RequestUsage(0, 0)


# --- names in tools= ---------------------------------------------------------------------------------------------------------


def pay(number: int) -> str:
    """Pay."""
    raise AssertionError("paid")


def payer(workbench=None, tools=(pay,)):
    client = Scripted(lambda m, s: "done" if results(m) else [call("pay", number=1)])
    return AssistantAgent("clerk", client, tools=None if workbench else list(tools), workbench=workbench)


class Dynamic(Workbench):
    """Tells its tools when it is asked."""

    def __init__(self):
        self.called = []

    async def list_tools(self):
        properties = {"number": {"type": "integer"}}
        return [{"name": "pay", "description": "", "parameters": {"type": "object", "properties": properties}}]

    async def call_tool(self, name, arguments=None, cancellation_token=None, call_id=None):
        self.called.append(name)
        return ToolResult(name=name, result=[])

    async def start(self):
        pass

    stop = reset = start

    async def save_state(self):
        return {}

    async def load_state(self, state):
        pass


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("team", [False, True])
async def test_a_misspelt_name_is_refused(begin, dynamic, team):
    workbench = Dynamic() if dynamic else None
    durability = begin(tools={"pya": effect(key="invoice/{number}")})
    agent = payer(workbench)
    one = durability.wrap_team(RoundRobinGroupChat([agent], max_turns=1)) if team else durability.wrap_agent(agent)
    with pytest.raises(InvalidArgument, match=r"'pya'.*no wrapped agent has a tool of that name, and 'pay' has no policy"):
        await one.run(task="go")
    assert not dynamic or workbench.called == []


async def test_a_name_that_nothing_has_is_told(begin, caplog, tmp_path):
    bank = Bank(tmp_path / "bank", "window")
    policies = {"pay": effect(key="invoice/{number}", provider=bank), "remember": "rerun", "search": "record"}
    agent = begin(tools=policies).wrap_agent(payer())
    with caplog.at_level(logging.WARNING, "letitloop"):
        await agent.run(task="go")
        await agent.run(task="go")
    assert caplog.text.count("no wrapped agent has a tool of that name so far") == 1
    assert "'remember'" in caplog.text


def test_an_effect_that_does_not_fit_its_tool_is_refused_when_it_is_wrapped(begin):
    agent = payer()
    with pytest.raises(InvalidArgument, match=r"effect on pay: nummer is no parameter of it\. Nothing was done\."):
        begin(tools={"pay": effect(key="invoice/{nummer}")}).wrap_agent(agent)
    assert "run" not in vars(agent)
