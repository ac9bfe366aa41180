"""From a call of a durable function to a run that can be driven, or to the result it had."""

from __future__ import annotations

import os
import sys
import time

from letitloop.codecs import default_codecs
from letitloop.errors import InvalidArgument, LogLocked, RunFinished, StoreError, command
from letitloop.runs.identity import bound, function_goal, run_name, source_fingerprint
from letitloop.runs.importing import check_may_run
from letitloop.runs.journal import Journal, Value
from letitloop.runs.records import GUARDED, RESUME, START, Head, as_fields
from letitloop.runs.run import Run
from letitloop.runs.scope import current_scope
from letitloop.store.directory import resolve_store
from letitloop.store.supervised import levels
from letitloop.version import __version__
from letitloop.wal.format import SUSPECT, TORN
from letitloop.wal.lock import NOTE_SIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from letitloop.codecs import Codecs
    from letitloop.store.protocol import Store
    from letitloop.wal.log import Log

__all__ = ["ROOM", "SEAL_VARIABLE", "Opening", "Spec", "open_run", "prepare", "seal_key_from"]

ROOM = "runs"
SEAL_VARIABLE = "LETITLOOP_SEAL_KEY"

_CHOICES = {
    "on_change": ("raise", "rerun", "reuse"),
    "on_complete": (None, "return", "restart", "raise"),
    "on_locked": ("raise", "wait"),
    "sync": ("power", "process"),
}


class Spec:
    """The options of a durable function, checked when it is decorated.

    Raises:
        InvalidArgument: an option has a value that means nothing.
    """

    __slots__ = ("_store", "codecs", "fn", "goal_id", "on_change", "on_complete", "on_locked", "seal_key", "source", "sync")

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        goal_id: str | Callable[..., str] | None,
        store: Store | str | os.PathLike[str] | None,
        on_change: str,
        on_complete: str | None,
        on_locked: str,
        sync: str,
        codecs: Codecs | None,
        seal_key: bytes | str | None,
    ) -> None:
        given = {"on_change": on_change, "on_complete": on_complete, "on_locked": on_locked, "sync": sync}
        for option, value in given.items():
            if value not in _CHOICES[option]:
                choices = ", ".join(repr(choice) for choice in _CHOICES[option])
                raise InvalidArgument(f"@durable({option}={value!r}): it is one of {choices}. Nothing was run.")
        if goal_id is not None and not callable(goal_id) and not is_name(goal_id):
            raise InvalidArgument(
                f"@durable(goal_id={goal_id!r}): it is a string, or a function of the arguments that returns one. Nothing was run."
            )
        self.fn = fn
        self.goal_id = goal_id
        self._store = store
        self.on_change = on_change
        self.on_complete = on_complete
        self.on_locked = on_locked
        self.sync = sync
        self.codecs = codecs or default_codecs
        self.seal_key = seal_key
        self.source = source_fingerprint(fn)

    @property
    def has_store(self) -> bool:
        """Whether a store was named."""
        return self._store is not None

    def store(self) -> Store:
        """Return the store, looked up anew: an environment variable may have been set since the function was decorated."""
        return resolve_store(self._store)


def is_name(value: object) -> bool:
    """Tell whether a value is a string with something in it."""
    return isinstance(value, str) and bool(value)


class Opening:
    """Which run a call means.

    Attributes:
        name: the run's name in its store.
        goal: its goal.
        arguments: the fingerprint of the call's arguments.
        parent: the run inside which it is called, None outside any.
        on_complete: what a finished run does, decided.
    """

    __slots__ = ("arguments", "around", "goal", "name", "on_complete", "opens", "parent", "spec", "store")

    def __init__(
        self, spec: Spec, store: Store, goal: str, arguments: bytes, name: str, parent: str | None, on_complete: str
    ) -> None:
        self.spec = spec
        self.store = store
        self.goal = goal
        self.arguments = arguments
        self.name = name
        self.parent = parent
        self.on_complete = on_complete
        self.around: Run | None = None  # the run inside which it is called
        self.opens: Callable[[Opening], Run | Value] | None = None  # see Run.opens


def prepare(spec: Spec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Opening:
    """Find out which run a call means; nothing is read or written.

    An unnamed durable function that is called inside a run is a part of that run: its own run is named after its place there, so
    it is resumed with its parent, and finished it returns its result.

    Raises:
        InvalidArgument: the goal that ``goal_id`` computed is no string, or empty.
    """
    goal = spec.goal_id
    named = goal is not None
    if not callable(goal):
        _refuse_opaque_self(spec, args)
    if goal is not None and callable(goal):
        goal = goal(*args, **kwargs)
        if not is_name(goal):
            raise InvalidArgument(
                f"goal_id of {function_goal(spec.fn)} returned {goal!r}; it has to return a string. Nothing was run."
            )
    goal = str.__str__(goal) if goal else function_goal(spec.fn)  # a plain string, if it is an enum's member
    arguments = spec.codecs.fingerprint((), bound(spec.fn, args, kwargs, spec.codecs))
    around = current_scope()
    if around is not None and not around.run.active:
        around = None
    scope = None if named else around
    place = b""
    if scope is not None:
        # counted by goal and arguments: threads and tasks may arrive in another order next time
        inner = scope.inner(f"{goal} {arguments.hex()}"[-500:])
        place = scope.run.instance.encode() + b"/" + inner.prefix
    on_complete = spec.on_complete or ("return" if named or place else "restart")
    parent = scope.run.id if scope is not None and place else None
    # a part of a run lies where the run does, unless it says otherwise
    store = scope.run.store if scope is not None and not spec.has_store else spec.store()
    opening = Opening(spec, store, goal, arguments, run_name(goal, arguments, place), parent, on_complete)
    if around is not None:
        opening.around, opening.opens = around.run, around.run.opens
    return opening


def _refuse_opaque_self(spec: Spec, args: tuple[Any, ...]) -> None:
    """Refuse a method of an object that cannot be told from another of its class: it would be handed the other's result."""
    code = getattr(spec.fn, "__code__", None)
    if not args or code is None or code.co_varnames[:1] != ("self",):
        return
    if not spec.codecs.tells(args[0]):
        raise InvalidArgument(
            f"{function_goal(spec.fn)} is a method, and nothing tells its object from another of {type(args[0]).__qualname__}, "
            "whose runs it would be handed. Nothing was run. Say which run is meant with "
            '@durable(goal_id=lambda self, …: f"…{self.id}"), or make the class a dataclass.'
        )


def open_run(opening: Opening) -> Run | Value:
    """Open the run for driving, or return the result that it had.

    Raises:
        LogLocked: another process drives it.
        RunFinished: it is finished, and ``on_complete="raise"``.
        StoreError: the store cannot be used, or the log under the run's name belongs to another run.
        LogError: the log cannot be used as it is; see :func:`letitloop.wal.recovery.open_log`.
        InvalidArgument: the program is only being imported.
    """
    check_may_run(f"run {opening.name}")
    if opening.opens is not None:
        return opening.opens(opening)
    spec = opening.spec
    _refuse_itself(opening)
    log = _open(opening)
    try:
        _tell_recovery(log, opening)
        journal = Journal(log.entries, log.read, spec.codecs, log.path)
        description = journal.description()
        _check_owner(description, opening, log)
        if journal.end is not None:
            reason = _reason(journal) if opening.on_complete != "return" else ""
            if reason:  # its process finished it, died, and the next one asks for it: once, as this record tells
                log.queue(RESUME, b"", spec.codecs.encode(_drive("at", time.time(), in_flight=[], restart=reason)))
                value, _ = journal.result()
                log.lock.hand_on()
                log.close()
                return value
            if opening.on_complete != "restart":
                value, head = journal.result()
                if opening.on_complete == "raise":
                    raise RunFinished(_finished(opening, head))
                if opening.parent is None and spec.on_complete is None:
                    _say(_finished(opening, head))
                log.close()
                return value
            log.compact(lambda _: ())
            journal = Journal([], log.read, spec.codecs, log.path)
            description = {}
        return _begin(opening, log, journal, description)
    except BaseException:
        log.lock.hand_on()
        log.abandon()  # not closed: the log is left as it was found
        raise


def _refuse_itself(opening: Opening) -> None:
    """Refuse a run inside itself, which would wait for its own end."""
    run = opening.around
    while run is not None:
        if run.id == opening.name and run.store.location == opening.store.location:
            raise LogLocked(
                f"run {opening.name} of {opening.goal!r} was called inside itself, with the same arguments. Nothing was run. "
                "Call it with other arguments, or leave goal_id out: an unnamed durable function in a run is a part of it.",
                path=run.log.path,
                pid=os.getpid(),
            )
        run = run.around


def _open(opening: Opening) -> Log:
    try:
        return _open_log(opening)
    except LogLocked as exc:
        if exc.pid not in (0, os.getpid()):
            raise
        # an opening that Ctrl+C cut short is perhaps nobody's any more, and only not yet collected
        import gc

        gc.collect()
        return _open_log(opening)


def _open_log(opening: Opening) -> Log:
    spec = opening.spec
    try:
        return opening.store.open_log(
            ROOM,
            opening.name,
            sync=spec.sync,
            seal_key=seal_key_from(spec.seal_key),
            wait=spec.on_locked == "wait",
            guarded=GUARDED,
        )
    except LogLocked as exc:
        who = "this process drives it already" if exc.pid == os.getpid() else f"process {exc.pid or '(unknown)'} drives it"
        raise LogLocked(
            f"run {opening.name} of {opening.goal!r} is under way: {who}. Nothing was run here, and two processes never work on "
            'one run. Wait for it to end, or have a decorated function wait for it: on_locked="wait".',
            path=exc.path,
            pid=exc.pid,
        ) from None


def _reason(journal: Journal) -> str:
    """Return what ended the process that drove the run before, if a watcher started this one in its place; else nothing."""
    around = levels()
    if not around:
        return ""
    then = as_fields(journal.last_drive().get("supervision") or {})
    return next((level.reason for level in around if isinstance(then.get(level.name), int) and then[level.name] < level.life), "")


def _drive(when: str, now: float, **more: object) -> dict[str, object]:
    """Return what is recorded of this drive of a run, and of the watchers around it."""
    said: dict[str, object] = {when: now, "pid": os.getpid(), **more}
    around = levels()
    if around:
        said["supervision"] = {level.name: level.life for level in around}
    return said


def _begin(opening: Opening, log: Log, journal: Journal, description: dict[str, object]) -> Run:
    spec = opening.spec
    now = time.time()
    in_flight: tuple[str, ...] = ()
    source_changed = False
    if description:
        done = journal.results(NOTE_SIZE)
        in_flight = tuple(note.decode("utf-8", "replace") for note in log.lock.left_behind if note not in done)
        source_changed = description.get("source") != spec.source
        _tell_resumption(opening, journal, in_flight)
        resume = _drive("at", now, in_flight=list(in_flight), restart=_reason(journal))
        log.queue(RESUME, b"", spec.codecs.encode(resume))
    else:
        description = {
            "goal": opening.goal,
            "function": function_goal(spec.fn),
            "named": spec.goal_id is not None,
            "arguments": opening.arguments,
            "source": spec.source,
            **_drive("created", now),
            "instance": os.urandom(16).hex(),
            "parent": opening.parent,
            "version": __version__,
        }
        log.queue(START, b"", spec.codecs.encode(description))
    log.write()  # a life that ends before its first record leaves its trace too
    run = Run(
        name=opening.name,
        goal=opening.goal,
        store=opening.store,
        log=log,
        journal=journal,
        codecs=spec.codecs,
        on_change=spec.on_change,
        description=description,
        in_flight=in_flight,
        source_changed=source_changed,
    )
    run.around = opening.around
    return run


def _check_owner(description: dict[str, object], opening: Opening, log: Log) -> None:
    if description and (description.get("goal"), description.get("arguments")) != (opening.goal, opening.arguments):
        raise StoreError(
            f"{log.path} belongs to another run (goal {description.get('goal')!r}), not to {opening.goal!r}: somebody renamed or "
            "copied it. It was left as it is and nothing was run; put it back under its own name."
        )


def seal_key_from(key: bytes | str | None) -> bytes | None:
    """Return the seal's key: the argument, else ``LETITLOOP_SEAL_KEY``, else None; a string counts as its UTF-8 bytes."""
    if key is None:
        key = os.environ.get(SEAL_VARIABLE) or None
    return key.encode() if isinstance(key, str) else key


def _tell_recovery(log: Log, opening: Opening) -> None:
    found = log.recovered
    if found.verdict in (TORN, SUSPECT):
        import logging  # 14 ms of import, for a log that was damaged

        logging.getLogger("letitloop").warning(
            "letitloop: run %s: %s; %d bytes were cut off and kept in the store's torn folder, and that step runs again",
            opening.name,
            found.detail,
            found.tail,
        )


def _tell_resumption(opening: Opening, journal: Journal, in_flight: tuple[str, ...]) -> None:
    logging = sys.modules.get("logging")
    if logging is not None:  # a program that logs; for any other nobody would hear it
        again = f"; in flight when its last process ended, and run again: {', '.join(in_flight)}" if in_flight else ""
        logging.getLogger("letitloop").info(
            "letitloop: run %s goes on with %d steps on record%s", opening.name, journal.steps_on_record(), again
        )


def _finished(opening: Opening, head: Head) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(head.started + head.took))
    what = "it is not run again" if opening.on_complete == "raise" else "this is its recorded result"
    return (
        f"letitloop: run {opening.name} of {opening.goal!r} was finished on {at}; {what}. For a new run: another goal_id or other "
        f'arguments, fn.runs.forget(…), {command("forget", opening.name)}, or on_complete="restart".'
    )


def _say(line: str) -> None:
    if sys.stderr is not None:  # None under pythonw
        try:
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - the visible notice that a named goal is done once
        except (OSError, ValueError):  # a closed stderr: the result counts, not the notice
            pass
