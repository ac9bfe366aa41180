"""A run that was killed, whose log is lost or whose ledger is lost: its next drive has one effect, or says that it cannot know."""

from __future__ import annotations

import os
import shutil

import pytest

from letitloop import IntentFailed, StoreError, UnknownOutcome
from tests.effects.acting import KEY, RESULT, SHOP, Bank, at, capable, closed, commits_fail
from tests.effects.in_runs.programs import Act, Do, Ends, Once
from tests.runs.helpers import kill, killed

POINTS = [
    "intent.in_run",
    "intent.before_claim",
    "intent.claimed",
    "intent.replied",
    "intent.before_settle",
    "ledger.commit",
    "intent.settled",
    "step.called",
    "step.recorded",
]


@pytest.mark.parametrize("point", POINTS)
def test_wherever_the_process_is_killed_the_next_drives_finish_with_one_effect(program, store, ledger, point):
    bank = capable(kept=os.path.join(os.path.dirname(store.root), "effects"))
    retry = {"retry": ("not_sent", "tombstoned")}

    def body():
        return (yield Act(ledger, bank, options=retry))

    ledger.run(SHOP, "before", bank)
    job = program(body)

    def dies():
        with at(point, kill):
            job()

    killed(dies)
    try:
        result = job()
    except IntentFailed:  # it was made certain that it had not happened
        assert ledger.get(SHOP, KEY).kind == "tombstoned"
        assert point == "intent.claimed"
        result = job()
    assert result == RESULT
    assert len(bank.keys) == 2


def test_a_process_killed_after_an_opaque_provider_acted_leaves_a_run_that_halts_until_it_is_resolved(program, store, ledger):
    bank = Bank(kept=os.path.join(os.path.dirname(store.root), "effects"))

    def body():
        return (yield Act(ledger, bank))

    job = program(body)

    def dies():
        with at("intent.replied", kill):
            job()

    killed(dies)
    for _ in range(2):
        with pytest.raises(UnknownOutcome):
            job()
    ledger.resolve(SHOP, KEY, outcome="succeeded", evidence="bank statement", by="carol", result="by hand")
    assert job() == "by hand"
    assert len(bank.keys) == 1


def test_a_ledger_that_cannot_be_written_after_the_dispatch_halts_the_run_and_the_next_drive_asks(program, ledger):
    bank = capable()

    def body():
        try:
            return (yield Act(ledger, bank))
        except Exception:
            return "swallowed"

    ledger.run(SHOP, "before", bank)
    job = program(body)
    with commits_fail(2), pytest.raises(UnknownOutcome):
        job()
    assert job() == RESULT
    assert len(bank.effects) == 2


def test_losing_the_log_loses_no_guard(program, store, ledger, bank):
    def body():
        return (yield Act(ledger, bank))

    job = program(body)
    job()
    shutil.rmtree(os.path.join(store.root, "runs"))
    assert job() == RESULT
    assert len(bank.sent) == 1


def remove_ledger(ledger, *, mark):
    closed(ledger)
    path = ledger.location.removeprefix("sqlite:")
    for suffix in ("", "-wal", "-shm", "-mark" if mark else ""):
        if os.path.exists(path + suffix):
            os.unlink(path + suffix)


@pytest.mark.parametrize("mark", [True, False])
def test_losing_the_ledger_is_noticed_by_whoever_replays(program, ledger, bank, mark):
    later = Once()

    def body():
        try:
            yield Act(ledger, bank)
        except Exception:
            pass
        yield Do("later", later)

    job = program(body)
    with pytest.raises(Ends):
        job()
    remove_ledger(ledger, mark=mark)
    if mark:
        with pytest.raises(UnknownOutcome, match="does not know it"):
            job()
        assert later.calls == 1, "no handler hides that"
    else:
        with pytest.raises(StoreError, match="another lay there"):
            program_without_handler(program, ledger, bank)()
    assert len(bank.sent) == 1


def program_without_handler(program, ledger, bank):
    def body():
        return (yield Act(ledger, bank))

    return program(body)
