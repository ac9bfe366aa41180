"""The calls that a program left before they had an answer: what it cancelled, and what it did not wait for.

They are not on record, and a run that came to its end without their answers does so again.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from letitloop.runs.scope import Scope

__all__ = ["Left"]

_PATIENCE = 10.0
"""Seconds, and twice as many as it took before, in which a call that the recorded run left has to be left again."""


class Left:
    """The calls that one run has left, now or before.

    Args:
        recorded: those that it left before it came to its end, with the seconds that each had taken.
        ending: is done when everything in the run has to end.
    """

    def __init__(self, recorded: Mapping[str, float], ending: asyncio.Future[None]) -> None:
        self._then = recorded
        self._ending = ending
        self._now: dict[str, float] = {}
        self._under_way: dict[object, tuple[Scope, str, Mapping[str, object], float]] = {}

    def begin(self, call: object, scope: Scope, name: str, asked: Mapping[str, object]) -> None:
        """Note that a call begins; it is known by what it asks."""
        self._under_way[call] = scope, name, asked, monotonic()

    def end(self, call: object, *, left: bool) -> None:
        """Note that a call has ended, with an answer or without one."""
        if left:
            self._now[self._mark(call)] = self._took(call)
        del self._under_way[call]

    def record(self) -> dict[str, float]:
        """Return what is recorded at the end of the run."""
        return {**self._now, **{self._mark(call): self._took(call) for call in self._under_way}}

    async def again(self, call: object) -> None:
        """Wait to be left, if the recorded run left this call; return if nobody does.

        Raises:
            asyncio.CancelledError: it is left again.
        """
        if not self._then or (took := self._then.get(self._mark(call))) is None:
            return
        await asyncio.wait({self._ending}, timeout=2 * took + _PATIENCE)
        if self._ending.done():
            raise asyncio.CancelledError("the run was cancelled")

    def _mark(self, call: object) -> str:
        scope, name, asked, _ = self._under_way[call]
        return f"{scope.prefix.decode()}{name} {scope.run.codecs.fingerprint((), dict(asked)).hex()}"

    def _took(self, call: object) -> float:
        return monotonic() - self._under_way[call][3]
