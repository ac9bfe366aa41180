"""The ledger of intents: what a user calls to act on the outside world once."""

from __future__ import annotations

import builtins
import os
import time
from functools import partial

from letitloop import failpoints
from letitloop.codecs import default_codecs
from letitloop.effects import journal, machine, refusals
from letitloop.effects.authority import check_ticket, new_ticket
from letitloop.effects.drivers import adrive, drive
from letitloop.effects.intent import Intent, IntentEvent, Ticket, provider_key
from letitloop.effects.intents import SqliteIntents, Wanted
from letitloop.effects.ledger_file import close_ledger, open_ledger
from letitloop.effects.machine import Refuse
from letitloop.effects.plans import Action, reconcile_plan, resend_plan
from letitloop.effects.requests import checked_name, make_call, retry_plan
from letitloop.effects.states import APPLICATION, HUMAN, STATES
from letitloop.effects.vault import Vault
from letitloop.errors import IntentNotFound, InvalidArgument, NotAuthorized
from letitloop.runs.scope import current_scope
from letitloop.store.directory import resolve_store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta
    from typing import Any, Literal, TypeVar

    from typing_extensions import Self, Unpack

    from letitloop.codecs import Codecs
    from letitloop.effects.intent import Row
    from letitloop.effects.intents import IntentStore, Recorded
    from letitloop.effects.ledger_file import LedgerFile
    from letitloop.effects.machine import Decision, Facts
    from letitloop.effects.provider import Provider
    from letitloop.effects.requests import RunOptions
    from letitloop.effects.vault import Cipher
    from letitloop.store.protocol import Store

    T = TypeVar("T")

__all__ = ["Ledger"]


class Ledger:
    """The ledger of actions on the outside world, each done once.

    An action is a namespace (whose: an account, a tenant) and a business key (which: ``"order-42/refund-1"``). It is recorded
    before it is sent; if its reply is lost, the provider is asked for a receipt, and without one its outcome is UNKNOWN: it is
    never sent again blindly. Every verb has an async twin (:meth:`arun` and so on) that does the same.

    Args:
        path: the ledger's SQLite file, made if it is absent; the store's own ledger by default, inside a run that run's.
        store: a store, whose ledger is used.
        codecs: how arguments and results become bytes; the registered defaults if left out.
        cipher: encrypts arguments, results, receipts, reasons and evidence: an object with ``encrypt(bytes)`` and
            ``decrypt(bytes)``.
        clock: returns seconds since 1970-01-01 UTC.
        accept_restored: open a ledger although it is older than what was recorded, once you have looked at the providers.

    Raises:
        InvalidArgument: both ``path`` and ``store`` are given.
        StoreError: from the first verb on: the file cannot be used, cannot be made durable where it lies, or was restored.

    Example:
        >>> from letitloop import Ledger, MemoryStore
        >>> from letitloop.effects.providers import FunctionProvider
        >>> ledger = Ledger(store=MemoryStore())
        >>> refunds = FunctionProvider(lambda amount_minor: f"refunded {amount_minor}", identity="shop-1")
        >>> ledger.run("shop-1", "order-42/refund-1", refunds, {"amount_minor": 1200})
        'refunded 1200'
        >>> ledger.get("shop-1", "order-42/refund-1").state
        'SUCCEEDED'
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        store: Store | str | os.PathLike[str] | None = None,
        codecs: Codecs | None = None,
        cipher: Cipher | None = None,
        clock: Callable[[], float] = time.time,
        accept_restored: bool = False,
    ) -> None:
        if path is not None and store is not None:
            raise InvalidArgument("Ledger(path, store=…): give one of them. Nothing was opened.")
        # one name for a ledger, however it is reached: owners, lock and mark lie beside it
        self._path: str | None = None if path is None else os.path.realpath(os.fspath(path))
        self._store = None if store is None else resolve_store(store)
        self._accept = accept_restored
        self._checked: LedgerFile | None = None
        self.vault = Vault(codecs or default_codecs, cipher)
        """Encodes what is stored."""
        self.clock = clock
        """Returns seconds since 1970-01-01 UTC."""
        self.intents: IntentStore = SqliteIntents(self._file, self.vault, clock)
        """Where the intents are stored."""

    def __repr__(self) -> str:
        return f"<Ledger {self.location}>"

    @property
    def location(self) -> str:
        """Where the ledger is: ``sqlite:PATH`` or ``memory:NAME``."""
        if self._path is not None:
            return f"sqlite:{self._path}"
        if self._store is not None:
            return self._store.ledger
        scope = current_scope()
        return scope.run.store.ledger if scope is not None else resolve_store(None).ledger

    def typed_place(self) -> str:
        """Return the options with which ``lil ledger`` finds this ledger; empty for the one that it looks at by itself."""
        import shlex

        kind, _, path = self.location.partition(":")
        by_itself = resolve_store(None).ledger == self.location
        return "" if by_itself or kind != "sqlite" else f" --ledger {shlex.quote(path)}"

    def close(self) -> None:
        """Close the ledger's file in this process; the next verb opens it again. The process's end closes it too."""
        close_ledger(self.location)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _file(self) -> LedgerFile:
        ledger = open_ledger(self.location)
        if ledger is not self._checked:
            ledger.check_age(accept=self._accept)
            self._checked = ledger
        return ledger

    # --- acting --------------------------------------------------------------------------------------------------------------

    def run(
        self,
        namespace: str,
        key: str,
        provider: Provider,
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> Any:
        """Carry out an action once, and return its result; a repeat returns the recorded one.

        The intent is durable before anything is sent. Inside a durable run the call is a step of its own: replay asks the ledger.

        Args:
            namespace: whose action it is, 1 to 512 characters.
            key: which action it is, 1 to 512 characters: a name from your business, never a random one.
            provider: who carries it out.
            arguments: with what; another call under this key must have the same.
            options:
                ``operation``: what is done; by default ``arguments["operation"]``, or else the provider's name.
                ``recover``: what is done about an outcome that is unknown. ``"block"`` raises at once; ``"reconcile"`` (default)
                asks the provider and sends nothing; ``"resend"`` may then also send again with the same key, inside the
                provider's window.
                ``redact``: arguments of which the ledger keeps a hash alone.
                ``payload``: which arguments must be the same in a repeat; all by default.
                ``limit``: a :class:`Limit` that this action shares with its group.
                ``block_group_on``: ``"UNKNOWN"`` (default): while the outcome of another intent of the group is unknown, nothing
                else in it is begun; None: it counts as spent, and does not block.
                ``approval``: an :class:`Approval`, if somebody has to approve it first.
                ``compensates``: the (namespace, key) of the action that this one takes back; it must have SUCCEEDED.
                ``ticket``: an authorisation from :meth:`authorize`; one ticket allows one action.
                ``retry``: the kinds of certified failure after which a later call makes a new attempt by itself, of
                ``"not_sent"`` (default), ``"rejected"`` and ``"tombstoned"``.
                ``max_attempts``: how many attempts that makes at most, 3 by default.

        Returns:
            The provider's result.

        Raises:
            UnknownOutcome: it may or may not have happened; it was not sent again.
            ActionConflict: another action is on record under this key.
            IntentFailed: it certainly did not happen.
            InFlight: a live owner is carrying it out.
            ApprovalRequired: it waits for an approval.
            NotAuthorized: a limit, a ticket or a compensation refuses it; nothing was recorded.
            Fenced: this call's success contradicts what was settled meanwhile.
            IntentPruned: the key was used long ago.
            UnencodableError: the arguments cannot be recorded; nothing was.
            StoreError: the ledger cannot be written; nothing was sent.
        """
        call = make_call(self, namespace, key, provider, arguments or {}, options)
        return journal.carry_out(call, self)

    async def arun(
        self,
        namespace: str,
        key: str,
        provider: Provider,
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> Any:
        """Do as :meth:`run`; a plain provider works in a thread.

        If the task is cancelled after the dispatch the outcome is unknown, and what the provider says later is kept as evidence.
        """
        make = partial(make_call, self, namespace, key, provider, arguments or {}, options)
        return await journal.acarry_out(await self._in_thread(make), self)

    # --- an outcome that is open ---------------------------------------------------------------------------------------------

    def reconcile(self, namespace: str, key: str, provider: Provider) -> Intent:
        """Ask the provider what became of an open intent, and settle it if it knows; nothing is ever dispatched.

        A receipt settles it as SUCCEEDED. "Not found" proves nothing; a provider that can occupy the key (a tombstone) makes
        certain that a late request is refused, and that settles it as FAILED.

        Args:
            namespace: whose action it is.
            key: which action it is.
            provider: the one it was dispatched to.

        Returns:
            The intent afterwards; perhaps still UNKNOWN.

        Raises:
            IntentNotFound: there is none.
            ActionConflict: it was dispatched to another provider.
            InFlight: a live owner is carrying it out.
            StoreError: the ledger cannot be written; nothing was changed.
        """
        row, action = self._about(namespace, key, provider)
        after = row if _settled(row) else drive(reconcile_plan(action), action, self.intents)
        return self.intent(after)

    async def areconcile(self, namespace: str, key: str, provider: Provider) -> Intent:
        """Do as :meth:`reconcile`, in async code."""
        row, action = await self._in_thread(partial(self._about, namespace, key, provider))
        after = row if _settled(row) else await adrive(reconcile_plan(action), action, self.intents)
        return self.intent(after)

    def resend(self, namespace: str, key: str, provider: Provider) -> Any:
        """Send an open intent once more, with the same key and the same bytes, inside the window that its provider declares.

        Args:
            namespace: whose action it is.
            key: which action it is.
            provider: the one it was dispatched to.

        Returns:
            The provider's result.

        Raises:
            UnknownOutcome: it may not be sent again, or its outcome is unknown again.
            IntentNotFound: there is none.
            ActionConflict, IntentFailed, InFlight, StoreError: as :meth:`run`.
        """
        row, action = self._about(namespace, key, provider)
        return journal.result_of(drive(resend_plan(action, row), action, self.intents), self.vault)

    async def aresend(self, namespace: str, key: str, provider: Provider) -> Any:
        """Do as :meth:`resend`, in async code."""
        row, action = await self._in_thread(partial(self._about, namespace, key, provider))
        return journal.result_of(await adrive(resend_plan(action, row), action, self.intents), self.vault)

    def resolve(
        self,
        namespace: str,
        key: str,
        *,
        outcome: Literal["succeeded", "failed"],
        evidence: str,
        by: str,
        result: object = None,
        receipt: object = None,
    ) -> Intent:
        """Record what a person found out about an open intent.

        Args:
            namespace: whose action it is.
            key: which action it is.
            outcome: ``"succeeded"``, or ``"failed"``: it certainly did not happen, and never will.
            evidence: how that is known; not empty.
            by: who says so; not empty.
            result: what later calls of :meth:`run` return.
            receipt: what proves it.

        Raises:
            InvalidArgument: the outcome is not open, or evidence or name is missing.
            IntentNotFound: there is none.
            InFlight: a live owner is carrying it out.
        """
        if outcome not in ("succeeded", "failed"):
            raise InvalidArgument(f"resolve(outcome={outcome!r}): it is 'succeeded' or 'failed'. Nothing was changed.")
        _named(by, "by", "resolve")
        if not evidence.strip():
            raise InvalidArgument("resolve(evidence=…): say how the outcome is known. Nothing was changed.")
        kept = None if result is None else self.vault.encode(result)
        proof = None if receipt is None else self.vault.encode(receipt)
        return self._change(namespace, key, lambda facts: machine.resolve(facts, outcome, evidence, by, kept, proof))

    async def aresolve(self, namespace: str, key: str, **details: Any) -> Intent:
        """Do as :meth:`resolve`, in async code."""
        return await self._in_thread(partial(self.resolve, namespace, key, **details))

    # --- what did not happen -------------------------------------------------------------------------------------------------

    def retry_failed(self, namespace: str, key: str, provider: Provider | None = None, *, by: str = APPLICATION) -> Any:
        """Allow one more attempt of what certainly did not happen: a new attempt, with a new provider key.

        Args:
            namespace: whose action it is.
            key: which action it is.
            provider: makes the attempt at once; left out, the next :meth:`run` makes it.
            by: who allows it: ``"application"`` or ``"human NAME"``.

        Returns:
            The intent; with a provider, the provider's result.

        Raises:
            InvalidArgument: it is not FAILED.
            IntentNotFound: there is none.
            Others: with a provider, as :meth:`run`.
        """
        action = None if provider is None else self._about(namespace, key, provider)[1]
        allowed = self._change(namespace, key, lambda facts: machine.authorise_retry(facts, by))
        if action is None:
            return allowed
        plan = retry_plan(action, self._row(namespace, key))
        return journal.result_of(drive(plan, action, self.intents), self.vault)

    async def aretry_failed(self, namespace: str, key: str, provider: Provider | None = None, *, by: str = APPLICATION) -> Any:
        """Do as :meth:`retry_failed`, in async code."""
        if provider is None:
            return await self._in_thread(partial(self.retry_failed, namespace, key, by=by))
        _, action = await self._in_thread(partial(self._about, namespace, key, provider))
        await self._in_thread(partial(self.retry_failed, namespace, key, by=by))
        row = await self._in_thread(partial(self._row, namespace, key))
        return journal.result_of(await adrive(retry_plan(action, row), action, self.intents), self.vault)

    def cancel(self, namespace: str, key: str, *, reason: str = "") -> Intent:
        """Give up an intent that was never sent; its key stays used.

        Raises:
            InvalidArgument: it was sent.
            IntentNotFound: there is none.
        """
        return self._change(namespace, key, lambda facts: machine.cancel(facts, APPLICATION, "cancelled", reason))

    async def acancel(self, namespace: str, key: str, *, reason: str = "") -> Intent:
        """Do as :meth:`cancel`, in async code."""
        return await self._in_thread(partial(self.cancel, namespace, key, reason=reason))

    # --- approvals and tickets -----------------------------------------------------------------------------------------------

    def approve(self, namespace: str, key: str, *, by: str) -> Intent:
        """Grant what waits for an approval: for its recorded arguments at its provider, once.

        Args:
            namespace: whose action it is.
            key: which action it is.
            by: who grants it; not empty.

        Raises:
            InvalidArgument: it waits for none, or ``by`` is empty.
            IntentNotFound: there is none.
        """
        _named(by, "by", "approve")
        return self._change(namespace, key, lambda facts: machine.approve(facts, by))

    async def aapprove(self, namespace: str, key: str, *, by: str) -> Intent:
        """Do as :meth:`approve`, in async code."""
        return await self._in_thread(partial(self.approve, namespace, key, by=by))

    def deny(self, namespace: str, key: str, *, by: str, reason: str) -> Intent:
        """Refuse what waits for an approval; it is CANCELLED, and its key stays used.

        Args:
            namespace: whose action it is.
            key: which action it is.
            by: who refuses it; not empty.
            reason: why.

        Raises:
            InvalidArgument: it was sent, or ``by`` is empty.
            IntentNotFound: there is none.
        """
        _named(by, "by", "deny")
        return self._change(namespace, key, lambda facts: machine.cancel(facts, f"{HUMAN} {by}", "denied", reason))

    async def adeny(self, namespace: str, key: str, *, by: str, reason: str) -> Intent:
        """Do as :meth:`deny`, in async code."""
        return await self._in_thread(partial(self.deny, namespace, key, by=by, reason=reason))

    def authorize(
        self,
        operation: str,
        scope: Mapping[str, Any] | None = None,
        *,
        max_amount: int | None = None,
        amount_field: str = "amount_minor",
    ) -> Ticket:
        """Authorise one action; two equal actions that are both meant are two tickets.

        Args:
            operation: what is allowed.
            scope: arguments that the action must have.
            max_amount: the most that its amount may be.
            amount_field: which argument is the amount.

        Returns:
            A ticket, for ``run(…, ticket=ticket)``; its text goes into the action's key: ``f"refund/42/{ticket}"``.

        Example:
            >>> from letitloop import Ledger, MemoryStore
            >>> ticket = Ledger(store=MemoryStore()).authorize("refund", scope={"order_id": 42}, max_amount=1200)
            >>> len(str(ticket))
            16
        """
        ticket = new_ticket(operation, scope or {}, max_amount, amount_field)
        self.intents.add_ticket(ticket)
        return ticket

    async def aauthorize(self, operation: str, scope: Mapping[str, Any] | None = None, **bounds: Any) -> Ticket:
        """Do as :meth:`authorize`, in async code."""
        return await self._in_thread(partial(self.authorize, operation, scope, **bounds))

    def check(self, ticket: Ticket | str, operation: str, arguments: Mapping[str, Any]) -> str:
        """Hold an action against a ticket of this ledger, and return the ticket's name.

        Raises:
            NotAuthorized: the ticket is not known here, or does not allow the action.
        """
        name = str(ticket)
        found = self.intents.ticket(name)
        if found is None:
            raise NotAuthorized(f"ticket {name!r} is not of this ledger. Nothing was recorded. authorize() makes tickets.")
        terms: Any = self.vault.decode(found[1])
        check_ticket(Ticket(name, found[0], *terms), operation, arguments)
        return name

    # --- reading -------------------------------------------------------------------------------------------------------------

    def get(self, namespace: str, key: str) -> Intent:
        """Return an intent.

        Raises:
            IntentNotFound: there is none.
        """
        return self.intent(self._row(namespace, key))

    async def aget(self, namespace: str, key: str) -> Intent:
        """Do as :meth:`get`, in async code."""
        return await self._in_thread(partial(self.get, namespace, key))

    def events(self, namespace: str, key: str) -> builtins.list[IntentEvent]:
        """Return an intent's history, oldest first.

        Raises:
            IntentNotFound: there is none.
        """
        self._row(namespace, key)
        return [self._event(one) for one in self.intents.events(namespace, key)]

    async def aevents(self, namespace: str, key: str) -> builtins.list[IntentEvent]:
        """Do as :meth:`events`, in async code."""
        return await self._in_thread(partial(self.events, namespace, key))

    def anomalies(self) -> builtins.list[IntentEvent]:
        """Return every event that contradicts what is recorded; each wants to be looked at."""
        return [self._event(one) for one in self.intents.events(kind="anomaly")]

    async def aanomalies(self) -> builtins.list[IntentEvent]:
        """Do as :meth:`anomalies`, in async code."""
        return await self._in_thread(self.anomalies)

    def list(self, *, state: str | None = None, namespace: str | None = None) -> builtins.list[Intent]:
        """Return the ledger's intents, in the order of their identities.

        Args:
            state: only those in this state.
            namespace: only those of this one.

        Raises:
            InvalidArgument: there is no such state.
        """
        if state is not None and state not in STATES:
            raise InvalidArgument(f"list(state={state!r}): it is one of {', '.join(STATES)}.")
        return [self.intent(row) for row in self.intents.rows(state=state, namespace=namespace)]

    async def alist(self, *, state: str | None = None, namespace: str | None = None) -> builtins.list[Intent]:
        """Do as :meth:`list`, in async code."""
        return await self._in_thread(partial(self.list, state=state, namespace=namespace))

    def prune(self, *, older_than: timedelta, namespace: str | None = None) -> int:
        """Forget what was settled long ago, with its arguments, result and history; its key stays used.

        What is open is kept, and so is what is younger than its provider's window, and what has an anomaly.

        Args:
            older_than: how long ago.
            namespace: only of this one.

        Returns:
            How many intents that were.
        """
        age = older_than.total_seconds()
        if age < 0:
            raise InvalidArgument("prune(older_than=…): a duration is not below 0. Nothing was removed.")
        return self.intents.prune(self.clock() - age, namespace=namespace)

    async def aprune(self, *, older_than: timedelta, namespace: str | None = None) -> int:
        """Do as :meth:`prune`, in async code."""
        return await self._in_thread(partial(self.prune, older_than=older_than, namespace=namespace))

    # --- inside --------------------------------------------------------------------------------------------------------------

    def intent(self, row: Row) -> Intent:
        """Return a row as its reader wants it."""
        decode = self.vault.read
        arguments: Any = decode(row.arguments)
        original = None if row.compensates is None else row.compensates.split("\0")
        return Intent(
            namespace=row.namespace,
            key=row.key,
            state=row.state,
            attempt=row.attempt,
            epoch=row.epoch,
            operation=row.operation,
            provider=row.provider,
            provider_identity=row.identity,
            provider_key=provider_key(row.namespace, row.key, row.attempt),
            arguments=arguments,
            result=decode(row.result),
            receipt=decode(row.receipt),
            basis=row.basis,
            kind=row.kind,
            reason=row.failure,
            detail=decode(row.detail),
            approval=row.approval,
            approver=row.approver,
            group=row.group_key,
            compensates=None if original is None else (original[0], original[1]),
            run_id=row.run_id,
            step_key=row.step_key,
            owner=row.owner,
            created=row.created,
            updated=row.updated,
            dispatched_at=row.dispatched_at,
            key_expires_at=row.key_expires_at,
            next_check_at=row.next_check_at,
        )

    def _event(self, one: Recorded) -> IntentEvent:
        about = (one.seq, one.namespace, one.key, one.attempt, one.epoch, one.at)
        return IntentEvent(*about, one.kind, one.before, one.after, one.actor, self.vault.read(one.evidence))

    def _row(self, namespace: str, key: str) -> Row:
        row = self.intents.row(checked_name(namespace, "namespace"), checked_name(key, "key"))
        if row is None:
            raise IntentNotFound(f"the ledger {self.location} has no intent {key!r} of {namespace!r}. lil ledger list shows all.")
        return row

    def _about(self, namespace: str, key: str, provider: Provider) -> tuple[Row, Action]:
        row = self._row(namespace, key)
        conflict = refusals.other_provider(row, provider.identity())
        if conflict is not None:
            raise conflict
        return row, Action(Wanted(namespace, key, holder=object()), provider, self.vault)

    def _change(self, namespace: str, key: str, decide: Callable[[Facts], Decision]) -> Intent:
        self._row(namespace, key)
        if failpoints.active:
            failpoints.hit("intent.before_resolved")
        decision = self.intents.transact(Wanted(namespace, key), decide)
        if isinstance(decision.then, Refuse):
            raise decision.then.error
        return self.intent(decision.then.row)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        from letitloop.runs.drive_async import in_thread

        return await in_thread(work)


def _settled(row: Row) -> bool:
    return row.state not in ("DISPATCHED", "UNKNOWN")


def _named(by: str, name: str, verb: str) -> None:
    if not by.strip():
        raise InvalidArgument(f"{verb}({name}=…): say who does it. Nothing was changed.")
