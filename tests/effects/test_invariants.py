"""The invariants of the intent ledger, each by the shortest test that fails without it; the mutants are run against this file."""

from __future__ import annotations

import inspect
import os
import shutil
import signal
import sqlite3
from dataclasses import replace
from datetime import timedelta

import pytest

from letitloop import (
    ActionConflict,
    Approval,
    ApprovalRequired,
    Fenced,
    InFlight,
    IntentFailed,
    IntentPruned,
    Ledger,
    Limit,
    MemoryStore,
    NotAuthorized,
    StoreError,
    Trusted,
    UnknownOutcome,
    durable,
    effect,
    effect_context,
)
from letitloop.effects import ledger_file
from letitloop.effects.provider import Caps, Found, NotExecuted, NotFound, StillRunning, Succeeded, Unavailable, Unknown, Window
from tests.effects.lives import Life, lived, row_of, state_of

LOST = ConnectionResetError("the reply was lost")
WINDOW = 100.0


class Shop:
    """A provider that acts in memory, replies what it is told to reply, and answers what it is told to answer."""

    name = "shop"

    def __init__(self, caps=None, identity="shop/1"):
        self.caps = caps or Caps()
        self._identity = identity
        self.sent = []
        self.replies = []
        self.answer = NotFound()
        self.stone = NotExecuted("tombstoned", "its key is occupied")
        self.asked = []
        self.before = lambda dispatch: None

    def identity(self):
        return self._identity

    def validate(self, operation, arguments):
        pass

    def execute(self, dispatch):
        self.before(dispatch)
        self.sent.append(dispatch)
        reply = self.replies.pop(0) if self.replies else Succeeded(f"done {len(self.sent)}")
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def reconcile(self, dispatch):
        self.asked.append(dispatch)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer(dispatch) if callable(self.answer) else self.answer

    def tombstone(self, dispatch):
        self.asked.append(dispatch)
        return self.stone


class Clock:
    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ledger(clock):
    return Ledger(store=MemoryStore(), clock=clock)


def lost(ledger, shop, key="k", arguments=None, **options):
    shop.replies.insert(0, LOST)
    with pytest.raises(UnknownOutcome):
        ledger.run("n", key, shop, arguments, recover="block", **options)


def found(dispatch, **fields):
    return replace(Found("found", dispatch.provider_key, dict(dispatch.arguments)), **fields)


# --- I1, I15, I16: first the record ------------------------------------------------------------------------------------------


def test_i1_the_dispatch_is_committed_before_the_provider_acts(tmp_path):
    path, shop, seen = tmp_path / "ledger.db", Shop(), []
    shop.before = lambda dispatch: seen.append(lived(lambda life: state_of(path)))
    Ledger(path).run("n", "k", shop)
    assert seen == [{"value": "DISPATCHED"}]


def test_i15_what_cannot_be_recorded_is_not_sent(tmp_path):
    path, shop = tmp_path / "ledger.db", Shop()

    def work(life):
        with pytest.raises(StoreError):
            Ledger(path).run("n", "k", shop)
        return len(shop.sent)

    assert lived(work, failpoint="ledger.commit:eio@2") == {"value": 0}


def test_i15_an_outcome_that_cannot_be_recorded_is_unknown(tmp_path):
    path, shop = tmp_path / "ledger.db", Shop()

    def work(life):
        ledger = Ledger(path)
        ledger.list()
        handle = ledger_file._open[ledger.location]
        with pytest.raises(UnknownOutcome):
            ledger.run("n", "k", shop)
        assert handle.poisoned
        return len(shop.sent)

    assert lived(work, failpoint="ledger.commit:eio@3") == {"value": 1}


@pytest.mark.parametrize(("pragma", "answer"), [("pragma journal_mode=wal", "'delete'"), ("pragma synchronous", "1")])
def test_i16_what_is_not_durable_is_refused(tmp_path, monkeypatch, pragma, answer):
    class Elsewhere(sqlite3.Connection):
        def execute(self, query, *values):
            return super().execute(f"select {answer}" if query == pragma else query, *values)

    connect, shop = sqlite3.connect, Shop()
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, factory=Elsewhere, **options))
    with pytest.raises(StoreError):
        Ledger(tmp_path / "ledger.db").run("n", "k", shop)
    assert shop.sent == []


def test_i16_every_commit_is_synced(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.list()
    assert ledger_file._open[ledger.location]._connection.execute("pragma synchronous").fetchone() == (2,)


# --- I2, I3, I4: what proves something, and what does not --------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [LOST, TimeoutError(), MemoryError(), KeyboardInterrupt(), SystemExit(), GeneratorExit()], ids=repr
)
def test_i3_whatever_leaves_a_provider_is_no_certificate(ledger, error):
    shop = Shop()
    shop.replies.append(error)
    with pytest.raises(BaseException):
        ledger.run("n", "k", shop)
    assert ledger.get("n", "k").state == "UNKNOWN"
    with pytest.raises(UnknownOutcome):
        ledger.run("n", "k", shop)
    assert len(shop.sent) == 1


@pytest.mark.parametrize(
    "reply", [Unknown("?"), NotExecuted("timeout", "?"), NotExecuted("", "?"), NotFound(), 500, None], ids=repr
)
def test_i3_no_other_reply_is_a_certificate(ledger, reply):
    shop = Shop()
    shop.replies.append(reply)
    with pytest.raises(UnknownOutcome):
        ledger.run("n", "k", shop)
    assert ledger.get("n", "k").state == "UNKNOWN"


def test_i3_that_the_second_sending_was_refused_certifies_nothing_of_the_first(ledger):
    shop = Shop(Caps(redispatch=Window(WINDOW), lookup="strong"))
    lost(ledger, shop)
    shop.replies.append(NotExecuted("not_sent", "the connection was refused"))
    with pytest.raises(UnknownOutcome):
        ledger.resend("n", "k", shop)
    assert ledger.get("n", "k").state == "UNKNOWN"


@pytest.mark.parametrize(
    "answer", [NotFound(), Unavailable("?"), StillRunning(), LOST, "no", None, NotExecuted("not_sent", "?")], ids=repr
)
@pytest.mark.parametrize("verb", ["reconcile", "run"])
def test_i4_what_is_not_found_changes_nothing(ledger, answer, verb):
    shop = Shop(Caps(lookup="strong"))
    lost(ledger, shop)
    before, shop.answer = ledger.get("n", "k"), answer
    if verb == "reconcile":
        ledger.reconcile("n", "k", shop)
    else:
        with pytest.raises(UnknownOutcome):
            ledger.run("n", "k", shop)
    after = ledger.get("n", "k")
    assert (after.state, after.attempt, after.provider_key) == ("UNKNOWN", 1, before.provider_key)
    assert after.next_check_at >= before.next_check_at
    assert len(shop.sent) == 1
    assert shop.asked


# --- I5, I6: attempts, keys, windows -----------------------------------------------------------------------------------------


def test_i5_the_same_attempt_is_the_same_request(ledger):
    shop = Shop(Caps(redispatch=Window(WINDOW), lookup="strong"))
    lost(ledger, shop, arguments={"amount": 1, "note": "first"}, payload=["amount"])
    shop.replies.append(LOST)
    with pytest.raises(UnknownOutcome):
        ledger.resend("n", "k", shop)
    ledger.run("n", "k", shop, {"amount": 1, "note": "second"}, payload=["amount"], recover="resend")
    assert len({one.provider_key for one in shop.sent}) == 1
    assert [one.attempt for one in shop.sent] == [1, 1, 1]
    assert [dict(one.arguments) for one in shop.sent] == [{"amount": 1, "note": "first"}] * 3
    assert [one.epoch for one in shop.sent] == sorted({one.epoch for one in shop.sent})


def test_i5_a_new_attempt_follows_a_certificate_and_has_a_new_key(ledger):
    shop = Shop()
    shop.replies.append(NotExecuted("rejected", "no"))
    for _ in range(2):
        with pytest.raises(IntentFailed):
            ledger.run("n", "k", shop)
    ledger.retry_failed("n", "k")
    ledger.run("n", "k", shop)
    assert [one.attempt for one in shop.sent] == [1, 2]
    assert len({one.provider_key for one in shop.sent}) == 2


@pytest.mark.parametrize("jump", [WINDOW, WINDOW + 1, -1.0])
def test_i6_nothing_is_sent_again_outside_the_window(ledger, clock, jump):
    shop = Shop(Caps(redispatch=Window(WINDOW), lookup="strong"))
    lost(ledger, shop)
    clock.now += jump
    with pytest.raises(UnknownOutcome):
        ledger.resend("n", "k", shop)
    with pytest.raises(UnknownOutcome):
        ledger.run("n", "k", shop, recover="resend")
    assert len(shop.sent) == 1


def test_i6_a_second_sending_does_not_move_the_window(ledger, clock):
    shop = Shop(Caps(redispatch=Window(WINDOW), lookup="strong"))
    lost(ledger, shop)
    clock.now += WINDOW - 1
    shop.replies.append(LOST)
    with pytest.raises(UnknownOutcome):
        ledger.resend("n", "k", shop)
    clock.now += 1
    with pytest.raises(UnknownOutcome):
        ledger.resend("n", "k", shop)
    assert len(shop.sent) == 2


def test_i6_without_a_window_nothing_is_sent_again(ledger):
    shop = Shop(Caps(lookup="strong"))
    lost(ledger, shop)
    with pytest.raises(UnknownOutcome):
        ledger.run("n", "k", shop, recover="resend")
    assert len(shop.sent) == 1


# --- I7: late words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["failed", "succeeded"])
def test_i7_a_stale_owner_overwrites_nothing(ledger, outcome):
    shop = Shop()

    def meanwhile(dispatch):
        ledger_file.open_ledger(ledger.location).owner.under_way.clear()  # its lock is lost
        ledger.resolve("n", "k", outcome=outcome, evidence="a look", by="ada", result="by ada")

    shop.before = meanwhile
    if outcome == "failed":
        with pytest.raises(Fenced):
            ledger.run("n", "k", shop)
        assert [one.kind for one in ledger.anomalies()] == ["anomaly"]
    else:
        ledger.run("n", "k", shop)
        assert ledger.anomalies() == []
        assert ledger.get("n", "k").result == "by ada"
        assert ledger.events("n", "k")[-1].kind == "late_result"
    assert ledger.get("n", "k").state == outcome.upper()


# --- I8, I9, I10: repeats ----------------------------------------------------------------------------------------------------


def test_i8_a_repeat_returns_what_is_recorded(ledger):
    shop = Shop(Caps(lookup="strong", redispatch=Window(WINDOW)))
    assert [ledger.run("n", "k", shop, recover="resend") for _ in range(3)] == ["done 1"] * 3
    assert (len(shop.sent), shop.asked) == (1, [])


@pytest.mark.parametrize("state", ["SUCCEEDED", "UNKNOWN", "FAILED", "PREPARED", "CANCELLED"])
def test_i9_another_action_is_refused_in_every_state(ledger, state):
    shop, options = Shop(), {"approval": Approval()} if state in ("PREPARED", "CANCELLED") else {}
    shop.replies = {"UNKNOWN": [LOST], "FAILED": [NotExecuted("rejected", "no")]}.get(state, [])
    try:
        ledger.run("n", "k", shop, {"amount": 1}, **options)
    except (UnknownOutcome, IntentFailed, ApprovalRequired):
        pass
    if state == "CANCELLED":
        ledger.cancel("n", "k")
    before = (ledger.get("n", "k"), ledger.events("n", "k"), len(shop.sent))
    assert before[0].state == state
    for kind, provider, arguments, operation in (
        ("payload", shop, {"amount": 2}, None),
        ("payload", shop, {"amount": 1, "more": 1}, None),
        ("provider", Shop(identity="shop/2"), {"amount": 1}, None),
        ("operation", shop, {"amount": 1}, "take"),
    ):
        with pytest.raises(ActionConflict) as caught:
            ledger.run("n", "k", provider, arguments, operation=operation, **options)
        assert caught.value.kind == kind
    assert (ledger.get("n", "k"), ledger.events("n", "k"), len(shop.sent)) == before


def test_i9_another_action_is_refused_in_a_replay(ledger):
    shop, amounts = Shop(), [1, 2]

    @durable(goal_id="g")
    def job():
        ledger.run("n", "k", shop, {"amount": amounts.pop(0)})
        raise ValueError("and then it fails")

    with pytest.raises(ValueError, match="and then"):
        job()
    with pytest.raises(ActionConflict):
        job()
    assert [dict(one.arguments) for one in shop.sent] == [{"amount": 1}]


def test_i10_while_one_acts_nobody_else_does(tmp_path):
    path, shop, outcomes = tmp_path / "ledger.db", Shop(Caps(lookup="strong", redispatch=Window(WINDOW))), []
    ledger = Ledger(path)

    def meanwhile(dispatch):
        if not outcomes:
            outcomes.append(lived(lambda life: ledger.run("n", "k", shop, recover="resend"))["raised"])
            with pytest.raises(InFlight):
                ledger.run("n", "k", shop, recover="resend")

    shop.before = meanwhile
    assert ledger.run("n", "k", shop) == "done 1"
    assert outcomes == ["InFlight"]


def test_i10_who_is_dead_is_not_waited_for(tmp_path):
    path, shop = tmp_path / "ledger.db", Shop()
    shop.before = lambda dispatch: os.kill(os.getpid(), signal.SIGKILL)
    life = Life(lambda life: Ledger(path).run("n", "k", shop))
    life.end()
    assert state_of(path) == "DISPATCHED"
    shop.before = lambda dispatch: None
    with pytest.raises(UnknownOutcome):
        Ledger(path).run("n", "k", shop)
    assert shop.sent == []


# --- I11: groups -------------------------------------------------------------------------------------------------------------


def test_i11_a_group_has_so_many_and_comes_to_so_much(ledger):
    shop, limit = Shop(), Limit("g", max_intents=2, max_sum=("amount", 10))
    ledger.run("n", "a", shop, {"amount": 5}, limit=limit)
    with pytest.raises(NotAuthorized):
        ledger.run("n", "much", shop, {"amount": 6}, limit=limit)
    ledger.run("n", "b", shop, {"amount": 5}, limit=limit)
    with pytest.raises(NotAuthorized):
        ledger.run("n", "c", shop, {"amount": 0}, limit=limit)
    assert [one.key for one in ledger.list()] == ["a", "b"]


def test_i11_one_open_outcome_freezes_its_group(ledger):
    shop, limit = Shop(), Limit("g", max_intents=5)
    lost(ledger, shop, "a", limit=limit)
    with pytest.raises(UnknownOutcome):
        ledger.run("n", "b", shop, limit=limit)
    assert len(shop.sent) == 1
    assert [one.key for one in ledger.list()] == ["a"]


# --- I12, I20: tombstones and receipts ---------------------------------------------------------------------------------------


def test_i12_without_a_tombstone_nothing_is_certified(ledger):
    shop = Shop(Caps(lookup="strong", tombstone=True))
    lost(ledger, shop)
    shop.stone = StillRunning()
    assert ledger.reconcile("n", "k", shop).state == "UNKNOWN"
    shop.stone = Found("found", "another key")
    assert ledger.reconcile("n", "k", shop).state == "UNKNOWN"
    shop.stone = NotExecuted("tombstoned", "its key is occupied")
    assert ledger.reconcile("n", "k", shop).state == "FAILED"


@pytest.mark.parametrize("fields", [{"provider_key": "k" * 40}, {"arguments": {"amount": 2}}, {"arguments": {"currency": "eur"}}])
def test_i20_a_receipt_of_something_else_is_an_anomaly(ledger, fields):
    shop = Shop(Caps(lookup="strong"))
    lost(ledger, shop, arguments={"amount": 1})
    shop.answer = lambda dispatch: found(dispatch, **fields)
    assert ledger.reconcile("n", "k", shop).state == "UNKNOWN"
    assert [one.kind for one in ledger.anomalies()] == ["anomaly"]
    shop.answer = found
    assert ledger.reconcile("n", "k", shop).state == "SUCCEEDED"


# --- I13, I14: authority -----------------------------------------------------------------------------------------------------


def test_i13_no_model_sees_or_sets_what_is_trusted(ledger):
    seen = []

    @effect(key="refund/{order_id}/{request_id}", ledger=ledger)
    def refund(order_id: str, *, request_id: Trusted[str]) -> str:
        seen.append(request_id)
        return request_id

    assert list(inspect.signature(refund).parameters) == ["order_id"]
    assert "request_id" not in refund.__annotations__
    with effect_context(request_id="mine"):
        try:
            refund("42", request_id="the model's")
        except TypeError:
            refund("42")
    assert seen == ["mine"]


def test_i14_an_approval_is_for_these_arguments_and_once(ledger):
    shop, options = Shop(), {"approval": Approval(), "retry": ("rejected",)}
    with pytest.raises(ApprovalRequired):
        ledger.run("n", "k", shop, {"amount": 1}, **options)
    ledger.approve("n", "k", by="ada")
    with pytest.raises(ActionConflict):
        ledger.run("n", "k", shop, {"amount": 2}, **options)
    assert shop.sent == []
    shop.replies.append(NotExecuted("rejected", "no"))
    with pytest.raises(IntentFailed):
        ledger.run("n", "k", shop, {"amount": 1}, **options)
    with pytest.raises(ApprovalRequired):
        ledger.run("n", "k", shop, {"amount": 1}, **options)
    assert [one.arguments["amount"] for one in shop.sent] == [1]


def test_i14_an_approval_ends(ledger, clock):
    shop = Shop()
    with pytest.raises(ApprovalRequired):
        ledger.run("n", "k", shop, approval=Approval(ttl=10))
    ledger.approve("n", "k", by="ada")
    clock.now += 10
    with pytest.raises(ApprovalRequired):
        ledger.run("n", "k", shop, approval=Approval(ttl=10))
    assert shop.sent == []


# --- I17 is tests/effects/test_intent_store.py; I18, I19: one request, one life of a key -------------------------------------


def test_i18_one_call_is_one_request(ledger):
    shop = Shop()
    shop.replies = [LOST, LOST]
    with pytest.raises(UnknownOutcome):
        ledger.run("n", "k", shop)
    assert len(shop.sent) == 1


def test_i19_a_pruned_key_stays_used(ledger, clock):
    shop = Shop()
    ledger.run("n", "done", shop)
    lost(ledger, shop, "open")
    clock.now += 1000
    assert ledger.prune(older_than=timedelta(seconds=1)) == 1
    with pytest.raises(IntentPruned):
        ledger.run("n", "done", shop)
    assert ledger.get("n", "open").state == "UNKNOWN"
    assert len(shop.sent) == 2


# --- and what else the ledger stands on --------------------------------------------------------------------------------------


def test_a_person_decides_only_what_is_open(ledger):
    shop = Shop()
    ledger.run("n", "k", shop)
    with pytest.raises(ValueError, match="SUCCEEDED"):
        ledger.resolve("n", "k", outcome="failed", evidence="a look", by="ada")
    assert ledger.get("n", "k").state == "SUCCEEDED"


def test_an_older_copy_is_noticed(tmp_path):
    path, shop = tmp_path / "ledger.db", Shop()
    Ledger(path).run("n", "a", shop)
    ledger_file.close_ledger(f"sqlite:{path}")
    shutil.copy(path, tmp_path / "copy")
    Ledger(path).run("n", "b", shop)
    ledger_file.close_ledger(f"sqlite:{path}")
    shutil.copy(tmp_path / "copy", path)
    with pytest.raises(StoreError):
        Ledger(path).run("n", "b", shop)
    assert len(shop.sent) == 2
    assert row_of(path, "b") is None
