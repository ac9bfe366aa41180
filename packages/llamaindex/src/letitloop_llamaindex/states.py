"""The state of a workflow as the log has it: what each step changed, in one record with its result."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from workflows.context.state_store import DictState

if TYPE_CHECKING:
    from pydantic import BaseModel
    from workflows.context.state_store import StateStore

    from letitloop_llamaindex.ticks import TickCodec

__all__ = ["StateLog", "parts_of", "whole_of"]

_WHOLE = ""
"""The key of a state's class, or of a state as a whole that cannot be put together from its fields."""


class StateLog:
    """Tells what has changed in a state since it was last recorded, and puts it together again.

    Args:
        codec: the run's.
    """

    def __init__(self, codec: TickCodec) -> None:
        self._codec = codec
        self._parts: dict[str, bytes] = {}

    async def changes(self, state: BaseModel) -> dict[str, bytes | None]:
        """Return what has changed: encoded values by key, None for a key that is gone.

        Raises:
            UnencodableError: a value cannot be recorded exactly.
        """
        parts = parts_of(state)
        if (memories := sys.modules.get("letitloop_llamaindex.memories")) is not None:
            for value in parts.values():
                await memories.fetch(self._codec, value)
        changed: dict[str, bytes | None] = {}
        for key, value in parts.items():
            body = self._codec.encode_value(value, f"state[{key!r}]" if key else "state")
            if self._parts.get(key) != body:
                changed[key] = self._parts[key] = body
        for key in self._parts.keys() - parts.keys():
            del self._parts[key]
            changed[key] = None
        return changed

    def apply(self, changed: dict[str, bytes | None]) -> None:
        """Take in what a record says has changed."""
        for key, body in changed.items():
            if body is None:
                self._parts.pop(key, None)
            else:
                self._parts[key] = body

    async def restore(self, store: StateStore[Any]) -> None:
        """Give a store the recorded state; one that nothing is recorded of is left as the program made it.

        Raises:
            DecodeError: a recorded value's class is gone or has changed.
        """
        if not self._parts:
            return
        values = {key: self._codec.decode_value(body) for key, body in self._parts.items()}
        if (memories := sys.modules.get("letitloop_llamaindex.memories")) is not None:
            await memories.put_back(self._codec)
        await store.set_state(whole_of(values))


def parts_of(state: BaseModel) -> dict[str, Any]:
    """Return what a state is recorded by: its values by key, of a class of its own with that class; else it as a whole."""
    if type(state) is DictState:
        return dict(state.items())
    cls: Any = type(state)
    plain = cls.__pydantic_root_model__ is False and not cls.__private_attributes__ and not isinstance(state, DictState)
    fields = vars(state)
    if not plain or state.__pydantic_extra__ or _WHOLE in fields or not fields.keys() <= cls.model_fields.keys():
        return {_WHOLE: state}
    return {**fields, _WHOLE: (cls.model_construct(set(state.model_fields_set), **dict.fromkeys(fields)),)}  # its class, in a form


def whole_of(values: dict[str, Any]) -> BaseModel:
    """Return the state that :func:`parts_of` took apart."""
    fields = dict(values)
    whole: Any = fields.pop(_WHOLE, None)
    if whole is None:
        return DictState(_data=fields)
    if not isinstance(whole, tuple):
        return whole  # type: ignore[no-any-return]  # a state
    form: Any = whole[0]
    return type(form).model_construct(set(form.model_fields_set), **fields)  # type: ignore[no-any-return]  # of its class
