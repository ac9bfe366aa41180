"""Agents: their models, tools, memory and state; each trap of the framework that a durable agent must not fall into."""

import asyncio
import gc
import json
import warnings

import pydantic
import pytest
from llama_index.core.agent.workflow import AgentOutput, AgentStream, AgentWorkflow, FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer, Memory, StaticMemoryBlock
from llama_index.core.tools import FunctionTool, QueryEngineTool, ToolMetadata, ToolOutput
from llama_index.core.workflow import Context as AgentContext
from llama_index.core.workflow import HumanResponseEvent, InputRequiredEvent
from workflows import Context, Workflow, step
from workflows.events import StartEvent, StopEvent

import letitloop
from letitloop import ApprovalRequired, InvalidArgument, StepOutsideRun, Trusted, effect, effect_context
from letitloop.adapters.llamaindex import LetItLoopRuntime, durable_llm, durable_tool, durable_workflow
from letitloop.effects.authority import Approval
from letitloop.effects.providers import FunctionProvider
from letitloop_llamaindex.serializers import ExactSerializer
from letitloop_llamaindex.ticks import TickCodec
from tests.llamaindex.helpers import Crash, made, trouble
from tests.llamaindex.scripted import Scripted, call, results


def look(what: str) -> str:
    """Look something up."""
    made.append(what)
    if what == "trouble" and trouble:
        raise trouble["halt"]
    return what * 2


def looker(*whats):
    def script(messages, tools):
        done = results(messages)
        return [call("look", f"c{done}", what=whats[done])] if done < len(whats) else f"done {done}"

    return script


async def crashed(handler):
    with pytest.raises(Crash):
        await handler
    del handler
    gc.collect()


# --- the runtime reaches the agent -------------------------------------------------------------------------------------------


async def test_an_agent_takes_the_runtime_that_it_is_given():
    """Stock, FunctionAgent(runtime=…) is accepted and ignored."""
    runtime = LetItLoopRuntime()
    agent = FunctionAgent(llm=Scripted(looker()), runtime=runtime)
    assert agent.runtime is runtime
    with runtime.registering():
        assert FunctionAgent(llm=Scripted(looker())).runtime is runtime
    assert AgentWorkflow([agent], runtime=runtime).runtime is runtime


@pytest.mark.parametrize("way", ["runtime", "wrapped", "registering"])
async def test_every_way_makes_models_and_tools_durable(way):
    trouble["halt"] = Crash()
    asked = []
    for life in range(2):
        model = Scripted(looker("first", "trouble", "last"))
        runtime = LetItLoopRuntime()
        if way == "runtime":
            agent = FunctionAgent(llm=model, tools=[look], runtime=runtime)
        elif way == "wrapped":
            agent = durable_workflow(FunctionAgent(llm=model, tools=[look]), runtime=runtime)
        else:
            with runtime.registering():
                agent = FunctionAgent(llm=model, tools=[look])
        handler = agent.run("go", run_id="a")
        if life == 0:
            await crashed(handler)
        else:
            result = await handler
        trouble.clear()
        asked.append(len(model.asked))
    assert made == ["first", "trouble", "trouble", "last"]
    assert asked == [2, 2]
    assert isinstance(result, AgentOutput)
    assert [one.tool_name for one in result.tool_calls] == ["look"] * 3
    again = await FunctionAgent(llm=Scripted(looker()), tools=[look], runtime=LetItLoopRuntime()).run("go", run_id="a")
    assert again == result
    assert type(again.response) is ChatMessage


# --- memory and state --------------------------------------------------------------------------------------------------------


def memories():
    plain = ChatMemoryBuffer.from_defaults(token_limit=3000)
    own = ChatMemoryBuffer.from_defaults(token_limit=3000, tokenizer_fn=list)
    blocks = [StaticMemoryBlock(name="facts", static_content="Ada is a mathematician.")]
    return {"buffer": plain, "own": own, "database": Memory.from_defaults(session_id="s", memory_blocks=blocks)}


@pytest.mark.parametrize("kind", ["none", "buffer", "own", "database"])
async def test_chat_memory_survives(kind):
    """On pydantic 2.14 the framework's own serialisation drops it with a warning, and the resume fails."""
    trouble["halt"] = Crash()

    def agent(model):
        return FunctionAgent(llm=model, tools=[look], runtime=LetItLoopRuntime())

    def start(model, memory):
        history = [ChatMessage(role="user", content="earlier"), ChatMessage(role="assistant", content="yes")]
        return agent(model).run("go", chat_history=history, run_id="a", **({} if memory is None else {"memory": memory}))

    lost = memories().get(kind)
    await crashed(start(Scripted(looker("first", "trouble")), lost))
    trouble.clear()
    model, memory = Scripted(looker("first", "trouble")), memories().get(kind)
    handler = start(model, memory)
    assert str(await handler) == "done 2"
    said = [str(one.content) for one in model.asked[-1]]
    assert said[-7:-4] == ["earlier", "yes", "go"] if kind == "database" else said[:3] == ["earlier", "yes", "go"]
    if memory is not None:
        assert str((await memory.aget_all())[-1].content) == "done 2"
    if isinstance(memory, Memory):
        assert "Ada is a mathematician." in str(model.asked[-1][0].content)
        for one in (lost, memory):
            await one.sql_store._async_engine.dispose()
    else:
        assert len((await handler.ctx.store.get("memory")).get_all()) == 8


def test_a_memory_is_exact_as_text():
    memory = memories()["buffer"]
    memory.put(ChatMessage(role="user", content="hello", additional_kwargs={"when": (1, 2), "raw": b"x"}))
    serializer = ExactSerializer()
    again = serializer.deserialize(serializer.serialize({"memory": memory, "list": [memory]}))
    assert again["memory"].get_all() == again["list"][0].get_all() == memory.get_all()
    assert again["memory"].get_all()[0].additional_kwargs == {"when": (1, 2), "raw": b"x"}
    with pytest.raises(letitloop.DecodeError, match="same memory= again"):
        serializer.deserialize(serializer.serialize(memories()["own"]))


def test_stock_loses_the_memory_on_a_new_pydantic():
    """What the adapter's own codec is for; where the framework mends this, the codec stays exact."""
    agent = FunctionAgent(llm=Scripted(looker()))
    ctx = Context(agent)
    memory = memories()["buffer"]
    memory.put(ChatMessage(role="user", content="hello"))

    async def fill():
        await ctx.store.set("memory", memory)

    asyncio.run(fill())
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        kept = "memory" in ctx.to_dict()["state"]["state_data"]["_data"]
    assert kept or tuple(map(int, pydantic.VERSION.split(".")[:2])) >= (2, 14)


async def test_a_tool_that_changes_the_state_is_recorded_with_the_change():
    """Its call answers from the log, its step runs again: without the record the change would be gone."""

    async def keep(ctx: AgentContext, text: str) -> str:
        """Keep a text."""
        async with ctx.store.edit_state() as state:
            state["kept"] = [*state.get("kept", []), text]
        made.append(text)
        return "kept"

    def script(messages, tools):
        return [call("keep", text="a")] if results(messages) == 0 else "done"

    real = TickCodec.encode

    def dies(codec, tick):
        if tick.type == "step_result" and str(tick.step_id) == "call_tool" and trouble:
            raise Crash
        return real(codec, tick)

    trouble["halt"] = True
    for _ in range(2):
        agent = FunctionAgent(llm=Scripted(script), tools=[keep], runtime=LetItLoopRuntime())
        handler = agent.run("go", run_id="a")
        if trouble:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(TickCodec, "encode", dies)
                await crashed(handler)
            trouble.clear()
        else:
            await handler
    assert await handler.ctx.store.get("kept") == ["a"]
    assert made.count("a") == 1


# --- policies ----------------------------------------------------------------------------------------------------------------


async def test_rerun_is_called_again_and_never_recorded():
    tool = durable_tool(look, "rerun")
    assert isinstance(tool, FunctionTool)
    assert (await tool.acall(what="x")).content == "xx"
    with pytest.raises(StepOutsideRun):
        await durable_tool(look).acall(what="x")
    with pytest.raises(InvalidArgument):
        durable_tool(look, "once")
    with pytest.raises(InvalidArgument):
        durable_tool(42)
    with pytest.raises(InvalidArgument):
        durable_llm(look)
    model = durable_llm(Scripted(looker()))
    assert durable_llm(model) is model
    with pytest.raises(StepOutsideRun):
        await model.achat([])


async def test_an_effect_happens_once_and_the_model_never_sees_what_is_trusted():
    paid = []

    def pay(order: int, amount: int, tenant: Trusted[str]) -> str:
        """Pay an order."""
        raise AssertionError("the provider pays")

    def act(order: int, amount: int, tenant: str) -> str:
        paid.append((order, amount, tenant))
        return f"paid {amount}"

    provider = FunctionProvider(act, identity="bank/1")
    policy = effect(key="{tenant}/{order}", provider=provider)
    shown = []

    def script(messages, tools):
        return [call("pay", f"p{n}", order=7, amount="12") for n in range(2)] if results(messages) == 0 else "done"

    class Seeing(Scripted):
        def _prepare_chat_with_tools(self, tools, **kwargs):
            shown.append((tools[0].metadata.get_parameters_dict()["properties"], tools[0].metadata.description))
            return super()._prepare_chat_with_tools(tools, **kwargs)

    agent = FunctionAgent(llm=Seeing(script), tools=[pay], runtime=LetItLoopRuntime(tools={"pay": policy}))
    with effect_context(tenant="acme"):
        result = await agent.run("pay", run_id="a")
    assert len(paid) == 1
    assert [one.tool_output.content for one in result.tool_calls] == [f"paid {paid[0][1]}"] * 2
    assert all("tenant" not in json.dumps(properties) and "tenant" not in text for properties, text in shown)


async def test_what_no_model_may_read_reaches_the_caller():
    """Stock, any exception of a tool is shown to the model as text."""

    def buy(number: int) -> str:
        """Buy."""
        return ""

    policy = effect(key="order/{number}", provider=FunctionProvider(buy, identity="shop/1"), approval=Approval())

    script = lambda messages, tools: [call("buy", number=1)] if results(messages) == 0 else "done"  # noqa: E731
    model = Scripted(script)
    handler = FunctionAgent(llm=model, tools=[buy], runtime=LetItLoopRuntime(tools={"buy": policy})).run("go", run_id="a")
    events = [type(event) async for event in handler.stream_events()]
    assert events[-1].__name__ == "WorkflowFailedEvent"
    with pytest.raises(ApprovalRequired):
        await handler
    assert len(model.asked) == 1


async def test_a_tool_that_waits_for_a_person_is_no_failure():
    async def confirm(ctx: AgentContext, what: str) -> str:
        """Ask a person."""
        letitloop.step("before", made.append, what)
        reply = await ctx.wait_for_event(HumanResponseEvent, waiter_event=InputRequiredEvent(prefix=what), waiter_id=what)
        return reply.response

    script = lambda messages, tools: [call("confirm", what="sure?")] if results(messages) == 0 else "done"  # noqa: E731
    for life in range(2):
        handler = FunctionAgent(llm=Scripted(script), tools=[confirm], runtime=LetItLoopRuntime()).run("go", run_id="a")
        async for event in handler.stream_events():
            if isinstance(event, InputRequiredEvent):
                if life == 0:
                    break
                handler.ctx.send_event(HumanResponseEvent(response="yes"))
        if life == 0:
            task = handler._external_adapter._queues.complete
            task.cancel()
            await asyncio.wait([task])
            gc.collect()
    result = await handler
    assert result.tool_calls[0].tool_output.content == "yes"
    assert made == ["sure?"]


async def test_tools_of_other_classes():
    class Engine:
        callback_manager = None

        def query(self, text):
            return self.aquery(text)

        async def aquery(self, text):
            made.append(text)
            return f"about {text}"

    tool = QueryEngineTool(Engine(), ToolMetadata("Knows things", name="query"))

    def script(messages, tools):
        return [call("query", input="looms")] if results(messages) == 0 else "done"

    for _ in range(2):
        agent = FunctionAgent(llm=Scripted(script), tools=[tool], runtime=LetItLoopRuntime())
        result = await agent.run("go", run_id="a")
    assert result.tool_calls[0].tool_output.content == "about looms"
    assert made == ["looms"]
    assert type(tool) is QueryEngineTool


def test_a_tool_output_is_exact_as_text():
    output = ToolOutput("look", content="no", raw_input={"a": 1}, raw_output={1, 2}, is_error=True, exception=OSError(2, "gone"))
    event = ToolCallResult(tool_name="look", tool_kwargs={}, tool_id="1", tool_output=output, return_direct=False)
    again = ExactSerializer().deserialize(ExactSerializer().serialize(event))
    assert again.tool_output.model_dump() == output.model_dump()
    assert again.tool_output.raw_output == {1, 2}
    assert type(again.tool_output.exception) is FileNotFoundError


# --- models ------------------------------------------------------------------------------------------------------------------


async def test_a_stream_that_is_replayed_comes_as_one_chunk_with_the_whole_text():
    class Streams(Workflow):
        @step
        async def one(self, ctx: Context, ev: StartEvent) -> StopEvent:
            model = durable_llm(Scripted(lambda messages, tools: "so many words"))
            chunks = [chunk async for chunk in await model.astream_chat([ChatMessage("hi")])]
            if trouble:
                raise trouble["error"]
            return StopEvent(result=[(chunk.delta, chunk.message.content) for chunk in chunks])

    trouble["error"] = ValueError("late")
    with pytest.raises(ValueError, match="late"):
        await Streams(runtime=LetItLoopRuntime()).run(run_id="a")
    trouble.clear()
    assert await Streams(runtime=LetItLoopRuntime()).run(run_id="a") == [("so many words", "so many words")]


async def test_sync_and_plain_calls_of_a_model():
    asked = []

    class Sync(Workflow):
        @step
        def one(self, ev: StartEvent) -> StopEvent:
            inner = Scripted(lambda messages, tools: f"heard {messages[-1].content}")
            model = durable_llm(inner)
            assert type(model).__name__ == "Scripted"
            assert isinstance(model, Scripted)
            found = [
                model.complete("a").text,
                model.chat([ChatMessage("b")]).message.content,
                *(chunk.text for chunk in model.stream_complete("c")),
                *(chunk.message.content for chunk in model.stream_chat([ChatMessage("d")])),
                model.chat_with_tools([], user_msg="e").message.content,
            ]
            asked.append(len(inner.asked))
            if trouble:
                raise trouble["error"]
            return StopEvent(result=found)

    trouble["error"] = ValueError("late")
    with pytest.raises(ValueError, match="late"):
        await Sync(runtime=LetItLoopRuntime()).run(run_id="a")
    trouble.clear()
    result = await Sync(runtime=LetItLoopRuntime()).run(run_id="a")
    assert result == [f"heard {letter}" for letter in "abcde"]
    assert asked == [5, 0]


async def test_words_of_a_stream_are_shown_once_and_what_they_come_to_again():
    for life in range(2):
        handler = FunctionAgent(llm=Scripted(looker("a")), tools=[look], runtime=LetItLoopRuntime()).run("go", run_id="a")
        shown = [type(event) async for event in handler.stream_events()]
        await handler
        assert (AgentStream in shown) is (life == 0)
        assert shown.count(AgentOutput) == 2
        assert shown.count(ToolCallResult) == 1
