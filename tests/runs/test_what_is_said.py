"""Messages that lead on: what was wrong, what to write instead, and what the log of a program tells of a run."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import shutil
import signal
import sys

import pytest

from letitloop import (
    AsyncMisuse,
    DirectoryStore,
    InvalidArgument,
    LogError,
    LogLocked,
    LogPoisoned,
    MemoryStore,
    Retry,
    UnencodableError,
    async_step,
    durable,
    step,
)
from letitloop.errors import RecordTooLarge
from letitloop.runs import run
from letitloop.wal.memory import MemoryFs
from tests.runs.helpers import Crash, crash, crashes, killed

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def store():
    return MemoryStore()


async def _one():
    return 1


# --- what was forgotten ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [lambda: step(len, "xx"), lambda: step(len, "xx", 5), lambda: step(_one, 5)])
def test_a_step_without_its_name_is_told_to_have_one(store, call):
    with pytest.raises(InvalidArgument, match="name is a string"):
        durable(call, store=store)()


async def test_a_result_that_was_not_awaited_is_told_to_be(store):
    @durable(store=store)
    async def job():
        return coroutines[0]

    @durable(store=store)
    async def listed():
        return coroutines

    for fn in (job, listed):
        coroutines = [_one()]
        with pytest.raises(UnencodableError, match="await") as caught:
            await fn()
        assert "register(" not in str(caught.value)
        coroutines[0].close()


def test_a_decorator_that_was_not_called_is_told_to_be(store):
    with pytest.raises(UnencodableError) as caught:
        durable(lambda: step("s"), store=store)()
    assert "register(" not in str(caught.value), "nobody records functions"


@pytest.mark.parametrize(
    "options", [{"backoff": "1"}, {"attempts": "3"}, {"attempts": None}, {"jitter": "x"}, {"factor": None}, {"max_backoff": "60"}]
)
def test_a_policy_of_other_types_is_refused_by_name(options):
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        Retry(**options)


def test_sentences_end_before_the_next_begins(store):
    class Own:
        pass

    for fn in (lambda: step("s", Own), Own, lambda: step("s", lambda: [Own()])):
        with pytest.raises(UnencodableError) as caught:
            durable(lambda fn=fn: fn(), goal_id="g", store=MemoryStore())()
        assert ") The" not in str(caught.value)
        assert ". The call" in str(caught.value) or ". All its steps" in str(caught.value)


# --- async_step as a decorator -----------------------------------------------------------------------------------------------


async def test_async_step_decorates_plain_and_async_functions(store):
    calls = []

    def plain(n, *, by=1):
        calls.append(n)
        return n * by

    async def coroutine(n, *, by=1):
        calls.append(n)
        return n * by

    @durable(store=store)
    async def job():
        one, other = async_step("plain")(plain), async_step("coroutine")(coroutine)
        results = await asyncio.gather(one(2, by=10), other(3, by=10), one(4))
        if dying:
            crash()
        return results, one.__name__

    dying = True
    with pytest.raises(Crash):
        await job()
    dying = False
    assert await job() == ([20, 30, 4], "plain")
    assert sorted(calls) == [2, 3, 4]
    assert sorted(record.key for record in job.runs.show().steps) == ["coroutine", "plain", "plain#2"]


async def test_async_step_s_options_hold_for_both(store):
    @durable(store=store)
    async def job():
        left = [2, 2]

        def flaky(which):
            left[which] -= 1
            if left[which]:
                raise OSError
            return which

        async def flaky_async(which):
            return flaky(which)

        first = await async_step("a", retry=Retry(2, backoff=0), key="k")(flaky)(0)
        second = await async_step("b", retry=Retry(2, backoff=0), timeout=20)(flaky_async)(1)
        return first, second

    assert await job() == (0, 1)


def test_async_step_s_decorator_refuses_what_step_s_does(store):
    with pytest.raises(InvalidArgument, match="timeout"):
        async_step("s", timeout=1)(abs)
    with pytest.raises(InvalidArgument, match="retries"):
        async_step("s", retries=3)
    with pytest.raises(AsyncMisuse, match="sync code"):
        durable(lambda: async_step("s")(abs)(1), store=store)()


# --- logging -----------------------------------------------------------------------------------------------------------------


def _told(caplog, level):
    return [record.getMessage() for record in caplog.records if record.name == "letitloop" and record.levelno == level]


def test_each_retry_is_logged(store, caplog):
    left = [3]

    def flaky():
        left[0] -= 1
        if left[0]:
            raise OSError("busy")
        return 1

    job = durable(lambda: step("ask", retry=Retry(4, backoff=0))(flaky)(), store=store)
    with caplog.at_level(logging.INFO, "letitloop"):
        job()
    told = _told(caplog, logging.INFO)
    assert len(told) == 2
    for attempt, line in enumerate(told, 1):
        for part in ("letitloop: ", "'ask'", job.runs.show().id, f"attempt {attempt} ", "OSError: busy", "0.0 seconds"):
            assert part in line


def test_a_resumption_is_logged_with_what_was_in_flight(tmp_path, caplog):
    store = DirectoryStore(tmp_path / "s")

    @durable(goal_id="g", store=store)
    def job():
        step("a", int)
        step("b", int)
        step("c", dies if dying else int)

    def dies():
        os.kill(os.getpid(), signal.SIGKILL)

    dying = True
    with caplog.at_level(logging.INFO, "letitloop"):
        killed(job)
        dying = False
        job()
    (line,) = _told(caplog, logging.INFO)
    for part in ("letitloop: ", job.runs.show().id, "2 steps on record", ": c"):
        assert part in line


def test_a_run_that_begins_or_was_finished_is_not_said_to_go_on(store, caplog):
    job = durable(lambda: step("a", int), goal_id="g", store=store, on_complete="return")
    with caplog.at_level(logging.DEBUG, "letitloop"):
        job()
        job()
    assert not caplog.records


def test_what_recovery_did_is_told_under_the_library_s_name(tmp_path, caplog):
    store = DirectoryStore(tmp_path / "s")

    @durable(goal_id="g", store=store)
    def job():
        step("a", int)
        if dying:
            crash()

    dying = True
    crashes(job)
    dying = False
    (path,) = (tmp_path / "s" / "runs").glob("*.wal")
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data[:-3])
    job()
    (line,) = _told(caplog, logging.WARNING)
    assert line.startswith("letitloop: run ")


# --- the notice of a finished run --------------------------------------------------------------------------------------------


class _BrokenPipe(io.StringIO):
    def write(self, text):
        raise BrokenPipeError

    flush = write


def _closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [_closed, _BrokenPipe, lambda: None])
def test_a_finished_run_returns_its_result_whatever_stderr_is(store, monkeypatch, stream):
    job = durable(lambda: step("a", abs, -7), goal_id="g", store=store)
    assert job() == 7
    monkeypatch.setattr(sys, "stderr", stream())
    assert job() == 7


# --- what has failed ---------------------------------------------------------------------------------------------------------


def test_a_disk_that_fails_is_told_with_run_and_step(monkeypatch):
    store = MemoryStore()

    def full(self, handle, data, offset):
        raise OSError(28, "No space left on device")

    def fill():
        monkeypatch.setattr(MemoryFs, "pwrite", full)

    @durable(goal_id="g", store=store)
    def job():
        step("before", int)
        step("upload", fill)

    with pytest.raises(LogPoisoned) as caught:
        job()
    monkeypatch.undo()
    for part in ("'upload'", job.runs.show().id, "No space left"):
        assert part in str(caught.value)


def test_a_record_that_is_too_large_names_run_and_step_and_that_it_was_called(store, monkeypatch):
    job = durable(lambda: step("dump", bytes, 5000), goal_id="g", store=store)
    monkeypatch.setattr(run, "LARGEST_BODY", 4000)
    with pytest.raises(RecordTooLarge) as caught:
        job()
    for part in ("'dump'", job.runs.show().id, "has already happened"):
        assert part in str(caught.value)


def test_a_run_that_is_removed_while_it_is_driven_does_not_end_as_if_nothing_were(tmp_path):
    for remove in (shutil.rmtree, lambda path: os.rename(path, f"{path}-moved")):
        store = DirectoryStore(tmp_path / "s")

        @durable(goal_id="g", store=store)
        def job(remove=remove):
            step("a", int)
            remove(tmp_path / "s")
            step("b", int)

        with pytest.raises(LogError, match="removed or renamed"):
            job()
        assert job.runs.list() == []


# --- a run inside itself -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_locked", ["raise", "wait"])
def test_a_run_inside_itself_by_another_path_is_refused_and_does_not_wait(tmp_path, on_locked):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    @durable(goal_id="g", store=tmp_path / "link", on_locked=on_locked)
    def inner():
        return 1

    @durable(goal_id="g", store=tmp_path / "real")
    def outer():
        return inner()

    with pytest.raises(LogLocked, match="inside itself"):
        outer()
