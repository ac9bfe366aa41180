"""What a session's log holds, before anything is asked of it: for an adapter that says what it does about an edited program."""

from __future__ import annotations

from letitloop.codecs.fingerprint import hints
from letitloop.runs.identity import step_key
from letitloop.runs.records import EFFECT, unpack_head

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from letitloop.runs.scope import Scope

__all__ = ["differing", "recorded_scopes"]


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
    entry = scope.run.journal.index.get(step_key(scope.step(name).base, 1))
    if entry is None:
        return None
    names = sorted(asked)
    now = hints(scope.run.codecs.fingerprint((), dict(asked)))
    then = hints(unpack_head(scope.run.journal.payload(entry)).fingerprint)
    if len(now) != len(then):
        return tuple(names)
    return tuple(name for name, one, other in zip(names, now, then, strict=True) if one != other)


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
