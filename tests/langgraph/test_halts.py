"""Outcomes that are unknown end the run, whatever its nodes swallow, and go on once a person has resolved them."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner
from langgraph.errors import NodeTimeoutError
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy, TimeoutPolicy

from letitloop import Ledger, async_step, effect, step
from letitloop.cli.app import lil
from letitloop.errors import IntentFailed, UnknownOutcome
from letitloop_langgraph import LetItLoopCheckpointSaver, durable_config
from letitloop_langgraph.errors import bubbling
from tests.langgraph import versions
from tests.langgraph.helpers import State, chain


def unknown():
    raise UnknownOutcome("charge/42 may have happened", namespace="n", key="charge/42")


@pytest.mark.parametrize("handler", [False, True])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("way", ["sync", "async"])
def test_an_unknown_outcome_reaches_the_caller_typed(saver, way, beside, handler):
    calls, siblings = [], []

    def act():
        calls.append(1)
        unknown()

    def body():
        try:
            return {"xs": [step("act", act)]}
        except Exception:  # what programs do
            return {"xs": ["swallowed"]}

    def node(state):
        return body()

    async def anode(state):
        async def later():
            act()

        try:
            return {"xs": [await async_step("act", later)]}
        except Exception:
            return {"xs": ["swallowed"]}

    graph = StateGraph(State)
    handlers = []
    options = {"error_handler": lambda state: handlers.append(1) or {"xs": ["handled"]}} if handler else {}
    graph.add_node("node", node if way == "sync" else anode, retry_policy=RetryPolicy(initial_interval=0), **options)
    graph.add_edge(START, "node")
    if beside:
        graph.add_node("beside", lambda state: siblings.append(1) or {"xs": ["beside"]})
        graph.add_edge(START, "beside")
    inner = graph.compile()
    outer = StateGraph(State)
    outer.add_node("sub", inner)
    outer.add_edge(START, "sub")
    app = outer.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "1"}}
    with pytest.raises(UnknownOutcome) as told:
        app.invoke({"xs": []}, config) if way == "sync" else asyncio.run(app.ainvoke({"xs": []}, config))
    assert told.value.key == "charge/42"
    assert calls == [1]
    assert handlers == []
    assert app.get_state(config).next == ("sub",)
    assert len(siblings) == beside

    async def stream():
        return [chunk async for chunk in app.astream(None, config)]

    with pytest.raises(UnknownOutcome):
        list(app.stream(None, config)) if way == "sync" else asyncio.run(stream())
    if versions.langgraph() >= (1, 2, 24):  # older ones drop what a subgraph's node has done when its neighbour is interrupted
        assert len(siblings) == beside


def test_a_halt_that_a_node_swallows_ends_the_run_all_the_same(saver):
    after = []

    def node(state):
        try:
            step("act", unknown)
        except BaseException:
            pass
        return {"xs": ["swallowed"]}

    app = chain(saver, node=node, after=lambda state: after.append(1) or {"xs": []})
    config = {"configurable": {"thread_id": "1"}}
    with pytest.raises(UnknownOutcome):
        app.invoke({"xs": []}, config, durability="sync")
    assert after == []
    assert app.get_state(config).next == ("node",)


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
def test_after_a_person_resolved_it_the_same_invoke_goes_on(outcome, tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path)

    @effect(key="charge/{order}", ledger=Ledger(store=tmp_path))
    def charge(order: str) -> str:
        raise TimeoutError("no answer")

    app = chain(saver, node=lambda state: {"xs": [charge("42")]})
    inputs = {"xs": []}
    for _ in range(2):
        with pytest.raises(UnknownOutcome) as told:
            app.invoke(inputs, durable_config("1", inputs))
    assert app.get_state(durable_config("1")).next == ("node",)
    (tmp_path / "result.json").write_text('"by hand"')
    result = ["--result", str(tmp_path / "result.json")] if outcome == "succeeded" else []
    command = ["ledger", "resolve", told.value.namespace, told.value.key, "--as", outcome, *result]
    done = CliRunner().invoke(lil, [*command, "--evidence", "the bank says so", "--by", "ada", "--store", str(tmp_path)])
    assert done.exit_code == 0, done.output
    if outcome == "succeeded":
        assert app.invoke(inputs, durable_config("1", inputs)) == {"xs": ["by hand"]}
    else:
        with pytest.raises(IntentFailed):  # the application's to decide: the same again would be a new attempt
            app.invoke(inputs, durable_config("1", inputs))
    saver.close()


async def test_a_node_that_times_out_after_the_dispatch_leaves_the_outcome_unknown(saver):
    ledger, dispatched = Ledger(store=saver.store), []

    @effect(key="charge/{order}", ledger=ledger)
    async def charge(order: str) -> str:
        dispatched.append(order)
        await asyncio.Event().wait()
        return "never"

    async def node(state):
        return {"xs": [await charge("42")]}

    graph = StateGraph(State)
    graph.add_node("node", node, timeout=TimeoutPolicy(run_timeout=0.2))
    graph.add_edge(START, "node")
    app = graph.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "1"}}
    inputs = {"xs": []}
    for _ in range(100):  # on a busy machine the time may be over before anything was sent
        try:
            await app.ainvoke(inputs, config)
        except NodeTimeoutError:
            inputs = None
        except UnknownOutcome:
            break
    else:
        pytest.fail("the outcome was never told to be unknown")
    assert dispatched in ([], ["42"])  # [] if the time was over between the record of the dispatch and the dispatch


def test_a_bubbling_halt_is_what_it_was():
    from langgraph.errors import GraphBubbleUp

    halt = UnknownOutcome("text", namespace="n", key="k", reason="r")
    made = bubbling(halt)
    assert isinstance(made, UnknownOutcome)
    assert isinstance(made, GraphBubbleUp)
    assert not issubclass(type(made), Exception)
    assert (str(made), made.namespace, made.key, made.reason) == ("text", "n", "k", "r")
    assert bubbling(made) is made
    assert type(made).__name__ == "UnknownOutcome"
