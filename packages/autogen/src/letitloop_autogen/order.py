"""The order in which agents that run side by side come to their ends: later prompts depend on it, so it is part of a run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Order"]


class Order:
    """Lets turns end one after another, those of an earlier life of the program in the order they had there.

    Args:
        recorded: how many ends are on record; they are numbered from 1.
    """

    def __init__(self, recorded: int) -> None:
        self._recorded = recorded
        self._given = recorded
        self._released = 0
        self._turns = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def begin(self) -> None:
        """A turn begins."""
        self._turns += 1

    async def end(self, record: Callable[[Callable[[], Awaitable[int]]], Awaitable[int]]) -> int:
        """Wait until a turn may end, and return its number.

        Args:
            record: given what makes a new number, returns the recorded number of this turn, or the new one.
        """

        async def new() -> int:
            await self._reach(self._recorded)
            self._given += 1
            return self._given

        number = await record(new)
        await self._reach(number - 1)
        return number

    def ended(self, number: int) -> None:
        """A turn has ended; 0: without a number, by an error."""
        self._turns -= 1
        self._released = max(self._released, number)
        self._wake()

    def give_up(self) -> None:
        """Let all go on: the run has to stop."""
        self._released = 1 << 60
        self._wake()

    async def _reach(self, number: int) -> None:
        if self._released >= number:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((number, waiter))
        self._wake()
        try:
            await waiter
        finally:
            self._waiting = [one for one in self._waiting if one[1] is not waiter]

    def _wake(self) -> None:
        ready = [one for one in self._waiting if one[0] <= self._released]
        if not ready and self._waiting and len(self._waiting) >= self._turns:
            ready = [min(self._waiting, key=lambda one: one[0])]  # whoever it waits for will not come: the program has changed
        for _, waiter in ready:
            if not waiter.done():
                waiter.set_result(None)
