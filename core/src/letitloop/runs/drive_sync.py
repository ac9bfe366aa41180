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

__all__ = ["call_step", "invoke"]


def call_step(call: Call) -> object:
    """Return a call's recorded value, or call its function and record what comes of it.

    Raises:
        Exception: the function's own, fresh or recorded.
        StepChanged: the arguments differ from the recorded ones.
        LogPoisoned: the result could not be recorded.
    """
    run = call.run
    try:
        outcome = run.recall(call) or _carry_out(run, call)
    except Halt as halted:
        raise run.halted_at(call, halted) from halted.__cause__
    if isinstance(outcome, Value):
        return outcome.value
    raise outcome.error


def _carry_out(run: Run, call: Call) -> Value | Failure:
    call.activate()
    try:
        run.begin(call)
        outcome = invoke(call)
        if failpoints.active:
            failpoints.hit("step.called")
        if isinstance(outcome, Value):
            try:
                payload = run.ok(call, outcome.value)
            except UNRECORDABLE as exc:
                outcome = Failure(exc)
            else:
                run.log.append(OK, call.key, payload)
                call.recorded = True
                if failpoints.active:
                    failpoints.hit("step.recorded")
                return outcome
        return _after_failure(run, call, outcome)
    finally:
        run.finish(call, recorded=call.recorded)


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
    if hasattr(value.__class__, "__await__"):
        close = getattr(value, "close", None)
        if close is not None:
            close()  # or Python warns that it was never awaited
        raise AsyncMisuse(
            f"step {call.key.decode()!r} of run {call.run.id}: {getattr(call.fn, '__qualname__', call.fn)!s} is no async function "
            "but returned an awaitable, which cannot be recorded. It was not awaited and nothing was recorded. Give the async "
            "function itself to the step, or wrap the call in one: async def fn(): return await …"
        )
    return Value(value)
