"""What a session's log holds, before anything is asked of it: for an adapter that says what it does about an edited program."""

from __future__ import annotations

from letitloop.codecs.fingerprint import hints
from letitloop.runs.identity import step_key
from letitloop.runs.records import EFFECT, OK, unpack_head

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from letitloop.runs.scope import Scope

__all__ = ["differing", "recorded_answer", "recorded_scopes"]


def differing(scope: Scope, name: str, asked: Mapping[str, object]) -> tuple[str, ...] | None:
    """Return what the first leaf call of a name would ask otherwise than is on record.

    Args:
        scope: where the call belongs.
        name: what it is called there.
        asked: what it would ask, by name.

    Returns:
        The names of what differs, all of them if their number does; None if nothing is on record.

    Example:
        >>> from letitloop.integration.leaves import leaf
        >>> from letitloop.integration.sessions import Session
        >>> with Session("looking-example", store="memory:looking") as session:
        ...     leaf(session.root(), "model", {"prompt": "2 + 2"}, lambda: "4")
        '4'
        >>> with Session("looking-example", store="memory:looking") as session:
        ...     differing(session.root(), "model", {"prompt": "2 + 3"})
        ('prompt',)
    """
    key = step_key(scope.step(name).base, 1)
    entry = scope.run.journal.index.get(key)
    if entry is not None:
        recorded = unpack_head(scope.run.journal.payload(entry)).fingerprint
    elif key in scope.run._live:  # it has answered in this process, and will again
        recorded = scope.run._live[key][0]
    else:
        return None
    names = sorted(asked)
    now = hints(scope.run.codecs.fingerprint((), dict(asked)))
    then = hints(recorded)
    if len(now) != len(then):
        return tuple(names)
    return tuple(name for name, one, other in zip(names, now, then, strict=True) if one != other)


def recorded_answer(scope: Scope, name: str) -> object:
    """Return what is on record as the answer of the first leaf call of a name, whatever it was asked; None if there is nothing.

    Args:
        scope: where the call belongs.
        name: what it is called there.

    Example:
        >>> from letitloop.integration.leaves import leaf
        >>> from letitloop.integration.sessions import Session
        >>> with Session("answer-example", store="memory:looking") as session:
        ...     leaf(session.root(), "model", {"prompt": "2 + 2"}, lambda: "4")
        '4'
        >>> with Session("answer-example", store="memory:looking") as session:
        ...     recorded_answer(session.root(), "model")
        '4'
    """
    entry = scope.run.journal.index.get(step_key(scope.step(name).base, 1))
    if entry is None or entry.kind != OK:
        return None
    payload = scope.run.journal.payload(entry)
    return scope.run.codecs.decode(payload[unpack_head(payload).body_at :])


def recorded_scopes(scope: Scope) -> dict[str, list[str]]:
    """Return the names of the scopes inside this one that have records, each with the keys of the effects that began in it."""
    found: dict[str, list[str]] = {}
    size = len(scope.prefix)
    for entry in scope.run.journal.entries():
        name, separator, _ = entry.key[size:].partition(b"/")
        if entry.key.startswith(scope.prefix) and separator and b">" not in name:
            effects = found.setdefault(name.decode("utf-8", "replace"), [])
            if entry.kind == EFFECT:
                effects.append(entry.key.decode("utf-8", "replace"))
    return found
