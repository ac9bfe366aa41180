"""Where the program is: the current run and scope, carried by a context variable.

Async tasks inherit it; threads do not, so :func:`carry` wraps what a thread or an executor is to run. An adapter may register a
resolver, which supplies the scope where its framework, not the context variable, knows it.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar, copy_context
from itertools import count
from threading import Lock

from letitloop.errors import Halt, InvalidArgument, RunHalted, StepOutsideRun
from letitloop.runs.identity import escape, step_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextvars import Token
    from typing import ParamSpec, TypeVar

    from letitloop.runs.run import Call, Run

    P = ParamSpec("P")
    R = TypeVar("R")
    T = TypeVar("T")

__all__ = ["Counter", "Scope", "add_resolver", "carry", "current", "current_scope", "find_scope", "restore", "running_loop"]

_LONGEST = 60_000  # a frame's key has at most 65,535 bytes, and an ordinal follows

current: ContextVar[Scope | None] = ContextVar("letitloop_scope", default=None)
_making = Lock()
_resolvers: list[Callable[[], Scope | None]] = []


class Counter:
    """How often one name was reserved in one scope.

    Attributes:
        base: the scope's path and the name.
        numbers: yields the next ordinal, from 1.
        active: the calls of that name that are reserved and have not ended.
        crowded: there are several of them, and each knows it.
        first: the ordinal of the first call of each fingerprint.
        alike: counts the further calls of each fingerprint, for the scopes of steps inside them: after a crash calls may come in
            another order, and what was recorded inside one must not answer another.
    """

    __slots__ = ("active", "alike", "base", "crowded", "first", "numbers")

    def __init__(self, prefix: bytes, name: str, what: str) -> None:
        self.base = prefix + escape(name, what).encode()
        if len(self.base) > _LONGEST:
            raise InvalidArgument(
                f"the key of {what} {name!r} would have {len(self.base):,} bytes: scopes are nested too deep (at most {_LONGEST:,} "
                "bytes). It was not executed."
            )
        self.numbers: Iterator[int] = count(1)
        self.active: dict[Call, None] = {}
        self.crowded = False
        self.first: dict[bytes, int] = {}
        self.alike: dict[bytes, Iterator[int]] = {}


class Scope:
    """A part of a run's key space.

    Attributes:
        run: the run.
        prefix: the scope's path with its separator at the end; empty for the root.
        nested: whether it lies inside a step, so that the step's next attempt meets the same keys again.
    """

    __slots__ = ("_scopes", "_steps", "nested", "prefix", "run")

    reserved: Callable[[Call], None] | None = None
    """Is told of each call that is reserved in it: of an adapter that knows when their order may differ from life to life."""

    def __init__(self, run: Run, prefix: bytes = b"", *, nested: bool = False) -> None:
        self.run = run
        self.prefix = prefix
        self.nested = nested
        self._steps: dict[str, Counter] | None = None  # made when needed: most steps call no step
        self._scopes: dict[str, Counter] | None = None

    def step(self, name: str) -> Counter:
        """Return the counter of a step's name."""
        counters = self._steps
        if counters is None:
            counters = self._make()[0]
        if type(name) is not str and isinstance(name, str):
            name = str.__str__(name)  # a subclass may have an equality of its own
        try:
            return counters[name]
        except (KeyError, TypeError):  # TypeError: a name that cannot be hashed; escape names it
            return counters.setdefault(name, Counter(self.prefix, name, "step"))

    def inner(self, name: str) -> Scope:
        """Reserve a scope inside this one."""
        counters = self._scopes
        if counters is None:
            counters = self._make()[1]
        counter = counters.setdefault(name, Counter(self.prefix, name, "scope"))
        return Scope(self.run, step_key(counter.base, next(counter.numbers)) + b"/", nested=self.nested)

    def _make(self) -> tuple[dict[str, Counter], dict[str, Counter]]:
        with _making:  # of two threads that meet here, one must not throw away what the other has counted
            if self._steps is None or self._scopes is None:
                self._steps, self._scopes = {}, {}
            return self._steps, self._scopes


def restore(variable: ContextVar[T], token: Token[T]) -> None:
    """Give a context variable its former value; an abandoned coroutine is closed in another context, which has none to restore."""
    try:
        variable.reset(token)
    except ValueError:
        pass


def current_scope() -> Scope | None:
    """Return the scope the program is in, or None outside any run."""
    scope = current.get()
    if scope is None:
        for resolver in _resolvers:
            scope = resolver()
            if scope is not None:
                return scope
    return scope


def find_scope(what: str, name: object = None) -> Scope:
    """Return the scope the program is in.

    Args:
        what: what needs it, for the message: ``step``, ``scope`` or a function's name.
        name: its name, where it has one.

    Raises:
        StepOutsideRun: there is no run here, or it has ended.
    """
    scope = current.get() or current_scope()
    if scope is not None and scope.run.active:
        return scope
    what = f"{what} {name!r}" if name is not None else what
    if scope is None:
        raise StepOutsideRun(
            f"{what} was used outside any run, so nothing could be recorded; it was not executed. Call it from a function "
            "decorated with @durable. In a thread or an executor, wrap what it runs: executor.submit(letitloop.carry(fn), …). "
            "To run a step's function by itself, call fn.__wrapped__, or use letitloop.testing.plain()."
        )
    raise StepOutsideRun(
        f"{what} was used after run {scope.run.id} had ended in this process (a thread or task outlived it); it was not executed. "
        "Join threads and await tasks before the durable function returns."
    )


def add_resolver(resolver: Callable[[], Scope | None]) -> Callable[[], None]:
    """Let an adapter tell the scope where the context variable is empty; return a function that takes it back."""
    _resolvers.append(resolver)
    return lambda: _resolvers.remove(resolver)


def running_loop() -> object:
    """Return the event loop that runs on this thread, or None; asyncio is not imported to find out."""
    events = sys.modules.get("asyncio.events")
    return None if events is None else events._get_running_loop()


def carry(fn: Callable[P, R], /) -> Callable[P, R]:
    """Wrap a function so that it runs in the current run and scope on whatever thread calls it.

    Args:
        fn: the function that a thread or an executor is to run.

    Returns:
        A function of the same signature, which may be called any number of times, concurrently too. A :class:`Halt` leaves it as
        :class:`RunHalted`, an ``Exception`` that a pool's worker survives; the run's caller gets the Halt itself.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from letitloop import carry, durable, step
        >>> @durable(store="memory:")
        ... def squares() -> list[int]:
        ...     with ThreadPoolExecutor() as pool:
        ...         return list(pool.map(carry(lambda n: step("square", pow, n, 2)), range(4)))
        >>> squares()
        [0, 1, 4, 9]
    """
    context = copy_context()

    def carried(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return context.copy().run(fn, *args, **kwargs)
        except Halt as halt:
            scope = context.get(current)
            if scope is None:
                raise
            scope.run.halt(halt)
            raise RunHalted(f"run {scope.run.id} has to stop: {halt}") from halt

    return carried
