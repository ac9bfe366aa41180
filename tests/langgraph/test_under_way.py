"""What is done to a thread, or to the process, while a graph is under way in it."""

from __future__ import annotations

import asyncio
import gc
import operator
import os
import threading
from typing import Annotated, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from letitloop import UnknownOutcome, async_step, step
from letitloop.store.directory import DirectoryStore
from letitloop_langgraph import LetItLoopCheckpointSaver, LetItLoopStore, room
from letitloop_langgraph.lease import ROOM, log_name


class State(TypedDict, total=False):
    xs: Annotated[list[str], operator.add]
    a: str
    b: str


def thread(name):
    return {"configurable": {"thread_id": name}}


def compiled(saver, edges, **nodes):
    graph = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node)
    for before, after in edges:
        graph.add_edge(before, after)
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("what", ["delete_for_runs", "prune"])
def test_what_is_deleted_while_a_graph_is_under_way_is_referred_to_by_nothing(tmp_path, what):
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    fast_is_done, go_on = threading.Event(), threading.Event()
    stock = saver.put_writes

    def put_writes(config, writes, task_id, task_path=""):
        stock(config, writes, task_id, task_path)
        if any(channel == "a" for channel, _ in writes):
            fast_is_done.set()

    saver.put_writes = put_writes

    def slow(state):
        assert go_on.wait(60)
        return {"b": "B" * 200}

    app = compiled(
        saver,
        [(START, "fast"), (START, "slow"), ("fast", "end"), ("slow", "end")],
        fast=lambda state: {"a": "A" * 200},
        slow=slow,
        end=lambda state: {"xs": ["end"]},
    )
    config = {**thread("t"), "metadata": {"run_id": "r1"}}
    worker = threading.Thread(target=app.invoke, args=({"xs": []}, config))
    worker.start()
    assert fast_is_done.wait(60)
    argument = {"delete_for_runs": ["r1"], "prune": ["t"]}[what]
    getattr(saver, what)(argument)
    go_on.set()
    worker.join(60)
    assert app.get_state(thread("t")).values["a"] == "A" * 200
    assert len(list(app.get_state_history(thread("t")))) > 0


async def test_more_threads_at_once_than_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_KEPT", 4)
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    all_there = asyncio.Barrier(20) if hasattr(asyncio, "Barrier") else None

    async def node(state):
        if all_there is not None:
            await all_there.wait()
        return {"xs": [await async_step("one", answer, 1)]}

    async def answer(number):
        return str(number)

    app = compiled(saver, [(START, "node")], node=node)
    found = await asyncio.wait_for(asyncio.gather(*(app.ainvoke({"xs": []}, thread(str(n))) for n in range(20))), 60)
    assert [one["xs"] for one in found] == [["1"]] * 20


async def test_a_cancellation_while_the_log_is_waited_for_leaves_the_thread_free(tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    app = compiled(saver, [(START, "node")], node=lambda state: {"xs": ["1"]})
    await app.ainvoke({"xs": []}, thread("t"))
    saver.close()
    config = (await saver.aget_tuple(thread("t"))).config
    saver.close()
    other = DirectoryStore(tmp_path).open_log(ROOM, log_name("t"), sync="power")
    writing = asyncio.ensure_future(saver.aput_writes(config, [("xs", ["2"])], "task"))
    waiting = saver.room.thread("t")
    while not writing.done() and waiting.guard.acquire(blocking=False):  # until a worker waits for the log, with the guard held
        waiting.guard.release()
        await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    other.close()
    await asyncio.to_thread(waiting.enter)
    waiting.leave()
    while waiting.users:  # until the loop has heard of the worker
        await asyncio.sleep(0)
    saver.delete_thread("t")


def test_a_halt_leaves_nothing_under_way(tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path)

    def lost():
        raise UnknownOutcome("nobody knows")

    app = compiled(saver, [(START, "node")], node=lambda state: {"xs": [step("done", str, 1), step("lost", lost)]})
    with pytest.raises(UnknownOutcome):
        app.invoke({"xs": []}, thread("t"))
    assert not saver.room.thread("t").busy()


def test_a_saver_for_each_request_shares_what_is_open(tmp_path):
    rooms = set()
    for _ in range(3):
        saver = LetItLoopCheckpointSaver(store=tmp_path)
        compiled(saver, [(START, "node")], node=lambda state: {"xs": ["1"]}).invoke({"xs": []}, thread("t"))
        assert saver.room.thread("t").log is not None
        rooms.add(id(saver.room))
        del saver
        gc.collect()
    assert len(rooms) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_store_works_in_a_forked_child(tmp_path):
    store = LetItLoopStore(store=tmp_path)
    store.put(("memories",), "parent", {"is": "here"})
    pid = os.fork()
    if not pid:
        code = 1
        try:
            store.put(("memories",), "child", {"is": "here"})
            code = 0
        finally:
            os._exit(code)
    store.close() if hasattr(store, "close") else None
    assert os.waitpid(pid, 0)[1] == 0
    assert store.get(("memories",), "child").value == {"is": "here"}
