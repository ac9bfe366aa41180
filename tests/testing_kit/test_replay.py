"""The replay check: it names the first call that differs, calls nothing, and changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from pathlib import Path

import pytest

from letitloop import (
    Codecs,
    InvalidArgument,
    MemoryStore,
    Retry,
    RunNotFound,
    async_step,
    atomic_marker,
    carry,
    current_run,
    durable,
    scope,
    step,
)
from letitloop.testing import assert_replayable
from tests.runs.helpers import crash, crashes


@pytest.fixture
def store():
    return MemoryStore()


class Program:
    """A run of the given calls, which may be changed between drives."""

    def __init__(self, store, *script, **options):
        self.script, self.calls = list(script), []
        self.result = "done"
        self.run = durable(store=store, goal_id="program", **options)(self._body)

    def _body(self):
        for name, argument in self.script:
            step(name, self._work, argument)
        return self.result

    def _work(self, argument):
        self.calls.append(argument)
        return argument


def differs(fn, *args, **kwargs):
    with pytest.raises(AssertionError) as caught:
        assert_replayable(fn, *args, **kwargs)
    return str(caught.value)


def test_an_unchanged_function_is_replayable_and_nothing_is_called(store):
    program = Program(store, ("a", 1), ("b", 2), ("a", 3))
    program.run()
    program.calls.clear()
    for _ in range(3):
        assert_replayable(program.run)
    assert program.calls == []


def test_a_new_step_is_named_with_what_is_recorded_instead(store):
    program = Program(store, ("a", 1), ("b", 2), ("c", 3))
    program.run()
    program.script = [("a", 1), ("new", 2), ("b", 2), ("c", 3)]
    text = differs(program.run)
    assert re.search(r"step 'new' is new.*'b', 'c'", text)
    assert program.run.runs.show().id in text
    assert program.calls == [1, 2, 3]


def test_changed_arguments_are_named(store):
    program = Program(store, ("a", 1), ("b", 2), ("c", 3))
    program.run()
    program.script = [("a", 1), ("b", 5), ("new", 1)]
    assert re.search(r"step 'b'.*other arguments.*argument", differs(program.run))
    assert program.calls == [1, 2, 3]


def test_a_missing_step_is_named(store):
    program = Program(store, ("a", 1), ("b", 2), ("c", 3))
    program.run()
    program.script = [("a", 1)]
    assert re.search(r"step 'b' is recorded and no longer called, and 1 more", differs(program.run))


def test_another_result_is_named(store):
    program = Program(store, ("a", 1))
    program.run()
    program.result = "other"
    assert "returns 'other' instead of 'done'" in differs(program.run)


def test_an_exception_is_told(store):
    program = Program(store, ("a", 1))
    program.run()
    program.script.append(object())
    assert "now raises TypeError" in differs(program.run)


def test_reordered_steps_are_replayable_as_they_are_in_a_run(store):
    program = Program(store, ("a", 1), ("a", 2), ("b", 3))
    program.run()
    program.script = [("b", 3), ("a", 2), ("a", 1)]
    assert_replayable(program.run)


@pytest.mark.parametrize("on_change", ["rerun", "reuse"])
def test_the_policy_for_changes_does_not_hide_one(store, on_change):
    program = Program(store, ("a", 1), on_change=on_change)
    program.run()
    program.script = [("a", 2)]
    assert "step 'a'" in differs(program.run)
    program.script = [("a", 1)]
    assert_replayable(program.run)


@pytest.mark.parametrize("handler", [Exception, BaseException])
def test_no_handler_of_the_program_hides_a_difference(store, handler):
    @durable(store=store, goal_id="g")
    def job():
        for name in names:
            try:
                step(name, int)
            except handler:
                return "swallowed"
        return "done"

    names = ["a", "b"]
    job()
    names = ["a", "x"]
    assert "step 'x' is new" in differs(job)


def test_neither_log_nor_ledger_is_touched(tmp_path):
    @durable(store=tmp_path, goal_id="g")
    def job():
        value = step("a", int, 1)
        with atomic_marker("m") as should:
            if should:
                should.record(value)
        if more:
            step("b", int, 1)
        return should.result

    def state():
        return {
            (where, name): hashlib.sha256(Path(where, name).read_bytes()).digest()
            for where, _, names in os.walk(tmp_path)
            for name in names
            if not name.endswith(("-wal", "-shm"))
        }

    more = False
    job()
    before, shown = state(), job.runs.show()
    assert_replayable(job)
    more = True
    assert "'b'" in differs(job)
    assert state() == before
    assert len(job.runs.show().lives) == len(shown.lives)


@pytest.mark.parametrize("namespace", [None, "shared"])
def test_a_marker_that_was_not_completed_is_a_difference_and_not_executed(store, namespace):
    acted = []

    @durable(store=store, goal_id="g")
    def job():
        if marked:
            with atomic_marker("mail", namespace=namespace) as should:
                if should:
                    acted.append(1)
        return 1

    marked = False
    job()
    marked = True
    assert "marker 'mail'" in differs(job)
    assert acted == []


def test_failures_retries_scopes_and_steps_in_steps_are_replayable(store):
    tries = []

    def flaky():
        tries.append(step("inner", len, "xy"))
        if len(tries) < 3:
            raise ValueError("again")
        return len(tries)

    def fails():
        raise KeyError("k")

    @durable(store=store, goal_id="g")
    def job():
        with scope("s"):
            value = step("flaky", retry=Retry(5, backoff=0))(flaky)()
        try:
            step("fails", fails)
        except KeyError as exc:
            return value, str(exc)

    assert job() == (3, "'k'")
    assert_replayable(job)
    assert len(tries) == 3


def test_a_run_that_needed_several_lives_is_replayable(store):
    @durable(store=store, goal_id="g")
    def job():
        step("a", int)
        step("b", int)
        if lives.pop():
            crash()
        return step("c", flaky)

    def flaky():
        if failing:
            raise ValueError("again")
        return 5

    lives, failing = [False, False, True], True
    crashes(job)
    with pytest.raises(ValueError, match="again"):
        job()
    failing = False
    assert job() == 5
    lives = [False]
    assert_replayable(job)


async def test_an_async_function_is_driven_inside_and_outside_a_loop(store):
    called = []

    async def work(n):
        called.append(n)
        return n

    @durable(store=store, goal_id="g")
    async def job(extra=0):
        found = await asyncio.gather(*(async_step("work", work, n) for n in range(5)))
        found.append(await async_step("plain", int, 7))
        if more:
            await async_step("more", work, 9)
        return found

    more = False
    await job()
    assert_replayable(job)
    await asyncio.to_thread(assert_replayable, job)
    more = True
    assert "step 'more' is new" in differs(job)
    assert sorted(called) == list(range(5))


def test_threads_are_driven(store):
    from concurrent.futures import ThreadPoolExecutor

    @durable(store=store, goal_id="g")
    def job():
        def work(n):
            with scope(f"n{n}"):
                return step("work", int, n + (changed and n == 3))

        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(carry(work), range(8)))

    changed = False
    job()
    assert_replayable(job)
    changed = True
    assert "'n3/work'" in differs(job)


def test_a_run_inside_the_run_answers_from_its_own_record(store):
    called = []

    @durable(store=store)
    def child(n):
        return step("work", lambda: called.append(n) or n)

    @durable(store=store, goal_id="named")
    def named(n):
        return step("work", lambda: called.append(n) or n)

    @durable(store=store, goal_id="parent")
    def parent():
        return child(number) + named(number)

    number = 1
    parent()
    before = [(run.id, len(run.lives), run.status) for run in child.runs.list()]
    assert_replayable(parent)
    number = 2
    assert "child" in differs(parent)
    assert called == [1, 1]
    assert [(run.id, len(run.lives), run.status) for run in child.runs.list()] == before


def test_arguments_methods_codecs_and_goals_select_the_run(store):
    class Job:
        @durable(store=store, goal_id=lambda self, n: f"goal-{n}", codecs=Codecs())
        def run(self, n):
            return step("s", int, n), current_run().goal_id

    job = Job()
    assert job.run(1) == (1, "goal-1")
    assert_replayable(job.run, 1)
    assert_replayable(Job.run, job, n=1)
    with pytest.raises(RunNotFound, match="goal-2"):
        assert_replayable(job.run, 2)


def test_a_sealed_run_is_replayable(tmp_path):
    @durable(store=tmp_path, goal_id="g", seal_key=b"0123456789abcdef")
    def job():
        return step("s", int)

    job()
    assert_replayable(job)


def test_an_unfinished_run_is_told(store):
    @durable(store=store, goal_id="g")
    def job():
        step("s", int)
        crash()

    crashes(job)
    assert "not finished" in differs(job)


def test_what_is_no_durable_function_is_refused():
    with pytest.raises(InvalidArgument):
        assert_replayable(len, "x")


def test_a_value_that_cannot_be_read_any_more_is_named(store):
    import sys
    import types
    from dataclasses import make_dataclass

    module = types.ModuleType("letitloop_tests_replay")
    module.Point = make_dataclass("Point", ["x"])
    module.Point.__module__ = module.__name__
    sys.modules[module.__name__] = module

    @durable(store=store, goal_id="g")
    def job():
        step("s", module.Point, 1)

    job()
    del sys.modules[module.__name__]
    assert re.search(r"step 's' has a record that cannot be read.*Point", differs(job))
