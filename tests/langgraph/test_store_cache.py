"""Long-term memory and the cache of nodes: as LangGraph's own in memory, and still there after a restart."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy

from letitloop import MemoryStore
from letitloop.adapters.langgraph import LetItLoopCache, LetItLoopCheckpointSaver, LetItLoopStore
from letitloop.errors import UnencodableError


@pytest.fixture(params=["directory", "memory"])
def where(request, tmp_path):
    return tmp_path / "store" if request.param == "directory" else MemoryStore()


SCRIPT = [
    PutOp(("a", "b"), "1", {"n": 1, "tags": ["x"]}),
    PutOp(("a", "c"), "2", {"n": 2}),
    PutOp(("a", "b"), "3", {"n": 3, "deep": {"k": (1, 2)}}),
    PutOp(("z",), "4", {"n": 4}),
    PutOp(("a", "b"), "1", {"n": 10, "tags": ["y"]}),
    PutOp(("a", "c"), "2", None),
    PutOp(("nobody",), "5", None),
]
QUESTIONS = [
    GetOp(("a", "b"), "1"),
    GetOp(("a", "c"), "2"),
    GetOp(("a", "b"), "none"),
    SearchOp(("a",)),
    SearchOp(("a",), filter={"n": 10}),
    SearchOp(("a",), filter={"n": {"$gt": 3}}),
    SearchOp((), limit=2, offset=1),
    SearchOp(("a",), query="words"),
    ListNamespacesOp(),
    ListNamespacesOp(match_conditions=(MatchCondition("prefix", ("a",)),), max_depth=1),
    ListNamespacesOp(match_conditions=(MatchCondition("suffix", ("b",)),)),
]


def plain(results):
    def one(result):
        if isinstance(result, list):
            return sorted(map(str, map(one, result)))
        return result if result is None or isinstance(result, tuple) else (result.namespace, result.key, result.value)

    return [one(result) for result in results]


def test_answers_as_the_store_in_memory_does(where):
    ours, theirs = LetItLoopStore(store=where), InMemoryStore()
    for op in SCRIPT:
        ours.batch([op])
        theirs.batch([op])
    expected = [
        [ns for ns in result if ns not in (("a", "c"), ("nobody",))] if i == 8 else result
        for i, result in enumerate(theirs.batch(QUESTIONS))
    ]
    assert plain(ours.batch(QUESTIONS)) == plain(expected)
    ours.close()
    again = LetItLoopStore(store=ours._kept.store)
    assert plain(again.batch(QUESTIONS)) == plain(expected)
    assert plain(asyncio.run(again.abatch(QUESTIONS))) == plain(expected)
    again.close()


def test_what_was_read_is_the_readers_own_and_what_was_put_is_the_stores(where):
    memory = LetItLoopStore(store=where)
    value = {"xs": [1]}
    memory.put(("a",), "k", value)
    value["xs"].append(2)
    memory.get(("a",), "k").value["xs"].append(3)
    memory.search(("a",))[0].value["xs"].append(4)
    assert memory.get(("a",), "k").value == {"xs": [1]}
    created = memory.get(("a",), "k").created_at
    memory.put(("a",), "k", {"xs": []})
    found = memory.get(("a",), "k")
    assert found.created_at == created
    assert found.updated_at > created
    memory.close()


def test_a_value_that_cannot_be_recorded_changes_nothing(where):
    memory = LetItLoopStore(store=where)
    with pytest.raises(UnencodableError):
        memory.batch([PutOp(("a",), "1", {"n": 1}), PutOp(("a",), "2", {"n": object()})])
    assert memory.search(("a",)) == []
    memory.close()


def test_other_processes_see_what_was_put_and_the_other_way_round(tmp_path):
    memory = LetItLoopStore(store=tmp_path)
    memory.put(("a",), "mine", {"n": 1})
    memory.close()
    program = (
        "import sys; from letitloop.adapters.langgraph import LetItLoopStore; memory = LetItLoopStore(store=sys.argv[1]);"
        "assert memory.get(('a',), 'mine').value == {'n': 1}; memory.put(('a',), 'yours', {'n': 2}); memory.delete(('a',), 'mine')"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=100)
    assert [one.key for one in memory.search(("a",))] == ["yours"]
    memory.close()


def test_changes_that_no_longer_count_are_given_back(tmp_path):
    memory = LetItLoopStore(store=tmp_path, sync="process")
    for n in range(1500):
        memory.put(("a",), "k", {"n": n, "text": "x" * 200})
    memory.close()
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.wal")) < 20_000
    assert memory.get(("a",), "k").value["n"] == 1499
    memory.close()


def test_items_are_usable_in_nodes(where):
    class State(TypedDict):
        n: int

    def node(state, *, store):
        store.put(("n",), "k", {"n": state["n"]})
        return {"n": store.get(("n",), "k").value["n"] + 1}

    graph = StateGraph(State)
    graph.add_node("a", node)
    graph.add_edge(START, "a")
    memory = LetItLoopStore(store=where)
    assert graph.compile(store=memory).invoke({"n": 1}) == {"n": 2}
    memory.close()


# --- the cache ---------------------------------------------------------------------------------------------------------------


def test_cached_values_expire_and_are_cleared(where):
    now = [1000.0]
    cache = LetItLoopCache(store=where, clock=lambda: now[0])
    one, two, other = (("n",), "1"), (("n",), "2"), (("o",), "1")
    cache.set({one: ((1, 2), None), two: ({"x"}, 10), other: (None, None)})
    cache.close()
    assert cache.get([one, two, other, (("n",), "none")]) == {one: (1, 2), two: {"x"}, other: None}
    now[0] += 10
    assert cache.get([one, two]) == {one: (1, 2)}
    cache.clear([("n",)])
    assert cache.get([one, two, other]) == {other: None}
    asyncio.run(cache.aset({one: (1, None)}))
    assert asyncio.run(cache.aget([one])) == {one: 1}
    asyncio.run(cache.aclear())
    cache.close()
    assert cache.get([one, two, other]) == {}
    cache.close()


def test_a_cached_node_is_not_run_again_in_another_process(where):
    class State(TypedDict):
        n: int

    calls = []

    def build():
        graph = StateGraph(State)
        graph.add_node("a", lambda state: calls.append(1) or {"n": state["n"] + 1}, cache_policy=CachePolicy())
        graph.add_edge(START, "a")
        return graph

    first = LetItLoopCache(store=where)
    assert build().compile(cache=first).invoke({"n": 1}) == {"n": 2}
    first.close()
    second = LetItLoopCache(store=first._kept.store)
    app = build().compile(cache=second)
    assert app.invoke({"n": 1}) == {"n": 2}
    assert asyncio.run(app.ainvoke({"n": 1})) == {"n": 2}
    assert app.invoke({"n": 2}) == {"n": 3}
    assert len(calls) == 2
    second.close()


@pytest.mark.parametrize("name", ["store:memory", "cache:cache"])
def test_a_thread_may_have_the_name_of_the_memory_or_of_the_cache(where, name):
    memory, cache = LetItLoopStore(store=where), LetItLoopCache(store=where)
    memory.put(("users",), "ada", {"likes": "blue"})
    cache.set({(("node",), "key"): ("value", None)})
    memory.close()
    cache.close()
    saver = LetItLoopCheckpointSaver(store=where)
    assert list(saver.list(None)) == []
    saver.delete_thread(name)
    graph = StateGraph(Text)
    graph.add_node("node", lambda state: {"text": "thread"})
    graph.add_edge(START, "node")
    app, config = graph.compile(checkpointer=saver), {"configurable": {"thread_id": name}}
    app.invoke({"text": ""}, config)
    assert saver.room.ids() == [name]
    saver.close()
    assert LetItLoopStore(store=where).get(("users",), "ada").value == {"likes": "blue"}
    assert LetItLoopCache(store=where).get([(("node",), "key")]) == {(("node",), "key"): "value"}
    assert app.get_state(config).values == {"text": "thread"}
    saver.delete_thread(name)
    assert saver.room.ids() == []


class Text(TypedDict):
    text: str
