"""What a step in flight has read and written in the shared state: it sees the same when it runs again, and writes nothing twice.

Steps that run side by side share a state. When one of them ends, its record holds the state, with what the others have written so
far. Those run again after a crash. What they had written by then is in the state already, and others may have built upon it: so a
record holds, of each step in flight, its accesses to the state up to its last write. When the step runs again,

* such a write is passed over, and an ``edit_state`` block of that kind is given the state as it was then;
* such a read returns what it returned;
* any other access is one to the state as it is.

Accesses are told apart by what they ask for: a method and a path, the first time, the second, and so on. Those that are made in a
recorded call (a tool) are counted by themselves: the call answers from the log, and makes none.
"""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from letitloop.integration.atoms import IMMUTABLE

if TYPE_CHECKING:
    from letitloop_llamaindex.stores import CountingStore
    from letitloop_llamaindex.ticks import TickCodec

__all__ = ["ABSENT", "Access", "Attempt", "Seen", "Trace", "doing", "seen_again", "seen_of"]

Seen: TypeAlias = "str | bytes | tuple[Any] | dict[Any, Seen] | None"
"""What was read: its bytes; an immutable value itself; a state by its keys; ``"absent"``; None if that cannot be given again."""

_ABSENT = "absent"


class ABSENT:
    """Stands for what there is nothing of at a path; a class is copied as itself."""


def seen_of(value: Any, codec: TickCodec) -> Seen:
    """Return what is kept of a value that is read."""
    if value is ABSENT:
        return _ABSENT
    return (value,) if type(value) in IMMUTABLE else codec.capture(value)


def seen_again(seen: Seen, codec: TickCodec) -> Any:
    """Return a value as it was read; a new object."""
    assert seen is not None, "it can be given again"
    assert not isinstance(seen, dict), "no state"
    if isinstance(seen, str):
        return ABSENT
    return seen[0] if isinstance(seen, tuple) else codec.decode_value(seen)


class Access(NamedTuple):
    """One access to the state.

    Attributes:
        place: the key of the recorded call that it was made in; empty in the step itself.
        kind: the store's method.
        path: of the method's.
        written: whether it has changed the state.
        seen: what it was given.
    """

    place: str
    kind: str
    path: str
    written: bool
    seen: Seen


class Trace:
    """The accesses of one attempt that the state holds.

    Attributes:
        accesses: in their order.
        recorded: how many of them are in the log.
    """

    def __init__(self, accesses: list[Access], recorded: int = 0) -> None:
        self.accesses = accesses
        self.recorded = recorded

    def take_new(self, codec: TickCodec) -> list[Any]:
        """Return what a record says of the accesses up to the last write that none says yet."""
        new = self.accesses[self.recorded :]
        while new and not new[-1].written:
            new.pop()
        self.recorded += len(new)
        return [[*access[:4], _numbered(access.seen, codec)] for access in new]

    def take_in(self, recorded: list[Any], codec: TickCodec) -> None:
        """Add what :meth:`take_new` returned in an earlier life."""
        self.accesses += [Access(place, kind, path, written, _seen(seen, codec)) for place, kind, path, written, seen in recorded]
        self.recorded = len(self.accesses)

    def of_calls(self) -> Trace:
        """Return the accesses in recorded calls alone."""
        kept = [access for access in self.accesses if access.place]
        return Trace(kept, sum(bool(access.place) for access in self.accesses[: self.recorded]))


def _numbered(seen: Seen, codec: TickCodec) -> Any:
    if isinstance(seen, dict):
        return {key: _numbered(one, codec) for key, one in seen.items()}
    if isinstance(seen, tuple):
        seen = codec.encode_value(seen[0], "value")
    return codec.number(seen) if isinstance(seen, bytes) else seen


def _seen(recorded: Any, codec: TickCodec) -> Seen:
    if isinstance(recorded, dict):
        return {key: _seen(one, codec) for key, one in recorded.items()}  # pyright: ignore[reportUnknownVariableType]  # of any type
    return codec.body(recorded) if isinstance(recorded, int) else recorded


class Attempt:
    """One execution of a step's attempt at a work item.

    Attributes:
        store: of the run that the step belongs to.
    """

    def __init__(self, store: CountingStore, trace: Trace) -> None:
        self.store = store
        self._trace = trace
        self._left: dict[tuple[str, str, str], deque[Access]] = {}
        for access in trace.accesses:
            self._left.setdefault(access[:3], deque()).append(access)

    def take(self, place: str, kind: str, path: str = "", *, written: bool = False) -> Access | None:
        """Return the access that this one repeats, None if it is new.

        Args:
            place: as of :class:`Access`.
            kind: as of :class:`Access`.
            path: as of :class:`Access`.
            written: whether only one is meant that has changed the state.
        """
        left = self._left.get((place, kind, path))
        while left:
            access = left.popleft()
            if access.written or not written:
                return access
        return None

    def note(self, place: str, kind: str, path: str = "", *, written: bool = False, seen: Seen = None) -> None:
        """Note a new access; a write right after it is made, with no other task in between."""
        self._trace.accesses.append(Access(place, kind, path, written, seen))


doing: ContextVar[Attempt | None] = ContextVar("letitloop_llamaindex_attempt", default=None)
"""The execution that the program is in."""
