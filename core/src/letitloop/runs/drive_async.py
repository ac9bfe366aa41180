"""The driver for async code: the same plan, and no sync ever happens on the event loop.

One thread a run syncs (:class:`Syncer`). All tasks that record while a sync is in flight, or while those who waited for it are
being woken, share the next one.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context
from queue import SimpleQueue

from letitloop import failpoints
from letitloop.errors import AsyncMisuse, Halt
from letitloop.runs.drive_sync import PLAIN_RESULTS, invoke
from letitloop.runs.identity import ASYNC, step_kind
from letitloop.runs.journal import Failure, Value
from letitloop.runs.opening import open_run
from letitloop.runs.plan import Append, Sleep, failure_plan
from letitloop.runs.records import OK
from letitloop.runs.run import UNRECORDABLE
from letitloop.runs.scope import current, restore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from letitloop.runs.opening import Opening
    from letitloop.runs.run import Call, Run
    from letitloop.wal.format import Entry
    from letitloop.wal.log import Log

    T = TypeVar("T")

__all__ = ["Syncer", "await_step"]

_AT_ONCE = 8
_ROUND = 0.005  # seconds
_PATIENCE = 5.0  # seconds


class _Batch:
    """What one event loop waits for: who waits for the next sync, and whether one is in flight."""

    __slots__ = ("busy", "waiters")

    def __init__(self) -> None:
        # a future each: a shared one would have to be shielded from cancellation, which costs more than a future
        self.waiters: list[asyncio.Future[None]] = []
        self.busy = False


class Syncer:
    """Makes a log's records durable for any number of tasks, on a thread of its own.

    Args:
        log: the run's log.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._syncs = log.syncs
        self._batches: dict[asyncio.AbstractEventLoop, _Batch] = {}
        self._orders: SimpleQueue[tuple[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="letitloop-syncer", daemon=True)
        self._thread.start()

    def append(self, kind: int, key: bytes, payload: bytes) -> tuple[Entry, asyncio.Future[None] | None]:
        """Append a record; return it, and a future that is done when it is durable, None if it is.

        Whoever is cancelled while awaiting that leaves the record to be written all the same.
        """
        if not self._syncs:
            return self._log.append(kind, key, payload), None  # to the page cache: a microsecond
        entry = self._log.queue(kind, key, payload)
        loop = asyncio.get_running_loop()
        batch = self._batches.get(loop)
        if batch is None:
            batch = self._batches[loop] = _Batch()
        waiter = loop.create_future()
        batch.waiters.append(waiter)
        if not batch.busy:
            loop.call_soon(self._kick, loop, batch)  # not at once: whoever else is about to run records its step as well
            batch.busy = True
        return entry, waiter

    def stop(self) -> None:
        """End the thread once it has done what it was asked."""
        self._orders.put(None)

    def _kick(self, loop: asyncio.AbstractEventLoop, batch: _Batch) -> None:
        """Have synced what is queued; if nothing is, the next to record begins anew."""
        waiters, batch.waiters = batch.waiters, []
        if waiters:
            self._orders.put((loop, waiters))
        else:
            batch.busy = False

    def _work(self) -> None:
        while True:
            order = self._orders.get()
            if order is None:
                return
            error: BaseException | None = None
            try:
                self._log.flush()
            except BaseException as exc:
                error = exc
            loop, waiters = order
            try:
                loop.call_soon_threadsafe(self._done, loop, waiters, error)
            except RuntimeError:
                continue  # the loop was closed: nobody waits any more

    def _done(
        self, loop: asyncio.AbstractEventLoop, waiters: list[asyncio.Future[None]], error: BaseException | None, until: float = 0.0
    ) -> None:
        """Wake a few tasks at a time, so that the loop looks at its sockets and timers in between.

        The next sync is ordered when all have been woken and have run: it carries what they record, and the thread that syncs
        does not fight with the loop for the interpreter meanwhile, which would cost more than syncing at the same time gains.
        """
        batch = self._batches[loop]
        if not until:
            until = loop.time() + _ROUND
        elif loop.time() > until:
            until += _ROUND
            self._kick(loop, batch)  # tasks that compute for long do not hold back what others have recorded
        for waiter in waiters[:_AT_ONCE]:
            if waiter.done():
                continue  # cancelled
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        rest = waiters[_AT_ONCE:]
        if rest:
            loop.call_soon(self._done, loop, rest, error, until)
        else:
            loop.call_soon(self._kick, loop, batch)


_making = threading.Lock()


def _syncer(run: Run) -> Syncer:
    with _making:  # two threads with a loop each must not make two
        if run.syncer is None:
            run.syncer = Syncer(run.log)
    return run.syncer  # type: ignore[no-any-return]  # typed Any in Run, which must not import asyncio


async def await_step(call: Call) -> Any:
    """Return a call's recorded value, or await its function and record what comes of it.

    Raises:
        Exception: the function's own, fresh or recorded.
        StepChanged: the arguments differ from the recorded ones.
        LogPoisoned: the result could not be recorded.
    """
    run = call.run
    try:
        call.coroutine = None  # it is started, and ends by the lines below
        if run.woken is not None:
            await run.woken()
        outcome = run.recall(call)
        if outcome is None:
            outcome = await _carry_out(run, call)
    except Halt as halted:
        raise run.halted_at(call, halted) from halted.__cause__
    finally:
        run.finish(call)
    if call.cancelled is not None:
        raise call.cancelled
    if isinstance(outcome, Value):
        return outcome.value
    raise outcome.error


async def _carry_out(run: Run, call: Call) -> Value | Failure:
    syncer = run.syncer or _syncer(run)
    run.begin(call)
    outcome = await _invoke(call)
    if failpoints.active:
        failpoints.hit("step.called")
    if isinstance(outcome, Value):
        try:
            payload = run.ok(call, outcome.value)
        except UNRECORDABLE as exc:
            outcome = Failure(exc)
        else:
            _, durable = syncer.append(OK, call.key, payload)
            if durable is not None:
                await durable
            call.recorded = True
            if failpoints.active:
                failpoints.hit("step.recorded")
            return outcome
    return await _after_failure(run, call, syncer, outcome)


async def _after_failure(run: Run, call: Call, syncer: Syncer, failure: Failure) -> Value | Failure:
    plan = failure_plan(run, call, failure)
    answer: object = None
    try:
        while True:
            order = plan.send(answer)
            if isinstance(order, Append):
                answer, durable = syncer.append(order.kind, order.key, order.payload)
                if durable is not None:
                    await durable
            elif isinstance(order, Sleep):
                if call.cancelled is not None:
                    raise call.cancelled  # while a plain function ran: the attempt is on record, and no other is made
                await asyncio.sleep(order.seconds)
            else:
                answer = await _invoke(call)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # what failure_plan is declared to return
    finally:
        plan.close()


async def _invoke(call: Call) -> Value | Failure:
    """Await a step's function inside a scope of its own; a plain one runs in a worker thread."""
    if step_kind(call.fn, call.name) != ASYNC:
        return await _in_worker(call)
    token = current.set(call)
    try:
        awaitable = call.fn(*call.args, **call.kwargs)
        if call.timeout is None:
            value = await awaitable
        else:
            value = await _within(awaitable, call)
    except Exception as exc:
        return Failure(exc)
    finally:
        restore(current, token)
    cls = value.__class__
    if cls not in PLAIN_RESULTS and hasattr(cls, "__await__"):
        if asyncio.iscoroutine(value):
            value.close()
        raise AsyncMisuse(
            f"step {call.key.decode()!r} of run {call.run.id} returned an awaitable, which cannot be recorded. It was not awaited "
            "and nothing was recorded. Await it inside the step."
        )
    return Value(value)


async def _in_worker(call: Call) -> Value | Failure:
    """Call a plain function in a worker thread; nothing can stop it, so a cancellation waits for it and follows its record."""
    work = asyncio.ensure_future(asyncio.to_thread(invoke, call))
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as exc:
            call.cancelled = exc
    return work.result()


async def _within(awaitable: Any, call: Call) -> Any:
    try:
        return await asyncio.wait_for(awaitable, call.timeout)
    except (TimeoutError, asyncio.TimeoutError) as exc:  # two classes on 3.10
        if exc.args:
            raise  # the function's own
        raise TimeoutError(f"step {call.key.decode()!r} did not finish within timeout={call.timeout} seconds") from exc


async def in_thread(work: Callable[[], T]) -> T:
    """Do blocking work on a thread of its own; the task's cancellation waits for it to end.

    Not on the loop's executor: it has few threads, and if all of them wait for locks, whoever holds one finds no thread to free it.
    """
    pending = _start(work)
    cancelled: asyncio.CancelledError | None = None
    while not pending.done():
        try:
            await asyncio.wait([pending])
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        pending.exception()  # fetched, or it would be reported as lost
        raise cancelled
    return pending.result()


async def open_in_thread(opening: Opening) -> Run | Value:
    """Open a run on a thread; a task that is cancelled meanwhile leaves it closed.

    The cancellation waits for an opening that waits for nobody: the caller may try again at once, and must not meet its own lock.
    """

    def close(run: Run | Value) -> None:
        if not isinstance(run, Value):
            run.close()

    if opening.spec.on_locked == "wait":
        return await acquire_in_thread(lambda: open_run(opening), close)
    guard = threading.Lock()
    opened: list[Run | Value] = []
    given_up = False

    def work() -> Run | Value:
        run = open_run(opening)
        with guard:
            if given_up:
                close(run)
            else:
                opened.append(run)
        return run

    try:
        return await in_thread(work)
    except asyncio.CancelledError:
        if opened:
            await in_thread(lambda: close(opened[0]))
        raise
    except BaseException:  # Ctrl+C while the thread was started: it opens the run all the same
        with guard:
            given_up = True
        if opened:
            close(opened[0])
        raise


async def acquire_in_thread(work: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Do work that may wait long for a lock on a thread of its own; the task's cancellation does not wait for it.

    Args:
        work: what to do.
        undo: given the work's result, on that thread, if the task was cancelled before it took the result.
    """
    guard = threading.Lock()
    taken = given_up = False

    def acquire() -> T:
        nonlocal taken
        result = work()
        with guard:
            taken = not given_up
        if not taken:
            undo(result)
        return result

    pending = _start(acquire)
    try:
        return await asyncio.shield(pending)
    except asyncio.CancelledError:
        with guard:
            given_up = True
        pending.add_done_callback(lambda done: done.exception())
        if taken:  # it ended in the very moment of the cancellation
            result = await pending
            await in_thread(lambda: undo(result))
        raise


def _start(work: Callable[[], T]) -> asyncio.Future[T]:
    loop = asyncio.get_running_loop()
    pending: asyncio.Future[T] = loop.create_future()
    context = copy_context()
    finished = threading.Event()

    def settle(result: T | None, error: BaseException | None) -> None:
        if error is not None:
            pending.set_exception(error)
        else:
            pending.set_result(result)  # type: ignore[arg-type]  # None only where T is None

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except BaseException as exc:
            error = exc
        finished.set()
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            return  # the loop was closed: nobody waits any more

    try:
        threading.Thread(target=run, name="letitloop-waiter", daemon=True).start()
    except BaseException:  # Ctrl+C in the middle of it: the thread runs all the same, and what it takes must be given back
        finished.wait(_PATIENCE)
        raise
    return pending
