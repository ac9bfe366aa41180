"""Graphs of every shape, run with this saver and with ``InMemorySaver``: the same states, tasks and interrupts, step by step.

The shapes are those of LangGraph's own tests; ids, times and versions differ from run to run and are left out or renamed.
"""

from __future__ import annotations

import asyncio
import operator
import re
import warnings
from dataclasses import dataclass
from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, interrupt
from pydantic import BaseModel

from letitloop import MemoryStore
from letitloop_langgraph import LetItLoopCache, LetItLoopCheckpointSaver
from tests.langgraph import versions

warnings.simplefilter("ignore")
HERE = {"configurable": {"thread_id": "1"}}
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")


class Xs(TypedDict):
    xs: Annotated[list, operator.add]


class Named:
    """Gives ids names in the order in which they appear, so that two runs can be compared."""

    def __init__(self):
        self.names = {}

    def __call__(self, value):
        return UUID.sub(lambda found: self.names.setdefault(found[0], f"id{len(self.names)}"), repr(value))


def told(app, config=HERE):
    """Return what a thread's history says, without what differs from run to run."""
    named, history = Named(), list(app.get_state_history(config))
    lines = []
    for state in reversed(history):
        metadata = {name: value for name, value in (state.metadata or {}).items() if name in ("source", "step", "parents")}
        tasks = sorted(
            (one.name, str(one.path), str(one.error), [str(sign.value) for sign in one.interrupts], str(one.result))
            for one in state.tasks
        )
        lines.append(
            (
                named(state.config["configurable"]["checkpoint_id"]),
                named((state.parent_config or {}).get("configurable", {}).get("checkpoint_id")),
                named(state.values),
                sorted(state.next),
                named(metadata),
                [named(one) for one in tasks],
            )
        )
    return lines


def worded(result):
    return Named()(result)


class Driver:
    """One way of running a graph, sync or async, with one saver."""

    def __init__(self, way, saver, mode):
        self.way = way
        self.saver = saver
        self.mode = mode

    def invoke(self, app, inputs, config=HERE, **more):
        try:
            if self.way == "sync":
                return app.invoke(inputs, config, durability=self.mode, **more)
            return asyncio.run(app.ainvoke(inputs, config, durability=self.mode, **more))
        except (ValueError, OSError) as exc:
            return f"raised {exc!r}"


# --- the shapes: each drives a graph and returns what it saw ---------------------------------------------------------------------


def chain(run):
    graph = StateGraph(Xs)
    for name, then in (("a", "b"), ("b", "c"), ("c", END)):
        graph.add_node(name, lambda state, name=name: {"xs": [name]})
        graph.add_edge(name, then)
    graph.add_edge(START, "a")
    app = graph.compile(checkpointer=run.saver)
    seen = [run.invoke(app, {"xs": ["in"]}), run.invoke(app, {"xs": ["again"]}), run.invoke(app, None)]
    return seen, told(app)


def branch(run):
    graph = StateGraph(Xs)
    for name in ("a", "left", "right", "join"):
        graph.add_node(name, lambda state, name=name: {"xs": [name]})
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: ["left", "right"] if len(state["xs"]) % 2 == 0 else "right", ["left", "right"])
    graph.add_edge("left", "join")
    graph.add_edge("right", "join")
    app = graph.compile(checkpointer=run.saver)
    return [run.invoke(app, {"xs": ["in"]}), run.invoke(app, {"xs": ["x", "y"]})], told(app)


def fan_out(run):
    graph = StateGraph(Xs)
    graph.add_node("split", lambda state: {"xs": ["split"]})
    graph.add_node("work", lambda n: {"xs": [n * n]})
    graph.add_node("join", lambda state: {"xs": [sum(x for x in state["xs"] if isinstance(x, int))]})
    graph.add_edge(START, "split")
    graph.add_conditional_edges("split", lambda state: [Send("work", n) for n in range(6)], ["work"])
    graph.add_edge("work", "join")
    app = graph.compile(checkpointer=run.saver)
    return [run.invoke(app, {"xs": []})], told(app)


def _inner(kind):
    graph = StateGraph(Xs)
    graph.add_node("one", lambda state: {"xs": ["one"]})
    graph.add_node("two", lambda state: {"xs": [interrupt("two?")]})
    graph.add_edge(START, "one")
    graph.add_edge("one", "two")
    return graph.compile(checkpointer=kind)


def subgraph_shared(run):
    graph = StateGraph(Xs)
    graph.add_node("before", lambda state: {"xs": ["before"]})
    graph.add_node("sub", _inner(None))
    graph.add_edge(START, "before")
    graph.add_edge("before", "sub")
    app = graph.compile(checkpointer=run.saver)
    seen = [run.invoke(app, {"xs": ["in"]})]
    seen.append(str(app.get_state(HERE, subgraphs=True).tasks[0].state.values))
    seen.append(run.invoke(app, Command(resume="yes")))
    return seen, told(app)


def subgraph_isolated(run):
    inner = _inner(None)
    graph = StateGraph(Xs)
    graph.add_node("call", lambda state: {"xs": ["called", *inner.invoke({"xs": []})["xs"]]})
    graph.add_edge(START, "call")
    app = graph.compile(checkpointer=run.saver)
    if run.way == "async":
        return [], []  # a sync call of a subgraph inside an async run is the same code
    return [run.invoke(app, {"xs": ["in"]}), run.invoke(app, Command(resume="yes"))], told(app)


def subgraph_stateful(run):
    inner = StateGraph(Xs)
    inner.add_node("one", lambda state: {"xs": [len(state["xs"])]})
    inner.add_edge(START, "one")
    graph = StateGraph(Xs)
    graph.add_node("sub", inner.compile(checkpointer=True))
    graph.add_edge(START, "sub")
    app = graph.compile(checkpointer=run.saver)
    return [run.invoke(app, {"xs": ["in"]}), run.invoke(app, {"xs": ["more"]})], told(app)


def interrupt_in_a_loop(run):
    graph = StateGraph(Xs)

    def ask(state):
        answers = [interrupt(f"question {n}") for n in range(3)]
        return {"xs": answers}

    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", lambda state: END if len(state["xs"]) > 5 else "ask", ["ask", END])
    app = graph.compile(checkpointer=run.saver)
    seen = [run.invoke(app, {"xs": []})]
    seen += [run.invoke(app, Command(resume=f"answer {n}")) for n in range(6)]
    return seen, told(app)


def breakpoints(run):
    graph = StateGraph(Xs)
    for name, then in (("a", "b"), ("b", END)):
        graph.add_node(name, lambda state, name=name: {"xs": [name]})
        graph.add_edge(name, then)
    graph.add_edge(START, "a")
    app = graph.compile(checkpointer=run.saver, interrupt_before=["b"], interrupt_after=["a"])
    seen = [run.invoke(app, {"xs": ["in"]})]
    app.update_state(HERE, {"xs": ["by hand"]})
    seen += [run.invoke(app, None), run.invoke(app, None)]
    return seen, told(app)


def command(run):
    graph = StateGraph(Xs)
    graph.add_node(
        "a", lambda state: Command(goto="b" if len(state["xs"]) < 3 else END, update={"xs": ["a"]}), destinations=("b", END)
    )
    graph.add_node("b", lambda state: Command(goto="a", update={"xs": ["b"]}), destinations=("a",))
    graph.add_edge(START, "a")
    app = graph.compile(checkpointer=run.saver)
    return [run.invoke(app, {"xs": ["in"]}), run.invoke(app, Command(update={"xs": ["later"]}, goto="a"))], told(app)


def functional(run):
    @task
    def double(n):
        return 2 * n

    @entrypoint(checkpointer=run.saver)
    def flow(ns, *, previous):
        doubled = [one.result() for one in [double(n) for n in ns]]
        answer = interrupt("sure?")
        return entrypoint.final(value=[*doubled, answer], save=[*(previous or []), sum(doubled)])

    if run.way == "async":

        @task
        async def adouble(n):
            return 2 * n

        @entrypoint(checkpointer=run.saver)
        async def aflow(ns, *, previous):
            doubled = list(await asyncio.gather(*(adouble(n) for n in ns)))
            answer = interrupt("sure?")
            return entrypoint.final(value=[*doubled, answer], save=[*(previous or []), sum(doubled)])

        flow = aflow
    seen = []
    for turn in range(2):
        seen += [run.invoke(flow, [1, 2, 3 + turn]), run.invoke(flow, Command(resume=f"yes {turn}"))]
    return seen, told(flow)


def time_travel(run):
    if run.mode == "exit":
        return [], []  # there is no checkpoint in between to travel to
    graph = StateGraph(Xs)
    for name, then in (("a", "b"), ("b", "c"), ("c", END)):
        graph.add_node(name, lambda state, name=name: {"xs": [f"{name}{len(state['xs'])}"]})
        graph.add_edge(name, then)
    graph.add_edge(START, "a")
    app = graph.compile(checkpointer=run.saver)
    seen = [run.invoke(app, {"xs": ["in"]})]
    old = next(state for state in app.get_state_history(HERE) if state.next == ("b",))
    seen.append(run.invoke(app, None, old.config))
    forked = app.update_state(old.config, {"xs": ["fork"]})
    seen += [run.invoke(app, None, forked), run.invoke(app, {"xs": ["go on"]})]
    return seen, told(app)


def parallel_failures(run):
    broken = [True]

    def fails(state):
        if broken:
            broken.clear()
            raise OSError("broken")
        return {"xs": ["mended"]}

    graph = StateGraph(Xs)
    graph.add_node("ok", lambda state: {"xs": ["ok"]})
    graph.add_node("fails", fails)
    graph.add_node("join", lambda state: {"xs": ["join"]})
    graph.add_edge(START, "ok")
    graph.add_edge(START, "fails")
    graph.add_edge(["ok", "fails"], "join")
    app = graph.compile(checkpointer=run.saver)
    seen = [run.invoke(app, {"xs": ["in"]}), run.invoke(app, None)]
    return seen, told(app) if run.way == "sync" else []  # asyncio may or may not cancel the other node before it has ended


def retries(run):
    left = [1, 2]

    def flaky(state):
        if left:
            left.pop()
            raise ConnectionError("again")
        return {"xs": ["at last"]}

    graph = StateGraph(Xs)
    graph.add_node("flaky", flaky, retry_policy=RetryPolicy(initial_interval=0, jitter=False))
    graph.add_edge(START, "flaky")
    app = graph.compile(checkpointer=run.saver)
    return [run.invoke(app, {"xs": ["in"]})], told(app)


def error_handler(run):
    graph = StateGraph(Xs)

    def fails(state):
        raise ValueError("broken")

    graph.add_node("fails", fails, error_handler=lambda state: {"xs": ["handled"]})
    graph.add_node("after", lambda state: {"xs": ["after"]})
    graph.add_edge(START, "fails")
    graph.add_edge("fails", "after")
    app = graph.compile(checkpointer=run.saver)
    return [run.invoke(app, {"xs": ["in"]})], told(app)


def cached(run):
    calls = []
    graph = StateGraph(Xs)
    graph.add_node("a", lambda state: calls.append(1) or {"xs": ["a"]}, cache_policy=CachePolicy())
    graph.add_edge(START, "a")
    app = graph.compile(checkpointer=run.saver, cache=LetItLoopCache(store=MemoryStore()))
    seen = [run.invoke(app, {"xs": ["in"]}), run.invoke(app, {"xs": ["in"]}, {"configurable": {"thread_id": "2"}}), len(calls)]
    return seen, told(app)


def messages(run):
    class Chat(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]

    def answer(state):
        if len(state["messages"]) > 5:
            return {"messages": [RemoveMessage(state["messages"][0].id), RemoveMessage(state["messages"][1].id)]}
        last = state["messages"][-1]
        call = {"name": "f", "args": {"n": len(state["messages"])}, "id": "c"}
        return {"messages": [AIMessage(f"re: {last.content}", id=f"a{len(state['messages'])}", tool_calls=[call])]}

    graph = StateGraph(Chat)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    app = graph.compile(checkpointer=run.saver)
    seen = [run.invoke(app, {"messages": [HumanMessage(f"m{n}", id=f"h{n}")]}) for n in range(6)]
    return seen, told(app)


def delta(run):
    if run.mode == "exit":
        return [], []  # as above
    if (run.way, run.mode) == ("sync", "async") and versions.langgraph() < (1, 2, 24):
        pytest.skip("in these versions langgraph's thread pool may wait for itself when delta channels are saved behind its back")

    class Delta(TypedDict):
        xs: Annotated[list, DeltaChannel(lambda left, writes: left + [x for write in writes for x in write], snapshot_frequency=3)]

    graph = StateGraph(Delta)
    graph.add_node("a", lambda state: {"xs": [len(state["xs"])]})
    graph.add_node("b", lambda state: {"xs": [-len(state["xs"])]})
    graph.add_edge(START, "a")
    graph.add_edge(START, "b")
    graph.add_conditional_edges("a", lambda state: END if len(state["xs"]) > 14 else "a", ["a", END])
    app = graph.compile(checkpointer=run.saver)
    seen = [run.invoke(app, {"xs": ["in"]}), run.invoke(app, {"xs": ["more"]})]
    old = list(app.get_state_history(HERE))[4]
    seen.append(run.invoke(app, None, old.config))
    return seen, told(app)


@dataclass
class Point:
    x: int
    y: list  # InMemorySaver makes lists of tuples; this saver does not


class Model(BaseModel):
    point: Point
    names: set[str] = set()


def schemas(run):
    class Rich(TypedDict):
        model: Model
        point: Point
        either: Annotated[set, operator.or_]

    graph = StateGraph(Rich)
    graph.add_node("a", lambda state: {"model": Model(point=Point(1, [2]), names={"x"}), "either": {1}})
    graph.add_node("b", lambda state: {"point": Point(state["model"].point.x + 1, []), "either": {2}})
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    app = graph.compile(checkpointer=run.saver)
    return [run.invoke(app, {"point": Point(0, []), "either": set()})], told(app)


SHAPES = [
    chain, branch, fan_out, subgraph_shared, subgraph_isolated, subgraph_stateful, interrupt_in_a_loop, breakpoints,
    command, functional, time_travel, parallel_failures, retries, error_handler, cached, messages, delta, schemas,
]  # fmt: skip


@pytest.mark.parametrize("mode", ["sync", "async", "exit"])
@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_every_state_is_the_one_that_the_saver_in_memory_gives(shape, way, mode, tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    ours, history = shape(Driver(way, saver, mode))
    theirs, expected = shape(Driver(way, InMemorySaver(), mode))
    saver.close()
    assert list(map(worded, ours)) == list(map(worded, theirs))
    assert history == expected
