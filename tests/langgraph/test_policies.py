"""Policies that name no tool or fit none are refused, whatever swallows that; and effects of tools that take any arguments."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelResponse, ModelRetryMiddleware, ToolRetryMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from letitloop import Ledger, Limit, MemoryStore, Trusted, effect, effect_context
from letitloop.errors import InvalidArgument
from letitloop.runs.importing import only_imported
from letitloop_langgraph import DurableMiddleware, LetItLoopCheckpointSaver, adurable_tool_call, durable_tool_call
from tests.langgraph.helpers import restarted
from tests.langgraph.programs import Scripted, asked, summary
from tests.langgraph.test_tools import HERE, WAYS, Calls, agent, node, run, searching


@pytest.fixture
def calls():
    return Calls()


class Swallows(AgentMiddleware):
    """Catches what its calls raise and goes on, as programs do and as middleware that retries did."""

    def wrap_model_call(self, request, handler):
        try:
            return handler(request)
        except Exception as exc:
            return ModelResponse([AIMessage(f"swallowed {exc}")])

    async def awrap_model_call(self, request, handler):
        try:
            return await handler(request)
        except Exception as exc:
            return ModelResponse([AIMessage(f"swallowed {exc}")])

    def wrap_tool_call(self, request, handler):
        try:
            return handler(request)
        except Exception as exc:
            return ToolMessage(f"swallowed {exc}", tool_call_id=request.tool_call["id"])

    async def awrap_tool_call(self, request, handler):
        try:
            return await handler(request)
        except Exception as exc:
            return ToolMessage(f"swallowed {exc}", tool_call_id=request.tool_call["id"])


AROUND = {
    "nothing": [],
    "retries": [ModelRetryMiddleware(max_retries=1, initial_delay=0.0), ToolRetryMiddleware(max_retries=1, initial_delay=0.0)],
    "what swallows": [Swallows()],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("before", AROUND.values(), ids=AROUND)
def test_a_misspelt_policy_is_refused_before_anything_is_asked_each_time(saver, calls, way, before):
    app = agent(saver, calls, [AIMessage("done")], [searching(calls)], policies={"serach": "rerun"}, before=before)
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=r"'search' has no policy: is that the one meant.*No model was asked"):
            run(app, way, {"messages": [HumanMessage("?")]}, durability="sync")
    assert calls.made == []
    assert not saver.room.thread("1").places.busy()
    repaired = agent(saver, calls, [AIMessage("done")], [searching(calls)], policies={"search": "rerun"}, before=before)
    assert run(repaired, way, None)["messages"][-1].content == "done"


def swallowing(name):
    """Return what wraps a tool node's calls and catches what they raise."""
    wrapped, awrapped = Swallows().wrap_tool_call, Swallows().awrap_tool_call

    def around(policies, default):
        call, acall = durable_tool_call(policies, default), adurable_tool_call(policies, default)

        def sync(request, execute):
            return wrapped(request, lambda request: call(request, execute))

        async def later(request, execute):
            return await awrapped(request, lambda request: acall(request, execute))

        return sync, later

    return around if name == "swallowed" else None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["handled", "swallowed"])
@pytest.mark.parametrize("wrong", ["misspelt", "misfit"])
def test_a_wrong_policy_of_a_tool_node_is_refused_each_time(saver, calls, way, wrong, how):
    misfit = effect(key="search/{nothing}", ledger=Ledger(store=saver.store))
    policies = {"serach": "rerun"} if wrong == "misspelt" else {"search": misfit}
    told = r"'search' has no policy: is that the one meant.*The tool was not called" if wrong == "misspelt" else "nothing is no"
    app = node(saver, [searching(calls)], asked(("search", {"q": "a"}, "c1")), policies=policies, around=swallowing(how))
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=told):
            run(app, way, {"messages": []}, durability="sync")
    assert calls.made == []
    assert app.get_state(HERE).next == ("tools",)


def test_a_name_that_is_nearly_another_tools_is_no_misspelling(saver, calls):
    @tool
    def searches(q: str) -> str:
        """Search."""
        return searching(calls).invoke({"q": q})

    asks = asked(("search", {"q": "a"}, "c1"), ("searches", {"q": "b"}, "c2"))
    app = node(saver, [searching(calls), searches], asks, policies={"searches": "rerun"})
    app.invoke({"messages": []}, HERE)
    alone = node(saver, [searching(calls)], asks, policies={"searches": "rerun", "search": "record"})  # as the message says
    alone.invoke({"messages": []}, {"configurable": {"thread_id": "2"}})
    assert sorted(calls.made) == ["search a", "search a", "search b"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("before", AROUND.values(), ids=AROUND)
def test_an_effect_that_fits_no_tool_reaches_the_caller_through_whatever_swallows_it(saver, calls, way, before):
    policies = {"search": effect(key="search/{nothing}", ledger=Ledger(store=saver.store))}
    app = agent(saver, calls, [AIMessage("done")], [searching(calls)], policies=policies, before=before)
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="nothing is no parameter"):
            run(app, way, {"messages": [HumanMessage("?")]}, durability="sync")
    assert calls.made == []


# --- tools whose schema alone names their parameters ---------------------------------------------------------------------------

OPEN = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "cents": {"type": "integer", "default": 5},
        "note": {"type": ["string", "null"]},
    },
    "required": ["order_id"],
}


class Open(BaseModel):
    order_id: str
    cents: int = 5
    note: str | None = None


def open_tool(schema, calls, taken=None):
    """A tool as those of an MCP server: its function takes any arguments."""

    def refund(runtime: Any = None, **arguments):
        calls.call(f"refund {arguments.get('order_id')}")
        if taken is not None:
            taken.append(arguments)
        return "refunded", {"a": 1}

    async def arefund(runtime: Any = None, **arguments):
        return refund(runtime, **arguments)

    return StructuredTool(
        name="refund", description="Refund.", args_schema=schema, func=refund, coroutine=arefund,
        response_format="content_and_artifact",
    )  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("schema", [OPEN, Open], ids=["JSON", "pydantic"])
def test_an_effect_fits_a_tool_whose_schema_alone_names_its_parameters(saver, calls, way, schema):
    taken = []
    given, same = {"order_id": "2", "note": None, "cents": 6}, {"order_id": "1", "cents": 5}
    answers = [
        asked(("refund", {"order_id": "1"}, "c1"), ("refund", same, "c2"), ("refund", given, "c3")),
        asked(("refund", {"order_id": "1"}, "c4"), ("refund", {"order_id": "3", "more": 1}, "c5")),
        summary,
    ]
    policy = effect(key="refund/{order_id}/{cents}", ledger=Ledger(store=saver.store))
    app = agent(saver, calls, answers, [open_tool(schema, calls, taken)], policies={"refund": policy})
    result = run(app, way, {"messages": [HumanMessage("go")]})["messages"]
    assert [one.content for one in result if isinstance(one, ToolMessage)] == ["refunded"] * 5
    assert sorted(calls.of("refund")) == ["refund 1", "refund 2", "refund 3"]
    if schema is OPEN:  # what was not given is left to the server
        by_order = {one["order_id"]: one for one in taken}
        assert by_order["1"] in ({"order_id": "1"}, same)
        assert (by_order["2"], by_order["3"]) == (given, {"order_id": "3", "more": 1})


@pytest.mark.parametrize(
    ("key", "more", "told"),
    [
        ("refund/{nothing}", {}, "nothing is no parameter"),
        ("refund/{order_id}", {"from": {"type": "string"}}, "an argument 'from'"),
    ],
)
def test_an_effect_that_fits_no_schema_is_refused_by_name(saver, calls, key, more, told):
    schema = {**OPEN, "properties": {**OPEN["properties"], **more}}
    policies = {"refund": effect(key=key, ledger=Ledger(store=saver.store))}
    app = node(saver, [open_tool(schema, calls)], asked(("refund", {"order_id": "1"}, "c1")), policies=policies)
    with pytest.raises(InvalidArgument, match=told):
        app.invoke({"messages": []}, HERE)
    assert calls.made == []


def test_an_argument_may_be_called_as_those_that_a_function_takes_all_of(saver, calls):
    schema = {**OPEN, "properties": {**OPEN["properties"], "arguments": {"type": "string"}}}
    taken = []
    policies = {"refund": effect(key="refund/{order_id}/{arguments}", ledger=Ledger(store=saver.store))}
    asks = asked(("refund", {"order_id": "1", "arguments": "a"}, "c1"))
    result = node(saver, [open_tool(schema, calls, taken)], asks, policies=policies).invoke({"messages": []}, HERE)
    assert result["messages"][-1].content == "refunded"
    assert taken == [{"order_id": "1", "arguments": "a"}]


def test_an_argument_that_the_model_left_out_is_told_to_it(saver, calls):
    policies = {"refund": effect(key="refund/{order_id}", ledger=Ledger(store=saver.store))}
    app = node(saver, [open_tool(OPEN, calls)], asked(("refund", {"cents": 1}, "c1")), policies=policies)
    assert "order_id" in app.invoke({"messages": []}, HERE)["messages"][-1].content
    assert calls.made == []


BAD = {
    "empty": {"order_id": ""},
    "too long": {"order_id": "x" * 600},
    "with a zero character": {"order_id": "1\0"},
    "half a character": {"order_id": "\ud800"},
    "null": {"order_id": None},
    "a list": {"order_id": ["1"]},
    "missing": {"cents": 1},
    "no name of a parameter": {"order_id": "1", "order-note": "x"},
    "no amount": {"order_id": "1", "cents": 0.5},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("handle", ["as agents do", True, False])
def test_an_argument_that_makes_no_action_is_told_to_the_model_which_chooses_another(saver, calls, way, bad, handle):
    limit = Limit(group="orders", max_sum=("cents", 10))
    policies = {"refund": effect(key="refund/{order_id}", limit=limit, ledger=Ledger(store=saver.store))}
    tools = [open_tool(OPEN, calls)]
    good = asked(("refund", {"order_id": "1", "cents": 1}, "c2"))
    if handle == "as agents do":
        app = agent(saver, calls, [asked(("refund", bad, "c1")), good, summary], tools, policies=policies)
        first, last = (one for one in run(app, way, {"messages": []})["messages"] if isinstance(one, ToolMessage))
        assert first.status == "error"
        assert "fix" in first.content
        assert last.content == "refunded"
        assert calls.of("refund") == ["refund 1"]
        return
    app = node(saver, tools, asked(("refund", bad, "c1")), policies=policies, handle=handle)
    if handle:
        assert run(app, way, {"messages": []})["messages"][-1].status == "error"
    else:
        with pytest.raises(InvalidArgument, match=r"Nothing was|was not called"):
            run(app, way, {"messages": []})
    assert calls.of("refund") == []


@pytest.mark.parametrize("way", WAYS)
def test_what_the_application_vouches_for_is_its_own_error(saver, calls, way):
    @tool
    def refund(order_id: str, who: Trusted[str]) -> str:
        """Refund."""
        calls.call("refund")
        return "refunded"

    policies = {"refund": effect(key="refund/{order_id}/{who}", ledger=Ledger(store=saver.store))}
    app = node(saver, [refund], asked(("refund", {"order_id": "1"}, "c1")), policies=policies)
    with effect_context(who=""), pytest.raises(InvalidArgument, match="'who' is part of the key"):
        run(app, way, {"messages": []})
    assert calls.made == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("wrong", ["misspelt", "misfit"])
@pytest.mark.parametrize("around", ["node", "tool", "durable tool"])
def test_a_refusal_in_a_subagent_is_not_swallowed_by_what_called_it(saver, calls, way, mode, wrong, around):
    misfit = effect(key="search/{nothing}", ledger=Ledger(store=saver.store))
    policies = {"serach": "rerun"} if wrong == "misspelt" else {"search": misfit}

    def graph(policies):
        inner = agent(None, calls, [AIMessage("done")], [searching(calls)], policies=policies)

        def node(state):
            try:
                return {"messages": inner.invoke({"messages": [HumanMessage("?")]})["messages"][-1:]}
            except Exception as exc:
                return {"messages": [AIMessage(f"swallowed {exc}")]}

        async def later(state):
            try:
                return {"messages": (await inner.ainvoke({"messages": [HumanMessage("?")]}))["messages"][-1:]}
            except Exception as exc:
                return {"messages": [AIMessage(f"swallowed {exc}")]}

        async def ask(q: str) -> str:
            """Ask."""
            return (await later({}))["messages"][0].content

        asking = StructuredTool.from_function(lambda q: node({})["messages"][0].content, ask, name="ask", description="Ask.")
        if around != "node":
            model = Scripted(calls=Calls(), answers=[asked(("ask", {"q": "a"}, "c1")), summary])
            outer = [DurableMiddleware()] if around == "durable tool" else []
            return create_agent(model, [asking], middleware=outer, checkpointer=saver)
        built = StateGraph(MessagesState)
        built.add_node("node", node if way == "sync" else later)
        built.add_edge(START, "node")
        return built.compile(checkpointer=saver)

    app = graph(policies)
    for inputs in ({"messages": []}, None):
        with pytest.raises(InvalidArgument, match=r"is that the one meant|nothing is no parameter"):
            run(app, way, inputs, durability=mode)
    assert calls.made == []
    restarted(saver)
    answers = run(graph({"search": "rerun"}), way, None, durability=mode)["messages"]
    assert "done" in answers[-1].content


def test_a_graph_that_is_only_imported_is_not_run():
    """``lil ledger --provider`` imports a program for its provider: what stands at its top must not happen because of that."""
    ran = []
    graph = StateGraph(dict)
    graph.add_node("work", lambda state: ran.append(1))
    graph.add_edge(START, "work")
    app = graph.compile(checkpointer=LetItLoopCheckpointSaver(store=MemoryStore()))
    with only_imported("shop.program"), pytest.raises(InvalidArgument, match="a run of thread 't' of module"):
        app.invoke({}, {"configurable": {"thread_id": "t"}})
    assert ran == []
    app.invoke({}, {"configurable": {"thread_id": "t"}})
    assert ran == [1]
