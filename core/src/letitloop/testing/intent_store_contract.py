"""What every place for intents must do: :class:`IntentStoreContract`, a suite that a ledger store's own tests inherit."""

from __future__ import annotations

import os
import threading
import unittest
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from letitloop.effects.intent import Row, Ticket
from letitloop.effects.intents import Wanted
from letitloop.effects.machine import Decision, Done, Event, Go, Open, Refuse
from letitloop.effects.states import (
    APPLICATION,
    DISPATCHED,
    FAILED,
    HUMAN,
    PREPARED,
    RECONCILER,
    STATES,
    SUCCEEDED,
    TRANSITIONS,
    UNKNOWN,
    WORKER,
    allowed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from letitloop.effects.intents import IntentStore
    from letitloop.effects.machine import Facts

__all__ = ["IntentStoreContract"]

_NOW = 1_000_000.0  # seconds since 1970-01-01 UTC
_DEATH = 42
_NS = "contract"


class IntentStoreContract(ABC):
    """Tests for one kind of intent store; subclass it in a test module, with a name that pytest collects.

    Every store must pass it unchanged: what the ledger promises rests on it.

    Attributes:
        lacks: ``"processes"``, if no other process can reach a store, and why; the tests that need it are skipped then.
        now: what the clock of the stores says, in seconds since 1970-01-01 UTC; tests set it.

    Example::

        class TestMyIntents(IntentStoreContract):
            def make_store(self):
                return MyIntents(..., clock=lambda: self.now)

            def reopen(self, store):
                return MyIntents(store.address, clock=lambda: self.now)
    """

    lacks: ClassVar[Mapping[str, str]] = {}
    now: float = _NOW

    @abstractmethod
    def make_store(self) -> IntentStore:
        """Return an empty store, another one at each call, whose clock says :attr:`now`."""

    @abstractmethod
    def reopen(self, store: IntentStore) -> IntentStore:
        """Return the store as a new process finds it after the death of the one that used it; it is not used any more."""

    # --- rows and events -----------------------------------------------------------------------------------------------------

    def test_an_empty_store_knows_nothing(self) -> None:
        store = self.make_store()
        assert store.row(_NS, "k") is None
        assert store.rows() == []
        assert store.events() == []
        assert store.ticket("absent") is None
        assert store.prune(_NOW) == 0
        facts = _facts(store, "k")
        assert (facts.row, facts.stub, facts.original, facts.compensation, facts.ticket_user, facts.held) == (None,) * 6
        assert list(facts.group) == []
        assert facts.now == _NOW

    def test_a_row_comes_back_field_by_field(self) -> None:
        store = self.make_store()
        full = Row(
            namespace=_NS,
            key="ключ/🔑 'quoted'",
            state=UNKNOWN,
            attempt=3,
            epoch=5,
            sends=2,
            operation="move money",
            provider="bank",
            identity="bank/1 acct",
            arguments=bytes(range(256)),
            payload=b"\0" * 32,
            created=_NOW,
            updated=_NOW + 0.125,
            owner="owner-1",
            dispatched_at=_NOW + 1.5,
            key_expires_at=_NOW + 2.5,
            next_check_at=_NOW + 3.5,
            checks=7,
            group_key="group",
            amount=2**53 + 1,
            max_intents=4,
            max_sum=2**60,
            approval="consumed",
            approval_ttl=3600.5,
            approval_expires=_NOW + 9.5,
            approval_payload=b"\1" * 32,
            approver="ada",
            result=b"result",
            receipt=b"receipt",
            basis="receipt",
            kind="rejected",
            failure="why, in words: ü\n",
            detail=b"detail",
            retry=1,
            run_id="run-1",
            step_key="step/1",
            compensates=f"{_NS}\0original",
            ticket=None,
        )
        bare = _row("bare", PREPARED)
        for row in (full, bare):
            _put(store, row)
        for seen in (store, self.reopen(store)):
            assert seen.row(_NS, full.key) == full
            assert seen.row(_NS, "bare") == bare
            assert _facts(seen, full.key).row == full
            assert seen.row("other", full.key) is None

    def test_every_field_can_be_changed(self) -> None:
        store = self.make_store()
        row = _row("k", PREPARED, approval="pending")
        _put(store, row)
        for change in (
            {"approval": "granted", "approver": "ada", "approval_payload": b"p", "approval_expires": _NOW + 1},
            {"retry": 1, "checks": 2, "failure": "why", "kind": "rejected", "detail": b"d", "updated": _NOW + 5},
            {"approval": None, "approver": None, "approval_payload": None, "retry": 0, "failure": None, "detail": None},
            {"result": b"", "receipt": b"\0", "basis": "tx", "next_check_at": 0.5, "key_expires_at": 1e18, "sends": 2**31},
        ):
            after = row._replace(**change)
            _change(store, row, after)
            assert store.row(_NS, "k") == after
            row = after

    def test_rows_are_sorted_and_filtered(self) -> None:
        store = self.make_store()
        for namespace, key, state in (("b", "1", PREPARED), ("a", "2", UNKNOWN), ("a", "10", PREPARED), ("a", "1", SUCCEEDED)):
            _put(store, _row(key, state, namespace=namespace))
        assert [row.where for row in store.rows()] == [("a", "1"), ("a", "10"), ("a", "2"), ("b", "1")]
        assert [row.where for row in store.rows(state=PREPARED)] == [("a", "10"), ("b", "1")]
        assert [row.where for row in store.rows(namespace="a")] == [("a", "1"), ("a", "10"), ("a", "2")]
        assert [row.where for row in store.rows(state=PREPARED, namespace="a")] == [("a", "10")]
        assert store.rows(state=FAILED) == store.rows(namespace="c") == []

    def test_events_are_kept_in_their_order(self) -> None:
        store = self.make_store()
        dispatched = _put(store, _row("k", DISPATCHED, epoch=1))
        self.now += 1
        _put(store, _row("other", PREPARED))
        after = dispatched._replace(state=UNKNOWN, epoch=2, updated=self.now)
        events = (Event("takeover", DISPATCHED, UNKNOWN, RECONCILER, "it died"), Event("checked", UNKNOWN, UNKNOWN, RECONCILER))
        _decide(store, "k", lambda _: Decision(Open(after), after, events))
        _decide(store, "k", lambda _: Decision(Open(after), None, (Event("anomaly", UNKNOWN, UNKNOWN, WORKER, {"what": "x"}),)))
        for seen in (store, self.reopen(store)):
            own = seen.events(_NS, "k")
            assert [one.kind for one in own] == ["made", "takeover", "checked", "anomaly"]
            assert [(one.before, one.after, one.actor) for one in own[1:3]] == [
                (DISPATCHED, UNKNOWN, RECONCILER),
                (UNKNOWN, UNKNOWN, RECONCILER),
            ]
            assert [one.epoch for one in own] == [1, 2, 2, 2]
            assert [one.at for one in own] == [_NOW, _NOW + 1, _NOW + 1, _NOW + 1]
            assert [one.evidence is None for one in own] == [True, False, True, False]
            numbers = [one.seq for one in seen.events()]
            assert numbers == sorted(set(numbers))
            assert [(one.key, one.kind) for one in seen.events(kind="anomaly")] == [("k", "anomaly")]
            assert [one.kind for one in seen.events(_NS)] == ["made", "made", "takeover", "checked", "anomaly"]
            assert seen.events("nobody") == []

    # --- one transaction -----------------------------------------------------------------------------------------------------

    def test_what_was_decided_is_returned(self) -> None:
        store = self.make_store()
        decision = Decision(Refuse(ValueError("no")))
        assert _decide(store, "k", lambda _: decision) is decision
        assert store.rows() == []

    def test_what_raises_writes_nothing(self) -> None:
        store = self.make_store()
        row = _put(store, _row("k", DISPATCHED, epoch=1))
        for error in (ValueError("no"), KeyboardInterrupt(), GeneratorExit(), SystemExit(3)):
            assert _raised(partial(_decide, store, "k", partial(_raise, error))) is error
            assert store.row(_NS, "k") == row
        assert len(store.events()) == 1
        _change(store, row, row._replace(state=UNKNOWN), Event("unknown", DISPATCHED, UNKNOWN, WORKER))

    def test_no_other_transition_is_written(self) -> None:
        for before in ("", *STATES):
            for after in STATES:
                for actor in (WORKER, RECONCILER, APPLICATION, f"{HUMAN} ada", "model"):
                    if before != after and not allowed(before, after, actor):
                        self._is_refused(before, after, actor)

    def _is_refused(self, before: str, after: str, actor: str) -> None:
        store = self._shared = getattr(self, "_shared", None) or self.make_store()
        key = f"{before or 'none'}-{after}-{actor}"
        row = _put(store, _row(key, before)) if before else None
        new = _row(key, after) if row is None else row._replace(state=after)
        events = (Event("forced", before, after, actor),)
        error = _raised(lambda: _decide(store, key, lambda _: Decision(Open(new), new, events)))
        assert isinstance(error, AssertionError), f"{actor} moved an intent from {before or 'nothing'} to {after}: {error!r}"
        assert store.row(_NS, key) == row

    def test_every_transition_of_the_machine_is_written(self) -> None:
        store = self.make_store()
        for number, ((before, after), actors) in enumerate(TRANSITIONS.items()):
            for actor in actors:
                key = f"{number}-{actor}"
                row = _put(store, _row(key, before)) if before else None
                new = _row(key, after) if row is None else row._replace(state=after)
                decision = Decision(Open(new), new, (Event("moved", before, after, actor),))
                _decide(store, key, partial(_return, decision))
                assert store.row(_NS, key) == new

    def test_threads_decide_one_after_the_other(self) -> None:
        store = self.make_store()
        _put(store, _row("k", UNKNOWN, sends=0))
        start = threading.Barrier(6)

        def work() -> None:
            start.wait()
            for _ in range(10):
                _decide(store, "k", _count)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        row = store.row(_NS, "k")
        assert row is not None
        assert row.sends == 60
        assert len(store.events(_NS, "k")) == 61

    def test_processes_decide_one_after_the_other(self) -> None:
        self._needs_processes()
        store = self.make_store()
        _put(store, _row("k", UNKNOWN, sends=0))
        children = [_forked(lambda: [_decide(store, "k", _count) for _ in range(10)]) for _ in range(4)]
        assert [_ended(pid) for pid in children] == [0] * 4
        row = store.row(_NS, "k")
        assert row is not None
        assert row.sends == 40
        numbers = [one.seq for one in store.events()]
        assert len(numbers) == 41
        assert numbers == sorted(set(numbers))

    def test_a_death_inside_a_transaction_leaves_nothing(self) -> None:
        self._needs_processes()
        store = self.make_store()
        row = _put(store, _row("k", UNKNOWN, sends=0))

        def die(facts: Facts) -> Decision:
            os._exit(_DEATH)

        assert _ended(_forked(lambda: _decide(store, "k", die))) == _DEATH
        assert store.row(_NS, "k") == row
        _decide(store, "k", _count)
        assert _ended(_forked(lambda: _decide(store, "k", _count))) == 0
        after = store.row(_NS, "k")
        assert after is not None
        assert after.sends == 2

    # --- who acts ------------------------------------------------------------------------------------------------------------

    def test_who_acts_is_alive_until_it_is_released(self) -> None:
        store = self.make_store()
        wanted = Wanted(_NS, "k", holder=object())
        row = _claim(store, wanted)
        facts = _facts(store, "k")
        assert facts.row == row
        assert row.owner == facts.owner
        assert facts.alive(row)
        assert not facts.alive(row._replace(epoch=row.epoch + 1)), "another epoch of it is not under way"
        assert not facts.alive(row._replace(owner="nobody"))
        assert not facts.alive(row._replace(owner=None))
        assert facts.held is None
        assert _facts(store, "k", holder=wanted.holder).held == row.epoch
        store.release(Wanted(_NS, "k", holder=object()))
        assert _facts(store, "k").alive(row), "it was released by somebody else"
        store.release(wanted)
        store.release(wanted)
        assert not _facts(store, "k").alive(row)
        assert _facts(store, "k", holder=wanted.holder).held is None

    def test_who_did_not_get_to_act_is_not_alive(self) -> None:
        store = self.make_store()
        wanted = Wanted(_NS, "k", holder=object())
        claimed: list[Row] = []

        def decide(facts: Facts) -> Decision:
            claimed.append(_row("k", DISPATCHED, owner=facts.owner, epoch=1))
            bad = (Event("forced", "", SUCCEEDED, WORKER),)
            return Decision(Go(claimed[0]), claimed[0], bad)

        assert isinstance(_raised(lambda: store.transact(wanted, decide)), AssertionError)
        assert store.row(_NS, "k") is None
        assert _facts(store, "k", holder=wanted.holder).held is None

    def test_who_acted_in_a_process_that_ended_is_dead(self) -> None:
        store = self.make_store()
        row = _claim(store, Wanted(_NS, "k", holder=object()))
        first = _facts(store, "k").owner
        store = self.reopen(store)
        facts = _facts(store, "k")
        assert facts.row == row
        assert not facts.alive(row)
        assert facts.owner != first

    def test_who_acts_in_another_process_is_alive_until_that_ends(self) -> None:
        self._needs_processes()
        store = self.make_store()
        ready, go = os.pipe(), os.pipe()

        def act() -> None:
            _claim(store, Wanted(_NS, "k", holder=object()))
            os.write(ready[1], b"r")
            os.read(go[0], 1)
            os._exit(_DEATH)

        pid = _forked(act)
        assert os.read(ready[0], 1) == b"r"
        row = store.row(_NS, "k")
        assert row is not None
        assert _facts(store, "k").alive(row)
        os.write(go[1], b"g")
        assert _ended(pid) == _DEATH
        assert not _facts(store, "k").alive(row)
        for handle in (*ready, *go):
            os.close(handle)

    # --- groups, compensation, tickets ---------------------------------------------------------------------------------------

    def test_the_members_of_a_group_are_told(self) -> None:
        store = self.make_store()
        wanted = Wanted(_NS, "acting", holder=object())
        for key, state in zip("abcdef", STATES, strict=True):
            _put(store, _row(key, state, group_key="g", amount=10))
        _put(store, _row("elsewhere", UNKNOWN, group_key="g", namespace="other"))
        _put(store, _row("apart", UNKNOWN, group_key="h"))
        _put(store, _row("alone", UNKNOWN))
        acting = _claim(store, wanted, group_key="g", amount=5)
        by_state = dict(zip(STATES, "abcdef", strict=True))
        expected = {
            by_state[PREPARED]: (10, False),
            by_state[DISPATCHED]: (10, True),  # by an owner that is dead
            by_state[SUCCEEDED]: (10, False),
            by_state[UNKNOWN]: (10, True),
            "acting": (5, False),
        }
        told = {one.key: (one.amount, one.open) for one in _facts(store, "new", group="g").group}
        assert told == expected
        assert {one.key for one in _facts(store, "acting").group} == expected.keys() - {"acting"}, "its own row is none of them"
        store.release(wanted)
        assert {one.key: one.open for one in _facts(store, "new", group="g").group}["acting"]
        assert acting.group_key == "g"
        assert list(_facts(store, "new", group="nobody's").group) == []

    def test_what_is_taken_back_and_by_whom_is_told(self) -> None:
        store = self.make_store()
        original = _put(store, _row("pay", SUCCEEDED))
        name = f"{_NS}\0pay"
        facts = _facts(store, "back", compensates=name)
        assert facts.original == original
        assert facts.compensation is None
        _put(store, _row("failed", FAILED, compensates=name))
        assert _facts(store, "back", compensates=name).compensation is None
        _put(store, _row("back", PREPARED, compensates=name))
        assert _facts(store, "back").original == original
        assert _facts(store, "back").compensation is None, "it does not compete with itself"
        assert _facts(store, "second", compensates=name).compensation is not None
        assert _facts(store, "back", namespace="other", compensates=name).compensation is not None
        assert _facts(store, "second", compensates=f"{_NS}\0absent").original is None

    def test_a_ticket_is_used_once(self) -> None:
        store = self.make_store()
        store.add_ticket(Ticket("t1", "refund", {"order": 42}, 1200))
        store.add_ticket(Ticket("t2", "refund", {}))
        found = store.ticket("t1")
        assert found is not None
        assert found[0] == "refund"
        assert isinstance(found[1], bytes)
        assert _facts(store, "k", ticket="t1").ticket_user is None
        _put(store, _row("k", PREPARED, ticket="t1"))
        for seen in (store, self.reopen(store)):
            assert _facts(seen, "other", ticket="t1").ticket_user == (_NS, "k")
            assert _facts(seen, "other", ticket="t2").ticket_user is None
            assert seen.ticket("t1") == found

    def test_the_salt_is_the_stores_own_and_stays(self) -> None:
        store = self.make_store()
        salt = store.salt()
        assert isinstance(salt, bytes)
        assert len(salt) >= 16
        assert salt not in (b"", self.make_store().salt())
        assert self.reopen(store).salt() == salt

    # --- pruning -------------------------------------------------------------------------------------------------------------

    def test_only_what_is_settled_old_and_undisputed_is_pruned(self) -> None:
        store = self.make_store()
        for state in STATES:
            _put(store, _row(state, state, updated=_NOW - 100))
        _put(store, _row("young", SUCCEEDED, updated=_NOW - 50))
        _put(store, _row("window", SUCCEEDED, updated=_NOW - 100, key_expires_at=_NOW + 1))
        _put(store, _row("elsewhere", SUCCEEDED, updated=_NOW - 100, namespace="other"))
        disputed = _put(store, _row("disputed", SUCCEEDED, updated=_NOW - 100))
        wrong = (Event("anomaly", SUCCEEDED, SUCCEEDED, WORKER),)
        _decide(store, "disputed", lambda _: Decision(Done(disputed), None, wrong))
        assert store.prune(_NOW - 50, namespace=_NS) == 3
        assert {row.key for row in store.rows(namespace=_NS)} == {PREPARED, DISPATCHED, UNKNOWN, "young", "window", "disputed"}
        assert store.prune(_NOW - 50, namespace=_NS) == 0
        assert store.prune(_NOW - 50) == 1

    def test_a_pruned_key_stays_used(self) -> None:
        store = self.make_store()
        _put(store, _row("k", SUCCEEDED, result=b"secret", arguments=b"secret", ticket=None))
        _put(store, _row("kept", UNKNOWN))
        newest = store.events()[-1].seq
        self.now += 10
        assert store.prune(self.now) == 1
        for seen in (store, self.reopen(store)):
            assert seen.row(_NS, "k") is None
            stub = _facts(seen, "k").stub
            assert stub is not None
            assert (stub.state, stub.payload) == (SUCCEEDED, b"payload")
            assert _facts(seen, "kept").stub is None
            assert [one.kind for one in seen.events(_NS, "kept")] == ["made"]
        store = self.reopen(store)
        _put(store, _row("new", PREPARED))
        assert store.events()[-1].seq > newest

    def test_a_number_is_never_given_to_two_events(self) -> None:
        store = self.make_store()
        _put(store, _row("kept", UNKNOWN))
        _put(store, _row("newest", SUCCEEDED))
        newest = store.events()[-1].seq
        self.now += 10
        assert store.prune(self.now) == 1
        _put(store, _row("new", PREPARED))
        assert store.events()[-1].seq > newest

    def test_limits_and_tickets_outlive_pruning(self) -> None:
        store = self.make_store()
        store.add_ticket(Ticket("t1", "refund", {}))
        _put(store, _row("spent", SUCCEEDED, group_key="g", amount=7, ticket="t1"))
        _put(store, _row("nothing", FAILED, group_key="g", amount=9))
        self.now += 10
        assert store.prune(self.now) == 2
        assert [(one.key, one.amount, one.open) for one in _facts(store, "new", group="g").group] == [("spent", 7, False)]
        assert _facts(store, "new", ticket="t1").ticket_user == (_NS, "spent")

    def _needs_processes(self) -> None:
        if "processes" in self.lacks:
            raise unittest.SkipTest(f"{type(self).__name__} lacks processes: {self.lacks['processes']}")
        if not hasattr(os, "fork"):
            raise unittest.SkipTest("this system has no fork")


# --- how a store is asked ----------------------------------------------------------------------------------------------------


def _row(key: str, state: str, **fields: object) -> Row:
    made = Row(
        namespace=_NS,
        key=key,
        state=state,
        attempt=1,
        epoch=0,
        sends=1,
        operation="act",
        provider="bank",
        identity="bank/1",
        arguments=b"arguments",
        payload=b"payload",
        created=_NOW,
        updated=_NOW,
    )
    return made._replace(**fields)  # type: ignore[arg-type]  # fields of a row, by name


def _decide(store: IntentStore, key: str, decide: Callable[[Facts], Decision]) -> Decision:
    return store.transact(Wanted(_NS, key, holder=object()), decide)


def _put(store: IntentStore, row: Row) -> Row:
    """Store a row in any state, with one event that is no transition."""
    event = Event("made", row.state, row.state, WORKER)
    store.transact(Wanted(*row.where, ticket=row.ticket), lambda _: Decision(Open(row), row, (event,)))
    return row


def _change(store: IntentStore, before: Row, after: Row, *events: Event) -> None:
    def decide(facts: Facts) -> Decision:
        assert facts.row == before
        return Decision(Open(after), after, events)

    _decide(store, before.key, decide)


def _claim(store: IntentStore, wanted: Wanted, **fields: object) -> Row:
    """Begin to act, as a worker does."""

    def decide(facts: Facts) -> Decision:
        row = _row(wanted.key, DISPATCHED, owner=facts.owner, epoch=1, **fields)
        events = (Event("prepared", "", PREPARED, WORKER), Event("dispatched", PREPARED, DISPATCHED, WORKER))
        return Decision(Go(row), row, events)

    decision = store.transact(wanted, decide)
    assert decision.row is not None
    return decision.row


def _return(decision: Decision, _: Facts) -> Decision:
    return decision


def _raise(error: BaseException, _: Facts) -> Decision:
    raise error


def _count(facts: Facts) -> Decision:
    assert facts.row is not None
    after = facts.row._replace(sends=facts.row.sends + 1)
    return Decision(Open(after), after, (Event("checked", UNKNOWN, UNKNOWN, RECONCILER),))


def _facts(
    store: IntentStore,
    key: str,
    *,
    namespace: str = _NS,
    group: str | None = None,
    compensates: str | None = None,
    ticket: str | None = None,
    holder: object = None,
) -> Facts:
    """Return the facts about a key; whether somebody is alive can be asked of them afterwards too."""
    found: list[Facts] = []

    def decide(facts: Facts) -> Decision:
        found.append(facts)
        return Decision(Refuse(LookupError("nothing is to be done")))

    store.transact(Wanted(namespace, key, group, compensates, ticket, holder or object()), decide)
    return found[-1]


def _raised(act: Callable[[], object]) -> BaseException:
    try:
        act()
    except BaseException as exc:
        return exc
    raise AssertionError("nothing was raised")


def _forked(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def _ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
