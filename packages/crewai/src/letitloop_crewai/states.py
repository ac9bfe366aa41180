"""A flow's state as it is recorded with each method, and set again: fields of a typed one keep their types."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from letitloop.errors import UnencodableError

if TYPE_CHECKING:
    from letitloop.codecs import Codecs

__all__ = ["fingerprint", "restore", "snapshot", "unrecordable"]

_TRIES = 100


def snapshot(flow: Any, codecs: Codecs) -> Any:
    """Return a flow's state in bytes: of one moment, whatever goes on beside.

    A private attribute that cannot be recorded is left out. A field that cannot be is left for the record of the method to name.
    """
    parts = _parts(flow._state)
    for _ in range(_TRIES):
        try:
            return codecs.encode(parts)
        except UnencodableError:
            missing = unrecordable(flow, codecs)
            if not missing:
                break
            parts = {**_parts(flow._state), "private": {k: v for k, v in parts["private"].items() if k not in missing}}
        except RuntimeError:  # a dictionary changed its size: a method on another thread is at work
            parts = _parts(flow._state)
    return parts


def fingerprint(state: Any) -> str:
    """Return what tells one snapshot from another."""
    return sha256(state).hexdigest()[:16] if isinstance(state, bytes) else ""


def unrecordable(flow: Any, codecs: Codecs) -> dict[str, UnencodableError]:
    """Return the private attributes of a typed state that cannot be recorded, each with the reason."""
    found: dict[str, UnencodableError] = {}
    for name, value in dict(_parts(flow._state).get("private", {})).items():
        try:
            codecs.encode(value)
        except UnencodableError as error:
            found[name] = error
        except RuntimeError:
            continue  # it changes at this moment: it is a container of what can be recorded, or the whole is refused
    return found


def restore(flow: Any, recorded: Any, codecs: Codecs) -> None:
    """Give a flow the state of a snapshot, without validating it again; it stays the same object."""
    parts: Any = codecs.decode(recorded) if isinstance(recorded, bytes) else recorded
    state: Any = flow._state
    if isinstance(state, dict):
        state.clear()
        state.update(parts["fields"])  # pyright: ignore[reportUnknownMemberType]
        return
    object.__setattr__(state, "__dict__", parts["fields"])
    object.__setattr__(state, "__pydantic_extra__", parts["extra"])
    object.__setattr__(state, "__pydantic_fields_set__", set(parts["set"]))
    if parts["private"]:
        object.__setattr__(state, "__pydantic_private__", {**(state.__pydantic_private__ or {}), **parts["private"]})


def _parts(state: Any) -> dict[str, Any]:
    if isinstance(state, dict):
        return {"fields": dict(state)}  # pyright: ignore[reportUnknownArgumentType]
    return {
        "fields": dict(state.__dict__),
        "extra": state.__pydantic_extra__,
        "set": sorted(state.__pydantic_fields_set__),
        "private": dict(state.__pydantic_private__ or {}),
    }
