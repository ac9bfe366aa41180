"""Steps and effects inside nodes: they find their place, whatever shape the graph has, and are not repeated."""

from __future__ import annotations

import asyncio

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from letitloop import Ledger, async_step, effect, scope, step
from letitloop.errors import StepChanged, StepOutsideRun
from letitloop_langgraph import durable_config
from tests.langgraph.helpers import Counted, State, chain, restarted

MODES = ["sync", "async", "exit"]


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_node_finds_its_finished_steps(saver, mode):
    count, broken = Counted(), [True]

    def node(state):
        first = step("first", count, "a")
        with scope("inner"):
            second = step("second", count, "b")
        again = step("first", count, "a")
        if broken:
            broken.clear()
            raise OSError("the network")
        return {"xs": [first, second, again]}

    app = chain(saver, node=node)
    with pytest.raises(OSError, match="network"):
        app.invoke({"xs": []}, durable_config("1", {"xs": []}), durability=mode)
    restarted(saver)
    assert app.invoke({"xs": []}, durable_config("1", {"xs": []}), durability=mode) == {"xs": ["did a", "did b", "did a"]}
    assert count.calls == ["a", "b", "a"]


@pytest.mark.parametrize("mode", MODES)
async def test_the_same_in_async_code(saver, mode):
    count, broken = Counted(), [True]

    async def node(state):
        both = await asyncio.gather(async_step("first", count.later, "a"), async_step("second", count.later, "b"))
        third = await async_step("plain", count, "c")
        if broken:
            broken.clear()
            raise OSError("the network")
        return {"xs": [*both, third]}

    app = chain(saver, node=node)
    with pytest.raises(OSError, match="network"):
        await app.ainvoke({"xs": []}, durable_config("1", {"xs": []}), durability=mode)
    restarted(saver)
    result = await app.ainvoke({"xs": []}, durable_config("1", {"xs": []}), durability=mode)
    assert result == {"xs": ["did a", "did b", "did c"]}
    assert sorted(count.calls) == ["a", "b", "c"]


def test_a_retry_in_this_process_reuses_finished_leaves(saver):
    count, failures = Counted(), [1, 2]

    def node(state):
        done = step("work", count, "a")
        if failures:
            failures.pop()
            raise ConnectionError
        return {"xs": [done]}

    graph = StateGraph(State)
    graph.add_node("node", node, retry_policy=RetryPolicy(initial_interval=0, jitter=False))
    graph.add_edge(START, "node")
    assert graph.compile(checkpointer=saver).invoke({"xs": []}, {"configurable": {"thread_id": "1"}}) == {"xs": ["did a"]}
    assert count.calls == ["a"]


def test_a_step_that_failed_is_tried_again_by_a_retry(saver):
    attempts = []

    def flaky():
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError
        return "ok"

    graph = StateGraph(State)
    graph.add_node("node", lambda state: {"xs": [step("flaky", flaky)]}, retry_policy=RetryPolicy(initial_interval=0, jitter=False))
    graph.add_edge(START, "node")
    assert graph.compile(checkpointer=saver).invoke({"xs": []}, {"configurable": {"thread_id": "1"}}) == {"xs": ["ok"]}
    assert len(attempts) == 3


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_an_interrupt_does_not_repeat_what_was_done_before_it(saver, elsewhere, inside):
    count = Counted()

    def ask():
        return interrupt("sure?")

    def node(state):
        first = step("before", count, "a")
        answer = step("ask", ask) if inside else ask()
        second = step("after", count, "b")
        return {"xs": [first, answer, second]}

    app = chain(saver, node=node)
    config = {"configurable": {"thread_id": "1"}}
    assert app.invoke({"xs": []}, config)["__interrupt__"][0].value == "sure?"
    if elsewhere:
        restarted(saver)
    assert app.invoke(Command(resume="yes"), config) == {"xs": ["did a", "yes", "did b"]}
    assert count.calls == ["a", "b"]


def test_parallel_nodes_and_sends_have_places_of_their_own(saver):
    count, broken = Counted(), [True]

    def worker(n):
        done = step("work", count, n)
        if n == 3 and broken:
            broken.clear()
            raise OSError
        return {"xs": [done]}

    graph = StateGraph(State)
    graph.add_node("worker", worker)
    graph.add_node("other", lambda state: {"xs": [step("work", count, "other")]})
    graph.add_conditional_edges(START, lambda state: [Send("worker", n) for n in range(5)] + ["other"], ["worker", "other"])
    app = graph.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "1"}}
    with pytest.raises(OSError):
        app.invoke({"xs": []}, config)
    restarted(saver)
    assert sorted(app.invoke(None, config)["xs"]) == sorted([*(f"did {n}" for n in range(5)), "did other"])
    assert sorted(map(str, count.calls)) == sorted(["0", "1", "2", "3", "4", "other"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("own", [None, True, False])
@pytest.mark.parametrize("how", ["as a node", "called in a node"])
def test_steps_in_subgraphs_with_and_without_a_checkpointer_of_their_own(saver, mode, own, how):
    if own is False and mode == "sync":
        pytest.skip("langgraph itself raises AttributeError for a subgraph without a checkpointer in this mode")
    count, broken = Counted(), [True]

    def inner(state):
        done = step("inner", count, "a")
        return {"xs": [done]}

    def second(state):
        done = step("inner", count, "b")
        if broken:
            broken.clear()
            raise OSError
        return {"xs": [done]}

    sub = StateGraph(State)
    sub.add_node("one", inner)
    sub.add_node("two", second)
    sub.add_edge(START, "one")
    sub.add_edge("one", "two")
    subgraph = sub.compile(checkpointer=own)
    app = chain(saver, outer=subgraph if how == "as a node" else lambda state: {"xs": subgraph.invoke({"xs": []})["xs"]})
    with pytest.raises(OSError):
        app.invoke({"xs": []}, durable_config("1", {"xs": []}), durability=mode)
    restarted(saver)
    result = app.invoke({"xs": []}, durable_config("1", {"xs": []}), durability=mode)
    assert result["xs"][-2:] == ["did a", "did b"]
    assert count.calls == ["a", "b"]


def test_the_functional_api(saver):
    count, broken = Counted(), [True]

    @task
    def double(n):
        return step("double", count, n)

    @entrypoint(checkpointer=saver)
    def flow(ns):
        first = [double(n) for n in ns]
        done = [one.result() for one in first]
        mine = step("mine", count, "x")
        if broken:
            broken.clear()
            raise OSError
        return [*done, mine]

    config = {"configurable": {"thread_id": "1"}}
    with pytest.raises(OSError):
        flow.invoke([1, 2], config)
    restarted(saver)
    assert flow.invoke(None, config) == ["did 1", "did 2", "did x"]
    assert sorted(map(str, count.calls)) == ["1", "2", "x"]


def test_time_travel_runs_steps_again_and_effects_not(saver):
    count, sent = Counted(), []

    @effect(key="mail/{to}", ledger=Ledger(store=saver.store))
    def mail(to: str) -> str:
        sent.append(to)
        return f"mailed {to}"

    app = chain(saver, a=lambda state: {"xs": [step("work", count, "a")]}, b=lambda state: {"xs": [mail("ada")]})
    config = {"configurable": {"thread_id": "1"}}
    app.invoke({"xs": []}, config)
    first = next(state for state in app.get_state_history(config) if state.next == ("a",))
    restarted(saver)
    assert app.invoke(None, first.config) == {"xs": ["did a", "mailed ada"]}
    assert count.calls == ["a", "a"]
    assert sent == ["ada"]
    forked = app.update_state(first.config, {"xs": ["fork"]})
    assert app.invoke(None, forked) == {"xs": ["fork", "did a", "mailed ada"]}
    assert count.calls == ["a", "a", "a"]
    assert sent == ["ada"]


def test_changed_inputs_of_a_step_are_told_and_reach_the_caller(saver):
    asked = ["a"]

    def node(state):
        step("work", str.upper, asked[0])
        if asked == ["a"]:
            raise OSError
        return {"xs": []}

    app = chain(saver, node=node)
    with pytest.raises(OSError):
        app.invoke({"xs": []}, {"configurable": {"thread_id": "1"}})
    restarted(saver)
    asked[0] = "b"
    with pytest.raises(StepChanged, match=r"app\.update_state\(config, None\)") as caught:
        app.invoke(None, {"configurable": {"thread_id": "1"}})
    assert "lil rewind" not in str(caught.value)
    app.update_state({"configurable": {"thread_id": "1"}}, None)  # as the error says
    assert app.invoke(None, {"configurable": {"thread_id": "1"}}) == {"xs": []}


def test_a_step_in_a_graph_with_another_checkpointer_is_refused():
    app = chain(InMemorySaver(), node=lambda state: {"xs": [step("work", str.upper, "a")]})
    with pytest.raises(StepOutsideRun):
        app.invoke({"xs": []}, {"configurable": {"thread_id": "1"}})


def test_a_log_that_is_closed_and_opened_between_steps_answers_none_of_them_twice(saver):
    count = Counted()

    def node(state):
        done = [step("work", count, "same")]
        saver.close()
        done.append(step("work", count, "same"))
        saver.close()
        done.append(step("work", count, "same"))
        return {"xs": done}

    app = chain(saver, node=node)
    app.invoke({"xs": []}, {"configurable": {"thread_id": "1"}})
    assert len(count.calls) == 3


def test_only_what_is_needed_stays_in_memory(saver):
    graph = StateGraph(State)
    graph.add_node("n", lambda state: {"xs": [step("work", str.upper, "a" * 100)]})
    graph.add_edge(START, "n")
    graph.add_conditional_edges("n", lambda state: END if len(state["xs"]) > 50 else "n", ["n", END])
    graph.compile(checkpointer=saver).invoke({"xs": []}, {"configurable": {"thread_id": "1"}, "recursion_limit": 100})
    places = saver.room.thread("1").places
    assert len(places._places) <= 1
    assert len(places._run._live) <= 1
