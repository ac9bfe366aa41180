"""``supervise``: a function runs in a process of its own, which is started again when it dies."""

from __future__ import annotations

import os
import sys
from functools import wraps

from letitloop.codecs import default_codecs
from letitloop.errors import AsyncMisuse, CodecError, InvalidArgument, ProcessDied
from letitloop.runs.exits import announce
from letitloop.runs.identity import ASYNC, call_kind, function_goal
from letitloop.supervision.deaths import Death, is_permanent, what_ended
from letitloop.supervision.policy import DEFAULT_RESTART_ON, Policy
from letitloop.supervision.reports import Teller
from letitloop.supervision.signals import CANCEL, Mailbox, heard_by_loop
from letitloop.supervision.transfer import Outcome, read
from letitloop.supervision.watcher import Limits, Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

    from letitloop.codecs import Codecs
    from letitloop.runs.api import DurableFunction
    from letitloop.supervision.reports import SupervisionEvent
    from letitloop.supervision.watcher import Child, Ending

    P = ParamSpec("P")
    R = TypeVar("R")

    class Supervise(Protocol):
        """What ``supervise`` with options returns."""

        @overload
        def __call__(self, fn: DurableFunction[P, R], /) -> DurableFunction[P, R]: ...

        @overload
        def __call__(self, fn: Callable[P, R], /) -> Callable[P, R]: ...
else:

    def overload(fn):  # noqa: ANN001, ANN202 - never seen by a type checker
        """Stand in for ``typing.overload``, whose import costs 10 ms."""
        return fn


__all__ = ["supervise"]

_FORKS = hasattr(os, "fork") and sys.platform != "darwin"  # macOS's own libraries do not survive a fork


class Call:
    """A call of a supervised function, as the ways to start its process need it.

    Attributes:
        fn: the function.
        args: its arguments.
        kwargs: its keyword arguments.
        codecs: how its result becomes bytes.
        dumps: whether its process is to print where it is when it is ended for taking too long.
    """

    __slots__ = ("args", "codecs", "dumps", "fn", "kwargs")

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], codecs: Codecs, *, dumps: bool
    ) -> None:
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.codecs = codecs
        self.dumps = dumps


class _Spec:
    """The options of a supervised function, checked when it is decorated."""

    __slots__ = ("codecs", "fn", "limits", "on_restart", "policy", "start", "target")

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        policy: Policy,
        limits: Limits,
        on_restart: Callable[[SupervisionEvent], object] | None,
        codecs: Codecs | None,
        start: str | None,
    ) -> None:
        self.fn = fn
        self.policy = policy
        self.limits = limits
        self.on_restart = on_restart
        self.codecs = codecs or default_codecs
        self.start = start or ("fork" if _FORKS else "spawn")
        self.target = function_goal(fn)


@overload
def supervise(fn: DurableFunction[P, R], /) -> DurableFunction[P, R]: ...


@overload
def supervise(fn: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def supervise(
    *,
    max_restarts: int = 10,
    backoff: float = 1.0,
    max_backoff: float = 60.0,
    window: float = 600.0,
    healthy_after: float = 30.0,
    max_rapid_failures: int = 5,
    restart_on: str | Iterable[str] = DEFAULT_RESTART_ON,
    grace: float = 10.0,
    timeout: float | None = None,
    stall: float | None = None,
    on_restart: Callable[[SupervisionEvent], object] | None = None,
    codecs: Codecs | None = None,
    start: Literal["fork", "spawn"] | None = None,
) -> Supervise: ...


def supervise(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    max_restarts: int = 10,
    backoff: float = 1.0,
    max_backoff: float = 60.0,
    window: float = 600.0,
    healthy_after: float = 30.0,
    max_rapid_failures: int = 5,
    restart_on: str | Iterable[str] = DEFAULT_RESTART_ON,
    grace: float = 10.0,
    timeout: float | None = None,
    stall: float | None = None,
    on_restart: Callable[[SupervisionEvent], object] | None = None,
    codecs: Codecs | None = None,
    start: Literal["fork", "spawn"] | None = None,
) -> Any:
    """Run a function in a process of its own, and start it again when that process dies.

    The caller gets what the function returns, or the exception that leaves it. Around a durable function, each restart goes on
    where the log ends; around any other, it begins anew. Works for sync and async functions, on any thread. What the function
    changes in memory stays in its process.

    Args:
        fn: the function, when used bare.
        max_restarts: restarts within ``window``.
        backoff: seconds before a first restart; doubled with each further one that got no further.
        max_backoff: seconds that no wait exceeds.
        window: seconds after which a restart no longer counts.
        healthy_after: seconds after which a life counts as healthy.
        max_rapid_failures: lives in a row, neither healthy nor with progress of a log, upon which it is given up; 0: no limit.
        restart_on: ``"signal"``, ``"crash"`` (an exception), ``"any"`` (also ``sys.exit`` with a code), ``"exit:CODES"``.
        grace: seconds from Ctrl+C, SIGTERM or a cancellation, which the function's process gets, to SIGKILL.
        timeout: seconds that a life may last; then it is ended by SIGABRT and started again.
        stall: seconds that no log may grow for; then the same.
        on_restart: called with a ``SupervisionEvent`` at each restart, and when it is given up.
        codecs: how arguments and result cross between the processes; the registered defaults if left out.
        start: ``"fork"`` (the process is a copy of this one) or ``"spawn"`` (a fresh interpreter, which imports the function:
            it is at the top level of a module, and its arguments can be encoded). By default fork on Linux, spawn elsewhere.

    Returns:
        A function of the same signature; around a durable function it has that function's ``runs``.

    Raises:
        InvalidArgument: an option has a value that means nothing.
        GeneratorFunction: ``fn`` is a generator function.

    Calling it raises what the function raises, and:
        ProcessDied: the process died, and was not started again.
        UnencodableError: the result cannot be handed to this process.

    Example:
        >>> from letitloop import durable, step, supervise
        >>> @supervise(max_restarts=5, backoff=1.0)
        ... @durable(goal_id="supervised-example")
        ... def report() -> list[int]:
        ...     return [step("square", pow, n, 2) for n in range(4)]
        >>> report()
        [0, 1, 4, 9]
    """
    policy = Policy(
        max_restarts=max_restarts,
        backoff=backoff,
        max_backoff=max_backoff,
        window=window,
        healthy_after=healthy_after,
        max_rapid_failures=max_rapid_failures,
        restart_on=restart_on,
    )
    limits = Limits(grace=grace, timeout=timeout, stall=stall)
    if start not in (None, "fork", "spawn") or (start == "fork" and not hasattr(os, "fork")):
        raise InvalidArgument(f"@supervise(start={start!r}): it is 'spawn', or 'fork' on systems that have it. Nothing was run.")

    def decorate(function: Callable[..., Any]) -> Any:
        if not callable(function):
            raise InvalidArgument(
                f"@supervise was given {type(function).__name__}, which is no function. Options are keywords: "
                "@supervise(max_restarts=…)."
            )
        spec = _Spec(function, policy=policy, limits=limits, on_restart=on_restart, codecs=codecs, start=start)
        wrapped = _drive_async(spec) if call_kind(function) == ASYNC else _drive_sync(spec)
        wrapped.__letitloop_supervised__ = spec  # type: ignore[attr-defined]  # how a fresh interpreter finds what to call
        return wrapped

    return decorate if fn is None else decorate(fn)


def _drive_sync(spec: _Spec) -> Callable[..., Any]:
    @wraps(spec.fn)
    def run_supervised(*args: Any, **kwargs: Any) -> Any:
        with Mailbox() as mailbox:
            ending, outcome = _watch(spec, args, kwargs, mailbox)
        return _conclude(spec, ending, outcome)

    return run_supervised


def _drive_async(spec: _Spec) -> Callable[..., Any]:
    @wraps(spec.fn)
    async def run_supervised(*args: Any, **kwargs: Any) -> Any:
        import asyncio
        import threading

        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Ending, Outcome | None]] = loop.create_future()
        mailboxes: list[Mailbox] = []
        told: list[int] = []

        def tell(number: int) -> None:
            told.append(number)
            for mailbox in mailboxes:
                mailbox.put(number)

        def settle(result: tuple[Ending, Outcome | None] | None, error: BaseException | None) -> None:
            if not done.done():
                done.set_result(result) if result is not None else done.set_exception(error or RuntimeError("nothing was watched"))

        def work() -> None:
            result, error = None, None
            try:
                with Mailbox() as mailbox:
                    mailboxes.append(mailbox)
                    for number in told:  # before there was anybody to tell it to
                        mailbox.put(number)
                    result = _watch(spec, args, kwargs, mailbox)
            except BaseException as exc:
                error = exc
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:  # the loop is closed: nobody waits any more
                pass

        # the thread that forks stays until the process has ended: its end would be taken for the parent's death
        thread = threading.Thread(target=work, name=f"supervise {spec.target}", daemon=True)
        with heard_by_loop(loop, tell):
            thread.start()
            try:
                ending, outcome = await asyncio.shield(done)
            except asyncio.CancelledError:
                tell(CANCEL)
                await asyncio.wait([done])
                raise
        return _conclude(spec, ending, outcome)

    return run_supervised


def _watch(spec: _Spec, args: tuple[Any, ...], kwargs: dict[str, Any], mailbox: Mailbox) -> tuple[Ending, Outcome | None]:
    """Watch the function's process until its end."""
    call = Call(spec.fn, args, kwargs, spec.codecs, dumps=spec.limits.timeout is not None or spec.limits.stall is not None)
    outcome: Outcome | None = None
    unreadable: CodecError | None = None

    def judge(child: Child, said: str, by: str) -> Death | None:
        nonlocal outcome, unreadable
        assert child.status is not None
        try:
            outcome = read(bytes(child.result), spec.codecs, spec.target)
        except CodecError as exc:
            unreadable = exc
            return None
        return _death(outcome, child.status, said, by)

    if spec.start == "fork":
        from letitloop.supervision.forked import starter
    else:
        from letitloop.supervision.spawned import starter
    with starter(call, mailbox) as start:
        watcher = Watcher(
            spec.target,
            start,
            judge,
            policy=spec.policy,
            limits=spec.limits,
            teller=Teller(callback=spec.on_restart, raises=True),
            mailbox=mailbox,
            fresh=spec.start != "fork",
        )
        ending = watcher.watch()
    if unreadable is not None:
        raise unreadable
    return ending, outcome


def _death(outcome: Outcome | None, status: int, said: str, by: str) -> Death | None:
    """Tell how a function's process ended; None if the function returned."""
    if outcome is None:
        if by or status:
            return what_ended(status, "", by=by)
        return Death(0, cause="os._exit(0) before the function returned")
    error = outcome.error
    if error is None:
        return None
    if isinstance(error, SystemExit):
        return Death(outcome.code, permanent="" if outcome.code else "the function called sys.exit without a failure")
    first_line = outcome.text.partition("\n")[0][:200]
    cause = f"{outcome.type_name}: {first_line}" if first_line else outcome.type_name
    permanent = is_permanent(outcome.type_name, ()) if outcome.type_name not in _BY_CODE else ""
    if outcome.fatal and not permanent:
        from letitloop.errors import Halt

        permanent = "" if isinstance(error, Halt) else f"{outcome.type_name} asks the program to end"
    return Death(outcome.code, cause=cause, crashed=True, permanent=permanent)


_BY_CODE = frozenset(("SyntaxError", "IndentationError", "TabError"))
"""Raised by a function, these are about code that it made or was given, which may differ next time."""


def _conclude(spec: _Spec, ending: Ending, outcome: Outcome | None) -> Any:
    """Return what the function returned, or raise what became of it."""
    event, death = ending.event, ending.death
    if death is None and outcome is not None:
        return outcome.value
    if outcome is not None and outcome.error is not None and event is not None:  # None: told to stop while nothing ran
        announce(outcome.error)
        raise _told(outcome.error, ending) from _RemoteTraceback(outcome.traceback)
    if ending.stopped:
        _pass_on(ending.stopped)
    assert death is not None
    lines = "".join(f"\n  | {line}" for line in event.stderr) if event is not None else ""
    raise ProcessDied(
        f"the process of {spec.target} ended by {death.cause} and is not started again: "
        f"{event.why if event is not None else 'it was told to stop'}. What its steps recorded is kept; called again, a durable "
        f"function goes on there.{' It wrote last:' if lines else ''}{lines}",
        reason=death.cause,
        exit_code=death.code,
        restarts=event.attempt if event is not None else 0,
        stderr=event.stderr if event is not None else (),
    )


def _pass_on(number: int) -> None:
    """Let this process have the signal that ended the function's: its handlers are back, and decide."""
    import signal
    import threading

    if number == signal.SIGINT and signal.getsignal(number) is signal.default_int_handler:
        raise KeyboardInterrupt
    if threading.current_thread() is threading.main_thread():
        os.kill(os.getpid(), number)


def _told(error: BaseException, ending: Ending) -> BaseException:
    """Add to an exception why its function is not called again."""
    add_note: Any = getattr(BaseException, "add_note", None)  # 3.11 and later
    event = ending.event
    if add_note is not None and event is not None and event.attempt:
        add_note(error, f"letitloop: not called again after {event.attempt} restarts: {event.why}")
    return error


class _RemoteTraceback(Exception):
    """Where an exception was raised in the function's process; printed as its cause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


def run_here(call: Call) -> object:
    """Call the function in the process that was made for it."""
    value = call.fn(*call.args, **call.kwargs)
    if call_kind(call.fn) == ASYNC:
        import asyncio

        return asyncio.run(value)
    if hasattr(value, "__await__"):
        close = getattr(value, "close", None)
        if close is not None:
            close()
        raise AsyncMisuse(
            f"{function_goal(call.fn)} looks like a plain function, but returned an awaitable, which no other process can await. "
            "Write async def fn(): return await …"
        )
    return value
