"""What the ledger knows of one action: its row, its events, and the keys made of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from letitloop.codecs.digest import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["Intent", "IntentEvent", "Redacted", "Row", "Ticket", "Unrecorded", "provider_key"]


def provider_key(namespace: str, key: str, attempt: int) -> str:
    """Return what the provider is given as idempotency key: 40 hexadecimal digits that reveal nothing.

    It changes with the attempt alone, and a new attempt exists only after a certified failure: a provider that answers a key with
    the stored failure of its first use would never let the action through otherwise.

    Args:
        namespace: whose action it is.
        key: which action it is.
        attempt: the how-manieth authorised dispatch, from 1.

    Example:
        >>> provider_key("shop", "order-42/refund", 1)
        '9b000391e583c6ad635ab101f238af82927f8246'
    """
    return sha256(f"lil1\0{namespace}\0{key}\0{attempt}".encode("utf-8", "surrogatepass")).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class Redacted:
    """What the ledger keeps of an argument named in ``redact=``.

    Attributes:
        sha256: a salted hash of its value, in hex: enough to notice another value, and no more secret than the value is long.
    """

    sha256: str


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """What the ledger keeps of a result that the codecs cannot record: the action succeeded all the same.

    Attributes:
        type_name: the result's class.
        text: its ``repr``, at most 1,000 characters of it.
    """

    type_name: str
    text: str


@dataclass(frozen=True, slots=True)
class Ticket:
    """An authorisation by the application for one action; ``str(ticket)`` goes into the action's key.

    Attributes:
        id: its random name.
        operation: what it allows.
        scope: arguments that the action must have.
        max_amount: the most that its amount may be, in the arguments' own unit; None for no bound.
        amount_field: which argument is the amount.
    """

    id: str
    operation: str
    scope: Mapping[str, Any]
    max_amount: int | None = None
    amount_field: str = "amount_minor"

    def __str__(self) -> str:
        return self.id


class Row(NamedTuple):
    """An intent as it is stored: arguments, result and receipt are bytes."""

    namespace: str
    key: str
    state: str
    attempt: int
    epoch: int
    sends: int
    operation: str
    provider: str
    identity: str
    arguments: bytes
    payload: bytes
    created: float
    updated: float
    owner: str | None = None
    dispatched_at: float | None = None
    key_expires_at: float | None = None
    next_check_at: float | None = None
    checks: int = 0
    group_key: str | None = None
    amount: int | None = None
    max_intents: int | None = None
    max_sum: int | None = None
    approval: str | None = None
    approval_ttl: float | None = None
    approval_expires: float | None = None
    approval_payload: bytes | None = None
    approver: str | None = None
    result: bytes | None = None
    receipt: bytes | None = None
    basis: str | None = None
    kind: str | None = None
    failure: str | None = None
    detail: bytes | None = None
    retry: int = 0
    run_id: str | None = None
    step_key: str | None = None
    compensates: str | None = None
    ticket: str | None = None

    @property
    def where(self) -> tuple[str, str]:
        """Its identity."""
        return self.namespace, self.key


@dataclass(frozen=True, slots=True)
class Intent:
    """An action on the outside world, as the ledger knows it.

    Attributes:
        namespace: whose action it is.
        key: which action it is.
        state: ``PREPARED``, ``DISPATCHED``, ``SUCCEEDED``, ``FAILED``, ``UNKNOWN`` or ``CANCELLED``.
        attempt: the how-manieth authorised dispatch, from 1.
        epoch: the how-manieth owner.
        operation: what is done.
        provider: the name of its provider.
        provider_identity: whose account it is done at.
        provider_key: the idempotency key of this attempt.
        arguments: with what it is done; redacted ones are :class:`Redacted`.
        result: what the provider returned, once it succeeded.
        receipt: what proves it.
        basis: how success is known: ``response``, ``receipt``, ``replay``, ``tx`` or ``human``.
        kind: how failure is certain: ``not_sent``, ``rejected``, ``tombstoned`` or ``human``.
        reason: why it is unknown or failed, in words.
        detail: the provider's statement about a failure.
        approval: ``pending``, ``granted`` or ``consumed``; None where none is needed.
        approver: who granted it.
        group: what it shares limits with.
        compensates: the intent that this one takes back, as (namespace, key).
        run_id: the run it was begun in.
        step_key: the step it was begun in.
        owner: who dispatched it last.
        created: seconds since 1970-01-01 UTC, as all times here.
        updated: when its state was last written.
        dispatched_at: when this attempt was first sent.
        key_expires_at: until when it may be sent again with the same key; None if it may not.
        next_check_at: when asking the provider again is worth while.
    """

    namespace: str
    key: str
    state: str
    attempt: int
    epoch: int
    operation: str
    provider: str
    provider_identity: str
    provider_key: str
    arguments: Mapping[str, Any]
    result: object
    receipt: object
    basis: str | None
    kind: str | None
    reason: str | None
    detail: object
    approval: str | None
    approver: str | None
    group: str | None
    compensates: tuple[str, str] | None
    run_id: str | None
    step_key: str | None
    owner: str | None
    created: float
    updated: float
    dispatched_at: float | None
    key_expires_at: float | None
    next_check_at: float | None


@dataclass(frozen=True, slots=True)
class IntentEvent:
    """One line of an intent's history, which is never changed.

    Attributes:
        seq: its number in the ledger.
        namespace: whose action it is.
        key: which action it is.
        attempt: the intent's attempt then.
        epoch: the intent's epoch then.
        at: seconds since 1970-01-01 UTC.
        kind: what happened: ``prepared``, ``dispatched``, ``succeeded``, ``failed``, ``unknown``, ``takeover``, ``checked``,
            ``late_result``, ``anomaly``, ``approved``, ``denied``, ``cancelled``, ``retry_authorised``, ``resent``, ``resolved``.
        before: the state before; empty for none.
        after: the state after; the same if it was no transition.
        actor: who did it: ``worker``, ``reconciler``, ``application`` or ``human NAME``.
        evidence: what it rests on, in words or as data.
    """

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
    evidence: object
