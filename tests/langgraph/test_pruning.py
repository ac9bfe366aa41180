"""Pruning, deleting and copying: bytes come back, and all that stays is still whole, delta channels too."""

from __future__ import annotations

import asyncio
from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from letitloop.errors import InvalidArgument
from letitloop_langgraph import LetItLoopCheckpointSaver
from tests.langgraph.helpers import at, put, reopen

# --- making smaller ----------------------------------------------------------------------------------------------------------


def size(saver):
    saver.close()
    from pathlib import Path

    return sum(file.stat().st_size for file in Path(saver.store.root).rglob("*.wal"))


def fill(saver, steps=60, thread="1"):
    items, config = [], at(thread)
    for step in range(steps):
        items = [*items, f"{step:03}" + "x" * 300]
        saver.put_writes({"configurable": {**config["configurable"], "checkpoint_id": f"{step:03}"}}, [("xs", [items[-1]])], "t")
        config = put(
            saver, config, {"xs": items, "fixed": "y" * 3000, "small": step}, f"{step:03}",
            versions={"xs": step + 1, "fixed": 1, "small": step + 1}, metadata={"source": "loop", "run_id": f"run-{step // 20}"},
        )  # fmt: skip
    return items


def test_pruning_gives_bytes_back_and_keeps_the_newest(tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    items = fill(saver)
    full = size(saver)
    saver.prune(["1"])
    assert len(list(saver.list(at()))) == 1
    assert size(saver) < full * 0.7
    found = saver.get_tuple(at())
    assert found.checkpoint["channel_values"] == {"xs": items, "fixed": "y" * 3000, "small": 59}
    assert found.pending_writes == [("t", "xs", [items[-1]])]
    put(saver, at(checkpoint_id="059"), {"xs": [*items, "next"]}, "060", versions={"xs": 61})
    assert reopen(saver).get_tuple(at()).checkpoint["channel_values"]["xs"][-1] == "next"


def test_deleting_gives_bytes_back(tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    fill(saver, thread="1")
    fill(saver, thread="2")
    full = size(saver)
    saver.delete_thread("1")
    assert size(saver) < full * 0.6
    assert saver.get_tuple(at("1")) is None
    assert len(list(saver.list(at("2")))) == 60


def test_deleting_runs_keeps_the_values_that_others_still_have(tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    items = fill(saver)
    before = size(saver)
    saver.delete_for_runs(["run-0", "run-1", "unknown"])
    assert size(saver) < before
    found = list(saver.list(at()))
    assert [one.checkpoint["id"] for one in found] == [f"{step:03}" for step in reversed(range(40, 60))]
    for one in found:
        step = int(one.checkpoint["id"])
        assert one.checkpoint["channel_values"] == {"xs": items[: step + 1], "fixed": "y" * 3000, "small": step}


def test_retain_keeps_the_newest_of_each_namespace(tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path, retain=10)
    items = fill(saver, steps=200)
    for ns in ("", "other"):
        put(saver, at(ns=ns), {"x": 1}, "zzz")
    found = list(saver.list(at(ns="")))
    assert 10 <= len(found) < 100
    assert [one.checkpoint["id"] for one in found][1] == "199"
    assert found[1].checkpoint["channel_values"]["xs"] == items
    assert len(list(saver.list(at(ns="other")))) == 1
    assert reopen(saver).get_tuple(at(checkpoint_id="199")).checkpoint["channel_values"]["xs"] == items


class Chat(TypedDict):
    messages: Annotated[list, lambda left, right: left + right]


def chat(saver, steps=12):
    graph = StateGraph(Chat)
    for name in ("a", "b"):
        graph.add_node(
            name, lambda state, name=name: {"messages": [HumanMessage(name * 200, id=f"{name}{len(state['messages'])}")]}
        )
        graph.add_edge(START, name)
    graph.add_conditional_edges("a", lambda state: END if len(state["messages"]) > 2 * steps else ["a", "b"], ["a", "b", END])
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("how", ["prune", "delete runs", "delete runs, killed before the log is rewritten", "copy", "retain"])
def test_values_that_are_told_as_a_writes_own_survive_whatever_goes(saver, how, monkeypatch):
    if how == "retain":
        monkeypatch.setattr("letitloop_langgraph.compaction._SLACK", 2)
        saver = LetItLoopCheckpointSaver(store=saver.store, retain=3)
    app = chat(saver)
    for run in ("one", "two"):
        app.invoke({"messages": [HumanMessage(run, id=run)]}, {**at(), "metadata": {"run_id": run}})
    expected = {one.checkpoint["id"]: one.checkpoint["channel_values"] for one in saver.list(at())}
    thread = "1"
    if how == "prune":
        saver.prune(["1"])
    elif how == "delete runs":
        saver.delete_for_runs(["one"])
    elif how != "retain":
        monkeypatch.setattr("letitloop_langgraph.saver.shrink", lambda thread, serde: None)
        saver.delete_for_runs(["one"])
        if how == "copy":
            saver.copy_thread("1", "2")
            thread = "2"
    again = reopen(saver)
    found = {one.checkpoint["id"]: one.checkpoint["channel_values"] for one in again.list(at(thread))}
    assert found
    assert found == {identity: expected[identity] for identity in found}
    assert max(found) == max(expected)
    again.prune([thread])
    assert again.get_tuple(at(thread)).checkpoint["channel_values"] == expected[max(expected)]


def test_a_copy_has_everything_and_the_source_stays(saver):
    fill(saver, steps=30)
    saver.delete_for_runs(["run-0"])
    saver.copy_thread("1", "2")
    ours, theirs = list(saver.list(at("1"))), list(saver.list(at("2")))
    assert [one.checkpoint for one in ours] == [one.checkpoint for one in theirs]
    assert [one.pending_writes for one in ours] == [one.pending_writes for one in theirs]
    assert [one.metadata for one in ours] == [one.metadata for one in theirs]
    again = reopen(saver)
    assert [one.checkpoint for one in again.list(at("2"))] == [one.checkpoint for one in ours]
    assert len(again.get_tuple(at("2", checkpoint_id="025")).checkpoint["channel_values"]["xs"]) == 26


def test_an_unknown_way_of_pruning_is_refused(saver):
    with pytest.raises(InvalidArgument):
        saver.prune(["1"], strategy="everything")


# --- delta channels ----------------------------------------------------------------------------------------------------------


def joined(left, writes):
    return left + [item for write in writes for item in write]


class Delta(TypedDict):
    xs: Annotated[list, DeltaChannel(joined, snapshot_frequency=5)]


def delta_graph(saver):
    graph = StateGraph(Delta)
    graph.add_node("n", lambda state: {"xs": [f"{len(state['xs'])}-" + "x" * 200]})
    graph.add_edge(START, "n")
    graph.add_conditional_edges("n", lambda state: END if len(state["xs"]) >= 23 else "n", ["n", END])
    return graph.compile(checkpointer=saver)


@pytest.mark.filterwarnings("ignore")
def test_delta_channels_are_rebuilt_along_the_parents(saver):
    expected = InMemorySaver()
    states = {}
    for which, one in (("ours", saver), ("theirs", expected)):
        app = delta_graph(one)
        app.invoke({"xs": ["in"]}, {**at(), "recursion_limit": 100}, durability="sync")
        states[which] = [state.values["xs"] for state in app.get_state_history(at())]
    assert states["ours"] == states["theirs"]
    config = next(saver.list(at())).config
    ours = saver.get_delta_channel_history(config=config, channels=["xs"])
    base = BaseCheckpointSaver.get_delta_channel_history(saver, config=config, channels=["xs"])
    assert ours == base
    assert saver.get_delta_channel_history(config=config, channels=[]) == {}
    assert asyncio.run(saver.aget_delta_channel_history(config=config, channels=["xs"])) == base


@pytest.mark.filterwarnings("ignore")
def test_pruning_keeps_what_delta_channels_are_rebuilt_from(saver):
    app = delta_graph(saver)
    final = app.invoke({"xs": ["in"]}, {**at(), "recursion_limit": 100}, durability="sync")
    before = len(list(saver.list(at())))
    saver.prune(["1"])
    assert len(list(saver.list(at()))) < before
    assert app.get_state(at()).values == final
    assert delta_graph(reopen(saver)).get_state(at()).values == final


@pytest.mark.filterwarnings("ignore")
def test_deleting_runs_keeps_what_delta_channels_of_later_runs_are_rebuilt_from(saver):
    graph = StateGraph(Delta)
    graph.add_node("n", lambda state: {"xs": [len(state["xs"])]})
    graph.add_edge(START, "n")
    app = graph.compile(checkpointer=saver)
    for run in ("one", "two"):
        app.invoke({"xs": [run]}, {**at(), "metadata": {"run_id": run}}, durability="sync")
    final = app.get_state(at()).values
    assert final == {"xs": ["one", 1, "two", 3]}
    saver.delete_for_runs(["one"])
    assert app.get_state(at()).values == final
    saver.delete_for_runs(["two"])
    saver.delete_for_runs(["one"])
    assert list(saver.list(at())) == []
