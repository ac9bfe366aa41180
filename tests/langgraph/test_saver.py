"""What the conformance suite leaves out: order and rules of writes, exact values, listing, reopening, clones, concurrency."""

from __future__ import annotations

import asyncio
import threading
import warnings
from typing import TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, create_checkpoint, empty_checkpoint, writes_sort_key
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from letitloop import MemoryStore
from letitloop.errors import InvalidArgument, UnencodableError
from letitloop_langgraph import LetItLoopCheckpointSaver
from tests.langgraph.helpers import at, checkpoint, put, reopen

WAYS = ["sync", "async"]


# --- construction ------------------------------------------------------------------------------------------------------------


def test_works_without_arguments(tmp_path, monkeypatch):
    monkeypatch.setenv("LETITLOOP_STORE", str(tmp_path / "here"))
    saver = LetItLoopCheckpointSaver()
    assert isinstance(saver, BaseCheckpointSaver)
    put(saver, at(), {"x": 1}, "a")
    assert saver.get_tuple(at()).checkpoint["channel_values"] == {"x": 1}
    saver.close()
    assert len(list((tmp_path / "here" / "threads").glob("*.wal"))) == 1


@pytest.mark.parametrize("options", [{"retain": 0}, {"retain": True}, {"retain": 1.5}, {"sync": "never"}])
def test_options_that_mean_nothing_are_refused(options):
    with pytest.raises(InvalidArgument):
        LetItLoopCheckpointSaver(store=MemoryStore(), **options)


@pytest.mark.parametrize("thread_id", [7, "7", "a/b\0c", "Ärger ☃", "x" * 5000, "../../etc", "", "."])
def test_any_thread_id_will_do(saver, thread_id):
    put(saver, at(thread_id), {"x": thread_id}, "a")
    again = reopen(saver)
    assert again.get_tuple(at(str(thread_id))).checkpoint["channel_values"] == {"x": thread_id}
    assert [one.config["configurable"]["thread_id"] for one in again.list(None)] == [str(thread_id)]
    again.delete_thread(thread_id)
    assert again.get_tuple(at(thread_id)) is None


def test_an_int_and_its_text_are_one_thread(saver):
    put(saver, at(7), {"x": 1}, "a")
    assert saver.get_tuple(at("7")).checkpoint["id"] == "a"
    assert saver.get_tuple(at(7)).checkpoint["id"] == "a"
    assert len(list(saver.list(at(7)))) == 1


# --- writes ------------------------------------------------------------------------------------------------------------------


async def write(saver, way, config, writes, task, path=""):
    if way == "sync":
        await asyncio.to_thread(saver.put_writes, config, writes, task, path)
    else:
        await saver.aput_writes(config, writes, task, path)


async def read(saver, way, config):
    return saver.get_tuple(config) if way == "sync" else await saver.aget_tuple(config)


@pytest.mark.parametrize("way", WAYS)
async def test_writes_come_in_the_order_in_which_they_are_applied(saver, way):
    config = put(saver, at(), {}, "a")
    rows = [("~__pregel_pull, b", "t1"), ("", "t9"), ("~__pregel_pull, a", "t8"), ("~__pregel_pull, a", "t2"), ("", "t0")]
    for path, task in rows:
        await write(saver, way, config, [("x", f"{task}-0"), ("y", f"{task}-1")], task, path)
    expected = [
        (task, channel, f"{task}-{index}")
        for path, task in sorted(rows, key=lambda row: writes_sort_key(*row))
        for index, channel in enumerate("xy")
    ]
    assert (await read(saver, way, config)).pending_writes == expected
    assert (await read(reopen(saver), way, config)).pending_writes == expected


@pytest.mark.parametrize("way", WAYS)
async def test_of_ordinary_writes_the_first_counts_and_of_special_ones_the_last(saver, way):
    config = put(saver, at(), {}, "a")
    await write(saver, way, config, [("x", "first"), ("__error__", "e1"), ("__interrupt__", "i1")], "t")
    await write(saver, way, config, [("x", "second"), ("__error__", "e2"), ("y", "new")], "t")
    found = (await read(reopen(saver), way, config)).pending_writes
    expected = InMemorySaver()
    there = expected.put(at(), checkpoint("a", {}), {}, {})
    expected.put_writes(there, [("x", "first"), ("__error__", "e1"), ("__interrupt__", "i1")], "t")
    expected.put_writes(there, [("x", "second"), ("__error__", "e2"), ("y", "new")], "t")
    assert sorted(found) == sorted(expected.get_tuple(there).pending_writes)
    assert set(WRITES_IDX_MAP.values()) == {-1, -2, -3, -4}


@pytest.mark.parametrize("way", WAYS)
async def test_writes_may_come_before_their_checkpoint_or_without_one(saver, way):
    await write(saver, way, at(checkpoint_id="a"), [("x", 1)], "t")
    await write(saver, way, at(checkpoint_id="never"), [("x", 2)], "t")
    assert await read(saver, way, at()) is None
    config = put(saver, at(), {}, "a")
    found = await read(reopen(saver), way, config)
    assert found.pending_writes == [("t", "x", 1)]
    assert [one.checkpoint["id"] for one in saver.list(at())] == ["a"]


def test_a_write_of_a_list_is_stored_once_with_the_value_that_comes_of_it(saver, tmp_path):
    long = "x" * 20_000
    config = put(saver, at(), {"xs": []}, "a", versions={"xs": 1})
    saver.put_writes(config, [("xs", [long])], "t")
    put(saver, config, {"xs": [long]}, "b", versions={"xs": 2})
    assert reopen(saver).get_tuple(at()).checkpoint["channel_values"] == {"xs": [long]}
    log = saver.room.thread("1").enter(glance=True)
    try:
        assert sum(entry.size for entry in log.entries) < 22_000
    finally:
        saver.room.thread("1").leave()


# --- values ------------------------------------------------------------------------------------------------------------------


def test_values_keep_their_exact_types(saver):
    values = {"t": (1, (2,)), "s": {3}, "m": [AIMessage("hi", id="1", tool_calls=[{"name": "f", "args": {}, "id": "c"}])]}
    put(saver, at(), values, "a")
    found = reopen(saver).get_tuple(at()).checkpoint["channel_values"]
    assert found == values
    assert type(found["t"]) is tuple
    assert type(found["m"][0]) is AIMessage
    assert found["m"][0].tool_calls == values["m"][0].tool_calls


def test_a_value_that_cannot_be_recorded_is_refused_with_its_path(saver):
    with pytest.raises(UnencodableError, match=r"value\['inner'\]"):
        put(saver, at(), {"x": {"inner": object()}}, "a")
    assert saver.get_tuple(at()) is None


def test_lists_that_grow_are_read_back_at_every_version(saver):
    config, items = at(), []
    for step in range(40):
        items = [*items, f"item {step}"]
        config = put(saver, config, {"xs": items}, f"{step:03}", versions={"xs": step + 1})
    again = reopen(saver)
    for step, found in enumerate(reversed(list(again.list(at())))):
        assert found.checkpoint["channel_values"]["xs"] == [f"item {at}" for at in range(step + 1)]


def test_a_list_that_was_changed_before_its_end_is_stored_anew(saver):
    message = HumanMessage("one", id="1")
    config = put(saver, at(), {"xs": [message, "a"]}, "a", versions={"xs": 1})
    message.content = "changed"
    config = put(saver, config, {"xs": [message, "a", "b"]}, "b", versions={"xs": 2})
    put(saver, config, {"xs": ["b"]}, "c", versions={"xs": 3})
    again = reopen(saver)
    found = {one.checkpoint["id"]: one.checkpoint["channel_values"]["xs"] for one in again.list(at())}
    assert found == {
        "a": [HumanMessage("one", id="1"), "a"],
        "b": [HumanMessage("changed", id="1"), "a", "b"],
        "c": ["b"],
    }


@pytest.mark.parametrize("change", ["inner list", "attribute", "tool calls", "equal but other type"])
def test_a_change_inside_an_item_is_never_lost(saver, change):
    item = AIMessage("x", id="1", tool_calls=[{"name": "f", "args": {"deep": [1]}, "id": "c"}], additional_kwargs={"n": 1})
    config = put(saver, at(), {"xs": [item]}, "a", versions={"xs": 1})
    if change == "inner list":
        item.tool_calls[0]["args"]["deep"].append(2)
    elif change == "attribute":
        item.name = "named"
    elif change == "tool calls":
        item.tool_calls.clear()
    else:
        item.additional_kwargs["n"] = True
    put(saver, config, {"xs": [item, "more"]}, "b", versions={"xs": 2})
    found = reopen(saver).get_tuple(at()).checkpoint["channel_values"]["xs"]
    assert found == [item, "more"]
    assert repr(found) == repr([item, "more"])


def test_a_channel_that_was_cleared_has_no_value_and_one_without_a_new_version_keeps_it(saver):
    config = put(saver, at(), {"x": 1, "y": 2}, "a", versions={"x": 1, "y": 1})
    put(saver, config, {"x": 1}, "b", versions={"x": 1, "y": 2}, new={"y": 2})
    again = reopen(saver)
    assert again.get_tuple(at()).checkpoint["channel_values"] == {"x": 1}
    assert again.get_tuple(at(checkpoint_id="a")).checkpoint["channel_values"] == {"x": 1, "y": 2}


def test_values_survive_although_new_versions_does_not_name_them(saver):
    put(saver, at(), {"x": 1, "unversioned": [2]}, "a", versions={"x": 1}, new={})
    assert reopen(saver).get_tuple(at()).checkpoint["channel_values"] == {"x": 1, "unversioned": [2]}


def test_two_branches_never_share_a_version(saver):
    first = saver.get_next_version(None, None)
    assert 1 < first < 2
    second, third = saver.get_next_version(first, None), saver.get_next_version(first, None)
    assert second != third
    assert 2 < second < 3
    assert 2 < third < 3
    assert saver.get_next_version(4, None) > 5
    assert saver.get_next_version(f"{9:032}.5", None).startswith(f"{10:032}.")


def test_unknown_fields_and_any_format_version_are_kept(saver):
    made = {**checkpoint("a", {"x": 1}), "v": 17, "pending_sends": [Send("n", {"y": 1})], "new field": (1, 2)}
    saver.put(at(), made, {"source": "input", "step": -1, "mine": {"deep": (1,)}}, {"x": 1})
    found = reopen(saver).get_tuple(at())
    assert found.checkpoint == made
    assert found.metadata["mine"] == {"deep": (1,)}


def test_metadata_of_the_config_is_merged_and_nothing_else_of_it(saver):
    config = {**at(), "metadata": {"run_id": "r", "flag": True, "secret": object(), "__pregel_x": 1}}
    saver.put(config, checkpoint("a", {}), {"source": "loop"}, {})
    assert saver.get_tuple(at()).metadata == {"source": "loop", "run_id": "r", "flag": True}


def test_filters_are_equality_and_never_code(saver):
    put(saver, at(), {}, "a", metadata={"source": "loop", "n": 1, "none": None, "where": {"a": 1}})
    hostile = "x') OR 1=1 --"
    assert [one.checkpoint["id"] for one in saver.list(at(), filter={"n": 1, "none": None, "where": {"a": 1}})] == ["a"]
    for wanted in ({"n": 2}, {"missing": None}, {hostile: 1}, {"source": hostile}, {"where": {"a": 2}}):
        assert list(saver.list(at(), filter=wanted)) == []


def test_listing_holds_no_lock_while_it_yields(saver):
    for identity in "abc":
        put(saver, at(), {}, identity)
    found = saver.list(at())
    assert next(found).checkpoint["id"] == "c"
    done = threading.Thread(target=lambda: (saver.delete_thread("2"), put(saver, at(), {}, "d"), saver.get_tuple(at())))
    done.start()
    done.join(60)
    assert not done.is_alive()
    assert [one.checkpoint["id"] for one in found] == ["b", "a"]


def test_create_checkpoint_of_the_base_package_round_trips(saver):
    made = create_checkpoint(empty_checkpoint(), {}, 1)
    saver.put(at(), made, {"source": "input", "step": -1}, {})
    assert saver.get_tuple(at()).checkpoint["id"] == made["id"]


# --- clones, sharing, reopening ----------------------------------------------------------------------------------------------


def test_a_clone_shares_what_is_open_and_outlives_the_original(saver):
    put(saver, at(), {"x": 1}, "a")
    clone = saver.with_allowlist([("some.module", "Thing")])
    assert clone is not saver
    assert clone.room is saver.room
    put(clone, at(checkpoint_id="a"), {"x": 2}, "b", versions={"x": 2})
    assert saver.get_tuple(at()).checkpoint["id"] == "b"
    del clone
    put(saver, at(checkpoint_id="b"), {"x": 3}, "c", versions={"x": 3})
    assert saver.get_tuple(at()).checkpoint["channel_values"] == {"x": 3}


def test_two_savers_of_one_store_are_one(tmp_path):
    first, second = LetItLoopCheckpointSaver(store=tmp_path), LetItLoopCheckpointSaver(store=tmp_path)
    put(first, at(), {"x": 1}, "a")
    put(second, at(checkpoint_id="a"), {"x": 2}, "b", versions={"x": 2})
    assert first.get_tuple(at()).checkpoint["id"] == "b"
    first.close()


def test_writers_of_many_threads_and_tasks_lose_nothing(saver):
    def work(worker):
        config = at(f"thread {worker % 4}", ns=f"n{worker}")
        for step in range(25):
            config = put(saver, config, {"x": (worker, step)}, f"{step:03}", versions={"x": step + 1})
            saver.put_writes(config, [("x", step)], f"t{worker}")

    workers = [threading.Thread(target=work, args=(worker,)) for worker in range(12)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    again = reopen(saver)
    for worker in range(12):
        found = list(again.list(at(f"thread {worker % 4}", ns=f"n{worker}")))
        assert [one.checkpoint["channel_values"]["x"] for one in found] == [(worker, step) for step in reversed(range(25))]
        assert all(len(one.pending_writes) == 1 for one in found)


async def test_tasks_share_syncs_and_the_loop_is_never_kept_waiting(saver):
    async def work(worker):
        config = at("shared", ns=f"n{worker}")
        for step in range(20):
            made = checkpoint(f"{step:03}", {"x": step}, {"x": step + 1})
            config = await saver.aput(config, made, {"source": "loop"}, {"x": step + 1})
            await saver.aput_writes(config, [("x", step)], "t")

    await asyncio.gather(*(work(worker) for worker in range(10)))
    found = [one async for one in saver.alist(at("shared", ns="n3"))]
    assert len(found) == 20
    assert len([one async for one in saver.alist(None)]) == 200


def test_a_saver_may_be_used_from_any_event_loop(saver):
    for identity in "abc":
        asyncio.run(saver.aput(at(), checkpoint(identity, {"x": identity}), {}, {"x": 1}))
    assert asyncio.run(saver.aget_tuple(at())).checkpoint["id"] == "c"
    assert saver.get_tuple(at()).checkpoint["id"] == "c"


# --- values changed in place -------------------------------------------------------------------------------------------------


class Mutable(TypedDict):
    box: dict
    n: int


def test_a_value_changed_in_place_is_told_once_with_its_channel(saver):
    def sly(state):
        state["box"]["sly"] = True
        return {"n": state["n"] + 1}

    graph = StateGraph(Mutable)
    graph.add_node("a", sly)
    graph.add_node("b", sly)
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    app = graph.compile(checkpointer=saver)
    with pytest.warns(RuntimeWarning, match="'box'") as told:
        app.invoke({"box": {}, "n": 0}, at(), durability="sync")
    assert len([one for one in told if "changed in place" in str(one.message)]) == 1


def test_values_that_nodes_return_are_never_taken_for_changed_in_place(saver):
    class Honest(TypedDict):
        box: dict
        xs: list
        m: list

    def node(state):
        return {"box": {**state["box"], "k": len(state["xs"])}, "xs": [*state["xs"], 1], "m": [*state["m"], HumanMessage("x")]}

    graph = StateGraph(Honest)
    for name, then in (("a", "b"), ("b", "c"), ("c", END)):
        graph.add_node(name, node)
        graph.add_edge(name, then)
    graph.add_edge(START, "a")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph.compile(checkpointer=saver).invoke({"box": {}, "xs": list(range(400)), "m": []}, at())
