"""What a value is made of: a mark that tells whether it was changed in place, without encoding it again and without ``==``.

A value's *atoms* are the immutable objects that it is made of. A value whose atoms are the very same objects is unchanged; of any
other nothing is known, and its bytes tell. ``==`` would not do: it holds ``True`` for ``1``, leaves fields out, and means something
else to an array.
"""

from __future__ import annotations

import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from operator import attrgetter, is_
from uuid import UUID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

__all__ = ["IMMUTABLE", "Opaque", "atoms", "beside_fields", "own_fields", "parts_beside", "same"]

IMMUTABLE: frozenset[type] = frozenset(
    (str, int, float, bool, bytes, type(None), complex, Decimal, UUID, date, datetime, time, timedelta)
)
_MOST = 4096
_SMALL_INTS = 256
_HEAP_TYPE = 1 << 9
"""In a class's flags: it was made by a class statement (``Py_TPFLAGS_HEAPTYPE``)."""


class Opaque(Exception):
    """A value has parts whose changes cannot be told."""


def atoms(value: Any, most: int = _MOST) -> list[Any] | None:
    """Return the immutable objects that a value is made of, in their order; None if that cannot be told, or there are too many.

    >>> atoms([7, {"a": "b"}]) == [list, 2, 7, dict, 1, "a", 1, "b"]
    True
    """
    found: list[Any] = []
    try:
        _collect(value, found, most)
    except (Opaque, RecursionError):
        return None
    return found


def _collect(value: Any, found: list[Any], most: int) -> None:
    cls: Any = type(value)  # pyright: ignore[reportUnknownVariableType]  # of anybody's value
    kind = _kinds.get(cls) or _kind(cls)
    if kind == "atom":
        found.append(value)
        return
    found.append(cls)
    if kind == "items":
        _collect_all(value, found, most)
    elif kind == "dict":
        _collect_dict(value, found, most)
    elif kind == "fields":
        _collect_dict(value.__dict__, found, most)
    elif kind == "model":
        extra, private, given = beside_fields(value)
        _collect_dict(value.__dict__, found, most)
        for part in (extra, private):
            found.append(None)  # one that is empty and one that is not there are no difference
            if part:
                _collect_dict(part, found, most)
        _collect_all(sorted(given), found, most)
    else:
        raise Opaque


def _collect_dict(value: dict[Any, Any], found: list[Any], most: int) -> None:
    _collect_all(value, found, most)
    _collect_all(value.values(), found, most)


def _collect_all(items: Collection[Any], found: list[Any], most: int) -> None:
    if len(found) + len(items) > most:
        raise Opaque
    found.append(_length(items))
    if IMMUTABLE.issuperset(map(type, items)):  # most are: without a line of Python an item
        found += items
        return
    for item in items:
        if type(item) in IMMUTABLE:
            found.append(item)
        else:
            _collect(item, found, most)


_kinds: dict[type, str] = {**dict.fromkeys(IMMUTABLE, "atom"), list: "items", tuple: "items", dict: "dict"}
_MOST_KINDS = 4096


def _kind(cls: Any) -> str:
    """Return what instances of a class are made of."""
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    kind = "opaque"
    if issubclass(cls, Enum):
        kind = "atom"
    elif any(not one.__flags__ & _HEAP_TYPE for one in cls.__mro__ if one is not object):
        pass  # a part of it is a list, a dict, a text: what such an instance holds is in no field
    elif base is not None and issubclass(cls, base):
        own = [one for one in cls.__mro__ if one.__module__.partition(".")[0] != "pydantic"]
        kind = "opaque" if any(one.__dict__.get("__slots__") for one in own) else "model"
    elif hasattr(cls, "__dataclass_fields__") and not hasattr(cls, "__slots__"):
        kind = "fields"
    if len(_kinds) < _MOST_KINDS:  # a program may make classes without end
        _kinds[cls] = kind
    return kind


def _length(value: Collection[Any]) -> object:
    """Return a value's length as an object that is the same one next time."""
    length = len(value)
    return length if length <= _SMALL_INTS else sys.intern(str(length))


def own_fields(value: Any) -> dict[str, Any]:
    """Return the dict of an instance's fields, itself.

    Raises:
        Opaque: it has none, or parts besides it.
    """
    cls: Any = type(value)  # pyright: ignore[reportUnknownVariableType]  # of anybody's value
    if (_kinds.get(cls) or _kind(cls)) not in ("model", "fields"):
        raise Opaque
    return value.__dict__  # type: ignore[no-any-return]  # every such instance has one


parts_beside = attrgetter("__pydantic_extra__", "__pydantic_private__", "__pydantic_fields_set__")
"""What pydantic keeps of a model beside its fields."""


def beside_fields(value: Any) -> tuple[Any, ...]:
    """Return :data:`parts_beside` of a model, nothing of another instance.

    Raises:
        Opaque: it is a model that was never initialised.
    """
    cls: Any = type(value)  # pyright: ignore[reportUnknownVariableType]  # of anybody's value
    if _kinds.get(cls) != "model":
        return ()
    try:
        return parts_beside(value)
    except AttributeError:
        raise Opaque from None


def same(before: list[Any], now: list[Any] | None) -> bool:
    """Tell whether two lists of atoms hold the very same objects.

    >>> row = {"paid": 1}
    >>> before = atoms(row)
    >>> row["paid"] = True
    >>> same(before, atoms(row))
    False
    """
    return now is not None and len(before) == len(now) and all(map(is_, before, now))
