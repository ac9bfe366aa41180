"""Commits that fail: before the dispatch nothing was sent, after it the outcome is unknown and the next opening asks."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from letitloop import IntentNotFound, StoreError, UnknownOutcome
from letitloop.effects import ledger_file
from letitloop.wal.files import OsFs
from tests.effects.acting import KEY, PATIENCE, SHOP, capable, commits_fail, run, unsettled


@pytest.mark.parametrize("error", [OSError(5, "EIO"), OSError(28, "ENOSPC"), sqlite3.OperationalError("disk I/O error")])
def test_a_commit_that_fails_before_the_dispatch_sends_nothing_and_can_be_tried_again(ledger, bank, error):
    run(ledger, bank, key="before")
    with commits_fail(1, error=error), pytest.raises(StoreError, match="not executed"):
        run(ledger, bank)
    assert len(bank.sent) == 1
    with pytest.raises(IntentNotFound):
        ledger.get(SHOP, KEY)
    assert run(ledger, bank)
    assert len(bank.sent) == 2


@pytest.mark.parametrize("error", [OSError(5, "EIO"), sqlite3.OperationalError("disk I/O error")])
def test_a_commit_that_fails_after_the_dispatch_is_an_unknown_outcome_and_the_next_opening_asks(ledger, path, error):
    bank = capable()
    run(ledger, bank, key="before")
    first = ledger_file.open_ledger(ledger.location)
    with commits_fail(2, error=error), pytest.raises(UnknownOutcome) as caught:
        run(ledger, bank)
    assert caught.value.reason == "ledger write failed"
    assert (caught.value.namespace, caught.value.key) == (SHOP, KEY)
    assert first.poisoned
    with pytest.raises(StoreError, match="not used again"), first.transaction():
        pass
    assert ledger.get(SHOP, KEY).state == "DISPATCHED"
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}
    assert len(bank.sent) == 2
    assert [event.kind for event in ledger.events(SHOP, KEY)] == ["prepared", "dispatched", "takeover", "succeeded"]


def test_a_disk_that_stays_full_after_the_dispatch_is_an_unknown_outcome_too(ledger):
    bank = capable()
    run(ledger, bank, key="before")

    def fills_up(bank, dispatch):
        full.__enter__()
        return bank.act(dispatch)

    full = commits_fail()
    bank.says.append(fills_up)
    try:
        with pytest.raises(UnknownOutcome) as caught:
            run(ledger, bank)
    finally:
        full.__exit__(None, None, None)
    assert caught.value.reason == "ledger write failed"
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}
    assert len(bank.effects) == 2


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_commit_that_fails_while_an_outcome_is_asked_for_changes_nothing(ledger, n):
    bank = capable()
    unsettled(ledger, bank)
    with commits_fail(n):
        try:
            ledger.reconcile(SHOP, KEY, bank)
        except StoreError:
            assert n <= 2
        else:
            assert n == 3
    assert ledger.get(SHOP, KEY).state == ["DISPATCHED", "UNKNOWN", "SUCCEEDED"][n - 1]
    assert ledger.reconcile(SHOP, KEY, bank).state == "SUCCEEDED"


def test_other_threads_in_the_middle_of_an_action_are_told_when_the_handle_is_poisoned(ledger):
    """Their provider has acted; what came of it is recorded by a new opening, or open for the next who asks. Never lost."""
    bank = capable()
    begun, go_on = threading.Event(), threading.Event()

    def waits(bank, dispatch):
        begun.set()
        assert go_on.wait(PATIENCE)
        return bank.act(dispatch)

    bank.says.append(waits)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(run, ledger, bank, "slow")
        assert begun.wait(PATIENCE)
        with commits_fail(2), pytest.raises(UnknownOutcome):
            run(ledger, bank, "fails")
        go_on.set()
        try:
            assert slow.result(PATIENCE) == {"refunded": 1200, "to": "slow"}
        except UnknownOutcome:
            pass
    for key in ("slow", "fails"):
        assert run(ledger, bank, key) == {"refunded": 1200, "to": key}
    assert len(bank.effects) == len(bank.sent) == 2


@pytest.mark.parametrize("door", ["pwrite", "open"])
def test_a_mark_that_cannot_be_written_spoils_nothing_that_was_committed(ledger, monkeypatch, path, bank, door):
    """It is written after the commit: nothing there may look as if the action had failed."""
    original = getattr(OsFs, door)

    def fails(*args, **kwargs):
        if any(str(one).endswith("-mark") or (isinstance(one, bytes) and len(one) == 54) for one in args):
            raise OSError(28, "No space left on device")
        return original(*args, **kwargs)

    monkeypatch.setattr(OsFs, door, fails if door == "open" else staticmethod(fails))
    assert run(ledger, bank) == {"refunded": 1200, "to": KEY}
    assert ledger.get(SHOP, KEY).state == "SUCCEEDED"
    assert len(bank.sent) == 1
