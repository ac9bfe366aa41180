"""``LetItLoopCache``: results of nodes with a cache policy, kept between processes."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from langgraph.cache.base import BaseCache

from letitloop.store.directory import resolve_store
from letitloop_langgraph.keyvalue import KeyValueLog
from letitloop_langgraph.records import pack, unpack
from letitloop_langgraph.serde import CodecSerializer

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal

    from langgraph.cache.base import FullKey, Namespace
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from letitloop.store.protocol import Store

__all__ = ["LetItLoopCache"]

_SLACK = 1024  # values, before expired ones are looked for


class LetItLoopCache(BaseCache[Any]):
    """A cache for ``compile(cache=…)``: nodes with a ``CachePolicy`` are run once for an input, in all threads and processes.

    It is for pure nodes. It is no guard against repeats: what must happen once is an effect, and what a crash must not repeat is a
    step.

    Args:
        store: a store or a directory; ``LETITLOOP_STORE`` or ``./.letitloop`` by default.
        name: what it is called in the store, if there are several.
        serde: how values become bytes; the core's codecs by default.
        sync: what a record survives: ``"process"`` (SIGKILL and OOM, the default: a cache may be lost) or ``"power"``.
        patience: seconds to wait for another process that uses it right now.
        clock: returns seconds since 1970-01-01 UTC.

    Example:
        >>> from letitloop import MemoryStore
        >>> cache = LetItLoopCache(store=MemoryStore())
        >>> cache.set({(("node",), "key"): ("value", None)})
        >>> cache.get([(("node",), "key"), (("node",), "other")])
        {(('node',), 'key'): 'value'}
    """

    def __init__(
        self,
        *,
        store: Store | str | os.PathLike[str] | None = None,
        name: str = "cache",
        serde: SerializerProtocol | None = None,
        sync: Literal["power", "process"] = "process",
        patience: float = 60.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(serde=serde or CodecSerializer())
        self._where = store
        self._options = {"sync": sync, "patience": patience}
        self._name = name
        self._clock = clock
        self._held: dict[bytes, bytes] = {}
        self._look_at = _SLACK
        self._made: KeyValueLog | None = None

    @property
    def _kept(self) -> KeyValueLog:
        if self._made is None:
            self._made = KeyValueLog(resolve_store(self._where), f"cache:{self._name}", changed=self._load, **self._options)  # type: ignore[arg-type]  # each option by its name
        return self._made

    def close(self) -> None:
        """Let other processes have it at once; the next use opens it again. Calling it is never needed."""
        self._kept.close()

    def _load(self, contents: dict[bytes, bytes]) -> None:
        self._held = contents

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """Return the values of those keys that have one and have not expired."""
        kept, now = self._kept, self._clock()
        found: dict[FullKey, Any] = {}
        with kept.used(), kept.guard:
            held = {key: self._held.get(_packed(key)) for key in keys}
        for key, value in held.items():
            if value is not None:
                until, tag, body = unpack(value)
                if until is None or now < until:
                    found[tuple(key[0]), key[1]] = self.serde.loads_typed((tag, body))
        return found

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """Do as :meth:`get`, in a thread."""
        return await asyncio.to_thread(self.get, keys)

    def set(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        """Keep values.

        Args:
            pairs: for each key its value, and for how many seconds it counts, None for ever.
        """
        now = self._clock()
        changes: dict[bytes, bytes | None] = {}
        for key, (value, ttl) in pairs.items():
            changes[_packed(key)] = pack([None if ttl is None else now + ttl, *self.serde.dumps_typed(value)])
        self._change(changes)
        self._change(dict.fromkeys(self._expired(now)))

    def _expired(self, now: float) -> list[bytes]:
        """Return the keys of what has expired, each time that twice as much is held as was when they were looked for last."""
        with self._kept.guard:
            if len(self._held) < self._look_at:
                return []
            gone = [key for key, value in self._held.items() if (until := unpack(value)[0]) is not None and until <= now]
            self._look_at = 2 * (len(self._held) - len(gone)) + _SLACK
        return gone

    async def aset(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        """Do as :meth:`set`, in a thread."""
        await asyncio.to_thread(self.set, pairs)

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Forget the values of some namespaces, or of all."""
        kept = self._kept
        wanted = None if namespaces is None else {tuple(one) for one in namespaces}
        with kept.used(), kept.guard:
            gone = [key for key in self._held if wanted is None or tuple(unpack(key)[0]) in wanted]
        self._change(dict.fromkeys(gone))

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Do as :meth:`clear`, in a thread."""
        await asyncio.to_thread(self.clear, namespaces)

    def _change(self, changes: Mapping[bytes, bytes | None]) -> None:
        if not changes:
            return
        kept = self._kept
        with kept.used() as log:
            with kept.guard:
                for key, value in changes.items():
                    if value is None:
                        self._held.pop(key, None)
                    else:
                        self._held[key] = value
            kept.write(log, changes.items())


def _packed(key: FullKey) -> bytes:
    return pack([list(key[0]), key[1]])
