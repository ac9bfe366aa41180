"""How a checkpoint's values are recorded: in full, as what a list has more, or as the very bytes that a task's write holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import writes_sort_key

from letitloop_langgraph.contents import INLINE, PIECES, WRITTEN
from letitloop_langgraph.records import short
from letitloop_langgraph.serde import TAG, CodecSerializer, items_of
from letitloop_langgraph.values import Grown, Kept

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from langgraph.checkpoint.serde.base import SerializerProtocol

    from letitloop_langgraph.index import Index

__all__ = ["Forms", "Recent", "size_of"]


class Recent:
    """The writes of one checkpoint that this process made, for values that turn out to be the very same bytes."""

    __slots__ = ("by_channel",)

    def __init__(self) -> None:
        self.by_channel: dict[str, list[tuple[str, str, int, str, bytes]]] = {}

    def add(self, channel: str, path: str, task: str, index: int, tag: str, body: bytes) -> None:
        self.by_channel.setdefault(channel, []).append((path, task, index, tag, body))

    def of(self, tasks: Collection[str]) -> Recent:
        """Return those of some tasks."""
        found = Recent()
        for channel, writes in self.by_channel.items():
            found.by_channel[channel] = [write for write in writes if write[1] in tasks]
        return found

    def sorted(self, channel: str) -> list[tuple[str, str, int, str, bytes]]:
        return sorted(self.by_channel.get(channel, ()), key=lambda write: writes_sort_key(write[0], write[1], write[2]))


def size_of(form: list[Any]) -> int:
    """Return how many bytes of values a form holds."""
    if not form or form[0] == WRITTEN:
        return 0
    if form[0] == INLINE:
        return len(form[2])
    return sum(len(piece[1]) for piece in form[2] if len(piece) > 1)


class Forms:
    """Makes the forms of one checkpoint's values.

    Args:
        grown: the lists that are on record, by serialiser, namespace and channel.
        index: what is on record.
        serde: writes values.
        ns: the checkpoint's namespace.
        parent: the checkpoint that it follows.
        recent: the writes that this process made to that.
    """

    def __init__(
        self,
        grown: dict[tuple[int, str, str], Grown],
        index: Index,
        serde: SerializerProtocol,
        ns: str,
        parent: str | None,
        recent: Recent | None,
    ) -> None:
        self._grown = grown
        self._index = index
        self._serde = serde
        self._ns = ns
        self._parent = parent
        self._recent = recent
        self._native = isinstance(serde, CodecSerializer)
        self._which = id(serde.codecs) if isinstance(serde, CodecSerializer) else 0
        self._later: list[Callable[[], None]] = []

    def keep(self) -> None:
        """Remember the lists that were recorded; called when nothing can be refused any more."""
        for do in self._later:
            do()

    def form(self, channel: str, version: Any, value: Any) -> list[Any]:
        """Return the form of a value."""
        if type(value) is not list:
            tag, body = self._serde.dumps_typed(value)
            source = self._written(channel, tag, body)
            return [INLINE, tag, body] if source is None else [WRITTEN, source]
        grown = self._grown.get((self._which, self._ns, channel))
        base = grown.version if grown is not None else None
        if grown is not None and (base == version or (self._ns, channel, base) not in self._index.blobs):
            grown = None
        if grown is not None and grown.starts(value):
            return self._suffix(channel, version, value[len(grown.items) :], grown)
        if not self._native:
            self._grow(channel, Grown(version, value, None))
            return [INLINE, *self._serde.dumps_typed(value)]
        return self._whole(channel, version, value, grown)

    def _suffix(self, channel: str, version: Any, items: list[Any], grown: Grown) -> list[Any]:
        base = grown.version
        self._grow(channel, grown)  # it is in use: others are forgotten first
        if not self._native:
            self._later.append(lambda: grown.extend(version, items, b""))
            return [PIECES, base, [[*self._serde.dumps_typed(items), None]] if items else []]
        data = self._items(items)
        self._later.append(lambda: grown.extend(version, items, data))
        return [PIECES, base, self._pieces(channel, len(items), data)]

    def _whole(self, channel: str, version: Any, value: list[Any], grown: Grown | None) -> list[Any]:
        data = self._items(value)
        before = None if grown is None or grown.kept is None else grown.kept.items(grown.version)
        if grown is not None and before is not None and before.count and len(value) >= before.count:
            start = before.data()
            if data.startswith(start):
                # other objects, or objects that cannot be told unchanged, and yet the same start
                kept = Kept()
                kept.extend(grown.version, before.count, start)
                kept.extend(version, len(value) - before.count, data[len(start) :])
                self._grow(channel, Grown(version, value, kept))
                return [PIECES, grown.version, self._pieces(channel, len(value) - before.count, data[len(start) :])]
        kept = Kept()
        kept.extend(version, len(value), data)
        self._grow(channel, Grown(version, value, kept))
        return [PIECES, None, self._pieces(channel, len(value), data)]

    def _grow(self, channel: str, grown: Grown) -> None:
        where = (self._which, self._ns, channel)
        self._later.append(lambda: self._grown.__setitem__(where, grown))

    def _items(self, items: list[Any]) -> bytes:
        body = self._serde.dumps_typed(items)[1]
        found = items_of(body)
        assert found is not None, "a list is encoded as one"
        return body[found[1] :]

    def _written(self, channel: str, tag: str, body: bytes) -> list[Any] | None:
        """Return which write has these very bytes, if one has."""
        if not self._native or self._recent is None or len(body) < 64:
            return None
        for _, task, index, other, data in self._recent.by_channel.get(channel, ()):
            if other == tag and data == body:
                return [short(self._parent or ""), short(task), index]
        return None

    def _pieces(self, channel: str, count: int, data: bytes) -> list[Any]:
        """Return the pieces of a list's items; those that a write holds already are named, not written again."""
        pieces: list[Any] = []
        at = 0
        for _, task, index, tag, body in self._recent.sorted(channel) if self._recent is not None else ():
            if tag != TAG or len(body) < 64 or at >= len(data):
                continue
            found = items_of(body)
            start, items = (0, 1) if found is None else (found[1], found[0])
            if items <= count and data.startswith(body[start:] if start else body, at):
                pieces.append([[short(self._parent or ""), short(task), index]])
                at += len(body) - start
                count -= items
            else:
                break
        if at < len(data):
            pieces.append([count, data[at:]])
        return pieces
