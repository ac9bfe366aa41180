"""Which parts of a channel's value are new, and whether somebody changed it in place.

A list that only grew is recorded as its new part. To find that out without encoding the whole list each time, the items that
were recorded last are remembered, each with its *atoms*: the immutable objects that it is made of. An item whose atoms are the very
same objects is unchanged; anything else is encoded and compared byte by byte.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter, eq, is_
from typing import TYPE_CHECKING, Any, TypeVar

from letitloop.integration.atoms import IMMUTABLE, Opaque, atoms, beside_fields, own_fields, parts_beside, same

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Grown", "Items", "Kept", "Newest", "Watched"]

LARGEST_KEPT = 64 << 20


K = TypeVar("K")
V = TypeVar("V")


class Newest(dict[K, V]):
    """A dict that forgets what was set longest ago: a thread may have any number of namespaces and checkpoints.

    Args:
        most: how many items it holds.
        lasts: tells which keys are forgotten only when there are no others.

    >>> newest = Newest(2)
    >>> newest["a"], newest["b"], newest["a"], newest["c"] = 1, 2, 3, 4
    >>> newest
    {'a': 3, 'c': 4}
    """

    def __init__(self, most: int, lasts: Callable[[K], bool] = lambda _: False) -> None:
        super().__init__()
        self._most = most
        self._lasts = lasts

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self._most:
            del self[next((one for one in self if not self._lasts(one)), next(iter(self)))]


class _Marks:
    """What the mutable items of a list were made of when they were recorded.

    Most of them are messages: models of a dozen fields, nearly all of them immutable or empty. Of a thousand messages those are
    compared at every checkpoint, so they stand in flat lists, which the interpreter walks without a line of Python.
    """

    __slots__ = ("_dicts", "_empty", "_inner", "_models", "_of_pydantic", "_others", "_parts", "_sets", "_values")

    def __init__(self) -> None:
        self._models: list[Any] = []  # items that are made of fields
        self._dicts: list[dict[str, Any]] = []
        self._values: list[Any] = []  # of all of them, one after the other
        self._of_pydantic: list[Any] = []  # those that pydantic keeps more of
        self._parts: list[Any] = []  # that, of all of them: what is extra, what is private, and which fields were set
        self._sets: list[set[str]] = []
        self._empty: list[Any] = []
        self._inner: list[tuple[Any, list[Any] | None]] = []
        self._others: list[tuple[Any, list[Any] | None]] = []

    def __bool__(self) -> bool:
        return bool(self._models or self._others)

    def add(self, item: Any) -> None:
        """Remember what an item is made of."""
        try:
            fields = own_fields(item)
            parts = beside_fields(item)
        except Opaque:
            self._others.append((item, atoms(item)))
            return
        self._models.append(item)
        self._dicts.append(fields)
        self._values += fields.values()
        if parts:
            self._of_pydantic.append(item)
            self._parts += parts
            self._sets.append(set(parts[2]))
        for value in (*fields.values(), *parts[:2]):
            if type(value) in (list, dict) and not value:
                self._empty.append(value)
            elif type(value) not in IMMUTABLE:
                self._inner.append((value, atoms(value)))

    def hold(self) -> bool:
        """Tell whether all items are unchanged, as far as can be told without encoding them."""
        dicts, values = self._dicts, self._values
        return (
            all(map(is_, map(_dict_of, self._models), dicts))
            and sum(map(len, dicts)) == len(values)
            and all(map(is_, chain.from_iterable(map(_values_of, dicts)), values))
            and not any(self._empty)
            and self._pydantic_holds()
            and all(before is not None and same(before, atoms(value)) for value, before in self._inner)
            and all(before is not None and same(before, atoms(item)) for item, before in self._others)
        )

    def _pydantic_holds(self) -> bool:
        models = self._of_pydantic
        try:
            return all(map(is_, chain.from_iterable(map(parts_beside, models)), self._parts)) and all(
                map(eq, self._parts[2::3], self._sets)
            )
        except AttributeError:  # somebody took one away
            return False


_dict_of = attrgetter("__dict__")
_values_of = dict.values


class Grown:
    """What was recorded last of a list that may only grow.

    Attributes:
        version: at which version.
        items: the items, the very objects.
        kept: the items' encodings, as far as they are kept in memory.
    """

    __slots__ = ("_marks", "items", "kept", "version")

    def __init__(self, version: Any, items: list[Any], kept: Kept | None) -> None:
        self.version = version
        self.items: list[Any] = []
        self.kept = kept
        self._marks = _Marks()
        self._add(items)

    def starts(self, value: list[Any]) -> bool:
        """Tell whether a list has the remembered items, unchanged, at its start."""
        return len(value) >= len(self.items) and all(map(is_, self.items, value)) and self._marks.hold()

    def extend(self, version: Any, items: list[Any], data: bytes) -> None:
        """Remember items that came at the end, and their encodings."""
        self._add(items)
        self.version = version
        if self.kept is not None and not self.kept.extend(version, len(items), data):
            self.kept = None

    def _add(self, items: list[Any]) -> None:
        for item in items:
            if type(item) not in IMMUTABLE:
                self._marks.add(item)
        self.items += items
        if self.kept is not None:
            self.kept.plain = None if self._marks else self.items


class Kept:
    """The encodings of a list's items in memory, for each of its versions that is the start of the next.

    Attributes:
        ends: for each version: how many items it has, and how many chunks hold them.
        chunks: the items' encodings, in their order.
        plain: the items themselves, if all of them are immutable: nobody minds who else holds them.
    """

    __slots__ = ("_size", "chunks", "count", "ends", "plain")

    def __init__(self) -> None:
        self.ends: dict[Any, tuple[int, int]] = {}
        self.chunks: list[bytes] = []
        self.plain: list[Any] | None = None
        self._size = 0
        self.count = 0

    def extend(self, version: Any, count: int, data: bytes) -> bool:
        """Add a version's new items; False if that is more than memory should hold."""
        self._size += len(data)
        if self._size > LARGEST_KEPT:
            return False
        if data:
            self.chunks.append(data)
        self.count += count
        self.ends[version] = (self.count, len(self.chunks))
        return True

    def items(self, version: Any) -> Items | None:
        """Return a version's items, None if they are not kept."""
        end = self.ends.get(version)
        return None if end is None else Items(end[0], self.chunks[: end[1]])


class Items:
    """Items of a list in the codecs' wire format: how many, and their encodings in chunks."""

    __slots__ = ("chunks", "count")

    def __init__(self, count: int, chunks: list[bytes]) -> None:
        self.count = count
        self.chunks = chunks

    def data(self) -> bytes:
        """Return the encodings one after the other."""
        return b"".join(self.chunks)


class Watched:
    """A channel's live value, remembered to notice that it was changed in place.

    Attributes:
        version: at which version it was recorded.
        value: the object.
    """

    __slots__ = ("_atoms", "value", "version")

    def __init__(self, version: Any, value: Any) -> None:
        self.version = version
        self.value = value
        self._atoms = atoms(value)

    def changed(self, version: Any, value: Any) -> bool:
        """Tell whether the same object, at the same version, is made of other parts than it was."""
        if self._atoms is None or version != self.version or value is not self.value:
            return False
        return not same(self._atoms, atoms(value))
