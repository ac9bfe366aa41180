"""What is decided about an intent: pure functions from what the ledger holds to what it will hold.

Each is given the facts that one transaction read, and returns what that transaction is to write and what the caller does next.
"""

from __future__ import annotations

from typing import NamedTuple

from letitloop.effects import refusals
from letitloop.effects.provider import Found, NotExecuted, Succeeded, Unknown
from letitloop.effects.states import (
    APPLICATION,
    CANCELLED,
    DISPATCHED,
    FAILED,
    HUMAN,
    PREPARED,
    RECONCILER,
    SUCCEEDED,
    UNKNOWN,
    WORKER,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from letitloop.effects.intent import Row
    from letitloop.effects.provider import Answer, Caps, Dispatch, Reply

__all__ = [
    "Decision",
    "Done",
    "Event",
    "Facts",
    "Go",
    "Member",
    "Open",
    "Refuse",
    "Request",
    "Stub",
    "abandon",
    "answered",
    "approve",
    "authorise_retry",
    "cancel",
    "claim",
    "resend",
    "resolve",
    "settle",
    "standing",
    "take_over",
]

_CERTIFIES = ("not_sent", "rejected", "tombstoned")
_LONGEST_PAUSE = 3600.0  # seconds between two questions to a provider


# --- what is known, asked, and decided ---------------------------------------------------------------------------------------


class Member(NamedTuple):
    """Another intent of the same group that is not certainly without effect.

    Attributes:
        open: its outcome is unknown: it is UNKNOWN, or dispatched by an owner that is dead.
    """

    key: str
    amount: int | None
    open: bool


class Stub(NamedTuple):
    """What pruning leaves of an intent."""

    state: str
    payload: bytes


class Facts(NamedTuple):
    """What one transaction read.

    Attributes:
        row: the intent; None if there is none.
        now: seconds since 1970-01-01 UTC.
        owner: this process, as owners are named.
        alive: tells whether the owner of a dispatched row lives, and its dispatch is under way.
        stub: what pruning left of it.
        group: the others of its group.
        original: the intent that it would compensate.
        compensation: another intent that compensates the same one.
        ticket_user: the intent that the ticket was used for.
        held: the epoch that the asker itself is working on in this process.
        version: how often the row was written, as its store counts.
    """

    row: Row | None
    now: float
    owner: str
    alive: Callable[[Row], bool]
    stub: Stub | None = None
    group: Sequence[Member] = ()
    original: Row | None = None
    compensation: tuple[str, str] | None = None
    ticket_user: tuple[str, str] | None = None
    held: int | None = None
    version: int = 0


class Event(NamedTuple):
    """A line of history to be written."""

    kind: str
    before: str
    after: str
    actor: str
    evidence: object = None


class Go(NamedTuple):
    """It is recorded as dispatched: act."""

    row: Row


class Done(NamedTuple):
    """It has succeeded."""

    row: Row


class Open(NamedTuple):
    """Its outcome is unknown."""

    row: Row


class Refuse(NamedTuple):
    """Raise this to the caller, once what was decided is written."""

    error: BaseException
    row: Row | None = None


class Decision(NamedTuple):
    """What a transaction writes, and what follows.

    Attributes:
        then: what the caller does next.
        row: the intent's new contents; None leaves it as it is.
        events: lines of its history.
    """

    then: Go | Done | Open | Refuse
    row: Row | None = None
    events: tuple[Event, ...] = ()


class Request(NamedTuple):
    """What ``run`` is asked to do.

    Attributes:
        fresh: the row as it would be if it were new, in no state.
        caps: the provider's.
        retry: the kinds of certified failure after which a new attempt is made without being authorised.
        max_attempts: how many attempts that gives.
        needs_approval: a new intent waits for an approval.
        block_on_unknown: one open outcome freezes the group.
        tolerates: names the fields in which a recorded intent's payload differs from the request's.
    """

    fresh: Row
    caps: Caps
    retry: Collection[str] = ("not_sent",)
    max_attempts: int = 3
    needs_approval: bool = False
    block_on_unknown: bool = True
    differing: Callable[[Row], tuple[str, ...]] = lambda _: ()


# --- run ---------------------------------------------------------------------------------------------------------------------


def claim(facts: Facts, request: Request) -> Decision:
    """Decide whether this caller is the one who acts."""
    row = facts.row
    if row is None:
        return _begin(facts, request)
    conflict = refusals.conflict(row, request.fresh, request.differing)
    if conflict is not None:
        return Decision(Refuse(conflict, row))
    if row.state == SUCCEEDED:
        return Decision(Done(row))
    if row.state == CANCELLED:
        return Decision(Refuse(refusals.failed(row), row))
    if row.state == UNKNOWN:
        return Decision(Open(row))
    if row.state == DISPATCHED:
        return take_over(facts, row, WORKER)
    if row.state == FAILED and not (row.retry or (row.kind in request.retry and row.attempt < request.max_attempts)):
        return Decision(Refuse(refusals.failed(row), row))
    row = _bounded(row, request.fresh)
    refused = _unapproved(facts, row, request) or _refusal(facts, request._replace(fresh=row))
    return refused or _dispatch(facts, row, request.caps, ())


def _bounded(row: Row, fresh: Row) -> Row:
    """Return a row under the limits of its record and of this call: leaving one out loosens nothing."""
    return row._replace(
        group_key=row.group_key or fresh.group_key,
        amount=fresh.amount if row.amount is None else row.amount,
        max_intents=_narrower(row.max_intents, fresh.max_intents),
        max_sum=_narrower(row.max_sum, fresh.max_sum),
        compensates=row.compensates or fresh.compensates,
        ticket=fresh.ticket or row.ticket,
    )


def _narrower(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _begin(facts: Facts, request: Request) -> Decision:
    fresh = request.fresh
    if facts.stub is not None:
        return Decision(Refuse(refusals.pruned(fresh, facts.stub.state, same=facts.stub.payload == fresh.payload)))
    refused = _refusal(facts, request)
    if refused is not None:
        return refused
    row = fresh._replace(state=PREPARED, approval="pending" if request.needs_approval else None, created=facts.now)
    prepared = Event("prepared", "", PREPARED, WORKER)
    if request.needs_approval:
        row = row._replace(updated=max(facts.now, row.updated))
        return Decision(Refuse(refusals.approval_required(row), row), row, (prepared,))
    return _dispatch(facts, row, request.caps, (prepared,))


def _refusal(facts: Facts, request: Request) -> Decision | None:
    """Apply the limits of the group, of a ticket, and of a compensation."""
    error = (
        refusals.limited(facts, request)
        or refusals.no_ticket(facts, request.fresh)
        or refusals.no_compensation(facts, request.fresh)
    )
    return None if error is None else Decision(Refuse(error, facts.row))


def _unapproved(facts: Facts, row: Row, request: Request) -> Decision | None:
    """Refuse what needs an approval and has none that is granted, fresh, and for these very arguments."""
    if row.approval is None and not request.needs_approval:
        return None
    if row.approval is None:  # it needed none when it was first attempted
        row = row._replace(approval="pending", approval_ttl=request.fresh.approval_ttl, updated=max(facts.now, row.updated))
        asked = Event("approval_needed", row.state, row.state, APPLICATION)
        return Decision(Refuse(refusals.approval_required(row), row), row, (asked,))
    granted = row.approval == "granted" and row.approval_payload == row.payload
    if granted and (row.approval_expires is None or facts.now < row.approval_expires):
        return None
    if row.approval != "granted":
        return Decision(Refuse(refusals.approval_required(row), row))
    row = row._replace(
        approval="pending", approver=None, approval_expires=None, approval_payload=None, updated=max(facts.now, row.updated)
    )
    expired = Event("approval_expired", row.state, row.state, APPLICATION)
    return Decision(Refuse(refusals.approval_required(row), row), row, (expired,))


def _dispatch(facts: Facts, row: Row, caps: Caps, before: tuple[Event, ...], *, actor: str = WORKER) -> Decision:
    """Record that it is about to be sent; the only way to ``Go``."""
    resent = row.state == UNKNOWN
    attempt = row.attempt + (row.state == FAILED)
    window = caps.redispatch
    after = row._replace(
        state=DISPATCHED,
        attempt=attempt,
        epoch=row.epoch + 1,
        sends=row.sends + 1 if resent else 1,
        owner=facts.owner,
        updated=max(facts.now, row.updated),
        dispatched_at=row.dispatched_at if resent else facts.now,
        key_expires_at=row.key_expires_at if resent else None if window is None else facts.now + window.seconds,
        next_check_at=None,
        checks=0,
        approval="consumed" if row.approval else None,
        retry=0,
        kind=None,
        failure=None,
        detail=None,
    )
    event = Event("resent" if resent else "dispatched", row.state, DISPATCHED, actor)
    return Decision(Go(after), after, (*before, event))


def take_over(facts: Facts, row: Row, actor: str) -> Decision:
    """Decide about a dispatched intent: it is under way, or its owner is gone and nobody knows."""
    if facts.alive(row):
        return Decision(Refuse(refusals.in_flight(row), row))
    reason = f"its owner ({row.owner}) ended before it recorded an outcome"
    after = row._replace(state=UNKNOWN, epoch=row.epoch + 1, owner=facts.owner, updated=max(facts.now, row.updated), failure=reason)
    return Decision(Open(after), after, (Event("takeover", DISPATCHED, UNKNOWN, actor, reason),))


def abandon(facts: Facts, why: str, *, called: bool) -> Decision:
    """Whoever asks was interrupted with a dispatch in hand. That the provider was not called, it certifies itself.

    Args:
        facts: what the transaction read.
        why: what interrupted it.
        called: whether the provider may have been called.
    """
    row = facts.row
    if row is None or facts.held != row.epoch or row.state != DISPATCHED:
        return Decision(Refuse(InterruptedError("nothing was claimed")))
    if not called and row.sends == 1:
        return _fail(facts, row, WORKER, NotExecuted("not_sent", f"its owner was {why} before it called the provider"), None)
    return _lose(facts, row, f"its owner was {why}")


# --- after the provider's reply ----------------------------------------------------------------------------------------------


def settle(facts: Facts, dispatch: Dispatch, reply: Reply, result: bytes | None = None, receipt: bytes | None = None) -> Decision:
    """Record the reply to a dispatch, by the owner that sent it.

    Args:
        facts: what the transaction read.
        dispatch: what was sent.
        reply: what the provider said.
        result: the encoded result, of a success.
        receipt: the encoded receipt, of a success; the encoded detail, of a failure.
    """
    row = facts.row
    assert row is not None, "an intent that was dispatched is never removed"
    if (row.state, row.epoch, row.attempt) != (DISPATCHED, dispatch.epoch, dispatch.attempt):
        return _late(facts, row, dispatch, reply, result, receipt)
    if isinstance(reply, Succeeded):
        return _succeed(facts, row, WORKER, reply.basis, result, receipt)
    if isinstance(reply, NotExecuted) and reply.kind in _CERTIFIES and (row.sends == 1 or reply.kind == "tombstoned"):
        return _fail(facts, row, WORKER, reply, receipt)
    if isinstance(reply, Unknown):
        reason = reply.reason
    elif row.sends > 1:
        reason = f"sent again, it was not executed ({reply.certificate}), which tells nothing of the first sending"
    else:
        reason = f"{reply.kind!r} is no certificate of non-execution"
    return _lose(facts, row, reason)


def _lose(facts: Facts, row: Row, reason: str) -> Decision:
    after = row._replace(state=UNKNOWN, updated=max(facts.now, row.updated), failure=reason, next_check_at=facts.now)
    return Decision(Open(after), after, (Event("unknown", DISPATCHED, UNKNOWN, WORKER, reason),))


def _late(facts: Facts, row: Row, dispatch: Dispatch, reply: Reply, result: bytes | None, receipt: bytes | None) -> Decision:
    """Keep what a fenced owner brings: evidence, which settles what is open and overwrites nothing."""
    same = row.attempt == dispatch.attempt
    evidence = {"reply": refusals.reply(reply), "epoch": dispatch.epoch, "attempt": dispatch.attempt, "receipt": receipt}
    note = Event("late_result", row.state, row.state, WORKER, evidence)
    if isinstance(reply, Succeeded):
        if same and row.state in (UNKNOWN, DISPATCHED):
            done = _succeed(facts, row, WORKER, reply.basis, result, receipt)
            return done._replace(events=(note, *done.events))
        if same and row.state == SUCCEEDED:
            return Decision(Done(row), None, (note,))
        what = "contradiction" if same else "duplicate"
        anomaly = Event("anomaly", row.state, row.state, WORKER, {"what": what, **evidence})
        return Decision(Refuse(refusals.fenced(row, dispatch), row), None, (anomaly,))
    if isinstance(reply, NotExecuted) and same and row.state == SUCCEEDED and row.sends == 1:
        anomaly = Event("anomaly", row.state, row.state, WORKER, {"what": "contradiction", **evidence})
        return Decision(Done(row), None, (anomaly,))
    return Decision(standing(row), None, (note,))


def standing(row: Row) -> Done | Open | Refuse:
    """Tell what a row, as it stands, means to whoever asks for its outcome."""
    if row.state == SUCCEEDED:
        return Done(row)
    if row.state == UNKNOWN:
        return Open(row)
    return Refuse(refusals.in_flight(row) if row.state == DISPATCHED else refusals.failed(row), row)


def _succeed(facts: Facts, row: Row, actor: str, basis: str, result: bytes | None, receipt: bytes | None) -> Decision:
    after = row._replace(
        state=SUCCEEDED,
        updated=max(facts.now, row.updated),
        basis=basis,
        result=result,
        receipt=receipt,
        failure=None,
        next_check_at=None,
    )
    return Decision(Done(after), after, (Event("succeeded", row.state, SUCCEEDED, actor, basis),))


def _fail(facts: Facts, row: Row, actor: str, proof: NotExecuted, detail: bytes | None) -> Decision:
    after = row._replace(
        state=FAILED,
        updated=max(facts.now, row.updated),
        kind=proof.kind,
        failure=proof.certificate,
        detail=detail,
        next_check_at=None,
    )
    event = Event("failed", row.state, FAILED, actor, f"{proof.kind}: {proof.certificate}")
    return Decision(Refuse(refusals.failed(after), after), after, (event,))


# --- afterwards --------------------------------------------------------------------------------------------------------------


def answered(
    facts: Facts,
    dispatch: Dispatch,
    answer: Answer,
    mismatch: tuple[str, ...] = (),
    result: bytes | None = None,
    receipt: bytes | None = None,
) -> Decision:
    """Record what a provider said when it was asked what became of a dispatch.

    Args:
        facts: what the transaction read.
        dispatch: what it was asked about.
        answer: what it said.
        mismatch: in what a receipt that was found differs from the intent.
        result: the encoded result, of a receipt.
        receipt: the encoded receipt; or the encoded detail, of a certificate.
    """
    row = facts.row
    assert row is not None, "an intent that was dispatched is never removed"
    same = row.attempt == dispatch.attempt
    told = refusals.answer(answer)
    if isinstance(answer, Found):
        if mismatch:
            wrong = {"what": "mismatch", "fields": list(mismatch), "receipt": receipt, "told": told}
            return Decision(standing(row), None, (Event("anomaly", row.state, row.state, RECONCILER, wrong),))
        if same and row.state in (UNKNOWN, DISPATCHED):
            return _succeed(facts, row, RECONCILER, "receipt", result, receipt)
        if row.state in (FAILED, CANCELLED) or not same:
            wrong = {"what": "contradiction" if same else "duplicate", "receipt": receipt, "told": told}
            return Decision(standing(row), None, (Event("anomaly", row.state, row.state, RECONCILER, wrong),))
        return Decision(standing(row))
    # a rejection speaks of what was sent when it was asked for; a tombstone of everything that ever comes
    if isinstance(answer, NotExecuted) and (
        answer.kind == "tombstoned" or (answer.kind == "rejected" and row.epoch == dispatch.epoch)
    ):
        if same and row.state == UNKNOWN:
            return _fail(facts, row, RECONCILER, answer, receipt)
        if same and row.state == SUCCEEDED:
            wrong = {"what": "contradiction", "told": told}
            return Decision(Done(row), None, (Event("anomaly", row.state, row.state, RECONCILER, wrong),))
    if row.state != UNKNOWN:
        return Decision(standing(row), None, (Event("checked", row.state, row.state, RECONCILER, told),))
    pause = min(2.0**row.checks, _LONGEST_PAUSE)
    after = row._replace(checks=min(row.checks + 1, 60), next_check_at=facts.now + pause, updated=max(facts.now, row.updated))
    return Decision(Open(after), after, (Event("checked", UNKNOWN, UNKNOWN, RECONCILER, told),))


def resend(facts: Facts, caps: Caps, *, complete: bool) -> Decision:
    """Decide whether the same request with the same key may be sent once more.

    Args:
        facts: what the transaction read.
        caps: the provider's.
        complete: whether all arguments are at hand: redacted ones are not in the ledger.
    """
    row = facts.row
    assert row is not None, "asked for by whoever has read the row"
    if row.state == DISPATCHED:
        taken = take_over(facts, row, WORKER)
        if isinstance(taken.then, Refuse):
            return taken
        assert taken.row is not None
        again = resend(facts._replace(row=taken.row), caps, complete=complete)
        return again._replace(row=again.row or taken.row, events=(*taken.events, *again.events))
    if row.state != UNKNOWN:
        return Decision(standing(row) if row.state != PREPARED else Refuse(refusals.approval_required(row), row))
    why_not = refusals.no_resend(row, caps, facts.now, complete=complete)
    if why_not is not None:
        return Decision(Refuse(why_not, row))
    return _dispatch(facts, row, caps, (), actor=APPLICATION)


def resolve(
    facts: Facts, outcome: str, evidence: object, by: str, result: bytes | None = None, receipt: bytes | None = None
) -> Decision:
    """A person decides, with evidence, what became of an open intent."""
    row = facts.row
    assert row is not None, "asked for by whoever has read the row"
    before: tuple[Event, ...] = ()
    actor = f"{HUMAN} {by}"
    if row.state == DISPATCHED:
        taken = take_over(facts, row, RECONCILER)
        if taken.row is None:
            return taken
        row, before = taken.row, taken.events
    if row.state != UNKNOWN:
        return Decision(Refuse(refusals.not_open(row, "resolve"), row))
    if outcome == "succeeded":
        done = _succeed(facts, row, actor, "human", result, receipt)
    else:
        done = _fail(facts, row, actor, NotExecuted("human", f"{by}: {evidence}"), receipt)  # type: ignore[arg-type]  # no provider says this
    event = done.events[0]._replace(kind="resolved", evidence=evidence)
    assert done.row is not None
    return Decision(Done(done.row), done.row, (*before, event))


def authorise_retry(facts: Facts, by: str) -> Decision:
    """Let the next ``run`` make a new attempt of what certainly did not happen."""
    row = facts.row
    assert row is not None, "asked for by whoever has read the row"
    if row.state != FAILED:
        return Decision(Refuse(refusals.not_open(row, "retry"), row))
    after = row._replace(retry=1, updated=max(facts.now, row.updated))
    return Decision(Done(after), after, (Event("retry_authorised", FAILED, FAILED, by),))


def approve(facts: Facts, by: str) -> Decision:
    """Grant what waits for an approval: these arguments at this provider, once."""
    row = facts.row
    assert row is not None, "asked for by whoever has read the row"
    if row.state not in (PREPARED, FAILED) or row.approval is None:
        return Decision(Refuse(refusals.not_open(row, "approve"), row))
    expires = None if row.approval_ttl is None else facts.now + row.approval_ttl
    after = row._replace(
        approval="granted", approver=by, approval_expires=expires, approval_payload=row.payload, updated=max(facts.now, row.updated)
    )
    return Decision(Done(after), after, (Event("approved", row.state, row.state, f"{HUMAN} {by}", {"until": expires}),))


def cancel(facts: Facts, actor: str, kind: str, reason: str) -> Decision:
    """Give up what was never dispatched; its key stays used."""
    row = facts.row
    assert row is not None, "asked for by whoever has read the row"
    if row.state != PREPARED:
        return Decision(Refuse(refusals.not_open(row, "cancel" if kind == "cancelled" else "deny"), row))
    after = row._replace(state=CANCELLED, kind=kind, failure=reason, updated=max(facts.now, row.updated))
    return Decision(Done(after), after, (Event(kind, PREPARED, CANCELLED, actor, reason or None),))
