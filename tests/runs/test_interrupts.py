"""Ctrl+C, cancellations and loops that end early: no run stays locked, nothing returned is lost, and the next life is told."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading

import pytest

from letitloop import DirectoryStore, MemoryStore, async_step, current_run, durable, scope, step
from tests.interrupts import each_place, in_memory

pytestmark = pytest.mark.timeout(60)

# a generator that is collected may be the place, and what is raised there goes nowhere
unraisable = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class SlowToOpen(MemoryStore):
    """A store whose openings can be held."""

    def __init__(self):
        super().__init__()
        self.opening = threading.Event()
        self.go_on = threading.Event()

    def open_log(self, *args, **kwargs):
        self.opening.set()
        assert self.go_on.wait(20)
        return super().open_log(*args, **kwargs)


async def _identity(value):
    return value


def _open_files():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


# --- Ctrl+C at every place ---------------------------------------------------------------------------------------------------


@pytest.fixture
def quick_store():
    with in_memory() as path:
        yield DirectoryStore(path)


@unraisable
def test_after_ctrl_c_anywhere_the_run_goes_on_at_once_and_repeats_nothing(quick_store):
    returned = {}

    @durable(goal_id=lambda n: f"run-{n}", store=quick_store, on_complete="return")
    def job(n):
        value = step("s", make, n)
        assert returned.setdefault(n, value) == value, "a value that was returned is never another"
        try:
            step("bad", int, "x")
        except ValueError:
            return n

    made = iter(range(10**9))

    def make(_):
        return next(made)

    def check(n):
        assert job(n) == n

    job(-1)
    places, failed = each_place(job, check)
    assert not failed
    assert places > 100


def test_ctrl_c_between_opening_and_body_frees_the_run(monkeypatch):
    from letitloop.runs import api

    store = MemoryStore()
    job = durable(lambda: step("s", int), store=store)
    open_run = api.open_run

    def interrupted(opening):
        open_run(opening)
        monkeypatch.setattr(api, "open_run", open_run)
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "open_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        job()
    assert job() == 0


def test_ctrl_c_while_a_run_closes_frees_the_run(monkeypatch):
    from letitloop.runs.run import Run

    store = MemoryStore()
    job = durable(lambda: step("s", int), store=store)

    def interrupted(run):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        job()
    assert job() == 0


CTRL_C = """
import asyncio, os, signal, sys
from letitloop import DirectoryStore, async_step, durable

class Interrupted(DirectoryStore):
    def open_log(self, *args, **kwargs):
        global left
        if left:
            left -= 1
            os.kill(os.getpid(), signal.SIGINT)
        return super().open_log(*args, **kwargs)

async def one():
    return 1

@durable(goal_id="g", store=Interrupted("s"))
async def job():
    return await async_step("s", one)

left = 3
for _ in range(3):
    try:
        print(asyncio.run(job()))
    except KeyboardInterrupt:
        print("interrupted")
print(asyncio.run(job()))
"""


def test_a_real_ctrl_c_while_an_async_run_is_opened_frees_it(tmp_path):
    (tmp_path / "prog.py").write_text(CTRL_C)
    done = subprocess.run([sys.executable, "prog.py"], cwd=tmp_path, capture_output=True, text=True, timeout=25, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1"
    assert "interrupted" in done.stdout


# --- cancellations -----------------------------------------------------------------------------------------------------------


async def test_a_run_cancelled_while_it_is_opened_may_be_tried_again_at_once():
    store = SlowToOpen()
    called = []

    @durable(goal_id="g", store=store)
    async def job():
        called.append(1)
        return await async_step("s", _identity, 1)

    task = asyncio.create_task(job())
    await asyncio.to_thread(store.opening.wait, 20)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # again: it is waiting already
    store.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not called
    assert await job() == 1


async def test_a_run_may_be_cancelled_after_any_number_of_ticks_and_tried_again_at_once():
    store = MemoryStore()

    @durable(goal_id=lambda n: f"run-{n}", store=store, sync="process")
    async def job(n):
        results = [await async_step("a", _identity, i) for i in range(3)]
        results += await asyncio.gather(*(async_step("b", _identity, i) for i in range(3)))
        return results

    for n in range(80):
        task = asyncio.create_task(job(n))
        for _ in range(n):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        assert await job(n) == [0, 1, 2] * 2


@pytest.mark.parametrize("keep", ["task", "coroutine"])
def test_a_loop_that_is_closed_early_leaves_the_run_free(tmp_path, keep):
    store = DirectoryStore(tmp_path / "s")

    @durable(goal_id="g", store=store)
    async def job():
        value = await async_step("s", _identity, 1)
        if first:
            loop.stop()
            await asyncio.get_running_loop().create_future()  # for ever
        return value

    files = _open_files()
    first = True
    loop = asyncio.new_event_loop()
    coroutine = job()
    task = loop.create_task(coroutine)
    loop.run_forever()
    if keep == "coroutine":
        coroutine.close()
    loop.close()
    task._log_destroy_pending = False
    del task, coroutine
    gc.collect()
    first = False
    assert asyncio.run(job()) == 1
    for thread in threading.enumerate():
        if thread.name == "letitloop-syncer":
            thread.join(10)
            assert not thread.is_alive()
    assert _open_files() <= files


# --- the next life is told ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_step_that_was_interrupted_counts_as_in_flight(error):
    store = MemoryStore()
    seen = []

    def work():
        if not seen[1:]:
            raise error

    @durable(goal_id="g", store=store)
    def job():
        seen.append(current_run().in_flight)
        step("before", int)
        with scope("in"):
            step("work", work)
        return current_run().in_flight

    with pytest.raises(error):
        job()
    assert job() == ("in/work",)
    assert seen == [(), ("in/work",)]


def test_what_ended_in_time_does_not_count_as_in_flight():
    store = MemoryStore()

    @durable(goal_id="g", store=store)
    def job():
        told.append(current_run().in_flight)
        step("good", int)
        try:
            step("bad", int, "x")
        except ValueError:
            pass
        if len(told) < 3:
            raise KeyboardInterrupt

    told = []
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            job()
    job()
    assert told == [(), (), ()]


async def test_a_step_that_was_cancelled_counts_as_in_flight():
    store = MemoryStore()
    begun = asyncio.Event()

    async def work():
        begun.set()
        if first:
            await asyncio.get_running_loop().create_future()

    @durable(goal_id="g", store=store)
    async def job():
        in_flight = current_run().in_flight
        await async_step("work", work)
        return in_flight

    first = True
    task = asyncio.create_task(job())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    first = False
    assert await job() == ("work",)
