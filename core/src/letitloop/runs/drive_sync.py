"""The driver for sync code: it carries out a step's plan on the calling thread."""

from __future__ import annotations

import time

from letitloop.errors import AsyncMisuse, Halt
from letitloop.runs.journal import Failure, Value
from letitloop.runs.plan import Append, Sleep, step_plan
from letitloop.runs.scope import Scope, current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from letitloop.runs.run import Call

__all__ = ["call_step", "invoke"]


def call_step(call: Call) -> object:
    """Return a call's recorded value, or call its function and record what comes of it.

    Raises:
        Exception: the function's own, fresh or recorded.
        StepChanged: the arguments differ from the recorded ones.
        LogPoisoned: the result could not be recorded.
    """
    run = call.scope.run
    try:
        outcome = run.recall(call)
        if outcome is None:
            outcome = _carry_out(call)
    except Halt as halted:
        run.halt(halted)
        raise
    if isinstance(outcome, Value):
        return outcome.value
    raise outcome.error


def _carry_out(call: Call) -> Value | Failure:
    run = call.scope.run
    log = run.log
    call.activate()
    plan = step_plan(run, call)
    answer: object = None
    try:
        while True:
            order = plan.send(answer)
            if isinstance(order, Append):
                answer = log.append(order.kind, order.key, order.payload)
            elif isinstance(order, Sleep):
                time.sleep(order.seconds)
            else:
                answer = invoke(call)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # what step_plan is declared to return
    finally:
        plan.close()


def invoke(call: Call) -> Value | Failure:
    """Call a step's function inside a scope of its own.

    Raises:
        AsyncMisuse: the function is a plain one and returned an awaitable.
    """
    scope = call.scope
    token = current.set(Scope(scope.run, call.key + b">", nested=True))
    try:
        value = call.fn(*call.args, **call.kwargs)
    except Exception as exc:
        return Failure(exc)
    finally:
        current.reset(token)
    if hasattr(value, "__await__"):
        close = getattr(value, "close", None)
        if close is not None:
            close()  # or Python warns that it was never awaited
        raise AsyncMisuse(
            f"step {call.key.decode()!r} of run {scope.run.id}: {getattr(call.fn, '__qualname__', call.fn)!s} is no async function "
            "but returned an awaitable, which cannot be recorded. It was not awaited and nothing was recorded. Give the async "
            "function itself to the step, or wrap the call in one: async def fn(): return await …"
        )
    return Value(value)
