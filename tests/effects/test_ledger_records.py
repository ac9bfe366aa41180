"""What the ledger keeps: each transition and what it rests on, attempts, a person's decisions; and which action belongs to whom."""

from __future__ import annotations

import pytest

import letitloop
from letitloop import IntentFailed, InvalidArgument, Ledger, MemoryStore
from tests.effects.acting import (
    ARGUMENTS,
    KEY,
    SHOP,
    Bank,
    capable,
    does_not_send,
    in_flight,
    loses_its_reply,
    never_arrives,
    rejects,
    run,
    state,
    stored,
)

# --- what is on record -------------------------------------------------------------------------------------------------------


def test_the_history_tells_each_transition_by_whom_and_on_what_it_rests(ledger):
    bank = capable(does_not_send, never_arrives, loses_its_reply)
    for error in (IntentFailed, IntentFailed):
        with pytest.raises(error):
            run(ledger, bank)
    ledger.retry_failed(SHOP, KEY, by="human dora")
    run(ledger, bank)
    run(ledger, bank)
    history = [(e.kind, e.before, e.after, e.attempt, e.actor) for e in ledger.events(SHOP, KEY)]
    assert history == [
        ("prepared", "", "PREPARED", 1, "worker"),
        ("dispatched", "PREPARED", "DISPATCHED", 1, "worker"),
        ("failed", "DISPATCHED", "FAILED", 1, "worker"),
        ("dispatched", "FAILED", "DISPATCHED", 2, "worker"),
        ("unknown", "DISPATCHED", "UNKNOWN", 2, "worker"),
        ("failed", "UNKNOWN", "FAILED", 2, "reconciler"),
        ("retry_authorised", "FAILED", "FAILED", 2, "human dora"),
        ("dispatched", "FAILED", "DISPATCHED", 3, "worker"),
        ("unknown", "DISPATCHED", "UNKNOWN", 3, "worker"),
        ("succeeded", "UNKNOWN", "SUCCEEDED", 3, "reconciler"),
    ]
    assert len({one.provider_key for one in bank.sent}) == 3, "a new attempt has a new provider key"
    assert len(bank.effects) == 1
    assert ledger.get(SHOP, KEY).basis == "receipt"


def test_not_sent_is_tried_again_by_itself_at_most_max_attempts_times(ledger):
    bank = Bank(*[does_not_send] * 9)
    for _ in range(5):
        with pytest.raises(IntentFailed) as caught:
            run(ledger, bank, max_attempts=3)
    assert len(bank.sent) == 3
    assert (caught.value.kind, caught.value.certificate) == ("not_sent", "connection refused")


def test_other_certified_failures_are_tried_again_where_the_application_says_so(ledger):
    bank = Bank(rejects)
    with pytest.raises(IntentFailed) as caught:
        run(ledger, bank, retry=("rejected",))
    assert (caught.value.kind, caught.value.certificate) == ("rejected", "the account is closed")
    assert caught.value.detail == {"code": 402}, "the provider's own statement"
    assert ledger.get(SHOP, KEY).detail == {"code": 402}
    assert run(ledger, bank, retry=("rejected",)) == {"refunded": 1200, "to": KEY}
    assert [one.attempt for one in bank.sent] == [1, 2]


def test_an_allowed_retry_allows_one_attempt(ledger):
    bank = Bank(rejects, rejects)
    for _ in range(2):
        with pytest.raises(IntentFailed):
            run(ledger, bank)
    assert len(bank.sent) == 1
    ledger.retry_failed(SHOP, KEY)
    for _ in range(2):
        with pytest.raises(IntentFailed):
            run(ledger, bank)
    assert len(bank.sent) == 2


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
def test_what_a_person_resolved_stands_with_name_and_evidence(ledger, bank, outcome):
    with state("UNKNOWN", ledger, bank):
        intent = ledger.resolve(SHOP, KEY, outcome=outcome, evidence="case 7", by="carol", result={"ok": 1}, receipt="r-9")
    event = ledger.events(SHOP, KEY)[-1]
    assert (event.kind, event.actor, event.evidence) == ("resolved", "human carol", "case 7")
    if outcome == "succeeded":
        assert (intent.basis, intent.receipt) == ("human", "r-9")
        assert run(ledger, bank) == {"ok": 1}
    else:
        assert intent.kind == "human"
        with pytest.raises(IntentFailed, match="case 7"):
            run(ledger, bank)
    assert not bank.sent


@pytest.mark.parametrize("details", [{"by": " "}, {"evidence": ""}, {"outcome": "perhaps"}])
def test_a_resolution_without_evidence_a_name_or_an_outcome_is_refused(ledger, bank, details):
    with state("UNKNOWN", ledger, bank):
        before = stored(ledger)
        with pytest.raises(InvalidArgument):
            ledger.resolve(SHOP, KEY, **{"outcome": "failed", "evidence": "case 7", "by": "carol", **details})
        assert stored(ledger) == before


def test_a_list_of_a_state_that_does_not_exist_is_refused(ledger):
    with pytest.raises(InvalidArgument, match="PREPARED"):
        ledger.list(state="OPEN")


# --- what belongs to whom ----------------------------------------------------------------------------------------------------


def test_one_key_in_two_namespaces_is_two_actions(ledger, bank):
    for namespace in ("shop-1", "shop-2"):
        ledger.run(namespace, KEY, bank, ARGUMENTS)
    assert len(bank.sent) == 2
    assert len({one.provider_key for one in bank.sent}) == 2


def test_the_provider_is_given_the_whole_dispatch(ledger, clock, bank):
    run(ledger, bank)
    (sent,) = bank.sent
    intent = ledger.get(SHOP, KEY)
    assert (sent.namespace, sent.key, sent.attempt, sent.epoch) == (SHOP, KEY, 1, 1)
    assert (sent.operation, dict(sent.arguments)) == ("refund", ARGUMENTS)
    assert sent.provider_key == intent.provider_key
    assert len(sent.provider_key) == 40
    assert sent.first_dispatched_at == intent.dispatched_at == clock.now


def test_it_is_on_record_as_dispatched_when_the_provider_is_called(ledger):
    seen = []
    run(ledger, Bank(lambda bank, dispatch: (seen.append(ledger.get(SHOP, KEY).state), bank.act(dispatch))[1]))
    assert seen == ["DISPATCHED"]


def test_the_operation_is_the_one_given_or_the_argument_s_or_the_provider_s_name(ledger, bank):
    ledger.run(SHOP, "a", bank, ARGUMENTS)
    ledger.run(SHOP, "b", bank, ARGUMENTS, operation="pay back")
    ledger.run(SHOP, "c", bank)
    assert [intent.operation for intent in ledger.list()] == ["refund", "pay back", "bank"]


def test_a_store_s_ledger_and_one_in_memory_keep_what_they_are_told(tmp_path, bank):
    for ledger in (Ledger(), Ledger(store=tmp_path / "s"), Ledger(store=MemoryStore())):
        run(ledger, bank)
        run(ledger, bank)
        assert ledger.get(SHOP, KEY).state == "SUCCEEDED"
    assert len(bank.sent) == 3
    assert (tmp_path / "letitloop-store" / "ledger.db").exists()
    assert (tmp_path / "s" / "ledger.db").exists()
    with pytest.raises(InvalidArgument):
        Ledger(tmp_path / "x.db", store=tmp_path / "s")


def test_a_ledger_is_one_however_its_path_is_written(ledger, bank, tmp_path, monkeypatch):
    path = tmp_path / "actions.db"
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    first = Ledger(path)
    monkeypatch.chdir(tmp_path)
    with in_flight(first, bank):
        for other in (Ledger("actions.db"), Ledger(tmp_path / "elsewhere" / ".." / "actions.db"), Ledger(link)):
            with pytest.raises(letitloop.InFlight):
                run(other, Bank())
