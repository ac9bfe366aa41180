"""Wrapped agents: what is recorded of them, what is asked again, what is noticed, and what is left as it was."""

from __future__ import annotations

import asyncio

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent, UserProxyAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import ModelClientStreamingChunkEvent, TextMessage
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken
from autogen_core.memory import ListMemory, MemoryContent, MemoryMimeType
from autogen_core.models import RequestUsage
from autogen_core.tools import BaseTool, FunctionTool, StaticStreamWorkbench, TextResultContent, ToolResult, Workbench
from autogen_ext.models.replay import ReplayChatCompletionClient
from pydantic import BaseModel

from letitloop import StepChanged, Trusted, current_run, durable, effect, effect_context, step
from letitloop.adapters.autogen import AutoGenStateSerializer, tool_call_key
from letitloop.errors import ApprovalRequired, InvalidArgument
from tests.autogen.scripted import INFO, Scripted, call, results, said
from tests.effects.bank import Bank


class Died(Exception):
    """Stands for the death of a program in the middle of a model call."""


class Gone(BaseException):
    """Raised by a tool: what is no Exception, a stock agent waits for ever after it."""


def counted(limit=3):
    """Calls ``work`` a few times, then concludes."""

    def script(messages, settings):
        done = results(messages)
        return [call("work", number=done)] if done < limit else f"done after {done}"

    return script


class Lives:
    """Lives of one program: each with objects of its own."""

    def __init__(self):
        self.worked = []
        self.open = None

    def begin(self, **options):
        self.end()
        self.open = AutoGenStateSerializer(session_id="lives", **options)
        return self.open

    def end(self):
        if self.open is not None:
            self.open.close()

    def work(self, number: int) -> str:
        """Work."""
        self.worked.append(number)
        return f"worked {number}"

    def agent(self, script, *, name="agent", model=None, options=None, **settings):
        client = model or Scripted(script)
        tools = settings.pop("tools", [self.work])
        agent = AssistantAgent(name, client, tools=tools, max_tool_iterations=9, **settings)
        return self.begin(**(options or {})).wrap_agent(agent), client


@pytest.fixture
def lives():
    found = Lives()
    yield found
    found.end()


async def test_a_run_that_was_completed_answers_from_the_log(lives):
    agent, first = lives.agent(counted())
    before = await agent.run(task="go")
    agent, second = lives.agent(counted())
    after = await agent.run(task="go")
    assert after.model_dump() == before.model_dump()  # ids and times as well
    assert (len(first.asked), len(second.asked), lives.worked) == (4, 0, [0, 1, 2])
    assert second.total_usage() == first.total_usage() == RequestUsage(20 + 40 + 60 + 80, 20)


async def test_a_run_that_died_goes_on_where_it_died(lives):
    def dies(messages, settings):
        return Died() if results(messages) == 2 else counted()(messages, settings)

    agent, _ = lives.agent(dies)
    with pytest.raises(Died):
        await agent.run(task="go")
    agent, second = lives.agent(counted())
    result = await agent.run(task="go")
    assert result.messages[-1].content == "done after 3"
    assert (len(second.asked), lives.worked) == (2, [0, 1, 2])


async def test_each_run_of_a_script_is_one_of_its_own(lives):
    def script(messages, settings):
        return f"heard {len(messages)}"

    for life in range(2):
        agent, client = lives.agent(script)
        said_so = [(await agent.run(task=task)).messages[-1].content for task in ("one", "same", "same")]
        assert said_so == ["heard 2", "heard 4", "heard 6"]
        assert len(client.asked) == (0 if life else 3)
    said_so = (await agent.run(task="a new one")).messages[-1].content
    assert (said_so, len(client.asked)) == ("heard 8", 1)


async def test_equal_prompts_are_two_calls(lives):
    samples = iter(["first", "second"])
    for script in (lambda messages, settings: next(samples), lambda messages, settings: Died()):
        agent, _ = lives.agent(script)
        answers = []
        for _ in range(2):
            answers.append((await agent.run(task="the same")).messages[-1].content)
            await agent.on_reset(CancellationToken())
        assert answers == ["first", "second"]


async def test_a_failure_that_the_program_survived_is_history(lives):
    for life in range(2):
        agent, client = lives.agent(lambda messages, settings: Died("no") if len(messages) == 2 else "yes")
        with pytest.raises(Exception, match="no"):
            await agent.run(task="fails")
        assert (await agent.run(task="works")).messages[-1].content == "yes"
        assert len(client.asked) == (0 if life else 2)


@pytest.mark.parametrize("ids", [("", ""), ("x", "x"), ("a", "b")])
async def test_calls_are_told_apart_by_their_position(lives, ids):
    def script(messages, settings):
        if results(messages):
            return " ".join(one.content for one in messages[-1].content)
        return [call("work", ids[0], number=1), call("work", ids[1], number=2), call("work", ids[0], number=1)]

    for _ in range(2):
        agent, _ = lives.agent(script)
        assert (await agent.run(task="go")).messages[-1].content == "worked 1 worked 2 worked 1"
    assert sorted(lives.worked) == [1, 1, 2]


async def test_one_of_several_tools_fails(lives):
    tried = []

    async def fail(why: str) -> str:
        """Fail."""
        tried.append(why)
        raise ValueError(why)

    def script(messages, settings):
        if results(messages):
            return str([(one.content, one.is_error) for one in messages[-1].content])
        return [call("fail", why="bad"), call("work", number=1), call("fail", why="worse"), call("nothing", number=1)]

    for _ in range(2):
        agent, _ = lives.agent(script, tools=[fail, lives.work])
        text = (await agent.run(task="go")).messages[-1].content
        assert "('bad', True), ('worked 1', False), ('worse', True)" in text
        assert "not found" in text
    assert (tried, lives.worked) == (["bad", "worse"], [1])


async def test_tools_of_both_kinds_see_the_run_and_a_key_that_stays(lives):
    seen = []

    def plain(number: int) -> str:
        """Plain."""
        seen.append((current_run().goal_id, tool_call_key()))
        step("inside", seen.append, "inside")
        if len(seen) == 2:
            raise Gone
        return "plain"

    async def other(number: int) -> str:
        """Async."""
        seen.append((current_run().goal_id, tool_call_key()))
        return "other"

    def script(messages, settings):
        done = results(messages)
        return "done" if done == 2 else [call(("plain", "other")[done], number=1)]

    agent, _ = lives.agent(script, tools=[plain, other])
    with pytest.raises(Gone):
        await asyncio.wait_for(agent.run(task="go"), 30)
    agent, _ = lives.agent(script, tools=[plain, other])
    await agent.run(task="go")
    (first, inside, again, second) = seen
    assert first[0] == "autogen:lives"
    assert first == again  # the same key in the next life, and the step inside is not repeated
    assert inside == "inside"
    assert second[1] != first[1]
    with pytest.raises(InvalidArgument, match="outside a recorded tool call"):
        tool_call_key()


async def test_policies(lives):
    def pure(number: int) -> int:
        """Pure."""
        lives.worked.append("pure")
        return number

    def script(messages, settings):
        return "done" if results(messages) else [call("pure", number=1), call("work", number=2)]

    for _ in range(2):
        agent, _ = lives.agent(script, tools=[pure, lives.work], options={"tools": {"pure": "rerun"}})
        await agent.run(task="go")
    assert sorted(map(str, lives.worked)) == ["2", "pure", "pure"]
    with pytest.raises(InvalidArgument, match="policy of tool 'work'"):
        AutoGenStateSerializer(session_id="x", tools={"work": "always"})


# --- what is noticed ---------------------------------------------------------------------------------------------------------


def _renamed(lives):
    def work(count: int) -> str:
        """Work."""
        return "other"

    return {"tools": [work]}


CHANGES = {
    "system_message": lambda lives: {"system_message": "Be rude."},
    "tools": _renamed,
    "model": lambda lives: {"model": Scripted(counted(), model="scripted-2")},
}


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("what", CHANGES)
async def test_changed_inputs_are_named(lives, what, finished):
    agent, _ = lives.agent(counted() if finished else lambda m, s: Died() if results(m) == 2 else counted()(m, s))
    if finished:
        await agent.run(task="go")
    else:
        with pytest.raises(Died):
            await agent.run(task="go")
    changed = CHANGES[what](lives)
    agent, client = lives.agent(counted(), **changed)
    with pytest.raises(StepChanged, match=f"'{what}'") as caught:
        await agent.run(task="go")
    assert what in caught.value.arguments
    assert client.asked == []


async def test_a_changed_task_is_named(lives):
    agent, _ = lives.agent(counted())
    await agent.run(task="go")
    agent, _ = lives.agent(counted())
    with pytest.raises(StepChanged, match="'task' differs"):
        await agent.run(task="stop")


async def test_a_finished_run_does_not_go_on(lives):
    agent, _ = lives.agent(counted(), reflect_on_tool_use=False)
    await agent.run(task="go")
    agent, client = lives.agent(
        counted(), memory=[ListMemory("notes", [MemoryContent(content="note", mime_type=MemoryMimeType.TEXT)])]
    )
    with pytest.raises(StepChanged, match="come to its end without it"):
        await agent.run(task="go")
    assert client.asked == []


async def test_changed_inputs_may_be_run_again_or_reused(lives):
    agent, _ = lives.agent(counted())
    await agent.run(task="go")
    agent, client = lives.agent(counted(), system_message="Be kind.", options={"on_change": "reuse"})
    assert (await agent.run(task="go")).messages[-1].content == "done after 3"
    assert client.asked == []
    agent, client = lives.agent(counted(2), system_message="Be kind.", options={"on_change": "rerun"})
    assert (await agent.run(task="go")).messages[-1].content == "done after 2"
    assert len(client.asked) == 3


# --- the objects themselves --------------------------------------------------------------------------------------------------


async def test_what_is_not_wrapped_is_untouched(lives):
    client = Scripted(counted(1))
    tool = FunctionTool(lives.work, "Work.", "work")
    stock = AssistantAgent("stock", client, tools=[tool], max_tool_iterations=9)
    agent, _ = lives.agent(None, model=client, tools=[tool])
    assert said(await agent.run(task="go"))[2:] != []
    await stock.run(task="go")
    await stock.run(task="go")
    assert len(client.asked) == 2 + 2 + 1
    assert lives.worked == [0, 0]
    assert type(stock._model_client) is Scripted
    assert tool._func == lives.work


async def test_clients_may_be_shared(lives):
    for life in range(2):
        client = Scripted(None)
        client.script = lambda messages, settings, client=client: f"{messages[0].content}: {len(client.asked)}"
        agents = [AssistantAgent(name, client, system_message=name) for name in ("one", "two")]
        durability = lives.begin()
        answers = [(await durability.wrap_agent(agent).run(task="go")).messages[-1].content for agent in agents]
        assert answers == ["one: 1", "two: 2"]
        assert len(client.asked) == (0 if life else 2)
        assert client.total_usage() == RequestUsage(40, 10)


async def test_wrapping_twice_and_taking_it_back(lives):
    client = Scripted(counted(1))
    inner = AssistantAgent("inner", client)
    agent = AssistantAgent("agent", client, tools=[AgentTool(inner), lives.work])
    before, inner_before = dict(vars(agent)), dict(vars(inner))
    durability = lives.begin()
    assert durability.wrap_agent(durability.wrap_agent(agent)) is agent
    durability.wrap_agent(inner)
    assert type(agent._model_client._inner) is Scripted
    with pytest.raises(InvalidArgument, match="wrapped by the session 'lives'"):
        AutoGenStateSerializer(session_id="other").wrap_agent(agent)
    durability.unwrap()
    assert vars(agent) == before
    assert vars(inner) == inner_before
    assert "total_usage" not in vars(client)
    AutoGenStateSerializer(session_id="other").wrap_agent(agent)


async def test_wrapped_objects_are_what_they_were(lives):
    def build():
        return AssistantAgent("agent", ReplayChatCompletionClient(["hello"], model_info=INFO), handoffs=["other"], tools=None)

    agent = lives.begin().wrap_agent(build())
    assert isinstance(agent, AssistantAgent)
    assert agent.dump_component() == build().dump_component()
    assert isinstance(agent._workbench[0], StaticStreamWorkbench)
    assert agent._model_client.model_info == build()._model_client.model_info
    assert agent._model_client.create_calls == []  # what else the client has
    state = await agent.save_state()
    await agent.load_state(state)
    assert AssistantAgent.load_component(agent.dump_component()).name == "agent"


async def test_compatibility_keywords(lives, tmp_path):
    with pytest.raises(InvalidArgument, match="they mean the same"):
        AutoGenStateSerializer(session_id="x", wal_dir=tmp_path, store=tmp_path)
    for life in range(2):
        client = Scripted(counted(0))
        durability = AutoGenStateSerializer(wal_dir=tmp_path / "wal", session_id="x", auto_resume=False)
        await durability.wrap_agent(AssistantAgent("agent", client), agent_name="named").run(task=f"life {life}")
        assert len(client.asked) == 1
        durability.close()
    assert len(list((tmp_path / "wal" / "runs").glob("*.wal"))) == 2
    with pytest.raises(InvalidArgument, match="no agent"):
        durability.wrap_agent("agent")
    with pytest.raises(InvalidArgument, match="no team"):
        durability.wrap_team(AssistantAgent("agent", client))


# --- ways of asking an agent -------------------------------------------------------------------------------------------------


async def test_streams(lives):
    for life in range(2):
        agent, client = lives.agent(counted(1), model_client_stream=True)
        items = [item async for item in agent.run_stream(task="go")]
        chunks = "".join(one.content for one in items if isinstance(one, ModelClientStreamingChunkEvent))
        assert chunks.strip() == "done after 1"
        assert items[-1].messages == [one for one in items[:-1] if not isinstance(one, ModelClientStreamingChunkEvent)]
        assert len(client.asked) == (0 if life else 2)


async def test_a_stream_that_is_left_early(lives):
    agent, _ = lives.agent(counted())
    async for item in agent.run_stream(task="go"):
        if "0" in item.to_text():
            break
    agent, _ = lives.agent(counted())
    result = await agent.run(task="go")
    assert (result.messages[-1].content, lives.worked) == ("done after 3", [0, 1, 2])


async def test_messages_without_a_run(lives):
    for life in range(2):
        agent, client = lives.agent(counted(1))
        first = await agent.on_messages([TextMessage(content="go", source="user")], CancellationToken())
        items = [one async for one in agent.on_messages_stream([TextMessage(content="on", source="user")], CancellationToken())]
        assert first.chat_message.content == items[-1].chat_message.content == "done after 1"
        assert len(client.asked) == (0 if life else 3)


class Custom(BaseChatAgent):
    """An agent of the user's own, with a client under a name of its own and a step."""

    def __init__(self, client, did):
        super().__init__("custom", "Custom.")
        self.client = client
        self.did = did

    @property
    def produced_message_types(self):
        return (TextMessage,)

    async def on_messages(self, messages, cancellation_token):
        text = step("compute", self.compute, len(messages))
        answer = await self.client.create([one.to_model_message() for one in messages])
        return Response(chat_message=TextMessage(content=f"{text} {answer.content}", source=self.name))

    def compute(self, number):
        self.did.append(number)
        return f"computed {number}"

    async def on_reset(self, cancellation_token):
        pass


async def test_a_custom_agent(lives):
    did = []
    for life in range(2):
        client = Scripted(lambda messages, settings: "answer")
        agent = lives.begin().wrap_agent(Custom(client, did))
        assert (await agent.run(task="go")).messages[-1].content == "computed 1 answer"
        assert [one async for one in agent.run_stream(task="on")][-1].messages[-1].content == "computed 1 answer"
        assert (len(client.asked), len(did)) == (0 if life else 2, 2)


async def test_inside_a_durable_function(lives):
    died = []

    @durable(goal_id="whole")
    async def whole(topic):
        client = Scripted(counted(1))
        agent = AutoGenStateSerializer(session_id="part").wrap_agent(
            AssistantAgent("agent", client, tools=[lives.work], max_tool_iterations=3)
        )
        result = await agent.run(task=topic)
        if not died:
            died.append(len(client.asked))
            raise Died
        return result.messages[-1].content, len(client.asked)

    with pytest.raises(Died):
        await whole("go")
    assert await whole("go") == ("done after 1", 0)
    assert (died, lives.worked) == ([2], [0])


async def test_a_human_is_asked_once(lives):
    asked = []

    async def answer(prompt, cancellation_token=None):
        asked.append(UserProxyAgent.InputRequestContext.request_id())
        return "yes"

    for ask in (answer, answer):
        agent = lives.begin().wrap_agent(UserProxyAgent("human", input_func=ask))
        assert (await agent.run(task="may I?")).messages[-1].content == "yes"
    assert len(asked) == 1


# --- effects -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decorated", [True, False])
async def test_a_model_does_not_see_trusted_parameters(lives, tmp_path, decorated):
    bank = Bank(tmp_path / "bank", "window")
    policy = effect(key="refund/{tenant}/{order}", provider=bank)

    def refund(order: str, amount: int, *, tenant: Trusted[str]) -> str:
        """Refund an order."""

    tool = policy(refund) if decorated else refund
    options = {} if decorated else {"tools": {"refund": policy}}

    def script(messages, settings):
        if results(messages):
            return str(messages[-1].content[0].content)
        return [call("refund", order="42", amount=5, tenant="somebody else")]

    for life in range(2):
        agent, client = lives.agent(script, tools=[tool], options=options)
        with effect_context(tenant="acme"):
            assert (await agent.run(task="go")).messages[-1].content == "{'moved': 5}"
        if not life:
            schema = client.asked[0][1]["tools"][0]["parameters"]
            assert set(schema["properties"]) == {"order", "amount"}
    assert [one["arguments"]["tenant"] for one in bank.done()] == ["acme"]


async def test_what_certainly_did_not_happen_is_told_to_the_model_and_the_rest_is_not(lives, tmp_path):
    from letitloop import Approval

    bank = Bank(tmp_path / "bank", "window")

    def pay(number: int, amount: int) -> str:
        """Pay."""

    def script(messages, settings):
        done = results(messages)
        return "done" if done == 2 else [call("pay", number=1, amount=done)]

    agent, client = lives.agent(script, tools=[pay], options={"tools": {"pay": effect(key="n/{number}", provider=bank)}})
    result = await agent.run(task="go")
    assert "payload" in result.messages[4].content[0].content or "differ" in result.messages[4].content[0].content
    assert len(bank.done()) == 1

    for decorated in (True, False):
        policy = effect(key="approved/{number}", provider=bank, approval=Approval())
        session = f"approved, decorated: {decorated}"
        with AutoGenStateSerializer(session_id=session, tools={} if decorated else {"pay": policy}) as durability:
            client = Scripted(script)
            tool = policy(pay) if decorated else pay
            agent = durability.wrap_agent(AssistantAgent("agent", client, tools=[tool], max_tool_iterations=3))
            with pytest.raises(ApprovalRequired):
                await agent.run(task="go")
            assert len(client.asked) == 1


class Multiply(BaseTool):
    """A tool that is a class of its own."""

    class Args(BaseModel):
        left: int
        right: int = 2

    def __init__(self, done):
        super().__init__(self.Args, int, "multiply", "Multiplies.")
        self.done = done

    async def run(self, args, cancellation_token):
        self.done.append(args.left)
        return args.left * args.right


class Remote(Workbench):
    """A workbench that is no static one."""

    def __init__(self, done):
        self.done = done

    async def list_tools(self):
        properties = {"left": {"type": "integer"}}
        return [{"name": "multiply", "description": "", "parameters": {"type": "object", "properties": properties}}]

    async def call_tool(self, name, arguments=None, cancellation_token=None, call_id=None):
        self.done.append(arguments["left"])
        return ToolResult(name=name, result=[TextResultContent(content=str(arguments["left"] * 2))])

    async def start(self):
        pass

    stop = reset = start

    async def save_state(self):
        return {}

    async def load_state(self, state):
        pass


@pytest.mark.parametrize("policy", ["record", "effect"])
@pytest.mark.parametrize("remote", [False, True])
async def test_tools_that_are_no_functions(lives, policy, remote):
    done = []

    def script(messages, settings):
        return messages[-1].content[0].content if results(messages) else [call("multiply", left=21)]

    for _ in range(2):
        options = {"tools": {"multiply": effect(key="product/{left}") if policy == "effect" else policy}}
        given = {"workbench": Remote(done), "tools": None} if remote else {"tools": [Multiply(done)]}
        agent, _ = lives.agent(script, options=options, **given)
        assert (await agent.run(task="go")).messages[-1].content == "42"
    assert done == [21]


@pytest.mark.parametrize("decorated", [True, False])
async def test_the_same_action_asked_for_twice_at_once_is_carried_out_once(lives, tmp_path, decorated):
    bank = Bank(tmp_path / "bank", "receipt")
    policy = effect(key="invoice/{number}", provider=bank)

    def pay(number: int) -> str:
        """Pay."""

    def script(messages, settings):
        if results(messages):
            return " ".join(str(one.is_error) for one in messages[-1].content)
        return [call("pay", number=number) for number in (1, 2, 1, 1)]

    for _ in range(2):
        tools, options = ([policy(pay)], {}) if decorated else ([pay], {"tools": {"pay": policy}})
        agent, _ = lives.agent(script, tools=tools, options=options)
        assert (await agent.run(task="go")).messages[-1].content == "False False False False"
    assert sorted(one["arguments"]["number"] for one in bank.done()) == [1, 2]
