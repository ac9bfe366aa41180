"""Looking at runs and looking after them: what ``fn.runs`` and ``lil`` show, and what they may change."""

from __future__ import annotations

from letitloop.codecs import default_codecs
from letitloop.errors import CodecError, InvalidArgument, LogError, LogLocked, RunNotFound
from letitloop.runs.failures import describe
from letitloop.runs.identity import function_goal
from letitloop.runs.journal import standing
from letitloop.runs.opening import ROOM, Opening, prepare, seal_key_from
from letitloop.runs.records import (
    ATTEMPT,
    EFFECT,
    END,
    ENDED,
    FAILED,
    GUARDED,
    OK,
    RESUME,
    START,
    STEP_KINDS,
    VOID,
    as_fields,
    pack_void,
    unpack_head,
)
from letitloop.wal.format import CLEAN, TORN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from letitloop.codecs import Codecs
    from letitloop.runs.opening import Spec
    from letitloop.store.protocol import Store
    from letitloop.wal.format import Entry
    from letitloop.wal.recovery import View

__all__ = ["Life", "RunInfo", "Runs", "StepInfo", "describe_run", "find_run", "forget_run", "list_runs", "rewind_run"]


class StepInfo:
    """One record of a run, for people.

    Attributes:
        key: the step's key, as ``lil rewind`` takes it.
        status: ``"ok"``, ``"failed"``, ``"retried"`` (an attempt that failed and was followed by another) or ``"effect"``.
        seq: the record's sequence number.
        life: in which life of the run it was recorded, from 1.
        started: seconds since 1970-01-01 UTC; 0 for an effect.
        took: seconds.
        size: the recorded value's or failure's bytes.
        error: class and message of a failure, else empty.
        traceback: the failure's traceback, else empty.
    """

    __slots__ = ("error", "key", "life", "seq", "size", "started", "status", "took", "traceback")

    def __init__(self, key: str, status: str, seq: int, life: int) -> None:
        self.key = key
        self.status = status
        self.seq = seq
        self.life = life
        self.started = 0.0
        self.took = 0.0
        self.size = 0
        self.error = ""
        self.traceback = ""

    def __repr__(self) -> str:
        return f"<{self.status} {self.key}>"


class Life:
    """One drive of a run by one process.

    Attributes:
        at: when it began, in seconds since 1970-01-01 UTC.
        pid: the process.
        in_flight: the steps that were running when the life before it ended, as far as that could be told.
        restart: what ended the process before, if a watcher started this one in its place: ``SIGKILL``; else empty.
    """

    __slots__ = ("at", "in_flight", "pid", "restart")

    def __init__(self, at: float, pid: int, in_flight: tuple[str, ...], restart: str = "") -> None:
        self.at = at
        self.pid = pid
        self.in_flight = in_flight
        self.restart = restart


class RunInfo:
    """What is known of a run.

    Attributes:
        id: its name in the store.
        goal_id: its goal.
        function: the function that it runs, ``module:qualname``.
        status: ``"running"``, ``"finished"``, ``"failed"``, ``"interrupted"`` or ``"damaged"``.
        created: when it began, in seconds since 1970-01-01 UTC.
        updated: when its last record was made.
        steps: its records that count, in their order.
        lives: the drives of it, the first one included.
        error: class and message of the exception that ended it, else empty.
        pid: the process that drives it now, else 0.
        size: its log's size in bytes.
        parent: the run inside which it was called, else None.
        instance: the random name that its markers go by in the ledger; empty if its first record cannot be read.
        detail: what recovery would say of its log; empty if the log is whole.
    """

    __slots__ = (
        "created",
        "detail",
        "error",
        "function",
        "goal_id",
        "id",
        "instance",
        "lives",
        "parent",
        "pid",
        "size",
        "status",
        "steps",
        "updated",
    )

    def __init__(self, name: str) -> None:
        self.id = name
        self.goal_id = ""
        self.function = ""
        self.status = "interrupted"
        self.created = 0.0
        self.updated = 0.0
        self.steps: list[StepInfo] = []
        self.lives: list[Life] = []
        self.error = ""
        self.pid = 0
        self.size = 0
        self.parent: str | None = None
        self.instance = ""
        self.detail = ""

    def __repr__(self) -> str:
        return f"<run {self.id}: {self.status}, {len(self.steps)} records>"


def list_runs(store: Store) -> list[RunInfo]:
    """Return what is known of every run in a store, the newest first."""
    found = [describe_run(store, name) for name in store.names(ROOM)]
    return sorted(found, key=lambda run: (run.created, run.id), reverse=True)


def find_run(store: Store, prefix: str) -> str:
    """Return the name of the one run whose name starts with ``prefix``.

    Raises:
        RunNotFound: there is none, or more than one.
    """
    names = store.names(ROOM)
    if prefix in names:
        return prefix
    matching = [name for name in names if name.startswith(prefix)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise RunNotFound(
            f"{prefix!r} names {len(matching)} runs of {store.location}: {', '.join(matching[:5])}. Give more of the name."
        )
    known = f"it has {len(names)}: see 'lil runs'" if names else "it holds none"
    raise RunNotFound(f"there is no run {prefix!r} in the store {store.location}; {known}.")


def describe_run(store: Store, name: str, *, codecs: Codecs | None = None, seal_key: bytes | None = None) -> RunInfo:
    """Return what is known of one run; a damaged log is described as far as it can be read.

    Args:
        store: the store.
        name: the run's name.
        codecs: how its failures were encoded; the registered defaults if left out.
        seal_key: verify a sealed log with this key.

    Raises:
        RunNotFound: there is no run of that name.
        SealError: the seal is broken, or the key is wrong.
    """
    info = RunInfo(name)
    try:
        view = store.view_log(ROOM, name, seal_key=seal_key)
    except FileNotFoundError:
        raise RunNotFound(f"there is no run {name!r} in the store {store.location}.") from None
    except LogError as exc:
        if seal_key is not None:
            raise
        info.status, info.detail = "damaged", str(exc)
        return info
    try:
        try:
            _read(info, view, codecs or default_codecs)
        except (LogError, CodecError) as exc:
            info.status, info.detail = "damaged", str(exc)
            return info
        pid = store.holder(ROOM, name)
        if pid is not None:
            info.status, info.pid = "running", pid
        elif view.found.verdict not in (CLEAN, TORN):
            info.status = "damaged"
        if view.found.verdict != CLEAN:
            info.detail = view.found.detail
    finally:
        view.close()
    return info


def _read(info: RunInfo, view: View, codecs: Codecs) -> None:
    info.size = view.found.size
    for entry in standing(view.entries, view.read, view.path):
        if entry.kind in (START, RESUME):
            _read_life(info, entry, view, codecs)
        elif entry.kind in STEP_KINDS or entry.kind == EFFECT:
            info.steps.append(_read_step(entry, view, codecs, len(info.lives)))
            info.updated = max(info.updated, info.steps[-1].started + info.steps[-1].took)
        elif entry.kind == END:
            head = unpack_head(view.read(entry))
            info.status, info.error = "finished", ""
            info.updated = max(info.updated, head.started + head.took)
        elif entry.kind == ENDED:
            kind, text, _ = describe(as_fields(codecs.decode(view.read(entry)), error=bytes)["error"], codecs)
            info.status, info.error = "failed", f"{kind}: {text}"
    if info.function == _SESSION and info.status == "interrupted" and _every_part_ended(info.steps):
        info.status = "finished"


_SESSION = "letitloop.integration.sessions:_session"
_LAST = ("result", "over", "cancelled")
"""What the record is called with which a part of a session ends: a framework's run of an agent, a team, a crew or a flow."""


def _every_part_ended(steps: list[StepInfo]) -> bool:
    """Tell whether all that was begun in a session has come to its end. A session itself has none: it can always go on."""
    done = {step.key for step in steps if step.status == "ok"}
    broken_off = {step.key.partition("/")[0] for step in steps if step.key.partition("/")[2].startswith("interrupted ")}
    parts = {step.key.partition("/")[0].removeprefix("run ") for step in steps} - broken_off
    return bool(steps) and all(any(f"{part}/{last}" in done for last in _LAST) for part in parts)


def _read_life(info: RunInfo, entry: Entry, view: View, codecs: Codecs) -> None:
    said: dict[str, Any] = as_fields(codecs.decode(view.read(entry)))
    if entry.kind == START:
        as_fields(said, goal=str, function=str, created=float, pid=int, instance=str)
    else:
        as_fields(said, at=float, pid=int, in_flight=list)
    at = said["created" if entry.kind == START else "at"]
    if entry.kind == START:
        info.goal_id, info.function, info.created = said["goal"], said["function"], at
        info.parent = said.get("parent")
        info.instance = str(said.get("instance", ""))
    restart = str(said.get("restart") or "")
    info.lives.append(Life(at, said["pid"], tuple(str(key) for key in said.get("in_flight", ())), restart))
    info.updated = max(info.updated, at)
    if info.status == "failed":
        info.status, info.error = "interrupted", ""  # it was taken up again since


def _read_step(entry: Entry, view: View, codecs: Codecs, life: int) -> StepInfo:
    status = {OK: "ok", FAILED: "failed", ATTEMPT: "retried"}.get(entry.kind, "effect")
    step = StepInfo(entry.key.decode("utf-8", "replace"), status, entry.seq, life)
    if entry.kind == EFFECT:
        return step
    payload = view.read(entry)
    head = unpack_head(payload)
    step.started, step.took, step.size = head.started, head.took, len(payload) - head.body_at
    if entry.kind != OK:
        kind, text, step.traceback = describe(payload[head.body_at :], codecs)
        step.error = f"{kind}: {text}"
    return step


def forget_run(store: Store, name: str) -> list[str]:
    """Remove a run and the runs inside it, for good; return the names of what was removed.

    Raises:
        RunNotFound: there is no run of that name.
        LogLocked: a live process drives it, or a run inside it; nothing was removed.
    """
    if name not in store.names(ROOM):
        raise RunNotFound(f"there is no run {name!r} in the store {store.location}.")
    family = [name]
    parents = {run.id: run.parent for run in list_runs(store)}
    for one in family:
        family += [child for child, parent in parents.items() if parent == one and child not in family]
    for one in family:
        pid = store.holder(ROOM, one)
        if pid is not None:
            raise LogLocked(
                f"run {one} is driven by process {pid or '(unknown)'}, which is alive. Nothing was removed. Wait for it to end.",
                path=one,
                pid=pid,
            )
    for one in reversed(family):
        store.remove(ROOM, one)
    return family


def rewind_run(store: Store, name: str, step: str, *, seal_key: bytes | str | None = None) -> list[str]:
    """Void a run's records from a step on; return the keys of the steps that will run again.

    Nothing is erased: a VOID record is appended. Effects have happened and stay on record; their ledger keeps them from
    happening again.

    Args:
        store: the store.
        name: the run's name.
        step: the step's key, as ``lil show`` prints it.
        seal_key: the key of a sealed log.

    Raises:
        RunNotFound: there is no run of that name.
        InvalidArgument: it has no such step on record.
        LogLocked: a live process drives it.
    """
    try:
        view = store.view_log(ROOM, name)
        view.close()
        key = seal_key_from(seal_key) if view.header.sealed else None
        log = store.open_log(ROOM, name, create=False, guarded=GUARDED, seal_key=key)
    except FileNotFoundError:
        raise RunNotFound(f"there is no run {name!r} in the store {store.location}.") from None
    try:
        log.lock.hand_on()
        records = [entry for entry in standing(log.entries, log.read, log.path) if entry.kind in STEP_KINDS]
        wanted = step.encode("utf-8", "surrogatepass")
        first = next((entry for entry in records if entry.key == wanted), None)
        if first is None:
            keys = list(dict.fromkeys(entry.key.decode("utf-8", "replace") for entry in records))
            raise InvalidArgument(
                f"run {name} has no step {step!r} on record; it has {', '.join(keys[:10]) or 'none'}{', …' * (len(keys) > 10)}. "
                "Nothing was changed."
            )
        log.append(VOID, b"", pack_void(first.seq, log.next_seq), power=True)
        return list(dict.fromkeys(entry.key.decode("utf-8", "replace") for entry in records if entry.seq >= first.seq))
    finally:
        log.close()


class Runs:
    """The runs of one durable function; ``fn.runs``.

    Example:
        >>> from letitloop import durable
        >>> @durable(goal_id="runs-example", store="memory:runs-example")
        ... def double(n: int) -> int:
        ...     return 2 * n
        >>> double(21)
        42
        >>> [run.status for run in double.runs]
        ['finished']
        >>> double.runs.forget(21)
        True
    """

    __slots__ = ("_spec",)

    def __init__(self, spec: Spec) -> None:
        self._spec = spec

    def __iter__(self) -> Iterator[RunInfo]:
        return iter(self.list())

    def list(self) -> list[RunInfo]:
        """Return what is known of every run of this function, the newest first."""
        function = function_goal(self._spec.fn)
        return [run for run in list_runs(self._spec.store()) if run.function == function]

    def show(self, *args: Any, **kwargs: Any) -> RunInfo:
        """Return what is known of the run that a call with these arguments means.

        Raises:
            RunNotFound: there is none.
        """
        opening = self._opening(args, kwargs)
        return describe_run(opening.store, opening.name, codecs=self._spec.codecs)

    def forget(self, *args: Any, **kwargs: Any) -> bool:
        """Remove the run that a call with these arguments means, so that the next such call is a new run.

        Returns:
            Whether there was one.

        Raises:
            LogLocked: a live process drives it.
        """
        opening = self._opening(args, kwargs)
        if opening.name not in opening.store.names(ROOM):
            return False
        forget_run(opening.store, opening.name)
        return True

    def _opening(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Opening:
        return prepare(self._spec, args, kwargs)
