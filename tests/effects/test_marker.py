"""A marker: completed once, whoever tries; what it says after an exception; what it belongs to."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from letitloop import (
    DirectoryStore,
    InvalidArgument,
    MemoryStore,
    StepOutsideRun,
    UnencodableError,
    UnknownOutcome,
    atomic_marker,
    carry,
    durable,
    scope,
    step,
)
from tests.runs.helpers import crash, crashes


@pytest.fixture(params=["memory", "directory"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else DirectoryStore(tmp_path / "s")


def shared(store, name="m", **options):
    return atomic_marker(name, namespace="tests", store=store, **options)


def test_the_block_is_completed_once_and_its_value_stays(store):
    with shared(store) as first:
        assert first
        assert not first.uncertain
        assert first.result is None
        first.record({"a": (1, None)})
    for _ in range(2):
        with shared(store) as again:
            assert not again
            assert not again.uncertain
            assert again.result == {"a": (1, None)}
            assert again.idempotency_key == first.idempotency_key
            with pytest.raises(InvalidArgument):
                again.record(5)


def test_a_block_that_recorded_nothing_has_no_result(store):
    with shared(store) as marker:
        assert marker
    with shared(store) as marker:
        assert not marker
        assert marker.result is None


def test_a_result_that_cannot_be_recorded_is_refused_inside_the_block(store):
    with shared(store) as marker:
        with pytest.raises(UnencodableError, match=r"record\(value\)\[0\]"):
            marker.record([threading.Lock()])
        marker.record("instead")
    with shared(store) as marker:
        assert marker.result == "instead"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_it_open_and_uncertain(store, error):
    with pytest.raises(error), shared(store) as first:
        first.record("lost")
        raise error("in the block")
    with pytest.raises(UnknownOutcome) as caught, shared(store, on_uncertain="halt"):
        raise AssertionError("the block was entered")
    for part in ("'m'", error.__name__, "in the block", "not run again"):
        assert part in str(caught.value)
    assert (caught.value.namespace, caught.value.key) == ("marker/tests", "m")
    with shared(store) as again:
        assert again
        assert again.uncertain
        assert again.result is None
        assert again.idempotency_key == first.idempotency_key
    with shared(store, on_uncertain="halt") as done:
        assert not done


def test_names_and_namespaces_are_told_apart(store):
    keys = set()
    for namespace in ("a", "b", "a/b", "../../evil"):
        for name in ("m", "a/b", "a%2Fb", "../../evil", "x" * 300, "ä 中 🎉", "m#2", "m>n"):
            with atomic_marker(name, namespace=namespace, store=store) as marker:
                assert marker
                keys.add(marker.idempotency_key)
    assert len(keys) == 4 * 8


def test_the_idempotency_key_reveals_nothing_and_suits_any_provider(store):
    with shared(store, "charge of ada@example.com") as marker:
        assert "ada" not in marker.idempotency_key
        assert marker.idempotency_key.isascii()
        assert marker.idempotency_key.isalnum()
        assert 20 <= len(marker.idempotency_key) <= 64


def test_a_bad_option_or_name_is_refused(store):
    with pytest.raises(InvalidArgument, match="on_uncertain"):
        shared(store, on_uncertain="maybe")
    for name in ("", "x" * 513, None, 3):
        with pytest.raises(InvalidArgument):
            shared(store, name)


def test_a_marker_entered_inside_itself_is_refused_and_does_not_hang(store):
    with shared(store) as outer:
        assert outer
        with pytest.raises(InvalidArgument, match="inside itself"), shared(store):
            pass
        with shared(store, "other") as inner:
            assert inner
    with shared(store) as again:
        assert not again


def test_outside_a_run_a_marker_needs_a_namespace():
    with pytest.raises(StepOutsideRun, match="namespace"):
        atomic_marker("m")


def test_a_namespace_is_shared_by_runs(store):
    acted = []

    @durable(store=store)
    def job(n):
        with atomic_marker("m", namespace="all") as should:
            if should:
                acted.append(n)
                should.record(n)
        return should.result

    assert [job(1), job(2), job(3)] == [1, 1, 1]
    with atomic_marker("m", namespace="all", store=store) as outside:
        assert outside.result == 1
    assert acted == [1]


def test_in_a_run_it_belongs_to_run_and_scope(store):
    acted = []

    @durable(store=store)
    def job(n):
        for branch in ("a", "b"):
            with scope(branch), atomic_marker("m") as should:
                if should:
                    acted.append((n, branch))
        for _ in range(3):
            with atomic_marker("m") as should:
                if should:
                    acted.append((n, "root"))

    job(1)
    job(2)
    assert acted == [(n, where) for n in (1, 2) for where in ("a", "b", "root")]


def test_a_step_of_the_block_is_replayed_when_the_block_runs_again(store):
    sent = []

    @durable(store=store, goal_id="g")
    def job():
        with atomic_marker("mail") as should:
            if should:
                told.append(should.uncertain)
                step("send", lambda: sent.append(1))
                if dying:
                    crash()
        return bool(should)

    told, dying = [], True
    crashes(job)
    dying = False
    assert job() is True
    assert told == [False, True]
    assert sent == [1]


def test_threads_take_turns_and_one_acts(store):
    acted, inside = [], []
    start = threading.Barrier(8)

    @durable(store=store)
    def job():
        def work(n):
            start.wait()
            with atomic_marker("m") as should:
                inside.append(n)
                assert not should or len(inside) == 1
                if should:
                    acted.append(n)
                    should.record(n)
            return should.result

        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(carry(work), range(8)))

    found = job()
    assert len(acted) == 1
    assert found == acted * 8


def test_threads_take_turns_until_one_succeeds(store):
    attempts = []
    start = threading.Barrier(8)

    def work(n):
        start.wait()
        try:
            with shared(store) as should:
                if should:
                    attempts.append(should.uncertain)
                    if len(attempts) < 4:
                        raise ValueError
        except ValueError:
            return "failed"
        return "acted" if should else "done before"

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(8)))
    assert attempts == [False, True, True, True]
    assert sorted(found) == ["acted"] + ["done before"] * 4 + ["failed"] * 3


# --- async -------------------------------------------------------------------------------------------------------------------


async def test_async_with_is_the_same(store):
    async with shared(store) as first:
        assert first
        first.record(5)
    async with shared(store) as again:
        assert not again
        assert again.result == 5
    with shared(store) as sync:
        assert sync.result == 5
    with pytest.raises(ValueError, match="block"):
        async with shared(store, "other"):
            raise ValueError("block")
    async with shared(store, "other") as other:
        assert other.uncertain


async def test_many_tasks_take_turns_and_the_loop_stays_free(store):
    acted = []

    async def work(n):
        async with shared(store) as should:
            if should:
                await asyncio.sleep(0)
                await asyncio.to_thread(int)
                acted.append(n)
                should.record(n)
        return should.result

    found = await asyncio.wait_for(asyncio.gather(*(work(n) for n in range(60))), 30)
    assert len(acted) == 1
    assert found == acted * 60


async def test_a_task_cancelled_while_it_waits_leaves_no_trace(store):
    inside, leave = asyncio.Event(), asyncio.Event()

    async def first():
        async with shared(store):
            inside.set()
            await leave.wait()
            return "completed"

    async def second():
        async with shared(store) as should:
            return bool(should)

    one = asyncio.create_task(first())
    await inside.wait()
    waiting = asyncio.create_task(second())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    leave.set()
    assert await one == "completed"
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with shared(store, on_uncertain="halt") as again:
        assert not again


async def test_a_block_that_never_began_is_not_uncertain(store):
    inside, leave = asyncio.Event(), asyncio.Event()

    async def first():
        async with shared(store, "blocked"):
            inside.set()
            await leave.wait()

    task = asyncio.create_task(first())
    await inside.wait()

    async def second():
        async with shared(store, "m"):
            raise AssertionError("cancelled before the block")

    waiting = asyncio.create_task(second())
    await asyncio.sleep(0)  # it has asked for the marker, on another thread
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    leave.set()
    await task
    async with shared(store, "m", on_uncertain="halt") as marker:
        assert marker
        assert not marker.uncertain


async def test_cancelling_the_block_leaves_it_uncertain(store):
    inside = asyncio.Event()

    async def work():
        async with shared(store):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with shared(store) as again:
        assert again
        assert again.uncertain


# --- the file ----------------------------------------------------------------------------------------------------------------


def test_a_foreign_ledger_is_refused_and_left_alone(tmp_path):
    import sqlite3

    from letitloop import StoreError

    root = tmp_path / "s"
    root.mkdir()
    with sqlite3.connect(root / "ledger.db") as theirs:
        theirs.execute("create table mine(x)")
        theirs.execute("pragma application_id=7")
    theirs.close()
    with pytest.raises(StoreError, match="no ledger"), shared(DirectoryStore(root)):
        raise AssertionError("entered")
    theirs = sqlite3.connect(root / "ledger.db")
    assert theirs.execute("select name from sqlite_master").fetchall() == [("mine",)]
    theirs.close()
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "ledger.db").write_bytes(b"no database at all, but some text" * 100)
    with pytest.raises(StoreError), shared(DirectoryStore(tmp_path / "t")):
        raise AssertionError("entered")


def test_the_import_of_the_package_loads_no_sqlite():
    code = "import sys, letitloop; letitloop.durable; letitloop.step; assert not {'sqlite3', 'asyncio'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
