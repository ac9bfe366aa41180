"""Any order of calls, deaths, late replies, clocks that jump and copies that are restored: the invariants hold after each step.

Plans are driven by hand, one order at a time, so that a worker can be stopped at its provider's door, taken for dead, and woken up
much later. The bank below is the outside world; what it did is compared with what the ledger says after every step.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from letitloop import (
    ActionConflict,
    Approval,
    ApprovalRequired,
    Fenced,
    InFlight,
    IntentFailed,
    IntentPruned,
    InvalidArgument,
    Ledger,
    Limit,
    NotAuthorized,
    StoreError,
    UnknownOutcome,
)
from letitloop.effects.ledger_file import close_ledger
from letitloop.effects.plans import Ask, Transact, resend_plan
from letitloop.effects.provider import (
    Caps,
    Found,
    NotExecuted,
    NotFound,
    StillRunning,
    Succeeded,
    Unavailable,
    Unknown,
    Window,
)
from letitloop.effects.requests import make_call
from letitloop.effects.states import allowed

KEYS = ("plain-1", "plain-2", "opaque-1", "tomb-1", "tomb-2", "window-1", "window-2", "group-1", "group-2", "group-3", "approve-1")
WINDOW = 100.0
TTL = 50.0


@dataclass
class Request:
    """One request on its way to the bank, or there."""

    key: str
    attempt: int
    epoch: int
    amount: int
    acted: bool = False
    dead: bool = False  # certified not to act, ever


class World:
    """A provider for every key: what it can do is in the key's first word."""

    def __init__(self):
        self.requests = []
        self.tombs = set()
        self.effects = []  # (key, attempt)

    def act(self, request):
        """Let a request arrive; return whether it had its effect, now or before."""
        mark = (request.key, request.attempt)
        if request.dead or (request.key.startswith("tomb") and mark in self.tombs):
            return False
        if request.acted:
            return True
        request.acted = True
        if request.key.startswith(("window", "tomb")) and mark in self.effects:
            return True
        self.effects.append(mark)
        return True


@dataclass
class Door:
    """The provider as the ledger sees it; the machine answers for it."""

    key: str
    identity_text: str = "bank/1"
    name: str = "bank"

    @property
    def caps(self):
        return {
            "plain": Caps(lookup="strong"),
            "opaque": Caps(),
            "tomb": Caps(lookup="strong", tombstone=True),
            "window": Caps(redispatch=Window(WINDOW), lookup="strong"),
        }.get(self.key.partition("-")[0], Caps(lookup="strong"))

    def identity(self):
        return self.identity_text

    def validate(self, operation, arguments):
        pass

    def execute(self, dispatch):
        raise AssertionError("it acts")


@dataclass
class Worker:
    """A call that is being made, stopped where its provider would act."""

    key: str
    plan: object
    wanted: object
    verb: str
    dispatch: object = None
    request: Request = None
    zombie: bool = False
    outcome: object = None
    error: BaseException = None
    over: bool = False


@dataclass
class Seen:
    """What the machine remembers of a key."""

    sent: dict = field(default_factory=dict)  # attempt -> (provider_key, arguments)
    certificates: set = field(default_factory=set)  # attempts that certainly did not happen, by whoever may say so
    approved: int = 0
    lied: bool = False
    result: object = None
    pruned: str = ""


ANSWERS = st.sampled_from(["truth", "truth", "not found", "away", "running", "raise", "nonsense", "mismatch", "other key"])
REPLIES = st.sampled_from(
    ["success", "success", "lost", "lost", "unknown", "nonsense", "not sent", "rejected", "interrupt", "bad kind"]
)


class Intents(RuleBasedStateMachine):
    workers = Bundle("workers")

    @initialize()
    def begin(self):
        self.folder = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        self.path = os.path.join(self.folder, "ledger.db")
        self.now = 1_000_000.0
        self.world = World()
        self.seen = {key: Seen() for key in KEYS}
        self.latest = dict.fromkeys(KEYS, 0.0)
        self.alive = []
        self.copy = None
        self.ledger = self.open()

    def teardown(self):
        if hasattr(self, "folder"):
            self.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def open(self, **options):
        return Ledger(self.path, clock=lambda: self.now, **options)

    def close(self):
        """End the process, as far as the ledger can tell."""
        close_ledger(f"sqlite:{self.path}")

    # --- what can be asked without changing anything -------------------------------------------------------------------------

    def row(self, key):
        return self.ledger.intents.row("n", key)

    def state(self, key):
        row = self.row(key)
        return None if row is None else row.state

    def picture(self, key):
        """Everything that the ledger knows of a key."""
        row = self.row(key)
        return None if row is None else (row, len(self.ledger.intents.events("n", key)))

    def live(self, key):
        return [worker for worker in self.alive if worker.key == key and not worker.over and not worker.zombie and worker.request]

    def options(self, key):
        if key.startswith("group"):
            return {"limit": Limit("g", max_intents=2)}
        if key.startswith("approve"):
            return {"approval": Approval(ttl=TTL)}
        return {}

    def arguments(self, key):
        return {"operation": "move", "amount": 7, "to": key}

    # --- driving a call ------------------------------------------------------------------------------------------------------

    def drive(self, worker, value=None, error=None, answer="truth"):
        """Carry a plan on until it wants to act, or is over."""
        plan, store = worker.plan, self.ledger.intents
        while True:
            try:
                order = plan.send(value) if error is None else plan.throw(error)
            except StopIteration as done:
                self.end(worker, outcome=done.value)
                return
            except BaseException as exc:
                self.end(worker, error=exc)
                return
            value = error = None
            try:
                if isinstance(order, Transact):
                    value = store.transact(order.wanted, order.decide)
                elif order.method == "execute":
                    self.at_the_door(worker, order.dispatch)
                    return
                else:
                    value = self.asked(order, answer)
            except BaseException as exc:
                error = exc

    def end(self, worker, outcome=None, error=None):
        worker.over, worker.outcome, worker.error = True, outcome, error
        worker.request = None
        self.ledger.intents.release(worker.wanted)

    def at_the_door(self, worker, dispatch):
        """The ledger wants to act: check that it may."""
        key, seen = dispatch.key, self.seen[dispatch.key]
        row = self.row(key)
        assert (row.state, row.attempt, row.epoch) == ("DISPATCHED", dispatch.attempt, dispatch.epoch)  # I1
        assert not self.live(key), "I10: somebody acts"
        assert key not in [k for k, one in self.seen.items() if one.pruned], "I19"
        sent = (dispatch.provider_key, dict(dispatch.arguments))
        again = dispatch.attempt in seen.sent
        assert seen.sent.setdefault(dispatch.attempt, sent) == sent, "I5: the same attempt is the same request"
        assert len({one[0] for one in seen.sent.values()}) == len(seen.sent), "I5: another attempt is another key"
        if dispatch.attempt > 1:
            assert dispatch.attempt - 1 in seen.certificates, "I5: a new attempt follows a certificate"
        if again:
            first = min(
                one.at for one in self.ledger.intents.events("n", key) if one.after == "DISPATCHED" and one.attempt == row.attempt
            )
            assert key.startswith("window"), "I6: sent again without a window"
            assert self.now < first + WINDOW, "I6: sent again after the window"
            assert self.now >= self.latest[key], "I6: sent again by a clock that went back"
        if key.startswith("approve"):
            assert seen.approved, "I14: sent without an approval"
            seen.approved -= 1
            assert row.approval == "consumed"
        if key.startswith("group"):
            others = [self.row(one) for one in KEYS if one.startswith("group") and one != key]
            spent = [one for one in others if one is not None and one.state not in ("FAILED", "CANCELLED")]
            assert len(spent) < 2 or again, "I11: above the group's limit"
            assert not [one for one in spent if one.state == "UNKNOWN"], "I11: in spite of an open outcome in the group"
        self.latest[key] = max(self.latest[key], self.now)
        worker.dispatch = dispatch
        worker.request = Request(key, dispatch.attempt, dispatch.epoch, dispatch.arguments["amount"])
        self.world.requests.append(worker.request)

    def asked(self, order, answer):
        """Answer as the provider: the truth about one attempt, or something that proves nothing."""
        dispatch = order.dispatch
        mark = (dispatch.key, dispatch.attempt)
        if answer == "raise":
            raise OSError("no way there")
        if answer in ("away", "running", "not found", "nonsense"):
            return {
                "away": Unavailable("closed"),
                "running": StillRunning(),
                # a tombstone that finds nothing has not been set
                "not found": NotFound() if order.method == "reconcile" else Unavailable("closed"),
                "nonsense": ("not", "an answer"),
            }[answer]
        if answer == "mismatch":
            return Found({"moved": 7}, dispatch.provider_key, {"amount": 8})
        if answer == "other key":
            return Found({"moved": 7}, "x" * 40, {"amount": 7})
        if mark in self.world.effects:
            return Found({"moved": 7}, dispatch.provider_key, {"amount": 7})
        if order.method == "tombstone":
            self.world.tombs.add(mark)
            self.seen[dispatch.key].certificates.add(dispatch.attempt)
            return NotExecuted("tombstoned", "its key is occupied")
        return NotFound()

    # --- rules: acting -------------------------------------------------------------------------------------------------------

    @rule(
        target=workers,
        key=st.sampled_from(KEYS),
        recover=st.sampled_from(["reconcile", "reconcile", "resend", "block"]),
        answer=ANSWERS,
        retry=st.sampled_from([("not_sent",), ("not_sent", "rejected", "tombstoned"), ()]),
    )
    def run(self, key, recover, answer, retry):
        options = {**self.options(key), "recover": recover, "retry": retry}
        before, live = self.row(key), self.live(key)
        call = make_call(self.ledger, "n", key, Door(key), self.arguments(key), options)
        worker = Worker(key, call.plan(), call.action.wanted, "run")
        self.alive.append(worker)
        self.drive(worker, answer=answer)
        if self.seen[key].pruned:
            assert isinstance(worker.error, IntentPruned), "I19"
            return worker
        if live:
            assert isinstance(worker.error, InFlight), "I10"
        elif before is not None and before.state == "SUCCEEDED":
            assert worker.error is None, "I8"
            assert self.ledger.vault.decode(worker.outcome[0].result) == self.seen[key].result, "I8"
            assert self.row(key) == before
        elif before is not None and before.state in ("UNKNOWN", "DISPATCHED"):
            self.still(key, before, "not asked" if recover == "block" else answer, resent=worker.request is not None)
        self.judge(worker)
        return worker

    def still(self, key, before, answer, *, resent):
        """I4 and I20: what proves nothing changes nothing."""
        after = self.row(key)
        acted = (key, before.attempt) in self.world.effects
        proves = answer == "truth" and Door(key).caps.lookup != "none" and (acted or Door(key).caps.tombstone)
        if not proves and not resent:
            assert (after.state, after.attempt) == ("UNKNOWN", before.attempt), (answer, after)
        if answer in ("mismatch", "other key") and Door(key).caps.lookup != "none" and not resent:
            assert [one for one in self.ledger.intents.events("n", key) if one.kind == "anomaly"], "I20"

    def judge(self, worker):
        """What a call ends with is one of the ends that a call has."""
        if not worker.over or worker.error is None:
            return
        kinds = (UnknownOutcome, ActionConflict, IntentFailed, InFlight, ApprovalRequired, NotAuthorized, Fenced)
        assert isinstance(worker.error, (*kinds, IntentPruned, KeyboardInterrupt)), repr(worker.error)

    @rule(worker=workers)
    def arrive(self, worker):
        """The request of a call, or of one long dead, reaches the bank."""
        if worker.request is not None:
            self.world.act(worker.request)

    @precondition(lambda self: any(not one.acted for one in self.world.requests))
    @rule(data=st.data())
    def arrive_late(self, data):
        waiting = [one for one in self.world.requests if not one.acted]
        self.world.act(waiting[data.draw(st.integers(0, len(waiting) - 1))])

    @rule(worker=workers, reply=REPLIES, answer=ANSWERS)
    def reply(self, worker, reply, answer):
        """The provider answers a call: at once, or after it was given up."""
        if worker.request is None or worker.over:
            return
        key, request, seen = worker.key, worker.request, self.seen[worker.key]
        before, events = self.row(key), len(self.ledger.intents.events("n", key))
        value = error = None
        if reply in ("success", "lost"):
            if not self.world.act(request):
                value = NotExecuted("tombstoned", "its key is occupied")
                seen.certificates.add(request.attempt)
            elif reply == "success":
                value = Succeeded({"moved": 7}, {"id": 1})
            else:
                error = ConnectionResetError("lost")
        elif reply in ("not sent", "rejected"):
            if request.acted:
                value = Unknown("it cannot tell")
            else:
                request.dead = True
                value = NotExecuted("not_sent" if reply == "not sent" else "rejected", "not a byte left")
                others = [one for one in self.world.requests if one.key == key and one.attempt == request.attempt]
                if all(one.dead for one in others):
                    seen.certificates.add(request.attempt)
        elif reply == "interrupt":
            error = KeyboardInterrupt()
        else:
            value = {"unknown": Unknown("a timeout"), "nonsense": 500, "bad kind": NotExecuted("probably", "it seems so")}[reply]
        worker.request = None
        stale = (before.state, before.epoch) != ("DISPATCHED", request.epoch) if before is not None else True
        self.drive(worker, value, error, answer)
        after = self.row(key)
        if stale and before is not None and before.state in ("SUCCEEDED", "FAILED", "CANCELLED"):
            assert after == before, "I7: a stale owner overwrote what was settled"
            assert len(self.ledger.intents.events("n", key)) > events, "I7: and what it brought is kept"
            if before.state == "FAILED" and isinstance(value, Succeeded):
                assert isinstance(worker.error, Fenced)
                assert self.ledger.intents.events("n", key)[-1].kind == "anomaly"
        if not stale and isinstance(value, Succeeded):
            assert after.state == "SUCCEEDED"
        if not stale and isinstance(error, KeyboardInterrupt) and not worker.zombie:
            assert after.state == "UNKNOWN"
            assert worker.error is error
        self.judge(worker)

    # --- rules: owners -------------------------------------------------------------------------------------------------------

    @rule(worker=workers)
    def give_up(self, worker):
        """The lock of a call is lost, and the call goes on: a zombie."""
        if not worker.over and worker.request is not None:
            worker.zombie = True
            self.ledger.intents.release(worker.wanted)

    @rule()
    def restart(self):
        """The process ends; its calls are zombies, whose words may still come."""
        for worker in self.alive:
            worker.zombie = True
        self.close()
        self.ledger = self.open()

    # --- rules: an outcome that is open --------------------------------------------------------------------------------------

    @rule(key=st.sampled_from(KEYS), answer=ANSWERS)
    def reconcile(self, key, answer):
        before, sends = self.row(key), len(self.world.requests)
        if before is None:
            return
        machine, live = self, self.live(key)

        class Answering(Door):
            def execute(self, dispatch):
                raise AssertionError("reconcile() dispatches")

            def reconcile(self, dispatch):
                return machine.asked(Ask("reconcile", dispatch), answer)

            def tombstone(self, dispatch):
                return machine.asked(Ask("tombstone", dispatch), answer)

        try:
            intent = self.ledger.reconcile("n", key, Answering(key))
        except InFlight:
            assert live
            assert self.row(key) == before
            return
        assert len(self.world.requests) == sends
        assert not live or before.state != "DISPATCHED"
        if before.state in ("UNKNOWN", "DISPATCHED"):
            self.still(key, before, answer, resent=False)
        else:
            assert self.row(key) == before
        assert intent.state == self.state(key)

    @rule(target=workers, key=st.sampled_from(KEYS), answer=ANSWERS)
    def resend(self, key, answer):
        row = self.row(key)
        if row is None:
            return Worker(key, None, None, "none", over=True)
        row, action = self.ledger._about("n", key, Door(key))
        worker = Worker(key, resend_plan(action, row), action.wanted, "resend")
        self.alive.append(worker)
        self.drive(worker, answer=answer)
        if not key.startswith("window"):
            assert worker.over
        self.judge(worker)
        return worker

    @rule(key=st.sampled_from(KEYS), honest=st.booleans(), succeeded=st.booleans())
    def resolve(self, key, honest, succeeded):
        row = self.row(key)
        if row is None or self.live(key):
            return
        mark = (key, row.attempt)
        waiting = [one for one in self.world.requests if (one.key, one.attempt) == mark and not (one.acted or one.dead)]
        outcome = succeeded if not honest else mark in self.world.effects
        try:
            self.ledger.resolve(
                "n", key, outcome="succeeded" if outcome else "failed", evidence="a look", by="ada", result={"moved": 7}
            )
        except InvalidArgument:
            assert row.state not in ("UNKNOWN", "DISPATCHED")
            assert self.row(key) == row
            return
        assert row.state in ("UNKNOWN", "DISPATCHED")
        if not outcome:
            self.seen[key].certificates.add(row.attempt)
            if mark in self.world.effects or waiting:
                self.seen[key].lied = True

    @rule(key=st.sampled_from(KEYS))
    def retry_failed(self, key):
        before = self.row(key)
        if before is None:
            return
        try:
            self.ledger.retry_failed("n", key)
        except InvalidArgument:
            assert before.state != "FAILED"
            assert self.row(key) == before
        else:
            assert before.state == "FAILED"
            assert self.row(key).attempt == before.attempt

    # --- rules: approvals, cancelling, conflicts, pruning --------------------------------------------------------------------

    @rule(verb=st.sampled_from(["approve", "approve", "deny", "cancel"]), key=st.sampled_from(["approve-1", "plain-1"]))
    def decide(self, verb, key):
        before = self.row(key)
        if before is None:
            return
        try:
            if verb == "approve":
                self.ledger.approve("n", key, by="ada")
            elif verb == "deny":
                self.ledger.deny("n", key, by="ada", reason="no")
            else:
                self.ledger.cancel("n", key)
        except InvalidArgument:
            assert self.row(key) == before
            return
        assert before.state == "PREPARED" or (verb, before.state) == ("approve", "FAILED")
        if verb == "approve":
            self.seen[key].approved = 1
        else:
            assert self.state(key) == "CANCELLED"

    @rule(
        key=st.sampled_from(KEYS),
        kind=st.sampled_from(["payload", "operation", "provider"]),
        verb=st.sampled_from(["run", "reconcile"]),
    )
    def conflict(self, key, kind, verb):
        """I9: another action under the same key is refused in every state, and changes nothing."""
        before = self.picture(key)
        if before is None:
            return
        door = Door(key, "bank/2" if kind == "provider" else "bank/1")
        arguments = {**self.arguments(key), **({"amount": 8} if kind == "payload" else {})}
        operation = "take" if kind == "operation" else None
        with pytest.raises(ActionConflict) as caught:
            if verb == "reconcile" and kind == "provider":
                self.ledger.reconcile("n", key, door)
            else:
                self.ledger.run("n", key, door, arguments, operation=operation, **self.options(key))
        assert caught.value.kind == kind
        assert caught.value.fields == (("amount",) if kind == "payload" else ())
        assert "8" not in str(caught.value).replace(key, "")
        assert self.picture(key) == before

    @rule(days=st.sampled_from([0, 1]))
    def prune(self, days):
        before = {key: self.row(key) for key in KEYS}
        self.ledger.prune(older_than=timedelta(days=days))
        for key, row in before.items():
            if row is not None and self.row(key) is None:
                assert row.state in ("SUCCEEDED", "FAILED", "CANCELLED"), "I19: what is open is kept"
                self.seen[key].pruned = row.state

    @precondition(lambda self: any(one.pruned for one in self.seen.values()))
    @rule()
    def a_pruned_key_stays_used(self):
        key = next(key for key, one in self.seen.items() if one.pruned)
        with pytest.raises(IntentPruned):
            self.ledger.run("n", key, Door(key), self.arguments(key), **self.options(key))
        with pytest.raises(ActionConflict):
            self.ledger.run("n", key, Door(key), {**self.arguments(key), "amount": 8}, **self.options(key))

    # --- rules: clocks and copies --------------------------------------------------------------------------------------------

    @rule(by=st.sampled_from([1.0, TTL, WINDOW - 1, WINDOW, WINDOW + 1, 100_000.0, -1.0, -TTL, -WINDOW]))
    def clock(self, by):
        self.now += by

    @rule()
    def make_copy(self):
        self.restart()
        self.close()
        self.copy = self.path + ".copy"
        if os.path.exists(self.path):
            shutil.copy(self.path, self.copy)
        else:
            self.copy = None
        self.ledger = self.open()
        self.copied = self.newest()

    def newest(self):
        events = self.ledger.intents.events()
        return events[-1].seq if events else 0

    @precondition(lambda self: self.copy is not None)
    @rule()
    def a_restored_copy_is_noticed(self):
        newest = self.newest()
        self.restart()
        self.close()
        shutil.move(self.path, self.path + ".newest")
        shutil.copy(self.copy, self.path)
        restored = self.open()
        if newest > self.copied:
            with pytest.raises(StoreError, match="restored from a copy"):
                restored.run("n", "plain-1", Door("plain-1"), self.arguments("plain-1"))
        else:
            restored.list()
        self.close()
        shutil.move(self.path + ".newest", self.path)
        self.ledger = self.open()
        assert self.newest() == newest

    # --- after every step ----------------------------------------------------------------------------------------------------

    @invariant()
    def at_most_one_effect(self):
        if not hasattr(self, "world"):
            return
        for key in KEYS:
            attempts = [attempt for one, attempt in self.world.effects if one == key]
            assert len(attempts) == len(set(attempts)) or self.seen[key].lied, "I2: two effects of one attempt"
            assert len(attempts) <= 1 or self.seen[key].lied, "I2: two effects"

    @invariant()
    def the_history_is_one_of_the_machines(self):
        if not hasattr(self, "ledger"):
            return
        now = {}
        for one in self.ledger.intents.events():
            state, attempt, epoch = now.get(one.key, ("", 1, 0))
            if self.seen[one.key].pruned:
                continue
            assert one.before == state
            assert one.before == one.after or allowed(one.before, one.after, one.actor)
            assert one.epoch >= epoch
            assert one.attempt == attempt + ((one.before, one.after) == ("FAILED", "DISPATCHED")), "I5"
            if one.after == "FAILED" and one.before != "FAILED":
                assert one.attempt in self.seen[one.key].certificates or one.kind == "failed", "I3"
            self.latest[one.key] = max(self.latest[one.key], one.at)
            now[one.key] = (one.after, one.attempt, one.epoch)
        for key in KEYS:
            row = self.row(key)
            if row is None:
                continue
            assert (row.state, row.attempt, row.epoch) == now[key]
            if row.state == "FAILED":
                assert row.attempt in self.seen[key].certificates, f"I3: FAILED without a certificate: {row}"
            if row.state == "SUCCEEDED":
                assert (key, row.attempt) in self.world.effects or row.basis == "human"
                self.seen[key].result = {"moved": 7}


def run_machine(examples, steps):
    run_state_machine_as_test(
        Intents, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None, report_multiple_bugs=False)
    )


def test_the_invariants_hold_in_any_order_of_events():
    run_machine(60, 40)


# --- single orders that random ones rarely meet ------------------------------------------------------------------------------


class Clock:
    now = 1_000_000.0

    def __call__(self):
        return self.now


def lost_once(ledger, key="window-1"):
    class Losing(Door):
        def execute(self, dispatch):
            raise ConnectionResetError("lost")

    with pytest.raises(UnknownOutcome):
        ledger.run("n", key, Losing(key), {"operation": "move"}, recover="block")


class Sending(Door):
    def execute(self, dispatch):
        return Succeeded("sent")

    def reconcile(self, dispatch):
        return NotFound()


@pytest.mark.parametrize("after", [WINDOW, WINDOW + 1e-6, 1e9])
def test_a_window_ends_at_its_edge(tmp_path, after):
    clock = Clock()
    ledger = Ledger(tmp_path / "ledger.db", clock=clock)
    lost_once(ledger)
    clock.now += after
    with pytest.raises(UnknownOutcome, match="window"):
        ledger.resend("n", "window-1", Sending("window-1"))
    clock.now = Clock.now + WINDOW - 0.001
    if after == WINDOW:
        assert ledger.resend("n", "window-1", Sending("window-1")) == "sent"


def test_a_second_sending_does_not_move_the_window(tmp_path):
    clock = Clock()
    ledger = Ledger(tmp_path / "ledger.db", clock=clock)
    lost_once(ledger)
    clock.now += WINDOW - 1

    class LosingAgain(Sending):
        def execute(self, dispatch):
            raise ConnectionResetError("lost")

    with pytest.raises(UnknownOutcome):
        ledger.resend("n", "window-1", LosingAgain("window-1"))
    clock.now += 1
    with pytest.raises(UnknownOutcome, match="window"):
        ledger.resend("n", "window-1", Sending("window-1"))


def test_a_clock_that_went_back_over_a_question_opens_no_window(tmp_path):
    """The ledger has seen a time after the window's end; that the clock now says otherwise proves nothing."""
    clock = Clock()
    ledger = Ledger(tmp_path / "ledger.db", clock=clock)
    lost_once(ledger)
    clock.now += WINDOW + 50
    ledger.reconcile("n", "window-1", Sending("window-1"))
    clock.now -= 100
    with pytest.raises(UnknownOutcome, match=r"clock|window"):
        ledger.resend("n", "window-1", Sending("window-1"))


def test_an_answer_about_an_earlier_sending_is_no_certificate_for_a_later_one(tmp_path):
    """Asked about the first sending, which was refused; while the answer is on its way, the second one acts and is lost."""
    clock = Clock()
    ledger = Ledger(tmp_path / "ledger.db", clock=clock)
    lost_once(ledger)
    acted = []

    class Meanwhile(Sending):
        def execute(self, dispatch):
            acted.append(dispatch.epoch)
            raise ConnectionResetError("lost")

        def reconcile(self, dispatch):
            with pytest.raises(UnknownOutcome):
                ledger.resend("n", "window-1", self)
            return NotExecuted("rejected", "the request was refused: too many of them")

    intent = ledger.reconcile("n", "window-1", Meanwhile("window-1"))
    assert len(acted) == 1
    assert intent.state == "UNKNOWN", intent


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, SystemExit, GeneratorExit, UnknownOutcome, Fenced, StopIteration, MemoryError]
)
def test_whatever_leaves_a_provider_means_unknown(tmp_path, error):
    ledger = Ledger(tmp_path / "ledger.db")

    class Raising(Door):
        def execute(self, dispatch):
            raise error("of the provider")

    with pytest.raises(BaseException):
        ledger.run("n", "opaque-1", Raising("opaque-1"), {})
    assert ledger.get("n", "opaque-1").state == "UNKNOWN"
    assert [one.kind for one in ledger.events("n", "opaque-1")][-1] == "unknown"


@pytest.mark.parametrize(
    "reply",
    [
        None,
        0,
        "done",
        Found(1, "k"),
        NotFound(),
        Unavailable("away"),
        NotExecuted("", "nothing"),
        NotExecuted("timeout", "nothing"),
        NotExecuted("human", "by nobody"),
        NotExecuted(["not_sent"], "a list"),
        Unknown("\ud800"),
        Unknown(None),
        NotExecuted("probably", None),
    ],
    ids=repr,
)
def test_no_other_reply_is_a_certificate(tmp_path, reply):
    """I3: FAILED needs a certificate of a kind that exists."""
    ledger = Ledger(tmp_path / "ledger.db")

    class Odd(Door):
        def execute(self, dispatch):
            return reply

    with pytest.raises(UnknownOutcome):
        ledger.run("n", "opaque-1", Odd("opaque-1"), {})
    assert ledger.get("n", "opaque-1").state == "UNKNOWN"


class Acting(Door):
    def execute(self, dispatch):
        return Succeeded(1)


def test_what_was_taken_back_is_not_taken_back_from_another_namespace(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.run("n", "pay", Acting("opaque-1"), {})
    assert ledger.run("a", "refund", Acting("opaque-1"), {}, compensates=("n", "pay")) == 1
    with pytest.raises(NotAuthorized):
        ledger.run("b", "refund", Acting("opaque-1"), {}, compensates=("n", "pay"))
    assert ledger.run("a", "refund", Acting("opaque-1"), {}, compensates=("n", "pay")) == 1


@pytest.mark.parametrize("state", ["PREPARED", "DISPATCHED", "UNKNOWN", "FAILED", "CANCELLED", "none"])
def test_only_what_has_succeeded_is_taken_back(tmp_path, state):
    ledger = Ledger(tmp_path / "ledger.db")
    tried = []

    class Trying(Door):
        def execute(self, dispatch):
            if state == "DISPATCHED":
                tried.append(dispatch)
                with pytest.raises(NotAuthorized):
                    ledger.run("n", "back", Acting("opaque-1"), {}, compensates=("n", "pay"))
            if state == "UNKNOWN":
                raise TimeoutError
            return NotExecuted("rejected", "no")

    options = {"approval": Approval()} if state in ("PREPARED", "CANCELLED") else {}
    if state != "none":
        with pytest.raises((UnknownOutcome, IntentFailed, ApprovalRequired)):
            ledger.run("n", "pay", Trying("opaque-1"), {}, **options)
    if state == "CANCELLED":
        ledger.cancel("n", "pay")
    with pytest.raises(NotAuthorized):
        ledger.run("n", "back", Acting("opaque-1"), {}, compensates=("n", "pay"))
    assert [row.key for row in ledger.list()] == ([] if state == "none" else ["pay"])
