"""Why something is not done, as the error that says so; None where nothing speaks against it. Pure."""

from __future__ import annotations

import time

from letitloop.effects.provider import Found, NotExecuted, StillRunning, Succeeded, Unavailable, Unknown
from letitloop.effects.states import CANCELLED, SUCCEEDED
from letitloop.errors import (
    ActionConflict,
    ApprovalRequired,
    Fenced,
    InFlight,
    IntentFailed,
    IntentPruned,
    InvalidArgument,
    NotAuthorized,
    UnknownOutcome,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from letitloop.effects.intent import Row
    from letitloop.effects.machine import Facts, Request
    from letitloop.effects.provider import Answer, Caps, Dispatch, Reply

__all__ = [
    "answer",
    "approval_required",
    "conflict",
    "failed",
    "fenced",
    "in_flight",
    "limited",
    "no_compensation",
    "no_resend",
    "no_ticket",
    "not_open",
    "other_provider",
    "pruned",
    "reply",
    "typed",
    "unknown",
]


def _name(row: Row) -> str:
    return f"intent {row.key!r} of {row.namespace!r} ({row.operation})"


def typed(row: Row) -> str:
    """Write an intent's identity as a shell takes it: a model may have chosen a part of the key."""
    import shlex

    return shlex.join(row.where)


# --- the state of an intent --------------------------------------------------------------------------------------------------


def unknown(row: Row, why: str = "", *, place: str = "") -> UnknownOutcome:
    """Say that an outcome is unknown, and what to do about it.

    Args:
        row: the intent.
        why: why it is unknown; what its row says by default.
        place: the options of ``lil ledger`` that say which ledger it is in.
    """
    reason = why or row.failure or "no outcome was recorded"
    at = "" if row.dispatched_at is None else f" on {_when(row.dispatched_at)}"
    step = f"step {row.step_key!r} of " if row.step_key else ""
    where = "" if row.run_id is None else f" by {step}run {row.run_id}"
    ask = "Ask its provider with reconcile()"
    if row.checks:
        ask = "Its provider was asked and could not settle it, which proves nothing. Ask again later with reconcile()"
    return UnknownOutcome(
        f"{_name(row)} was sent{at}{where} and may or may not have happened: {reason}. It was not sent again. {ask}, or find "
        f"out there and say so: lil ledger resolve {typed(row)}{place} --as succeeded|failed [--result FILE] --evidence TEXT "
        "--by NAME.",
        namespace=row.namespace,
        key=row.key,
        reason=reason,
    )


def failed(row: Row) -> IntentFailed:
    """Say that an action certainly did not happen."""
    if row.state == CANCELLED:
        text = (
            f"{_name(row)} was {'denied' if row.kind == 'denied' else 'cancelled'}{f' ({row.failure})' if row.failure else ''} and "
            "never sent. Its key stays used: another authorisation needs another key."
        )
    else:
        text = (
            f"{_name(row)}, attempt {row.attempt}, certainly did not happen: {row.failure} ({row.kind}). To let it be tried again: "
            f"retry_failed(), or lil ledger retry {typed(row)}, then run it."
        )
    return IntentFailed(text, kind=row.kind or "", namespace=row.namespace, key=row.key, certificate=row.failure or "")


def in_flight(row: Row) -> InFlight:
    """Say that an action is under way."""
    return InFlight(
        f"{_name(row)} is being carried out by {row.owner}, which is alive. It was not started again. Wait for it to end, then "
        "ask again.",
        namespace=row.namespace,
        key=row.key,
        owner=row.owner or "",
    )


def approval_required(row: Row) -> ApprovalRequired:
    """Say that an action waits for an approval."""
    return ApprovalRequired(
        f"{_name(row)} is recorded and waits for an approval; nothing was sent. lil ledger approve {typed(row)} --by NAME "
        "lets the next run send it, lil ledger deny ends it.",
        namespace=row.namespace,
        key=row.key,
    )


def pruned(fresh: Row, state: str, *, same: bool) -> IntentPruned | ActionConflict:
    """Say that a key was used before, and what it was used for was pruned."""
    if not same:
        return ActionConflict(
            f"{_name(fresh)}: this key was used long ago for other arguments, and the record was pruned. Nothing was sent. Another "
            "action needs another key.",
            namespace=fresh.namespace,
            key=fresh.key,
        )
    return IntentPruned(
        f"{_name(fresh)} was {state} long ago and its record was pruned, with its result. Nothing was sent. Another action needs "
        "another key.",
        namespace=fresh.namespace,
        key=fresh.key,
        state=state,
    )


def fenced(row: Row, dispatch: Dispatch) -> Fenced:
    """Say that a stale owner's success contradicts what was settled meanwhile."""
    return Fenced(
        f"{_name(row)}: owner {dispatch.epoch}, attempt {dispatch.attempt}, came back with a success after the intent was settled "
        f"otherwise ({row.state}, attempt {row.attempt}). It was kept as an anomaly and changed nothing: the action may have "
        "happened twice, or although it is recorded as failed. lil doctor lists it; look at the provider.",
        namespace=row.namespace,
        key=row.key,
    )


_FITS = {
    "resolve": "Only an outcome that is unknown can be resolved.",
    "retry": "Only what certainly did not happen can be tried again.",
    "approve": "Only what waits for an approval can be approved.",
    "cancel": "Only what was never sent can be cancelled.",
    "deny": "Only what waits for an approval can be denied.",
}


def not_open(row: Row, verb: str) -> InvalidArgument:
    """Say that a verb does not fit an intent's state."""
    return InvalidArgument(f"{_name(row)} is {row.state}: {_FITS[verb]} Nothing was changed.")


# --- another action under the same key ---------------------------------------------------------------------------------------


def conflict(row: Row, fresh: Row, differing: Callable[[Row], tuple[str, ...]]) -> ActionConflict | None:
    """Compare a request with what is on record under its key."""
    kind = ""
    fields: tuple[str, ...] = ()
    if row.operation != fresh.operation:
        kind, what = "operation", f"the operation {row.operation!r}, and {fresh.operation!r} is asked for"
    elif row.identity != fresh.identity:
        kind, what = "provider", f"provider {row.identity!r}, and {fresh.identity!r} is given"
    elif row.payload != fresh.payload:
        fields = differing(row)
        names = ", ".join(map(repr, fields)) or "its arguments"
        kind, what = "payload", f"other arguments ({names} differ{'s' * (len(fields) == 1)}; values are not told)"
    else:
        return None
    return ActionConflict(
        f"{_name(row)} is on record, {row.state}, with {what}. Nothing was done and the record stands. The same action has to be "
        "asked for in the same words; another action needs another key.",
        kind=kind,
        namespace=row.namespace,
        key=row.key,
        fields=fields,
    )


def other_provider(row: Row, identity: str) -> ActionConflict | None:
    """Refuse to ask another provider than the one that an intent was dispatched to."""
    return conflict(row, row._replace(identity=identity), lambda _: ())


# --- limits, tickets, compensation -------------------------------------------------------------------------------------------


def limited(facts: Facts, request: Request) -> NotAuthorized | UnknownOutcome | None:
    """Apply the limits of the intent's group; whatever is not certainly without effect counts."""
    fresh = request.fresh
    if fresh.group_key is None:
        return None
    blocking = next((other for other in facts.group if other.open), None)
    if blocking is not None and request.block_on_unknown:
        return UnknownOutcome(
            f"{_name(fresh)} was not begun: the outcome of {blocking.key!r} in the same group {fresh.group_key!r} is unknown, and "
            "until it is settled nothing else of the group is done. Reconcile or resolve that one first.",
            namespace=fresh.namespace,
            key=blocking.key,
            reason=f"blocks the group {fresh.group_key}",
        )
    if fresh.max_intents is not None and len(facts.group) >= fresh.max_intents:
        return NotAuthorized(
            f"{_name(fresh)} was not begun: group {fresh.group_key!r} may have {fresh.max_intents} intents and has "
            f"{len(facts.group)} ({', '.join(other.key for other in facts.group[:5])})."
        )
    spent = sum(other.amount or 0 for other in facts.group)
    if fresh.max_sum is not None and spent + (fresh.amount or 0) > fresh.max_sum:
        return NotAuthorized(
            f"{_name(fresh)} was not begun: with its {fresh.amount or 0}, group {fresh.group_key!r} would come to "
            f"{spent + (fresh.amount or 0)}, and its limit is {fresh.max_sum}. What is unknown counts as spent."
        )
    return None


def no_ticket(facts: Facts, fresh: Row) -> NotAuthorized | None:
    """Refuse a ticket that another action has used."""
    user = facts.ticket_user
    if fresh.ticket is None or user is None or user == fresh.where:
        return None
    return NotAuthorized(
        f"{_name(fresh)} was not begun: its ticket was used for {user[1]!r}. Authorise this action with a ticket of its own."
    )


def no_compensation(facts: Facts, fresh: Row) -> NotAuthorized | None:
    """Refuse to take back what did not certainly happen, or was taken back."""
    if fresh.compensates is None:
        return None
    original = facts.original
    if original is None or original.state != SUCCEEDED:
        state = "is not on record" if original is None else f"is {original.state}"
        return NotAuthorized(
            f"{_name(fresh)} was not begun: it would take back {fresh.compensates.partition(chr(0))[2]!r}, which {state}. Only "
            "what has SUCCEEDED can be compensated."
        )
    if facts.compensation is not None:
        return NotAuthorized(f"{_name(fresh)} was not begun: {original.key!r} is already compensated by {facts.compensation[1]!r}.")
    return None


# --- sending again -----------------------------------------------------------------------------------------------------------


def no_resend(row: Row, caps: Caps, now: float, *, complete: bool) -> UnknownOutcome | None:
    """Refuse to send an open intent again, unless its provider declares a window and that is open."""
    window = caps.redispatch
    sent, until = row.dispatched_at, row.key_expires_at
    if window is None or sent is None or until is None:
        return unknown(row, "its provider declares no window in which it may be sent again")
    if now < row.updated:
        return unknown(row, "the clock went back, so nothing tells whether the window to send it again is open")
    if now >= min(until, sent + window.seconds):
        return unknown(row, f"the window to send it again ended on {_when(min(until, sent + window.seconds))}")
    if not complete:
        return unknown(
            row, "arguments that the ledger keeps as hashes alone are needed to send it again: use run() with all of them"
        )
    return None


# --- what providers say, for the history -------------------------------------------------------------------------------------


def reply(said: Reply) -> str:
    """Put a reply to a dispatch in words."""
    if isinstance(said, Succeeded):
        return f"succeeded ({said.basis})"
    if isinstance(said, NotExecuted):
        return f"not executed ({said.kind}): {said.certificate}"
    assert isinstance(said, Unknown)
    return f"unknown: {said.reason}"


def answer(said: Answer) -> str:
    """Put the answer to a question about a dispatch in words."""
    if isinstance(said, Found):
        return "receipt found"
    if isinstance(said, NotExecuted):
        return f"not executed ({said.kind}): {said.certificate}"
    if isinstance(said, StillRunning):
        return f"still running: {said.detail}" if said.detail else "still running"
    if isinstance(said, Unavailable):
        return f"unavailable: {said.reason}"
    return "not found, which proves nothing" + (f": {said.detail}" if said.detail else "")


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
