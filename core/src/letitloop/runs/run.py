"""A run that is being driven in this process: its log, its journal, and what a step does with them."""

from __future__ import annotations

from functools import cached_property
from itertools import count
from time import time

from letitloop import failpoints
from letitloop.codecs.fingerprint import hints
from letitloop.errors import CodecError, Halt, LogPoisoned, RecordTooLarge, StepChanged, UnencodableError, command
from letitloop.runs.exits import announce
from letitloop.runs.failures import chain, encode_failure
from letitloop.runs.identity import argument_names, inner_prefix, unwrapped
from letitloop.runs.journal import Changed, Failure, Journal, Value
from letitloop.runs.records import EFFECT, END, ENDED, OVERLAPPED, VOID, pack_head, pack_void
from letitloop.runs.scope import Counter, Scope
from letitloop.store.directory import store_options
from letitloop.wal.format import MAX_RECORD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from letitloop.codecs import Codecs
    from letitloop.runs.opening import Opening
    from letitloop.runs.retry import Retry
    from letitloop.store.protocol import Store
    from letitloop.wal.format import Entry
    from letitloop.wal.log import Log

__all__ = ["Call", "Run"]


LARGEST_BODY = MAX_RECORD - 4096  # with room for the head
UNRECORDABLE = (UnencodableError, RecordTooLarge)


def ended(exc: BaseException) -> str:
    """Return an exception's message as a sentence that another may follow."""
    text = str(exc)
    return text if text.endswith((".", "!", "?")) else text + "."


class Call(Scope):
    """One call of a step, from its reservation on; and the scope of the steps that its function calls.

    Attributes:
        scope: the scope that it was called in.
        key: the step's key.
        place: how often a call of this name and fingerprint was reserved in its scope.
        attempt: the how-manieth time its function is called, those of killed processes included.
        unordered: calls of its name may come in another order next time: a record of other arguments in its place says nothing.
        on_change: what is done if its arguments differ; None: what its run says.
    """

    # no __slots__: what most calls never change stands in the class, and a replayed step sets nothing but its arguments
    retry: Retry | None = None
    timeout: float | None = None
    overlapped = False
    attempt = 1
    began = 0
    started = 0.0
    slot = -1
    coroutine: Callable[[], Any] | None = None
    cancelled: BaseException | None = None
    recorded = False
    failed = False
    nested = True
    place = 1
    unordered = False
    on_change: str | None = None

    _steps: dict[str, Counter] | None = None
    _scopes: dict[str, Counter] | None = None

    def __init__(
        self,
        scope: Scope,
        counter: Counter,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        fingerprint: bytes,
    ) -> None:
        # not Scope.__init__: a replayed step's function is not called, so no step is called in it
        self.run = scope.run
        self.scope = scope
        self.counter = counter
        ordinal = next(counter.numbers)
        self.key = counter.base if ordinal == 1 else b"%b#%d" % (counter.base, ordinal)  # as step_key makes it
        if counter.first.setdefault(fingerprint, ordinal) != ordinal:  # one operation: any thread may reserve
            self.place = next(counter.alike.setdefault(fingerprint, count(2)))
        self.name = name
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.fingerprint = fingerprint
        if scope.reserved is not None:
            scope.reserved(self)

    @cached_property
    def prefix(self) -> bytes:  # type: ignore[override]  # made when needed: most steps call no step
        """The path of the steps that its function calls."""
        return inner_prefix(self.counter.base, self.fingerprint, self.place)

    def deactivate(self) -> None:
        """No longer count as in flight."""
        counter = self.counter
        counter.active.pop(self, None)
        if len(counter.active) <= 1:
            counter.crowded = False

    def activate(self) -> None:
        """Count as in flight: calls of one name in one scope that are in flight together may be recorded in any order."""
        counter = self.counter
        active = counter.active
        active[self] = None
        if len(active) > 1:
            if counter.crowded:
                self.overlapped = True  # the others know already
            else:
                self._crowd(counter)

    def _crowd(self, counter: Counter) -> None:
        for other in list(counter.active):
            if other.thrown_away():
                other.deactivate()
        if len(counter.active) > 1:
            for other in list(counter.active):
                other.overlapped = True
            counter.crowded = True

    def thrown_away(self) -> bool:
        """Tell whether this is an async step whose coroutine was closed, perhaps before it was ever started."""
        if self.coroutine is None:
            return False
        coroutine = self.coroutine()
        return coroutine is None or coroutine.cr_frame is None


class Run:
    """A run that is being driven.

    Attributes:
        id: the run's name in its store.
        goal_id: its goal.
        instance: a random name of this run's life from its start to its end or to its being forgotten; markers belong to it.
        store: the store it lies in.
        epoch: the how-manieth process (or call) drives it, from 1.
        in_flight: the steps that were in flight when the previous process died, as far as that could be told.
        active: whether steps may still be recorded.
    """

    __slots__ = (
        "_failures",
        "_halted",
        "_live",
        "_on_change",
        "_source_changed",
        "active",
        "around",
        "codecs",
        "epoch",
        "goal_id",
        "id",
        "in_flight",
        "instance",
        "journal",
        "log",
        "markers",
        "outer_loop",
        "root",
        "store",
        "syncer",
        "woken",
    )

    def __init__(
        self,
        *,
        name: str,
        goal: str,
        store: Store,
        log: Log,
        journal: Journal,
        codecs: Codecs,
        on_change: str,
        description: dict[str, object],
        in_flight: tuple[str, ...] = (),
        source_changed: bool = False,
    ) -> None:
        self.id = name
        self.goal_id = goal
        self.store = store
        self.log = log
        self.journal = journal
        self.codecs = codecs
        self.instance = str(description.get("instance", ""))
        self.epoch = log.epoch
        self.in_flight = in_flight
        self.active = True
        self.root = Scope(self)
        self.around: Run | None = None  # the run inside which this one was called
        self.outer_loop: Any = None  # the event loop that already ran when a sync run was called on its thread
        self.markers: dict[tuple[str, str], object] = {}  # those completed in this drive, and by which thread or task
        self.syncer: Any = None  # of runs.drive_async, which imports asyncio; made by the first async step
        self.woken: Callable[[], Awaitable[None]] | None = None  # awaited before an async step asks a log that others may hold
        self._on_change = on_change
        self._source_changed = source_changed
        self._failures: list[tuple[Exception, int]] = []
        self._live: dict[bytes, tuple[bytes, bytes]] = {}  # of steps inside steps: fingerprint and body, for a next attempt
        self._halted: Halt | CodecError | None = None
        journal.run = name

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.goal_id!r}, epoch {self.epoch}>"

    @property
    def halted(self) -> bool:
        """Whether something in this drive had to reach its caller: nothing more is done in it."""
        return self._halted is not None

    # --- what letitloop.testing puts other answers to --------------------------------------------------------------------------

    opens: Callable[[Opening], Run | Value] | None = None
    """What a durable function that is called in this run does instead of opening its run; None outside tests."""

    def about_to_act(self, key: str) -> None:
        """A marker that is not completed is about to act; a replay refuses here.

        Raises:
            Halt: one was raised in this drive and swallowed.
        """
        if self._halted is not None:
            raise self._halted

    # --- one call ------------------------------------------------------------------------------------------------------------

    def recall(self, call: Call) -> Value | Failure | None:
        """Return what is known of a call, or None if its function is to be called.

        Raises:
            StepChanged: the call's arguments differ from the recorded ones, and the run's policy is to say so.
        """
        nested = call.scope.nested
        if not nested and not self.journal.index:
            return None
        try:
            known = self.journal.recall(call.key, call.counter.base, call.fingerprint, call.scope.prefix)
        except CodecError as exc:
            # no failure of the step, which succeeded: whatever handler swallows this, nothing more is done in this drive
            self._halted = exc
            raise
        if known is None:
            return self._lived(call) if nested else None
        if isinstance(known, Changed):
            known = (self._lived(call) if nested else None) or (None if call.unordered else self._changed(call, known))
        if isinstance(known, Failure):
            self._failures.append((known.error, known.seq))
        if nested and isinstance(known, Value):
            self._live[call.key] = (call.fingerprint, self.codecs.encode(known.value))
        return known

    def _lived(self, call: Call) -> Value | None:
        """Return what an earlier attempt of the step around this one made of the same call, decoded afresh."""
        fingerprint, body = self._live.get(call.key, (b"", None))
        return None if body is None or fingerprint != call.fingerprint else Value(self.codecs.decode(body))

    def begin(self, call: Call) -> None:
        """A call's function is about to be called: note it beside the log.

        Raises:
            LogPoisoned: what it would return could not be recorded; it must not be called.
            Halt: one was raised in this drive and swallowed.
        """
        log = self.log
        if not log.usable:
            log.check()
        if self._halted is not None:
            raise self._halted  # nothing more is done in a drive that must stop
        call.began = log.next_seq
        if call.slot < 0:
            call.slot = log.lock.note(call.key)
        call.started = time()
        if failpoints.active:
            failpoints.hit("step.begun")

    def ok(self, call: Call, value: object) -> bytes:
        """Return the payload of a call's result.

        Raises:
            UnencodableError, RecordTooLarge: the result cannot be recorded.
        """
        took = time() - call.started
        try:
            body = self.codecs.encode(value)
        except UnencodableError as exc:
            raise UnencodableError(
                f"step {call.key.decode()!r} of run {self.id} was called, and its result cannot be recorded: {ended(exc)} The call "
                "has already happened, and it will happen again when the run goes on. Let the step return data that can be "
                "recorded.",
                path=exc.path,
                type_name=exc.type_name,
            ) from exc
        if call.scope.nested:
            self._live[call.key] = (call.fingerprint, body)
        if len(body) > LARGEST_BODY:
            raise RecordTooLarge(
                f"step {call.key.decode()!r} of run {self.id} was called, and its result of {len(body):,} bytes exceeds the "
                "limit of 1 GiB a record. The call has already happened, and will happen again when the run goes on. Store large "
                "data in a file or an object store, and return its address.",
                path=self.log.path,
            )
        flags = OVERLAPPED if call.overlapped else 0
        return pack_head(flags, call.fingerprint, call.began, call.started, took) + body

    def failed(self, call: Call, error: Exception) -> bytes:
        """Return the payload of a call's failure."""
        took = time() - call.started
        flags = OVERLAPPED if call.overlapped else 0
        return pack_head(flags, call.fingerprint, call.began, call.started, took) + encode_failure(error, self.codecs)

    def note_failure(self, call: Call, error: Exception, seq: int) -> None:
        """Remember that a failure is on record, in case it ends the run."""
        call.failed = True
        self._failures.append((error, seq))

    def finish(self, call: Call) -> None:
        """A call has ended. The note of one whose result is on record needs no wiping.

        The note of a call that was interrupted (Ctrl+C, a cancellation) stays, for the next drive to be told.
        """
        call.deactivate()
        if call.slot >= 0:
            lock = self.log.lock
            if call.recorded:
                lock.free(call.slot)
            elif call.failed:
                lock.wipe(call.slot)
                lock.free(call.slot)
            else:
                lock.keep()
            call.slot = -1
            # most calls have none inside them, and nothing to look for
            if self._live and (call._steps is not None or call._scopes is not None):
                for key in [key for key in list(self._live) if key.startswith(call.prefix)]:
                    self._live.pop(key, None)

    # --- changed inputs ------------------------------------------------------------------------------------------------------

    def _policy_for(self, call: Call) -> str:
        """Return what is done if a call's arguments differ."""
        return call.on_change or self._on_change

    def _changed(self, call: Call, changed: Changed) -> Value | Failure | None:
        policy = self._policy_for(call)
        if policy == "reuse":
            return self.journal.reuse(changed, call.scope.prefix)
        effects = self.journal.effects_after(changed.entry, call.scope.prefix)
        if policy == "rerun" and not effects:
            self.take_back(changed.entry, call.scope.prefix)
            return None
        raise self._step_changed(call, changed, effects)

    def take_back(self, entry: Entry, prefix: bytes) -> None:
        """Let the records of a scope from one on no longer count; whoever asks for it has looked at the effects among them."""
        self.log.queue(VOID, prefix, pack_void(entry.seq, self.journal.upto))
        self.journal.void(entry.seq, prefix)

    def _step_changed(self, call: Call, changed: Changed, effects: list[str]) -> StepChanged:
        step = call.key.decode()
        names = argument_names(*unwrapped(call.fn, call.args, call.kwargs))
        now, then = hints(call.fingerprint), hints(changed.head.fingerprint)
        differing = [name for i, name in enumerate(names) if now[i : i + 1] != then[i : i + 1]]
        if len(now) != len(then):
            what = f"it is called with {len(now)} argument{'s' * (len(now) != 1)} now and was recorded with {len(then)}"
        elif differing:
            what = f"{', '.join(repr(name) for name in differing)} differ{'s' * (len(differing) == 1)} from what was recorded"
        else:
            what = "its key= differs from the recorded one"
        code = " The function's code has changed since the run began." if self._source_changed else ""
        return StepChanged(
            f"step {step!r} of run {self.id} changed: {what}.{code} It was not run, and every record is kept. "
            f"{self._ways_on(step, effects)}{self._what_stays(changed, effects)}",
            run_id=self.id,
            step=step,
            arguments=tuple(differing),
        )

    def _what_stays(self, changed: Changed, effects: list[str]) -> str:
        """Say that effects in other parts of the program came later: they may stand in the way of a change that reaches them."""
        later = [] if effects else self.journal.effects_after(changed.entry, b"")
        if not later:
            return ""
        named = ", ".join(later[:3]) + (f" and {len(later) - 3:,} more" if len(later) > 3 else "")
        return (
            f" Effects in other parts of this run were begun later ({named}): they stay, and if what leads to them has changed "
            "too, 'rerun' is refused there."
        )

    def rewinding(self, *step: str) -> str:
        """Return the command that takes records of this run back, as a message names it."""
        return command("rewind", self.id, *step, *store_options(self.store))

    def _ways_on(self, step: str, effects: list[str]) -> str:
        """Say what can be done about a changed step."""
        rewind = f"{self.rewinding(step)} voids the records from this step on"
        if effects:
            way = f"on_change='rerun' would take back effects that were begun ({', '.join(effects)}), so it is refused."
            rewind += " (what is in the ledger stays there: an effect with the same key does not happen again)"
        else:
            way = "To run it and what follows with the new inputs: on_change='rerun', or"
        return f"{way} {rewind}; on_change='reuse' hands the recorded result on."

    # --- the run as a whole --------------------------------------------------------------------------------------------------

    def effect(self, key: str) -> None:
        """Record that a marker or an intent of this key began; its truth is in the ledger."""
        self.log.queue(EFFECT, key.encode("utf-8", "surrogatepass"), b"")
        self.log.write()

    def complete(self, value: object, started: float) -> None:
        """Record the run's result.

        Raises:
            UnencodableError: the result cannot be recorded; every step is, and the run is not finished.
            Halt: one was raised in this drive and swallowed by the program.
        """
        if self._halted is not None:
            announce(self._halted)
            raise self._halted
        try:
            body = self.codecs.encode(value)
        except UnencodableError as exc:
            raise UnencodableError(
                f"run {self.id} came to its end, and its result cannot be recorded: {ended(exc)} All its steps are recorded; "
                "called again, it replays them and returns here. Let the function return data that can be recorded.",
                path=exc.path,
                type_name=exc.type_name,
            ) from exc
        self.log.queue(END, b"", pack_head(0, b"", 0, started, time() - started) + body)

    def fail(self, error: BaseException) -> None:
        """Record that an exception left the run, and which steps it came from: those are tried again.

        What is no ``Exception`` (a signal, a cancellation) is no failure of the run and is not recorded.

        Raises:
            Halt: one was raised in this drive, and the program made this exception, or a group with it, of it.
        """
        found = list(chain(error))
        halted = self._halted
        announce(halted or error)
        if halted is not None and error is not halted and (isinstance(error, Exception) or any(one is halted for one in found)):
            raise halted from error
        if not isinstance(error, Exception):
            return
        ids = {id(one) for one in found}
        steps = [seq for one, seq in self._failures if id(one) in ids]
        origin = {"steps": steps, "at": time(), "error": encode_failure(error, self.codecs)}
        self.log.queue(ENDED, b"", self.codecs.encode(origin))

    def halted_at(self, call: Call, halted: Halt) -> Halt:
        """Remember a Halt that left a step, and return it; of a log that failed it is told which step met that."""
        if isinstance(halted, LogPoisoned) and self._halted is None:
            halted = LogPoisoned(f"step {call.key.decode()!r} of run {self.id} is not recorded: {halted}", path=halted.path)
        if self._halted is None:
            self._halted = halted
        announce(halted)  # a session's run has no end at which it could be done
        return halted

    def halt(self, halted: Halt) -> None:
        """Remember a condition that must reach the caller, in case the program swallows it."""
        self._halted = halted

    def close(self) -> None:
        """End this drive: what is queued becomes durable, and the lock is free."""
        self.active = False
        if self.syncer is not None:
            self.syncer.stop()
        self.log.close()
