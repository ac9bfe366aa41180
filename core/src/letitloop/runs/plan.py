"""What a step does, as a plan without I/O: the drivers carry it out, one for sync code and one for async.

A plan is a generator. It yields what is to be done and is sent the answer; it returns the call's outcome and never raises a
user's exception (a user's StopIteration raised inside a generator would become a RuntimeError, PEP 479).
"""

from __future__ import annotations

import sys

from letitloop import failpoints
from letitloop.codecs.fingerprint import type_name
from letitloop.runs.failures import text_of
from letitloop.runs.journal import Failure, Value
from letitloop.runs.records import ATTEMPT, FAILED, OK
from letitloop.runs.run import UNRECORDABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from letitloop.runs.run import Call, Run

__all__ = ["Append", "Invoke", "Sleep", "failure_plan"]


class Invoke:
    """Call the step's function; the answer is a ``Value`` or a ``Failure``."""

    __slots__ = ()


class Append:
    """Append a record and go on when it is durable; the answer is its ``Entry``."""

    __slots__ = ("key", "kind", "payload")

    def __init__(self, kind: int, key: bytes, payload: bytes) -> None:
        self.kind = kind
        self.key = key
        self.payload = payload


class Sleep:
    """Wait that many seconds."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


_INVOKE = Invoke()


def failure_plan(run: Run, call: Call, failure: Failure) -> Generator[Invoke | Append | Sleep, object, Value | Failure]:
    """Carry a call whose first attempt in this drive failed to a recorded outcome.

    Most calls succeed at once: the drivers carry that out without a plan (a generator costs a microsecond).

    Args:
        run: the run.
        call: the call.
        failure: what the first attempt came to.
    """
    retry = call.retry
    call.attempt = run.journal.attempts(call.key) + 1
    answer: object = failure
    while True:
        assert isinstance(answer, Failure)
        error = answer.error
        payload = run.failed(call, error)
        if retry is None or isinstance(error, UNRECORDABLE) or not retry.again(error, call.attempt):
            entry = yield Append(FAILED, call.key, payload)
            run.note_failure(call, error, getattr(entry, "seq", -1))
            return answer
        run.log.queue(ATTEMPT, call.key, payload)
        run.log.write()
        delay = retry.delay(call.attempt)
        _tell_retry(run, call, error, delay)
        yield Sleep(delay)
        call.attempt += 1
        call._steps = call._scopes = None  # each attempt counts its steps anew
        run.begin(call)
        answer = yield _INVOKE
        if failpoints.active:
            failpoints.hit("step.called")
        if isinstance(answer, Value):
            try:
                payload = run.ok(call, answer.value)
            except UNRECORDABLE as exc:
                answer = Failure(exc)
            else:
                yield Append(OK, call.key, payload)
                call.recorded = True
                if failpoints.active:
                    failpoints.hit("step.recorded")
                return answer


def _tell_retry(run: Run, call: Call, error: Exception, delay: float) -> None:
    logging = sys.modules.get("logging")
    if logging is not None:  # a program that logs; for any other nobody would hear it
        logging.getLogger("letitloop").info(
            "letitloop: step %r of run %s: attempt %d failed (%s: %s), tried again in %.1f seconds",
            call.key.decode("utf-8", "replace"),
            run.id,
            call.attempt,
            type_name(type(error)),
            text_of(error),
            delay,
        )
