"""A provider whose own log is the truth about effects, a clock that only tests move, and ledgers in every state."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from letitloop import Approval, ApprovalRequired, IntentFailed, IntentNotFound, UnknownOutcome, failpoints
from letitloop.effects import ledger_file
from letitloop.effects.provider import Caps, Found, NotExecuted, NotFound, Succeeded, Unknown, Window
from letitloop.errors import StoreError

SHOP = "shop-1"
KEY = "order-42/refund-1"
ARGUMENTS = {"operation": "refund", "amount_minor": 1200, "currency": "eur"}
RESULT = {"refunded": 1200, "to": KEY}  # what a bank says that has acted on them
PATIENCE = 20  # seconds until a test that waits for a thread has failed


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, now=1_700_000_000.0):
        self.now = now

    def __call__(self):
        return self.now


class Bank:
    """Acts, and knows what happened: once a provider key where it has a window, and not at all where a key is occupied.

    Attributes:
        effects: the dispatches that had an effect.
        sent: the dispatches that it was given.
        asked: the questions that it was asked.
    """

    name = "bank"

    def __init__(self, *says, lookup="none", tombstone=False, window=None, identity="bank/1 account-7", kept=None):
        self.caps = Caps(redispatch=None if window is None else Window(window), lookup=lookup, tombstone=tombstone)
        self.says = list(says)
        self.effects, self.sent, self.asked = [], [], []
        self.occupied = set()
        self.account = identity
        self.kept = Path(kept) if kept is not None else None  # where effects are noted, for a process that dies

    def identity(self):
        return self.account

    def validate(self, operation, arguments):
        pass

    def execute(self, dispatch):
        self.sent.append(dispatch)
        return (self.says.pop(0) if self.says else happens)(self, dispatch)

    def reconcile(self, dispatch):
        self.asked.append("reconcile")
        return self.receipt(dispatch) or NotFound()

    def tombstone(self, dispatch):
        self.asked.append("tombstone")
        found = self.receipt(dispatch)
        if found is None:
            self.occupied.add(dispatch.provider_key)
            return NotExecuted("tombstoned", "its key is occupied")
        return found

    def receipt(self, dispatch):
        if dispatch.provider_key not in self.keys:
            return None
        return Found(self.result(dispatch), dispatch.provider_key, {"amount_minor": dispatch.arguments.get("amount_minor")}, "r-1")

    def act(self, dispatch):
        """Have the effect; return the reply."""
        if dispatch.provider_key in self.occupied:
            return NotExecuted("tombstoned", "its key is occupied")
        if self.caps.redispatch is not None and dispatch.provider_key in self.keys:
            return Succeeded(self.result(dispatch), basis="replay")
        self.effects.append(dispatch)
        if self.kept is not None:
            with self.kept.open("a") as file:
                file.write(f"{dispatch.provider_key}\n")
        return Succeeded(self.result(dispatch), receipt="r-1")

    @staticmethod
    def result(dispatch):
        return {"refunded": dispatch.arguments.get("amount_minor"), "to": dispatch.key}

    @property
    def keys(self):
        """The provider keys of all effects, in whatever process they happened."""
        if self.kept is not None:
            return self.kept.read_text().split() if self.kept.exists() else []
        return [one.provider_key for one in self.effects]


def capable(*says, **options):
    """Return a bank that finds its receipts at once, and can occupy a key."""
    return Bank(*says, lookup="strong", tombstone=True, **options)


# --- what a bank does when it is asked to act --------------------------------------------------------------------------------


def happens(bank, dispatch):
    return bank.act(dispatch)


def loses_its_reply(bank, dispatch):
    bank.act(dispatch)
    raise ConnectionError("the line went dead")


def never_arrives(bank, dispatch):
    raise TimeoutError("no answer")


def rejects(bank, dispatch):
    return NotExecuted("rejected", "the account is closed", {"code": 402})


def does_not_send(bank, dispatch):
    return NotExecuted("not_sent", "connection refused")


def does_not_know(bank, dispatch):
    return Unknown("status 502")


def returns(value):
    return lambda bank, dispatch: value


def raises(error):
    def act(bank, dispatch):
        raise error

    return act


def waits_for(told, times):
    """Act when a semaphore has been released that often."""

    def act(bank, dispatch):
        for _ in range(times):
            assert told.acquire(timeout=PATIENCE)
        return bank.act(dispatch)

    return act


# --- threads -----------------------------------------------------------------------------------------------------------------


def at_once(work, threads=8):
    """Call ``work`` with 0, 1 and so on, each on a thread of its own, all at one moment; return what they returned."""
    start = threading.Barrier(threads)

    def thread(n):
        start.wait(PATIENCE)
        return work(n)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(thread, range(threads)))


async def threads_ended():
    """Wait for the threads of providers, and for those that the loop starts for what they brought."""
    for _ in range(2):
        for thread in threading.enumerate():
            if thread.name == "letitloop-provider":
                await asyncio.to_thread(thread.join, PATIENCE)
        await asyncio.sleep(0)


# --- faults ------------------------------------------------------------------------------------------------------------------


@contextmanager
def commits_fail(*which, error=None):
    """Let those commits of a ledger fail that are named, counted from 1; without a name all of them."""
    count = 0

    def hit(name):
        nonlocal count
        if name == "ledger.commit":
            count += 1
            if not which or count in which:
                raise error or OSError(28, "No space left on device")

    failpoints.observe(hit)
    try:
        yield
    finally:
        failpoints.observe(None)


@contextmanager
def at(point, action):
    """Do something whenever a failpoint is reached."""
    failpoints.observe(lambda name: action() if name == point else None)
    try:
        yield
    finally:
        failpoints.observe(None)


def closed(ledger):
    """Close a ledger's file, as the end of its process does."""
    ledger_file.close_ledger(ledger.location)


def content(path):
    """Return the bytes of a ledger's file and of all that lies beside it."""
    return b"".join(Path(one.path).read_bytes() for one in os.scandir(os.path.dirname(path)) if one.is_file())


class Xor:
    """No cipher to be used; one that can be seen through in a test."""

    def __init__(self, key=0x5A):
        self.key = key
        self.fails = False

    def encrypt(self, data):
        if self.fails:
            raise RuntimeError("the key service is away")
        return b"X" + bytes(byte ^ self.key for byte in data)

    def decrypt(self, data):
        if self.fails or data[:1] != b"X":
            raise ValueError("cannot be decrypted")
        return bytes(byte ^ self.key for byte in data[1:])


# --- an intent in every state ------------------------------------------------------------------------------------------------


def run(ledger, bank, key=KEY, arguments=ARGUMENTS, **options):
    return ledger.run(SHOP, key, bank, arguments, **options)


def stored(ledger, key=KEY):
    """Return all that is on record of an intent."""
    try:
        return asdict(ledger.get(SHOP, key)), ledger.events(SHOP, key)
    except IntentNotFound:
        return None


def kinds(ledger, key=KEY):
    return [event.kind for event in ledger.events(SHOP, key)]


def unsettled(ledger, bank, key=KEY, arguments=ARGUMENTS, **options):
    """Dispatch an intent and end before its outcome is recorded: it stays DISPATCHED, and its owner is gone."""

    def fail(*_):
        raise StoreError("the process ended here")

    with pytest.MonkeyPatch.context() as patch:

        def dies(bank, dispatch):
            reply = bank.act(dispatch)
            patch.setattr(ledger.intents, "transact", fail)
            return reply

        bank.says.insert(0, dies)
        with pytest.raises(UnknownOutcome, match="could not be recorded"):
            run(ledger, bank, key, arguments, **options)


@contextmanager
def in_flight(ledger, bank, key=KEY, arguments=ARGUMENTS, **options):
    """Have a thread carry an intent out for as long as the block lasts; the thread's future is what is yielded."""
    begun, go_on = threading.Event(), threading.Event()

    def waits(bank, dispatch):
        begun.set()
        assert go_on.wait(PATIENCE)
        return bank.act(dispatch)

    bank.says.insert(0, waits)
    with ThreadPoolExecutor(1) as pool:
        try:
            future = pool.submit(run, ledger, bank, key, arguments, **options)
            assert begun.wait(PATIENCE), future.exception(1)
            yield future
        finally:
            go_on.set()


def _refused(error, ledger, bank, *says, **options):
    bank.says[:0] = says
    with pytest.raises(error):
        run(ledger, bank, **options)


@contextmanager
def state(name, ledger, bank):
    """Have the intent KEY in a state for as long as the block lasts; ``bank`` forgets that it was called for that."""
    if name == "in_flight":
        with in_flight(ledger, bank):
            bank.sent.clear()
            yield
        return
    if name in ("pending", "granted", "CANCELLED"):
        _refused(ApprovalRequired, ledger, bank, approval=Approval())
    if name == "granted":
        ledger.approve(SHOP, KEY, by="alice")
    elif name == "CANCELLED":
        ledger.deny(SHOP, KEY, by="bob", reason="too much")
    elif name in ("SUCCEEDED", "pruned"):
        run(ledger, bank)
    elif name == "orphaned":
        unsettled(ledger, bank)
    elif name == "UNKNOWN":
        _refused(UnknownOutcome, ledger, bank, loses_its_reply, recover="block")
    elif name == "rejected":
        _refused(IntentFailed, ledger, bank, rejects)
    elif name == "not_sent":
        _refused(IntentFailed, ledger, bank, does_not_send)
    if name == "pruned":
        ledger.clock.now += 1
        ledger.intents.prune(ledger.clock())
    bank.sent.clear()
    bank.asked.clear()
    yield


RECORDED = {
    "pending": "PREPARED",
    "granted": "PREPARED",
    "in_flight": "DISPATCHED",
    "orphaned": "DISPATCHED",
    "SUCCEEDED": "SUCCEEDED",
    "rejected": "FAILED",
    "not_sent": "FAILED",
    "UNKNOWN": "UNKNOWN",
    "CANCELLED": "CANCELLED",
}
"""What the ledger says of each of them."""
