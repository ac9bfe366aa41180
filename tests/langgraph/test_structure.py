"""Which steps are whose where checkpoints do not tell: durability="exit", subgraphs, long names, threads of one task."""

from __future__ import annotations

import contextvars
import operator
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, TypedDict

import pytest
from langgraph.func import task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from letitloop import MemoryStore, UnknownOutcome, step
from letitloop.errors import InvalidArgument
from letitloop.runs.journal import Journal
from letitloop_langgraph import LetItLoopCheckpointSaver, durable_config, places
from letitloop_langgraph.resolver import current_place
from tests.langgraph.helpers import Counted, chain, restarted

HERE = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    xs: Annotated[list, operator.add]


class Worker(State, total=False):
    who: str


@pytest.fixture
def saver():
    made = LetItLoopCheckpointSaver(store=MemoryStore())
    yield made
    made.close()


@pytest.mark.parametrize("on_loop", [False, True])
def test_threads_of_one_task_that_ask_at_once_have_one_place(saver, monkeypatch, on_loop):
    both, met, armed = threading.Barrier(2), threading.local(), []

    def running_loop():
        if armed and not hasattr(met, "once"):  # nobody has a place yet, and both threads have seen that
            met.once = True
            both.wait(60)
        return object() if on_loop and armed else None

    monkeypatch.setattr(places, "running_loop", running_loop)

    def node(state):
        armed.append(1)
        with ThreadPoolExecutor(2) as pool:
            found = [pool.submit(contextvars.copy_context().run, current_place) for _ in range(2)]
            one, other = (each.result() for each in found)
        armed.clear()
        assert one is other
        return {"xs": []}

    chain(saver, first=lambda state: {"xs": [step("first", str, 1)]}, node=node).invoke({"xs": []}, HERE, durability="sync")
    assert not armed


def nested(node, depth):
    for _ in range(depth):
        graph = StateGraph(Worker)
        graph.add_node("inner", node)
        graph.add_edge(START, "inner")
        node = graph.compile()
    return node


@pytest.mark.parametrize("again", [False, True], ids=["same life", "another life"])
@pytest.mark.parametrize("kind", ["interrupt", "failure", "halt"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_in_exit_mode_a_thread_that_is_invoked_again_repeats_no_step(saver, kind, depth, again):
    count, lives = Counted(), iter(range(9))

    def stop():
        raise UnknownOutcome("nobody knows")

    def node(state):
        done = step("work", count, "a")
        if next(lives) < 2:
            if kind == "failure":
                raise OSError("the network")
            if kind == "halt":
                step("stop", stop)
        if kind == "interrupt":
            interrupt("sure?")
        return {"xs": [done]}

    app = chain(saver, before=lambda state: {"xs": [step("before", count, "b")]}, node=nested(node, depth))
    config = durable_config("1", {"xs": []})
    asked = {"xs": []}
    for _ in range(4):
        try:
            result = app.invoke(asked, config, durability="exit")
        except (OSError, UnknownOutcome):
            result = {}
        asked = Command(resume="yes") if kind == "interrupt" else asked
        if again:
            restarted(saver)
    assert result["xs"][-1] == "did a"
    assert count.calls == ["b", "a"]


class Killed(LetItLoopCheckpointSaver):
    """Stores no checkpoint, as a process that is killed before its end."""

    killed = True

    def put(self, config, checkpoint, metadata, new_versions):
        if self.killed:
            raise OSError("killed")
        return super().put(config, checkpoint, metadata, new_versions)


def test_what_exit_mode_runs_anew_is_the_policy_of_nothing_else(tmp_path, monkeypatch):
    """Tasks run side by side: another one's changed step is told meanwhile."""
    saver, asked, policies = Killed(store=tmp_path), ["a"], []
    look = Journal.effects_after

    def seen(journal, entry, prefix):
        policies.append(saver.room.thread("1").places.run()._on_change)
        return look(journal, entry, prefix)

    monkeypatch.setattr(Journal, "effects_after", seen)
    app = chain(saver, node=lambda state: {"xs": [step("work", str.upper, asked[0])]})
    config = durable_config("1", {"xs": []})
    with pytest.raises(OSError, match="killed"):
        app.invoke({"xs": []}, config, durability="exit")
    restarted(saver)
    saver.killed, asked[0] = False, "b"
    assert app.invoke({"xs": []}, config, durability="exit")["xs"][-1] == "B"
    assert policies == ["raise"]


class InOrder:
    """Has workers finish in an order of their own in each life."""

    def __init__(self, names):
        self.orders = [list(reversed(names)), list(names)]
        self.life = 0
        self._changed = threading.Condition()
        self._done = []

    def __call__(self, name):
        with self._changed:
            turn = self.orders[self.life].index(name)
            assert self._changed.wait_for(lambda: len(self._done) == turn, 60)
        found = step("who", lambda: name)
        with self._changed:
            self._done.append(name)
            self._changed.notify_all()
        return found

    def next_life(self):
        self.life, self._done = self.life + 1, []


def two_lives(graph, names, order):
    saver = Killed(store=MemoryStore())
    app = graph.compile(checkpointer=saver)
    config = durable_config("1", {"xs": []}, max_concurrency=len(names) + 4)
    with pytest.raises(OSError, match="killed"):
        app.invoke({"xs": []}, config, durability="exit")
    restarted(saver)
    saver.killed = False
    order.next_life()
    found = app.invoke({"xs": []}, config, durability="exit")["xs"]
    saver.close()
    assert sorted(found) == [(name, name) for name in sorted(names)]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_in_exit_mode_sends_to_a_subgraph_are_told_apart_by_the_position_of_their_task(depth):
    names = [f"w{n}" for n in range(3)]
    order = InOrder(names)
    graph = StateGraph(State)
    graph.add_node("sub", nested(lambda state: {"xs": [(state["who"], order(state["who"]))]}, depth))
    graph.add_conditional_edges(START, lambda state: [Send("sub", {"who": name, "xs": []}) for name in names], ["sub"])
    two_lives(graph, names, order)


def test_in_exit_mode_sends_inside_sends_are_told_apart():
    names = [f"{outer}{inner}" for outer in "ab" for inner in "xy"]
    order = InOrder(names)
    inner = StateGraph(Worker)
    inner.add_node("worker", lambda state: {"xs": [(state["who"], order(state["who"]))]})
    inner.add_conditional_edges(START, lambda state: [Send("worker", {"who": state["who"] + one}) for one in "xy"], ["worker"])
    graph = StateGraph(State)
    graph.add_node("sub", inner.compile())
    graph.add_conditional_edges(START, lambda state: [Send("sub", {"who": one, "xs": []}) for one in "ab"], ["sub"])
    two_lives(graph, names, order)


def test_in_exit_mode_one_task_of_two_nodes_is_told_apart():
    order = InOrder(["a", "b"])

    @task
    def ask(who):
        return order(who)

    graph = StateGraph(State)
    for name in "ab":
        graph.add_node(name, lambda state, name=name: {"xs": [(name, ask(name).result())]})
        graph.add_edge(START, name)
    two_lives(graph, ["a", "b"], order)


def test_in_exit_mode_a_subgraph_in_a_loop_is_told_apart_by_the_turn():
    order = InOrder(["w0", "w1", "w2"])
    order.orders[0].reverse()
    graph = StateGraph(State)

    def call(state):
        who = f"w{len(state['xs'])}"
        return {"xs": nested(lambda state: {"xs": [(who, order(who))]}, 1).invoke({"xs": []})["xs"]}

    graph.add_node("call", call)
    graph.add_edge(START, "call")
    graph.add_conditional_edges("call", lambda state: "call" if len(state["xs"]) < 3 else END, ["call", END])
    two_lives(graph, ["w0", "w1", "w2"], order)


def test_sends_that_nothing_tells_apart_are_refused(saver):
    inner = StateGraph(Worker)
    inner.add_node("worker", lambda state: {"xs": [step("who", lambda: state["who"])]})
    inner.add_edge(START, "worker")
    graph = StateGraph(State)
    graph.add_node("sub", inner.compile(checkpointer=False))
    graph.add_conditional_edges(START, lambda state: [Send("sub", {"who": one, "xs": []}) for one in "ab"], ["sub"])
    with pytest.raises(InvalidArgument, match="'sub' run a subgraph side by side"):
        graph.compile(checkpointer=saver).invoke({"xs": []}, HERE, durability="exit")


def test_a_task_at_the_root_is_not_taken_for_one_of_a_subgraph_with_the_same_name(saver):
    first, broken = threading.Event(), [True]

    def inner_one(state):
        done = step("work", lambda: "inner")
        first.set()
        return {"xs": [("inner", done)]}

    def root_one(state):
        assert first.wait(60)
        if broken:
            broken.clear()
            raise OSError("the network")
        return {"xs": [("root", step("work", lambda: "root"))]}

    inner = StateGraph(State)
    inner.add_node("one", inner_one)
    inner.add_edge(START, "one")
    graph = StateGraph(State)
    graph.add_node("one", root_one)
    graph.add_node("sub", inner.compile())
    graph.add_edge(START, "one")
    graph.add_edge(START, "sub")
    app = graph.compile(checkpointer=saver)
    with pytest.raises(OSError, match="network"):
        app.invoke({"xs": []}, durable_config("1", {"xs": []}), durability="exit")
    restarted(saver)
    result = app.invoke({"xs": []}, durable_config("1", {"xs": []}), durability="exit")
    assert sorted(result["xs"]) == [("inner", "inner"), ("root", "root")]


def test_a_node_whose_name_is_longer_than_a_key_has_steps_of_its_own_in_each_task(saver):
    count, name = iter(range(1, 9)), "n" * 600
    graph = StateGraph(State)
    graph.add_node(name, lambda state: {"xs": [step("draw", lambda: next(count))]})
    graph.add_edge(START, name)
    graph.add_conditional_edges(name, lambda state: END if len(state["xs"]) > 3 else name, [END, name])
    app = graph.compile(checkpointer=saver)
    assert app.invoke({"xs": []}, HERE, durability="sync")["xs"] == [1, 2, 3, 4]
    earlier = next(state.config for state in app.get_state_history(HERE) if state.values["xs"] == [1])
    restarted(saver)
    assert app.invoke(None, earlier)["xs"] == [1, 5, 6, 7]
