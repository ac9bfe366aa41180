"""LangGraph's own suite for checkpointers: all eight capabilities, both ways, on both stores."""

from __future__ import annotations

import asyncio

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate

from letitloop import MemoryStore
from letitloop_langgraph import LetItLoopCheckpointSaver

CAPABILITIES = {"put", "put_writes", "get_tuple", "list", "delete_thread", "delete_for_runs", "copy_thread", "prune"}
TESTS = 81


class Bridged(LetItLoopCheckpointSaver):
    """The suite calls async methods alone; these call the sync ones."""

    async def aput(self, config, checkpoint, metadata, new_versions):
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(self, config, writes, task_id, task_path=""):
        return await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def aget_tuple(self, config):
        return self.get_tuple(config)

    async def alist(self, config, *, filter=None, before=None, limit=None):  # noqa: A002 - named by the base class
        for one in self.list(config, filter=filter, before=before, limit=limit):
            yield one

    async def adelete_thread(self, thread_id):
        self.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids):
        self.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id, target_thread_id):
        self.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids, *, strategy="keep_latest"):
        self.prune(thread_ids, strategy=strategy)


@pytest.mark.parametrize("store", ["directory", "memory"])
@pytest.mark.parametrize("cls", [LetItLoopCheckpointSaver, Bridged])
async def test_all_eight_capabilities_pass(cls, store, tmp_path):
    made = 0

    @checkpointer_test(name="letitloop")
    async def fresh():
        nonlocal made
        made += 1
        saver = cls(store=tmp_path / str(made) if store == "directory" else MemoryStore())
        yield saver
        saver.close()

    report = (await validate(fresh)).to_dict()
    results = report["results"]
    assert {name for name, result in results.items() if result["detected"]} == CAPABILITIES
    assert [result["failures"] for result in results.values() if result["failures"]] == []
    assert all(result["passed"] for result in results.values())
    assert sum(result["tests_passed"] for result in results.values()) == TESTS
