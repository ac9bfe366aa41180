"""In which order the methods of a flow finish: those on record in the recorded order, and then the others.

CrewAI decides what comes next when a method has finished: which of several ``or_`` takes, what an ``and_`` waits for, who wins a
race, what the flow returns. So the way a flow takes depends on the order in which its methods finish, and on nothing else once
everything that one of them has set off has begun before the next one finishes.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from letitloop.runs.records import FAILED, OK, unpack_head

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from letitloop.runs.scope import Scope
    from letitloop.wal.format import Entry
    from letitloop_crewai.growth import Growing

__all__ = ["Turns", "recorded_bodies", "recorded_order"]

_QUIET = 8
"""After how many rounds of the event loop without a method's begin or end CrewAI has done what it does between two methods.

It awaits tasks there, one layer of them at a time, and each layer takes two or three rounds.
"""

_LAST = 1 << 62


def recorded_order(scope: Scope, *kinds: str) -> dict[bytes, int]:
    """Return the keys of the calls on record in a scope, in their order, each with its place in the log.

    Args:
        scope: where they lie; what lies in scopes inside it is left out.
        kinds: how their names begin.
    """
    found: dict[bytes, int] = {}
    for entry in _recorded(scope, kinds):
        found.pop(entry.key, None)
        found[entry.key] = entry.seq
    return found


def recorded_bodies(scope: Scope, *kinds: str) -> list[Any]:
    """Return what is on record of those calls that did not fail: as the log had it at opening, and since."""
    run, here = scope.run, _here(scope, kinds)
    payloads = [run.journal.payload(entry) for entry in _recorded(scope, kinds) if entry.kind == OK]
    bodies = [payload[unpack_head(payload).body_at :] for payload in payloads]
    bodies += [body for key, (_, body) in list(run._live.items()) if here(key)]
    return [run.codecs.decode(body) for body in bodies]


def _recorded(scope: Scope, kinds: tuple[str, ...]) -> Iterator[Entry]:
    here = _here(scope, kinds)
    return (entry for entry in scope.run.journal.entries() if entry.kind in (OK, FAILED) and here(entry.key))


def _here(scope: Scope, kinds: tuple[str, ...]) -> Callable[[bytes], bool]:
    starts = tuple(scope.prefix + kind.encode() for kind in kinds)
    size = len(scope.prefix)
    return lambda key: key.startswith(starts) and not any(mark in key[size:] for mark in (b"/", b">"))


class Turns:
    """Lets the methods of one kickoff finish one after another, each when CrewAI has done what the one before it sets off.

    A method that has to be carried out begins when those on record have finished: none of them then sets the state under its hands.
    It all happens on the kickoff's event loop, which needs no locks.

    Args:
        recorded: the keys of the methods on record, each with a number that grows in their order.
        states: the states that they leave.

    Attributes:
        states: those.
    """

    def __init__(self, recorded: Mapping[bytes, int], states: Growing) -> None:
        self.states = states
        self._recorded = recorded
        self._ahead = dict(sorted(recorded.items(), key=lambda item: item[1]))
        self._replaying = bool(recorded)
        self._answers: dict[bytes, tuple[asyncio.Future[None], Any]] = {}
        self._ends: dict[asyncio.Future[None], Any] = {}
        self._begins: list[asyncio.Future[None]] = []
        self._inside: set[Any] = set()
        self._turn: Any = None
        self._quiet = 0
        self._watching = False
        self._closed = False

    def ahead(self) -> list[bytes]:
        """Return the keys of the methods on record that have not finished yet in this kickoff."""
        return list(self._ahead)

    def order(self, key: bytes) -> int:
        """Return the place of a method on record among the others."""
        return self._recorded.get(key, _LAST)

    def forget(self, *keys: bytes) -> None:
        """Wait no more for methods that are on record: they are carried out anew, or are void."""
        for key in keys:
            self._ahead.pop(key, None)

    # --- what a method does --------------------------------------------------------------------------------------------------

    @contextmanager
    def inside(self) -> Generator[None]:
        """Be in a method, from before its begin until CrewAI has taken note of its end."""
        task = asyncio.current_task()
        self._inside.add(task)
        self.stir()
        try:
            yield
        finally:
            self._inside.discard(task)
            self.step_aside()

    def step_aside(self) -> None:
        """Let others finish: this method has, or somebody outside the program is asked about it."""
        if self._turn is asyncio.current_task():
            self._turn = None
        self.stir()

    async def begin(self) -> None:
        """Wait until the methods on record have finished."""
        if self._replaying:
            future = self._future()
            self._begins.append(future)
            try:
                await self._granted(future)
            finally:
                if future in self._begins:
                    self._begins.remove(future)

    async def answer(self, key: bytes) -> None:
        """Wait until a method on record may finish."""
        if key not in self._ahead:  # it was given up, or cancelled while it was recorded
            self._ahead = dict(sorted({**self._ahead, key: self.order(key)}.items(), key=lambda item: item[1]))
        future = self._future()
        self._answers[key] = future, asyncio.current_task()
        try:
            await self._granted(future)
        finally:
            self._answers.pop(key, None)
            self._ahead.pop(key, None)

    async def end(self) -> None:
        """Wait until a method that has been carried out and recorded may finish; they come here in the order of their records."""
        future = self._future()
        self._ends[future] = asyncio.current_task()
        try:
            await self._granted(future)
        finally:
            self._ends.pop(future, None)

    def _future(self) -> asyncio.Future[None]:
        if self._closed:
            raise asyncio.CancelledError("the kickoff has ended")
        return asyncio.get_running_loop().create_future()

    async def _granted(self, future: asyncio.Future[None]) -> None:
        self._watch()
        try:
            await future
        except asyncio.CancelledError:
            self.stir()
            raise

    # --- whose turn it is ----------------------------------------------------------------------------------------------------

    def stir(self) -> None:
        """Take note that CrewAI goes on: a method, or what it set off, has begun or ended."""
        self._quiet = 0
        self._watch()

    def _watch(self) -> None:
        if not self._watching and (self._answers or self._ends or self._begins):
            self._watching, self._quiet = True, 0
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        self._quiet += 1
        if self._quiet < _QUIET:
            asyncio.get_running_loop().call_soon(self._round)
            return
        self._watching = False
        if self._turn is None:
            self._grant()

    def _grant(self) -> None:
        first = next(iter(self._ahead), None)
        if first not in self._answers and len(self._answers) + len(self._ends) + len(self._begins) == len(self._inside):
            # all wait, and not for the next one: the program was edited, and what is not reached by now cannot be reached any more
            self._ahead = {key: order for key, order in self._ahead.items() if key in self._answers}
            first = next(iter(self._ahead), None)
        if first in self._answers:
            future, self._turn = self._answers.pop(first)
            self._ahead.pop(first)
            _release(future)
        elif self._ends:
            future = next(iter(self._ends))
            self._turn = self._ends.pop(future)
            _release(future)
        elif first is None:
            self._replaying = False
            begins, self._begins = self._begins, []
            for future in begins:
                _release(future)

    # --- the end of the kickoff ----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Let nothing of an ended kickoff go on, as it would beside the next one."""
        self._closed = True
        left = [task for task in self._inside if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
