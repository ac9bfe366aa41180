"""What lies inside an agent, wherever its author put it: a bounded walk that puts stand-ins in the places of what it finds."""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import weakref
from collections.abc import Mapping, MutableMapping, MutableSequence, MutableSet
from collections.abc import Set as AbstractSet
from enum import IntEnum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from letitloop.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from letitloop.integration.patching import Patches

__all__ = ["Parts", "Place", "attributes", "is_users_own"]

_ABSENT: Any = object()
_LIMIT = 100_000
"""How many objects are looked at in one agent."""
_PLAIN = (str, bytes, bytearray, int, float, complex, type, ModuleType, BuiltinFunctionType, type(None))
_NOT_WALKED = {
    *sys.stdlib_module_names,
    *("autogen_core", "autogen_agentchat", "autogen_ext", "letitloop", "letitloop_autogen", "pydantic", "pydantic_core"),
    *("numpy", "pandas", "torch", "PIL", "httpx", "openai", "anthropic", "opentelemetry"),
} - {"__main__"}
_WALKED = (SimpleNamespace, asyncio.Queue, queue.Queue)
_WEAK = (weakref.WeakValueDictionary, weakref.WeakKeyDictionary, weakref.WeakSet)


class Place(IntEnum):
    """How near to its agent something was found."""

    OWN = 0
    """An attribute, or an item of a list that is one: replaced for this agent alone."""
    HELD = 1
    """In a container that others may hold as well."""
    DEEP = 2
    """In a helper object."""


class Parts:
    """One walk through an agent or a team.

    Args:
        owner: the agent's name, for messages.
        patches: what takes the replacements back.
        stand_in: given a value and its place, returns what stands in for it, or None if it is nothing to be replaced.
        calls: tells of a value whether it makes calls that are to be recorded.
    """

    def __init__(
        self,
        owner: str,
        patches: Patches,
        stand_in: Callable[[Any, Place], Any],
        calls: Callable[[Any], bool],
    ) -> None:
        self._owner = owner
        self._patches = patches
        self._stand_in = stand_in
        self._calls = calls
        self._seen: dict[int, tuple[Any, Any]] = {}
        self._looked = 0

    def attribute(self, one: Any, name: str, value: Any) -> None:
        """Look into an attribute, and put there what stands in for its value."""
        self._attribute(one, name, value, Place.OWN, name)

    def _attribute(self, one: Any, name: str, value: Any, place: Place, path: str) -> None:
        found = self._found(value, place, path)
        if found is value:
            return
        try:
            self._patches.replace(one, name, lambda _: found)
            done = getattr(one, name, None) is found
        except Exception:
            done = False
        if not done:
            raise self._refused(path, f"an attribute of {type(one).__name__}, which cannot be set")

    def _found(self, value: Any, place: Place, path: str) -> Any:
        """Return what stands in for a value, which is the value itself if nothing does."""
        self._looked += 1
        if isinstance(value, _PLAIN):
            return value
        found = self._stand_in(value, place)
        if found is not None:
            return found
        if id(value) in self._seen:
            return self._seen[id(value)][1]
        self._seen[id(value)] = value, value
        if self._looked > _LIMIT:
            if self._looked < sys.maxsize:
                self._looked = sys.maxsize
                self._tell(f"holds more than {_LIMIT:,} objects: from {path!r} on they were not looked into")
            return value
        found = self._rebuilt(value, place, path)
        self._seen[id(value)] = value, found
        return found

    def _rebuilt(self, value: Any, place: Place, path: str) -> Any:
        if isinstance(value, MethodType):
            return self._method(value, place, path)
        if isinstance(value, partial):
            return self._partial(value, place, path)  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(value, FunctionType):
            self._function(value, path)
        elif isinstance(value, _WEAK):
            pass
        elif type(value) is list and place is Place.OWN:  # a list that AutoGen or the agent made for itself
            items = [self._found(item, Place.OWN, f"{path}[{i}]") for i, item in enumerate(value)]  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
            return value if _same(items, value) else items  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        elif isinstance(value, (tuple, frozenset)):
            return self._fixed(value, place, path)  # pyright: ignore[reportUnknownArgumentType]
        else:
            if isinstance(value, (Mapping, MutableSequence, AbstractSet)):
                self._container(value, max(place, Place.HELD), path)  # pyright: ignore[reportUnknownArgumentType]
            if self._walks(value):
                for name, one in list(attributes(value)):
                    self._attribute(value, name, one, Place.DEEP, f"{path}.{name}")
        return value  # pyright: ignore[reportUnknownVariableType]

    def _method(self, value: MethodType, place: Place, path: str) -> Any:
        """Return a bound method, of what stands in for the object that it is bound to."""
        bound = value.__self__
        found = self._found(bound, place, path)
        return value if found is bound else getattr(found, value.__name__)

    def _partial(self, value: partial[Any], place: Place, path: str) -> Any:
        function = self._found(value.func, place, path)
        args = [self._found(one, place, path) for one in value.args]
        named = {name: self._found(one, place, path) for name, one in value.keywords.items()}
        old = [value.func, *value.args, *value.keywords.values()]
        return value if _same([function, *args, *named.values()], old) else partial(function, *args, **named)

    def _function(self, value: FunctionType, path: str) -> None:
        """Tell of what a function of the user's has got hold of, where nothing can be put in its place."""
        if hasattr(value, "__letitloop_wraps__") or _top(value.__module__) in ("letitloop", "letitloop_autogen"):
            return
        held: list[Any] = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        for cell in value.__closure__ or ():
            try:
                held.append(cell.cell_contents)
            except ValueError:
                continue  # empty yet
        for one in held:
            bound = one.__self__ if isinstance(one, MethodType) else one
            if self._calls(bound):
                self._tell(
                    f"has a function at {path!r} that uses a {type(bound).__name__} of its own: its calls are not recorded. Keep "
                    "it in an attribute of the agent"
                )

    def _fixed(self, value: Any, place: Place, path: str) -> Any:
        items = [self._found(item, max(place, Place.HELD), f"{path}[…]") for item in value]
        if _same(items, value):
            return value
        if hasattr(value, "_make"):
            return value._make(items)
        if type(value) not in (tuple, frozenset):
            raise self._refused(path, f"a {type(value).__name__}, which cannot be rebuilt")
        return type(value)(items)

    def _container(self, value: Any, place: Place, path: str) -> None:
        if isinstance(value, Mapping):
            entries: list[tuple[Any, Any]] = list(value.items())  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
            for key, _ in entries:
                if self._calls(key):
                    self._tell(f"has a {type(key).__name__} as a key at {path!r}: calls of it are not recorded")
        else:
            entries = list(enumerate(value))  # pyright: ignore[reportUnknownArgumentType]
        for key, item in entries:
            found = self._found(item, place, f"{path}[{key!r}]" if isinstance(key, (str, int)) else f"{path}[…]")
            if found is item:
                continue
            if isinstance(value, (MutableMapping, MutableSequence)):
                self._patches.replace_item(value, key, found)
            elif isinstance(value, MutableSet):
                self._patches.replace_member(value, item, found)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType,reportUnknownArgumentType]
            else:
                raise self._refused(path, f"a {type(value).__name__}, which cannot be changed")  # pyright: ignore[reportUnknownArgumentType]

    def _walks(self, value: Any) -> bool:
        return isinstance(value, _WALKED) or is_users_own(value)

    def _refused(self, path: str, why: str) -> InvalidArgument:
        return InvalidArgument(
            f"{self._owner!r} cannot be made durable: what makes calls for it lies in {path!r}, {why}. Nothing was changed. Keep "
            "it in an attribute, a list or a dictionary of the agent."
        )

    def _tell(self, what: str) -> None:
        logging.getLogger("letitloop").warning("letitloop: %r %s.", self._owner, what)


def is_users_own(value: Any) -> bool:
    """Tell whether a function, or the class of an object, is none of a library that keeps its own things in order."""
    return _top(value.__module__ if isinstance(value, FunctionType) else type(value).__module__) not in _NOT_WALKED


def attributes(one: Any) -> Iterator[tuple[str, Any]]:
    """Yield an object's attributes: its own, those in slots, and those that its classes hold for all."""
    try:
        own: dict[str, Any] = object.__getattribute__(one, "__dict__")
    except AttributeError:
        own = {}
    yield from list(own.items())
    seen = set(own)
    for kind in type(one).__mro__:
        if kind is object:
            continue
        slots = kind.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            value: Any = _slot(one, kind, name)
            if name not in ("__dict__", "__weakref__") and value is not _ABSENT:
                yield _mangled(kind, name), value
        if _top(kind.__module__) in _NOT_WALKED:
            continue
        for name, value in list(vars(kind).items()):
            if name not in seen and not name.startswith("__") and not hasattr(value, "__get__"):
                seen.add(name)
                yield name, value


def _slot(one: Any, kind: type, name: str) -> Any:
    try:
        return object.__getattribute__(one, _mangled(kind, name))
    except AttributeError:
        return _ABSENT


def _mangled(kind: type, name: str) -> str:
    return f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name


def _top(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _same(new: Any, old: Any) -> bool:
    return all(one is other for one, other in zip(new, old, strict=True))
