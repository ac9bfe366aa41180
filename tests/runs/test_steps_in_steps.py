"""What is done inside a call belongs to that call: threads and tasks that come in another order after a crash change nothing."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from letitloop import MemoryStore, Retry, async_step, carry, current_run, durable, scope, step
from tests.runs.helpers import Crash, crash, crashes

pytestmark = pytest.mark.timeout(30)


class Stopped(BaseException):
    """Ends an outer call before its result is recorded, as a crash does."""


@pytest.fixture
def store():
    return MemoryStore()


def in_threads(work, items):
    """Call ``work`` for each item, on a thread each, in this order."""
    for item in items:
        thread = threading.Thread(target=carry(work), args=(item,))
        thread.start()
        thread.join()


def _alone(make, doc, store):
    return step("token", make)


def _with_an_equal_argument(make, doc, store):
    return step("token", lambda size: make(), 7)


def _with_an_argument_of_its_own(make, doc, store):
    return step("token", lambda doc: make(), doc)


def _decorated(make, doc, store):
    return step("token", retry=Retry(2, backoff=0))(make)()


def _in_a_scope(make, doc, store):
    with scope("s"):
        return step("token", make)


def _in_a_step(make, doc, store):
    return step("middle", lambda: step("token", make))


def _in_a_run(make, doc, store):
    return durable(lambda: step("token", make), store=store)()


INSIDES = [_alone, _with_an_equal_argument, _with_an_argument_of_its_own, _decorated, _in_a_scope, _in_a_step, _in_a_run]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
@pytest.mark.parametrize("inside", INSIDES)
def test_threads_in_another_order_find_what_was_made_for_their_own_call(store, inside, order):
    made = []

    def process(doc):
        made_before = len(made)
        token = inside(lambda: made.append(doc) or f"{doc}'s", doc, store)
        assert len(made) - made_before <= 1
        if dying:
            raise Stopped
        return token

    @durable(store=store)
    def job():
        tokens = {}

        def work(doc):
            try:
                tokens[doc] = step("process", process, doc)
            except Stopped:
                pass

        in_threads(work, [docs[i] for i in order] if not dying else docs)
        if dying:
            crash()
        return tokens

    docs = ["ada", "bob", "cyd"]
    dying = True
    crashes(job)
    dying = False
    assert job() == {doc: f"{doc}'s" for doc in docs}
    assert made == docs


@pytest.mark.parametrize("inside", INSIDES)
async def test_tasks_in_another_order_find_what_was_made_for_their_own_call(store, inside):
    made = []

    async def process(doc):
        token = inside(lambda: made.append(doc) or f"{doc}'s", doc, store)
        await asyncio.sleep(0)
        if dying:
            raise Stopped
        return token

    @durable(store=store)
    async def job():
        async def work(doc):
            try:
                return await async_step("process", process, doc)
            except Stopped:
                return None

        docs = ["ada", "bob", "cyd"]
        results = await asyncio.gather(*(work(doc) for doc in (docs if dying else docs[::-1])))
        if dying:
            crash()
        return results

    dying = True
    with pytest.raises(Crash):
        await job()
    dying = False
    assert await job() == ["cyd's", "bob's", "ada's"]
    assert made == ["ada", "bob", "cyd"]


def test_equal_calls_share_what_was_made_inside_them_each_once(store):
    made = []

    def process(doc):
        token = step("token", lambda: made.append(doc) or len(made))
        if dying:
            raise Stopped
        return token

    @durable(store=store)
    def job():
        tokens = []

        def work(doc):
            try:
                tokens.append((doc, step("process", process, doc)))
            except Stopped:
                pass

        in_threads(work, ["a", "a", "b", "a"] if dying else ["b", "a", "a", "a"])
        if dying:
            crash()
        return sorted(tokens)

    dying = True
    crashes(job)
    dying = False
    assert job() == [("a", 1), ("a", 2), ("a", 4), ("b", 3)]
    assert len(made) == 4


@pytest.mark.parametrize("seed", range(3))
def test_a_pool_in_any_order_never_hands_out_another_call_s_inside(store, seed):
    made = []
    together = threading.Barrier(24)

    def process(doc):
        if dying:
            together.wait(20)  # in flight together: which of them comes first is nobody's promise
        token = step("token", lambda: made.append(doc) or f"{doc}'s")
        again = step("token", lambda: made.append(doc) or f"{doc}'s second")
        if dying and doc % 3:
            raise Stopped
        return token, again

    @durable(store=store, sync="process")
    def job():
        def work(doc):
            try:
                return doc, step("process", process, doc)
            except Stopped:
                return None

        docs = list(range(24))
        random.Random(f"{seed} {dying}").shuffle(docs)
        with ThreadPoolExecutor(24) as pool:
            results = list(pool.map(carry(work), docs))
        if dying:
            crash()
        return sorted(results)

    dying = True
    crashes(job)
    dying = False
    assert job() == [(doc, (f"{doc}'s", f"{doc}'s second")) for doc in range(24)]
    assert len(made) == 48


# --- durable functions inside a run ------------------------------------------------------------------------------------------


def test_runs_inside_a_run_that_threads_reach_in_another_order_are_not_done_again(store):
    calls = []

    @durable(store=store)
    def inner(doc, flag=False):
        return step("work", lambda: calls.append(doc) or doc.upper())

    @durable(store=store)
    def outer():
        results = {}
        docs = ["a", "b", "c", "b"]
        in_threads(lambda doc: results.setdefault(doc, []).append(inner(doc)), docs if dying else docs[::-1])
        if dying:
            crash()
        return results

    dying = True
    crashes(outer)
    dying = False
    assert outer() == {"c": ["C"], "b": ["B", "B"], "a": ["A"]}
    assert sorted(calls) == ["a", "b", "b", "c"]
    assert len(store.names("runs")) == 5, "no orphans"


async def test_runs_inside_a_run_that_tasks_reach_in_another_order_are_not_done_again(store):
    calls = []

    @durable(store=store)
    async def inner(doc):
        return await async_step("work", lambda: calls.append(doc) or doc.upper())

    @durable(store=store)
    async def outer():
        docs = ["a", "b", "c"]
        results = await asyncio.gather(*(inner(doc) for doc in (docs if dying else docs[::-1])))
        if dying:
            crash()
        return results

    dying = True
    with pytest.raises(Crash):
        await outer()
    dying = False
    assert await outer() == ["C", "B", "A"]
    assert sorted(calls) == ["a", "b", "c"]
    assert len(store.names("runs")) == 4, "no orphans"


def test_a_run_inside_a_run_may_have_a_very_long_name(store):
    def small():
        return 5

    small.__qualname__ = "outer.<locals>." * 100 + "small"

    @durable(store=store)
    def outer():
        return durable(small, store=store)()

    assert outer() == 5


# --- memory ------------------------------------------------------------------------------------------------------------------


def test_what_a_step_did_inside_is_forgotten_when_it_has_ended(store):
    held = []

    def process(i):
        for _ in range(3):
            step("big", bytes, 1000)
        with scope("s"):
            step("deep", lambda: step("deeper", bytes, 1000))
        return i

    @durable(store=store, sync="process")
    def job():
        for i in range(20):
            step("process", process, i)
            step("again", retry=Retry(2, backoff=0))(process)(i)
            held.append(len(current_run()._live))
        if dying:
            crash()

    dying = True
    crashes(job)
    dying = False
    job()
    assert held == [0] * 40


async def test_what_an_async_step_did_inside_is_forgotten_when_it_has_ended(store):
    async def process(i):
        await asyncio.gather(*(async_step("big", bytes, 1000) for _ in range(3)))
        return i

    @durable(store=store, sync="process")
    async def job():
        await asyncio.gather(*(async_step("process", process, i) for i in range(20)))
        return len(current_run()._live)

    assert await job() == 0
