"""What a provider said, made fit to be recorded: whatever it is, it never keeps an outcome from being recorded.

Texts become texts that can be stored, without the values that the ledger must not keep; results that the codecs refuse are named;
what is no reply is an unknown outcome, and what is no answer is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from letitloop.codecs.fingerprint import type_name
from letitloop.effects.intent import Redacted, Unrecorded
from letitloop.effects.provider import Found, NotExecuted, NotFound, StillRunning, Succeeded, Unavailable, Unknown
from letitloop.runs.failures import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from letitloop.effects.plans import Action
    from letitloop.effects.provider import Answer, Dispatch, Reply

__all__ = ["Answered", "Raised", "Replied", "answer_parts", "reply_parts", "told"]

_LONGEST = 1000  # characters of a text
_LONGEST_TOLD = 20_000  # characters of an exception that are looked through for secrets
_DEEPEST = 8  # of a container in a container
_SHORTEST_SECRET = 3  # characters: what is shorter would blot out half of every text
_BASES = ("response", "replay", "tx")
_KINDS = ("not_sent", "rejected", "tombstoned")


class Raised(NamedTuple):
    """What left a provider that should have returned; not what it returned, which may be an exception too."""

    error: BaseException


class Replied(NamedTuple):
    """A reply to a dispatch; its result and receipt (or its detail) encoded."""

    reply: Reply
    result: bytes | None = None
    receipt: bytes | None = None


class Answered(NamedTuple):
    """An answer about a dispatch; in what it is not this dispatch's; its result and receipt (or its detail) encoded."""

    answer: Answer
    mismatch: tuple[str, ...] = ()
    result: bytes | None = None
    receipt: bytes | None = None


def reply_parts(action: Action, reply: object) -> Replied:
    """Return a reply as it is recorded.

    Args:
        action: what was carried out.
        reply: what ``execute`` returned, or what it raised.
    """
    if isinstance(reply, Succeeded):
        basis = reply.basis if reply.basis in _BASES else "response"
        said = Succeeded(reply.result, reply.receipt, basis)
        return Replied(said, _encoded(action, reply.result), _encoded(action, reply.receipt))
    if isinstance(reply, NotExecuted) and reply.kind in _KINDS:
        return Replied(NotExecuted(reply.kind, _text(action, reply.certificate)), None, _encoded(action, reply.detail))
    if isinstance(reply, NotExecuted):
        return Replied(Unknown(f"{_text(action, reply.kind)!r} is no certificate of non-execution"))
    if isinstance(reply, Unknown):
        return Replied(Unknown(_text(action, reply.reason)))
    if isinstance(reply, Raised):
        return Replied(Unknown(_clean(action, f"the provider raised {told(reply.error)}")))
    return Replied(Unknown(f"the provider returned {type_name(type(reply))}, which is no reply"))


def answer_parts(action: Action, dispatch: Dispatch, method: str, answer: object) -> Answered:
    """Return an answer as it is recorded.

    Args:
        action: what was carried out.
        dispatch: what was asked about.
        method: what was asked: ``reconcile`` or ``tombstone``.
        answer: what it returned, or what it raised.
    """
    if isinstance(answer, Found) and isinstance(answer.arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # a provider returns anything
        wrong = _mismatch(action, dispatch, answer)
        return Answered(answer, wrong, _encoded(action, answer.result), _encoded(action, answer.receipt))
    if isinstance(answer, NotExecuted) and answer.kind in _KINDS:
        return Answered(NotExecuted(answer.kind, _text(action, answer.certificate)), (), None, _encoded(action, answer.detail))
    if isinstance(answer, NotFound):
        return Answered(NotFound(_text(action, answer.detail)))
    if isinstance(answer, StillRunning):
        return Answered(StillRunning(_text(action, answer.detail)))
    if isinstance(answer, Unavailable):
        return Answered(Unavailable(_text(action, answer.reason)))
    if isinstance(answer, Raised):
        return Answered(Unavailable(_clean(action, f"{method} raised {told(answer.error)}")))
    return Answered(Unavailable(f"{method} returned {type_name(type(answer))}, which is no answer"))


def told(exc: BaseException) -> str:
    """Return an exception's class and message, in a text that can be stored."""
    return _storable(f"{type_name(type(exc)).rpartition(':')[2]}: {text_of(exc)}"[:_LONGEST_TOLD])


def _mismatch(action: Action, dispatch: Dispatch, found: Found) -> tuple[str, ...]:
    """Name in what a receipt is not this dispatch's: only its own receipt, for these very arguments, is a proof."""
    wrong = [] if found.provider_key == dispatch.provider_key else ["provider_key"]
    fingerprint = action.vault.codecs.fingerprint
    for name, value in found.arguments.items():
        asked = dispatch.arguments.get(name)
        if not isinstance(asked, Redacted) and fingerprint((asked,), {}) != fingerprint((value,), {}):
            wrong.append(_storable(str(name)))
    return tuple(wrong)


def _encoded(action: Action, value: object) -> bytes | None:
    if value is None:
        return None
    try:
        return action.vault.encode(value)
    except Exception:
        shown = Unrecorded(type_name(type(value)), _clean(action, _repr(value)))
        return action.vault.encode(shown)


def _text(action: Action, value: object) -> str:
    if not isinstance(value, str):
        value = told(value) if isinstance(value, BaseException) else _repr(value)
    return _clean(action, value)


def _clean(action: Action, text: str) -> str:
    """Return a text as it may be stored: without the values of redacted arguments."""
    for secret in action.secrets:
        text = text.replace(secret, "[redacted]")
    return _storable(text[:_LONGEST])


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _repr(value: object) -> str:
    try:
        return repr(value)[:1000]
    except Exception:
        return f"<{type_name(type(value))}>"


def secrets_of(arguments: Mapping[str, object], recorded: Mapping[str, object]) -> tuple[str, ...]:
    """Return the texts of the arguments that are recorded as hashes, and of what lies in them, the longest first."""
    hidden = [arguments[name] for name, value in recorded.items() if isinstance(value, Redacted) and name in arguments]
    texts = {text for value in hidden for text in _texts(value, 0) if len(text) >= _SHORTEST_SECRET}
    return tuple(sorted(texts, key=len, reverse=True))


def _texts(value: Any, depth: int) -> Iterator[str]:
    shown = _repr(value)
    yield _storable(shown)
    if isinstance(value, (bytes, bytearray)):
        yield value.decode("utf-8", "replace")
    elif isinstance(value, str):
        yield _storable(value)
    elif depth < _DEEPEST and isinstance(value, (dict, list, tuple, set, frozenset)):
        parts: list[Any] = [*value, *value.values()] if isinstance(value, dict) else [*value]
        for part in parts:
            yield from _texts(part, depth + 1)
