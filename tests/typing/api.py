"""The types of the public API, stated. This file is never run: mypy and pyright check it (``nox -s types``).

A line that ends in ``type: ignore`` states that the call is refused; both checkers tell if it is not.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from typing_extensions import assert_type

from letitloop import Retry, async_step, atomic_marker, carry, current_run, durable, durable_async, register, scope, step


class User:
    name: str = ""


def fetch(user_id: int, *, fresh: bool = False) -> User:
    return User()


async def afetch(user_id: int) -> User:
    return User()


# --- durable: bare, with options, sync and async


@durable
def bare(n: int, *, word: str = "") -> str:
    return word * n


@durable()
def called(n: int) -> str:
    return str(n)


@durable(
    goal_id="customer_sync",
    store=None,
    on_change="raise",
    on_complete=None,
    on_locked="raise",
    sync="power",
    codecs=None,
    seal_key=None,
)
def options(n: int) -> str:
    return str(n)


def goal(n: int) -> str:
    return f"goal-{n}"


@durable(goal_id=goal, on_change="rerun", on_complete="restart", sync="process")
def callable_goal(n: int) -> str:
    return str(n)


@durable
async def abare(n: int) -> str:
    return str(n)


@durable_async(goal_id="async")
async def aoptions(n: int) -> str:
    return str(n)


def durable_keeps_the_signature() -> None:
    assert_type(bare(1, word="x"), str)
    assert_type(called(1), str)
    assert_type(options(1), str)
    assert_type(callable_goal(1), str)
    assert_type(bare.__wrapped__(1, word="x"), str)
    keeps: Callable[[int], str] = options
    keeps(1)
    bare("1")  # type: ignore[arg-type]
    bare(1, word=2)  # type: ignore[arg-type]
    options()  # type: ignore[call-arg]
    durable(on_change="perhaps")  # type: ignore[call-overload]
    durable(bogus=1)  # type: ignore[call-overload]


async def durable_async_keeps_the_signature() -> None:
    assert_type(await abare(1), str)
    assert_type(await aoptions(1), str)
    awaitable: Callable[[int], Awaitable[str]] = abare
    await awaitable(1)
    await abare("1")  # type: ignore[arg-type]


def durable_functions_know_their_runs() -> None:
    for run in bare.runs:
        print(run)
    abare.runs.forget(1)
    bare.runs.forget(1, word="x")


# --- step: call form and decorator form


def steps() -> None:
    assert_type(step("fetch", fetch, 1), User)
    assert_type(step("fetch", fetch, user_id=1, fresh=True), User)
    assert_type(step("fetch", retry=Retry(attempts=5, backoff=1.0), key=None)(fetch)(1), User)
    assert_type(step("fetch", key="stable")(fetch)(1, fresh=True), User)
    assert_type(step("lambda", lambda: 1), int)

    @step("decorated")
    def decorated(n: int) -> bytes:
        return bytes(n)

    assert_type(decorated(1), bytes)
    decorated("1")  # type: ignore[arg-type]
    step("fetch", fetch, "1")  # type: ignore[call-overload]
    step("fetch", fetch, user_id=1, bogus=2)  # type: ignore[call-overload]
    step(1, fetch, 1)  # type: ignore[call-overload]


async def async_steps() -> None:
    assert_type(await step("fetch", afetch, 1), User)
    assert_type(await async_step("fetch", afetch, 1), User)
    assert_type(await async_step("plain", fetch, user_id=1), User)
    assert_type(await step("fetch", timeout=2.5)(afetch)(1), User)
    pending: Coroutine[Any, Any, User] = async_step("fetch", afetch, 1)
    await pending
    first, second = await asyncio.gather(step("a", afetch, 1), async_step("b", fetch, 2))
    assert_type(first, User)
    assert_type(second, User)

    @async_step("decorated")
    async def decorated(n: int) -> bytes:
        return bytes(n)

    assert_type(await decorated(1), bytes)
    await async_step("fetch", afetch, "1")  # type: ignore[call-overload]


# --- scopes, markers, threads


def scopes_and_markers() -> None:
    with scope("branch-1"):
        step("fetch", fetch, 1)
    with atomic_marker("slack_notification") as should_execute:
        if should_execute:
            should_execute.record({"sent": True})
        assert_type(should_execute.uncertain, bool)
        assert_type(should_execute.idempotency_key, str)
        print(should_execute.result)
    with atomic_marker("careful", on_uncertain="halt"):
        pass


async def async_scopes_and_markers() -> None:
    async with scope("branch-1"):
        await async_step("fetch", afetch, 1)
    async with atomic_marker("slack_notification") as should_execute:
        if should_execute:
            should_execute.record(None)


def threads() -> None:
    assert_type(carry(fetch)(1, fresh=True), User)
    with ThreadPoolExecutor() as pool:
        assert_type(pool.submit(carry(fetch), 1).result(), User)
    carry(fetch)("1")  # type: ignore[arg-type]


def the_current_run() -> None:
    run = current_run()
    if run is not None:
        print(run)


# --- classes of one's own


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


register(Money, encode=lambda money: money.cents, decode=lambda cents: Money(cents), name="money", version=1)
register(User, migrate=None)
