"""Markers and Ctrl+C, broken exceptions, broken ledgers, event loops: named errors, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading

import pytest

from letitloop import (
    AsyncMisuse,
    DirectoryStore,
    InvalidArgument,
    MemoryStore,
    StoreError,
    UnknownOutcome,
    atomic_marker,
    carry,
    durable,
    scope,
    step,
)
from letitloop.effects import ledger_file
from letitloop.wal.files import OsFs
from tests.interrupts import each_place, in_memory
from tests.runs.helpers import finished, killed

pytestmark = pytest.mark.timeout(60)

# a generator that is collected may be the place, and what is raised there goes nowhere
unraisable = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path / "s")


@pytest.fixture
def quick_store():
    with in_memory() as path:
        yield DirectoryStore(path)


def shared(store, name="m", **options):
    return atomic_marker(name, namespace="tests", store=store, **options)


# --- Ctrl+C ------------------------------------------------------------------------------------------------------------------


@unraisable
def test_after_ctrl_c_anywhere_a_marker_can_be_entered_again_and_completed(quick_store):
    acted = []

    def act(n):
        with shared(quick_store, f"m{n}") as marker:
            if marker:
                acted.append(n)

    def check(n):
        act(n)
        with shared(quick_store, f"m{n}") as marker:
            assert not marker
        assert 1 <= acted.count(n) <= 2
        other = threading.Thread(target=act, args=(n,), daemon=True)
        other.start()
        other.join(20)
        assert not other.is_alive(), "it waits"

    act(-1)
    places, failed = each_place(act, check)
    assert not failed
    assert places > 50


@unraisable
def test_after_ctrl_c_anywhere_in_a_run_its_marker_is_completed_by_the_next_life(quick_store):
    @durable(goal_id=lambda n: f"run-{n}", store=quick_store, sync="process", on_complete="return")
    def job(n):
        with atomic_marker("m") as marker:
            if marker:
                step("inside", int)
        return n

    def check(n):
        assert job(n) == n

    job(-1)
    places, failed = each_place(job, check)
    assert not failed
    assert places > 100


@pytest.mark.parametrize("door", ["unlock", "lock"])
def test_a_ledger_s_lock_that_ctrl_c_kept_from_being_freed_stops_nobody(store, monkeypatch, door):
    with shared(store, "first"):
        pass
    original = getattr(OsFs, door)
    struck = []

    def interrupted(self, handle, **options):
        if handle == ledger._writer and not struck:
            struck.append(door)
            if door == "lock":
                original(self, handle, **options)
            raise KeyboardInterrupt
        return original(self, handle, **options)

    ledger = ledger_file.open_ledger(store.ledger)
    monkeypatch.setattr(OsFs, door, interrupted)
    with pytest.raises(KeyboardInterrupt), shared(store, "second"):
        pass
    assert struck == [door]
    with shared(store, "third") as marker:
        assert marker

    def another_process():
        with shared(store, "fourth") as marker:
            assert marker

    finished(another_process)


# --- event loops -------------------------------------------------------------------------------------------------------------


async def test_a_sync_marker_that_would_stop_the_loop_is_refused(store):
    inside, leave = asyncio.Event(), asyncio.Event()

    async def holds():
        with shared(store) as marker:
            assert marker
            inside.set()
            await leave.wait()

    task = asyncio.create_task(holds())
    await inside.wait()
    with pytest.raises(AsyncMisuse, match="async with"), shared(store):
        raise AssertionError("the block was entered")
    leave.set()
    await task
    async with shared(store) as marker:
        assert not marker, "who held it has completed it"


async def test_a_sync_marker_held_by_a_thread_of_this_process_is_refused_on_the_loop(store):
    inside, leave = threading.Event(), threading.Event()

    def holds():
        with shared(store):
            inside.set()
            assert leave.wait(20)

    thread = threading.Thread(target=holds)
    thread.start()
    assert inside.wait(20)
    with pytest.raises(AsyncMisuse, match="async with"), shared(store):
        raise AssertionError("the block was entered")
    leave.set()
    thread.join()
    with shared(store) as marker:
        assert not marker


async def test_a_sync_marker_that_is_free_works_on_a_loop(store):
    with shared(store) as marker:
        assert marker
        await asyncio.sleep(0)
    with shared(store) as marker:
        assert not marker


# --- exceptions --------------------------------------------------------------------------------------------------------------


class BadStr(Exception):
    def __str__(self):
        raise RuntimeError("str")


class BadRepr(ValueError):
    def __repr__(self):
        raise RuntimeError("repr")


@pytest.mark.parametrize("error", [BadStr(), BadRepr("x"), ValueError("\ud800\0"), ValueError("x" * 10_000)])
def test_whatever_leaves_the_block_is_the_caller_s_and_leaves_the_marker_open(store, error):
    with pytest.raises(type(error)) as caught, shared(store):
        raise error
    assert caught.value is error
    with pytest.raises(UnknownOutcome, match=type(error).__name__), shared(store, on_uncertain="halt"):
        raise AssertionError("the block was entered")
    with shared(store) as marker:
        assert marker.uncertain


# --- ledgers -----------------------------------------------------------------------------------------------------------------


def _garbage(path):
    with open(path, "r+b") as file:
        file.write(b"garbage!" * 2000)
    for suffix in ("-wal", "-shm"):
        if os.path.exists(path + suffix):
            with open(path + suffix, "wb") as file:
                file.write(b"x" * 5000)


def _no_tables(path):
    connection = sqlite3.connect(path)
    connection.execute("drop table marker")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("damage", [_garbage, _no_tables])
def test_a_ledger_damaged_while_it_is_open_is_a_named_error_and_nothing_acts(store, damage):
    with shared(store, "a"):
        pass
    damage(store.ledger.removeprefix("sqlite:"))
    with pytest.raises(StoreError, match=r"ledger\.db"), shared(store, "b"):
        raise AssertionError("the block was entered")


def test_a_ledger_that_says_it_is_ready_and_has_no_tables_is_a_named_error(store, tmp_path):
    path = store.ledger.removeprefix("sqlite:")
    os.makedirs(os.path.dirname(path))
    connection = sqlite3.connect(path)
    connection.execute("pragma user_version=1")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match=r"ledger\.db"), shared(store):
        raise AssertionError("the block was entered")


@pytest.mark.parametrize("namespace", ["\ud800", "", 5, b"x", "x" * 513])
def test_a_namespace_that_is_no_name_is_refused(store, namespace):
    with pytest.raises(InvalidArgument, match="namespace"), atomic_marker("m", namespace=namespace, store=store):
        raise AssertionError("the block was entered")


def test_a_ledger_that_is_refused_is_not_left_open(tmp_path, monkeypatch):
    opened = []
    connect = sqlite3.connect

    def watched(*args, **kwargs):
        opened.append(connect(*args, **kwargs))
        return opened[-1]

    store = DirectoryStore(tmp_path / "s")
    path = store.ledger.removeprefix("sqlite:")
    os.makedirs(os.path.dirname(path))
    connection = connect(path)
    connection.execute("pragma application_id=77")
    connection.commit()
    connection.close()
    monkeypatch.setattr(sqlite3, "connect", watched)
    with pytest.raises(StoreError), shared(store):
        raise AssertionError("the block was entered")
    assert opened
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("select 1")


# --- a marker that is met again ----------------------------------------------------------------------------------------------


def _warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING and record.name == "letitloop"]


def test_a_loop_that_skips_all_but_the_first_is_told_once(caplog):
    sent = []

    @durable(store=MemoryStore())
    def job():
        for i in range(4):
            with atomic_marker("mail") as marker:
                if marker:
                    sent.append(i)

    job()
    assert sent == [0]
    (warning,) = _warnings(caplog)
    for part in ("'mail'", job.runs.show().id, "skipped", "its own name", "scope"):
        assert part in warning


async def test_an_async_loop_is_told_too(caplog):
    @durable(store=MemoryStore())
    async def job():
        for _ in range(3):
            async with atomic_marker("mail"):
                pass

    await job()
    assert len(_warnings(caplog)) == 1


def test_whoever_gives_each_its_own_name_or_scope_or_thread_is_not_told(caplog):
    store = MemoryStore()

    def each_its_own():
        for i in range(3):
            with atomic_marker(f"mail {i}"):
                pass
            with scope("item"), atomic_marker("mail"):
                pass
        threads = [threading.Thread(target=carry(meet)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if first:
            raise KeyboardInterrupt

    def meet():
        with atomic_marker("shared by threads"):
            pass

    job = durable(each_its_own, goal_id="g", store=store)
    first = True
    with pytest.raises(KeyboardInterrupt):
        job()
    first = False
    job()  # a marker completed in an earlier life is met for the first time in this one
    assert not _warnings(caplog)


def test_an_uncertain_marker_that_runs_again_is_told(store, caplog):
    def dies():
        with shared(store):
            os.kill(os.getpid(), 9)

    killed(dies)
    with shared(store) as marker:
        assert marker.uncertain
    assert any("'m'" in warning for warning in _warnings(caplog))
