"""Durable model and tool calls: agents, tool nodes, policies; and outcomes that are unknown, through everything."""

from __future__ import annotations

import asyncio
from typing import Annotated

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, ToolRuntime
from langgraph.types import Command, RetryPolicy, interrupt

from letitloop import Approval, Ledger, Trusted, effect, effect_context, step
from letitloop.errors import (
    ApprovalRequired,
    InvalidArgument,
    StepChanged,
    UnencodableError,
    UnknownOutcome,
)
from letitloop_langgraph import (
    DurableMiddleware,
    adurable_tool_call,
    durable_config,
    durable_tool_call,
)
from tests.langgraph.helpers import restarted
from tests.langgraph.programs import Scripted, asked, summary

WAYS = ["sync", "async"]
HERE = {"configurable": {"thread_id": "1"}}


class Calls:
    """Counts what really happened."""

    def __init__(self):
        self.made = []

    def call(self, name):
        self.made.append(name)
        import contextlib

        return contextlib.nullcontext()

    def of(self, start):
        return [name for name in self.made if name.startswith(start)]


@pytest.fixture
def calls():
    return Calls()


def run(app, way, inputs, config=HERE, **more):
    if way == "sync":
        return app.invoke(inputs, config, **more)
    return asyncio.run(app.ainvoke(inputs, config, **more))


def searching(calls, broken=()):
    broken = list(broken)

    @tool
    def search(q: str) -> str:
        """Search."""
        calls.call(f"search {q}")
        if q in broken:
            broken.remove(q)
            raise OSError("the network")
        return f"found {q}"

    return search


def agent(saver, calls, answers, tools, *, policies=None, default="record", before=()):
    return create_agent(
        Scripted(calls=calls, answers=answers),
        tools,
        middleware=[*before, DurableMiddleware(tools=policies or {}, default=default)],
        checkpointer=saver,
    )


def both(policies, default):
    return durable_tool_call(policies, default), adurable_tool_call(policies, default)


def node(saver, tools, answer, *, handle=True, policies=None, default="record", around=None):
    """A graph of a model's fixed answer and a plain ToolNode."""
    call, acall = (around or both)(policies, default)
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [answer]})
    tool_node = ToolNode(
        tools,
        handle_tool_errors=handle,
        wrap_tool_call=call,
        awrap_tool_call=acall,
    )
    graph.add_node("tools", tool_node, retry_policy=RetryPolicy(initial_interval=0, jitter=False))
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    return graph.compile(checkpointer=saver)


# --- models ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_finished_model_call_is_not_made_again_and_comes_back_as_it_was(saver, calls, way):
    answers = [asked(("search", {"q": "a"}, "c1"), ("search", {"q": "b"}, "c2")), summary]
    app = agent(saver, calls, answers, [searching(calls, ["b"])])
    with pytest.raises(OSError, match="network"):
        run(app, way, {"messages": [HumanMessage("go")]})
    before = app.get_state(HERE).values["messages"]
    restarted(saver)
    result = run(app, way, None)["messages"]
    assert result[: len(before)] == before
    assert [one.content for one in result] == ["go", "", "found a", "found b", "told: found a; found b"]
    assert calls.of("model") == ["model-0", "model-1"]
    assert sorted(calls.of("search")) == ["search a", "search b", "search b"]
    assert type(result[1]) is AIMessage
    assert [call["id"] for call in result[1].tool_calls] == ["c1", "c2"]


def test_a_recorded_answer_is_replayed_as_a_stream(saver, calls):
    died = [True]

    class Dies(DurableMiddleware):
        def wrap_model_call(self, request, handler):
            answer = super().wrap_model_call(request, handler)
            if died:
                died.clear()
                raise OSError("the process died")
            return answer

    app = create_agent(Scripted(calls=calls, answers=[AIMessage("the answer")]), [], middleware=[Dies()], checkpointer=saver)
    with pytest.raises(OSError, match="died"):
        app.invoke({"messages": [HumanMessage("go")]}, HERE)
    restarted(saver)
    chunks = [chunk.content for chunk, _ in app.stream(None, HERE, stream_mode="messages")]
    assert "".join(chunks) == "the answer"
    assert calls.of("model") == ["model-0"]


def test_another_question_at_the_same_place_is_told_and_reaches_the_caller(saver, calls):
    app = agent(saver, calls, [asked(("search", {"q": "a"}, "c1")), summary], [searching(calls)])
    stopped = create_agent(
        Scripted(calls=calls, answers=[AIMessage("x")]), [], middleware=[DurableMiddleware()], checkpointer=saver,
        system_prompt="another prompt",
    )  # fmt: skip
    app.invoke({"messages": [HumanMessage("go")]}, HERE, interrupt_after=["model"])
    state = next(one for one in app.get_state_history(HERE) if one.next == ("model",))
    # the same task, driven again by another program
    saver_thread = saver.room.thread("1")
    restarted(saver)
    del saver_thread
    saver.delete_for_runs([])
    with pytest.raises(StepChanged, match="system"):
        _drive_again(stopped, saver, state)


def _drive_again(app, saver, state):
    """Let a graph go on from a checkpoint as if its later ones had been lost in a crash."""
    from letitloop_langgraph.compaction import drop

    thread = saver.room.thread("1")
    kept = state.config["configurable"]["checkpoint_id"]
    log = thread.enter()
    try:
        with thread.guard:
            look = thread.look(saver.serde, log)
            drop(thread, [("", one.id) for one in look.index.newest_first("") if one.id > kept])
            thread.index.writes.pop(("", kept), None)
        log.flush()
    finally:
        thread.leave()
    app.invoke(None, HERE)


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_fails_is_asked_again(saver, calls, way):
    failures = [1]

    def flaky(messages):
        if failures:
            failures.pop()
            raise OSError("overloaded")
        return AIMessage("fine")

    app = agent(saver, calls, [flaky], [])
    with pytest.raises(OSError, match="overloaded"):
        run(app, way, {"messages": [HumanMessage("go")]})
    restarted(saver)
    assert run(app, way, None)["messages"][-1].content == "fine"


# --- tools -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_siblings_that_finished_are_not_repeated_in_a_plain_tool_node(saver, calls, way):
    answer = asked(("search", {"q": "a"}, "c1"), ("search", {"q": "b"}, "c2"), ("search", {"q": "c"}, "c3"))
    app = node(saver, [searching(calls, ["c"])], answer, handle=False)
    with pytest.raises(OSError, match="network"):
        run(app, way, {"messages": [HumanMessage("go")]})
    restarted(saver)
    result = run(app, way, None)["messages"]
    assert [one.content for one in result[-3:]] == ["found a", "found b", "found c"]
    assert [one.tool_call_id for one in result[-3:]] == ["c1", "c2", "c3"]
    assert sorted(calls.of("search")) == ["search a", "search b", "search c", "search c"]


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_in_one_tool_does_not_repeat_the_others(saver, calls, way):
    @tool
    def ask(q: str) -> str:
        """Ask a person."""
        calls.call("before asking")
        return f"{q}: {interrupt(q)}"

    answer = asked(("search", {"q": "a"}, "c1"), ("ask", {"q": "sure?"}, "c2"), ("search", {"q": "b"}, "c3"))
    app = node(saver, [searching(calls), ask], answer)
    assert run(app, way, {"messages": [HumanMessage("go")]})["__interrupt__"][0].value == "sure?"
    restarted(saver)
    result = run(app, way, Command(resume="yes"))["messages"]
    assert [one.content for one in result[-3:]] == ["found a", "sure?: yes", "found b"]
    assert sorted(calls.of("search")) == ["search a", "search b"]


@pytest.mark.parametrize("way", WAYS)
def test_a_tool_with_the_policy_rerun_is_called_again(saver, calls, way):
    answer = asked(("search", {"q": "a"}, "c1"), ("search", {"q": "b"}, "c2"))
    app = node(saver, [searching(calls, ["b"])], answer, handle=False, policies={"search": "rerun"})
    with pytest.raises(OSError, match="network"):
        run(app, way, {"messages": [HumanMessage("go")]})
    restarted(saver)
    run(app, way, None)
    assert sorted(calls.of("search")) == ["search a", "search a", "search b", "search b"]


def test_tools_that_return_commands_and_artifacts_are_recorded(saver, calls):
    broken = [True]

    @tool(response_format="content_and_artifact")
    def look(q: str) -> tuple[str, dict]:
        """Look."""
        calls.call("look")
        return "seen", {"raw": (1, 2)}

    @tool
    def go(q: str, runtime: ToolRuntime) -> Command:
        """Go."""
        calls.call("go")
        return Command(update={"messages": [ToolMessage("gone", tool_call_id=runtime.tool_call_id)]})

    @tool
    def stop(q: str) -> str:
        """Stop."""
        if broken:
            broken.clear()
            raise OSError("the network")
        return "stopped"

    answer = asked(("look", {"q": ""}, "c1"), ("go", {"q": ""}, "c2"), ("stop", {"q": ""}, "c3"))
    app = node(saver, [look, go, stop], answer, handle=False)
    with pytest.raises(OSError, match="network"):
        app.invoke({"messages": [HumanMessage("go")]}, HERE)
    restarted(saver)
    result = app.invoke(None, HERE)["messages"][-3:]
    assert sorted(calls.made) == ["go", "look"]
    by_id = {one.tool_call_id: one for one in result}
    assert by_id["c1"].artifact == {"raw": (1, 2)}
    assert by_id["c2"].content == "gone"


def test_an_answer_that_cannot_be_recorded_is_the_callers_and_not_the_models(saver):
    @tool(response_format="content_and_artifact")
    def odd(q: str) -> tuple[str, object]:
        """Odd."""
        return "seen", object()

    app = node(saver, [odd], asked(("odd", {"q": ""}, "c1")))
    with pytest.raises(UnencodableError):
        app.invoke({"messages": [HumanMessage("go")]}, HERE)


def test_steps_inside_a_recorded_tool_are_its_own(saver, calls):
    broken = [True]

    @tool
    def deep(q: str) -> str:
        """Deep."""
        first = step("fetch", lambda: (calls.call("fetch") and "fetched") or "fetched")
        if broken:
            broken.clear()
            raise OSError("the network")
        return first

    app = node(saver, [deep], asked(("deep", {"q": ""}, "c1")), handle=False)
    with pytest.raises(OSError, match="network"):
        app.invoke({"messages": [HumanMessage("go")]}, HERE)
    restarted(saver)
    app.invoke(None, HERE)
    assert calls.made == ["fetch"]


def test_a_policy_that_is_none_is_refused():
    with pytest.raises(InvalidArgument):
        durable_tool_call({"search": "sometimes"})
    with pytest.raises(InvalidArgument):
        DurableMiddleware(default="never")


def test_a_policy_of_a_tool_that_is_not_there_is_told(saver, calls, caplog):
    app = agent(saver, calls, [AIMessage("done")], [searching(calls)], policies={"pay": "rerun"})
    run(app, "sync", {"messages": [HumanMessage("?")]})
    told = [record.getMessage() for record in caplog.records if "guards nothing" in record.getMessage()]
    assert told == ["letitloop: tools={'pay': …}: there is no tool of that name so far, so that policy guards nothing."]


# --- effects -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["function", "coroutine", "class"])
def test_an_effect_is_done_once_however_often_the_model_asks(saver, calls, way, kind):
    if kind == "coroutine" and way == "sync":
        pytest.skip("a coroutine tool has no sync form")

    @tool("refund")
    def refund(order_id: str, amount: int) -> str:
        """Refund."""
        calls.call(f"refund {order_id}")
        return f"refunded {order_id}"

    @tool("refund")
    async def arefund(order_id: str, amount: int) -> str:
        """Refund."""
        calls.call(f"refund {order_id}")
        return f"refunded {order_id}"

    class Refund(BaseTool):
        name: str = "refund"
        description: str = "Refund."

        def _run(self, order_id: str, amount: int) -> str:
            calls.call(f"refund {order_id}")
            return f"refunded {order_id}"

    made = {"function": refund, "coroutine": arefund, "class": Refund()}[kind]
    again = {"order_id": "1", "amount": 5}
    answers = [asked(("refund", again, "c1"), ("refund", again, "c2")), asked(("refund", again, "c3")), summary]
    policy = effect(key="refund/{order_id}", ledger=Ledger(store=saver.store))
    app = agent(saver, calls, answers, [made], policies={"refund": policy})
    result = run(app, way, {"messages": [HumanMessage("go")]})["messages"]
    assert calls.of("refund") == ["refund 1"]
    assert [one.content for one in result if isinstance(one, ToolMessage)] == ["refunded 1"] * 3
    assert [one.tool_call_id for one in result if isinstance(one, ToolMessage)] == ["c1", "c2", "c3"]


def test_what_the_application_vouches_for_is_in_no_schema_that_a_model_sees(saver, calls):
    seen = []

    class Looks(Scripted):
        def bind_tools(self, tools, **kwargs):
            seen.append([sorted(one.args) for one in tools])
            return self

    @tool
    def refund(order_id: str, who: Trusted[str], state: Annotated[dict, InjectedState], config: RunnableConfig) -> str:
        """Refund."""
        calls.call(f"refund {order_id} {who} {len(state['messages'])} {config['configurable']['thread_id']}")
        return "refunded"

    policy = effect(key="refund/{order_id}/{who}", ledger=Ledger(store=saver.store))
    app = create_agent(
        Looks(calls=calls, answers=[asked(("refund", {"order_id": "1", "who": "mallory"}, "c1")), summary]),
        [refund],
        middleware=[DurableMiddleware(tools={"refund": policy})],
        checkpointer=saver,
    )
    with effect_context(who="ada"):
        app.invoke({"messages": [HumanMessage("go")]}, HERE)
    assert calls.of("refund") == ["refund 1 ada 2 1"]
    assert all("who" not in args for tools in seen for args in tools)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", ["agent", "tool node", "agent with retries", "agent as a subgraph"])
def test_an_unknown_outcome_is_never_shown_to_the_model(saver, calls, way, where):
    @tool
    def charge(order: str) -> str:
        """Charge."""
        calls.call("charge")
        raise TimeoutError("no answer")

    ledger = Ledger(store=saver.store)
    policies = {"charge": effect(key="charge/{order}", ledger=ledger)}
    asks = asked(("charge", {"order": "42"}, "c1"))
    if where == "tool node":
        app = node(saver, [charge], asks, policies=policies)
    else:
        before = [ToolRetryMiddleware(max_retries=3, initial_delay=0)] if where == "agent with retries" else []
        app = agent(
            None if where == "agent as a subgraph" else saver, calls, [asks, summary], [charge], policies=policies, before=before
        )
        if where == "agent as a subgraph":
            graph = StateGraph(MessagesState)
            graph.add_node("agent", app)
            graph.add_edge(START, "agent")
            app = graph.compile(checkpointer=saver)
    inputs = {"messages": [HumanMessage("go")]}
    for _ in range(2):
        with pytest.raises(UnknownOutcome) as told:
            run(app, way, inputs, durable_config("1", inputs))
        restarted(saver)
    assert calls.of("charge") == ["charge"]
    ledger.resolve(told.value.namespace, told.value.key, outcome="succeeded", evidence="seen", by="ada", result="charged 42")
    result = run(app, way, inputs, durable_config("1", inputs))["messages"]
    assert any(isinstance(one, ToolMessage) and one.content == "charged 42" for one in result)
    assert calls.of("charge") == ["charge"]
    assert len(calls.of("model-0")) <= 1


def test_an_approval_is_asked_of_the_caller(saver, calls):
    ledger = Ledger(store=saver.store)

    @tool
    def charge(order: str) -> str:
        """Charge."""
        calls.call("charge")
        return "charged"

    policies = {"charge": effect(key="charge/{order}", ledger=ledger, approval=Approval())}
    app = node(saver, [charge], asked(("charge", {"order": "42"}, "c1")), policies=policies)
    inputs = {"messages": [HumanMessage("go")]}
    with pytest.raises(ApprovalRequired) as told:
        app.invoke(inputs, durable_config("1", inputs))
    ledger.approve(told.value.namespace, told.value.key, by="ada")
    app.invoke(inputs, durable_config("1", inputs))
    assert calls.made == ["charge"]
