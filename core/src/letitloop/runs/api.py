"""What a user writes: ``durable``, ``step``, ``async_step``, ``scope``, ``current_run``."""

from __future__ import annotations

import time
from functools import wraps
from weakref import ref

from letitloop.errors import AsyncMisuse, InvalidArgument
from letitloop.runs.drive_sync import call_step
from letitloop.runs.history import Runs
from letitloop.runs.identity import ASYNC, PLAIN, SPECIAL, call_kind, step_kind, unwrapped
from letitloop.runs.journal import Value
from letitloop.runs.opening import Spec, open_run, prepare
from letitloop.runs.run import Call
from letitloop.runs.scope import current, find_scope, restore, running_loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Coroutine
    from contextvars import Token
    from types import CodeType, TracebackType
    from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

    from letitloop.codecs import Codecs
    from letitloop.runs.retry import Retry
    from letitloop.runs.run import Run
    from letitloop.runs.scope import Scope
    from letitloop.store.protocol import Store

    P = ParamSpec("P")
    Q = ParamSpec("Q")
    R = TypeVar("R")
    R_co = TypeVar("R_co", covariant=True)
    T = TypeVar("T")

    class DurableFunction(Protocol[P, R_co]):
        """A durable function: called as the function it was, with ``runs`` to look after what it has run."""

        @property
        def runs(self) -> Runs: ...

        @property
        def __wrapped__(self) -> Callable[P, R_co]: ...

        @property
        def __name__(self) -> str: ...

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

        @overload
        def __get__(self, instance: None, owner: type, /) -> DurableFunction[P, R_co]: ...

        @overload
        def __get__(
            self: DurableFunction[Concatenate[Any, Q], R_co], instance: object, owner: type | None = None, /
        ) -> Callable[Q, R_co]: ...

    class AsyncStepDecorator(Protocol):
        """What the decorator form of :func:`async_step` returns."""

        @overload
        def __call__(self, fn: Callable[P, Coroutine[Any, Any, T]], /) -> Callable[P, Coroutine[Any, Any, T]]: ...

        @overload
        def __call__(self, fn: Callable[P, T], /) -> Callable[P, Coroutine[Any, Any, T]]: ...
else:

    def overload(fn):  # noqa: ANN001, ANN202 - never seen by a type checker
        """Stand in for ``typing.overload``, whose import costs 10 ms."""
        return fn


__all__ = ["async_step", "current_run", "durable", "durable_async", "scope", "step"]


# --- durable -----------------------------------------------------------------------------------------------------------------


@overload
def durable(fn: Callable[P, R], /) -> DurableFunction[P, R]: ...


@overload
def durable(
    *,
    goal_id: str | Callable[..., str] | None = None,
    store: Store | str | os.PathLike[str] | None = None,
    on_change: Literal["raise", "rerun", "reuse"] = "raise",
    on_complete: Literal["return", "restart", "raise"] | None = None,
    on_locked: Literal["raise", "wait"] = "raise",
    sync: Literal["power", "process"] = "power",
    codecs: Codecs | None = None,
    seal_key: bytes | str | None = None,
) -> Callable[[Callable[P, R]], DurableFunction[P, R]]: ...


def durable(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    goal_id: str | Callable[..., str] | None = None,
    store: Store | str | os.PathLike[str] | None = None,
    on_change: str = "raise",
    on_complete: str | None = None,
    on_locked: str = "raise",
    sync: str = "power",
    codecs: Codecs | None = None,
    seal_key: bytes | str | None = None,
) -> Any:
    """Make a function durable: called again after a crash, it goes on from the step where it died.

    Every :func:`step` inside it is recorded when it ends. A later call with the same arguments runs the function from its first
    line, and recorded steps return what they returned, so only unfinished work is done. Works for sync and async functions, bare
    or with options.

    Args:
        fn: the function, when used bare.
        goal_id: the run's goal: a string, or a function of the arguments that returns one; ``module:qualname`` by default.
            A *named* goal is done once for given arguments.
        store: a store or a directory; ``LETITLOOP_STORE`` or ``./.letitloop`` by default.
        on_change: what a step with other arguments than the recorded ones does: ``"raise"`` :class:`StepChanged`, ``"rerun"``
            it and what follows in its scope, or ``"reuse"`` the recorded result.
        on_complete: what a finished run does when called again: ``"return"`` its result, ``"restart"``, or ``"raise"``
            :class:`RunFinished`. By default a named goal returns, and says so on stderr; an unnamed function starts anew.
        on_locked: what is done while another process drives the run: ``"raise"`` :class:`LogLocked`, or ``"wait"``.
        sync: what a recorded step survives: ``"power"`` (a power cut) or ``"process"`` (SIGKILL and OOM; some 30 times faster).
        codecs: how values become bytes; the registered defaults if left out.
        seal_key: a secret of at least 16 bytes that seals the log; ``LETITLOOP_SEAL_KEY`` by default.

    Returns:
        A function of the same signature. Its ``runs`` lists, shows and forgets the runs of this function.

    Raises:
        InvalidArgument: an option has a value that means nothing.
        GeneratorFunction: ``fn`` is a generator function.

    Example:
        >>> from letitloop import durable, step
        >>> @durable(goal_id="customer_sync", store="memory:durable-example")
        ... def customer_sync(user_id: int) -> str:
        ...     user = step("fetch", dict, id=user_id, name="Ada")
        ...     return step("greet", "Hello {name}".format_map, user)
        >>> customer_sync(1)
        'Hello Ada'
    """

    def decorate(function: Callable[..., Any]) -> Any:
        if not callable(function):
            raise InvalidArgument(
                f"@durable was given {type(function).__name__}, which is no function. Options are keywords: @durable(goal_id=…)."
            )
        spec = Spec(
            function,
            goal_id=goal_id,
            store=store,
            on_change=on_change,
            on_complete=on_complete,
            on_locked=on_locked,
            sync=sync,
            codecs=codecs,
            seal_key=seal_key,
        )
        wrapped = _drive_async(spec) if call_kind(function) == ASYNC else _drive_sync(spec)
        wrapped.runs = Runs(spec)  # type: ignore[attr-defined]  # DurableFunction declares it
        return wrapped

    return decorate if fn is None else decorate(fn)


durable_async = durable
"""The same decorator, for readers who want to see the word."""


def _drive_sync(spec: Spec) -> Callable[..., Any]:
    fn = spec.fn

    @wraps(fn)
    def run_durably(*args: Any, **kwargs: Any) -> Any:
        run = open_run(prepare(spec, args, kwargs))
        if isinstance(run, Value):
            return run.value
        run.outer_loop = running_loop()
        started = time.time()
        before = current.get()
        try:
            current.set(run.root)  # inside: an interrupt right after it must find the finally below
            try:
                value = fn(*args, **kwargs)
            except BaseException as exc:
                run.fail(exc)
                raise
            run.complete(value, started)
        finally:
            try:
                current.set(before)
            finally:
                run.close()
        return value

    return run_durably


def _drive_async(spec: Spec) -> Callable[..., Any]:
    fn = spec.fn

    @wraps(fn)
    async def run_durably(*args: Any, **kwargs: Any) -> Any:
        from letitloop.runs.drive_async import in_thread, open_in_thread  # asyncio: 47 ms that sync programs do not pay

        opening = prepare(spec, args, kwargs)
        run = await open_in_thread(opening)
        if isinstance(run, Value):
            return run.value
        started = time.time()
        abandoned = False
        token: Token[Scope | None] | None = None
        try:
            token = current.set(run.root)
            try:
                value = await fn(*args, **kwargs)
            except BaseException as exc:
                abandoned = isinstance(exc, GeneratorExit)  # thrown away with its loop: nothing can be awaited any more
                run.fail(exc)
                raise
            run.complete(value, started)
        finally:
            try:
                if token is not None:
                    restore(current, token)
            finally:
                run.active = False
                if abandoned or running_loop() is None:
                    run.close()
                else:
                    await in_thread(run.close)
        return value

    return run_durably


# --- step --------------------------------------------------------------------------------------------------------------------


@overload
def step(
    name: str, /, *, retry: Retry | None = None, key: str | Callable[..., str] | None = None, timeout: float | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


@overload
def step(name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...


def step(name: str, fn: Callable[..., Any] | None = None, /, *args: Any, **kwargs: Any) -> Any:
    """Do a step once: call ``fn(*args, **kwargs)`` and record its result, or return the recorded one.

    The call form ``step(name, fn, …)`` does it at once; everything after ``fn`` belongs to ``fn``. The decorator form
    ``step(name, retry=…, key=…, timeout=…)(fn)`` returns a function of the same signature. An async ``fn`` gives a coroutine to
    await; its place is reserved when ``step`` is called, so ``asyncio.gather`` over steps runs them concurrently.

    A step is its scope, its name, and how often the name was used there; its arguments' fingerprint is recorded, and a recorded
    result is never handed to a call with other arguments. A failure is recorded too.

    Args:
        name: what the step is called in this scope, 1 to 512 characters.
        fn: the function.
        args: its positional arguments.
        kwargs: its keyword arguments; in the decorator form ``retry`` (a :class:`Retry`), ``key`` (a string, or a function of
            the arguments that returns one, taken instead of the arguments' fingerprint) and ``timeout`` (seconds, async only).

    Returns:
        What ``fn`` returns. When ``step`` returns, the value is on disk at the run's level.

    Raises:
        StepOutsideRun: there is no run here; ``fn`` was not called.
        StepChanged: the arguments differ from the recorded ones; ``fn`` was not called.
        UnencodableError: the result cannot be recorded; ``fn`` was called.
        AsyncMisuse: an async function in sync code, a coroutine instead of a function, or an awaitable result.
        GeneratorFunction: ``fn`` is a generator function; it was not called.
        LogPoisoned: the disk refused the record, now or earlier in this process.

    Example:
        >>> from letitloop import durable, step
        >>> @durable(store="memory:")
        ... def report(numbers: list[int]) -> int:
        ...     total = step("sum", sum, numbers)
        ...     double = step("double")(lambda n: 2 * n)
        ...     return double(total)
        >>> report([1, 2, 3])
        12
    """
    if fn is None:
        return _decorator(name, None, **kwargs)
    scope = current.get()
    if scope is None or not scope.run.active:
        scope = find_scope("step", name)
    code: CodeType | None = getattr(fn, "__code__", None)
    if code is not None and not code.co_flags & SPECIAL:  # a plain function, at once: what follows is for other callables
        return call_step(Call(scope, scope.step(name), name, fn, args, kwargs, scope.run.codecs.fingerprint(args, kwargs)))
    kind = step_kind(fn, name)
    call = Call(scope, scope.step(name), name, fn, args, kwargs, _fingerprint(scope, fn, args, kwargs))
    return call_step(call) if kind == PLAIN else _awaitable(call)


@overload
def async_step(
    name: str, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
) -> Coroutine[Any, Any, T]: ...


@overload
def async_step(name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...


@overload
def async_step(
    name: str, /, *, retry: Retry | None = None, key: str | Callable[..., str] | None = None, timeout: float | None = None
) -> AsyncStepDecorator: ...


def async_step(name: str, fn: Callable[..., Any] | None = None, /, *args: Any, **kwargs: Any) -> Any:
    """Do a step once and return a coroutine of its result, for async and plain functions alike.

    The step's place is reserved now, not when the coroutine is awaited. A plain function runs in a worker thread, so the event
    loop stays free. The decorator form ``async_step(name, retry=…, key=…, timeout=…)(fn)`` returns a function that returns such a
    coroutine; ``timeout`` needs an async ``fn``.

    Args:
        name: what the step is called in this scope.
        fn: the function, async or plain.
        args: its positional arguments.
        kwargs: its keyword arguments; in the decorator form the options of :func:`step`.

    Returns:
        A coroutine; errors are those of :func:`step`.

    Example:
        >>> import asyncio
        >>> from letitloop import async_step, durable
        >>> async def double(n: int) -> int:
        ...     return 2 * n
        >>> @durable(store="memory:")
        ... async def doubles() -> list[int]:
        ...     return await asyncio.gather(*(async_step("double", double, n) for n in range(3)))
        >>> asyncio.run(doubles())
        [0, 2, 4]
    """
    if fn is None:
        return _decorator(name, _awaitable, **kwargs)
    scope = find_scope("step", name)
    step_kind(fn, name)
    return _awaitable(Call(scope, scope.step(name), name, fn, args, kwargs, _fingerprint(scope, fn, args, kwargs)))


def _fingerprint(scope: Scope, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    if not hasattr(fn, "__code__"):
        _, args, kwargs = unwrapped(fn, args, kwargs)
    return scope.run.codecs.fingerprint(args, kwargs)


_await_step: Callable[[Call], Coroutine[Any, Any, Any]] | None = None  # of drive_async, which the first async step imports


def _awaitable(call: Call) -> Coroutine[Any, Any, Any]:
    loop = running_loop()
    if loop is None or loop is call.scope.run.outer_loop:
        raise AsyncMisuse(
            f"step {call.name!r}: {getattr(call.fn, '__qualname__', call.fn)!s} would give a coroutine in sync code, where nothing "
            "can await it. It was not called. Make the durable function async and await the step there, or use step() with a plain "
            "function."
        )
    global _await_step
    await_step = _await_step
    if await_step is None:
        from letitloop.runs import drive_async

        await_step = _await_step = drive_async.await_step
    call.activate()
    coroutine = await_step(call)
    # one that is thrown away before it is started would count as in flight for ever; once started it says so itself
    call.coroutine = ref(coroutine, lambda _: call.deactivate())
    return coroutine


def _decorator(
    name: str,
    drive: Callable[[Call], Any] | None,
    *,
    retry: Retry | None = None,
    key: str | Callable[..., str] | None = None,
    timeout: float | None = None,
    **unknown: object,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    if unknown:
        raise InvalidArgument(
            f"step({name!r}, {', '.join(f'{option}=…' for option in unknown)}): the decorator form takes retry, key and timeout; "
            "arguments of the function follow it: step(name, fn, …). Nothing was run."
        )

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        is_async = step_kind(fn, name) == ASYNC
        carry_out = drive or (_awaitable if is_async else call_step)
        if timeout is not None and not is_async:
            raise InvalidArgument(
                f"step({name!r}, timeout={timeout}): {getattr(fn, '__qualname__', fn)!s} is a plain function, which nothing could "
                "stop. Make it async, or give the client that it calls a timeout."
            )

        def reserve(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
            scope = find_scope("step", name)
            codecs = scope.run.codecs
            if key is None:
                fingerprint = _fingerprint(scope, fn, args, kwargs)
            else:
                fingerprint = codecs.fingerprint((key(*args, **kwargs) if callable(key) else key,), {})[:16]
            call = Call(scope, scope.step(name), name, fn, args, kwargs, fingerprint)
            call.retry = retry
            call.timeout = timeout
            return call

        @wraps(fn)
        def stepped(*args: Any, **kwargs: Any) -> Any:
            return carry_out(reserve(args, kwargs))

        return stepped

    return decorate


# --- scope, current_run ------------------------------------------------------------------------------------------------------


class _ScopeContext:
    """What :func:`scope` returns: a context manager for ``with`` and ``async with``."""

    __slots__ = ("_scope", "_token")

    def __init__(self, inner: Scope) -> None:
        self._scope = inner
        self._token: Token[Scope | None] | None = None

    def __enter__(self) -> None:
        self._token = current.set(self._scope)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        if self._token is not None:
            restore(current, self._token)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.__exit__(kind, exc, traceback)


def scope(name: str) -> _ScopeContext:
    """Nest the key space: steps inside it are told apart from steps of the same name outside.

    Async tasks and threads that call the same step names at the same time should each have a scope. Its place is reserved when
    ``scope`` is called; the second ``scope("x")`` in the same place is another one (``x#2``).

    Args:
        name: what the scope is called, 1 to 512 characters.

    Returns:
        A context manager, for ``with`` and ``async with``.

    Raises:
        StepOutsideRun: there is no run here.

    Example:
        >>> from letitloop import durable, scope, step
        >>> @durable(store="memory:")
        ... def branches() -> list[int]:
        ...     results = []
        ...     for branch in ("left", "right"):
        ...         with scope(branch):
        ...             results.append(step("measure", len, branch))
        ...     return results
        >>> branches()
        [4, 5]
    """
    return _ScopeContext(find_scope("scope", name).inner(name))


def current_run() -> Run:
    """Return the run that is being driven here.

    Its ``id``, ``goal_id``, ``epoch`` (1 in the first process, 2 after the first crash, …) and ``in_flight`` (the steps that were
    running when the previous process died) are for messages and decisions of the program.

    Raises:
        StepOutsideRun: there is no run here.

    Example:
        >>> from letitloop import current_run, durable
        >>> @durable(goal_id="epochs", store="memory:")
        ... def which() -> int:
        ...     return current_run().epoch
        >>> which()
        1
    """
    return find_scope("current_run()").run
