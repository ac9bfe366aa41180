"""An open outcome: what settles it, when it may be sent again, and what words do that come too late."""

from __future__ import annotations

import pytest

import letitloop
from letitloop import IntentFailed, UnknownOutcome
from letitloop.effects import ledger_file
from letitloop.effects.provider import Found, NotExecuted, NotFound, StillRunning, Succeeded, Unavailable
from tests.effects.acting import (
    KEY,
    SHOP,
    Bank,
    capable,
    does_not_know,
    does_not_send,
    happens,
    kinds,
    loses_its_reply,
    never_arrives,
    raises,
    rejects,
    run,
)

# --- an outcome that is open -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [loses_its_reply, does_not_know, raises(RuntimeError("odd"))])
def test_an_open_outcome_is_never_sent_again_without_a_window(ledger, lost):
    bank = Bank(lost)
    for recover in ("reconcile", "block", "resend", "reconcile"):
        with pytest.raises(UnknownOutcome) as caught:
            run(ledger, bank, recover=recover)
    assert len(bank.sent) == 1
    assert (caught.value.namespace, caught.value.key) == (SHOP, KEY)
    assert "not sent again" in str(caught.value)
    assert SHOP in str(caught.value)


def test_a_lost_reply_is_found_by_its_receipt_in_the_same_call(ledger):
    bank = capable(loses_its_reply)
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}
    assert len(bank.sent) == len(bank.effects) == 1
    assert ledger.get(SHOP, KEY).receipt == "r-1"


def test_recover_block_does_not_even_ask(ledger):
    bank = capable(loses_its_reply)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, recover="block")
    assert not bank.asked


PROVES_NOTHING = [
    NotFound("no such key"),
    StillRunning("working"),
    Unavailable("503"),
    NotExecuted("not_sent", "I say so"),
    None,
    5,
    "no",
]


@pytest.mark.parametrize("answer", PROVES_NOTHING)
def test_what_proves_nothing_changes_nothing_but_when_to_ask_again(ledger, clock, answer):
    bank = Bank(loses_its_reply, lookup="strong")
    bank.reconcile = lambda dispatch: answer
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    first = ledger.get(SHOP, KEY)
    for _ in range(3):
        clock.now += 5
        assert ledger.reconcile(SHOP, KEY, bank).state == "UNKNOWN"
    last = ledger.get(SHOP, KEY)
    assert last.next_check_at > first.next_check_at
    assert (last.attempt, last.provider_key, last.arguments) == (first.attempt, first.provider_key, first.arguments)
    assert kinds(ledger)[-4:] == ["checked"] * 4


@pytest.mark.parametrize("error", [ValueError("odd"), StopIteration(3), AssertionError(), OSError(5, "EIO"), LookupError("\ud800")])
@pytest.mark.parametrize("method", ["reconcile", "tombstone"])
def test_an_error_of_a_lookup_settles_nothing(ledger, method, error):
    bank = capable(never_arrives)

    def fails(dispatch):
        raise error

    setattr(bank, method, fails)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    assert ledger.reconcile(SHOP, KEY, bank).state == "UNKNOWN"


def test_a_request_that_is_still_being_worked_on_is_found_once_it_has_ended(ledger):
    bank = capable(loses_its_reply)
    bank.reconcile = lambda dispatch: StillRunning("queued")
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    assert bank.asked == [], "its key is not occupied while it is being worked on"
    del bank.reconcile
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}


def test_a_tombstone_makes_certain_that_it_did_not_happen_and_a_late_request_is_refused(ledger):
    bank = capable(never_arrives)
    with pytest.raises(IntentFailed) as caught:
        run(ledger, bank)
    assert caught.value.kind == "tombstoned"
    assert isinstance(bank.act(bank.sent[0]), NotExecuted), "the late request"
    run(ledger, bank, retry=("tombstoned",))
    assert len(bank.effects) == 1


@pytest.mark.parametrize(
    ("receipt", "wrong"),
    [
        (Found("r", "0" * 40), ["provider_key"]),
        (Found("r", None, {"amount_minor": 1}), ["amount_minor"]),
        (Found("r", None, {"amount_minor": 1200, "currency": "usd"}), ["currency"]),
        (Found("r", None, {"payee": "me"}), ["payee"]),
    ],
)
def test_a_receipt_of_another_action_is_an_anomaly_and_no_success(ledger, receipt, wrong):
    bank = Bank(loses_its_reply, lookup="strong")
    bank.reconcile = lambda dispatch: Found(receipt.result, receipt.provider_key or dispatch.provider_key, receipt.arguments)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    (anomaly,) = ledger.anomalies()
    assert (anomaly.key, anomaly.evidence["what"], anomaly.evidence["fields"]) == (KEY, "mismatch", wrong)
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"


@pytest.mark.parametrize(("seconds", "sent"), [(0, 2), (59.9, 2), (60, 1), (1e9, 1), (-1, 1)])
def test_sending_again_ends_with_the_provider_s_window_and_never_trusts_a_clock_that_went_back(ledger, clock, seconds, sent):
    bank = Bank(loses_its_reply, window=60)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    clock.now += seconds
    if sent == 2:
        assert ledger.resend(SHOP, KEY, bank) == {"refunded": 1200, "to": KEY}
        assert ledger.get(SHOP, KEY).basis == "replay"
    else:
        with pytest.raises(UnknownOutcome, match=r"window|clock"):
            ledger.resend(SHOP, KEY, bank)
        with pytest.raises(UnknownOutcome, match=r"window|clock"):
            run(ledger, bank, recover="resend")
    assert len(bank.sent) == sent
    assert len({(one.provider_key, tuple(one.arguments.items())) for one in bank.sent}) == 1
    assert len(bank.effects) == 1


def test_the_window_counts_from_the_first_sending(ledger, clock):
    bank = Bank(*[never_arrives] * 9, window=60)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    for _ in range(5):
        clock.now += 15
        with pytest.raises(UnknownOutcome):
            ledger.resend(SHOP, KEY, bank)
    assert len(bank.sent) == 4, "at 0, 15, 30 and 45 seconds"


def test_a_window_that_the_provider_no_longer_declares_is_closed_and_a_longer_one_does_not_count(ledger, clock):
    bank = Bank(never_arrives, window=60)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    clock.now += 30
    for window in (None, 20):
        with pytest.raises(UnknownOutcome, match="window"):
            ledger.resend(SHOP, KEY, Bank(window=window))
    clock.now += 40
    with pytest.raises(UnknownOutcome, match="window"):
        ledger.resend(SHOP, KEY, Bank(window=86400))


def test_a_clock_that_goes_back_loses_and_repeats_nothing(ledger, clock):
    bank = capable(loses_its_reply)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank, recover="block")
    clock.now -= 1e6
    assert run(ledger, bank)
    clock.now -= 1e6
    assert run(ledger, bank)
    assert len(bank.sent) == 1
    times = [event.at for event in ledger.events(SHOP, KEY)]
    assert times == sorted(times, reverse=True), "history keeps its order by number, not by time"
    assert ledger.intents.prune(clock()) == 0


@pytest.mark.parametrize("reply", [does_not_send, rejects])
def test_that_the_second_sending_did_not_happen_proves_nothing_about_the_first(ledger, reply):
    bank = Bank(loses_its_reply, reply, window=60)
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    with pytest.raises(UnknownOutcome, match="first sending"):
        ledger.resend(SHOP, KEY, bank)
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"
    assert ledger.resend(SHOP, KEY, bank) == {"refunded": 1200, "to": KEY}
    assert len(bank.effects) == 1


# --- late facts --------------------------------------------------------------------------------------------------------------


def after_it_was_given_up(ledger, then, reply):
    """Act so slowly that the owner counts as dead, ``then`` is done about the intent, and only now the reply comes."""

    def acts(bank, dispatch):
        ledger_file.open_ledger(ledger.location).owner.under_way.clear()
        then()
        return reply(bank, dispatch)

    return acts


def test_a_late_success_settles_what_is_unknown(ledger):
    other = Bank()
    bank = Bank(after_it_was_given_up(ledger, lambda: ledger.reconcile(SHOP, KEY, other), happens))
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}
    assert kinds(ledger) == ["prepared", "dispatched", "takeover", "late_result", "succeeded"]
    assert ledger.get(SHOP, KEY).basis == "response"


@pytest.mark.parametrize("reply", [never_arrives, does_not_send, rejects, does_not_know])
def test_a_late_failure_settles_nothing_for_its_owner_was_fenced(ledger, reply):
    other = Bank()
    bank = Bank(after_it_was_given_up(ledger, lambda: ledger.reconcile(SHOP, KEY, other), reply))
    with pytest.raises(UnknownOutcome):
        run(ledger, bank)
    assert kinds(ledger)[-1] == "late_result"
    assert ledger.get(SHOP, KEY).state == "UNKNOWN"


def test_a_late_success_of_what_a_person_called_failed_is_an_anomaly_that_reaches_the_caller(ledger):
    def says_no():
        ledger.resolve(SHOP, KEY, outcome="failed", evidence="case 7", by="carol")

    with pytest.raises(letitloop.Fenced) as caught:
        run(ledger, Bank(after_it_was_given_up(ledger, says_no, happens)))
    assert not isinstance(caught.value, Exception)
    (anomaly,) = ledger.anomalies()
    assert anomaly.evidence["what"] == "contradiction"
    assert ledger.get(SHOP, KEY).state == "FAILED"


def test_a_late_success_of_an_earlier_attempt_is_an_anomaly_of_a_duplicate(ledger):
    def is_done_again():
        ledger.resolve(SHOP, KEY, outcome="failed", evidence="case 7", by="carol")
        ledger.retry_failed(SHOP, KEY, Bank())

    with pytest.raises(letitloop.Fenced):
        run(ledger, Bank(after_it_was_given_up(ledger, is_done_again, happens)))
    (anomaly,) = ledger.anomalies()
    assert anomaly.evidence["what"] == "duplicate"
    assert ledger.get(SHOP, KEY).attempt == 2
    assert ledger.get(SHOP, KEY).state == "SUCCEEDED"


def test_a_late_certificate_against_what_a_person_called_succeeded_is_an_anomaly(ledger):
    def says_yes():
        ledger.resolve(SHOP, KEY, outcome="succeeded", evidence="case 7", by="carol", result="by hand")

    assert run(ledger, Bank(after_it_was_given_up(ledger, says_yes, rejects))) == "by hand"
    (anomaly,) = ledger.anomalies()
    assert anomaly.evidence["what"] == "contradiction"


def test_a_late_success_of_what_was_found_by_its_receipt_is_noted_and_changes_nothing(ledger):
    bank = capable()
    late = after_it_was_given_up(ledger, lambda: ledger.reconcile(SHOP, KEY, bank), lambda bank, dispatch: Succeeded("late"))
    bank.says.append(lambda bank, dispatch: (bank.act(dispatch), late(bank, dispatch))[1])
    run(ledger, bank)
    assert kinds(ledger)[-2:] == ["succeeded", "late_result"]
    assert ledger.get(SHOP, KEY).result == {"refunded": 1200, "to": KEY}
    assert ledger.anomalies() == []
