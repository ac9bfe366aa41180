"""What the application grants: limits of a group, approvals, tickets, compensation; and what pruning must not forget."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from letitloop import (
    ActionConflict,
    Approval,
    ApprovalRequired,
    InFlight,
    IntentFailed,
    IntentNotFound,
    IntentPruned,
    InvalidArgument,
    Ledger,
    Limit,
    MemoryStore,
    NotAuthorized,
    UnencodableError,
    UnknownOutcome,
)
from letitloop.effects.provider import Found
from tests.effects.acting import (
    ARGUMENTS,
    KEY,
    PATIENCE,
    SHOP,
    Bank,
    Clock,
    capable,
    closed,
    does_not_send,
    happens,
    in_flight,
    loses_its_reply,
    never_arrives,
    rejects,
    run,
    unsettled,
)
from tests.interrupts import in_memory


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ledger(clock):
    return Ledger(store=MemoryStore(), clock=clock)


@pytest.fixture
def bank():
    return Bank()


def keys(ledger):
    return [intent.key for intent in ledger.list()]


# --- limits ------------------------------------------------------------------------------------------------------------------

ONE = Limit(group="refund/42", max_intents=1)
SUM = Limit(group="refund/42", max_sum=("amount_minor", 3000))


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
        start = threading.Barrier(8)
        three = Limit(group="g", max_intents=3, max_sum=("amount_minor", 5000))

        def thread(n):
            start.wait(PATIENCE)
            try:
                return bool(run(ledger, bank, key=f"k{n}", limit=three))
            except NotAuthorized:
                return False

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(thread, range(8))) == 3
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


# --- approvals ---------------------------------------------------------------------------------------------------------------

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

    def waits_for_the_others(bank, dispatch):
        for _ in range(7):
            assert told.acquire(timeout=PATIENCE)
        return bank.act(dispatch)

    bank = Bank(waits_for_the_others)
    with pytest.raises(ApprovalRequired):
        run(ledger, bank, approval=Approval())
    ledger.approve(SHOP, KEY, by="alice")

    def thread(_):
        try:
            return bool(run(ledger, bank, approval=Approval()))
        except InFlight:
            told.release()
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(thread, range(8))) == 1
    assert len(bank.sent) == 1


# --- tickets -----------------------------------------------------------------------------------------------------------------


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
    start = threading.Barrier(8)

    def thread(n):
        start.wait(PATIENCE)
        try:
            return bool(run(ledger, bank, key=f"k{n}", ticket=ticket))
        except NotAuthorized:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(thread, range(8))) == 1
    assert len(bank.sent) == 1


def test_a_scope_that_cannot_be_recorded_makes_no_ticket(ledger):
    with pytest.raises(UnencodableError):
        ledger.authorize("refund", scope={"lock": threading.Lock()})


# --- compensation ------------------------------------------------------------------------------------------------------------

TAKES_BACK = {"compensates": (SHOP, KEY)}


def take_back(ledger, bank, key="back", **options):
    return ledger.run(SHOP, key, bank, {"operation": "charge"}, **{**TAKES_BACK, **options})


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


# --- pruning -----------------------------------------------------------------------------------------------------------------


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
