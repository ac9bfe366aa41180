"""Pools, groups and many threads: a Halt reaches the caller whatever wraps it, nothing hangs, and nothing is quadratic."""

from __future__ import annotations

import asyncio
import builtins
import collections
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest

from letitloop import (
    Halt,
    MemoryStore,
    RunHalted,
    StepChanged,
    UnknownOutcome,
    async_step,
    atomic_marker,
    carry,
    current_run,
    durable,
    step,
)
from letitloop.runs import drive_async
from letitloop.wal.log import Log
from tests.runs.helpers import Crash, crash, crashes

pytestmark = pytest.mark.timeout(40)


@pytest.fixture
def store():
    return MemoryStore()


async def crashes_async(fn, *args):
    with pytest.raises(Crash):
        await fn(*args)


@pytest.fixture
def busy_threads():
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# --- a Halt reaches the caller -----------------------------------------------------------------------------------------------


async def _identity(value):
    return value


async def _task_group(work):
    async with asyncio.TaskGroup() as group:
        group.create_task(work())


async def _nested_task_groups(work):
    async with asyncio.TaskGroup() as group:
        group.create_task(_task_group(work))


async def _gather(work):
    await asyncio.gather(asyncio.sleep(0), work())


async def _gather_with_exceptions(work):
    await asyncio.gather(work(), return_exceptions=True)


async def _raised_anew(work):
    try:
        await work()
    except BaseException as exc:
        raise RuntimeError("in its place") from exc


async def _raised_without_cause(work):
    try:
        await work()
    except BaseException:
        raise ValueError("in its place") from None


async def _swallowed(work):
    try:
        await work()
    except BaseException:
        return


GROUPS = [_task_group, _nested_task_groups] if sys.version_info >= (3, 11) else []
WRAPPINGS = [*GROUPS, _gather, _gather_with_exceptions, _raised_anew, _raised_without_cause, _swallowed]


@pytest.mark.parametrize("wrapped", WRAPPINGS)
async def test_a_changed_step_reaches_the_caller_of_an_async_run(store, wrapped):
    @durable(goal_id="g", store=store)
    async def job():
        await wrapped(lambda: async_step("x", _identity, value))
        if value == 1:
            crash()

    value = 1
    await crashes_async(job)
    value = 2
    with pytest.raises(StepChanged, match="'x'"):
        await job()


@pytest.mark.parametrize("wrapped", WRAPPINGS)
async def test_an_unknown_outcome_reaches_the_caller_of_an_async_run(store, wrapped):
    @durable(goal_id="g", store=store)
    async def job():
        async def act():
            async with atomic_marker("m", on_uncertain="halt"):
                crash()

        await (act() if dying else wrapped(act))
        return "went on"

    dying = True
    await crashes_async(job)
    dying = False
    with pytest.raises(UnknownOutcome, match="'m'"):
        await job()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups came with 3.11")
def test_a_halt_in_a_group_of_others_reaches_the_caller_of_a_sync_run(store):
    group = builtins.BaseExceptionGroup

    @durable(goal_id="g", store=store)
    def job():
        errors = []
        try:
            step("x", abs, value)
        except Halt as exc:
            errors.append(exc)
        if value == 1:
            crash()
        raise group("all", [ValueError("one"), group("inner", errors)])

    value = 1
    crashes(job)
    value = 2
    with pytest.raises(StepChanged):
        job()


def test_what_has_nothing_to_do_with_a_halt_leaves_a_run_as_it_is(store):
    @durable(store=store)
    def job():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job()


# --- pools -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swallow", [False, True])
def test_a_halt_in_a_pool_that_waits_for_its_workers_ends_the_run_and_no_worker(store, swallow):
    seen = []

    @durable(goal_id="g", store=store)
    def job():
        with ThreadPool(2) as pool:
            try:
                pool.map(carry(lambda i: step(f"w{i}", pow, i, power)), range(4))
            except RunHalted as exc:
                seen.append(exc)
                if not swallow:
                    raise
        if power == 1:
            crash()
        return "went on"

    power = 1
    crashes(job)
    power = 2
    with pytest.raises(StepChanged, match="w"):
        job()
    assert [type(exc.__cause__) for exc in seen] == [StepChanged]


def test_an_executor_s_future_holds_an_exception_and_the_caller_gets_the_halt(store):
    @durable(goal_id="g", store=store)
    def job():
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(carry(step), f"w{i}", pow, i, power) for i in range(3)]
        if power == 1:
            crash()
        assert all(isinstance(future.exception(), RunHalted) for future in futures)
        return "went on"

    power = 1
    crashes(job)
    power = 2
    with pytest.raises(StepChanged):
        job()


FORKING = """
import multiprocessing as mp
from letitloop import carry, durable, step, LetItLoopError

def work(i):
    return step("w", pow, i, 2)

@durable(goal_id="g")
def job():
    step("before", int)
    with mp.get_context("fork").Pool(2) as pool:
        for again in range(2):
            try:
                pool.map(work, range(3))
            except LetItLoopError as exc:
                print(type(exc).__name__, "forked" in str(exc))
        squares = pool.map(abs, [-1, -2])
    return step("after", sum, squares)

print(job())
print([(record.key, record.status) for record in job.runs.show().steps])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="it forks")
def test_a_step_in_a_forked_pool_is_an_error_in_the_parent_which_goes_on(tmp_path):
    (tmp_path / "prog.py").write_text(FORKING)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "prog.py"], cwd=tmp_path, capture_output=True, text=True, timeout=25, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[:2]] == ["True", "True"]
    assert lines[2:] == ["3", "[('before', 'ok'), ('after', 'ok')]"]


# --- threads that replay -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [300])
@pytest.mark.parametrize("arguments", [(), (7,)])
def test_threads_that_replay_equal_calls_get_each_record_once(store, busy_threads, calls, arguments):
    def take(*_):
        with guard:
            made.append(len(made))
            if dying and len(made) % 2:
                raise Crash  # every second place is left empty
            return made[-1]

    @durable(store=store, sync="process")
    def job(number):
        def call(_):
            try:
                return step("x", take, *arguments)
            except Crash:
                return None

        if dying:
            [call(i) for i in range(calls)]
            crash()
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(carry(call), range(calls)))

    guard = threading.Lock()
    for number in range(3):
        made = []
        dying = True
        crashes(job, number)
        recorded = {i for i in made if i % 2}
        dying = False
        results = collections.Counter(job(number))
        assert len(results) == calls, "each record answers one call"
        assert recorded <= set(results)
        assert len(made) == calls + calls - len(recorded)


# --- many calls --------------------------------------------------------------------------------------------------------------


def _count_reads(monkeypatch):
    reads = collections.Counter()
    read = Log.read

    def counted(self, entry):
        reads[entry.seq] += 1
        return read(self, entry)

    monkeypatch.setattr(Log, "read", counted)
    return reads


def test_ten_thousand_calls_in_another_order_are_recalled_in_linear_time(store, monkeypatch):
    n = 10_000

    @durable(store=store, sync="process")
    def job():
        order = range(n) if dying else reversed(range(n))
        results = [step("x", abs, i) for i in order]
        if dying:
            crash()
        return results[:3], len(results)

    dying = True
    crashes(job)
    dying = False
    reads = _count_reads(monkeypatch)
    assert job() == ([n - 1, n - 2, n - 3], n)
    assert sum(reads.values()) <= 5 * n


async def test_a_fan_out_of_ten_thousand_is_recalled_in_linear_time(store, monkeypatch):
    n = 10_000

    @durable(store=store, sync="process")
    async def job():
        order = range(n) if dying else reversed(range(n))
        results = await asyncio.gather(*(step("x", _identity, i) for i in order))
        if dying:
            crash()
        return results[:3], len(results)

    dying = True
    await crashes_async(job)
    dying = False
    reads = _count_reads(monkeypatch)
    assert await job() == ([n - 1, n - 2, n - 3], n)
    assert sum(reads.values()) <= 5 * n


# --- coroutines that are never started ---------------------------------------------------------------------------------------


async def _close(coroutine):
    coroutine.close()


async def _cancel_before_its_first_tick(coroutine):
    task = asyncio.ensure_future(coroutine)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _cancel_in_a_gather(coroutine):
    gathering = asyncio.gather(coroutine, asyncio.sleep(0))
    gathering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathering


@pytest.mark.parametrize("abandon", [_close, _cancel_before_its_first_tick, _cancel_in_a_gather])
async def test_a_step_that_is_never_started_does_not_hide_changes_of_those_after_it(store, abandon):
    @durable(goal_id="g", store=store)
    async def job():
        await abandon(async_step("x", _identity, 0))
        await asyncio.sleep(0)
        await async_step("x", _identity, value)
        if value == 1:
            crash()
        return "went on"

    value = 1
    await crashes_async(job)
    value = 2
    with pytest.raises(StepChanged, match="x"):
        await job()


# --- the thread that syncs ---------------------------------------------------------------------------------------------------


def test_threads_with_a_loop_each_share_one_syncing_thread_that_ends_with_the_run(store, busy_threads, monkeypatch):
    made = []

    class Counted(drive_async.Syncer):
        def __init__(self, log):
            made.append(self)
            super().__init__(log)

    monkeypatch.setattr(drive_async, "Syncer", Counted)

    @durable(store=store)
    def job(number):
        start = threading.Barrier(4)

        async def work(i):
            start.wait()
            return await async_step(f"s{i}", _identity, i)

        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(carry(lambda i: asyncio.run(work(i))), range(4)))

    for number in range(10):
        assert job(number) == [0, 1, 2, 3]
    assert len(made) == 10
    for syncer in made:
        syncer._thread.join(timeout=10)
        assert not syncer._thread.is_alive()


# --- a leader that dies ------------------------------------------------------------------------------------------------------


def test_a_thread_that_meets_a_dead_leader_leads_itself(store, monkeypatch):
    lead = Log._lead
    deaths = []

    def dies_once(self):
        if not deaths:
            deaths.append(threading.get_ident())
            raise KeyboardInterrupt
        lead(self)

    @durable(store=store)
    def job():
        monkeypatch.setattr(Log, "_lead", dies_once)
        with ThreadPoolExecutor(2) as pool:  # waits for its workers, whatever leaves the block
            with pytest.raises(KeyboardInterrupt):
                step("mine", int)
            futures = [pool.submit(carry(step), f"theirs{i}", abs, i) for i in range(2)]
        return [future.result() for future in futures]

    assert job() == [0, 1]
    assert len(deaths) == 1
    assert next(record.key for record in job.runs.show().steps) == "mine", "queued, and carried by the next"


def test_threads_that_wait_for_a_leader_outlive_it(store, monkeypatch):
    lead, wait_for = Log._lead, Log._await
    waiting, deaths = threading.Semaphore(0), []

    def dies_when_all_wait(self):
        if not deaths:
            deaths.append(threading.get_ident())
            for _ in range(3):
                assert waiting.acquire(timeout=20)
            raise KeyboardInterrupt
        lead(self)

    def told(self, entry, me):
        waiting.release()
        return wait_for(self, entry, me)

    @durable(store=store)
    def job():
        begun = threading.Semaphore(0)
        monkeypatch.setattr(Log, "_lead", dies_when_all_wait)
        monkeypatch.setattr(Log, "_await", told)

        def theirs(i):
            begun.acquire()
            return step(f"theirs{i}", abs, i)

        def let_them_go():
            for _ in range(3):
                begun.release()

        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(carry(theirs), i) for i in range(3)]
            with pytest.raises(KeyboardInterrupt):
                step("mine", let_them_go)
        return [future.result() for future in futures], current_run().log.usable

    monkeypatch.setattr(Log, "_join", _leads_first(Log._join, threading.get_ident()))
    assert job() == ([0, 1, 2], True)
    assert len(deaths) == 1


def _leads_first(join, leader):
    """Let other threads join only behind ``leader``."""
    led = threading.Event()

    def joined(self):
        if threading.get_ident() == leader:
            led.set()
            return join(self)
        self._guard.release()
        try:
            assert led.wait(20)
        finally:
            self._guard.acquire()
        return join(self)

    return joined
