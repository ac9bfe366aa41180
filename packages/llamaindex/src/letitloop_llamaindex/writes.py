"""What a recorded call, a tool, writes in the workflow's state: when the call answers from the log, that is written again.

Only the call's own writes are noted, never how the state differs afterwards: the steps beside it write too.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workflows.context.state_store import InMemoryStateStore, get_by_path
from workflows.events import DictLikeModel

from letitloop.errors import UnencodableError
from letitloop.integration.atoms import IMMUTABLE, atoms, same
from letitloop_llamaindex.ticks import TickCodec

if TYPE_CHECKING:
    from pydantic import BaseModel

    from letitloop.runs.scope import Scope
    from letitloop_llamaindex.stores import CountingStore

__all__ = ["Fields", "Watch", "Write", "watching"]


@dataclass(frozen=True)
class Write:
    """A change of the state.

    Attributes:
        kind: the method that made it, or ``"in place"``.
        path: of ``set``.
        changed: the values by name, that of a path by the empty one.
        gone: the names that are gone.
    """

    kind: str
    path: str = ""
    changed: dict[str, Any] = field(default_factory=dict[str, Any])
    gone: list[str] = field(default_factory=list[str])

    def apply(self, state: Any) -> None:
        """Make it, in a state that is being edited."""
        names = state._data if isinstance(state, DictLikeModel) else {}
        for name, value in self.changed.items():
            setattr(state, name, value)
        for name in self.gone:
            names.pop(name, None)


class Fields:
    """The fields of a state at one time."""

    def __init__(self, state: BaseModel) -> None:
        self._cls = type(state)
        self._marks = {name: _Mark(value) for name, value in _fields(state).items()}

    def write(self, kind: str, state: BaseModel) -> Write:
        """Return how another state, or the same one later, differs."""
        fields = _fields(state)
        changed = {name: value for name, value in fields.items() if name not in self._marks or self._marks[name].differs(value)}
        gone = [name for name in self._marks if name not in fields] if isinstance(state, self._cls) else []
        return Write(kind, "", changed, gone)


def _fields(state: BaseModel) -> dict[str, Any]:
    if isinstance(state, DictLikeModel):
        return {**vars(state), **state._data}
    return {**vars(state), **(state.__pydantic_extra__ or {}), **(state.__pydantic_private__ or {})}


class _Mark:
    """What a value is made of; of one that cannot be recorded nothing is told: it is refused where the state is recorded."""

    def __init__(self, value: Any) -> None:
        self._atoms = atoms(value)
        self._body = None if self._atoms is not None else _body(value)

    def differs(self, value: Any) -> bool:
        """Tell whether a value is made of something else."""
        if self._atoms is not None:
            return not same(self._atoms, atoms(value))
        body = _body(value)
        return body is not None and body != self._body


def _body(value: Any) -> bytes | None:
    codec = TickCodec()
    try:
        return codec.codecs.encode([codec.encode_value(value, "state"), codec.take_new()])
    except UnencodableError:
        return None


watching: ContextVar[Watch | None] = ContextVar("letitloop_llamaindex_watch", default=None)
"""What notes the writes of the recorded call that the program is in."""


class Watch:
    """Notes what a recorded call writes in the state of the run that its step belongs to.

    Args:
        call: the recorded call.
    """

    def __init__(self, call: Scope | None) -> None:
        self.call = call
        self._around = watching.get()
        self._writes: list[tuple[str, Write]] = []
        self._read: dict[str, tuple[Any, _Mark]] = {}
        self._states: list[tuple[BaseModel, Fields]] = []

    def wrote(self, write: Write, place: str) -> None:
        """Note a write, for the recorded call around this one as well.

        Args:
            write: what it changed.
            place: the key of the call that made it.
        """
        self._writes.append((place, write))
        if write.kind == "set":
            self._read.pop(write.path, None)  # it is written as it is when the call has ended
        if self._around is not None:
            self._around.wrote(write, place)

    def read(self, path: str, value: Any) -> None:
        """Note what is read: it may be changed in place."""
        if type(value) not in IMMUTABLE and path:
            self._read.setdefault(path, (value, _Mark(value)))

    def read_state(self, state: BaseModel) -> None:
        """Note a state that is read: it and its values may be changed in place, for it is no copy of a ``DictState``'s items."""
        self._states.append((state, Fields(state)))

    def replaces(self, now: BaseModel, state: BaseModel) -> Write:
        """Return how a state that is set differs from the one that it was made of, as far as that is known."""
        before = [fields for read, fields in self._states if read is state] or [Fields(now)]
        self._states = [(read, fields) for read, fields in self._states if read is not state]
        return before[0].write("set_state", state)

    async def writes(self, store: CountingStore) -> list[tuple[str, Write]]:
        """Return what was written, and then what was changed in place of what the state still holds; each with its call's key."""
        now = await InMemoryStateStore.get_state(store)
        for path, (value, mark) in list(self._read.items()):
            if get_by_path(now, path, None) is value and mark.differs(value):
                store.changed_in_place(Write("in place", path, {"": value}))
        held = _fields(now)
        for state, fields in self._states:
            write = fields.write("in place", state)
            changed = {name: value for name, value in write.changed.items() if held.get(name) is value}
            gone = [name for name in write.gone if name not in held]
            if changed or gone:
                store.changed_in_place(Write("in place", "", changed, gone))
        return self._writes
