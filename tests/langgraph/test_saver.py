"""What the conformance suite leaves out: order and rules of writes, delta channels, reopening, clones, encryption, concurrency."""

from __future__ import annotations

import asyncio
import threading
import warnings
from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    create_checkpoint,
    empty_checkpoint,
    writes_sort_key,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from letitloop import MemoryStore
from letitloop.errors import DecodeError, InvalidArgument, UnencodableError, UnknownType
from letitloop_langgraph import CodecSerializer, LetItLoopCheckpointSaver

WAYS = ["sync", "async"]


@pytest.fixture(params=["directory", "memory"])
def saver(request, tmp_path):
    made = LetItLoopCheckpointSaver(store=tmp_path / "store" if request.param == "directory" else MemoryStore())
    yield made
    made.close()


def at(thread_id="1", ns="", checkpoint_id=None):
    conf = {"thread_id": thread_id, "checkpoint_ns": ns}
    if checkpoint_id is not None:
        conf["checkpoint_id"] = checkpoint_id
    return {"configurable": conf}


def checkpoint(identity, values, versions=None):
    made = empty_checkpoint()
    made.update(id=identity, channel_values=values, channel_versions=versions or dict.fromkeys(values, 1))
    return made


def put(saver, config, values, identity, *, new=None, metadata=None, versions=None):
    made = checkpoint(identity, values, versions)
    return saver.put(config, made, metadata or {"source": "loop", "step": 1}, made["channel_versions"] if new is None else new)


def reopen(saver):
    saver.close()
    return LetItLoopCheckpointSaver(store=saver.store)


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


# --- serialisers -------------------------------------------------------------------------------------------------------------


def test_the_codecs_read_what_langgraphs_serialiser_wrote(saver):
    old = LetItLoopCheckpointSaver(store=saver.store, serde=JsonPlusSerializer())
    values = {"m": [HumanMessage("hi", id="1")], "n": 3, "b": b"raw", "none": None, "ba": bytearray(b"x")}
    config = put(old, at(), values, "a")
    old.put_writes(config, [("x", Send("node", {"a": 1}))], "t")
    old.close()
    found = saver.get_tuple(at())
    assert found.checkpoint["channel_values"] == values
    assert found.pending_writes == [("t", "x", Send("node", {"a": 1}))]


class Custom:
    made = 0

    def __init__(self, value):
        Custom.made += 1
        self.value = value

    def model_dump(self):
        return {"value": self.value}


def test_nothing_is_imported_or_called_for_a_class_that_is_not_allowed(saver):
    tag, body = JsonPlusSerializer().dumps_typed(Custom(3))
    before = Custom.made
    with pytest.raises(UnknownType, match="allowlist"):
        saver.serde.loads_typed((tag, body))
    assert Custom.made == before
    clone = saver.with_allowlist([(Custom.__module__, "Custom")])
    assert clone.serde.loads_typed((tag, body)).value == 3
    evil = JsonPlusSerializer().dumps_typed({"x": 1})[1].replace(b"x", b"y")
    assert saver.serde.loads_typed((tag, evil)) == {"y": 1}


def test_pickles_are_not_read(saver):
    with pytest.raises(DecodeError, match="pickle"):
        saver.serde.loads_typed(("pickle", b"cos\nsystem\n(S'true'\ntR."))


class Rot13:
    """A cipher that gives other bytes each time."""

    def __init__(self):
        self.n = 0

    def encrypt(self, plaintext):
        self.n += 1
        return "xor", bytes([self.n % 256]) + bytes(byte ^ (self.n % 256) for byte in plaintext)

    def decrypt(self, ciphername, ciphertext):
        assert ciphername == "xor"
        return bytes(byte ^ ciphertext[0] for byte in ciphertext[1:])


@pytest.mark.parametrize("inner", [JsonPlusSerializer, CodecSerializer])
def test_an_encrypting_serialiser_leaves_no_plain_text(inner, tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path, serde=EncryptedSerializer(Rot13(), inner()))
    items, config = [], at()
    for step in range(5):
        items = [*items, f"SECRET {step}"]
        config = put(
            saver, config, {"xs": items, "one": "SECRET"}, f"{step}",
            versions={"xs": step + 1, "one": 1}, metadata={"source": "loop", "who": "SECRET", "run_id": "SECRET-RUN"},
        )  # fmt: skip
        saver.put_writes(config, [("xs", ["SECRET"])], "t")
    saver.close()
    for file in tmp_path.rglob("*.wal"):
        assert b"SECRET" not in file.read_bytes()
    again = LetItLoopCheckpointSaver(store=tmp_path, serde=saver.serde)
    found = again.get_tuple(at())
    assert found.checkpoint["channel_values"] == {"xs": items, "one": "SECRET"}
    assert found.metadata["who"] == "SECRET"
    assert [len(one.checkpoint["channel_values"]["xs"]) for one in again.list(at())] == [5, 4, 3, 2, 1]
    again.prune(["1"])
    assert again.get_tuple(at()).checkpoint["channel_values"]["xs"] == items
    again.close()


def test_a_list_that_grows_under_a_foreign_serialiser_is_stored_as_its_new_part(tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path, serde=JsonPlusSerializer())
    items, config = [], at()
    for step in range(60):
        items = [*items, f"{step:03}" + "x" * 1000]
        config = put(saver, config, {"xs": items}, f"{step:03}", versions={"xs": step + 1})
    saver.close()
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.wal")) < 60 * 1500
    assert saver.get_tuple(at()).checkpoint["channel_values"]["xs"] == items
    saver.close()


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


def test_create_checkpoint_of_the_base_package_round_trips(saver):
    made = create_checkpoint(empty_checkpoint(), {}, 1)
    saver.put(at(), made, {"source": "input", "step": -1}, {})
    assert saver.get_tuple(at()).checkpoint["id"] == made["id"]
