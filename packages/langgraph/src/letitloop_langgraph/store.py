"""``LetItLoopStore``: LangGraph's long-term memory in the write-ahead log."""

from __future__ import annotations

import asyncio
import copy
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from langgraph.store.base import Item, SearchItem
from langgraph.store.memory import InMemoryStore

from letitloop.store.directory import resolve_store
from letitloop_langgraph.keyvalue import KeyValueLog
from letitloop_langgraph.records import pack, unpack
from letitloop_langgraph.serde import CodecSerializer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from typing import Literal

    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.store.base import Op, PutOp, Result

    from letitloop.store.protocol import Store

__all__ = ["LetItLoopStore"]


class _Namespaces(dict[tuple[str, ...], dict[str, Item]]):
    """Items by namespace; asking for one that is not there does not make it."""

    def __missing__(self, namespace: tuple[str, ...]) -> dict[str, Item]:
        return {}


class LetItLoopStore(InMemoryStore):
    """A store of items by namespace and key, in one file, for ``compile(store=…)``.

    It answers as ``InMemoryStore`` does: exact keys, prefixes of namespaces, and filters; there is no search by meaning. A change
    is on disk when the call returns. Values come back with their exact types, and as objects of their own. Processes may share it.

    Args:
        store: a store or a directory; ``LETITLOOP_STORE`` or ``./.letitloop`` by default.
        name: what it is called in the store, if there are several.
        serde: how values become bytes; the core's codecs by default.
        sync: what a record survives: ``"power"`` (a power cut) or ``"process"`` (SIGKILL and OOM).
        patience: seconds to wait for another process that uses it right now.

    Example:
        >>> from letitloop import MemoryStore
        >>> memory = LetItLoopStore(store=MemoryStore())
        >>> memory.put(("users", "ada"), "likes", {"colour": "blue"})
        >>> memory.get(("users", "ada"), "likes").value
        {'colour': 'blue'}
    """

    def __init__(
        self,
        *,
        store: Store | str | os.PathLike[str] | None = None,
        name: str = "memory",
        serde: SerializerProtocol | None = None,
        sync: Literal["power", "process"] = "power",
        patience: float = 60.0,
    ) -> None:
        super().__init__()
        self._data = _Namespaces()
        self._serde = serde or CodecSerializer()
        self._where = store
        self._options = {"sync": sync, "patience": patience}
        self._name = name
        self._made: KeyValueLog | None = None

    @property
    def _kept(self) -> KeyValueLog:
        if self._made is None:
            self._made = KeyValueLog(resolve_store(self._where), f"store:{self._name}", changed=self._load, **self._options)  # type: ignore[arg-type]  # each option by its name
        return self._made

    def close(self) -> None:
        """Let other processes have it at once; the next use opens it again. Calling it is never needed."""
        self._kept.close()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations, reads as of before the writes among them; when this returns, the writes are on disk.

        Raises:
            UnencodableError: a value cannot be recorded exactly; nothing was changed.
            LogLocked: another process held the store for longer than the patience.
            LogPoisoned: a write failed, now or earlier in this process.
        """
        kept = self._kept
        with kept.used() as log, kept.guard:
            results, puts, searches = self._prepare_ops(ops)
            if searches:
                self._batch_search(searches, {}, results)
            answers = [_own(result) for result in results]
            if puts:
                now = datetime.now(timezone.utc)
                changes = [
                    (pack([list(namespace), key]), self._record(namespace, key, op, now)) for (namespace, key), op in puts.items()
                ]
                kept.write(log, changes)
                for key, value in changes:
                    self._take(key, value)
        return answers

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do as :meth:`batch`, in a thread."""
        return await asyncio.to_thread(self.batch, list(ops))

    def _record(self, namespace: tuple[str, ...], key: str, op: PutOp, now: datetime) -> bytes | None:
        if op.value is None:
            return None
        before = self._data.get(namespace, {}).get(key)
        created = now if before is None else before.created_at
        return pack([created, now, *self._serde.dumps_typed(dict(op.value))])

    def _load(self, contents: dict[bytes, bytes]) -> None:
        self._data.clear()
        for key, value in contents.items():
            self._take(key, value)

    def _take(self, where: bytes, value: bytes | None) -> None:
        parts, key = unpack(where)
        namespace = tuple(parts)
        if value is None:
            self._data[namespace].pop(key, None)
            if not self._data[namespace]:
                self._data.pop(namespace, None)
            return
        created, updated, tag, body = unpack(value)
        decoded: Any = self._serde.loads_typed((tag, body))
        self._data.setdefault(namespace, {})[key] = Item(
            value=decoded, key=key, namespace=namespace, created_at=created, updated_at=updated
        )


def _own(result: Any) -> Any:
    """Return a result whose values are the caller's own: a change in them is no change in the store."""
    if isinstance(result, list):
        return [_own(one) for one in result]
    if isinstance(result, (Item, SearchItem)):
        made = copy.copy(result)
        made.value = copy.deepcopy(result.value)
        return made
    return result
