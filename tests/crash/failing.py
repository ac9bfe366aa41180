"""Layer L3: a disk that fails at the n-th call of a kind. After a failure nothing is acknowledged, and nothing that was is lost."""

from __future__ import annotations

import errno
import threading
import time
from dataclasses import replace

from letitloop.errors import Halt, LetItLoopError, LogPoisoned
from letitloop.testing import Fault, FaultFs, SimFs
from tests.crash.simulated import PATH, STEP, History, Promise, Violation, found, payload, power_cuts, promised
from tests.crash.worlds import World

FAULTS = [
    Fault("sync", error=errno.EIO),
    Fault("sync", error=errno.EIO, after=True),
    Fault("pwrite", error=errno.EIO),
    Fault("pwrite", error=errno.ENOSPC),
    Fault("pwrite", error=errno.ENOSPC, short=20, times=-1),
    Fault("pwrite", error=0, short=1),
    Fault("pwrite", error=0, short=33, times=3),
    Fault("truncate"),
    Fault("replace"),
    Fault("sync_dir"),
    Fault("open", error=errno.EMFILE),
    Fault("unlink", error=errno.EACCES),
]
NAMED = (LetItLoopError, LogPoisoned)


def _life(world: World, disk: FaultFs, fs: SimFs, history: History) -> None:
    log = world.open_log(PATH, fs=disk)

    def append(key: bytes, size: int) -> None:
        history.append(key, payload(len(key), size))
        log.append(STEP, key, payload(len(key), size))
        fs.ack(Promise((*promised(fs.acks).keys, key)))

    try:
        append(b"one", 40)
        append(b"large", 9000)
        for key in (b"batch-1", b"batch-2"):
            history.append(key, payload(1))
            log.queue(STEP, key, payload(1))
        log.flush()
        fs.ack(Promise((*promised(fs.acks).keys, b"batch-1", b"batch-2")))
        keep = [entry for entry in log.entries if entry.key != b"large"]
        history.versions.append([pair for pair in history.versions[0] if pair[0] != b"large"])
        kept = tuple(key for key, _ in history.versions[1])
        fs.ack(Promise(promised(fs.acks).keys, other=kept))
        log.compact(lambda _: keep)
        fs.ack(Promise(kept))
        append(b"last", 40)
        log.close()
    except LogPoisoned as poisoned:
        _nothing_more(log, poisoned)
        raise


def _nothing_more(log, poisoned: LogPoisoned) -> None:
    """The disk is well again, the log is not: nobody knows what the kernel dropped."""
    for attempt in (lambda: log.append(STEP, b"after", b""), lambda: log.queue(STEP, b"after", b""), log.flush, log.write):
        try:
            attempt()
        except LogPoisoned:
            continue
        raise Violation(f"ACK-AFTER-FAILURE: acknowledged after {poisoned}")
    log.close()


def every_call_fails_once(world: World) -> int:
    """Spoil the first, second, ... call of each kind until the workload passes unspoilt; then cut the power."""
    states = 0
    for fault in FAULTS:
        nth = 1
        while True:
            fs, history = SimFs(), History()
            disk = FaultFs(fs, replace(fault, nth=nth))
            what = f"{fault.kind} {nth} fails ({fault})"
            try:
                _life(world, disk, fs, history)
            except Violation:
                raise
            except NAMED as error:
                if not fault.error:
                    raise Violation(f"{what}: a short write is no failure: {error!r}") from error
            except BaseException as error:
                raise Violation(f"EXCEPTION {what}: {error!r}") from error
            if not disk.injected:
                break
            fs.kill()
            start = max(0, len(fs.operations) - 2)
            try:
                states += power_cuts(world, fs, history, deep=0, per_instant=300, start=start)
            except Violation as violation:
                raise Violation(f"{what}: {violation}") from violation
            disk.clear()
            log = world.open_log(PATH, fs=disk)
            got = tuple(key for key, _ in found(log))
            if not promised(fs.acks).kept_by(got):
                raise Violation(f"LOST-ACK after {what}: found {got}, {promised(fs.acks)}")
            log.append(STEP, b"goes on", b"")
            log.close()
            nth += 1
    return states


class Meeting(SimFs):
    """A disk whose sync waits until it is let go, so that others queue behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.syncing, self.go = threading.Event(), threading.Event()
        self.go.set()

    def sync(self, handle: int) -> None:
        self.syncing.set()
        assert self.go.wait(30)
        super().sync(handle)


class SlowDisk(SimFs):
    """A disk whose sync takes its time, as disks do, so that threads meet during it; it notices two at once."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = threading.Semaphore(1)
        self.overlapped = False

    def sync(self, handle: int) -> None:
        alone = self.syncs.acquire(blocking=False)
        self.overlapped = self.overlapped or not alone
        time.sleep(0.0002)
        super().sync(handle)
        if alone:
            self.syncs.release()


def one_leader_at_a_time(world: World) -> None:
    """Threads append as fast as they can: one syncs at a time, every record is there, and no watermark falls."""
    fs = SlowDisk()
    log = world.open_log(PATH, fs=fs)
    failures: list[BaseException] = []

    def work(name: int) -> None:
        try:
            for index in range(25):
                log.append(STEP, b"t%d-%d" % (name, index), b"x")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if failures or any(thread.is_alive() for thread in threads):
        raise Violation(f"STUCK or EXCEPTION among threads that append: {failures}")
    log.abandon()
    if fs.overlapped:
        raise Violation("TWO-SYNCS: two threads synced at the same time")
    try:
        log = world.open_log(PATH, fs=fs)
    except LetItLoopError as error:
        raise Violation(f"EXCEPTION: a log that threads wrote is refused: {error}") from error
    if len({key for key, _ in found(log)}) != 200:
        raise Violation(f"LOST-ACK: {len(found(log))} records of 200")


def _queued(log) -> int:
    return len(log._waiters)


def a_failed_sync_reaches_every_waiter(world: World) -> None:
    """Threads that wait for a batch whose sync fails all get the error; none is told that its record is durable."""
    for nth in (1, 2):
        fs = Meeting()
        disk = FaultFs(fs)
        log = world.open_log(PATH, fs=disk)
        fs.syncing.clear()
        fs.go.clear()
        disk.add(Fault("sync", nth=nth, error=errno.EIO, after=True))
        outcomes: dict[str, object] = {}

        def work(name: str, log=log, outcomes=outcomes) -> None:
            try:
                outcomes[name] = log.append(STEP, name.encode(), b"x")
            except BaseException as error:
                outcomes[name] = error

        leader = threading.Thread(target=work, args=("leader",))
        leader.start()
        assert fs.syncing.wait(30)
        followers = [threading.Thread(target=work, args=(f"follower-{index}",)) for index in range(4)]
        for thread in followers:
            thread.start()
        while _queued(log) < len(followers):  # each has queued; nothing else tells
            pass
        fs.go.set()
        for thread in (leader, *followers):
            thread.join(30)
            if thread.is_alive():
                raise Violation(f"STUCK: a thread still waits after sync {nth} failed: {outcomes}")
        for name, outcome in outcomes.items():
            failed = isinstance(outcome, Halt)
            if failed != (nth == 1 or name != "leader"):
                raise Violation(f"ACK-AFTER-FAILURE: sync {nth} failed, {name} got {outcome!r}")


def faults(world: World) -> None:
    """All of the above."""
    every_call_fails_once(world)
    a_failed_sync_reaches_every_waiter(world)
    one_leader_at_a_time(world)
