"""From the records of a thread to checkpoints, channel values and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import CheckpointTuple, writes_sort_key

from letitloop.errors import DecodeError
from letitloop_langgraph.records import unpack, whole
from letitloop_langgraph.serde import TAG, array_of, items_of
from letitloop_langgraph.values import Items, Kept

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from langgraph.checkpoint.base import PendingWrite
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from letitloop.wal.format import Entry
    from letitloop_langgraph.index import Index, Stored

__all__ = ["Contents", "Row", "config_of", "rows_of"]

INLINE, WRITTEN, PIECES = 0, 1, 2
_LONG = 8  # steps after which a list's items are kept, once they are collected
Part = Any
"""A whole value, (tag, bytes); or a part of a list: ``Items``, or (tag, bytes, None)."""
Row = tuple[str, str, int, str, str, bytes]
"""A write: the task's path, the task, the write's index, channel, type tag, bytes."""


def config_of(thread_id: str, ns: str, identity: str) -> Any:
    """Return the config that names a checkpoint."""
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": identity}}


def rows_of(records: list[tuple[str, str, Entry]], read: Callable[[Entry], bytes]) -> dict[tuple[str, int], Row]:
    """Return the writes that count, by task and index: of ordinary ones the first, of errors, interrupts and such the last."""
    rows: dict[tuple[str, int], Row] = {}
    for task, path, entry in records:
        for index, channel, tag, body in unpack(read(entry)):
            if index < 0 or (task, index) not in rows:
                rows[task, index] = (path, task, index, channel, tag, body)
    return rows


class Contents:
    """What a thread's log says, for one look at it.

    Args:
        thread_id: the thread.
        index: the log's records.
        read: returns a record's payload.
        serde: reads values.
        grown: lists whose encodings are in memory since they were written, by namespace and channel.
        kept: the same of lists that were read; what takes long to collect is added.
    """

    def __init__(
        self,
        thread_id: str,
        index: Index,
        read: Callable[[Entry], bytes],
        serde: SerializerProtocol,
        grown: Mapping[tuple[str, str], Kept],
        kept: dict[tuple[str, str], Kept],
    ) -> None:
        self.thread_id = thread_id
        self.index = index
        self.read = read
        self.serde = serde
        self._grown = grown
        self._kept = kept
        self._rows: dict[tuple[str, str], dict[tuple[str, int], Row]] = {}

    def checkpoint(self, stored: Stored) -> CheckpointTuple:
        """Return a checkpoint with its values and writes."""
        fields, metadata, _, extras, more = unpack(self.read(stored.entry))
        if more is not None:
            fields |= self.serde.loads_typed(tuple(more))
        values = self.values(stored.ns, fields["channel_versions"])
        for channel, (tag, body) in extras.items():
            values.setdefault(channel, self.serde.loads_typed((tag, body)))
        parent = None if stored.parent is None else config_of(self.thread_id, stored.ns, stored.parent)
        return CheckpointTuple(
            config_of(self.thread_id, stored.ns, stored.id),
            {**fields, "id": stored.id, "channel_values": values},  # type: ignore[typeddict-item]  # the fields that it was given with
            self.serde.loads_typed(tuple(metadata)),
            parent,
            self.writes(stored.ns, stored.id),
        )

    def metadata(self, stored: Stored) -> dict[str, Any]:
        """Return a checkpoint's metadata alone."""
        return self.serde.loads_typed(tuple(unpack(self.read(stored.entry))[1]))  # type: ignore[no-any-return]

    def versions(self, stored: Stored) -> dict[str, Any]:
        """Return a checkpoint's channel versions."""
        return unpack(self.read(stored.entry))[0]["channel_versions"]  # type: ignore[no-any-return]

    def writes(self, ns: str, identity: str) -> list[PendingWrite]:
        """Return a checkpoint's writes in the order in which they are applied."""
        rows = sorted(self.rows(ns, identity).values(), key=lambda row: writes_sort_key(row[0], row[1], row[2]))
        return [(row[1], row[3], self.serde.loads_typed((row[4], row[5]))) for row in rows]

    def rows(self, ns: str, identity: str) -> dict[tuple[str, int], Row]:
        """Return a checkpoint's writes, not decoded, by task and index."""
        found = self._rows.get((ns, identity))
        if found is None:
            found = self._rows[ns, identity] = rows_of(self.index.writes.get((ns, identity), []), self.read)
        return found

    # --- values --------------------------------------------------------------------------------------------------------------

    def values(self, ns: str, versions: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that channels have at these versions; those without one are left out."""
        found: dict[str, Any] = {}
        for channel, version in versions.items():
            grown = self._grown.get((ns, channel))
            if grown is not None and grown.plain is not None and version in grown.ends:
                found[channel] = grown.plain[: grown.ends[version][0]]
                continue
            parts = self.parts(ns, channel, version)
            if parts is not None:
                found[channel] = self.join(parts)
        return found

    def has(self, ns: str, channel: str, version: Any) -> bool:
        """Tell whether a channel has a value at a version."""
        return (ns, channel, version) in self.index.blobs and bool(self.form(ns, channel, version))

    def form(self, ns: str, channel: str, version: Any) -> list[Any]:
        """Return the form that is on record of a channel's value at a version."""
        place = self.index.blobs.get((ns, channel, version))
        if place is None:
            raise DecodeError(f"thread {self.thread_id!r}: channel {channel!r} has no value on record at version {version!r}.")
        entry, slot = place
        payload = unpack(self.read(entry))
        return payload if slot < 0 else payload[2][slot]  # type: ignore[no-any-return]

    def parts(self, ns: str, channel: str, version: Any) -> list[Part] | None:
        """Return what a value is made of: one (tag, bytes), or parts of a list; None if there is no value.

        A part of a list is items in the codecs' format, or (tag, bytes, None), a list by another serialiser.
        """
        if (ns, channel, version) not in self.index.blobs:
            return None
        sources = [one for one in (self._grown.get((ns, channel)), self._kept.get((ns, channel))) if one is not None]
        tail: list[tuple[Any, list[Part]]] = []  # versions and what each has more than its base, the last first
        while True:
            known = next((found for one in sources if (found := one.items(version)) is not None), None)
            if known is not None:
                head: list[Part] = [known]
                break
            form = self.form(ns, channel, version)
            if not form:
                return None
            if form[0] == PIECES:
                tail.append((version, [self._piece(ns, piece) for piece in form[2]]))
                if form[1] is None:
                    head = []
                    break
                version = form[1]
                continue
            typed = (form[1], form[2]) if form[0] == INLINE else self.source(ns, form[1])
            if not tail:
                return [typed]
            head = [_as_items(typed)]
            break
        if len(tail) >= _LONG:
            self._keep((ns, channel), version, head, tail)
        return [*head, *(part for _, more in reversed(tail) for part in more)] or [Items(0, [])]

    def _keep(self, where: tuple[str, str], base: Any, head: list[Part], tail: list[tuple[Any, list[Part]]]) -> None:
        """Keep the items of a list that took long to collect."""
        kept = Kept()
        steps = [(base, head), *reversed(tail)] if head else list(reversed(tail))
        for version, parts in steps:
            if not all(isinstance(part, Items) for part in parts):
                return
            items: list[Any] = parts
            if not kept.extend(version, sum(one.count for one in items), b"".join(one.data() for one in items)):
                return
        self._kept[where] = kept

    def source(self, ns: str, where: list[Any]) -> tuple[str, bytes]:
        """Return type tag and bytes of the write that a form names."""
        checkpoint, task, index = where
        row = self.rows(ns, whole(checkpoint)).get((whole(task), index))
        if row is None:
            hidden = self.index.shadows.get((ns, whole(checkpoint)), [])
            row = rows_of([record for record in hidden if record[0] == whole(task)], self.read).get((whole(task), index))
        if row is None:
            raise DecodeError(
                f"thread {self.thread_id!r}: a value is recorded as that of write {index} of task {whole(task)}, which is not on "
                "record. Restore the log from a copy."
            )
        return row[4], row[5]

    def _piece(self, ns: str, piece: list[Any]) -> Part:
        if len(piece) == 1:
            tag, body = self.source(ns, piece[0])
            found = items_of(body) if tag == TAG else None
            return Items(1, [body]) if found is None else Items(found[0], [body[found[1] :]])
        return Items(piece[0], [piece[1]]) if len(piece) == 2 else tuple(piece)

    def join(self, parts: list[Part]) -> Any:
        """Return the value that parts are made of."""
        first = parts[0]
        if len(parts) == 1 and isinstance(first, tuple) and len(first) == 2:
            return self.serde.loads_typed(first)
        if all(isinstance(part, Items) for part in parts):
            items: list[Any] = parts
            chunks = [array_of(sum(one.count for one in items))]
            for one in items:
                chunks += one.chunks
            return self.serde.loads_typed((TAG, b"".join(chunks)))
        joined: list[Any] = []
        for part in parts:
            typed = (TAG, array_of(part.count) + part.data()) if isinstance(part, Items) else (part[0], part[1])
            joined += self.serde.loads_typed(typed)
        return joined


def _as_items(typed: tuple[str, bytes]) -> Part:
    """Return a whole list as a part of one."""
    found = items_of(typed[1]) if typed[0] == TAG else None
    return (*typed, None) if found is None else Items(found[0], [typed[1][found[1] :]])
