"""The types of the public API, stated. This file is never run: mypy and pyright check it (``nox -s types``).

A line that ends in ``type: ignore`` states that the call is refused; both checkers tell if it is not.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from typing_extensions import assert_type

from letitloop import (
    Approval,
    Intent,
    IntentEvent,
    Ledger,
    Limit,
    MemoryStore,
    ProcessDied,
    Redacted,
    Retry,
    SupervisionEvent,
    Ticket,
    Trusted,
    async_step,
    atomic_marker,
    carry,
    current_run,
    durable,
    durable_async,
    effect,
    effect_context,
    register,
    register_provider,
    scope,
    step,
    supervise,
)
from letitloop.effects.context import EffectContext, from_context
from letitloop.effects.provider import (
    Caps,
    Dispatch,
    Found,
    NotExecuted,
    NotFound,
    StillRunning,
    Succeeded,
    Unavailable,
    Unknown,
    Window,
)
from letitloop.effects.providers import FunctionProvider


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


# --- supervise: bare, with options, around functions and durable functions


def told(event: SupervisionEvent) -> None:
    assert_type(event.reason, str)
    assert_type(event.runs, tuple[str, ...])


@supervise
def supervised(n: int, *, word: str = "") -> str:
    return word * n


@supervise(max_restarts=5, restart_on="signal,exit:3", stall=300, on_restart=told, start="spawn")
async def asupervised(n: int) -> str:
    return str(n)


@supervise(max_restarts=5, backoff=1.0)
@durable(goal_id="supervised")
def supervised_run(n: int) -> str:
    return str(n)


@supervise
@durable
async def asupervised_run(n: int) -> str:
    return str(n)


class Supervised:
    @supervise(backoff=0)
    def method(self, n: int) -> str:
        return str(n)


async def supervise_keeps_the_signature() -> None:
    assert_type(supervised(1, word="x"), str)
    assert_type(await asupervised(1), str)
    assert_type(supervised_run(1), str)
    assert_type(supervised_run.runs.forget(1), bool)
    assert_type(await asupervised_run(1), str)
    assert_type(Supervised().method(1), str)
    supervised("1")  # type: ignore[arg-type]
    supervised_run(word="1")  # type: ignore[call-arg]
    supervise(start="thread")  # type: ignore[call-overload]
    try:
        supervised(1)
    except ProcessDied as died:
        assert_type(died.stderr, tuple[str, ...])


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


# --- the ledger and its providers


class Refunds:
    """A provider of one's own: what it lacks is not asked for, as its capabilities say."""

    name = "refunds"
    caps = Caps(redispatch=Window(23 * 3600, checks_body=True, stores_5xx=False), lookup="strong", tombstone=True)

    def identity(self) -> str:
        return "refunds/1 account-7"

    def validate(self, operation: str, arguments: Mapping[str, Any]) -> None:
        pass

    def execute(self, dispatch: Dispatch) -> Succeeded | NotExecuted | Unknown:
        assert_type(dispatch.provider_key, str)
        return Succeeded({"id": 1}, receipt="r-1", basis="replay")

    def reconcile(self, dispatch: Dispatch) -> Found | StillRunning | NotFound | NotExecuted | Unavailable:
        return Found(None, dispatch.provider_key, {"amount_minor": 1200})

    def tombstone(self, dispatch: Dispatch) -> Found | StillRunning | NotExecuted | Unavailable:
        return NotExecuted("tombstoned", "its key is occupied")


class LeastProvider:
    """One that cannot be asked afterwards has no methods for it."""

    name = "least"
    caps = Caps()

    def identity(self) -> str:
        return "shop-1"

    def validate(self, operation: str, arguments: Mapping[str, Any]) -> None: ...

    def execute(self, dispatch: Dispatch) -> Succeeded:
        return Succeeded()


class NoProvider:
    def execute(self, dispatch: Dispatch) -> None:
        pass


def plain_function(amount_minor: int) -> str:
    return str(amount_minor)


def ledgers() -> None:
    refunds = Refunds()
    Ledger()
    Ledger(store=MemoryStore())
    ledger = Ledger("actions.db", clock=lambda: 0.0, cipher=None, codecs=None, accept_restored=False)
    ledger.run("shop-1", "order-42", refunds)
    ledger.run(namespace="shop-1", key="order-42", provider=refunds, arguments={"amount_minor": 1200})
    ledger.run(
        "shop-1",
        "order-42",
        FunctionProvider(plain_function, identity="shop-1"),
        {"amount_minor": 1200},
        operation="refund",
        recover="resend",
        redact=("card",),
        payload=None,
        limit=Limit(group="refund/42", max_intents=1, max_sum=("amount_minor", lambda arguments: 5000)),
        block_group_on=None,
        approval=Approval(when=lambda arguments: arguments["amount_minor"] > 5000, ttl="1h"),
        compensates=("shop-1", "order-41"),
        ticket=ledger.authorize("refund", scope={"order_id": 42}, max_amount=1200),
        retry=("not_sent", "rejected"),
        max_attempts=3,
    )
    assert_type(ledger.reconcile("shop-1", "order-42", refunds), Intent)
    ledger.resend("shop-1", "order-42", refunds)
    ledger.retry_failed("shop-1", "order-42")
    ledger.retry_failed("shop-1", "order-42", refunds, by="human ada")
    assert_type(ledger.resolve("shop-1", "order-42", outcome="failed", evidence="case 7", by="ada"), Intent)
    assert_type(ledger.approve("shop-1", "order-42", by="ada"), Intent)
    assert_type(ledger.deny("shop-1", "order-42", by="ada", reason="no"), Intent)
    assert_type(ledger.cancel("shop-1", "order-42", reason="no"), Intent)
    assert_type(ledger.get("shop-1", "order-42").arguments, Mapping[str, Any])
    assert_type(ledger.events("shop-1", "order-42"), list[IntentEvent])
    assert_type(ledger.anomalies(), list[IntentEvent])
    assert_type(ledger.list(state="UNKNOWN", namespace="shop-1"), list[Intent])
    assert_type(ledger.prune(older_than=timedelta(days=90)), int)
    assert_type(ledger.authorize("refund"), Ticket)
    assert_type(Redacted("00").sha256, str)
    ledger.run("shop-1", "order-42", LeastProvider())
    ledger.run("shop-1", "order-42", NoProvider())  # type: ignore[arg-type]
    ledger.run("shop-1", "order-42", refunds, bogus=1)  # type: ignore[call-arg]
    ledger.run("shop-1", "order-42", refunds, recover="hope")  # type: ignore[arg-type]
    ledger.resolve("shop-1", "order-42", outcome="failed", evidence="case 7")  # type: ignore[call-arg]
    ledger.approve("shop-1", "order-42")  # type: ignore[call-arg]


async def async_ledgers(ledger: Ledger) -> None:
    refunds = Refunds()
    await ledger.arun("shop-1", "order-42", refunds, {"amount_minor": 1200}, recover="block")
    assert_type(await ledger.areconcile("shop-1", "order-42", refunds), Intent)
    await ledger.aresend("shop-1", "order-42", refunds)
    await ledger.aretry_failed("shop-1", "order-42", refunds)
    assert_type(await ledger.aresolve("shop-1", "order-42", outcome="failed", evidence="case 7", by="ada"), Intent)
    assert_type(await ledger.aapprove("shop-1", "order-42", by="ada"), Intent)
    assert_type(await ledger.adeny("shop-1", "order-42", by="ada", reason="no"), Intent)
    assert_type(await ledger.acancel("shop-1", "order-42"), Intent)
    assert_type(await ledger.aget("shop-1", "order-42"), Intent)
    assert_type(await ledger.aevents("shop-1", "order-42"), list[IntentEvent])
    assert_type(await ledger.aanomalies(), list[IntentEvent])
    assert_type(await ledger.alist(), list[Intent])
    assert_type(await ledger.aprune(older_than=timedelta(days=90)), int)
    assert_type(await ledger.aauthorize("refund", {"order_id": 42}, max_amount=5), Ticket)


# --- guarded functions


def resolve_order(value: Any, context: EffectContext) -> str:
    return f"{context.tenant}/{value}"


@effect(
    key="refund/{order_id}/{request_id}",
    scope="shop/{ctx.tenant}",
    provider=Refunds(),
    trusted={"request_id": from_context, "order_id": resolve_order},
    model_fields=("order_id",),
    limit=Limit(group="refund/{order_id}", max_intents=1),
    approval=Approval(ttl=3600),
    ledger=Ledger(),
    ticket=None,
    payload=("amount_minor",),
    redact=(),
    recover="reconcile",
    block_group_on="UNKNOWN",
    retry=("not_sent",),
    max_attempts=3,
)
def refund(order_id: str, amount_minor: int, *, request_id: Trusted[str] = "") -> User:
    return User()


@effect(key="mail/{to}", provider="mailer")
async def mail(to: str) -> bytes:
    return to.encode()


@effect(key="note/{to}")
def note(to: str, *, campaign: Trusted[str]) -> int:
    without: str = campaign
    return len(to + without)


def guarded_functions_return_what_they_returned() -> None:
    register_provider("mailer", Refunds())
    register_provider("lazy", Refunds)
    with effect_context(tenant="acme", request_id="r1") as context:
        assert_type(refund("42", 1200), User)
        assert_type(note("ada"), int)
    assert_type(context, EffectContext)
    effect(key="k/{a}", recover="hope")  # type: ignore[arg-type]
    effect(provider=Refunds())  # type: ignore[call-arg]
    effect(key="k/{a}", provider=NoProvider())  # type: ignore[arg-type]


async def guarded_async_functions_too() -> None:
    assert_type(await mail("ada"), bytes)
