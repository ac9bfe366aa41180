"""What cannot be a run or a step is refused by name, before anything is called."""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from letitloop import (
    AsyncMisuse,
    GeneratorFunction,
    InvalidArgument,
    MemoryStore,
    Retry,
    StepOutsideRun,
    UnencodableError,
    async_step,
    atomic_marker,
    carry,
    current_run,
    durable,
    durable_async,
    scope,
    step,
)
from tests.runs.helpers import crash, crashes


@pytest.fixture
def store():
    return MemoryStore()


async def an_async_function(value=1):
    return value


# --- outside any run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda called: step("s", called.append, 1),
        lambda called: step("s")(called.append)(1),
        lambda called: async_step("s", called.append, 1),
        lambda called: scope("s"),
        lambda called: current_run(),
        lambda called: atomic_marker("s"),
    ],
    ids=["step", "decorated", "async_step", "scope", "current_run", "marker"],
)
def test_outside_a_run_nothing_runs_unrecorded(use):
    called = []
    with pytest.raises(StepOutsideRun) as caught:
        use(called)
    assert called == []
    assert "@durable" in str(caught.value)


def test_the_refusal_names_the_ways_out():
    with pytest.raises(StepOutsideRun) as caught:
        step("fetch", int)
    for way in ("'fetch'", "letitloop.carry", "__wrapped__", "testing.plain()"):
        assert way in str(caught.value)


def test_a_thread_without_context_is_refused_and_one_with_it_works(store):
    called, refused = [], []

    @durable(store=store)
    def job():
        def bare():
            for use in (lambda: step("s", called.append, 1), lambda: scope("x"), lambda: atomic_marker("m"), current_run):
                try:
                    use()
                except StepOutsideRun as exc:
                    refused.append(exc)

        thread = threading.Thread(target=bare)
        thread.start()
        thread.join()
        thread = threading.Thread(target=carry(lambda: step("s", called.append, 2)))
        thread.start()
        thread.join()

    job()
    assert len(refused) == 4
    assert called == [2]


def test_a_step_after_the_run_has_ended_is_refused(store):
    kept, called = [], []

    @durable(store=store)
    def job():
        kept.append(carry(lambda: step("late", called.append, 1)))
        kept.append(carry(lambda: scope("late")))

    job()
    for late in kept:
        with pytest.raises(StepOutsideRun, match="ended"):
            late()
    assert called == []


async def test_a_task_that_outlives_its_run_is_refused(store):
    gate, called = asyncio.Event(), []
    tasks = []

    async def late():
        await gate.wait()
        return await async_step("late", an_async_function)

    @durable(store=store)
    async def job():
        tasks.append(asyncio.create_task(late()))
        await asyncio.sleep(0)

    await job()
    gate.set()
    with pytest.raises(StepOutsideRun, match="ended"):
        await tasks[0]
    assert called == []


# --- async and sync ----------------------------------------------------------------------------------------------------------


def test_an_async_function_in_sync_code_is_named_and_not_called(store):
    called = []

    async def fetch():
        called.append(1)

    @durable(store=store)
    def job():
        return step("fetch", fetch)

    with pytest.raises(AsyncMisuse, match=r"fetch.*async"):
        job()
    assert called == []


def test_async_step_in_sync_code_is_named_and_not_called(store):
    called = []

    @durable(store=store)
    def job():
        return async_step("fetch", called.append, 1)

    with pytest.raises(AsyncMisuse, match="fetch"):
        job()
    assert called == []


def test_a_coroutine_given_for_a_function_is_named(store):
    @durable(store=store)
    async def job():
        return await step("fetch", an_async_function())

    with pytest.raises(AsyncMisuse, match=r"step\('fetch', fn, x\)"):
        asyncio.run(job())


def test_a_plain_function_that_returns_an_awaitable_is_named(store):
    @durable(store=store)
    async def job():
        return step("fetch", lambda: an_async_function())

    with pytest.raises(AsyncMisuse, match=r"fetch.*awaitable"):
        asyncio.run(job())

    @durable(store=store)
    async def job2():
        return await async_step("fetch", lambda: an_async_function())

    with pytest.raises(AsyncMisuse, match=r"fetch.*awaitable"):
        asyncio.run(job2())


def test_an_async_function_that_returns_an_awaitable_is_named(store):
    async def nested():
        return an_async_function()

    @durable(store=store)
    async def job():
        return await step("fetch", nested)

    with pytest.raises(AsyncMisuse, match=r"fetch.*awaitable"):
        asyncio.run(job())


def test_the_thin_names_are_the_same_thing():
    assert durable_async is durable


# --- generators, callables, options ------------------------------------------------------------------------------------------


def _generator():
    yield 1


async def _async_generator():
    yield 1


class _GeneratorObject:
    def __call__(self):
        yield 1


@pytest.mark.parametrize(
    "fn",
    [_generator, _async_generator, functools.partial(_generator), _GeneratorObject()],
    ids=["sync", "async", "partial", "object"],
)
def test_a_generator_function_is_neither_run_nor_step(store, fn):
    with pytest.raises(GeneratorFunction):
        durable(fn)

    @durable(store=store)
    def job():
        step("items", fn)

    with pytest.raises(GeneratorFunction):
        job()
    with pytest.raises(GeneratorFunction):
        step("items")(fn)


@pytest.mark.parametrize("thing", [None, 1, "text"])
def test_what_cannot_be_called_is_refused(store, thing):
    if thing is not None:
        with pytest.raises(InvalidArgument):
            durable(thing)

        @durable(store=store)
        def job():
            step("s", thing)

        with pytest.raises(InvalidArgument, match="cannot be called"):
            job()


@pytest.mark.parametrize(
    "options",
    [
        {"on_change": "ignore"},
        {"on_complete": "maybe"},
        {"on_locked": "steal"},
        {"sync": "fast"},
        {"goal_id": ""},
        {"goal_id": 5},
        {"on_change": None},
    ],
)
def test_an_option_that_means_nothing_is_refused_when_decorating(options):
    (name,) = options
    with pytest.raises(InvalidArgument, match=name):
        durable(**options)(lambda: None)


def test_options_of_the_decorator_form_are_checked(store):
    with pytest.raises(InvalidArgument, match="user_id"):
        step("fetch", user_id=1)
    with pytest.raises(InvalidArgument, match="timeout"):
        step("fetch", timeout=1.0)(int)
    for wrong in ({"attempts": 0}, {"backoff": -1}, {"factor": 0.5}, {"jitter": 2}, {"max_backoff": -1}):
        with pytest.raises(InvalidArgument):
            Retry(**wrong)


def test_in_the_call_form_every_option_belongs_to_the_function(store):
    def fetch(**given):
        return given

    given = {"retry": 1, "key": 2, "timeout": 3, "user_id": 123, "name": "n", "fn": "f"}

    @durable(store=store)
    def job():
        return step("fetch", fetch, **given)

    assert job() == given


# --- names -------------------------------------------------------------------------------------------------------------------

NAMES = ["a/b", "a#2", "a>b", "100%", "%2F", "ä 中 🎉", "../../evil", "x" * 512, " ", "a\nb", "a\0b", "#", "/", "a"]


def test_any_text_up_to_512_characters_names_a_step_and_none_is_taken_for_another(store):
    calls = []

    @durable(store=store)
    def job(die):
        found = []
        for name in NAMES:
            found.append(step(name, lambda name=name: calls.append(name) or name))
            with scope(name):
                found.append(step(name, lambda name=name: calls.append(name) or name * 2))
        if die:
            crash()
        return found

    crashes(job, True)
    crashes(job, True)
    assert len(calls) == 2 * len(NAMES)  # the second drive replayed every one
    assert job(False) == [value for name in NAMES for value in (name, name * 2)]
    keys = [record.key for record in job.runs.show(False).steps]
    assert len(set(keys)) == 2 * len(NAMES)


@pytest.mark.parametrize("name", ["", "x" * 513, "x" * 600, None, 1, b"bytes", ["list"]])
def test_what_is_no_name_is_refused_before_the_call(store, name):
    called = []

    @durable(store=store)
    def job(how):
        if how == "step":
            step(name, called.append, 1)
        elif how == "decorated":
            step(name)(called.append)(1)
        elif how == "scope":
            scope(name)
        else:
            atomic_marker(name)

    for how in ("step", "decorated", "scope", "marker"):
        with pytest.raises(InvalidArgument, match="name"):
            job(how)
    assert called == []


def test_a_name_that_utf8_cannot_hold_is_refused_or_works(store):
    @durable(store=store)
    def job():
        return step("\ud800", threading.Lock)

    with pytest.raises((InvalidArgument, UnencodableError)):
        job()


def test_scopes_too_deep_to_be_recorded_are_refused_before_the_call(store):
    called = []

    @durable(store=store)
    def job():
        def down(level):
            if level == 0:
                return step("s", called.append, 1)
            with scope("x" * 512):
                return down(level - 1)

        down(140)

    with pytest.raises(Exception, match=r"65,535|too long|too deep"):
        job()
    assert called == []


# --- results that cannot be recorded -----------------------------------------------------------------------------------------


def test_an_unencodable_result_names_its_path_and_says_that_the_call_happened(store):
    called = []

    def fetch():
        called.append(1)
        return {"user": [1, threading.Lock()]}

    @durable(store=store)
    def job():
        return step("fetch", fetch)

    with pytest.raises(UnencodableError) as caught:
        job()
    assert called == [1]
    assert caught.value.path == "result['user'][1]"
    assert "lock" in caught.value.type_name
    for part in ("'fetch'", "result['user'][1]", "already happened", job.runs.show().id):
        assert part in str(caught.value)


async def test_an_unencodable_result_of_an_async_step_is_named_too(store):
    async def fetch():
        return {1: threading.Lock()}

    @durable(store=store)
    async def job():
        return await step("fetch", fetch)

    with pytest.raises(UnencodableError, match=r"result\[1\].*already"):
        await job()


def test_an_unencodable_result_of_the_run_is_named_and_its_steps_stay(store):
    called = []

    @durable(store=store, goal_id="g")
    def job(bad):
        step("s", called.append, 1)
        return threading.Lock() if bad else 5

    for _ in range(2):
        with pytest.raises(UnencodableError, match="result"):
            job(bad=True)
    assert called == [1]
    assert job.runs.show(bad=True).status != "finished"


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, (), b"", float("inf"), -0.0, 2**70, {"a": None, 1: (2, {3})}])
def test_any_value_is_a_result_also_one_that_is_false(store, value):
    calls = []

    @durable(store=store, goal_id="g")
    def job(die):
        got = [step("s", lambda: calls.append(1) or value)]
        if die:
            crash()
        return got

    crashes(job, True)
    crashes(job, True)
    assert calls == [1]
    got = job(False)
    assert got == [value]
    assert job(False) == [value]
    assert type(job(False)[0]) is type(value)


def test_a_deep_value_is_recorded_and_a_bottomless_one_refused(store):
    def nested(depth):
        value = 1
        for _ in range(depth):
            value = [value]
        return value

    @durable(store=store, goal_id="g")
    def job(depth):
        return step("s", nested, depth)

    assert job(300) == nested(300)
    assert job(300) == nested(300)
    for depth in (100_000,):
        with pytest.raises(UnencodableError):
            job(depth)

    def cycle():
        value = []
        value.append(value)
        return value

    @durable(store=store)
    def cyclic():
        return step("s", cycle)

    with pytest.raises(UnencodableError):
        cyclic()


def test_a_pool_of_threads_without_context_is_refused_in_each_thread(store):
    called = []

    @durable(store=store)
    def job():
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(step, "s", called.append, n) for n in range(8)]
        return [type(future.exception()).__name__ for future in futures]

    assert job() == ["StepOutsideRun"] * 8
    assert called == []
