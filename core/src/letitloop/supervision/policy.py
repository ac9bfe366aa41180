"""Whether and when a dead process is started again. Pure: no process, no clock, no randomness of its own."""

from __future__ import annotations

from collections import deque

from letitloop.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from letitloop.supervision.deaths import Death

__all__ = ["DEFAULT_RESTART_ON", "Decision", "Policy", "Restarts", "parse_restart_on"]

DEFAULT_RESTART_ON = ("signal", "crash")
_KINDS = ("signal", "crash", "any")
_JITTER = 0.2


class Policy:
    """What the user asked for.

    Attributes:
        max_restarts: restarts within ``window``; 0: none.
        backoff: seconds before a first restart; doubled with each further one.
        max_backoff: seconds that no wait exceeds.
        window: seconds after which a restart no longer counts.
        healthy_after: seconds after which a life counts as healthy.
        max_rapid_failures: lives in a row that were neither healthy nor got further, upon which it stops; 0: no limit.
        restart_on: ``signal``, ``crash``, ``any``, or exit codes.
        jitter: the random part of a wait, from 0 to 1.

    Raises:
        InvalidArgument: a value means nothing.
    """

    __slots__ = ("backoff", "healthy_after", "jitter", "max_backoff", "max_rapid_failures", "max_restarts", "restart_on", "window")

    def __init__(
        self,
        *,
        max_restarts: int = 10,
        backoff: float = 1.0,
        max_backoff: float = 60.0,
        window: float = 600.0,
        healthy_after: float = 30.0,
        max_rapid_failures: int = 5,
        restart_on: str | Iterable[str] = DEFAULT_RESTART_ON,
        jitter: float = _JITTER,
    ) -> None:
        for name, count in (("max_restarts", max_restarts), ("max_rapid_failures", max_rapid_failures)):
            given: object = count
            if type(given) is not int or count < 0:
                raise InvalidArgument(f"{name}={count!r}: it is a whole number, 0 or more. Nothing was started.")
        for name, seconds in (("backoff", backoff), ("max_backoff", max_backoff), ("healthy_after", healthy_after)):
            check_seconds(name, seconds)
        check_seconds("window", window, least=1e-3)
        self.max_restarts = max_restarts
        self.backoff = backoff
        self.max_backoff = max_backoff
        self.window = window
        self.healthy_after = healthy_after
        self.max_rapid_failures = max_rapid_failures
        self.restart_on = parse_restart_on(restart_on)
        self.jitter = jitter

    def wants(self, death: Death) -> str:
        """Return why a death is not followed by a restart; empty if it is one of the wanted kind."""
        if death.stopped:
            return ""
        if str(death.code) in self.restart_on and not death.signal:
            return ""  # a code that the user named is worth another try, whatever it says
        if death.permanent:
            return death.permanent
        if "any" in self.restart_on:
            return ""
        if death.signal:
            return "" if "signal" in self.restart_on else "a signal is no reason to restart it (--restart-on)"
        if death.crashed:
            return "" if "crash" in self.restart_on else "an exception is no reason to restart it (--restart-on)"
        return f"exit code {death.code} is no reason to restart it (--restart-on)"

    def wait(self, failures: int, chance: float) -> float:
        """Return the seconds to wait before a restart.

        Args:
            failures: how many lives in a row have failed, from 1.
            chance: a random number from 0 to 1.

        Example:
            >>> policy = Policy(backoff=1.0, max_backoff=5.0, jitter=0.0)
            >>> [policy.wait(failures, 0.0) for failures in (1, 2, 3, 4, 2000)]
            [1.0, 2.0, 4.0, 5.0, 5.0]
        """
        full = self.backoff * 2.0 ** min(failures - 1, 60)
        return min(self.max_backoff, full) * (1.0 - self.jitter * chance)


def check_seconds(name: str, seconds: float, *, least: float = 0.0) -> None:
    """Refuse what is no number of seconds.

    Raises:
        InvalidArgument: it is no number, below ``least``, infinite, or NaN.
    """
    given: object = seconds
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not least <= seconds < 1e10:
        raise InvalidArgument(f"{name}={seconds!r}: it is a number of seconds, {least:g} or more. Nothing was started.")


def parse_restart_on(words: str | Iterable[str]) -> frozenset[str]:
    """Read what deaths are followed by a restart.

    Args:
        words: ``signal``, ``crash``, ``any``, or ``exit:3,75``; several may be separated by commas.

    Returns:
        The kinds, and the exit codes as strings.

    Raises:
        InvalidArgument: a word means nothing.

    Example:
        >>> sorted(parse_restart_on("signal,exit:3,75"))
        ['3', '75', 'signal']
    """
    parts = [part.strip() for word in ([words] if isinstance(words, str) else words) for part in str(word).split(",")]
    found: set[str] = set()
    codes = False
    for part in parts:
        kind, colon, code = part.partition(":")
        codes = (codes and part.isdigit()) or (kind == "exit" and bool(colon))
        number = code if colon and kind == "exit" else part if codes else ""
        if number and number.isascii() and number.isdigit() and 0 < int(number) < 256:
            found.add(str(int(number)))
        elif part in _KINDS:
            found.add(part)
        else:
            raise InvalidArgument(
                f"restart_on: {part!r} is none of signal, crash, any, and exit:CODES with codes from 1 to 255. Nothing was started."
            )
    return frozenset(found)


class Decision:
    """What follows a death.

    Attributes:
        restart: whether it is started again.
        wait: seconds before that.
        attempt: which restart of this supervision it is, from 1.
        ended_by: ``"death"`` (one that is not followed by a restart), ``"budget"`` or ``"breaker"``; empty for a restart.
        why: why it is not started again, in words.
    """

    __slots__ = ("attempt", "ended_by", "restart", "wait", "why")

    def __init__(self, *, attempt: int = 0, wait: float = 0.0, ended_by: str = "", why: str = "") -> None:
        self.restart = not ended_by
        self.attempt = attempt
        self.wait = wait
        self.ended_by = ended_by
        self.why = why


class Restarts:
    """The restarts of one supervision.

    Args:
        policy: what the user asked for.
        chance: returns a random number from 0 to 1.

    Attributes:
        count: restarts so far.
        causes: how often each cause has ended a life.

    Example:
        >>> from letitloop.supervision.deaths import Death
        >>> restarts = Restarts(Policy(max_restarts=2, backoff=1.0, jitter=0.0), lambda: 0.0)
        >>> killed = Death(137, signal=9)
        >>> [restarts.died(killed, now=now, lived=1.0, progress=False).wait for now in (1.0, 3.0)]
        [1.0, 2.0]
        >>> restarts.died(killed, now=8.0, lived=1.0, progress=False).ended_by
        'budget'
        >>> restarts.died(killed, now=700.0, lived=690.0, progress=False).restart
        True
    """

    __slots__ = ("_chance", "_failures", "_policy", "_rapid", "_recent", "causes", "count")

    def __init__(self, policy: Policy, chance: Callable[[], float]) -> None:
        self._policy = policy
        self._chance = chance
        self._recent: deque[float] = deque()
        self._failures = 0
        self._rapid = 0
        self.count = 0
        self.causes: dict[str, int] = {}

    def died(self, death: Death, *, now: float, lived: float, progress: bool) -> Decision:
        """Decide what follows a death.

        Args:
            death: how the process ended.
            now: the time, in seconds of a clock that does not jump.
            lived: how many seconds it lived.
            progress: whether it got further than the lives before it.
        """
        policy = self._policy
        self.causes[death.cause] = self.causes.get(death.cause, 0) + 1
        if len(self.causes) > 100:  # messages that differ each time
            self.causes.pop(min(self.causes, key=lambda cause: (self.causes[cause], cause == death.cause)))
        while self._recent and self._recent[0] <= now - policy.window:
            self._recent.popleft()
        healthy = progress or lived >= policy.healthy_after
        self._failures = 1 if healthy else self._failures + 1
        self._rapid = 0 if healthy else self._rapid + 1
        refused = policy.wants(death)
        if refused:
            return Decision(ended_by="death", why=refused)
        if policy.max_rapid_failures and self._rapid >= policy.max_rapid_failures:
            times = f"{self._rapid} deaths" if self._rapid != 1 else "1 death"
            why = f"{times} in a row within {policy.healthy_after:g} s of the start, and no log got further"
            return Decision(ended_by="breaker", why=why)
        if len(self._recent) >= policy.max_restarts:
            times = "no restarts are allowed" if not policy.max_restarts else f"{policy.max_restarts} within {policy.window:g} s"
            why = f"the budget of restarts is used up ({times})" if policy.max_restarts else times
            return Decision(ended_by="budget", why=why)
        self._recent.append(now)
        self.count += 1
        return Decision(attempt=self.count, wait=policy.wait(self._failures, self._chance()))
