"""Who drives an agent: one at a time. Parallel calls of one answer wait for each other; everybody else is refused."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from letitloop.errors import InvalidArgument
from letitloop_smolagents._answers import calls_around

if TYPE_CHECKING:
    from collections.abc import Generator

    from letitloop_smolagents._answers import Calls

__all__ = ["Claim"]

_changed = threading.Condition()
_waiting: list[tuple[Calls, Claim]] = []


class Claim:
    """The right to drive one agent."""

    def __init__(self) -> None:
        self._holder: Calls | None = None

    @contextmanager
    def held(self, who: str, session_id: str) -> Generator[None]:
        """Be the only one who drives the agent.

        Args:
            who: the agent, as an error calls it.
            session_id: the session that it is bound to.

        Raises:
            InvalidArgument: another one does, who is no other call of the same answer, or who waits for this one.
        """
        mine = calls_around()
        with _changed:
            while self._holder is not None:
                if not _beside(self._holder, mine) or self._waits_for(mine):
                    raise InvalidArgument(
                        f"{who} is being run already, in session {session_id!r}: a run inside its own run, or on another thread, "
                        "would mix up its memory. Nothing was run. Let it end, or use another agent."
                    )
                _waiting.append((mine, self))
                try:
                    _changed.wait()
                finally:
                    _waiting.remove((mine, self))
            self._holder = mine
        try:
            yield
        finally:
            with _changed:
                self._holder = None
                _changed.notify_all()

    def _waits_for(self, mine: Calls) -> bool:
        """Tell whether the holder lets go only after the innermost of these calls has ended."""
        pending = [self]
        for claim in pending:
            holder = claim._holder
            if holder is None:
                continue
            if mine[: len(holder)] == holder:
                return True
            pending += [other for calls, other in _waiting if calls[: len(holder)] == holder and other not in pending]
        return False


def _beside(holder: Calls, mine: Calls) -> bool:
    """Tell whether two places lie in different calls of one answer."""
    for (answer, position), (other, place) in zip(holder, mine, strict=False):
        if answer is not other or position != place:
            return answer is other
    return False
