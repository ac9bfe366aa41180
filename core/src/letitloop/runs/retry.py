"""When a failed step is tried again, and after how long. Pure."""

from __future__ import annotations

import os

from letitloop.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Retry"]


class Retry:
    """A step's retry policy: how often, how far apart, and after which exceptions.

    Attempt *n* waits ``backoff * factor ** (n - 1)`` seconds, at most ``max_backoff``, of which a random part up to ``jitter`` is
    taken off. Every failed attempt is recorded, and attempts that a killed process made count.

    Args:
        attempts: how often the function is called in all, at least 1.
        backoff: seconds before the second attempt.
        factor: what each further wait is multiplied by, at least 1.
        max_backoff: the longest wait in seconds.
        jitter: the part of a wait that may be taken off at random, 0 to 1.
        on: an exception class or a tuple of them, or a function of the exception: only these are tried again.

    Raises:
        InvalidArgument: a value is out of its range.

    Example:
        >>> policy = Retry(attempts=4, backoff=0.5, jitter=0)
        >>> [policy.delay(attempt) for attempt in (1, 2, 3)]
        [0.5, 1.0, 2.0]
    """

    __slots__ = ("attempts", "backoff", "factor", "jitter", "max_backoff", "on")

    def __init__(
        self,
        attempts: int = 3,
        *,
        backoff: float = 1.0,
        factor: float = 2.0,
        max_backoff: float = 60.0,
        jitter: float = 0.1,
        on: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool] = Exception,
    ) -> None:
        numbers: tuple[object, ...] = (attempts, backoff, factor, max_backoff, jitter)
        if (
            not all(isinstance(number, (int, float)) for number in numbers)
            or attempts < 1
            or backoff < 0
            or factor < 1
            or max_backoff < 0
            or not 0 <= jitter <= 1
        ):
            raise InvalidArgument(
                f"Retry(attempts={attempts}, backoff={backoff}, factor={factor}, max_backoff={max_backoff}, jitter={jitter}): "
                "attempts and factor are at least 1, seconds at least 0, jitter between 0 and 1. Nothing was run."
            )
        self.attempts = attempts
        self.backoff = backoff
        self.factor = factor
        self.max_backoff = max_backoff
        self.jitter = jitter
        self.on: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool] = on

    def __repr__(self) -> str:
        return f"Retry(attempts={self.attempts}, backoff={self.backoff})"

    def again(self, exc: Exception, attempt: int) -> bool:
        """Tell whether the step is tried again after its ``attempt``-th call raised ``exc``."""
        if attempt >= self.attempts:
            return False
        kinds = self.on
        return isinstance(exc, kinds) if isinstance(kinds, (type, tuple)) else kinds(exc)

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after the ``attempt``-th call failed."""
        try:
            wait = self.backoff * self.factor ** (attempt - 1)
        except OverflowError:
            wait = self.max_backoff
        return min(wait, self.max_backoff) * (1 - self.jitter * _fraction())


def _fraction() -> float:
    """Return a random number from 0 to 1, without ``random``: 5 ms of import, and a seed that belongs to the program."""
    return int.from_bytes(os.urandom(4), "little") / 0xFFFFFFFF
