"""What a ledger's verbs do, as plans without I/O; :mod:`letitloop.effects.drivers` carries them out.

A plan is a generator. It yields orders and is sent their results, or thrown what they raised; it returns the verb's value or
raises its error. The order of things is the promise: the intent is durable as DISPATCHED before the provider is called, and
whatever leaves the provider's call, a result, an error, an interrupt, is recorded before anything else happens.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from letitloop import failpoints
from letitloop.effects import machine, refusals
from letitloop.effects.intent import Redacted, provider_key
from letitloop.effects.machine import Decision, Done, Go, Open, Refuse
from letitloop.effects.provider import Dispatch, NotFound, Succeeded
from letitloop.effects.said import Raised, answer_parts, reply_parts, secrets_of
from letitloop.effects.states import DISPATCHED, RECONCILER, UNKNOWN
from letitloop.errors import IntentFailed, LetItLoopError, UnknownOutcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from typing import Any, Literal

    from letitloop.effects.intent import Row
    from letitloop.effects.intents import Wanted
    from letitloop.effects.machine import Facts, Request
    from letitloop.effects.provider import Provider
    from letitloop.effects.said import Answered
    from letitloop.effects.vault import Vault

    Plan = Generator["Transact | Ask", Any, Any]

__all__ = ["Action", "Ask", "Transact", "reconcile_plan", "resend_plan", "run_plan"]


class Transact(NamedTuple):
    """Decide in one durable transaction; the answer is the decision."""

    wanted: Wanted
    decide: Callable[[Facts], Decision]


class Ask(NamedTuple):
    """Call the provider; the answer is what it returned."""

    method: Literal["execute", "reconcile", "tombstone"]
    dispatch: Dispatch


class Action(NamedTuple):
    """One call of a verb about one intent.

    Attributes:
        wanted: the facts it needs.
        provider: who acts.
        vault: encodes what is stored.
        arguments: as the caller gave them, redacted ones too; None if the ledger's have to do.
        stored: the same, as they would be stored.
        secrets: the values of redacted arguments, as texts: they are kept out of every text that is stored.
        place: returns the options of ``lil ledger`` that say which ledger it is in.
    """

    wanted: Wanted
    provider: Provider
    vault: Vault
    arguments: Mapping[str, Any] | None = None
    stored: bytes | None = None
    secrets: tuple[str, ...] = ()
    place: Callable[[], str] = str

    def dispatch(self, row: Row) -> Dispatch:
        """Return what the provider is given about a row."""
        return Dispatch(
            namespace=row.namespace,
            key=row.key,
            attempt=row.attempt,
            epoch=row.epoch,
            provider_key=provider_key(row.namespace, row.key, row.attempt),
            operation=row.operation,
            arguments=self.of(row),
            first_dispatched_at=row.dispatched_at or row.created,
        )

    def of(self, row: Row) -> Mapping[str, Any]:
        """Return a row's arguments: what was recorded is what is sent; only what is recorded as a hash comes from the caller."""
        if self.arguments is not None and self.stored == row.arguments:
            return self.arguments
        recorded: Any = self.vault.decode(row.arguments)
        given = self.arguments or {}
        return {name: given.get(name, value) if isinstance(value, Redacted) else value for name, value in recorded.items()}

    def about(self, row: Row) -> Action:
        """Return the same, keeping out of texts what this row's record keeps as hashes."""
        if self.arguments is None or self.stored == row.arguments:
            return self
        recorded: Any = self.vault.decode(row.arguments)
        return self._replace(secrets=(*self.secrets, *secrets_of(self.arguments, recorded)))

    def complete(self, row: Row) -> bool:
        """Tell whether all arguments are at hand."""
        return not any(isinstance(value, Redacted) for value in self.of(row).values())


# --- run ---------------------------------------------------------------------------------------------------------------------


class _Sending:
    """How far a call has come, for an interrupt that may fall between any two lines.

    Attributes:
        claimed: whether it may hold a dispatch whose outcome is not recorded.
        called: whether the provider may have been called.
        reply: what it said, or what it raised.
        dispatch: what it was sent.
        action: what it was about.
    """

    __slots__ = ("action", "called", "claimed", "dispatch", "reply")

    def __init__(self) -> None:
        self.claimed = self.called = False
        self.reply: object = None
        self.dispatch: Dispatch | None = None
        self.action: Action | None = None


def run_plan(action: Action, request: Request, recover: str) -> Plan:
    """Carry out an action once, or find out what became of it.

    Returns:
        The row of an intent that SUCCEEDED, and its fresh result or None.
    """
    sending = _Sending()
    return (yield from _interruptible(action, sending, _run(action, request, recover, sending)))


def _run(action: Action, request: Request, recover: str, sending: _Sending) -> Plan:
    then, fresh = yield from _attempt(action, sending, lambda facts: machine.claim(facts, request))
    if isinstance(then, Open) and recover != "block":
        row = yield from _ask(action, then.row)
        then = machine.standing(row)
        if isinstance(then, Open) and recover == "resend":
            complete = action.complete(row)
            then, fresh = yield from _attempt(action, sending, partial(machine.resend, caps=request.caps, complete=complete))
    return _conclude(action, then, fresh)


def _attempt(action: Action, sending: _Sending, decide: Callable[[Facts], Decision]) -> Plan:
    """Decide whether to act, and act if so; return what follows, and the provider's fresh success."""
    if failpoints.active:
        failpoints.hit("intent.before_claim")
    sending.claimed = True  # perhaps: an interrupt may come right after the commit
    try:
        decision = yield Transact(action.wanted, decide)
    except LetItLoopError:
        sending.claimed = False
        raise
    then = decision.then
    sending.claimed = isinstance(then, Go)
    return (yield from _send(action, then.row, sending)) if sending.claimed else (then, None)


def _conclude(action: Action, then: Go | Done | Open | Refuse, fresh: Succeeded | None) -> tuple[Row, Succeeded | None]:
    if isinstance(then, Done):
        return then.row, fresh
    if isinstance(then, Refuse):
        if isinstance(then.error, IntentFailed) and then.row is not None:
            then.error.detail = action.vault.read(then.row.detail)
        raise then.error
    raise refusals.unknown(then.row, place=action.place())


def _send(action: Action, row: Row, sending: _Sending) -> Plan:
    """Call the provider about a row that is durable as DISPATCHED, and record what comes of it."""
    sending.action = action.about(row)
    sending.dispatch = sending.action.dispatch(row)
    if failpoints.active:
        failpoints.hit("intent.claimed")
    sending.called = True
    try:
        sending.reply = yield Ask("execute", sending.dispatch)
    except Exception as exc:
        sending.reply = Raised(exc)
    else:
        if failpoints.active:
            failpoints.hit("intent.replied")
    decision = yield from _settle(sending)
    return decision.then, sending.reply if isinstance(sending.reply, Succeeded) else None


def _settle(sending: _Sending) -> Plan:
    action, dispatch = sending.action, sending.dispatch
    assert action is not None, "something was sent"
    assert dispatch is not None, "something was sent"
    try:
        said = reply_parts(action, sending.reply)
    except Exception as exc:  # of the user's cipher
        raise _unrecorded(sending, dispatch, exc) from exc
    if failpoints.active:
        if isinstance(said.reply, Succeeded):
            failpoints.hit("intent.before_settle")
        else:
            failpoints.hit("intent.before_unknown")
    try:
        decision = yield Transact(action.wanted, partial(machine.settle, dispatch=dispatch, **said._asdict()))
    except Exception as exc:  # of the disk
        raise _unrecorded(sending, dispatch, exc) from exc
    sending.claimed = False
    if failpoints.active:
        failpoints.hit("intent.settled")
    return decision


def _unrecorded(sending: _Sending, dispatch: Dispatch, exc: Exception) -> UnknownOutcome:
    sending.claimed = False
    return UnknownOutcome(
        f"intent {dispatch.key!r} of {dispatch.namespace!r} was sent, and what came of it could not be recorded: {exc} Mend that, "
        "then start again: the intent is found open, and its provider is asked.",
        namespace=dispatch.namespace,
        key=dispatch.key,
        reason="ledger write failed",
    )


def _interruptible(action: Action, sending: _Sending, plan: Plan) -> Plan:
    """Whatever leaves a plan that holds a dispatch, Ctrl+C at any line, a cancellation, is recorded before it goes on."""
    try:
        return (yield from plan)
    except GeneratorExit:
        raise
    except BaseException as exc:
        if not sending.claimed:
            raise
        if sending.reply is not None:
            yield from _settle(sending)
        else:
            why = f"interrupted by {type(exc).__name__}"
            yield Transact(action.wanted, partial(machine.abandon, why=why, called=sending.called))
        raise


# --- reconcile and resend ----------------------------------------------------------------------------------------------------


def reconcile_plan(action: Action) -> Plan:
    """Ask the provider what became of an open intent, and settle it if it knows. Never dispatches.

    Returns:
        The row afterwards.
    """
    decision = yield Transact(action.wanted, _open)
    then = decision.then
    if isinstance(then, Open):
        return (yield from _ask(action, then.row))
    if isinstance(then, Refuse):
        raise then.error
    return then.row


def _open(facts: Facts) -> Decision:
    row = facts.row
    assert row is not None, "asked for by whoever has read the row"
    if row.state == DISPATCHED:
        return machine.take_over(facts, row, RECONCILER)
    return Decision(Open(row) if row.state == UNKNOWN else Done(row))


def _ask(action: Action, row: Row) -> Plan:
    """Ask about an open intent, and record the answer; its key is occupied where the provider can do that."""
    caps = action.provider.caps
    if failpoints.active:
        failpoints.hit("intent.takeover")
    if caps.lookup == "none" and not caps.tombstone:
        return row
    action = action.about(row)
    dispatch = action.dispatch(row)
    answered = None
    if caps.lookup != "none":
        answered = yield from _answer(action, "reconcile", dispatch)
    if caps.tombstone and (answered is None or isinstance(answered.answer, NotFound)):
        answered = yield from _answer(action, "tombstone", dispatch)
    assert answered is not None, "one of the two was asked"
    if failpoints.active:
        failpoints.hit("intent.before_reconciled")
    decision = yield Transact(action.wanted, partial(machine.answered, dispatch=dispatch, **answered._asdict()))
    return decision.row or decision.then.row or row


def _answer(action: Action, method: Literal["reconcile", "tombstone"], dispatch: Dispatch) -> Generator[Ask, object, Answered]:
    answer: object
    try:
        answer = yield Ask(method, dispatch)
    except Exception as exc:
        answer = Raised(exc)
    return answer_parts(action, dispatch, method, answer)


def resend_plan(action: Action, row: Row) -> Plan:
    """Send an open intent again, with the same key, inside its provider's window.

    Returns:
        The row of an intent that SUCCEEDED, and its fresh result or None.
    """
    complete = action.complete(row)
    sending = _Sending()
    attempt = _attempt(action, sending, partial(machine.resend, caps=action.provider.caps, complete=complete))
    then, fresh = yield from _interruptible(action, sending, attempt)
    return _conclude(action, then, fresh)
