"""A step waits until its checkpoint is durable, and nothing is done after one that could not be stored."""

from __future__ import annotations

import asyncio
import threading

import pytest
from langgraph.graph import START, StateGraph

from letitloop import async_step, step
from letitloop.errors import LogPoisoned
from letitloop_langgraph import CheckpointNotDurable, LetItLoopCheckpointSaver
from tests.langgraph.helpers import Counted, State, chain


class Slow(LetItLoopCheckpointSaver):
    """A disk that is slow until it is told to go on."""

    def __init__(self, **options):
        super().__init__(**options)
        self.gate = threading.Event()

    def put(self, config, checkpoint, metadata, new_versions):
        self.gate.wait(60)
        return super().put(config, checkpoint, metadata, new_versions)

    async def aput(self, config, checkpoint, metadata, new_versions):
        await asyncio.to_thread(self.gate.wait, 60)
        return await super().aput(config, checkpoint, metadata, new_versions)


@pytest.mark.parametrize("way", ["sync", "async", "plain function in async code"])
def test_a_step_waits_until_its_checkpoint_is_durable(way, tmp_path):
    saver = Slow(store=tmp_path)
    seen = []

    def work():
        seen.append(saver.gate.is_set())
        return "done"

    async def later():
        return work()

    def sync_node(state):
        threading.Timer(0.05, saver.gate.set).start()
        return {"xs": [step("work", work)]}

    async def async_node(state):
        threading.Timer(0.05, saver.gate.set).start()
        return {"xs": [await async_step("work", later if way == "async" else work)]}

    config = {"configurable": {"thread_id": "1"}}
    if way == "sync":
        chain(saver, node=sync_node).invoke({"xs": []}, config)
    else:
        asyncio.run(chain(saver, node=async_node).ainvoke({"xs": []}, config))
    assert seen == [True]
    saver.close()


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_step_whose_checkpoint_could_not_be_stored_is_not_executed(way, tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    count = Counted()

    def sync_node(state):
        return {"xs": [step("work", count, "a")]}

    async def async_node(state):
        return {"xs": [await async_step("work", count.later, "a")]}

    graph = StateGraph(State)
    graph.add_node("first", lambda state: {"xs": [object()]})
    graph.add_node("node", sync_node if way == "sync" else async_node)
    graph.add_edge(START, "first")
    graph.add_edge("first", "node")
    app = graph.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "1"}}
    with pytest.raises((CheckpointNotDurable, TypeError)):
        app.invoke({"xs": []}, config) if way == "sync" else asyncio.run(app.ainvoke({"xs": []}, config))
    assert count.calls == []
    saver.close()


def test_exit_mode_says_what_it_cannot_give(saver, caplog):
    app = chain(saver, node=lambda state: {"xs": [step("work", str.upper, "a")]})
    app.invoke({"xs": []}, {"configurable": {"thread_id": "1"}}, durability="exit")
    app.invoke({"xs": []}, {"configurable": {"thread_id": "1"}}, durability="exit")
    assert caplog.text.count('durability="exit"') == 1


def test_in_exit_mode_another_run_of_the_thread_takes_nothing_of_the_one_before(saver):
    count = Counted()
    app = chain(saver, node=lambda state: {"xs": [step("work", count, "a")]})
    for run in range(3):
        app.invoke({"xs": [run]}, {"configurable": {"thread_id": "1"}}, durability="exit")
    assert count.calls == ["a"] * 3


class FullDisk:
    """Fails every sync from some moment on."""

    def __init__(self, monkeypatch, saver):
        self._fs = saver.store._fs
        self._sync = self._fs.sync
        self.full = False
        monkeypatch.setattr(type(self._fs), "sync", lambda fs, handle: self.sync(handle))

    def sync(self, handle):
        if self.full:
            raise OSError(28, "No space left on device")
        self._sync(handle)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_after_a_failed_write_nothing_more_is_done(mode, tmp_path, monkeypatch):
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    disk, count = FullDisk(monkeypatch, saver), Counted()

    def first(state):
        step("warm", str.upper, "a")
        disk.full = True
        return {"xs": ["first"]}

    app = chain(saver, first=first, second=lambda state: {"xs": [step("work", count, "a")]})
    config = {"configurable": {"thread_id": "1"}}
    with pytest.raises(LogPoisoned):
        app.invoke({"xs": []}, config, durability=mode)
    assert count.calls == []
    disk.full = False
    with pytest.raises(LogPoisoned):
        app.invoke(None, config, durability=mode)
    assert count.calls == []
