"""What a provider is: the one who acts on the outside world, and who can or cannot tell afterwards whether it did.

A provider has one effect a dispatch. Its answers are values of this module, and only two of them settle an intent as done or as
certainly not done: a receipt, and a certificate of non-execution. "Not found" is neither: the request may still be under way.
Whatever a provider raises means that the outcome is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal, Protocol, TypeAlias

    class Provider(Protocol):
        """Who carries out actions of one kind at one account.

        ``letitloop.testing.ProviderContract`` is the suite that every implementation must pass. A provider whose ``caps.lookup``
        is not ``"none"`` is a :class:`Reconciles` as well, and one whose ``caps.tombstone`` is true a :class:`Tombstones`. Each of
        the three calls has an optional async twin, ``aexecute``, ``areconcile`` and ``atombstone``; without it, async code calls
        the plain one in a thread.
        """

        @property
        def name(self) -> str:
            """What kind of provider this is: ``http``, ``stripe``, ``file``."""
            ...

        @property
        def caps(self) -> Caps:
            """What it can do when an outcome is unknown."""
            ...

        def identity(self) -> str:
            """Return whose account, tenant or endpoint this acts on: the same text for ever, and no secret."""
            ...

        def validate(self, operation: str, arguments: Mapping[str, Any]) -> None:
            """Raise if the action cannot be carried out as described; nothing is recorded then."""
            ...

        def execute(self, dispatch: Dispatch) -> Succeeded | NotExecuted | Unknown:
            """Act, once: no retries of its own, nor of the SDK underneath."""
            ...

    class Reconciles(Provider, Protocol):
        """A provider that can be asked."""

        def reconcile(self, dispatch: Dispatch) -> Found | StillRunning | NotFound | NotExecuted | Unavailable:
            """Tell what became of a dispatch, without acting."""
            ...

    class Tombstones(Provider, Protocol):
        """A provider at which the key of a dispatch can be occupied."""

        def tombstone(self, dispatch: Dispatch) -> Found | StillRunning | NotExecuted | Unavailable:
            """Make certain that the dispatch has not happened and never will, by occupying its key; or find its receipt."""
            ...

    Answer: TypeAlias = "Found | StillRunning | NotFound | NotExecuted | Unavailable"
    Reply: TypeAlias = "Succeeded | NotExecuted | Unknown"

__all__ = [
    "Caps",
    "Dispatch",
    "Found",
    "NotExecuted",
    "NotFound",
    "StillRunning",
    "Succeeded",
    "Unavailable",
    "Unknown",
    "Window",
]


@dataclass(frozen=True, slots=True)
class Window:
    """How long a provider recognises a repeated key, counted from the first dispatch.

    Attributes:
        seconds: declare less than documented, for the clocks' difference and the journey: 23 hours for a day.
        checks_body: whether the provider refuses the key with another body.
        stores_5xx: whether it answers a repeat with a stored server error, instead of trying again.
    """

    seconds: float
    checks_body: bool = True
    stores_5xx: bool = False


@dataclass(frozen=True, slots=True)
class Caps:
    """What a provider can do when an outcome is unknown. The default is nothing: unknown stays unknown.

    Attributes:
        redispatch: the window in which the same request with the same key has no second effect; None if there is none.
        lookup: how receipts are found: not at all, with a delay (``"eventual"``), in a complete listing, or at once
            (``"strong"``). None of them makes "not found" a proof.
        tombstone: whether the key can be occupied, so that a late request is refused.
        atomic: whether effect and receipt are written in one transaction.
        in_flight: whether it can tell that a request is still being worked on.
    """

    redispatch: Window | None = None
    lookup: Literal["none", "eventual", "list", "strong"] = "none"
    tombstone: bool = False
    atomic: bool = False
    in_flight: bool = False


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One authorised sending of an intent.

    Attributes:
        namespace: whose action it is.
        key: the business key: which action it is.
        attempt: the how-manieth authorised dispatch, from 1; a new one only after a certified failure.
        epoch: the how-manieth owner.
        provider_key: what the provider is given as idempotency key: 40 characters that change with ``attempt`` alone.
        operation: what is to be done.
        arguments: with what; a redacted argument is there in the first dispatch only, and :class:`letitloop.Redacted` later.
        first_dispatched_at: when this attempt was first sent, in seconds since 1970-01-01 UTC.
    """

    namespace: str
    key: str
    attempt: int
    epoch: int
    provider_key: str
    operation: str
    arguments: Mapping[str, Any]
    first_dispatched_at: float


# --- what execute returns ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Succeeded:
    """It happened.

    Attributes:
        result: what the caller gets, now and on every repeat; the codecs must be able to record it.
        receipt: what proves it: ids and references of the provider's.
        basis: how that is known: its ``"response"``, the ``"replay"`` of an earlier one, or one transaction (``"tx"``).
    """

    result: object = None
    receipt: object = None
    basis: Literal["response", "replay", "tx"] = "response"


@dataclass(frozen=True, slots=True)
class NotExecuted:
    """A certificate: this dispatch has not happened, and never will.

    Attributes:
        kind: ``"not_sent"`` (not a byte left), ``"rejected"`` (refused before execution, by the provider's own statement), or
            ``"tombstoned"`` (its key is occupied, a late request is refused).
        certificate: how that is known, in words.
        detail: the provider's statement, as data that can be recorded.
    """

    kind: Literal["not_sent", "rejected", "tombstoned"]
    certificate: str
    detail: object = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may or may not have happened.

    Attributes:
        reason: what was seen, in words.
    """

    reason: str


# --- what reconcile and tombstone return -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """A receipt. It counts only if it is this dispatch's, for these arguments.

    Attributes:
        result: what the caller gets.
        provider_key: the key that the receipt carries.
        arguments: those arguments that the receipt states (amount, currency, target), by their names in the intent.
        receipt: what proves it: ids and references of the provider's.
    """

    result: object
    provider_key: str
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])
    receipt: object = None


@dataclass(frozen=True, slots=True)
class StillRunning:
    """The provider is still working on it."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class NotFound:
    """No receipt was found, which proves nothing."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The provider could not be asked."""

    reason: str
