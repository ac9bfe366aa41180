"""Threads that share syncs: each is woken, whatever becomes of those before it."""

from __future__ import annotations

import threading

import pytest

from letitloop.errors import LogPoisoned
from letitloop.testing import SimFs
from letitloop.wal import group_commit
from letitloop.wal.log import Log
from letitloop.wal.recovery import open_log

pytestmark = pytest.mark.timeout(60)

STEP = 16
FOLLOWERS = 4


class Held(SimFs):
    """A disk whose first sync after ``hold()`` waits until it is let go."""

    def __init__(self):
        super().__init__()
        self.held = self.go = None

    def hold(self):
        self.held, self.go = threading.Event(), threading.Event()

    def sync(self, handle):
        if self.held is not None:
            held, self.held = self.held, None
            held.set()
            assert self.go.wait(30)
        super().sync(handle)


class Gate:
    """A lock whose waiting is ended by Ctrl+C: while it is held, or right after it was released."""

    def __init__(self, lock):
        self._lock = lock
        self.interrupt = threading.Event()
        self.interrupt_when_released = False

    def acquire(self, timeout=-1):
        while not self._lock.acquire(timeout=0.01):
            if self.interrupt.is_set():
                raise KeyboardInterrupt
        if self.interrupt_when_released:
            raise KeyboardInterrupt
        return True

    def release(self):
        self._lock.release()


@pytest.fixture
def waiters(monkeypatch):
    """What threads wait on, in their order; nobody is rescued by losing patience."""
    made = []

    class Waiter(group_commit._Waiter):
        def __init__(self):
            super().__init__()
            self.gate = Gate(self.gate)
            made.append(self)

    monkeypatch.setattr(group_commit, "_Waiter", Waiter)
    return made


class Crowd:
    """A leader in the middle of its sync, and threads that queue behind it one after the other."""

    def __init__(self, log, fs, waiters):
        self.outcomes = {}
        self._log = log
        self._fs = fs
        fs.hold()
        held = fs.held
        self.threads = [self._start("leader")]
        assert held.wait(30)
        for number in range(FOLLOWERS):
            self.threads.append(self._start(f"follower-{number}"))
            while len(waiters) <= number:
                pass

    def _start(self, name):
        def work():
            try:
                self.outcomes[name] = self._log.append(STEP, name.encode(), b"x").key.decode()
            except BaseException as error:
                self.outcomes[name] = type(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def go_as_far_as_the_next_sync(self):
        go = self._fs.go
        self._fs.hold()
        held = self._fs.held
        go.set()
        assert held.wait(30)

    def go(self):
        self._fs.go.set()
        self.join()

    def join(self):
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive(), f"nobody woke it: {self.outcomes}"


@pytest.fixture
def crowd(waiters):
    fs = Held()
    log = open_log("/sim/run.wal", fs=fs)
    yield Crowd(log, fs, waiters)
    log.close()
    log = open_log("/sim/run.wal", fs=fs)
    assert sorted(entry.key for entry in log.entries if entry.kind == STEP) == sorted(
        [b"leader", *(b"follower-%d" % number for number in range(FOLLOWERS))]
    )
    log.close()


def test_all_are_woken(crowd):
    crowd.go()
    assert crowd.outcomes == {name: name for name in ("leader", *(f"follower-{number}" for number in range(FOLLOWERS)))}


@pytest.mark.parametrize("numbers", [(1,), (3,), (1, 2), (2, 3), (1, 2, 3)])
def test_who_is_interrupted_while_its_batch_is_synced_keeps_nobody_asleep(crowd, waiters, numbers):
    crowd.go_as_far_as_the_next_sync()
    for number in numbers:
        waiters[number].gate.interrupt.set()
        crowd.threads[number + 1].join(20)
    crowd.go()
    interrupted = {name for name, outcome in crowd.outcomes.items() if outcome is KeyboardInterrupt}
    assert interrupted == {f"follower-{number}" for number in numbers}
    assert len(crowd.outcomes) == 1 + FOLLOWERS


@pytest.mark.parametrize("number", range(FOLLOWERS))
@pytest.mark.parametrize("when", ["while it waits", "when it is woken"])
def test_who_is_interrupted_keeps_nobody_asleep(crowd, waiters, number, when):
    gate = waiters[number].gate
    if when == "while it waits":
        gate.interrupt.set()
        crowd.threads[number + 1].join(20)
        assert crowd.outcomes == {f"follower-{number}": KeyboardInterrupt}
    else:
        gate.interrupt_when_released = True
    crowd.go()
    interrupted = {name for name, outcome in crowd.outcomes.items() if outcome is KeyboardInterrupt}
    assert interrupted == {f"follower-{number}"}
    assert len(crowd.outcomes) == 1 + FOLLOWERS


def test_several_that_are_interrupted_keep_nobody_asleep(crowd, waiters):
    waiters[1].gate.interrupt.set()
    waiters[2].gate.interrupt_when_released = True
    crowd.threads[2].join(20)
    crowd.go()
    interrupted = {name for name, outcome in crowd.outcomes.items() if outcome is KeyboardInterrupt}
    assert interrupted == {"follower-1", "follower-2"}


def test_who_is_interrupted_before_waking_the_next_wakes_it_all_the_same(monkeypatch, waiters):
    fs = Held()
    log = open_log("/sim/run.wal", fs=fs)
    wake, interrupted = log._wake, []

    def wakes(waiter):
        if waiter is waiters[2] and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        wake(waiter)

    monkeypatch.setattr(type(log), "_wake", lambda _, waiter: wakes(waiter))
    crowd = Crowd(log, fs, waiters)
    crowd.go()
    assert crowd.outcomes["follower-1"] is KeyboardInterrupt
    assert [name for name in crowd.outcomes if crowd.outcomes[name] is KeyboardInterrupt] == ["follower-1"]
    log.close()


def test_a_leader_that_dies_before_it_wakes_anybody_is_outlived(monkeypatch):
    fs = Held()
    log = open_log("/sim/run.wal", fs=fs)
    made, wake, deaths = [], log._wake, []
    monkeypatch.setattr(group_commit, "_PATIENCE", 0.01)

    class Waiter(group_commit._Waiter):
        def __init__(self):
            super().__init__()
            made.append(self)

    def dies_once(waiter):
        if not deaths:
            deaths.append(True)
            raise KeyboardInterrupt
        wake(waiter)

    monkeypatch.setattr(group_commit, "_Waiter", Waiter)
    monkeypatch.setattr(type(log), "_wake", lambda _, waiter: dies_once(waiter))
    crowd = Crowd(log, fs, made)
    crowd.go()
    assert deaths
    assert list(crowd.outcomes.values()).count(KeyboardInterrupt) == 1, "the leader of the second batch"
    assert len(crowd.outcomes) == 1 + FOLLOWERS
    log.close()


def test_records_that_an_interrupted_leader_had_taken_are_acknowledged_to_nobody(monkeypatch, waiters):
    fs = Held()
    log = open_log("/sim/run.wal", fs=fs)
    crowd = Crowd(log, fs, waiters)

    def interrupted(self, records):
        raise KeyboardInterrupt

    monkeypatch.setattr(Log, "_write", interrupted)
    crowd.go()
    assert crowd.outcomes.pop("leader") == "leader"
    assert crowd.outcomes.pop("follower-0") is KeyboardInterrupt
    assert list(crowd.outcomes.values()) == [LogPoisoned] * (FOLLOWERS - 1)
    log.close()
    assert [entry.key for entry in open_log("/sim/run.wal", fs=fs).entries] == [b"leader"]


def test_a_compaction_waits_for_whoever_syncs_and_keeps_what_came_meanwhile(waiters):
    fs = Held()
    log = open_log("/sim/run.wal", fs=fs)
    crowd = Crowd(log, fs, waiters)
    thread = threading.Thread(target=log.compact, args=(lambda entries: [one for one in entries if one.key != b"leader"],))
    thread.start()
    while len(waiters) <= FOLLOWERS:  # until it has queued up like everybody else
        pass
    crowd.go()
    thread.join(20)
    assert not thread.is_alive()
    log.append(STEP, b"after", b"x")
    everything = sorted(crowd.outcomes.values())
    log.abandon()
    assert everything == sorted(["leader", *(f"follower-{number}" for number in range(FOLLOWERS))])
    fs.kill()
    for state in fs.crash_states(start=len(fs.operations), leave_out=(".lock",)):  # what was acknowledged survives a power cut
        log = open_log("/sim/run.wal", fs=SimFs.from_state(state))
        found = {entry.key.decode(): log.read(entry) for entry in log.entries if entry.kind == STEP}
        assert found == dict.fromkeys([*(f"follower-{number}" for number in range(FOLLOWERS)), "after"], b"x")


def test_no_record_is_lost_to_a_compaction_that_comes_in_between(tmp_path):
    log = open_log(str(tmp_path / "run.wal"))
    done = []

    def work(number):
        for at in range(100):
            entry = log.append(STEP, b"%d-%d" % (number, at), b"%d" % at)
            done.append((entry, b"%d" % at))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        log.compact(lambda entries: list(entries))
        for entry, payload in done[-20:]:
            assert log.read(entry) == payload
    log.close()
    log = open_log(str(tmp_path / "run.wal"))
    found = {entry.key: log.read(entry) for entry in log.entries if entry.kind == STEP}
    assert found == {b"%d-%d" % (number, at): b"%d" % at for number in range(4) for at in range(100)}
    log.close()


def test_records_are_read_while_a_compaction_moves_them():
    class Slow(SimFs):
        """A disk on which a compaction is interrupted, between the records that it copies, by somebody who reads."""

        moving = None

        def pwrite(self, handle, data, offset):
            if self.moving is not None:
                self.moving()
            return super().pwrite(handle, data, offset)

    fs = Slow()
    log = open_log("/sim/run.wal", fs=fs)
    for number in range(40):
        log.append(STEP, b"%02d" % number, b"payload %02d" % number)  # all of one size: a wrong place holds another's payload
    log.close()
    log = open_log("/sim/run.wal", fs=fs)
    entries = [entry for entry in log.entries if entry.kind == STEP]
    kept = entries[1::2]
    found, begun = {}, []

    def look():
        found.update((entry.key, log.read(entry)) for entry in kept)

    def moving():
        readers.append(threading.Thread(target=look))
        readers[-1].start()
        begun.append(log._rewrites)

    readers = []
    fs.moving = moving
    log.compact(lambda _: kept)
    fs.moving = None
    for reader in readers:
        reader.join(20)
        assert not reader.is_alive()
    assert any(count & 1 for count in begun), "nobody read while records were moved"
    assert found == {entry.key: b"payload " + entry.key for entry in kept}
    log.close()


@pytest.mark.parametrize("together", [1, 3])
def test_a_record_that_is_being_written_is_not_read_before_it_is_there(together):
    class Slow(SimFs):
        """A disk on which somebody else reads in the middle of a write, which takes a while."""

        meanwhile = None

        def pwrite(self, handle, data, offset):
            if self.meanwhile is not None:
                self.meanwhile()
            return super().pwrite(handle, data, offset)

    fs = Slow()
    log = open_log("/sim/run.wal", fs=fs)
    log.append(STEP, b"before", b"x" * 3000)  # there is room ahead, all zeros
    entries = [log.queue(STEP, b"%d" % number, b"payload %d" % number) for number in range(together)]
    found, readers, begun = {}, [], threading.Event()

    def look():
        begun.set()
        for entry in entries:
            found[entry.key] = log.read(entry)

    def meanwhile():
        fs.meanwhile = None
        readers.append(threading.Thread(target=look))
        readers[0].start()
        assert begun.wait(20)
        readers[0].join(0.05)  # longer than it takes to read what is wrong; the right thing waits for this very write

    fs.meanwhile = meanwhile
    log.flush()
    readers[0].join(20)
    assert found == {entry.key: b"payload %b" % entry.key for entry in entries}
    log.close()
