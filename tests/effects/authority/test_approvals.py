"""Approvals: nothing is sent before somebody has approved just that, and one approval is for one dispatch."""

from __future__ import annotations

import threading

import pytest

from letitloop import ActionConflict, Approval, ApprovalRequired, InFlight, IntentFailed, InvalidArgument
from tests.effects.acting import ARGUMENTS, KEY, SHOP, Bank, at_once, rejects, run, waits_for
from tests.effects.authority.grants import keys

HOUR = Approval(ttl="1h")


def test_nothing_is_sent_before_somebody_has_approved_and_one_approval_is_for_one_dispatch(ledger):
    bank = Bank(rejects)
    for _ in range(3):
        with pytest.raises(ApprovalRequired) as caught:
            run(ledger, bank, approval=Approval())
    assert (caught.value.namespace, caught.value.key) == (SHOP, KEY)
    assert ledger.get(SHOP, KEY).approval == "pending"
    assert not bank.sent
    granted = ledger.approve(SHOP, KEY, by="alice")
    assert (granted.state, granted.approval, granted.approver) == ("PREPARED", "granted", "alice")
    with pytest.raises(IntentFailed):
        run(ledger, bank, approval=Approval())
    assert ledger.get(SHOP, KEY).approval == "consumed"
    ledger.retry_failed(SHOP, KEY)
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, approval=Approval())
    assert len(bank.sent) == 1
    ledger.approve(SHOP, KEY, by="bob")
    run(ledger, bank)
    assert len(bank.sent) == 2
    assert [(e.kind, e.actor) for e in ledger.events(SHOP, KEY) if e.kind == "approved"] == [
        ("approved", "human alice"),
        ("approved", "human bob"),
    ]


def test_a_call_that_leaves_the_approval_out_does_not_get_round_it(ledger, bank):
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, approval=Approval())
    for recover in ("block", "reconcile", "resend"):
        with pytest.raises(ApprovalRequired):
            run(ledger, bank, recover=recover)
    assert not bank.sent


def test_who_needs_none_is_not_asked(ledger, bank):
    large = Approval(when=lambda arguments: arguments["amount_minor"] > 5000)
    run(ledger, bank, key="small", approval=large)
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, key="large", arguments={**ARGUMENTS, "amount_minor": 5001}, approval=large)
    with pytest.raises(KeyError):
        run(ledger, bank, key="odd", arguments={}, approval=large)
    assert keys(ledger) == ["large", "small"]


@pytest.mark.parametrize(("seconds", "sent"), [(3599.9, 1), (3600, 0), (1e7, 0)])
def test_an_approval_ends_with_its_time(ledger, clock, bank, seconds, sent):
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, approval=HOUR)
    clock.now += 86400  # how long it waited does not count
    ledger.approve(SHOP, KEY, by="alice")
    clock.now += seconds
    if sent:
        run(ledger, bank, approval=HOUR)
    else:
        with pytest.raises(ApprovalRequired):
            run(ledger, bank, approval=HOUR)
        intent = ledger.get(SHOP, KEY)
        assert (intent.approval, intent.approver) == ("pending", None)
        assert ledger.events(SHOP, KEY)[-1].kind == "approval_expired"
        clock.now -= seconds  # a clock that goes back brings no approval back
        with pytest.raises(ApprovalRequired):
            run(ledger, bank, approval=HOUR)
        ledger.approve(SHOP, KEY, by="alice")
        run(ledger, bank, approval=HOUR)
    assert len(bank.sent) == 1


def test_an_approval_without_a_time_stays(ledger, clock, bank):
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, approval=Approval())
    ledger.approve(SHOP, KEY, by="alice")
    clock.now += 1e9
    assert run(ledger, bank)


@pytest.mark.parametrize("ttl", [0, -1, "1 week", "", "h", float("nan"), float("inf"), "-1h"])
def test_a_time_that_is_none_is_refused(ledger, bank, ttl):
    with pytest.raises(InvalidArgument, match="duration"):
        run(ledger, bank, approval=Approval(ttl=ttl))
    assert keys(ledger) == []


def test_an_approval_is_for_the_arguments_that_were_recorded(ledger, bank):
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, approval=Approval())
    ledger.approve(SHOP, KEY, by="alice")
    with pytest.raises(ActionConflict):
        run(ledger, bank, arguments={**ARGUMENTS, "amount_minor": 999_999}, approval=Approval())
    with pytest.raises(ActionConflict):
        run(ledger, Bank(identity="bank/1 account-8"), approval=Approval())
    assert not bank.sent
    run(ledger, bank, approval=Approval())
    assert [one.arguments["amount_minor"] for one in bank.sent] == [1200]


def test_what_is_sent_is_what_was_approved_whatever_a_later_call_says_outside_its_payload(ledger, bank):
    options = {"approval": Approval(), "payload": ("currency",)}
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, **options)
    ledger.approve(SHOP, KEY, by="alice")
    try:
        run(ledger, bank, arguments={**ARGUMENTS, "amount_minor": 999_999}, **options)
    except ActionConflict:
        run(ledger, bank, **options)
    assert [one.arguments["amount_minor"] for one in bank.sent] == [1200]


def test_an_attempt_that_now_needs_an_approval_waits_for_one_though_the_first_needed_none(ledger):
    bank = Bank(rejects)
    with pytest.raises(IntentFailed):
        run(ledger, bank)
    ledger.retry_failed(SHOP, KEY)
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, approval=Approval())
    assert len(bank.sent) == 1
    ledger.approve(SHOP, KEY, by="alice")
    assert run(ledger, bank, approval=Approval())


def test_what_was_denied_is_never_sent_and_its_key_stays_used(ledger, bank):
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, approval=Approval())
    ledger.approve(SHOP, KEY, by="alice")
    denied = ledger.deny(SHOP, KEY, by="bob", reason="too much")
    assert denied.state == "CANCELLED"
    for options in ({}, {"approval": Approval()}, {"retry": ("not_sent", "rejected", "tombstoned")}):
        with pytest.raises(IntentFailed, match="too much") as caught:
            run(ledger, bank, **options)
    assert caught.value.kind in ("denied", "cancelled")
    for verb in (ledger.approve, lambda *where, by: ledger.retry_failed(*where)):
        with pytest.raises(InvalidArgument):
            verb(SHOP, KEY, by="alice")
    assert not bank.sent
    assert ledger.events(SHOP, KEY)[-1].actor == "human bob"


@pytest.mark.parametrize("by", ["", "  "])
def test_whoever_approves_or_denies_has_a_name(ledger, bank, by):
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, approval=Approval())
    with pytest.raises(InvalidArgument, match="by"):
        ledger.approve(SHOP, KEY, by=by)
    with pytest.raises(InvalidArgument, match="by"):
        ledger.deny(SHOP, KEY, by=by, reason="r")
    assert ledger.get(SHOP, KEY).approval == "pending"


def test_of_eight_threads_with_one_approval_one_acts(ledger):
    told = threading.Semaphore(0)
    bank = Bank(waits_for(told, 7))
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, approval=Approval())
    ledger.approve(SHOP, KEY, by="alice")

    def thread(_):
        try:
            return bool(run(ledger, bank, approval=Approval()))
        except InFlight:
            told.release()
            return False

    assert sum(at_once(thread)) == 1
    assert len(bank.sent) == 1
