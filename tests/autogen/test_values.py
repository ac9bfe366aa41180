"""What AutoGen's objects are made of comes back as it was: their classes, texts that are no UTF-8, numbers without an end."""

from __future__ import annotations

import math

import pytest
from autogen_agentchat.agents import ApprovalResponse, AssistantAgent, CodeExecutorAgent, UserProxyAgent
from autogen_agentchat.base import TerminationCondition
from autogen_agentchat.messages import BaseAgentEvent, StopMessage, StructuredMessage, TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core.code_executor import CodeResult
from autogen_core.memory import ListMemory, MemoryContent, MemoryMimeType, UpdateContextResult
from autogen_core.models import ChatCompletionTokenLogprob, CreateResult, RequestUsage, TopLogprob, UserMessage
from autogen_core.tools import BaseStreamTool
from autogen_ext.models.replay import ReplayChatCompletionClient
from pydantic import BaseModel

from letitloop import UnencodableError, effect
from letitloop.adapters.autogen import AutoGenStateSerializer
from tests.autogen.programs import Shell
from tests.autogen.scripted import Scripted, call, results
from tests.effects.bank import Bank

NAME = b"caf\xe9.txt".decode("utf-8", "surrogateescape")
"""A file name as ``os.listdir()`` gives it where the system's encoding is another one."""


@pytest.fixture
def begin(tmp_path):
    opened = []

    def begin(**options):
        if opened:
            opened.pop().close()
        opened.append(AutoGenStateSerializer(session_id="values", store=tmp_path / "store", **options))
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


# --- what a tool streams -----------------------------------------------------------------------------------------------------


class Progress(BaseAgentEvent):
    """An event of the user's own."""

    content: str
    share: float = math.inf

    def to_text(self):
        return self.content


class Remark(TextMessage):
    """Says of itself that it is a TextMessage, as its base does."""

    mood: str = "good"


class Found(BaseModel):
    rows: list[int]


class Args(BaseModel):
    number: int


class Streaming(BaseStreamTool[Args, BaseModel, str]):
    def __init__(self, shows, did):
        super().__init__(Args, str, "work", "Works.")
        self.shows = shows
        self.did = did

    async def run(self, args, cancellation_token):
        self.did.append("run")
        return "done"

    async def run_stream(self, args, cancellation_token):
        for one in self.shows():
            yield one
            self.did.append("on")
        yield "done"


SHOWN = {
    "stock": lambda: TextMessage(content=NAME, source="work"),
    "own": lambda: Progress(content=NAME, source="work"),
    "of a base's name": lambda: Remark(content="so", source="work", mood="bad"),
    "structured": lambda: StructuredMessage[Found](content=Found(rows=[1, 2]), source="work", format_string="{rows}"),
}


def working(messages, settings):
    return "over" if results(messages) else [call("work", number=1)]


def worker(shows, did):
    return AssistantAgent("a", Scripted(working), tools=[Streaming(shows, did)], max_tool_iterations=2)


@pytest.mark.parametrize("kind", SHOWN)
@pytest.mark.parametrize("in_team", [False, True], ids=["agent", "team"])
async def test_what_a_tool_streams_comes_back(begin, kind, in_team):
    heard = []
    for life in range(2):
        did = []
        agent = worker(lambda: [SHOWN[kind]()], did)
        kinds = [type(SHOWN[kind]())]
        if in_team:
            own = kinds if kind != "stock" else []
            one = begin().wrap_team(RoundRobinGroupChat([agent], max_turns=1, custom_message_types=own))
        else:
            one = begin().wrap_agent(agent)
        messages = [item async for item in one.run_stream(task="go")][:-1]
        heard.append([(type(m), m.model_dump()) for m in messages])
        assert kinds[0] in [type(m) for m in messages]
        assert did == ([] if life else ["on"])
    assert heard[0] == heard[1]


async def test_a_class_that_no_later_life_finds_is_refused_at_once(begin):
    class Hidden(Progress):
        pass

    class Content(BaseModel):
        rows: int

    for show in (
        lambda: Hidden(content="x", source="work"),
        lambda: StructuredMessage[Content](content=Content(rows=1), source="work"),
    ):
        did = []
        agent = begin().wrap_agent(worker(lambda show=show: [show(), show(), show()], did))
        with pytest.raises(UnencodableError, match="defined inside a function"):
            await agent.run(task="go")
        assert did == ["on"]  # AutoGen hands an item on when it has the next one


async def test_an_effect_of_a_tool_that_streams_is_carried_out_by_the_ledger(begin, tmp_path):
    bank, did = Bank(tmp_path), []
    policy = effect(key="work/{number}", provider=bank)
    for _ in range(2):
        agent = worker(lambda: [Progress(content="x", source="work")], did)
        await begin(tools={"work": policy}).wrap_agent(agent).run(task="go")
    assert did == []
    assert len(bank.done()) == 1


# --- texts and numbers that JSON cannot hold ---------------------------------------------------------------------------------


class Machine(Shell):
    def __init__(self):
        pass

    async def execute_code_blocks(self, code_blocks, cancellation_token):
        return CodeResult(0, NAME)


class Notes(ListMemory):
    async def update_context(self, model_context):
        await model_context.add_message(UserMessage(content=NAME, source="notes"))
        return UpdateContextResult(memories=await self.query(""))


class Ending(TerminationCondition):
    terminated = False

    async def __call__(self, messages):
        return StopMessage(content=NAME, source="me") if len(messages) == 1 and messages[0].source != "user" else None

    async def reset(self):
        pass


def with_tool():
    def work(number: int) -> str:
        """Work."""
        return NAME

    return AssistantAgent("a", Scripted(working), tools=[work], max_tool_iterations=2)


def with_arguments():
    def work(file: str) -> str:
        """Work."""
        return file

    script = Scripted(lambda m, s: "over" if results(m) else [call("work", file=NAME)])
    return AssistantAgent("a", script, tools=[work], max_tool_iterations=2)


def with_memory():
    return AssistantAgent(
        "a", Scripted(lambda m, s: "fine"), memory=[Notes("notes", [MemoryContent(content=NAME, mime_type="text/x")])]
    )


def with_code():
    return CodeExecutorAgent("a", Machine(), approval_func=lambda _: ApprovalResponse(approved=True, reason=NAME))


def with_selector():
    agents = [AssistantAgent(one, Scripted(lambda m, s: "fine")) for one in "ab"]
    return SelectorGroupChat(agents, Scripted(lambda m, s: f"a {NAME}"), max_turns=2, allow_repeated_speaker=True)


PLACES = {
    "model": lambda: AssistantAgent("a", Scripted(lambda m, s: NAME)),
    "stream": lambda: AssistantAgent("a", Scripted(lambda m, s: NAME), model_client_stream=True),
    "system": lambda: AssistantAgent("a", Scripted(lambda m, s: "fine"), system_message=NAME),
    "tool": with_tool,
    "arguments": with_arguments,
    "memory": with_memory,
    "code": with_code,
    "human": lambda: UserProxyAgent("a", input_func=lambda prompt: NAME),
    "condition": lambda: RoundRobinGroupChat([AssistantAgent("a", Scripted(lambda m, s: "fine"))], termination_condition=Ending()),
    "selector": with_selector,
}


@pytest.mark.parametrize("place", PLACES)
async def test_a_text_that_is_no_utf_8(begin, place):
    heard = []
    for life in range(2):
        one = PLACES[place]()
        clients = [getattr(part, "_model_client", None) for part in (one, *getattr(one, "_participants", ()))]
        durability = begin()
        durability.wrap_team(one) if hasattr(one, "_participants") else durability.wrap_agent(one)
        result = await one.run(task=TextMessage(content=f"```python\n{NAME}\n```", source="user"))
        heard.append([(m.to_text(), m.id) for m in result.messages])
        assert len(heard[-1]) > 1
        assert life == 0 or not any(client.asked for client in clients if isinstance(client, Scripted))
    assert heard[0] == heard[1]


async def test_numbers_without_an_end(begin):
    answer = CreateResult(
        finish_reason="stop",
        content="Hi.",
        usage=RequestUsage(1, 1),
        cached=False,
        thought=NAME,
        logprobs=[
            ChatCompletionTokenLogprob(token="Hi.", logprob=-math.inf, top_logprobs=[TopLogprob(logprob=math.nan, bytes=[72])])
        ],
    )
    got = []

    class Watching(AssistantAgent):
        async def on_messages(self, messages, cancellation_token):
            got.append(await self._model_client.create([UserMessage(content="hi", source="me")]))
            return await super().on_messages(messages, cancellation_token)

    for answers in ([answer, "over"], []):
        await begin().wrap_agent(Watching("a", ReplayChatCompletionClient(answers))).run(task="go")
    assert repr(got[0]) == repr(got[1])  # a NaN is equal to nothing
    assert "-inf" in repr(got[1])


@pytest.mark.parametrize("mime", [MemoryMimeType.TEXT, "text/plain", "text/x-own"])
async def test_the_type_of_a_memory(begin, mime):
    seen = []
    for _ in range(2):
        memory = ListMemory("notes", [MemoryContent(content="likes tea", mime_type=mime, metadata={"at": 1})])
        agent = AssistantAgent("a", Scripted(lambda m, s: "fine"), memory=[memory])
        seen.append((await begin().wrap_agent(agent).run(task="go")).messages[1].to_text())
    assert seen[0] == seen[1]
