"""The two drivers that carry a ledger's plans out: on this thread, and in async code."""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from inspect import CO_COROUTINE

from letitloop.effects import machine
from letitloop.effects.plans import Ask, Transact
from letitloop.effects.said import reply_parts, told
from letitloop.errors import AsyncMisuse, UnknownOutcome
from letitloop.runs.exits import announce
from letitloop.runs.importing import check_may_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Any

    from letitloop.effects.intents import IntentStore
    from letitloop.effects.plans import Action, Plan
    from letitloop.effects.provider import Dispatch, Provider

__all__ = ["adrive", "drive"]


def drive(plan: Plan, action: Action, store: IntentStore) -> Any:
    """Carry a plan out on this thread.

    Raises:
        AsyncMisuse: the provider acts in async code alone.
        InvalidArgument: the program is only being imported.
    """
    check_may_run("an action")
    _refuse_async(action.provider)
    step: Callable[[Any], Transact | Ask] = plan.send
    value: Any = None
    try:
        while True:
            try:
                order = step(value)
            except StopIteration as done:
                return done.value
            except UnknownOutcome as unknown:
                announce(unknown)
                raise
            try:
                value, step = _perform(order, action, store), plan.send
            except GeneratorExit as exc:  # the provider's own: thrown into the plan it would end that instead
                value, step = RuntimeError(told(exc)), plan.throw
            except BaseException as exc:
                value, step = exc, plan.throw
    finally:
        plan.close()
        store.release(action.wanted)


def _perform(order: Transact | Ask, action: Action, store: IntentStore) -> object:
    if isinstance(order, Transact):
        return store.transact(order.wanted, order.decide)
    return getattr(action.provider, order.method)(order.dispatch)


def _refuse_async(provider: Provider) -> None:
    if _async_alone(provider):
        raise AsyncMisuse(
            f"provider {provider.name!r} acts in async code alone, and run() is not async. Nothing was recorded or sent. Use "
            "await ledger.arun(…)."
        )


def _async_alone(provider: Provider) -> bool:
    execute = getattr(provider, "execute", None)
    code = getattr(execute, "__code__", None)
    return execute is None or bool(code is not None and code.co_flags & CO_COROUTINE)


async def adrive(plan: Plan, action: Action, store: IntentStore) -> Any:
    """Carry a plan out in async code: no commit and no plain provider is waited for on the event loop."""
    from letitloop.runs.drive_async import in_thread

    check_may_run("an action")
    step: Callable[[Any], Transact | Ask] = plan.send
    value: Any = None
    try:
        while True:
            try:
                order = step(value)
            except StopIteration as done:
                return done.value
            except UnknownOutcome as unknown:
                announce(unknown)
                raise
            try:
                if isinstance(order, Transact):
                    value = await in_thread(partial(store.transact, order.wanted, order.decide))
                else:
                    value = await _aperform(order, action, store)
                step = plan.send
            except GeneratorExit:  # the task was thrown away: nothing can be awaited any more, and the intent is found open
                raise
            except BaseException as exc:
                value, step = exc, plan.throw
    finally:
        plan.close()
        store.release(action.wanted)


async def _aperform(order: Ask, action: Action, store: IntentStore) -> object:
    twin = getattr(action.provider, f"a{order.method}", None)
    if twin is not None:
        return await twin(order.dispatch)
    return await _in_worker(getattr(action.provider, order.method), order, action, store)


async def _in_worker(method: Callable[[Dispatch], object], order: Ask, action: Action, store: IntentStore) -> object:
    """Call a plain provider on a thread. If the task is cancelled meanwhile, what the thread brings later is kept as evidence."""
    import asyncio
    import threading

    loop = asyncio.get_running_loop()
    pending: asyncio.Future[None] = loop.create_future()
    guard = threading.Lock()
    brought: list[tuple[object, BaseException | None]] = []
    given_up = False

    def deliver() -> None:
        if not pending.done():
            pending.set_result(None)

    def work() -> None:
        result: object = None
        error: BaseException | None = None
        try:
            result = method(order.dispatch)
        except BaseException as exc:
            error = exc
        with guard:
            late = given_up
            brought.append((result, error))
        try:
            if not late:
                loop.call_soon_threadsafe(deliver)
        except RuntimeError:  # the loop was closed: nobody waits any more
            late = True
        if late:
            _keep_late(order, action, store, result, error)

    _start(work, daemon=True)
    try:
        await pending
    except asyncio.CancelledError:
        with guard:
            given_up = True
        if brought:  # it came in the very moment of the cancellation
            _start(partial(_keep_late, order, action, store, *brought[0]), daemon=False)
        raise
    result, error = brought[0]
    if error is None:
        return result
    # raised here, these two would end the coroutine and not reach the plan
    raise RuntimeError(told(error)) if isinstance(error, (StopIteration, GeneratorExit)) else error


def _start(work: Callable[[], object], *, daemon: bool) -> None:
    """Start a thread with this context: it tells which run's ledger is meant.

    Args:
        work: what it does.
        daemon: whether the program may end without it.
    """
    import threading

    threading.Thread(target=copy_context().run, args=(work,), name="letitloop-provider", daemon=daemon).start()


def _keep_late(order: Ask, action: Action, store: IntentStore, result: object, error: BaseException | None) -> None:
    if order.method != "execute" or error is not None:
        return
    try:
        said = reply_parts(action, result)
        late = action.wanted._replace(holder=None)
        store.transact(late, partial(machine.settle, dispatch=order.dispatch, **said._asdict()))
    except Exception:
        return  # the intent stays open, and its provider can be asked
