"""Any order of calls, deaths, late replies, clocks that jump and copies that are restored: the invariants hold after each step.

Plans are driven by hand, one order at a time, so that a worker can be stopped at its provider's door, taken for dead, and woken up
much later. The bank of ``machine.py`` is the outside world; what it did is compared with what the ledger says after every step.
"""

from __future__ import annotations

import os
import shutil
from datetime import timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, invariant, precondition, rule, run_state_machine_as_test

from letitloop import ActionConflict, Fenced, InFlight, IntentPruned, InvalidArgument, StoreError
from letitloop.effects.plans import Ask, resend_plan
from letitloop.effects.provider import NotExecuted, Succeeded, Unknown
from letitloop.effects.requests import make_call
from letitloop.effects.states import allowed
from tests.effects.machine import ANSWERS, KEYS, REPLIES, TTL, WINDOW, Calls, Door, Worker


class Intents(Calls):
    workers = Bundle("workers")

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
