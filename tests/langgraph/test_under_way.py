"""What is done to a thread, or to the process, while a graph is under way in it."""

from __future__ import annotations

import asyncio
import gc
import operator
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Annotated, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy

from letitloop import UnknownOutcome, async_step, step
from letitloop.runs.run import Run
from letitloop.store.directory import DirectoryStore
from letitloop_langgraph import LetItLoopCheckpointSaver, LetItLoopStore, durable_config, lease, room
from letitloop_langgraph.lease import ROOM, log_name
from letitloop_langgraph.resolver import current_place
from letitloop_langgraph.thread import Thread
from tests.langgraph.helpers import restarted


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
    waiting, tried = saver.room.thread("t"), threading.Event()
    stock = waiting._open

    def trying(**options):
        tried.set()
        return stock(**options)

    waiting._open = trying
    writing = asyncio.ensure_future(saver.aput_writes(config, [("xs", ["2"])], "task"))
    while not tried.is_set():  # until a worker waits for the log
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


async def test_a_step_that_waits_for_another_process_does_not_keep_the_loop_waiting(tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    called = []

    async def node(state):
        saver.room.thread("t").close()  # as after a long silence
        other = DirectoryStore(tmp_path).open_log(ROOM, log_name("t"), sync="power")
        steps = [asyncio.ensure_future(async_step("said", called.append, number)) for number in range(2)]
        for _ in range(100):
            await asyncio.sleep(0)  # comes to nothing if the loop waits as well
        assert not called
        other.close()
        await asyncio.gather(*steps)
        return {"xs": ["1"]}

    app = compiled(saver, [(START, "node")], node=node)
    assert (await asyncio.wait_for(app.ainvoke({"xs": []}, thread("t"), durability="sync"), 60))["xs"] == ["1"]
    assert sorted(called) == [0, 1]


def test_savers_of_other_patience_share_what_is_open(tmp_path):
    savers = [LetItLoopCheckpointSaver(store=tmp_path, patience=patience) for patience in (1, 90, 2)]
    for saver in savers:
        compiled(saver, [(START, "node")], node=lambda state: {"xs": ["1"]}).invoke({"xs": []}, thread("t"))
    assert len({id(saver.room.thread("t")) for saver in savers}) == 1
    assert savers[0].room.thread("t").patience == savers[0].room.thread("new").patience == 90


def test_a_run_that_goes_on_behind_a_later_one_says_so(tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    broken = [True]

    def second(state):
        if broken[0]:
            raise RuntimeError("the first of all")
        return {"xs": ["second"]}

    app = compiled(saver, [(START, "first"), ("first", "second")], first=lambda state: {"xs": ["first"]}, second=second)
    with pytest.raises(RuntimeError):
        app.invoke({"xs": ["a"]}, durable_config("t", {"xs": ["a"]}, run="a"))
    broken[0] = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = app.invoke({"xs": ["b"]}, durable_config("t", {"xs": ["b"]}, run="b"))
    with pytest.warns(RuntimeWarning, match="run 'a' of thread 't' was not finished, and goes on now from its own checkpoint"):
        late = app.invoke({"xs": ["a"]}, durable_config("t", {"xs": ["a"]}, run="a"))
    with warnings.catch_warnings():  # both are finished: each returns its own result, and nothing is to be told
        warnings.simplefilter("error")
        assert app.invoke({"xs": ["a"]}, durable_config("t", {"xs": ["a"]}, run="a")) == late
        assert app.invoke({"xs": ["b"]}, durable_config("t", {"xs": ["b"]}, run="b")) == done
    assert (late["xs"], done["xs"][-3:]) == (["a", "first", "second"], ["b", "first", "second"])


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


def used_before(saver, name="t"):
    """Let a thread have steps of earlier checkpoints on record, which go when it is pruned."""
    app = compiled(saver, [(START, "one"), ("one", "two")], one=early, two=early)
    app.invoke({"xs": []}, thread(name))
    saver.close()


def early(state):
    return {"xs": [step("work", str.upper, "early")]}


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_step_that_is_asked_for_while_the_log_is_made_smaller_waits_for_its_end(tmp_path, monkeypatch, way):
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    used_before(saver)
    asking, held, answered, said = threading.Event(), threading.Event(), threading.Event(), []
    stock_recall, stock_rewritten = Run.recall, Thread.rewritten

    def recall(run, call):
        if call.name == "late":
            asking.set()
            assert held.wait(60)  # the file has been exchanged, and the journal not yet
        try:
            return stock_recall(run, call)
        finally:
            if call.name == "late":
                said.append("recalled")
                answered.set()

    def rewritten(thread):
        held.set()
        answered.wait(0.5)  # in vain: the step waits for this to end
        stock_rewritten(thread)
        said.append("rewritten")

    monkeypatch.setattr(Run, "recall", recall)
    monkeypatch.setattr(Thread, "rewritten", rewritten)

    def node(state):
        return {"xs": [step("late", str.upper, "late")]}

    async def later(state):
        return {"xs": [await async_step("late", str.upper, "late")]}

    app = compiled(saver, [(START, "node")], node=node if way == "sync" else later)
    invoke = app.invoke if way == "sync" else lambda *args, **options: asyncio.run(app.ainvoke(*args, **options))
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(invoke, {"xs": []}, thread("t"), durability="sync")
        assert asking.wait(60)
        saver.prune(["t"])
        assert result.result(60)["xs"][-1] == "LATE"
    assert said == ["rewritten", "recalled"]


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("new_checkpoints", [False, True])
def test_a_task_under_way_keeps_its_steps_and_answers_none_twice_when_its_thread_is_pruned(tmp_path, way, new_checkpoints):
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    used_before(saver)
    calls, broken = [], [True]

    def work(what):
        calls.append(what)
        return len(calls)

    def prune():
        if new_checkpoints:
            saver.delete_for_runs(["r"])  # that of the task itself goes as well
        saver.prune(["t"])

    def node(state):
        done = []
        for _ in range(3):
            done.append(step("work", work, "early"))
            prune()
        if broken:
            broken.clear()
            raise ConnectionError
        return {"xs": [str(done)]}

    async def later(state):
        done = []
        for _ in range(3):
            done.append(await async_step("work", work, "early"))
            await asyncio.to_thread(prune)
        if broken:
            broken.clear()
            raise ConnectionError
        return {"xs": [str(done)]}

    graph = StateGraph(State)
    retry = RetryPolicy(initial_interval=0, jitter=False)
    graph.add_node("node", node if way == "sync" else later, retry_policy=retry)
    graph.add_edge(START, "node")
    app = graph.compile(checkpointer=saver)
    config = {**thread("t"), "metadata": {"run_id": "r"}}
    options = {"durability": "sync"}
    invoke = app.invoke if way == "sync" else lambda *args, **more: asyncio.run(app.ainvoke(*args, **more))
    assert invoke({"xs": []}, config, **options)["xs"][-1] == "[1, 2, 3]"
    assert len(calls) == 3


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_steps_whose_checkpoint_was_on_its_way_when_the_thread_was_pruned_stay(tmp_path, mode):
    class Held(LetItLoopCheckpointSaver):
        gate = threading.Event()

        def put(self, *args):
            if mode == "async":
                assert self.gate.wait(60)
            return super().put(*args)

    saver = Held(store=tmp_path)
    saver.gate.set()
    used_before(saver)
    calls, broken = [], [True]

    def node(state):
        assert current_place() is not None
        saver.prune(["t"])
        saver.gate.set()
        done = step("work", calls.append, "once")
        if broken:
            broken.clear()
            raise OSError("the network")
        return {"xs": [str(done)]}

    app = compiled(saver, [(START, "node")], node=node)
    saver.gate.clear()
    with pytest.raises(OSError, match="network"):
        app.invoke({"xs": []}, thread("t"), durability=mode)
    for _ in range(2):
        restarted(saver)
        saver.prune(["t"])
    app.invoke(None, thread("t"))
    assert calls == ["once"]


def test_a_failure_that_is_recorded_after_the_thread_was_pruned_is_tried_again(tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    used_before(saver)
    tries, pruned, failed = [], threading.Event(), threading.Event()

    def slow():
        saver.prune(["t"])
        pruned.set()
        assert failed.wait(60)
        return "slow"

    def flaky():
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError
        return "ok"

    def node(state):
        if tries:
            return {"xs": [step("slow", slow), step("flaky", flaky)]}
        with ThreadPoolExecutor(1) as pool:
            going = pool.submit(copy_context().run, step, "slow", slow)
            assert pruned.wait(60)
            try:
                return {"xs": [step("flaky", flaky)]}
            finally:
                failed.set()
                going.result(60)

    app = compiled(saver, [(START, "node")], node=node)
    with pytest.raises(ConnectionError):
        app.invoke({"xs": []}, thread("t"), durability="sync")
    restarted(saver)
    assert app.invoke(None, thread("t"))["xs"][-2:] == ["slow", "ok"]


def test_savers_of_other_levels_share_what_is_open_and_the_stronger_one_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "IDLE", 600.0)
    weak = LetItLoopCheckpointSaver(store=tmp_path, sync="process")
    synced, sync = [], weak.store._fs.sync

    def counted(fs, handle):
        log = weak.room.thread("t").log
        if log is not None and handle == log._handle:  # not that of another test, which is closed meanwhile
            synced.append(handle)
        return sync(handle)

    async def later(state):
        return {"xs": [await async_step("one", str, 1)]}

    def invoked(saver, way):
        """Return how often an invocation had to wait for the disk."""
        app = compiled(saver, [(START, "node")], node=(lambda state: {"xs": [step("one", str, 1)]}) if way == "sync" else later)
        synced.clear()
        if way == "sync":
            app.invoke({"xs": []}, thread("t"))
        else:
            asyncio.run(app.ainvoke({"xs": []}, thread("t")))
        return len(synced)

    for way in ("sync", "async"):
        invoked(weak, way)  # opens the log, and makes what async code waits with
    monkeypatch.setattr(type(weak.store._fs), "sync", counted)
    assert [invoked(weak, way) for way in ("sync", "async")] == [0, 0]
    log = weak.room.thread("t").log
    strong = LetItLoopCheckpointSaver(store=tmp_path, sync="power")
    for way in ("sync", "async"):
        for saver in (strong, weak):
            assert invoked(saver, way) >= 3  # two checkpoints and a step
    assert weak.room is strong.room
    assert weak.room.thread("t").log is log is not None
    weak.close()
    assert invoked(weak, "sync") >= 3
    assert LetItLoopCheckpointSaver(store=tmp_path, sync="process").room is weak.room


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
