"""Scopes, steps inside steps, runs inside runs, recursion."""

from __future__ import annotations

import asyncio

import pytest

from letitloop import LogLocked, MemoryStore, async_step, atomic_marker, current_run, durable, scope, step
from tests.runs.helpers import Crash, crash, crashes


@pytest.fixture
def store():
    return MemoryStore()


def _keys(fn, *args):
    return [record.key for record in fn.runs.show(*args).steps]


def test_scopes_nest_the_key_space(store):
    @durable(store=store)
    def job():
        step("s", int)
        with scope("a"):
            step("s", int)
            with scope("b"):
                step("s", int)
                step("s", int)
            step("s", int)
        with scope("a"):
            step("s", int)
        step("s", int)

    job()
    assert _keys(job) == ["s", "a/s", "a/b/s", "a/b/s#2", "a/s#2", "a#2/s", "s#2"]


def test_an_exception_leaves_a_scope_as_a_return_does(store):
    @durable(store=store)
    def job():
        try:
            with scope("a"):
                raise ValueError("child")
        except ValueError:
            pass
        step("s", int)

    job()
    assert _keys(job) == ["s"]


async def test_scopes_of_tasks_do_not_meet(store):
    @durable(store=store)
    async def job():
        async def branch(name):
            async with scope(name):
                await async_step("s", str, name)
                await asyncio.sleep(0)
                return await async_step("t", str, name)

        return await asyncio.gather(*(branch(name) for name in "abc"))

    assert await job() == list("abc")
    assert sorted(_keys(job)) == [f"{name}/{s}" for name in "abc" for s in "st"]


def test_a_step_inside_a_step_is_recorded_and_answers_when_the_outer_one_did_not_finish(store):
    calls = []

    def outer():
        first = step("inner", lambda: calls.append("inner") or 1)
        with scope("in"):
            second = step("inner", lambda: calls.append("scoped") or 2)
        if dying:
            crash()
        calls.append("outer")
        return first + second

    @durable(store=store, goal_id="g")
    def job():
        return step("outer", outer), step("inner", lambda: calls.append("root") or 5)

    dying = True
    crashes(job)
    crashes(job)
    dying = False
    assert job() == (3, 5)
    assert calls == ["inner", "scoped", "outer", "root"]
    assert _keys(job) == ["outer>inner", "outer>in/inner", "outer", "inner"]


async def test_async_steps_nest_and_do_not_deadlock(store):
    async def inner(n):
        return n + 1

    async def outer(n):
        return await async_step("inner", inner, n) + await async_step("plain", int, n)

    @durable(store=store)
    async def job():
        return await asyncio.gather(*(async_step("outer", outer, n) for n in range(5)))

    assert await job() == [2 * n + 1 for n in range(5)]


def test_recursion_of_steps(store):
    calls = []

    def factorial(n):
        calls.append(n)
        if n == dying_at:
            crash()
        return 1 if n == 0 else n * step("factorial", factorial, n - 1)

    @durable(store=store, goal_id="g")
    def job(n):
        return step("factorial", factorial, n)

    dying_at = 0
    crashes(job, 40)
    dying_at = None
    assert job(40) == 815915283247897734345611269596115894272000000000
    assert calls == [*range(40, -1, -1), *range(40, -1, -1)]  # all were in flight


# --- runs inside runs --------------------------------------------------------------------------------------------------------


def test_a_durable_function_inside_another_is_a_run_of_its_own_and_resumed_with_it(store):
    calls = []

    @durable(store=store)
    def child(n):
        value = step("work", lambda: calls.append(n) or n * 10)
        if dying == n:
            crash()
        return value

    @durable(store=store, goal_id="parent")
    def parent():
        found = [child(n) for n in range(3)]
        return [*found, step("after", sum, found)]

    dying = 1
    crashes(parent)
    dying = None
    assert parent() == [0, 10, 20, 30]
    assert calls == [0, 1, 2]
    runs = child.runs.list()
    assert len(runs) == 3
    assert {run.status for run in runs} == {"finished"}
    assert {run.parent for run in runs} == {parent.runs.show().id}


def test_the_same_child_called_twice_runs_twice_and_is_replayed_twice(store):
    calls = []

    @durable(store=store)
    def child():
        return step("work", lambda: calls.append(1) or len(calls))

    @durable(store=store, goal_id="parent")
    def parent():
        found = child(), child()
        if dying:
            crash()
        return found

    dying = True
    crashes(parent)
    dying = False
    assert parent() == (1, 2)
    assert calls == [1, 1]


def test_a_new_run_of_the_parent_has_new_children_and_forget_takes_them_along(store):
    calls = []

    @durable(store=store)
    def child():
        step("work", calls.append, 1)

    @durable(store=store)
    def parent():
        child()

    parent()
    parent()
    assert calls == [1, 1]
    assert parent.runs.forget() is True
    assert [run.parent for run in child.runs if run.parent == "gone"] == []
    parent()
    assert calls == [1, 1, 1]


def test_a_named_child_is_a_goal_of_its_own_done_once_for_all(store, capfd):
    calls = []

    @durable(store=store, goal_id="child")
    def child():
        step("work", calls.append, 1)
        return "done"

    @durable(store=store)
    def parent():
        return child()

    assert parent() == parent() == child() == "done"
    assert calls == [1]


async def test_async_children_run_side_by_side(store):
    @durable(store=store)
    async def child(n):
        return await async_step("work", lambda: n * 2)

    @durable(store=store)
    async def parent():
        async def branch(n):
            async with scope(f"b{n}"):
                return await child(n)

        return await asyncio.gather(*(branch(n) for n in range(20)))

    assert await parent() == [2 * n for n in range(20)]


def test_after_a_child_the_parent_is_current_again(store):
    @durable(store=store)
    def child(fail):
        if fail:
            raise ValueError("child")
        return current_run().id

    @durable(store=store)
    def parent():
        mine = current_run().id
        inner = child(False)
        assert current_run().id == mine != inner
        with pytest.raises(ValueError, match="child"):
            child(True)
        assert current_run().id == mine
        return step("still recorded", int, 1)

    assert parent() == 1


def test_recursion_of_durable_functions(store):
    calls = []

    @durable(store=store)
    def countdown(n):
        step("work", calls.append, n)
        if n == dying_at:
            raise Crash
        return 0 if n == 0 else 1 + countdown(n - 1)

    dying_at = 0
    crashes(countdown, 10)
    dying_at = None
    assert countdown(10) == 10
    assert calls == list(range(10, -1, -1))


@pytest.mark.parametrize("on_locked", ["raise", "wait"])
def test_a_run_inside_itself_is_refused_and_does_not_wait_for_itself(store, on_locked):
    @durable(store=store, goal_id="g", on_locked=on_locked)
    def job():
        return job()

    with pytest.raises((LogLocked, RecursionError), match=r"this process|itself"):
        job()


def test_a_step_may_hold_a_run_and_a_marker(store):
    calls = []

    @durable(store=store)
    def child():
        return step("work", lambda: calls.append(1) or 1)

    def outer():
        with atomic_marker("m") as should:
            if should:
                should.record(child())
        return should.result

    @durable(store=store, goal_id="g")
    def job():
        value = step("outer", outer)
        if dying:
            crash()
        return value

    dying = True
    crashes(job)
    dying = False
    assert job() == 1
    assert calls == [1]
