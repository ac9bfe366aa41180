"""Failures are part of history where the run survived them, and are tried again where they ended it."""

from __future__ import annotations

import asyncio

import pytest

from letitloop import (
    Halt,
    LogPoisoned,
    MemoryStore,
    RecordedError,
    StepChanged,
    UnknownOutcome,
    async_step,
    atomic_marker,
    durable,
    scope,
    step,
)
from letitloop.store.directory import DirectoryStore
from letitloop.testing import Fault, FaultFs
from letitloop.wal.files import OsFs
from tests.runs.helpers import Crash, crash, crashes


class Declined(Exception):
    def __init__(self, code, *, hint):
        super().__init__(f"declined: {code}")
        self.code = code
        self.hint = hint


class Opaque(Exception):
    def __str__(self):
        return f"opaque {self.handle is not None}"

    def __init__(self):
        super().__init__("x")
        self.handle = object()


@pytest.fixture
def store():
    return MemoryStore()


class Flaky:
    """Fails so many times, then works."""

    def __init__(self, failures, error=lambda: ValueError("flaky")):
        self.failures = failures
        self.error = error
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error()
        return f"call {self.calls}"


# --- survived and fatal ------------------------------------------------------------------------------------------------------


def test_a_failure_that_the_run_survived_is_raised_again_and_not_tried_again(store):
    flaky = Flaky(1)

    @durable(store=store, goal_id="g")
    def job(die=None):
        try:
            value = step("try", flaky)
        except ValueError as exc:
            value = step("fallback", str, f"instead of {exc}")
        if dying:
            crash()
        return value

    dying = True
    crashes(job)
    crashes(job)
    dying = False
    assert job() == "instead of flaky"
    assert flaky.calls == 1


@pytest.mark.parametrize("where", ["scope inside", "second scope", "marker"])
def test_a_failure_is_survived_whatever_came_after_it(store, where):
    flaky = Flaky(1)

    @durable(store=store, goal_id="g")
    def job():
        try:
            value = step("try", flaky)
        except ValueError:
            if where == "marker":
                with atomic_marker("fallback") as should:
                    if should:
                        should.record("fb")
                    value = should.result
            else:
                with scope("one"), scope("two"):
                    value = step("fallback", str, "fb")
        if dying:
            crash()
        return value

    dying = True
    crashes(job)
    dying = False
    assert job() == "fb"
    assert flaky.calls == 1


def test_a_failure_in_a_scope_is_survived_when_the_scope_around_it_went_on(store):
    flaky = Flaky(1)

    @durable(store=store, goal_id="g")
    def job():
        try:
            with scope("branch"):
                value = step("try", flaky)
        except ValueError:
            value = "fb"
        step("after", int, 1)
        if dying:
            crash()
        return value

    dying = True
    crashes(job)
    dying = False
    assert job() == "fb"
    assert flaky.calls == 1


def test_work_in_another_branch_does_not_make_a_failure_survived(store):
    flaky = Flaky(1)

    @durable(store=store, goal_id="g")
    def job():
        with scope("left"):
            try:
                left = step("try", flaky)
            except ValueError:
                left = None
        with scope("right"):
            step("work", int, 1)
        if dying:
            crash()
        return left

    dying = True
    crashes(job)
    dying = False
    assert job() in (None, "call 2")  # either is right; there is no third answer
    assert flaky.calls <= 2


def test_a_failure_that_ended_the_run_is_tried_again(store):
    flaky, done = Flaky(2), []

    @durable(store=store, goal_id="g")
    def job():
        step("before", done.append, 1)
        return step("try", flaky)

    for _ in range(2):
        with pytest.raises(ValueError, match="flaky"):
            job()
    assert job.runs.show().status == "failed"
    assert "flaky" in job.runs.show().error
    assert job() == "call 3"
    assert done == [1]
    assert job.runs.show().status == "finished"


def test_a_failure_that_ended_the_run_is_tried_again_also_if_its_handler_did_steps(store):
    flaky, cleaned = Flaky(1), []

    @durable(store=store, goal_id="g")
    def job():
        try:
            return step("try", flaky)
        except ValueError:
            step("clean up", cleaned.append, 1)
            raise

    with pytest.raises(ValueError, match="flaky"):
        job()
    assert job() == "call 2"
    assert cleaned == [1]


def test_a_failure_that_ended_the_run_wrapped_in_another_is_tried_again(store):
    flaky = Flaky(1)

    @durable(store=store, goal_id="g")
    def job():
        try:
            return step("try", flaky)
        except ValueError as exc:
            step("clean up", int, 1)
            raise RuntimeError("job failed") from exc

    with pytest.raises(RuntimeError):
        job()
    assert job() == "call 2"


def test_a_failure_that_ended_a_run_and_was_then_survived_is_history(store):
    flaky = Flaky(2)

    @durable(store=store, goal_id="g")
    def job():
        try:
            step("try", flaky)
        except ValueError:
            if mode == "raise":
                raise
        step("after", int, 1)
        crash()

    mode = "raise"
    with pytest.raises(ValueError, match="flaky"):
        job()
    mode = "survive"
    crashes(job)
    crashes(job)
    assert flaky.calls == 2


def test_a_failure_with_nothing_after_it_is_tried_again(store):
    flaky = Flaky(1)

    @durable(store=store, goal_id="g")
    def job():
        try:
            value = step("try", flaky)
        except ValueError:
            crash()
        return value

    crashes(job)
    assert job() == "call 2"


async def test_a_failure_in_a_gather_is_tried_again_though_a_sibling_finished_later(store):
    calls = []

    @durable(store=store, goal_id="g")
    async def job():
        failed = asyncio.Event()

        async def bad():
            calls.append("bad")
            if calls.count("bad") == 1:
                failed.set()
                raise ValueError("bad")
            return "good"

        async def slow():
            calls.append("slow")
            await failed.wait()
            return "slow"

        async def long():
            result = await async_step("slow", slow)
            await async_step("and more", slow)
            return result

        pending = [asyncio.ensure_future(async_step("bad", bad)), asyncio.ensure_future(long())]
        await asyncio.wait(pending)
        return [task.result() for task in pending]

    with pytest.raises(ValueError, match="bad"):
        await job()
    assert await job() == ["good", "slow"]
    assert calls == ["bad", "slow", "slow", "bad"]


async def test_a_failure_in_a_task_group_is_tried_again(store):
    if not hasattr(asyncio, "TaskGroup"):
        pytest.skip("asyncio.TaskGroup came with 3.11")
    calls = []

    async def work(n):
        calls.append(n)
        if n == 2 and calls.count(2) == 1:
            raise ValueError("two")
        return n

    @durable(store=store, goal_id="g")
    async def job():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(async_step(f"work-{n}", work, n)) for n in range(4)]
        return [task.result() for task in tasks]

    with pytest.raises(BaseException, match="unhandled errors") as caught:
        await job()
    assert [str(exc) for exc in caught.value.exceptions] == ["two"]
    assert await job() == [0, 1, 2, 3]
    assert calls.count(2) == 2


# --- exceptions come back ----------------------------------------------------------------------------------------------------


def _survive(store, error):
    """Return the exception as it was first caught, and as it is raised from the log."""
    seen, calls = [], []

    def fail():
        calls.append(1)
        raise error

    @durable(store=store, goal_id="g", on_complete="restart")
    def job():
        try:
            step("try", fail)
        except Exception as exc:
            seen.append(exc)
        step("after", int, 1)
        crash()

    crashes(job)
    crashes(job)
    assert calls == [1]
    return seen


@pytest.mark.parametrize(
    "error",
    [
        ValueError("text", 1, (2,)),
        KeyError("k"),
        FileNotFoundError(2, "No such file", "/x"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        StopIteration(5),
        StopAsyncIteration(),
        AssertionError(),
        Declined(51, hint={"a": [1]}),
        TimeoutError("slow"),
        asyncio.TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failure_comes_back_as_the_same_class_with_the_same_contents(store, error):
    first, again = _survive(store, error)
    assert first is error
    assert type(again) is type(error)
    assert again is not error
    assert again.args == error.args
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    if isinstance(error, OSError):
        assert (again.errno, again.filename) == (error.errno, error.filename)


def test_a_failure_that_cannot_be_rebuilt_comes_back_as_recorded_error(store):
    class Local(Exception):
        pass

    for error, name in ((Local("gone"), "Local"), (Opaque(), "Opaque")):
        _, again = _survive(MemoryStore(), error)
        assert type(again) is RecordedError
        assert name in again.type_name
        assert again.text == str(error)
        assert "'try'" in str(again)
        assert str(error) in str(again)
        assert "raise error" in again.recorded_traceback


def test_rebuilding_runs_none_of_the_class_s_code(store):
    ran = []

    class Loud(Exception):
        def __new__(cls, *args, **kwargs):
            ran.append("new")
            return super().__new__(cls, *args, **kwargs)

        def __init__(self, text):
            ran.append("init")
            super().__init__(text)

        def __setstate__(self, state):
            ran.append("setstate")

    global LoudModuleClass
    Loud.__qualname__ = "LoudModuleClass"
    LoudModuleClass = Loud
    error = Loud("x")
    ran.clear()
    _, again = _survive(store, error)
    assert type(again) is Loud
    assert ran == []


async def test_stop_iteration_out_of_an_async_step_is_not_swallowed(store):
    def fail():
        raise StopIteration(7)

    @durable(store=store)
    async def job():
        try:
            await async_step("try", fail)
        except (StopIteration, RuntimeError) as exc:
            return type(exc).__name__
        return "nothing raised"

    assert await job() in ("StopIteration", "RuntimeError")


# --- what is no failure ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, Crash])
def test_an_interrupt_inside_a_step_is_no_failure_and_the_step_runs_again(store, error):
    calls, before = [], []

    def work():
        calls.append(1)
        if len(calls) == 1:
            raise error
        return "done"

    @durable(store=store, goal_id="g")
    def job():
        step("before", before.append, 1)
        return step("work", work)

    with pytest.raises(error):
        job()
    assert [record.status for record in job.runs.show().steps] == ["ok"]
    assert job() == "done"
    assert before == [1]


async def test_cancellation_inside_a_step_is_no_failure_and_the_step_runs_again(store):
    calls, before = [], []
    begun = asyncio.Event()

    async def work():
        calls.append(1)
        begun.set()
        if len(calls) == 1:
            await asyncio.Event().wait()
        return "done"

    @durable(store=store, goal_id="g")
    async def job():
        await async_step("before", before.append, 1)
        return await async_step("work", work)

    task = asyncio.create_task(job())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert job.runs.show().status == "interrupted"
    assert await job() == "done"
    assert before == [1]


# --- halts reach the caller --------------------------------------------------------------------------------------------------


def _swallow_all(act):
    try:
        act()
    except BaseException:
        return "swallowed"
    return "acted"


def _swallow_and_raise(act):
    try:
        act()
    except BaseException:
        raise RuntimeError("tool failed") from None


HANDLERS = pytest.mark.parametrize("handler", [_swallow_all, _swallow_and_raise], ids=["swallowed", "turned into an error"])


@HANDLERS
def test_a_changed_step_reaches_the_caller_whatever_catches_it(store, handler):
    @durable(store=store, goal_id="g")
    def job():
        answer = handler(lambda: step("s", int, value))
        if dying:
            crash()
        return answer

    value, dying = 1, True
    crashes(job)
    value, dying = 2, False
    with pytest.raises(StepChanged):
        job()
    value = 1
    assert handler is _swallow_and_raise or job() == "acted"


@HANDLERS
def test_an_unknown_outcome_reaches_the_caller_whatever_catches_it(store, handler):
    def act():
        with atomic_marker("pay", on_uncertain="halt"):
            if dying:
                crash()

    @durable(store=store, goal_id="g")
    def job():
        if dying:
            return act()
        return handler(act)

    dying = True
    crashes(job)
    dying = False
    for _ in range(2):
        with pytest.raises(UnknownOutcome):
            job()


@HANDLERS
def test_a_failed_disk_reaches_the_caller_whatever_catches_it(tmp_path, handler):
    fs = FaultFs(OsFs())
    calls = []

    @durable(store=DirectoryStore(tmp_path, fs=fs), goal_id="g")
    def job():
        step("first", calls.append, 1)
        if failing:
            fs.add(Fault("sync", times=1))
        handler(lambda: step("second", calls.append, 2))
        return handler(lambda: step("third", calls.append, 3))

    failing = True
    with pytest.raises(LogPoisoned):
        job()
    assert 3 not in calls
    failing = False
    fs.clear()
    calls_before = calls.count(1)
    if handler is _swallow_all:
        assert job() == "acted"
        assert calls.count(1) == calls_before == 1


def test_the_halt_stands_when_another_thread_met_it(store):
    import threading

    from letitloop import carry

    @durable(store=store, goal_id="g")
    def job():
        thread = threading.Thread(target=carry(lambda: _swallow_all(lambda: step("s", int, value))))
        thread.start()
        thread.join()
        if dying:
            crash()
        return "done"

    value, dying = 1, True
    crashes(job)
    value, dying = 2, False
    with pytest.raises(StepChanged):
        job()


def test_a_halt_is_no_exception():
    assert not issubclass(Halt, Exception)
    for kind in (StepChanged, UnknownOutcome, LogPoisoned):
        assert issubclass(kind, Halt)
