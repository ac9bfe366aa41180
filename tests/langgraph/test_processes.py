"""Several processes on one store: other threads freely, the same thread one after the other, and no update is lost."""

from __future__ import annotations

import os
import textwrap

import pytest

from letitloop.errors import LogLocked
from letitloop_langgraph import LetItLoopCheckpointSaver, ThreadConflict, room
from tests.langgraph import forked
from tests.langgraph.helpers import at, put

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

PRELUDE = """
import operator, os, sys
from typing import Annotated, TypedDict
from langgraph.graph import START, StateGraph
from letitloop import step
from letitloop_langgraph import LetItLoopCheckpointSaver, ThreadConflict, durable_config
class State(TypedDict):
    xs: Annotated[list, operator.add]
def chain(saver, **nodes):
    graph, before = StateGraph(State), START
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(before, name)
        before = name
    return graph.compile(checkpointer=saver)
def say(what):
    print(what, flush=True)
saver = LetItLoopCheckpointSaver(store=sys.argv[1], patience=30)
here = {"configurable": {"thread_id": "1"}}
"""


class Process:
    def __init__(self, store, program):
        self.process = forked.text(PRELUDE + textwrap.dedent(program), store, str(store))

    def expect(self, what):
        line = self.process.stdout.readline().strip()
        assert line == what, (line, self.process.stderr.read() if not line else "")

    def go(self):
        self.process.stdin.write("go\n")

    def end(self):
        self.process.stdin.close()
        out, err = self.process.stdout.read(), self.process.stderr.read()
        assert self.process.wait() == 0, err
        return out.strip()


@pytest.fixture
def start(tmp_path):
    made = []

    def starting(program):
        made.append(Process(tmp_path, program))
        return made[-1]

    yield starting
    for one in made:
        one.process.kill()


def strangers(store, **options):
    """Return two savers that share nothing but the store, as those of two processes do."""
    both = []
    for _ in range(2):
        room._rooms.clear()
        both.append(LetItLoopCheckpointSaver(store=store, **options))
        assert both[-1].room is not both[0].room or len(both) == 1
    return both


def test_a_stale_run_of_another_process_is_a_conflict_and_loses_nothing(start, tmp_path):
    slow = start("""
        def node(state):
            saver.close()
            say("running")
            sys.stdin.readline()
            return {"xs": ["slow"]}
        app = chain(saver, a=node)
        try:
            app.invoke({"xs": ["one"]}, here, durability="sync")
        except ThreadConflict as exc:
            say(f"conflict {exc.thread_id}")
    """)
    slow.expect("running")
    fast = start("""
        app = chain(saver, a=lambda state: {"xs": ["fast"]})
        say(app.invoke({"xs": ["two"]}, here)["xs"])
    """)
    assert fast.end() == "['one', 'two', 'fast']"
    slow.go()
    assert slow.end() == "conflict 1"
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    assert saver.get_tuple(at()).checkpoint["channel_values"]["xs"] == ["one", "two", "fast"]


def test_two_that_begin_a_thread_at_once_are_a_conflict_for_the_second(tmp_path):
    mine, theirs = strangers(tmp_path, patience=5)
    running = {"configurable": {**at()["configurable"], "__pregel_runtime": None}}
    assert mine.get_tuple(running) is None
    put(theirs, at(), {"x": 1}, "a")
    theirs.close()
    with pytest.raises(ThreadConflict, match="empty thread"):
        put(mine, at(), {"x": 2}, "b")
    assert mine.get_tuple(running).checkpoint["channel_values"] == {"x": 1}
    put(mine, at(checkpoint_id="a"), {"x": 3}, "c", versions={"x": 2})
    mine.close()


def test_a_graph_does_not_begin_in_a_thread_that_another_process_holds(tmp_path):
    mine, theirs = strangers(tmp_path, patience=0.05)
    put(theirs, at(), {"x": 1}, "a")
    thread = theirs.room.thread("1")
    thread.enter()
    try:
        assert mine.get_tuple(at()).checkpoint["id"] == "a"
        with pytest.raises(LogLocked, match="patience"):
            mine.get_tuple({"configurable": {**at()["configurable"], "__pregel_runtime": None}})
    finally:
        thread.leave()
        theirs.close()


def test_one_process_after_the_other_works_on_a_thread(start, tmp_path):
    program = """
        app = chain(saver, a=lambda state: {"xs": [step("s", str.upper, "x")]})
        for _ in range(3):
            say("ready")
            sys.stdin.readline()
            app.invoke({"xs": []}, here)
            say("done")
        say("end")
    """
    both = [start(program), start(program)]
    for _ in range(3):
        for one in both:
            one.expect("ready")
            one.go()
            one.expect("done")
    for one in both:
        assert one.end() == "end"
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    assert saver.get_tuple(at()).checkpoint["channel_values"]["xs"] == ["X"] * 6


def test_processes_that_work_on_threads_of_their_own_do_not_disturb_each_other(start, tmp_path):
    program = """
        here = {"configurable": {"thread_id": str(os.getpid())}}
        app = chain(saver, a=lambda state: {"xs": [1]})
        for _ in range(20):
            app.invoke({"xs": []}, here)
        say(len(app.get_state(here).values["xs"]))
    """
    for one in [start(program) for _ in range(3)]:
        assert one.end() == "20"
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    assert len({one.config["configurable"]["thread_id"] for one in saver.list(None)}) == 3


def test_a_thread_may_be_looked_at_while_another_process_works_on_it(start, tmp_path):
    worker = start("""
        app = chain(saver, a=lambda state: {"xs": ["done"]})
        app.invoke({"xs": []}, here)
        def wait():
            say("in a step")
            sys.stdin.readline()
        chain(saver, b=lambda state: step("wait", wait) or {"xs": []}).invoke({"xs": ["more"]}, here)
        say("end")
    """)
    worker.expect("in a step")
    saver = LetItLoopCheckpointSaver(store=tmp_path, patience=0.1)
    assert saver.get_tuple(at()).checkpoint["channel_values"]["xs"] == ["done", "more"]
    assert len(list(saver.list(at()))) == 5
    with pytest.raises(LogLocked, match="patience"):
        put(saver, at(checkpoint_id="x"), {}, "y")
    with pytest.raises(LogLocked):
        saver.delete_thread("1")
    worker.go()
    assert worker.end() == "end"


def test_a_forked_child_opens_the_thread_for_itself(tmp_path):
    saver = LetItLoopCheckpointSaver(store=tmp_path)
    config = put(saver, at(), {"x": 1}, "a")
    saver.close()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            put(saver, config, {"x": 2}, "b", versions={"x": 2})
            saver.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert saver.get_tuple(at()).checkpoint["channel_values"] == {"x": 2}
    with pytest.raises(ThreadConflict):
        put(saver, config, {"x": 3}, "c", versions={"x": 3})
    assert put(saver, saver.get_tuple(at()).config, {"x": 3}, "c", versions={"x": 3})
