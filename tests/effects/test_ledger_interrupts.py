"""Ctrl+C anywhere in the ledger: the recorded state is a true one, and a later call recovers."""

from __future__ import annotations

import dis
import threading
from functools import lru_cache

import pytest

from letitloop import IntentFailed, IntentNotFound, Ledger, UnknownOutcome
from tests.effects.acting import (
    KEY,
    PATIENCE,
    SHOP,
    capable,
    closed,
    happens,
    loses_its_reply,
    never_arrives,
    rejects,
    run,
    unsettled,
)
from tests.interrupts import Interrupt, each_place, in_memory


@lru_cache
def resumed_inside(code):
    """Return where a generator goes on inside ``yield from`` or ``await``: CPython takes a signal in the innermost one alone."""
    return {one.offset for one in dis.get_instructions(code) if one.opname == "RESUME" and one.arg & 3 >= 2}


@pytest.fixture
def where_signals_are_taken(monkeypatch):
    original = Interrupt._event

    def event_of_a_signal(self, frame, event, arg):
        if not (event == "call" and frame.f_lasti >= 0 and frame.f_lasti in resumed_inside(frame.f_code)):
            original(self, frame, event, arg)

    monkeypatch.setattr(Interrupt, "_event", event_of_a_signal)


def ctrl_c(test):
    test = pytest.mark.usefixtures("where_signals_are_taken")(test)
    # a generator that is collected may be the place, and what is raised there goes nowhere
    return pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")(test)


@ctrl_c
@pytest.mark.parametrize("says", [happens, loses_its_reply, never_arrives, rejects])
def test_after_ctrl_c_anywhere_the_state_is_a_true_one_and_a_later_run_recovers(ledger, says):
    bank = capable()

    def act(n):
        bank.says[:] = [says]
        try:
            run(ledger, bank, key=f"k{n}")
        except IntentFailed:
            pass

    def check(n):
        bank.says.clear()
        key = f"k{n}"
        try:
            before = ledger.get(SHOP, key)
        except IntentNotFound:
            before = None
        effects = [one for one in bank.effects if one.key == key]
        assert len(effects) <= 1
        if before is None:
            assert not effects
        else:
            assert before.state != "DISPATCHED", "other processes would wait for this one to end"
            assert before.state != "SUCCEEDED" or effects
            assert before.state != "FAILED" or not effects
        retry = ("not_sent", "tombstoned", "rejected")
        try:
            run(ledger, bank, key=key, retry=retry)
        except IntentFailed:  # it was made certain that it had not happened
            pass
        assert run(ledger, bank, key=key, retry=retry) == {"refunded": 1200, "to": key}
        assert len([one for one in bank.effects if one.key == key]) == 1
        assert ledger.anomalies() == []

    act(-1)
    places, failed = each_place(act, check)
    assert not failed
    assert places > 40


@ctrl_c
def test_after_ctrl_c_anywhere_while_an_outcome_is_asked_for_it_can_be_asked_for_again(ledger):
    bank = capable()

    def act(n):
        ledger.reconcile(SHOP, f"k{n}", bank)

    def check(n):
        assert ledger.reconcile(SHOP, f"k{n}", bank).state == "SUCCEEDED"

    for n in range(-1, 400):
        unsettled(ledger, bank, key=f"k{n}")
    act(-1)
    places, failed = each_place(act, check)
    assert not failed
    assert 20 < places < 400


@ctrl_c
def test_after_ctrl_c_anywhere_in_the_first_use_the_ledger_can_be_used(bank):
    with in_memory() as folder:

        def act(n):
            run(Ledger(f"{folder}/{n}.db"), bank)

        def check(n):
            ledger = Ledger(f"{folder}/{n}.db")
            try:
                run(ledger, bank)
            except UnknownOutcome:
                ledger.resolve(SHOP, KEY, outcome="succeeded", evidence="it was asked", by="carol")
            done = threading.Thread(target=run, args=(ledger, bank), daemon=True)
            done.start()
            done.join(PATIENCE)
            assert not done.is_alive(), "it waits"
            closed(ledger)

        places, failed = each_place(act, check)
    assert not failed
    assert places > 40
