"""Tickets: each allows one action, and no more than it says."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from letitloop import IntentFailed, InvalidArgument, Ledger, MemoryStore, NotAuthorized, UnencodableError, UnknownOutcome
from tests.effects.acting import ARGUMENTS, SHOP, Bank, at_once, does_not_send, never_arrives, rejects, run
from tests.effects.authority.grants import keys


def test_two_tickets_are_two_actions_that_are_otherwise_equal(ledger, bank):
    tickets = [ledger.authorize("refund", scope={"currency": "eur"}, max_amount=1200) for _ in range(2)]
    assert len({str(ticket) for ticket in tickets}) == 2
    for ticket in tickets:
        for given in (ticket, str(ticket)):
            run(ledger, bank, key=f"refund/42/{ticket}", ticket=given)
    assert len(bank.sent) == 2


@pytest.mark.parametrize(
    ("terms", "match"),
    [
        ({"operation": "charge"}, "charge"),
        ({"operation": "refund", "scope": {"currency": "usd"}}, "currency"),
        ({"operation": "refund", "scope": {"order_id": 42}}, "order_id"),
        ({"operation": "refund", "max_amount": 1199}, "1199"),
        ({"operation": "refund", "max_amount": 5, "amount_field": "fee"}, "fee"),
    ],
)
def test_a_ticket_allows_what_it_says_and_nothing_else(ledger, bank, terms, match):
    ticket = ledger.authorize(**terms)
    with pytest.raises((NotAuthorized, InvalidArgument), match=match):
        run(ledger, bank, ticket=ticket)
    assert keys(ledger) == []


def test_a_ticket_of_exactly_the_amount_will_do(ledger, bank):
    assert run(ledger, bank, ticket=ledger.authorize("refund", max_amount=1200))


def test_a_ticket_is_used_for_one_action(ledger, bank):
    ticket = ledger.authorize("refund")
    run(ledger, bank, key="a", ticket=ticket)
    run(ledger, bank, key="a", ticket=ticket)
    for key, namespace in (("b", SHOP), ("a", "shop-2")):
        with pytest.raises(NotAuthorized, match="ticket was used"):
            ledger.run(namespace, key, bank, ARGUMENTS, ticket=ticket)
    assert len(bank.sent) == 1


@pytest.mark.parametrize("says", [rejects, does_not_send, never_arrives])
def test_a_ticket_whose_action_failed_or_is_open_is_used_for_no_other(ledger, says):
    bank = Bank(says)
    ticket = ledger.authorize("refund")
    with pytest.raises((IntentFailed, UnknownOutcome)):
        run(ledger, bank, key="a", ticket=ticket)
    with pytest.raises(NotAuthorized):
        run(ledger, bank, key="b", ticket=ticket)


def test_a_ticket_that_allowed_another_attempt_is_used_too(ledger):
    bank = Bank(rejects)
    with pytest.raises(IntentFailed):
        run(ledger, bank, key="a")
    ticket = ledger.authorize("refund")
    run(ledger, bank, key="a", ticket=ticket, retry=("rejected",))
    with pytest.raises(NotAuthorized):
        run(ledger, bank, key="b", ticket=ticket)


def test_a_ticket_of_another_ledger_or_one_that_was_made_up_is_refused(ledger, bank):
    other = Ledger(store=MemoryStore()).authorize("refund")
    for ticket in (other, "made-up", ""):
        with pytest.raises(NotAuthorized, match="not of this ledger"):
            run(ledger, bank, ticket=ticket)
    assert keys(ledger) == []


def test_a_ticket_that_was_changed_by_whoever_holds_it_is_still_what_was_authorised(ledger, bank):
    ticket = ledger.authorize("refund", max_amount=5)
    with pytest.raises(NotAuthorized):
        run(ledger, bank, ticket=replace(ticket, max_amount=5000))


def test_of_eight_threads_with_one_ticket_one_acts(ledger, bank):
    ticket = ledger.authorize("refund")

    def thread(n):
        try:
            return bool(run(ledger, bank, key=f"k{n}", ticket=ticket))
        except NotAuthorized:
            return False

    assert sum(at_once(thread)) == 1
    assert len(bank.sent) == 1


def test_a_scope_that_cannot_be_recorded_makes_no_ticket(ledger):
    with pytest.raises(UnencodableError):
        ledger.authorize("refund", scope={"lock": threading.Lock()})
