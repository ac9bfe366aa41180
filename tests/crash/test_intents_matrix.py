"""Every crash point, every way to end there, every fault of the provider, every class of provider: at most one effect.

Each trial forks real processes. Life A runs the action and is ended at a point; life B does the same again; what was still under
way arrives; life C asks once more. The judge is the bank's own record, and the table of what a rerun finds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from letitloop import Ledger, MemoryStore
from tests.effects.bank import KINDS, Bank
from tests.effects.lives import Cancelling, Life, check_history, lived, outcome_of, row_of, state_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="these tests fork")

ARGUMENTS = {"operation": "move", "amount": 1200}
FAULTS = ("", "lost", "slow", "duplicate", "late", "appears")
ACTIONS = ("kill", "raise", "hang", "cancel")
# C0 | C1 | C2 | C3, C4 | C5, in the order in which a run passes them; the first commit of a process makes the ledger
BEFORE = ("intent.before_claim", "ledger.commit@2")
SENDING = ("intent.claimed", "bank.posted", "bank.committed")
SETTLING = ("intent.replied", "intent.before_settle", "intent.before_unknown", "ledger.commit@3")
SETTLED = ("intent.settled",)
ASKING = ("intent.takeover", "bank.asked", "intent.before_reconciled", "ledger.commit@4")


@pytest.fixture(scope="module", autouse=True)
def _warm():
    """Load in this process what its children would load one by one."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            Ledger(store=MemoryStore()).run("n", "k", Bank(folder, kind, "lost" if kind == "receipt" else ""), ARGUMENTS)


@pytest.fixture
def place():
    """Return a directory in memory, where there is one: processes die here, and no disk does."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


class Trial:
    def __init__(self, root, kind, fault=""):
        os.makedirs(root)
        self.kind, self.fault = kind, fault
        self.path = os.path.join(root, "ledger.db")
        self.bank = Bank(os.path.join(root, "bank"), kind, "late" if fault == "appears" else fault)
        self.options = {"recover": "resend" if kind == "window" else "reconcile"}

    def work(self, life):
        return Ledger(self.path).run("n", "k", self.bank, ARGUMENTS, **self.options)

    def cancelled(self, point):
        name, _, n = point.partition("@")
        cancelling = Cancelling(name, int(n or 1))
        ledger = Ledger(self.path)

        def work(life):
            return cancelling.run(lambda: ledger.arun("n", "k", self.bank, ARGUMENTS, **self.options))

        return Life(work, watch=cancelling.watch)

    @property
    def state(self):
        return state_of(self.path)

    @property
    def effects(self):
        return len(self.bank.done())

    # --- life A --------------------------------------------------------------------------------------------------------------

    def first(self, action, point):
        """Run the action in a process that meets its end at a point; return its outcome."""
        if action == "cancel":
            life = self.cancelled(point)
            life.end()
            assert life.code == 0
            return life
        name, _, n = point.partition("@")
        slow = self.fault == "slow" and point not in (*BEFORE, *SENDING[:2])
        life = Life(self.work, failpoint=f"{name}:{action}@{n or 1}", stops=("bank.slow",) if slow else ())
        if slow:
            assert life.until("bank.slow")
            self.nobody_else_acts()
            life.go()
        if action == "hang":
            assert life.until(name, int(n or 1))
            if "intent.claimed" in life.passed and name != "ledger.commit":  # where it holds the file's lock
                self.nobody_else_acts()
            life.kill()
        else:
            life.end()
        assert life.code == (0 if action == "raise" else -signal.SIGKILL)
        return life

    def nobody_else_acts(self):
        """While the first life is acting, a second one neither acts nor settles anything."""
        if self.state == "DISPATCHED":
            posts = len(self.bank.requests())
            assert lived(self.work)["raised"] == "InFlight"
            assert (self.state, len(self.bank.requests())) == ("DISPATCHED", posts)

    # --- what a rerun has to find --------------------------------------------------------------------------------------------

    def table(self):
        """Return the outcome, the state and the effects of a rerun, as the table has it."""
        row = row_of(self.path)
        state = None if row is None else row["state"]
        acted = self.effects
        assert acted <= 1
        if state is None or (state == "FAILED" and row["kind"] == "not_sent"):
            assert not acted
            return "value", "SUCCEEDED", 1
        if state == "SUCCEEDED":
            assert acted == 1
            return "value", state, 1
        if state == "FAILED":
            assert not acted
            return "IntentFailed", state, 0
        assert state in ("DISPATCHED", "UNKNOWN")
        if self.kind == "opaque":
            return "UnknownOutcome", "UNKNOWN", acted
        if acted or self.kind == "window":
            return "value", "SUCCEEDED", 1
        if self.kind == "receipt":
            return "UnknownOutcome", "UNKNOWN", 0
        return "IntentFailed", "FAILED", 0

    def again(self):
        """Run the action twice more, and hold what comes of it against the table; the second time changes nothing."""
        outcome, state, effects = self.table()
        posts = len(self.bank.requests())
        settled = self.state in ("SUCCEEDED", "UNKNOWN") and self.kind != "window"
        found = lived(lambda life: [outcome_of(lambda: self.work(life)) for _ in range(2)])["value"]
        for one in found:
            assert one.get("raised", "value") == outcome, (found, self.table())
            assert outcome != "value" or one["value"] == {"moved": 1200}
        assert (self.state, self.effects) == (state, effects)
        assert len(self.bank.requests()) <= posts + (not settled)

    def twice_at_once(self):
        """Run the action in two processes at the same time; one of them may meet the other."""
        _, state, effects = self.table()
        lives = [Life(self.work) for _ in range(2)]
        outcomes = [life.end() for life in lives]
        assert (self.state, self.effects) == (state, effects), outcomes
        names = {outcome.get("raised", "value") for outcome in outcomes}
        assert names <= {"value", "InFlight", "UnknownOutcome", "IntentFailed"}, outcomes
        self.again()

    def finish(self):
        """After life A: everything that may still come, comes; and nothing happens a second time."""
        self.bank.fault = ""
        if self.fault == "appears":
            self.bank.arrive()
        if self.fault == "duplicate":
            self.twice_at_once()
        else:
            self.again()
        assert self.effects <= 1
        if self.fault == "late":
            self.bank.arrive()
            assert self.effects <= 1
            self.again()
        if self.state == "FAILED":
            assert not self.effects
            found = lived(lambda life: Ledger(self.path).retry_failed("n", "k", self.bank))
            assert found == {"value": {"moved": 1200}}
            assert (self.state, self.effects) == ("SUCCEEDED", 1)
        check_history(self.path, self.bank)
        posts = len(self.bank.requests())
        assert posts == len({(one["key"], one["epoch"]) for one in self.bank.requests()})
        if self.kind in ("receipt", "opaque"):
            assert posts <= 1


def points(kind, fault):
    """Return the points that a run passes if nobody ends it, in their order."""
    if fault in ("", "slow", "duplicate"):
        return [*BEFORE, *SENDING, "intent.replied", "intent.before_settle", "ledger.commit@3", *SETTLED]
    committed = ["bank.committed"] if fault == "lost" else []
    asking = [] if kind == "opaque" else ASKING[1:]
    sending = [*SENDING[:2], *committed, "intent.before_unknown", "ledger.commit@3"]
    return [*BEFORE, *sending, *SETTLED, ASKING[0], *asking]


def durable(trial, action, point):
    """Return the states that life A may have left, by the table's column "durable state"."""
    acted = bool(trial.effects)
    asked = {
        "opaque": {"UNKNOWN"},
        "receipt": {"SUCCEEDED" if acted else "UNKNOWN"},
        "tombstone": {"SUCCEEDED" if acted else "FAILED"},
        # sent again by itself where there is no receipt; that may have no answer either
        "window": {"SUCCEEDED", *(("UNKNOWN",) if trial.fault in ("lost", "late", "appears") else ())},
    }[trial.kind]
    replied = {"SUCCEEDED"} if trial.fault in ("", "slow", "duplicate") else {"UNKNOWN"}
    if point in BEFORE:
        return {None, "FAILED"} if action == "cancel" else {None}
    if action in ("kill", "hang"):
        if point in (*SENDING, *SETTLING):
            return {"DISPATCHED"}
        return replied if point in SETTLED else {"UNKNOWN"}
    if action == "raise":
        if point == "intent.claimed":  # its owner certifies that the provider was not called
            return {"FAILED"}
        if point == "ledger.commit@3":  # what came of it could not be recorded, which the caller is told
            return {"DISPATCHED"}
        if point in SENDING:  # the provider raised, so it is asked at once
            return asked
        if point == "bank.asked":  # it could not be asked; whoever may send again does
            return {"SUCCEEDED"} if trial.kind == "window" else {"UNKNOWN"}
        return replied if point in ("intent.replied", *SETTLING, *SETTLED) else {"UNKNOWN"}
    # cancelled: what the provider says afterwards is kept, and settles what is open
    if point in (*SENDING, *SETTLING, *SETTLED):
        return replied
    return {"UNKNOWN", *asked}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault or "prompt")
@pytest.mark.parametrize("action", ACTIONS)
def test_at_most_one_effect(place, kind, fault, action):
    for number, point in enumerate(points(kind, fault)):
        trial = Trial(place / str(number), kind, fault)
        life = trial.first(action, point)
        print(f"{action} at {point}: {life.outcome}, passed {life.passed}")
        assert point.partition("@")[0] in life.passed
        assert trial.effects <= 1
        assert trial.state in durable(trial, action, point)
        trial.finish()


# --- C6, C7: the recovery ends too; C8: a person's word ----------------------------------------------------------------------


RECOVERY = (*ASKING[:3], "ledger.commit@2", "ledger.commit@3")
RESENDING = ("intent.before_claim", "intent.claimed", "bank.posted", "bank.committed", "intent.replied", "intent.settled")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sent", ["bank.posted", "bank.committed"], ids=["not-done", "done"])
@pytest.mark.parametrize("action", ["kill", "raise", "hang"])
def test_a_recovery_that_is_ended_is_begun_anew(place, kind, sent, action):
    points = ("intent.takeover", "ledger.commit@2") if kind == "opaque" else RECOVERY
    for number, point in enumerate(points + (RESENDING if (kind, sent) == ("window", "bank.posted") else ())):
        trial = Trial(place / str(number), kind)
        trial.first("kill", sent)
        assert trial.state == "DISPATCHED"
        trial.first(action, point)
        assert trial.effects <= 1
        old_or_new = {trial.table()[1], "UNKNOWN", "DISPATCHED"}
        assert trial.state in old_or_new, (point, trial.state)
        trial.finish()


@pytest.mark.parametrize("kind", ["receipt", "tombstone"])
@pytest.mark.parametrize("sent", ["bank.posted", "bank.committed"], ids=["not-done", "done"])
@pytest.mark.parametrize("verb", ["reconcile", "areconcile"])
def test_the_verb_reconcile_never_sends(place, kind, sent, verb):
    trial = Trial(place / "t", kind)
    trial.first("kill", sent)
    acted = trial.effects

    def ask(life):
        ledger = Ledger(trial.path)
        if verb == "areconcile":
            return Cancelling("").run(lambda: ledger.areconcile("n", "k", trial.bank)).state
        return ledger.reconcile("n", "k", trial.bank).state

    expected = "SUCCEEDED" if acted else {"receipt": "UNKNOWN", "tombstone": "FAILED"}[kind]
    for point in ("ledger.commit@2", "intent.takeover", "intent.before_reconciled", "ledger.commit@3"):
        life = Life(ask, failpoint=f"{point.partition('@')[0]}:kill@{point.partition('@')[2] or 1}")
        life.end()
        assert trial.state in ("DISPATCHED", "UNKNOWN", expected)
    for _ in range(2):
        assert lived(ask) == {"value": expected}
    assert (len(trial.bank.requests()), trial.effects) == (1, acted)
    check_history(trial.path, trial.bank)


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
@pytest.mark.parametrize("action", ["kill", "raise", "hang"])
def test_a_persons_word_is_recorded_whole_or_not_at_all(place, outcome, action):
    for number, point in enumerate(("intent.before_resolved", "ledger.commit")):
        trial = Trial(place / str(number), "opaque")
        trial.first("kill", "bank.committed")

        def resolve(life, trial=trial):
            ledger = Ledger(trial.path)
            return ledger.resolve("n", "k", outcome=outcome, evidence="statement of 3 May", by="ada", result={"moved": 1200}).state

        life = Life(resolve, failpoint=f"{point}:{action}@{2 if point == 'ledger.commit' else 1}")
        if action == "hang" and life.until(point, 2 if point == "ledger.commit" else 1):
            life.kill()
        else:
            life.end()
        assert point in life.passed, f"no life passes {point}"
        assert trial.state == "DISPATCHED"
        assert lived(resolve) == {"value": outcome.upper()}
        assert lived(resolve)["raised"] == "InvalidArgument"
        found = lived(trial.work)
        assert found == {"value": {"moved": 1200}} if outcome == "succeeded" else found["raised"] == "IntentFailed"
        assert len(trial.bank.requests()) == 1
        check_history(trial.path, trial.bank)


# --- owners that are taken for dead, and are not -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", ["intent.claimed", "bank.posted", "bank.committed", "intent.replied", "intent.before_settle"])
def test_a_worker_that_was_given_up_wakes(place, kind, stop):
    """Its lock is gone (somebody removed the file); another takes over and settles; then it goes on where it was."""
    trial = Trial(place / "t", kind)
    zombie = Life(trial.work, stops=(stop,))
    assert zombie.until(stop)
    (owners,) = (place / "t").glob("*owners")
    for lock in owners.iterdir():
        lock.unlink()
    trial.again()
    state, acted = trial.state, trial.effects
    zombie.go()
    outcome = zombie.end()
    check_history(trial.path, trial.bank)
    if (kind == "receipt" and stop in ("intent.claimed", "bank.posted")) or kind == "opaque":
        # nothing settled it meanwhile: its word is the evidence
        assert outcome == {"value": {"moved": 1200}}
        assert (trial.state, trial.effects) == ("SUCCEEDED", 1)
    elif kind == "tombstone" and state == "FAILED":
        assert outcome["raised"] == "IntentFailed"
        assert (trial.state, trial.effects) == ("FAILED", 0)
    else:
        assert outcome == {"value": {"moved": 1200}}
        assert (trial.state, trial.effects) == ("SUCCEEDED", 1)
    assert trial.effects <= max(acted, 1)
    assert not lived(lambda life: [one.kind for one in Ledger(trial.path).anomalies()])["value"]
    trial.again()


@pytest.mark.parametrize("resolved", ["succeeded", "failed"])
def test_a_zombies_success_contradicts_a_persons_word_in_public(place, resolved):
    trial = Trial(place / "t", "opaque")
    zombie = Life(trial.work, stops=("intent.before_settle",))
    assert zombie.until("intent.before_settle")
    (owners,) = (place / "t").glob("*owners")
    for lock in owners.iterdir():
        lock.unlink()

    def resolve(life):
        ledger = Ledger(trial.path)
        return ledger.resolve("n", "k", outcome=resolved, evidence="a look", by="ada", result={"moved": 1200}).state

    assert lived(resolve) == {"value": resolved.upper()}
    zombie.go()
    outcome = zombie.end()
    assert trial.state == resolved.upper()
    anomalies = lived(lambda life: [one.kind for one in Ledger(trial.path).anomalies()])["value"]
    if resolved == "failed":
        assert outcome["raised"] == "Fenced"
        assert anomalies == ["anomaly"]
    else:
        assert outcome["value"] == {"moved": 1200}
        assert anomalies == []
    check_history(trial.path, trial.bank)


def test_a_child_that_the_provider_left_behind_does_not_keep_a_dead_owner_alive(place):
    trial = Trial(place / "t", "receipt")
    stay, leave = os.pipe()

    class Forking(Bank):
        def execute(self, dispatch):
            reply = super().execute(dispatch)
            if os.fork() == 0:
                os.close(leave)
                os.read(stay, 1)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
            return reply

    trial.bank.__class__ = Forking
    life = Life(trial.work)
    os.waitpid(life.pid, 0)
    trial.bank.__class__ = Bank
    assert trial.state == "DISPATCHED"
    try:
        trial.again()
    finally:
        os.close(leave)
        os.close(stay)


# --- the same through the environment, in a program of its own ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "state", "effects"),
    [
        ("intent.before_claim", None, 0),
        ("intent.claimed", "DISPATCHED", 0),
        ("bank.posted", "DISPATCHED", 0),
        ("intent.replied", "DISPATCHED", 1),
        ("intent.settled", "SUCCEEDED", 1),
    ],
)
@pytest.mark.parametrize("action", ["kill", "exit"])
def test_a_program_that_dies_at_a_failpoint(place, point, state, effects, action):
    trial = Trial(place / "t", "receipt")
    program = (
        "import sys; from letitloop import Ledger; from tests.effects.bank import Bank\n"
        "print(Ledger(sys.argv[1]).run('n', 'k', Bank(sys.argv[2]), {'operation': 'move', 'amount': 1200}))"
    )
    command = [sys.executable, "-c", program, trial.path, trial.bank.root]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = {**os.environ, "PYTHONPATH": root, "LETITLOOP_FAILPOINT": f"{point}:{action}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == (-signal.SIGKILL if action == "kill" else 42), done.stderr
    assert (trial.state, trial.effects) == (state, effects)
    trial.finish()


async def test_a_reply_that_is_there_when_the_task_is_cancelled_is_kept(place):
    """The provider's thread has ended, and the event loop hears of the cancellation first."""
    loop = asyncio.get_running_loop()

    class Quick(Bank):
        def execute(self, dispatch):
            reply = super().execute(dispatch)
            loop.call_soon_threadsafe(cancel, threading.current_thread())
            return reply

    def cancel(thread):
        thread.join()
        task.cancel()

    bank, ledger = Quick(str(place / "bank"), "opaque"), Ledger(place / "ledger.db")
    task = asyncio.ensure_future(ledger.arun("n", "k", bank, ARGUMENTS))
    with pytest.raises(asyncio.CancelledError):
        await task
    for thread in threading.enumerate():
        if thread.name == "letitloop-provider":
            await asyncio.to_thread(thread.join)
    assert len(bank.done()) == 1
    assert (ledger.get("n", "k").state, ledger.get("n", "k").result) == ("SUCCEEDED", {"moved": 1200})
