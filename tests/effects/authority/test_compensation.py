"""Compensation: what has succeeded is taken back once, and nothing else is."""

from __future__ import annotations

import pytest

from letitloop import Approval, ApprovalRequired, IntentFailed, InvalidArgument, NotAuthorized, UnknownOutcome
from tests.effects.acting import (
    KEY,
    SHOP,
    Bank,
    capable,
    does_not_send,
    happens,
    in_flight,
    loses_its_reply,
    never_arrives,
    rejects,
    run,
)
from tests.effects.authority.grants import TAKES_BACK, keys, take_back


def test_only_what_has_succeeded_can_be_taken_back(ledger):
    bank = capable()
    with pytest.raises(NotAuthorized, match="not on record"):
        take_back(ledger, bank)
    bank.says.append(loses_its_reply)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, recover="block")
    with pytest.raises(NotAuthorized, match="UNKNOWN"):
        take_back(ledger, bank)
    assert ledger.reconcile(SHOP, KEY, bank).state == "SUCCEEDED"
    assert take_back(ledger, bank)
    assert ledger.get(SHOP, "back").compensates == (SHOP, KEY)
    assert take_back(ledger, bank), "a repeat"
    assert len(bank.sent) == 2


@pytest.mark.parametrize("says", [rejects, does_not_send])
def test_what_failed_cannot_be_taken_back(ledger, says):
    bank = Bank(says)
    with pytest.raises(IntentFailed):
        run(ledger, bank)
    with pytest.raises(NotAuthorized, match="FAILED"):
        take_back(ledger, bank)


def test_what_is_under_way_or_waits_cannot_be_taken_back(ledger, bank):
    with in_flight(ledger, bank), pytest.raises(NotAuthorized, match="DISPATCHED"):
        take_back(ledger, bank)
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, key="waits", approval=Approval())
    with pytest.raises(NotAuthorized, match="PREPARED"):
        take_back(ledger, bank, compensates=(SHOP, "waits"))


def test_an_intent_is_taken_back_once(ledger, bank):
    run(ledger, bank)
    take_back(ledger, bank)
    with pytest.raises(NotAuthorized, match="already compensated by 'back'"):
        take_back(ledger, bank, key="again")
    with pytest.raises(NotAuthorized, match="already compensated"):
        ledger.run("shop-2", "again", bank, **TAKES_BACK)


def test_after_a_compensation_that_failed_another_one_may_be_made_and_not_both(ledger):
    bank = Bank(happens, rejects)
    run(ledger, bank)
    with pytest.raises(IntentFailed):
        take_back(ledger, bank)
    take_back(ledger, bank, key="again")
    with pytest.raises(NotAuthorized):
        ledger.retry_failed(SHOP, "back", bank)
    assert len(bank.effects) == 2


def test_a_compensation_stays_one_though_a_later_call_leaves_that_out(ledger):
    bank = Bank(happens, rejects)
    run(ledger, bank)
    with pytest.raises(IntentFailed):
        take_back(ledger, bank)
    take_back(ledger, bank, key="again")
    ledger.retry_failed(SHOP, "back")
    with pytest.raises(NotAuthorized):
        take_back(ledger, bank, compensates=None)
    assert len(bank.effects) == 2


def test_a_compensation_that_is_open_or_waits_is_one(ledger):
    bank = Bank(happens, never_arrives)
    run(ledger, bank)
    with pytest.raises(UnknownOutcome):
        take_back(ledger, bank)
    with pytest.raises(NotAuthorized):
        take_back(ledger, bank, key="again")


def test_no_action_takes_itself_back(ledger, bank):
    with pytest.raises((NotAuthorized, InvalidArgument)):
        run(ledger, bank, **TAKES_BACK)
    assert keys(ledger) == []
