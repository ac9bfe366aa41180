"""Pruning: what was settled long ago is forgotten, and what it used up stays used."""

from __future__ import annotations

from datetime import timedelta

import pytest

from letitloop import (
    ActionConflict,
    Approval,
    ApprovalRequired,
    IntentFailed,
    IntentNotFound,
    IntentPruned,
    InvalidArgument,
    Ledger,
    Limit,
    NotAuthorized,
    UnknownOutcome,
)
from letitloop.effects.provider import Found
from tests.effects.acting import KEY, SHOP, Bank, capable, closed, happens, in_flight, loses_its_reply, rejects, run, unsettled
from tests.effects.authority.grants import ONE, keys, take_back
from tests.interrupts import in_memory


def grow_old(ledger, clock, days=100):
    clock.now += days * 86400
    return ledger.prune(older_than=timedelta(days=90))


def test_what_was_settled_long_ago_is_forgotten_and_its_key_never_acts_again(ledger, clock):
    bank = Bank(happens, rejects)
    run(ledger, bank, key="done")
    with pytest.raises(IntentFailed):
        run(ledger, bank, key="failed")
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, key="denied", approval=Approval())
    ledger.deny(SHOP, "denied", by="bob", reason="no")
    assert grow_old(ledger, clock, 89) == 0
    assert grow_old(ledger, clock, 2) == 3
    assert keys(ledger) == []
    assert grow_old(ledger, clock) == 0
    for key, state in (("done", "SUCCEEDED"), ("failed", "FAILED"), ("denied", "CANCELLED")):
        for options in ({}, {"retry": ("rejected", "not_sent")}, {"recover": "resend"}, {"approval": Approval()}):
            with pytest.raises(IntentPruned) as caught:
                run(ledger, bank, key=key, **options)
        assert (caught.value.namespace, caught.value.key, caught.value.state) == (SHOP, key, state)
        with pytest.raises(ActionConflict):
            run(ledger, bank, key=key, arguments={"operation": "refund", "amount_minor": 1})
        for verb in (ledger.get, ledger.events, ledger.cancel, ledger.retry_failed):
            with pytest.raises(IntentNotFound):
                verb(SHOP, key)
    assert len(bank.sent) == 2


def test_nothing_that_is_open_is_forgotten_however_old(ledger, clock):
    bank = capable()
    bank.says.append(loses_its_reply)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, key="unknown", recover="block")
    unsettled(ledger, bank, key="orphaned")
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, key="pending", approval=Approval())
    with in_flight(ledger, bank, key="under way"):
        assert grow_old(ledger, clock) == 0
    assert len(keys(ledger)) == 4


def test_what_is_younger_than_its_provider_s_window_is_kept(ledger, clock):
    year = Bank(window=365 * 86400)
    run(ledger, year)
    assert grow_old(ledger, clock, 364) == 0
    assert grow_old(ledger, clock, 2) == 1


def test_what_has_an_anomaly_is_kept_with_it(ledger, clock):
    bank = Bank(loses_its_reply, lookup="strong")
    bank.reconcile = lambda dispatch: Found("r", "another's key")
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    ledger.resolve(SHOP, KEY, outcome="succeeded", evidence="case 7", by="carol")
    assert grow_old(ledger, clock) == 0
    assert len(ledger.anomalies()) == 1


def test_the_age_counts_from_the_last_change_and_a_namespace_is_pruned_by_itself(ledger, clock, bank):
    run(ledger, bank)
    ledger.run("shop-2", KEY, bank)
    clock.now += 100 * 86400
    assert ledger.prune(older_than=timedelta(days=90), namespace="shop-2") == 1
    assert [intent.namespace for intent in ledger.list()] == [SHOP]
    assert ledger.prune(older_than=timedelta(0)) == 1
    with pytest.raises(InvalidArgument):
        ledger.prune(older_than=timedelta(seconds=-1))


def test_pruning_leaves_other_intents_and_their_history_as_they_are(ledger, clock, bank):
    run(ledger, bank, key="old")
    clock.now += 100 * 86400
    run(ledger, bank, key="young")
    before = ledger.get(SHOP, "young"), ledger.events(SHOP, "young")
    assert ledger.prune(older_than=timedelta(days=90)) == 1
    assert (ledger.get(SHOP, "young"), ledger.events(SHOP, "young")) == before


def test_event_numbers_are_never_given_twice(ledger, clock, bank):
    run(ledger, bank, key="a")
    last = ledger.events(SHOP, "a")[-1].seq
    grow_old(ledger, clock)
    run(ledger, bank, key="b")
    assert ledger.events(SHOP, "b")[0].seq > last


def test_a_ticket_stays_used_after_its_action_was_forgotten(ledger, clock, bank):
    ticket = ledger.authorize("refund")
    run(ledger, bank, key="a", ticket=ticket)
    assert grow_old(ledger, clock) == 1
    with pytest.raises(NotAuthorized):
        run(ledger, bank, key="b", ticket=ticket)
    assert len(bank.sent) == 1


def test_what_was_taken_back_stays_taken_back_after_that_was_forgotten(ledger, clock, bank):
    """The original is kept longer: its provider's window is open."""
    run(ledger, Bank(window=365 * 86400))
    take_back(ledger, bank)
    assert grow_old(ledger, clock) == 0  # it is kept as long as what it took back is on record
    with pytest.raises(NotAuthorized):
        take_back(ledger, bank, key="again")
    assert len(bank.sent) == 1


@pytest.mark.parametrize("limit", [ONE, Limit(group="refund/42", max_sum=("amount_minor", 1200))], ids=["intents", "sum"])
def test_what_was_spent_stays_spent_after_it_was_forgotten(ledger, clock, bank, limit):
    run(ledger, bank, key="a", limit=limit)
    assert grow_old(ledger, clock) == 1
    with pytest.raises(NotAuthorized):
        run(ledger, bank, key="b", limit=limit)


def test_a_pruned_ledger_opened_again_still_refuses_the_old_key(clock, bank):
    with in_memory() as path:
        ledger = Ledger(f"{path}/l.db", clock=clock)
        run(ledger, bank)
        assert grow_old(ledger, clock) == 1
        closed(ledger)
        with pytest.raises(IntentPruned):
            run(Ledger(f"{path}/l.db", clock=clock), bank)
    assert len(bank.sent) == 1
