"""The outside world of intents, and calls whose plans are driven by hand, one order at a time, against what that world did."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from letitloop import (
    ActionConflict,
    Approval,
    ApprovalRequired,
    Fenced,
    InFlight,
    IntentFailed,
    IntentPruned,
    Ledger,
    Limit,
    NotAuthorized,
    UnknownOutcome,
)
from letitloop.effects.ledger_file import close_ledger
from letitloop.effects.plans import Transact
from letitloop.effects.provider import Caps, Found, NotExecuted, NotFound, StillRunning, Unavailable, Window

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


class Calls(RuleBasedStateMachine):
    """A ledger, the world beside it, and how a call is driven, answered and judged; the rules are up to whoever derives from it."""

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

    # --- judging a call ------------------------------------------------------------------------------------------------------

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
