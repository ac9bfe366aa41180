"""Where intents are stored: the :class:`IntentStore` protocol, and the SQLite implementation on a ledger's file.

A store reads facts, lets a pure function decide, and writes what it decided, all in one durable transaction. It knows which
transitions exist and writes no other.
"""

from __future__ import annotations

from typing import NamedTuple

from letitloop.codecs.digest import sha256
from letitloop.effects.intent import Row
from letitloop.effects.ledger_file import APPEND_ONLY
from letitloop.effects.machine import Facts, Go, Member, Stub
from letitloop.effects.states import CANCELLED, DISPATCHED, FAILED, SUCCEEDED, UNKNOWN, allowed
from letitloop.errors import StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from typing import Any, Protocol, TypeAlias

    from letitloop.effects.intent import Ticket
    from letitloop.effects.ledger_file import LedgerFile
    from letitloop.effects.machine import Decision
    from letitloop.effects.owners import Owner
    from letitloop.effects.vault import Vault

    Ask: TypeAlias = Callable[[str, tuple[object, ...]], list[Any]]

    class IntentStore(Protocol):
        """Where intents are stored. ``letitloop.testing.IntentStoreContract`` is the suite that every store must pass."""

        def transact(self, wanted: Wanted, decide: Callable[[Facts], Decision]) -> Decision:
            """Read facts, decide, and write what was decided; durable when this returns, undone if it raises.

            It may be decided several times, on facts that are newer each time: the last decision counts.

            A decision to act (``Go``) counts as under way in this process until :meth:`release`.

            Raises:
                StoreError: it could not be written; nothing was. If the holder was acting, this opening is not used again.
            """
            ...

        def release(self, wanted: Wanted) -> None:
            """Tell that the holder in ``wanted`` works on nothing more."""
            ...

        def row(self, namespace: str, key: str) -> Row | None:
            """Return an intent; None if there is none."""
            ...

        def rows(self, *, state: str | None = None, namespace: str | None = None) -> list[Row]:
            """Return intents in the order of their identities."""
            ...

        def events(self, namespace: str | None = None, key: str | None = None, *, kind: str | None = None) -> list[Recorded]:
            """Return events, oldest first: an intent's, or all of a kind."""
            ...

        def prune(self, before: float, *, namespace: str | None = None) -> int:
            """Replace what was settled before a time by stubs, and return how many there were."""
            ...

        def add_ticket(self, ticket: Ticket) -> None:
            """Store a ticket."""
            ...

        def ticket(self, name: str) -> tuple[str, bytes] | None:
            """Return the operation and the encoded terms of a ticket."""
            ...

        def salt(self) -> bytes:
            """Return what the hashes of redacted arguments are salted with."""
            ...


__all__ = ["Recorded", "SqliteIntents", "Wanted"]

_FIELDS = Row._fields
_COLUMNS = ", ".join(_FIELDS)
_SELECT_VERSION = f"select {_COLUMNS}, version from intent where namespace=? and key=?"  # noqa: S608 - the same
_SELECT = f"select {_COLUMNS} from intent "  # noqa: S608 - of the names of Row's fields
PRUNABLE = (
    " where state in (:succeeded, :failed, :cancelled) and updated < :before and (:namespace is null or namespace=:namespace)"
    " and (key_expires_at is null or key_expires_at < :now)"
    " and not exists (select 1 from event where event.namespace=intent.namespace and event.key=intent.key and event.kind='anomaly')"
    # what took another back is kept as long as that is on record: it must not be taken back twice
    " and (compensates is null or not exists"
    "  (select 1 from intent o where o.namespace || char(0) || o.key = intent.compensates))"
)
"""Which intents may be replaced by stubs; with the values of :func:`pruning`."""
ROWS = "where (:state is null or state=:state) and (:namespace is null or namespace=:namespace) order by namespace, key"
EVENTS = (
    "select * from event where (:namespace is null or namespace=:namespace) and (:key is null or key=:key)"
    " and (:kind is null or kind=:kind) order by seq"
)
_EVENT = "insert into event(namespace, key, attempt, epoch, at, kind, before, after, actor, evidence) values(?,?,?,?,?,?,?,?,?,?)"


class Wanted(NamedTuple):
    """Which facts a decision needs.

    Attributes:
        namespace: whose action it is.
        key: which action it is.
        group: the group it would belong to, if it is new.
        compensates: what it would take back, if it is new.
        ticket: the ticket it would use.
        holder: who asks, in this process: each call is its own.
    """

    namespace: str
    key: str
    group: str | None = None
    compensates: str | None = None
    ticket: str | None = None
    holder: object = None


class Recorded(NamedTuple):
    """An event as it is stored."""

    seq: int
    namespace: str
    key: str
    attempt: int
    epoch: int
    at: float
    kind: str
    before: str
    after: str
    actor: str
    evidence: bytes | None


class SqliteIntents:
    """Intents in a ledger's SQLite file.

    Args:
        ledger: gives the open file.
        vault: encodes what events rest on.
        clock: returns seconds since 1970-01-01 UTC.
    """

    def __init__(self, ledger: Callable[[], LedgerFile], vault: Vault, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._vault = vault
        self._clock = clock
        self._held: dict[object, tuple[Owner, tuple[str, str, int]]] = {}
        self._claimed: dict[object, tuple[Row | None, int]] = {}
        self._trusted: LedgerFile | None = None

    # --- one decision --------------------------------------------------------------------------------------------------------

    def transact(self, wanted: Wanted, decide: Callable[[Facts], Decision]) -> Decision:
        """Read facts, decide, and write what was decided; see :class:`IntentStore`."""
        ledger = self._ledger()
        _ = ledger.owner  # made here: inside a transaction it would wait for that
        # decided before the lock is taken, which everybody waits for: if something came in between, it is decided again inside
        if self._trusted is ledger and wanted.group is None and wanted.compensates is None and wanted.ticket is None:
            facts = self._likely(ledger, wanted)
            if facts.row is None or (facts.row.group_key is None and facts.row.compensates is None):
                decision = decide(facts)
                if decision.row is not None or decision.events:
                    if self._carry_out(ledger, wanted, facts, decision):
                        return decision
                elif facts.row is not None:
                    return decision
        return self._decide_inside(ledger, wanted, decide)

    def _decide_inside(self, ledger: LedgerFile, wanted: Wanted, decide: Callable[[Facts], Decision]) -> Decision:
        acting = wanted.holder in self._held
        try:
            with ledger.transaction() as inside:
                self._check_cipher(ledger, inside)
                facts = self._facts(ledger, lambda query, values: inside.execute(query, values).fetchall(), wanted)
                decision = decide(facts)
                self._write(ledger, inside, wanted, facts, decision, self._encoded(facts, decision))
        except StoreError:
            self._not_written(ledger, wanted, acting=acting)
            raise
        return decision

    def _carry_out(self, ledger: LedgerFile, wanted: Wanted, facts: Facts, decision: Decision) -> bool:
        """Write what was decided on facts that may be out of date; false, and nothing written, if they are."""
        events = self._encoded(facts, decision)
        acting = wanted.holder in self._held
        try:
            with ledger.transaction() as inside:
                return self._write(ledger, inside, wanted, facts, decision, events)
        except StoreError:
            self._not_written(ledger, wanted, acting=acting)
            raise

    def _not_written(self, ledger: LedgerFile, wanted: Wanted, *, acting: bool) -> None:
        """If a write fails while its holder acts, use this opening no more; a claim that was not committed is none."""
        if acting:  # what came of an action is not on record: the next opening finds it open
            ledger.poisoned = True
        else:
            self.release(wanted)

    def _check_cipher(self, ledger: LedgerFile, inside: sqlite3.Connection) -> None:
        """Refuse to write with another cipher than the ledger's: half of it could be read by nobody.

        Raises:
            StoreError: the ledger is encrypted otherwise, or not at all.
        """
        if self._trusted is ledger:
            return
        mark = inside.execute("select v from meta where k='cipher'").fetchone()
        if mark is None and self._vault.sealed:
            if inside.execute("select 1 from intent limit 1").fetchone() is not None:
                raise StoreError("this ledger holds intents that are not encrypted, and cipher= is given. Nothing was written.")
            inside.execute("insert into meta values('cipher', ?)", (self._vault.mark(),))
        elif mark is not None and not self._vault.made(mark[0]):
            raise StoreError("this ledger is encrypted, and cipher= is missing or another one. Nothing was written.")
        self._trusted = ledger

    def _likely(self, ledger: LedgerFile, wanted: Wanted) -> Facts:
        """Return facts that hold if nobody has come in between, which the write finds out.

        The row that this holder has claimed needs no reading, and a key that was pruned refuses the insert.
        """
        alive = _judge(ledger)
        claimed = self._claimed.pop(wanted.holder, None)
        row, version = claimed or self._found(ledger.rows, wanted)
        held = None if row is None else self._holding(ledger, wanted, row)
        return Facts(row, self._clock(), ledger.owner.name, alive, held=held, version=version)

    def _found(self, ask: Ask, wanted: Wanted) -> tuple[Row | None, int]:
        found = ask(_SELECT_VERSION, (wanted.namespace, wanted.key))
        return (self._read(found[0][:-1]), found[0][-1]) if found else (None, 0)

    def _holding(self, ledger: LedgerFile, wanted: Wanted, row: Row) -> int | None:
        """Return the epoch of a row, if its dispatch is the holder's."""
        return row.epoch if ledger.owner.under_way.get((*row.where, row.epoch)) is wanted.holder else None

    def _facts(self, ledger: LedgerFile, ask: Ask, wanted: Wanted) -> Facts:
        alive = _judge(ledger)
        where = (wanted.namespace, wanted.key)
        row, version = self._found(ask, wanted)
        stub = None
        if row is None:
            found = ask("select state, payload from stub where namespace=? and key=?", where)
            stub = Stub(*found[0]) if found else None
        group = (row.group_key if row is not None else None) or wanted.group
        members = () if group is None else _members(ask, *where, group, alive)
        compensates = (row.compensates if row is not None else None) or wanted.compensates
        original, other = (None, None) if compensates is None else _compensated(ask, *where, compensates)
        user = None
        if wanted.ticket is not None:
            found = ask("select used_namespace, used_key from ticket where id=? and used_key is not null", (wanted.ticket,))
            user = found[0] if found else None
        held = None if row is None else self._holding(ledger, wanted, row)
        return Facts(row, self._clock(), ledger.owner.name, alive, stub, members, original, other, user, held, version)

    def _encoded(self, facts: Facts, decision: Decision) -> list[tuple[object, ...]]:
        """Return the events of a decision as they are stored."""
        row = decision.row or facts.row
        if row is None or not decision.events:
            return []
        about = (row.namespace, row.key, row.attempt, row.epoch, facts.now)
        encode = self._vault.encode
        return [
            (*about, one.kind, one.before, one.after, one.actor, None if one.evidence is None else encode(one.evidence))
            for one in decision.events
        ]

    def _write(
        self,
        ledger: LedgerFile,
        inside: sqlite3.Connection,
        wanted: Wanted,
        facts: Facts,
        decision: Decision,
        events: list[tuple[object, ...]],
    ) -> bool:
        """Write a decision; false, and nothing written, if its facts are out of date."""
        for event in decision.events:
            if event.before != event.after and not allowed(event.before, event.after, event.actor):
                raise AssertionError(f"{event.actor} may not move an intent from {event.before or 'nothing'} to {event.after}")
        before, after = facts.row, decision.row
        if after is not None and not (
            self._insert(inside, after) if before is None else self._update(inside, before, after, facts.version)
        ):
            return False
        if after is None and before is not None and not self._stands(inside, before, facts.version):
            return False
        for stored in events:
            ledger.advance(inside.execute(_EVENT, stored).lastrowid or 0)
        if isinstance(decision.then, Go):  # before it is committed: nobody may take it for abandoned
            row = decision.then.row
            claimed = (wanted.namespace, wanted.key, row.epoch)
            self._held[wanted.holder] = (ledger.owner, claimed)
            ledger.owner.begin(*claimed, wanted.holder)
            if wanted.holder is not None:
                self._claimed[wanted.holder] = row, facts.version + 1
        return True

    def _insert(self, inside: sqlite3.Connection, row: Row) -> bool:
        stored = self._stored(row)
        given = {name: value for name, value in zip(_FIELDS, stored, strict=True) if value is not None}  # half: twice as fast
        done = inside.execute(
            f"insert into intent({', '.join(given)}, version) select {', '.join('?' * len(given))}, 1"  # noqa: S608 - names of fields
            " where not exists (select 1 from stub where namespace=? and key=?) on conflict do nothing",
            (*given.values(), *row.where),
        )
        if done.rowcount == 1 and row.ticket is not None:
            _use_ticket(inside, row, row.ticket)
        return done.rowcount == 1

    def _update(self, inside: sqlite3.Connection, before: Row, after: Row, version: int) -> bool:
        stored = self._stored(after)
        changed = {name: new for name, was, now, new in zip(_FIELDS, before, after, stored, strict=True) if was != now}
        settings = "".join(f"{name}=?, " for name in changed) + "version=version+1"
        update = f"update intent set {settings} where namespace=? and key=? and version=?"  # noqa: S608 - names of fields
        done = inside.execute(update, (*changed.values(), *before.where, version))
        if done.rowcount == 1 and after.ticket is not None and after.ticket != before.ticket:
            _use_ticket(inside, after, after.ticket)
        return done.rowcount == 1

    def _stands(self, inside: sqlite3.Connection, row: Row, version: int) -> bool:
        found = inside.execute("select version from intent where namespace=? and key=?", row.where).fetchone()
        return found is not None and found[0] == version

    def _stored(self, row: Row) -> Row:
        return row if row.failure is None else row._replace(failure=self._vault.hide(row.failure))

    def _read(self, found: tuple[Any, ...]) -> Row:
        row = Row._make(found)
        return row if row.failure is None else row._replace(failure=self._vault.show(row.failure))

    def release(self, wanted: Wanted) -> None:
        """Tell that its holder works on nothing more; see :class:`IntentStore`."""
        self._claimed.pop(wanted.holder, None)
        held = self._held.pop(wanted.holder, None)
        if held is not None:
            owner, claimed = held
            owner.finish(*claimed)

    # --- reading -------------------------------------------------------------------------------------------------------------

    def row(self, namespace: str, key: str) -> Row | None:
        """Return an intent; see :class:`IntentStore`."""
        found = self._ledger().row(_SELECT + "where namespace=? and key=?", (namespace, key))
        return None if found is None else self._read(found)

    def rows(self, *, state: str | None = None, namespace: str | None = None) -> list[Row]:
        """Return intents in the order of their identities; see :class:`IntentStore`."""
        found = self._ledger().rows(_SELECT + ROWS, {"state": state, "namespace": namespace})
        return [self._read(one) for one in found]

    def events(self, namespace: str | None = None, key: str | None = None, *, kind: str | None = None) -> list[Recorded]:
        """Return events, oldest first; see :class:`IntentStore`."""
        found = self._ledger().rows(EVENTS, {"namespace": namespace, "key": key, "kind": kind})
        return [Recorded(*one) for one in found]

    # --- the rest ------------------------------------------------------------------------------------------------------------

    def prune(self, before: float, *, namespace: str | None = None) -> int:
        """Replace what was settled before a time by stubs; see :class:`IntentStore`."""
        with self._ledger().transaction() as inside:
            found = inside.execute(
                "select namespace, key, state, payload, result, group_key, amount from intent" + PRUNABLE,  # noqa: S608 - a constant
                pruning(before, self._clock(), namespace),
            ).fetchall()
            gone = [one[:2] for one in found]
            stubs = [
                (*one[:4], None if one[4] is None else sha256(one[4]).digest(), *_counted(one[2], one[5], one[6])) for one in found
            ]
            inside.executemany("insert or replace into stub values(?, ?, ?, ?, ?, ?, ?)", stubs)
            inside.executemany("delete from intent where namespace=? and key=?", gone)
            inside.execute("drop trigger event_kept")
            # the newest event stays, whosever it is: its number must never be given again
            inside.executemany("delete from event where namespace=? and key=? and seq < (select max(seq) from event)", gone)
            inside.execute(APPEND_ONLY.strip().split("\n")[0])
        return len(gone)

    def add_ticket(self, ticket: Ticket) -> None:
        """Store a ticket; see :class:`IntentStore`."""
        terms = self._vault.encode((dict(ticket.scope), ticket.max_amount, ticket.amount_field))
        with self._ledger().transaction() as inside:
            inside.execute("insert into ticket values(?,?,?,?,null,null)", (ticket.id, ticket.operation, terms, self._clock()))

    def ticket(self, name: str) -> tuple[str, bytes] | None:
        """Return the operation and the encoded terms of a ticket; see :class:`IntentStore`."""
        return self._ledger().row("select operation, terms from ticket where id=?", (name,))

    def salt(self) -> bytes:
        """Return the ledger's own random name."""
        return self._ledger().uuid.encode()


def _judge(ledger: LedgerFile) -> Callable[[Row], bool]:
    """Return what tells whether the owner of a row lives, and has its dispatch under way."""
    owner = ledger.owner

    def alive(row: Row) -> bool:
        if row.owner == owner.name:
            return (row.namespace, row.key, row.epoch) in owner.under_way
        return row.owner is not None and ledger.working(row.owner, row.namespace, row.key, row.epoch)

    return alive


def _use_ticket(inside: sqlite3.Connection, row: Row, ticket: str) -> None:
    inside.execute("update ticket set used_namespace=?, used_key=? where id=?", (*row.where, ticket))


def _members(ask: Ask, namespace: str, key: str, group: str, alive: Callable[[Row], bool]) -> tuple[Member, ...]:
    found = ask(
        _SELECT + "where namespace=? and group_key=? and key<>? and state not in (?, ?)", (namespace, group, key, FAILED, CANCELLED)
    )
    rows = [Row._make(one) for one in found]
    members = [Member(row.key, row.amount, row.state == UNKNOWN or (row.state == DISPATCHED and not alive(row))) for row in rows]
    forgotten = ask("select key, amount from stub where namespace=? and group_key=?", (namespace, group))
    return (*members, *(Member(name, amount, open=False) for name, amount in forgotten))


def pruning(before: float, now: float, namespace: str | None) -> dict[str, object]:
    """Return the values that ``PRUNABLE`` asks for: what is pruned was settled before a time, past its provider's window."""
    states: dict[str, object] = {"succeeded": SUCCEEDED, "failed": FAILED, "cancelled": CANCELLED}
    return {**states, "before": before, "now": now, "namespace": namespace}


def _counted(state: str, group: str | None, amount: int | None) -> tuple[str | None, int | None]:
    """Return what a stub keeps for the limits of its group: what happened counts for ever."""
    return (group, amount) if state == SUCCEEDED else (None, None)


def _compensated(ask: Ask, namespace: str, key: str, compensates: str) -> tuple[Row | None, tuple[str, str] | None]:
    found = ask(_SELECT + "where namespace=? and key=?", tuple(compensates.split("\0")))
    other = ask(
        "select namespace, key from intent where compensates=? and not (namespace=? and key=?) and state not in (?, ?)",
        (compensates, namespace, key, FAILED, CANCELLED),
    )
    return (Row._make(found[0]) if found else None), (other[0] if other else None)
