"""Sets in what tools return, in one order in every life of a program: CrewAI writes them into prompts as they come."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from letitloop_crewai.asking import digest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["plain", "steady"]


class SteadySet(set[Any]):
    """A set that is gone through, and written, in an order that does not depend on the process."""

    def __iter__(self) -> Iterator[Any]:
        return iter(_ordered(set.__iter__(self)))

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self))}}}"

    __str__ = __repr__


class SteadyFrozenSet(frozenset[Any]):
    """The same for a frozen set."""

    def __iter__(self) -> Iterator[Any]:
        return iter(_ordered(frozenset.__iter__(self)))

    def __repr__(self) -> str:
        return f"frozenset({{{', '.join(map(repr, self))}}})"

    __str__ = __repr__


def _ordered(parts: Iterator[Any]) -> list[Any]:
    found = list(parts)
    kinds = set(map(type, found))
    return sorted(found, key=None if kinds <= {str} or kinds <= {int} else digest)


_STEADY: dict[type, type] = {set: SteadySet, frozenset: SteadyFrozenSet}
_PLAIN: dict[type, type] = {SteadySet: set, SteadyFrozenSet: frozenset}


def steady(value: Any) -> Any:
    """Return a value whose sets keep an order; itself if there are none in it."""
    return _exchanged(value, _STEADY)


def plain(value: Any) -> Any:
    """Return a value with sets as they were before :func:`steady`."""
    return _exchanged(value, _PLAIN)


def _exchanged(value: Any, kinds: dict[type, type]) -> Any:
    cls: Any = type(value)
    if cls in (str, int, float, bool, bytes, type(None)):
        return value
    if cls in kinds:
        # an empty one is written in its own way
        return kinds[cls](_exchanged(part, kinds) for part in value) if value else value
    if cls in (list, tuple):
        parts = [_exchanged(part, kinds) for part in value]
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else cls(parts)
    if cls is dict:
        found = {_exchanged(key, kinds): _exchanged(part, kinds) for key, part in value.items()}
        return value if all(found.get(key) is part for key, part in value.items()) else found
    if isinstance(value, BaseModel) or dataclasses.is_dataclass(cls):
        return _instance(value, kinds)
    return value


def _instance(value: Any, kinds: dict[type, type]) -> Any:
    """Return a copy of an instance if a field of it holds a set; it belongs to the tool."""
    fields: dict[str, Any] = getattr(value, "__dict__", {})
    changed = {name: new for name, old in fields.items() if (new := _exchanged(old, kinds)) is not old}
    if not changed:
        return value
    other = copy.copy(value)
    other.__dict__.update(changed)
    return other
