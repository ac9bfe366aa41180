"""Limits of a group: how many intents and what sum, which of them count, and what an open outcome freezes."""

from __future__ import annotations

import pytest

from letitloop import (
    ActionConflict,
    Approval,
    ApprovalRequired,
    IntentFailed,
    InvalidArgument,
    Ledger,
    Limit,
    NotAuthorized,
    UnknownOutcome,
)
from tests.effects.acting import (
    ARGUMENTS,
    SHOP,
    Bank,
    at_once,
    capable,
    does_not_send,
    in_flight,
    loses_its_reply,
    rejects,
    run,
    unsettled,
)
from tests.effects.authority.grants import ONE, SUM, keys
from tests.interrupts import in_memory


def test_a_group_has_at_most_so_many_intents_and_a_repeat_is_none(ledger, bank):
    for _ in range(3):
        run(ledger, bank, key="a", limit=ONE)
    with pytest.raises(NotAuthorized, match=r"refund/42.*\ba\b"):
        run(ledger, bank, key="b", limit=ONE)
    assert keys(ledger) == ["a"]
    run(ledger, bank, key="c", limit=Limit(group="refund/43", max_intents=1))
    ledger.run("shop-2", "b", bank, ARGUMENTS, limit=ONE)
    assert len(bank.sent) == 3
    assert ledger.get(SHOP, "a").group == "refund/42"


def test_a_group_comes_to_at_most_a_sum(ledger, bank):
    run(ledger, bank, key="a", limit=SUM)
    run(ledger, bank, key="b", limit=SUM)
    with pytest.raises(NotAuthorized, match="3000"):
        run(ledger, bank, key="c", limit=SUM)
    run(ledger, bank, key="d", arguments={**ARGUMENTS, "amount_minor": 600}, limit=SUM)
    with pytest.raises(NotAuthorized):
        run(ledger, bank, key="e", arguments={**ARGUMENTS, "amount_minor": 1}, limit=SUM)
    run(ledger, bank, key="f", arguments={**ARGUMENTS, "amount_minor": 0}, limit=SUM)
    assert keys(ledger) == ["a", "b", "d", "f"]


def test_the_bound_of_a_sum_may_be_a_function_of_the_arguments(ledger, bank):
    bound = Limit(group="g", max_sum=("amount_minor", lambda arguments: {"eur": 1200}[arguments["currency"]]))
    run(ledger, bank, key="a", limit=bound)
    with pytest.raises(NotAuthorized):
        run(ledger, bank, key="b", limit=bound)


@pytest.mark.parametrize("amount", [1.5, "1200", None, True, -1, float("nan")])
def test_an_amount_that_is_no_whole_number_is_refused(ledger, bank, amount):
    with pytest.raises(InvalidArgument, match="amount_minor"):
        run(ledger, bank, arguments={**ARGUMENTS, "amount_minor": amount}, limit=SUM)
    assert keys(ledger) == []


@pytest.mark.parametrize("amount", [10**19, 2**63, 2**63 - 1, 10**40])
def test_amounts_of_any_size_are_counted_or_refused_in_words(ledger, bank, amount):
    """Currencies with eighteen decimal places have such amounts."""
    huge = Limit(group="g", max_sum=("amount_minor", 2 * amount))
    try:
        for key in "ab":
            run(ledger, bank, key=key, arguments={**ARGUMENTS, "amount_minor": amount}, limit=huge)
    except (InvalidArgument, NotAuthorized):
        assert keys(ledger) == []
        return
    with pytest.raises(NotAuthorized):
        run(ledger, bank, key="c", arguments={**ARGUMENTS, "amount_minor": 1}, limit=huge)


def test_what_certainly_did_not_happen_does_not_count(ledger):
    bank = Bank(rejects, does_not_send)
    for key in "ab":
        with pytest.raises(IntentFailed):
            run(ledger, bank, key=key, limit=ONE)
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, key="c", limit=ONE, approval=Approval())
    ledger.deny(SHOP, "c", by="bob", reason="no")
    run(ledger, bank, key="d", limit=ONE)
    assert [intent.state for intent in ledger.list()] == ["FAILED", "FAILED", "CANCELLED", "SUCCEEDED"]


def test_what_failed_counts_again_when_it_is_tried_again(ledger):
    bank = Bank(rejects)
    with pytest.raises(IntentFailed):
        run(ledger, bank, key="a", limit=ONE)
    run(ledger, bank, key="b", limit=ONE)
    with pytest.raises(NotAuthorized):
        ledger.retry_failed(SHOP, "a", bank)
    with pytest.raises(NotAuthorized):
        run(ledger, bank, key="a", limit=ONE)
    assert ledger.get(SHOP, "a").state == "FAILED"
    assert len(bank.sent) == 2


def test_what_waits_for_an_approval_counts(ledger, bank):
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, key="a", limit=ONE, approval=Approval())
    with pytest.raises(NotAuthorized):
        run(ledger, bank, key="b", limit=ONE)
    ledger.approve(SHOP, "a", by="alice")
    run(ledger, bank, key="a", limit=ONE, approval=Approval())
    assert len(bank.sent) == 1


def test_what_is_under_way_counts_and_does_not_block(ledger, bank):
    two = Limit(group="refund/42", max_intents=2)
    with in_flight(ledger, bank, key="a", limit=two):
        run(ledger, bank, key="b", limit=two)
        with pytest.raises(NotAuthorized):
            run(ledger, bank, key="c", limit=two)


@pytest.mark.parametrize("how", ["UNKNOWN", "orphaned"])
def test_one_open_outcome_freezes_its_group_until_it_is_settled(ledger, how):
    bank = capable()
    many = Limit(group="refund/42", max_intents=9)
    if how == "orphaned":
        unsettled(ledger, bank, key="a", limit=many)
    else:
        bank.says.append(loses_its_reply)
        with pytest.raises(UnknownOutcome):
            run(ledger, bank, key="a", limit=many, recover="block")
    with pytest.raises(UnknownOutcome, match="same group") as caught:
        run(ledger, bank, key="b", limit=many)
    assert caught.value.key == "a", "the one that has to be settled"
    assert keys(ledger) == ["a"]
    run(ledger, bank, key="elsewhere", limit=Limit(group="refund/43", max_intents=9))
    ledger.reconcile(SHOP, "a", bank)
    run(ledger, bank, key="b", limit=many)
    assert len(bank.effects) == 3


def test_where_it_does_not_block_an_open_outcome_counts_as_spent(ledger):
    bank = Bank(loses_its_reply)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, key="a", limit=SUM)
    run(ledger, bank, key="b", limit=SUM, block_group_on=None)
    with pytest.raises(NotAuthorized, match="unknown counts as spent"):
        run(ledger, bank, key="c", limit=SUM, block_group_on=None)
    with pytest.raises(NotAuthorized):
        run(ledger, bank, key="d", limit=ONE, block_group_on=None)


def test_its_own_open_outcome_does_not_freeze_an_intent(ledger):
    bank = capable(loses_its_reply)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, key="a", limit=ONE, recover="block")
    assert run(ledger, bank, key="a", limit=ONE)


def test_of_eight_threads_with_keys_of_their_own_the_limit_lets_as_many_act_as_it_says():
    with in_memory() as path:
        ledger = Ledger(f"{path}/l.db")
        bank = Bank()
        three = Limit(group="g", max_intents=3, max_sum=("amount_minor", 5000))

        def thread(n):
            try:
                return bool(run(ledger, bank, key=f"k{n}", limit=three))
            except NotAuthorized:
                return False

        assert sum(at_once(thread)) == 3
        assert len(bank.effects) == 3


def test_a_limit_that_is_left_out_of_a_later_call_still_counts_what_was_recorded_with_it(ledger, bank):
    run(ledger, bank, key="a", limit=ONE)
    run(ledger, bank, key="a")
    with pytest.raises(NotAuthorized):
        run(ledger, bank, key="b", limit=ONE)


def failed_beside_a_success(ledger, bank, amount=3000):
    """Have an intent that failed, and another one that used its group up meanwhile."""
    bank.says.append(rejects)
    with pytest.raises(IntentFailed):
        run(ledger, bank, key="a", limit=SUM, payload=("currency",))
    run(ledger, bank, key="b", arguments={**ARGUMENTS, "amount_minor": amount}, limit=SUM)
    ledger.retry_failed(SHOP, "a")


def test_a_new_attempt_is_limited_as_the_first_was_though_the_later_call_leaves_the_limit_out(ledger, bank):
    failed_beside_a_success(ledger, bank)
    with pytest.raises(NotAuthorized):
        run(ledger, bank, key="a", payload=("currency",))
    assert len(bank.effects) == 1


def test_a_new_attempt_counts_the_amount_that_is_sent_and_not_another_one_outside_the_payload(ledger, bank):
    failed_beside_a_success(ledger, bank)
    with pytest.raises((NotAuthorized, ActionConflict)):
        run(ledger, bank, key="a", arguments={**ARGUMENTS, "amount_minor": 0}, limit=SUM, payload=("currency",))
    assert len(bank.effects) == 1


@pytest.mark.parametrize("group", ["", "x" * 513, "a\0b", "\ud800", None, 5])
def test_a_group_has_a_name(ledger, bank, group):
    with pytest.raises(InvalidArgument, match="group"):
        run(ledger, bank, limit=Limit(group=group, max_intents=1))
    assert keys(ledger) == []
