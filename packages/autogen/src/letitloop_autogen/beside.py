"""What goes on side by side comes in another order in each life: what tells it apart then, and what it is no sign of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from letitloop_autogen.streams import asker

if TYPE_CHECKING:
    import asyncio

    from letitloop.runs.journal import Journal
    from letitloop.runs.run import Call

__all__ = ["Calls", "Runs", "number_of"]

_on_record: WeakKeyDictionary[Journal, frozenset[bytes]] = WeakKeyDictionary()
"""The keys of the steps that were on record when a log was opened."""


def number_of(call: Call) -> str:
    """Return a number for a call that is not on record, which no other of its name has in any life; it goes into its record.

    It is its ordinal, ``3``; or ``2-3`` in the second life of a program, if the third on record came in that place before.
    """
    journal = call.run.journal
    if journal not in _on_record:
        _on_record[journal] = frozenset(entry.key for entry in journal.entries())
    ordinal = call.key[len(call.counter.base) + 1 :].decode() or "1"
    return f"{call.run.epoch}-{ordinal}" if call.key in _on_record[journal] else ordinal


class Runs:
    """The outermost runs that are under way, and the tasks of those that have been beside others."""

    def __init__(self) -> None:
        self._open: list[asyncio.Task[Any] | None] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def begin(self) -> tuple[asyncio.Task[Any] | None, bool]:
        """Begin a run; return its task, and whether others go on beside it: they may begin in another order next time."""
        mine = asker()
        for task in [task for task in list(self._tasks) if task.done()]:
            self._tasks.pop(task, None)
        beside = bool(self._open) or any(task is not mine for task in list(self._tasks))
        if beside:  # until its task has ended: between two runs it does something else
            self._tasks.update(dict.fromkeys(task for task in (mine, *self._open) if task is not None))
        self._open.append(mine)
        return mine, beside

    def end(self, task: asyncio.Task[Any] | None) -> None:
        """End a run of that task."""
        self._open.remove(task)


class Calls:
    """The calls of one run that are under way, by the scopes they lie in."""

    def __init__(self) -> None:
        self._under_way: dict[bytes, int] = {}
        self._mixed: set[bytes] = set()

    def begin(self, prefix: bytes) -> None:
        """Begin a call in a scope."""
        self._under_way[prefix] = self._under_way.get(prefix, 0) + 1

    def end(self, prefix: bytes) -> None:
        """End one."""
        self._under_way[prefix] -= 1
        if not self._under_way[prefix]:
            del self._under_way[prefix]

    def are_beside(self, prefix: bytes) -> bool:
        """Tell whether a call that is numbered by its arrival comes, or one has come, beside another in its scope or inside that.

        Branches that lie in scopes of their own for a while come back to the scope around in any order.
        """
        if any(one.startswith(prefix) for one in self._under_way):
            self._mixed.add(prefix)
        return prefix in self._mixed
