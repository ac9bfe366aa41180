"""asyncio and threads: real concurrency, one answer each, and nothing that blocks the loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from letitloop import (
    AsyncMisuse,
    LogPoisoned,
    MemoryStore,
    Retry,
    StepChanged,
    async_step,
    atomic_marker,
    carry,
    current_run,
    durable,
    scope,
    step,
)
from letitloop.runs import drive_async
from letitloop.store.directory import DirectoryStore
from letitloop.testing import Fault, FaultFs
from letitloop.wal.files import OsFs
from letitloop.wal.log import Log
from tests.runs.helpers import Crash, crash, crashes


@pytest.fixture(params=["memory", "directory"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else DirectoryStore(tmp_path / "s")


async def acrashes(fn, *args):
    with pytest.raises(Crash):
        await fn(*args)


async def test_gather_runs_steps_at_the_same_time_and_each_has_its_own_answer(store):
    calls = []

    @durable(store=store, goal_id="g")
    async def job():
        barrier, waiting = asyncio.Event(), []

        async def work(n):
            calls.append(n)
            waiting.append(n)
            if len(waiting) == 5:
                barrier.set()
            await barrier.wait()  # passes only if all five are in flight together
            return n * n

        found = await asyncio.gather(*(async_step("work", work, n) for n in range(5)))
        if dying:
            crash()
        return found

    dying = True
    await acrashes(job)
    dying = False
    assert await job() == [0, 1, 4, 9, 16]
    assert sorted(calls) == list(range(5))


async def test_steps_in_flight_together_may_finish_in_any_order_and_only_unfinished_ones_run_again(store):
    calls = []

    @durable(store=store, goal_id="g")
    async def job():
        done = [asyncio.Event() for _ in range(4)]

        async def work(n):
            calls.append(n)
            if dying:
                if n == 0:
                    await done[2].wait()
                    crash()
                if n in (1, 3):
                    await asyncio.Event().wait()
            return n

        async def and_tell(n):
            value = await async_step("work", work, n)
            done[n].set()
            return value

        return await asyncio.gather(*(and_tell(n) for n in range(4)))

    dying = True
    await acrashes(job)
    assert calls == [0, 1, 2, 3]
    dying = False
    calls.clear()
    assert await job() == [0, 1, 2, 3]
    assert calls == [0, 1, 3]


async def test_the_slot_is_reserved_when_the_step_is_called_not_when_it_is_awaited(store):
    @durable(store=store, goal_id="g")
    async def job():
        steps = [async_step("s", str, n) for n in range(3)]
        found = [await one for one in reversed(steps)]
        if dying:
            crash()
        return found

    dying = True
    await acrashes(job)
    assert {record.key for record in job.runs.show().steps} == {"s", "s#2", "s#3"}
    dying = False
    assert await job() == ["2", "1", "0"]


async def test_await_step_works_as_well_and_in_decorator_form(store):
    async def double(n):
        return 2 * n

    @durable(store=store)
    async def job():
        return await step("a", double, 1), await step("b")(double)(2), await async_step("c", double, 3)

    assert await job() == (2, 4, 6)


async def test_a_plain_function_given_to_async_step_leaves_the_loop_free(store):
    @durable(store=store)
    async def job():
        met = threading.Barrier(2, timeout=20)

        def work():
            met.wait()
            return threading.get_ident(), step("inner", int, 5)

        async def meanwhile():
            await asyncio.to_thread(met.wait)

        (thread, inner), _ = await asyncio.gather(async_step("work", work), meanwhile())
        return thread != threading.get_ident(), inner

    assert await job() == (True, 5)


async def test_the_sync_of_an_async_step_is_not_on_the_loops_thread(tmp_path):
    threads = set()

    class Watched(OsFs):
        def sync(self, handle):
            threads.add(threading.get_ident())
            super().sync(handle)

    async def work(n):
        return n

    @durable(store=DirectoryStore(tmp_path, fs=Watched()))
    async def job():
        return await asyncio.gather(*(async_step("work", work, n) for n in range(30)))

    assert await job() == list(range(30))
    assert threads
    assert threading.get_ident() not in threads


async def test_tasks_share_their_syncs(tmp_path):
    fs = FaultFs(OsFs())

    async def work(n):
        return n

    @durable(store=DirectoryStore(tmp_path, fs=fs))
    async def job():
        await async_step("warm", work, 0)
        before = fs.calls["sync"]
        await asyncio.gather(*(async_step("work", work, n) for n in range(100)))
        return fs.calls["sync"] - before

    assert await job() <= 10


@pytest.mark.parametrize("patience", [60.0, 1e-9])
async def test_tasks_that_go_in_step_share_one_sync_a_round_unless_it_takes_long(tmp_path, monkeypatch, patience):
    ordered, flush = [], Log.flush
    monkeypatch.setattr(drive_async, "_ROUND", patience)
    monkeypatch.setattr(Log, "flush", lambda log: ordered.append(log) or flush(log))

    async def work(n):
        return n

    async def tasks(name):
        return [await async_step(name, work, n) for n in range(3)]

    @durable(store=DirectoryStore(tmp_path))
    async def job():
        await async_step("warm", work, 0)
        ordered.clear()
        assert await asyncio.gather(*(tasks(str(number)) for number in range(40))) == [[0, 1, 2]] * 40
        return len(ordered)

    syncs = await job()
    assert syncs == 3 if patience > 1 else syncs > 3


async def test_every_waiter_hears_of_a_failed_sync(tmp_path):
    fs = FaultFs(OsFs())

    async def work(n):
        return n

    @durable(store=DirectoryStore(tmp_path, fs=fs), goal_id="g")
    async def job():
        await async_step("warm", work, 0)
        if failing:
            fs.add(Fault("sync", times=-1))
        found = await asyncio.gather(*(async_step("work", work, n) for n in range(8)), return_exceptions=True)
        heard.extend(type(one) for one in found)
        return found

    heard, failing = [], True
    with pytest.raises(LogPoisoned):
        await job()
    assert set(heard) <= {LogPoisoned}
    fs.clear()
    failing = False
    assert await job() == list(range(8))


async def test_a_cancelled_waiter_cancels_no_record(store):
    """The function has returned and its record is on its way when the task that waits for it is cancelled."""
    calls = []

    @durable(store=store, goal_id="g")
    async def job():
        async def work():
            calls.append(1)
            if cancelling:
                asyncio.get_running_loop().call_soon(task.cancel)
            return "value"

        task = asyncio.ensure_future(async_step("work", work))
        try:
            value = await task
        except asyncio.CancelledError:
            value = "cancelled"
        await async_step("after", int)
        if cancelling:
            crash()
        return value

    cancelling = True
    await acrashes(job)
    cancelling = False
    assert await job() == "value"
    assert calls == [1]


def test_two_event_loops_drive_one_run(store):
    async def work(n):
        return n * 2

    @durable(store=store, goal_id="g")
    def job():
        async def main(name):
            async with scope(name):
                return await asyncio.gather(*(async_step("work", work, n) for n in range(10)))

        first = asyncio.run(main("first"))
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(carry(lambda name=name: asyncio.run(main(name)))) for name in ("left", "right")]
            found = [first, *(one.result() for one in both)]
        if dying:
            crash()
        return found

    dying = True
    crashes(job)
    dying = False
    assert job() == [[2 * n for n in range(10)]] * 3


def test_runs_in_two_loops_of_two_threads_at_the_same_time(store):
    async def work(n):
        return n

    @durable(store=store)
    async def job(name):
        return name, await asyncio.gather(*(async_step("work", work, n) for n in range(20)))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda name: asyncio.run(job(name)), range(8)))
    assert found == [(name, list(range(20))) for name in range(8)]


async def test_many_async_runs_at_once_in_one_loop(store):
    async def work(n):
        await asyncio.sleep(0)
        return n

    @durable(store=store)
    async def job(n):
        return await async_step("work", work, n) + await async_step("work", work, 1)

    assert await asyncio.gather(*(job(n) for n in range(40))) == [n + 1 for n in range(40)]


async def test_many_that_wait_for_one_run_do_not_starve_it(store):
    calls = []

    async def work():
        calls.append(1)
        await asyncio.to_thread(int)  # the holder itself needs a worker thread
        return "done"

    @durable(store=store, goal_id="g", on_locked="wait", on_complete="return")
    async def job():
        return await async_step("work", work)

    found = await asyncio.wait_for(asyncio.gather(*(job() for _ in range(60))), 30)
    assert found == ["done"] * 60
    assert calls == [1]


async def test_a_sync_run_inside_a_running_loop_refuses_async_steps(store):
    called = []

    async def work():
        called.append(1)

    @durable(store=store)
    def job():
        return step("work", work)

    with pytest.raises(AsyncMisuse):
        job()
    assert called == []


# --- threads -----------------------------------------------------------------------------------------------------------------


def test_eight_threads_of_a_pool_record_every_step_once(store):
    calls = []

    @durable(store=store, goal_id="g")
    def job():
        def work(n):
            with scope(f"item-{n}"):
                first = step("first", lambda: calls.append(n) or n)
                return step("second", lambda value: value * 2, first)

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(carry(work), range(60)))
        if dying:
            crash()
        return found

    dying = True
    crashes(job)
    dying = False
    assert job() == [2 * n for n in range(60)]
    assert sorted(calls) == list(range(60))
    assert len(job.runs.show().steps) == 120


def test_threads_that_share_a_scope_and_a_name_get_their_own_answers(store):
    calls = []

    @durable(store=store, goal_id="g")
    def job():
        start = threading.Barrier(8)

        def work(n):
            start.wait()
            return step("work", lambda n: calls.append(n) or n * 3, n)

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(carry(work), range(8)))
        if dying:
            crash()
        return found

    dying = True
    crashes(job)
    dying = False
    assert job() == [3 * n for n in range(8)]
    assert sorted(calls) == list(range(8))


def test_carry_takes_scope_and_run_and_may_be_called_any_number_of_times(store):
    @durable(store=store)
    def job():
        with scope("here"):
            carried = carry(lambda n: (current_run().id, step("s", int, n)))
        with ThreadPoolExecutor(1) as pool:
            found = [pool.submit(carried, n).result() for n in range(3)]
        return [run == current_run().id for run, _ in found], [n for _, n in found]

    assert job() == ([True] * 3, [0, 1, 2])
    assert [record.key for record in job.runs.show().steps] == ["here/s", "here/s#2", "here/s#3"]


async def test_a_sync_marker_and_an_async_marker_work_in_an_async_run(store):
    acted = []

    @durable(store=store)
    async def job():
        async with atomic_marker("a") as first:
            if first:
                acted.append(await async_step("act", int, 1))
        with atomic_marker("b") as second:
            if second:
                acted.append(2)
        async with atomic_marker("a#2") as third:
            return bool(first), bool(second), bool(third)

    assert await job() == (True, True, True)
    assert acted == [1, 2]


async def test_a_cancelled_task_frees_the_run(store):
    begun = asyncio.Event()

    async def work():
        begun.set()
        if waiting:
            await asyncio.Event().wait()
        return 1

    @durable(store=store, goal_id="g")
    async def job():
        return await async_step("work", work)

    waiting = True
    task = asyncio.create_task(job())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    waiting = False
    assert await job() == 1


async def _cancelled_in_its_work(job, begun, go_on):
    task = asyncio.create_task(job())
    await asyncio.to_thread(begun.wait, 20)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("fails", [False, True])
async def test_a_plain_function_that_is_cancelled_is_waited_for_recorded_and_not_tried_again(store, fails):
    calls, begun, go_on = [], threading.Event(), threading.Event()

    def work():
        calls.append(1)
        begun.set()
        go_on.wait(20)
        if fails and len(calls) == 1:
            raise OSError("passing")
        return "paid for"

    @durable(goal_id="g", store=store)
    async def job():
        return await async_step("work", retry=Retry(5, backoff=0))(work)()

    await _cancelled_in_its_work(job, begun, go_on)
    assert len(calls) == 1
    assert [record.status for record in job.runs.show().steps] == ["retried" if fails else "ok"]
    assert await job() == "paid for"
    assert len(calls) == 1 + fails


async def test_a_halt_leaves_a_plain_function_as_itself(store):
    seen = []

    @durable(goal_id="g", store=store)
    async def job():
        def work():
            return step("inner", int, value)

        try:
            await async_step("outer", lambda: (work(), crash() if dying else None))
        except BaseException as exc:
            seen.append(type(exc))
            raise

    value, dying = 1, True
    await acrashes(job)
    value, dying = 2, False
    with pytest.raises(StepChanged):
        await job()
    assert seen[-1] is StepChanged
