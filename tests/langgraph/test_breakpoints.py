"""A breakpoint after a node that was reached by Sends: killed anywhere, nothing is repeated, and it stays until it is approved."""

from __future__ import annotations

import os

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Send

from letitloop_langgraph import durable_config
from tests.langgraph import forked
from tests.langgraph.helpers import State, restarted

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

PROGRAM = """
import asyncio, operator, os, sys
from typing import Annotated, TypedDict
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from letitloop import async_step, step
from letitloop_langgraph import LetItLoopCheckpointSaver, durable_config

store, where, way, mode, action, deadly = sys.argv[1:]


class State(TypedDict):
    xs: Annotated[list, operator.add]


class Saver(LetItLoopCheckpointSaver):
    def at(self, when, config, metadata):
        ns = config["configurable"].get("checkpoint_ns", "")
        if deadly == f"{when} put {'inner' if ns else 'root'} {metadata['step']}":
            os.kill(os.getpid(), 9)

    def put(self, config, checkpoint, metadata, new_versions):
        self.at("before", config, metadata)
        stored = super().put(config, checkpoint, metadata, new_versions)
        self.at("after", config, metadata)
        return stored

    async def aput(self, config, checkpoint, metadata, new_versions):
        self.at("before", config, metadata)
        stored = await super().aput(config, checkpoint, metadata, new_versions)
        self.at("after", config, metadata)
        return stored


def say(*words):
    os.write(1, (" ".join(words) + "\\n").encode())  # whole lines, from several threads


def act(name):
    say("called", name)
    if name == deadly:
        os.kill(os.getpid(), 9)
    return name


async def aact(name):
    await asyncio.sleep(0)
    return act(name)


def two(who):
    done = []
    for name in (f"{who}-a", f"{who}-b"):
        done.append(step("act", act, name))
        say("returned", name)
    return {"xs": done}


async def atwo(who):
    done = []
    for name in (f"{who}-a", f"{who}-b"):
        done.append(await async_step("act", aact, name))
        say("returned", name)
    return {"xs": done}


def named(function, afunction):
    return function if way == "sync" else afunction


async def awork(n):
    return await atwo(f"work{n}")


async def ajoin(state):
    return await atwo("join")


def graph_of(**how):
    graph = StateGraph(State)
    graph.add_node("work", named(lambda n: two(f"work{n}"), awork))
    graph.add_node("join", named(lambda state: two("join"), ajoin))
    graph.add_conditional_edges(START, lambda state: [Send("work", n) for n in range(3)], ["work"])
    graph.add_edge("work", "join")
    return graph.compile(interrupt_after=["work"], **how)


saver = Saver(store=store)
if action == "prune":
    saver.prune(["1"])
    sys.exit()
if where == "root":
    app = graph_of(checkpointer=saver)
else:
    graph = StateGraph(State)
    graph.add_node("sub", graph_of())
    graph.add_edge(START, "sub")
    app = graph.compile(checkpointer=saver)
inputs, config = {"xs": []}, durable_config("1", {"xs": []})
given = inputs if action == "run" else None
if way == "sync":
    app.invoke(given, config, durability=mode)
else:
    asyncio.run(app.ainvoke(given, config, durability=mode))
state = app.get_state(config, subgraphs=True)
inner = state.tasks[0].state if where == "sub" and state.tasks else state
say("next", *inner.next)
say("has", *sorted(inner.values["xs"]))
saver.close()
"""
WORK = sorted(f"work{n}-{step}" for n in range(3) for step in "ab")


class Lives:
    """The lives of one program: each is a process that may be killed."""

    def __init__(self, tmp_path, *how):
        self.place, self.how, self.told = tmp_path, how, []

    def live(self, action, deadly="-"):
        """Return what a life told at its end; nothing if it was killed."""
        process = forked.text(PROGRAM, self.place, str(self.place), *self.how, action, deadly)
        lines = process.stdout.read().splitlines()
        errors = process.stderr.read()
        code = process.wait()
        process.kill()
        self.told += [line.split() for line in lines]
        if deadly != "-":
            assert code == -9, (code, errors)
            return None
        assert code == 0, errors
        return dict(self._ended(lines))

    @staticmethod
    def _ended(lines):
        return [(word, rest) for word, *rest in map(str.split, lines) if word in ("next", "has")]

    def check(self):
        """What had returned is on disk: it was never called again."""
        returned = set()
        for word, *rest in self.told:
            if word == "returned":
                returned.add(rest[0])
            assert word != "called" or rest[0] not in returned, rest

    def called(self, start):
        return [rest[0] for word, *rest in self.told if word == "called" and rest[0].startswith(start)]


@pytest.mark.parametrize(
    ("way", "mode"), [("sync", "sync"), ("sync", "async"), ("async", "async"), ("sync", "exit"), ("async", "exit")]
)
@pytest.mark.parametrize("where", ["root", "sub"])
@pytest.mark.parametrize("deadly", ["work0-b", "work2-b", "before put", "after put"])
def test_a_breakpoint_after_sends_is_kept_and_nothing_is_repeated(tmp_path, where, way, mode, deadly):
    lives = Lives(tmp_path, where, way, mode)
    at = f"{deadly} {'root' if where == 'root' else 'inner'} 1" if "put" in deadly else deadly  # the first after the workers
    lives.live("run", at)
    for _ in range(2):
        assert lives.live("run") == {"next": ["join"], "has": WORK}
    assert lives.called("join") == []
    before = len(lives.called("work"))
    lives.live("approve", "join-b")
    lives.live("approve")
    assert len(lives.called("work")) == before
    assert lives.called("join") == ["join-a", "join-b", "join-b"]
    end = {"next": [], "has": ["join-a", "join-b", *WORK]}
    assert lives.live("run") == lives.live("run") == end
    assert lives.called("join") == ["join-a", "join-b", "join-b"]
    lives.check()


@pytest.mark.parametrize(("way", "mode"), [("sync", "sync"), ("async", "async"), ("sync", "exit")])
@pytest.mark.parametrize("where", ["root", "sub"])
def test_a_breakpoint_after_sends_is_kept_when_what_went_before_is_pruned(tmp_path, where, way, mode):
    lives = Lives(tmp_path, where, way, mode)
    lives.live("run", "work1-b")
    for _ in range(2):
        assert lives.live("run") == {"next": ["join"], "has": WORK}
        lives.live("prune")
    assert lives.live("run") == {"next": ["join"], "has": WORK}
    assert lives.called("join") == []
    lives.live("approve")
    assert lives.live("run") == {"next": [], "has": ["join-a", "join-b", *WORK]}
    lives.check()


def fanning(saver, **breakpoints):
    graph = StateGraph(State)
    graph.add_node("split", lambda state: {"xs": ["split"]})
    graph.add_node("work", lambda n: {"xs": [f"work{n}"]})
    graph.add_node("join", lambda state: {"xs": ["join"]})
    graph.add_edge(START, "split")
    graph.add_conditional_edges("split", lambda state: [Send("work", n) for n in range(2)], ["work"])
    graph.add_edge("work", "join")
    return graph.compile(checkpointer=saver, **breakpoints)


@pytest.mark.parametrize("mode", ["sync", "exit"])
@pytest.mark.parametrize(
    ("moved", "stands"),
    [(["work"], True), (["work", "join"], True), ("*", True), (["join"], False), ([], False)],
)
def test_a_breakpoint_that_was_moved_is_kept_where_it_still_is(saver, mode, moved, stands):
    inputs, config = {"xs": []}, durable_config("1", {"xs": []})
    waits = ["split", "work0", "work1"]
    assert fanning(saver, interrupt_after=["work"]).invoke(inputs, config, durability=mode)["xs"] == waits
    restarted(saver)
    app = fanning(saver, interrupt_after=moved)
    for _ in range(2):
        assert app.invoke(inputs, config, durability=mode)["xs"] == (waits if stands else [*waits, "join"])
        restarted(saver)


def test_what_is_streamed_of_a_config_holds_nothing_of_ours(saver):
    app = fanning(saver, interrupt_after=["split"])
    for inputs in ({"xs": []}, None):
        for told in app.stream(inputs, durable_config("1", {"xs": []}), stream_mode="checkpoints"):
            assert {*told["config"]["configurable"]} <= {"thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map"}
