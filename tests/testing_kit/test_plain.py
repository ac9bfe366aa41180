"""plain(): steps are their functions, for unit tests of code that uses steps."""

from __future__ import annotations

import asyncio
import threading

import pytest

from letitloop import (
    AsyncMisuse,
    DirectoryStore,
    InvalidArgument,
    MemoryStore,
    Retry,
    StepOutsideRun,
    async_step,
    atomic_marker,
    current_run,
    durable,
    scope,
    step,
)
from letitloop.testing import plain


def test_a_step_is_its_function_each_time(tmp_path, monkeypatch):
    monkeypatch.setenv("LETITLOOP_STORE", str(tmp_path / "s"))
    calls = []
    with plain():
        for n in range(3):
            assert step("work", lambda n: calls.append(n) or n, n) == n
            with scope("s"):
                assert step("work")(str)(n) == str(n)
        assert current_run().in_flight == ()
    assert calls == [0, 1, 2]
    assert not (tmp_path / "s").exists()
    with pytest.raises(StepOutsideRun):
        step("work", int)


def test_results_need_not_be_recordable_and_come_as_they_are():
    lock = threading.Lock()
    with plain():
        assert step("work", lambda: lock) is lock


def test_exceptions_are_the_functions_own():
    error = ValueError("x")

    def fails():
        raise error

    with plain(), pytest.raises(ValueError, match="x") as caught:
        step("work", fails)
    assert caught.value is error


def test_retries_are_made_and_timeouts_hold():
    calls = []

    def flaky():
        calls.append(1)
        if len(calls) < 3:
            raise ValueError
        return "ok"

    async def slow():
        await asyncio.Event().wait()

    with plain():
        assert step("work", retry=Retry(3, backoff=0))(flaky)() == "ok"
        with pytest.raises(TimeoutError):
            asyncio.run(step_slow(slow))
        with pytest.raises(AsyncMisuse):
            step("work", slow)


async def step_slow(slow):
    return await step("slow", timeout=0.001)(slow)()


async def test_async_steps_run_directly_and_concurrently():
    async def work(n):
        return n

    with plain():
        assert await asyncio.gather(*(async_step("work", work, n) for n in range(5))) == list(range(5))
        assert await async_step("plain", int, 3) == 3


def test_a_durable_function_is_driven_plainly_too(tmp_path):
    calls = []

    @durable(store=DirectoryStore(tmp_path / "s"), goal_id="g")
    def job(n):
        return step("work", lambda: calls.append(n) or n)

    @durable(store=DirectoryStore(tmp_path / "s"))
    async def ajob(n):
        return await async_step("work", lambda: calls.append(n) or n)

    with plain():
        assert [job(1), job(1), asyncio.run(ajob(2)), asyncio.run(ajob(2))] == [1, 1, 2, 2]
    assert calls == [1, 1, 2, 2]
    assert not (tmp_path / "s").exists()


def test_a_marker_acts_once_a_block():
    for _ in range(2):
        with plain():
            with atomic_marker("m") as first:
                assert first
                first.record(5)
            with atomic_marker("n", namespace="all") as other:
                assert other


def test_inside_a_run_it_is_refused():
    calls = []

    @durable(store=MemoryStore())
    def job():
        with plain():
            step("work", calls.append, 1)

    with pytest.raises(InvalidArgument, match="plain"):
        job()
    assert calls == []


def test_it_nests():
    with plain():
        with plain():
            assert step("work", int, 1) == 1
        assert step("work", int, 2) == 2
