"""Workloads on a simulated disk, and the oracle that judges what recovery makes of what the power cut left."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from letitloop.testing import CrashState, SimFs
from tests.crash.worlds import World

PATH = "/sim/run.wal"
NOT_JUDGED = (".lock",)  # notes about calls in flight: lost in a power cut, and nothing depends on them
STEP = 16
GUARDED = 40


class Violation(AssertionError):
    """A promise was broken; the text names which, and in which state."""


class Killed(BaseException):
    """The simulated process is dead."""


class Mortal:
    """An ``Fs`` whose process dies right after its ``last`` operation that changes something; no call succeeds after that.

    With ``half`` a write that is the last operation is cut in its middle, as the kernel may do to a killed writer.
    """

    CHANGES = frozenset({"open", "pwrite", "truncate", "sync", "sync_dir", "replace", "unlink", "mkdir"})

    def __init__(self, fs: SimFs, last: int, *, half: bool = False) -> None:
        self._fs = fs
        self._left = last
        self._half = half
        self.dead = False

    def __getattr__(self, name: str):
        inner = getattr(self._fs, name)

        def call(*args, **kwargs):
            if self.dead:
                raise Killed
            before = len(self._fs.operations)
            if name == "pwrite" and self._half and self._left == 1:
                handle, data, offset = args
                args = (handle, data[: len(data) // 2], offset)
            result = inner(*args, **kwargs)
            self._left -= len(self._fs.operations) - before
            if name in self.CHANGES and self._left <= 0:
                self.dead = True
                raise Killed
            return result

        return call


@dataclass
class History:
    """What a workload has asked for: the records that may be there, in their order.

    ``versions`` has more than one sequence around a compaction, when either the old or the new one may be found.
    """

    versions: list[list[tuple[bytes, bytes]]] = field(default_factory=lambda: [[]])

    def append(self, key: bytes, payload: bytes) -> None:
        for version in self.versions:
            version.append((key, payload))


@dataclass(frozen=True)
class Promise:
    """An acknowledgement: from here on the log starts with these keys, in this order; or with the ``other`` ones."""

    keys: tuple[bytes, ...] = ()
    other: tuple[bytes, ...] | None = None

    def kept_by(self, keys: tuple[bytes, ...]) -> bool:
        return any(keys[: len(one)] == one for one in (self.keys, self.other) if one is not None)


@dataclass(frozen=True)
class Kept:
    """An acknowledgement by one of several threads: from here on this key is found."""

    key: bytes


Workload = Callable[[World, object, SimFs, History], None]


def run(world: World, workload: Workload, *, strict_dirs: bool) -> tuple[SimFs, History]:
    fs, history = SimFs(strict_dirs=strict_dirs), History()
    workload(world, fs, fs, history)
    return fs, history


def promised(acks: tuple[Hashable, ...]) -> Promise:
    """Return the last promise."""
    return next((ack for ack in reversed(acks) if isinstance(ack, Promise)), Promise())


def found(log) -> list[tuple[bytes, bytes]]:
    return [(entry.key, log.read(entry)) for entry in log.entries if entry.kind >= STEP]


def judge(state: CrashState, got: list[tuple[bytes, bytes]], history: History, *, where: str) -> None:
    """Every record is one that was asked for, bit for bit, without a hole, and none that was promised is missing."""
    promise, keys = promised(state.acks), tuple(key for key, _ in got)
    if not promise.kept_by(keys) or any(ack.key not in keys for ack in state.acks if isinstance(ack, Kept)):
        kind = "LOST-ACK"
    elif any(got == version[: len(got)] for version in history.versions):
        return
    else:
        known = any(keys == tuple(key for key, _ in version[: len(got)]) for version in history.versions)
        kind = "WRONG-VALUE" if known else "PHANTOM"
    raise Violation(f"{kind} {where}: found {keys}, {promise}; {state.why} (instant {state.instant})")


def recover(world: World, fs: SimFs, state: CrashState, history: History, *, where: str, allowed: tuple[type[BaseException], ...]):
    """Open the log as the next process would, judge it, and promise what was handed out."""
    try:
        log = world.open_log(PATH, fs=fs, guarded=frozenset({GUARDED}))
    except allowed:
        return None
    except BaseException as error:
        raise Violation(f"EXCEPTION {where}: {error!r}; {state.why} (instant {state.instant})") from error
    got = found(log)
    judge(state, got, history, where=where)
    fs.ack(Promise(tuple(key for key, _ in got)))
    return log


def power_cuts(
    world: World,
    fs: SimFs,
    history: History,
    *,
    deep: int = 1,
    allowed: tuple[type[BaseException], ...] = (),
    per_instant: int = 5000,
    seed: int = 0,
    start: int = 0,
) -> int:
    """Cut the power at every instant, in every legal way, and recover; in every ``deep``-th state cut it during recovery as well.

    Return how many states were judged.
    """
    states = 0
    for state in fs.crash_states(per_instant=per_instant, seed=seed, leave_out=NOT_JUDGED, start=start):
        states += 1
        again = SimFs.from_state(state, strict_dirs=fs.strict_dirs)
        log = recover(world, again, state, history, where="after a power cut", allowed=allowed)
        if log is None or not deep or states % deep:
            continue
        got = found(log)
        key, data = _twin(got, history)
        after = History([[*got, (key, data)]])
        log.append(STEP, key, data)
        again.ack(Promise((*promised(again.acks).keys, key)))
        log.abandon()
        for second in again.crash_states(per_instant=per_instant, seed=seed, leave_out=NOT_JUDGED):
            states += 1
            third = SimFs.from_state(second, strict_dirs=fs.strict_dirs)
            log = recover(world, third, second, after, where="after a power cut during recovery", allowed=allowed)
            if log is not None:
                first = found(log)
                log.abandon()
                log = world.open_log(PATH, fs=third)
                if found(log) != first:
                    raise Violation(f"recovery is not idempotent; {second.why}")
                log.abandon()
    return states


def _twin(got: list[tuple[bytes, bytes]], history: History) -> tuple[bytes, bytes]:
    """Return a new record of the very size of the first one that was lost, so that what follows it would fit behind the new one."""
    for version in history.versions:
        if got == version[: len(got)] and len(got) < len(version):
            key, data = version[len(got)]
            return b"a" * len(key), b"r" * len(data)
    return b"after", b"recovery"


def kills_then_power_cuts(world: World, workload: Workload, *, strict_dirs: bool, per_instant: int = 400) -> int:
    """Kill the process after each of its operations, let a second one go on in the same page cache, then cut the power."""
    whole, _ = run(world, workload, strict_dirs=strict_dirs)
    states = 0
    for last, half in itertools.product(range(1, len(whole.operations) + 1), (False, True)):
        if half and whole.operations[last - 1].kind != "write":
            continue
        fs, history = SimFs(strict_dirs=strict_dirs), History()
        try:
            workload(world, Mortal(fs, last, half=half), fs, history)
        except Killed:
            pass
        fs.kill()
        state = fs.kill_state()
        start = len(fs.operations)
        log = recover(world, fs, state, history, where=f"after a kill at operation {last}", allowed=())
        assert log is not None
        got = found(log)
        history = History([*[list(version) for version in history.versions], [*got, (b"second", b"life")]])
        log.append(STEP, b"second", b"life")
        fs.ack(Promise((*[key for key, _ in got], b"second")))
        states += power_cuts(world, fs, history, deep=0, per_instant=per_instant, start=start)
    return states


# --- workloads ---------------------------------------------------------------------------------------------------------------


def payload(index: int, size: int = 40) -> bytes:
    return (f"{index:04}".encode() * (size // 4 + 1))[:size]


def _append(log, fs: SimFs, history: History, key: bytes, data: bytes, kind: int = STEP) -> None:
    history.append(key, data)
    log.append(kind, key, data)
    fs.ack(Promise((*promised(fs.acks).keys, key)))


def appends(world: World, disk, fs: SimFs, history: History) -> None:
    log = world.open_log(PATH, fs=disk)
    for index in range(3):
        _append(log, fs, history, b"k%d" % index, payload(index))
    _append(log, fs, history, b"large", payload(9, 1300))
    _append(log, fs, history, b"empty", b"")


def group_commit(world: World, disk, fs: SimFs, history: History) -> None:
    log = world.open_log(PATH, fs=disk)
    _append(log, fs, history, b"first", payload(0))
    for batch in range(2):
        keys = [b"b%d-%d" % (batch, index) for index in range(4)]
        for index, key in enumerate(keys):
            history.append(key, payload(index, 350))
            log.queue(STEP, key, payload(index, 350))
        log.flush()
        fs.ack(Promise((*promised(fs.acks).keys, *keys)))


def several_writes_one_sync(world: World, disk, fs: SimFs, history: History) -> None:
    """The level ``process``: the kernel has several writes before anybody asks for a sync."""
    log = world.open_log(PATH, fs=disk, sync="process")
    for index in range(4):
        history.append(b"p%d" % index, payload(index, 300))
        log.append(STEP, b"p%d" % index, payload(index, 300))
    history.append(b"power", b"cut")
    log.append(STEP, b"power", b"cut", power=True)
    fs.ack(Promise((b"p0", b"p1", b"p2", b"p3", b"power")))
    for index in range(4, 6):
        history.append(b"p%d" % index, payload(index, 300))
        log.append(STEP, b"p%d" % index, payload(index, 300))


def extension(world: World, disk, fs: SimFs, history: History) -> None:
    """Records that outgrow what was allocated, one of them larger than a step of it."""
    log = world.open_log(PATH, fs=disk)
    for index, size in enumerate((7000, 3000, 9000, 500)):
        _append(log, fs, history, b"x%d" % index, payload(index, size))


def clean_close(world: World, disk, fs: SimFs, history: History) -> None:
    for life in range(3):
        log = world.open_log(PATH, fs=disk)
        for index in range(2 if life < 2 else 0):
            _append(log, fs, history, b"l%d-%d" % (life, index), payload(index))
        log.close()


def guarded(world: World, disk, fs: SimFs, history: History) -> None:
    log = world.open_log(PATH, fs=disk)
    for index in range(3):
        _append(log, fs, history, b"g%d" % index, payload(index), GUARDED)


def compaction(world: World, disk, fs: SimFs, history: History) -> None:
    log = world.open_log(PATH, fs=disk)
    for index in range(4):
        _append(log, fs, history, b"c%d" % index, payload(index, 200))
    keep = [entry for entry in log.entries if entry.key in (b"c1", b"c3")]
    kept = [pair for pair in history.versions[0] if pair[0] in (b"c1", b"c3")]
    history.versions.append(list(kept))
    fs.ack(Promise(promised(fs.acks).keys, other=(b"c1", b"c3")))
    log.compact(lambda _: keep)
    fs.ack(Promise((b"c1", b"c3")))
    _append(log, fs, history, b"c4", payload(4, 200))
    log.close()


def threads(world: World, disk, fs: SimFs, history: History) -> None:
    """Group commit as it comes: the order is the threads' own, and is read from the log afterwards."""
    log = world.open_log(PATH, fs=disk)
    together = threading.Barrier(5)
    failures: list[BaseException] = []

    def work(name: int) -> None:
        try:
            together.wait()
            for index in range(4):
                key = b"t%d-%d" % (name, index)
                log.append(STEP, key, payload(index, 90))
                fs.ack(Kept(key))
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(name,)) for name in range(5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise Violation(f"EXCEPTION in a thread: {failures}")
    history.versions[0] += found(log)
    if len(history.versions[0]) != 20:
        raise Violation(f"LOST: {len(history.versions[0])} records of 20 are in the log")


WORKLOADS: dict[str, Workload] = {
    "append": appends,
    "group commit": group_commit,
    "several writes, one sync": several_writes_one_sync,
    "extension": extension,
    "clean close": clean_close,
    "compaction": compaction,
}
