"""Retries and timeouts: counted, recorded, and going on across a crash."""

from __future__ import annotations

import asyncio
import time

import pytest

from letitloop import MemoryStore, Retry, UnencodableError, async_step, durable, step
from tests.runs.helpers import Crash, crash, crashes

QUICK = {"backoff": 0.0, "jitter": 0.0}


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def naps(monkeypatch):
    """What was slept; nothing waits."""
    found = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


class Flaky:
    def __init__(self, failures, error=ValueError):
        self.calls, self.failures, self.error = 0, failures, error

    def __call__(self):
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error(f"attempt {self.calls}")
        return self.calls


def test_a_step_is_tried_again_so_often_and_waits_longer_each_time(store, naps):
    flaky = Flaky(3)

    @durable(store=store)
    def job():
        return step("s", retry=Retry(attempts=5, backoff=1.0, factor=3, max_backoff=5, jitter=0))(flaky)()

    assert job() == 4
    assert naps == [1.0, 3.0, 5]
    assert [record.status for record in job.runs.show().steps] == ["retried", "retried", "retried", "ok"]
    assert [record.error for record in job.runs.show().steps][:2] == [
        "builtins.ValueError: attempt 1",
        "builtins.ValueError: attempt 2",
    ]


def test_jitter_takes_off_at_most_its_part():
    policy = Retry(attempts=9, backoff=10, jitter=0.25)
    waits = [policy.delay(1) for _ in range(200)]
    assert all(7.5 <= wait <= 10 for wait in waits)
    assert len(set(waits)) > 1
    assert Retry(attempts=10**6, backoff=1).delay(10**5) <= 60


def test_the_last_failure_is_the_callers_and_a_new_drive_starts_to_count_anew(store, naps):
    flaky = Flaky(5)

    @durable(store=store, goal_id="g")
    def job():
        return step("s", retry=Retry(attempts=3, **QUICK))(flaky)()

    with pytest.raises(ValueError, match="attempt 3"):
        job()
    assert flaky.calls == 3
    assert job() == 6


def test_attempts_are_counted_across_crashes(store, naps):
    flaky = Flaky(9)
    deaths = [2, 3]

    def work():
        if flaky.calls + 1 in deaths:
            deaths.remove(flaky.calls + 1)
            crash()
        return flaky()

    @durable(store=store, goal_id="g")
    def job():
        return step("s", retry=Retry(attempts=4, **QUICK))(work)()

    crashes(job)  # attempt 1 failed and is recorded, 2 died
    crashes(job)  # attempt 2 failed and is recorded, 3 died
    with pytest.raises(ValueError, match="attempt 4"):
        job()
    assert flaky.calls == 4


def test_only_the_named_exceptions_are_tried_again(store, naps):
    for on in (KeyError, (KeyError, OSError), lambda exc: "no" in str(exc)):
        flaky = Flaky(3)

        @durable(store=store)
        def job(flaky=flaky, on=on):
            return step("s", retry=Retry(attempts=5, on=on, **QUICK))(flaky)()

        with pytest.raises(ValueError, match="attempt 1"):
            job()
        assert flaky.calls == 1
    flaky = Flaky(3)
    assert durable(store=store)(lambda: step("s", retry=Retry(5, on=ValueError, **QUICK))(flaky)())() == 4


def test_an_unencodable_result_is_not_tried_again(store, naps):
    calls = []

    @durable(store=store)
    def job():
        return step("s", retry=Retry(attempts=5, **QUICK))(lambda: calls.append(1) or object())()

    with pytest.raises(UnencodableError):
        job()
    assert calls == [1]


def test_an_interrupt_is_not_tried_again(store, naps):
    flaky = Flaky(1, KeyboardInterrupt)

    @durable(store=store)
    def job():
        return step("s", retry=Retry(attempts=5, **QUICK))(flaky)()

    with pytest.raises(KeyboardInterrupt):
        job()
    assert flaky.calls == 1


def test_a_retried_step_that_succeeded_is_replayed_as_a_success(store, naps):
    flaky = Flaky(2)

    @durable(store=store, goal_id="g")
    def job():
        value = step("s", retry=Retry(attempts=5, **QUICK))(flaky)()
        if dying:
            crash()
        return value

    dying = True
    crashes(job)
    dying = False
    assert job() == 3
    assert flaky.calls == 3


# --- steps inside a step that is tried again ---------------------------------------------------------------------------------


def test_a_step_inside_a_retried_step_is_done_once(store, naps):
    flaky, calls, seen = Flaky(3), [], []

    def outer():
        value = step("inner", lambda: calls.append(1) or ["made"])
        seen.append(list(value))
        value.append("mutated")
        return flaky()

    @durable(store=store, goal_id="g")
    def job():
        return step("outer", retry=Retry(attempts=9, **QUICK))(outer)()

    assert job() == 4
    assert calls == [1]
    assert seen == [["made"]] * 4


def test_a_step_inside_a_retried_step_is_done_once_across_a_crash(store, naps):
    flaky, calls = Flaky(4), []

    def outer():
        step("inner", lambda: calls.append(1))
        if flaky.calls == 1 and dying:
            crash()
        return flaky()

    @durable(store=store, goal_id="g")
    def job():
        return step("outer", retry=Retry(attempts=9, **QUICK))(outer)()

    dying = True
    crashes(job)
    dying = False
    assert job() == 5
    assert calls == [1]


def test_a_step_inside_a_retried_step_is_not_answered_for_other_arguments(store, naps):
    flaky = Flaky(2)

    def outer():
        number = flaky.calls + 1
        inner.append(step("inner", lambda n: n, number))
        flaky()
        return number

    inner = []

    @durable(store=store, goal_id="g")
    def job():
        return step("outer", retry=Retry(attempts=9, **QUICK))(outer)()

    assert job() == 3
    assert inner == [1, 2, 3]


# --- async -------------------------------------------------------------------------------------------------------------------


async def test_async_steps_are_tried_again_without_blocking_the_loop(store, monkeypatch):
    naps = []
    real = asyncio.sleep

    async def sleep(seconds):
        naps.append(seconds)
        await real(0)

    flaky = Flaky(2)

    async def work():
        return flaky()

    @durable(store=store)
    async def job():
        return await step("s", retry=Retry(attempts=5, backoff=7.0, jitter=0))(work)()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert await job() == 3
    assert naps == [7.0, 14.0]


async def test_a_timeout_ends_the_step_and_is_a_failure(store):
    ends = []

    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    @durable(store=store, goal_id="g")
    async def job():
        try:
            await step("s", timeout=0.001)(work)()
        except TimeoutError as exc:
            text = str(exc)
        await async_step("after", int, 1)
        if dying:
            crash()
        return text

    dying = True
    with pytest.raises(Crash):
        await job()
    dying = False
    assert "timeout=0.001" in await job()
    assert "'s'" in await job()
    assert ends == ["cancelled"]


async def test_a_timeout_is_tried_again_and_holds_for_each_attempt(store):
    calls = []

    async def work():
        calls.append(1)
        if len(calls) < 3:
            await asyncio.Event().wait()
        return "done"

    @durable(store=store)
    async def job():
        return await step("s", retry=Retry(attempts=3, **QUICK), timeout=0.001)(work)()

    assert await job() == "done"
    assert len(calls) == 3


async def test_a_timeout_error_of_the_functions_own_is_its_own(store):
    async def work():
        raise TimeoutError("the database's")

    @durable(store=store)
    async def job():
        await step("s", timeout=60)(work)()

    with pytest.raises(TimeoutError, match="the database's"):
        await job()
