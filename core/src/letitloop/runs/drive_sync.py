"""The driver for sync code: it carries out a step's plan on the calling thread."""

from __future__ import annotations

import time

from letitloop import failpoints
from letitloop.errors import AsyncMisuse, Halt
from letitloop.runs.journal import Failure, Value
from letitloop.runs.plan import Append, Sleep, failure_plan
from letitloop.runs.records import OK
from letitloop.runs.run import UNRECORDABLE
from letitloop.runs.scope import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from letitloop.runs.run import Call, Run

__all__ = ["PLAIN_RESULTS", "call_step", "invoke"]

PLAIN_RESULTS = frozenset((type(None), bool, int, float, str, bytes, list, dict, tuple))
"""Types that are not awaitable, which is quicker to see here than to ask."""


def call_step(call: Call) -> object:
    """Return a call's recorded value, or call its function and record what comes of it.

    Raises:
        Exception: the function's own, fresh or recorded.
        StepChanged: the arguments differ from the recorded ones.
        LogPoisoned: the result could not be recorded.
    """
    run = call.run
    try:
        known = run.recall(call)
        if known is None:
            return _carry_out(run, call)
    except Halt as halted:
        raise run.halted_at(call, halted) from halted.__cause__
    if isinstance(known, Value):
        return known.value
    raise known.error


def _carry_out(run: Run, call: Call) -> object:
    """Call a step's function and record what comes of it; return the value, or raise the error."""
    call.activate()
    try:
        run.begin(call)
        value: object = None
        failure: Failure | None = None
        token = current.set(call)  # what invoke does, without one more call and wrapping: most steps come this way
        try:
            value = call.fn(*call.args, **call.kwargs)
        except Exception as exc:
            failure = Failure(exc)
        finally:
            current.reset(token)
        if failure is None:
            if value.__class__ not in PLAIN_RESULTS:
                _refuse_awaitable(call, value)
            if failpoints.active:
                failpoints.hit("step.called")
            try:
                payload = run.ok(call, value)
            except UNRECORDABLE as exc:
                failure = Failure(exc)
            else:
                run.log.append(OK, call.key, payload)
                call.recorded = True
                if failpoints.active:
                    failpoints.hit("step.recorded")
                return value
        elif failpoints.active:
            failpoints.hit("step.called")
        outcome = _after_failure(run, call, failure)
    finally:
        run.finish(call)
    if isinstance(outcome, Value):
        return outcome.value
    raise outcome.error


def _after_failure(run: Run, call: Call, failure: Failure) -> Value | Failure:
    plan = failure_plan(run, call, failure)
    answer: object = None
    try:
        while True:
            order = plan.send(answer)
            if isinstance(order, Append):
                answer = run.log.append(order.kind, order.key, order.payload)
            elif isinstance(order, Sleep):
                time.sleep(order.seconds)
            else:
                answer = invoke(call)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # what failure_plan is declared to return
    finally:
        plan.close()


def invoke(call: Call) -> Value | Failure:
    """Call a step's function inside a scope of its own.

    Raises:
        AsyncMisuse: the function is a plain one and returned an awaitable.
    """
    token = current.set(call)
    try:
        value = call.fn(*call.args, **call.kwargs)
    except Exception as exc:
        return Failure(exc)
    finally:
        current.reset(token)
    _refuse_awaitable(call, value)
    return Value(value)


def _refuse_awaitable(call: Call, value: object) -> None:
    """Refuse the result of a plain function if it has to be awaited.

    Raises:
        AsyncMisuse: it has.
    """
    if not hasattr(value.__class__, "__await__"):
        return
    close = getattr(value, "close", None)
    if close is not None:
        close()  # or Python warns that it was never awaited
    raise AsyncMisuse(
        f"step {call.key.decode()!r} of run {call.run.id}: {getattr(call.fn, '__qualname__', call.fn)!s} is no async function "
        "but returned an awaitable, which cannot be recorded. It was not awaited and nothing was recorded. Give the async "
        "function itself to the step, or wrap the call in one: async def fn(): return await …"
    )
