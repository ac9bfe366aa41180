"""Figures that wait for the disk: synced steps, one thread, many threads, many tasks."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from contextlib import closing
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from measure import SLOW_DISK, Contention, Row, ratio, raw_loop
from workload import NAME, VALUES, encoded, latencies

from letitloop import carry, durable, scope, step
from letitloop.runs.drive_async import Syncer
from letitloop.wal.recovery import open_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from measure import Bench

THREADS = 8
TASKS = 100
OF_A_THREAD = 120  # records, in each variant: what it takes to start and join the threads weighs the same
OF_A_TASK = 30


def single(bench: Bench) -> Iterator[Row]:
    """A step against what the disk costs without a log, and against SQLite."""
    for size in ("1 KB", "2 KB", "10 KB"):
        yield from _single(bench, size, encoded(size))


def _single(bench: Bench, size: str, data: bytes) -> Iterator[Row]:
    count = 50
    variants: dict[str, Callable[[], float]] = {
        "raw": lambda: median(raw_loop(bench.fresh("raw"), data, count)),
        "step": lambda: median(latencies(bench.place / "single", str(bench.fresh("goal")), size, count)),
        "sqlite": lambda: median(_sqlite(bench.fresh("sqlite"), data, count)),
    }
    with Contention() as others:  # a step after a sync starts with cold caches: the colder, the more others ran meanwhile
        found, busy, every = bench.quiet_rounds(variants, want=25, seconds=15)
    raw_us = {name: _us(times) for name, times in every.items()}
    for other, what, bar in (
        ("raw", "raw write+fdatasync on a growing file", 0.80 if size == "10 KB" else 0.95),
        ("sqlite", "an SQLite insert+commit (WAL, FULL)", 0.60),
    ):
        row = Row(f"durable step, {size}, to {what}", bar, "x")
        note = f"{median(found['step']) * 1e6:.0f} of {median(found[other]) * 1e6:.0f} us"
        yield _told(row, ratio(found["step"], found[other]), busy, note, raw_us, others)


def _told(row: Row, measured: float, busy: str, note: str, raw_us: dict[str, Any], others: Contention) -> Row:
    if busy:
        return row.skip(busy, measured, raw_us=raw_us)
    return row.judge(measured, note=note, noise=others.noise(), raw_us=raw_us)


def _us(seconds: list[float]) -> list[float]:
    return [round(one * 1e6, 2) for one in seconds]


def _sqlite(path: Path, data: bytes, count: int) -> list[float]:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE step (key TEXT PRIMARY KEY, value BLOB)")
        times = []
        clock = time.perf_counter
        for number in range(count):
            start = clock()
            db.execute("BEGIN")
            db.execute("INSERT INTO step VALUES (?, ?)", (f"{NAME}#{number}", data))
            db.execute("COMMIT")
            times.append(clock() - start)
    return times


def long_run(bench: Bench) -> Iterator[Row]:
    """The last tenth of a run against the first: nothing may grow with the log."""
    ratios: list[float] = []
    raws: list[list[float]] = []
    tenths: list[list[float]] = []
    end = time.perf_counter() + 25
    while len(ratios) < 5 and time.perf_counter() < end:
        times, raw = _beside(bench, 10_000)
        raws.append([median(raw[:100]), median(raw[-100:])])
        if len(times) < 10_000:
            continue
        tenths.append([median(times[at : at + 1000]) for at in range(0, 10_000, 1000)])
        # the raw loop tells whether the disk was another one at the end
        ratios.append(tenths[-1][-1] / tenths[-1][0] / (raws[-1][1] / raws[-1][0]))
    row = Row("last tenth to first tenth of 10,000 steps, 1 KB", 1.2, "x")
    found: dict[str, Any] = {"tenths_us": [_us(one) for one in tenths], "raw_us": [_us(pair) for pair in raws], "ratios": ratios}
    if len(ratios) < 3:
        yield row.skip(f"disk too busy to tell: raw write+fdatasync takes {median(map(max, raws)) * 1e6:.0f} us", **found)
    else:
        yield row.judge(median(ratios), note=f"{tenths[-1][0] * 1e6:.0f} and {tenths[-1][-1] * 1e6:.0f} us, by raw", **found)


def _beside(bench: Bench, count: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each step, and of a raw write+fdatasync after every tenth step; give up on a busy disk."""
    value, data = VALUES["1 KB"], encoded("1 KB")
    times: list[float] = []
    raw: list[float] = []
    clock = time.perf_counter
    handle = os.open(bench.fresh("raw"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def fetch(number: int) -> Any:
        return value

    @durable(goal_id=str(bench.fresh("goal")), store=bench.place / "long")
    def fetch_pages() -> None:
        for number in range(count):
            start = clock()
            step(NAME, fetch, number)
            times.append(clock() - start)
            if number % 10 == 9:
                start = clock()
                os.write(handle, data)
                os.fdatasync(handle)
                raw.append(clock() - start)
                if number % 1000 == 999 and median(raw[-100:]) > SLOW_DISK:
                    return

    try:
        fetch_pages()
    finally:
        os.close(handle)
    return times, raw


# --- threads -----------------------------------------------------------------------------------------------------------------


def threads(bench: Bench) -> Iterator[Row]:
    """Threads that share syncs against threads that take turns."""
    data = encoded("1 KB")
    variants: dict[str, Callable[[], float]] = {
        "raw": lambda: median(raw_loop(bench.fresh("raw"), data, 50)),
        "turns": lambda: _turns(bench.fresh("raw"), data, OF_A_THREAD),
        "step": lambda: _durable_threads(bench.place / "threads", str(bench.fresh("goal")), OF_A_THREAD),
        "log": lambda: _log_threads(bench.fresh("log"), data, OF_A_THREAD),
    }
    with Contention() as others:
        found, busy, every = bench.quiet_rounds(variants, want=15, seconds=20)
    raw = {name: _us(times) for name, times in every.items()}
    for name, what in (("log", "log alone"), ("step", "steps")):
        row = Row(f"{THREADS} threads, {what}, to a lock around write+fdatasync, 1 KB", 3.5, "x", at_least=True)
        yield _told(row, ratio(found["turns"], found[name]), busy, _rates(found[name], found["turns"]), raw, others)


def _rates(own: list[float], other: list[float]) -> str:
    return f"{1 / median(own):,.0f} to {1 / median(other):,.0f} steps a second"


def _together(work: Callable[[int], None]) -> float:
    """Return the seconds that as many threads take for a piece of work each."""
    workers = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start


def _turns(path: Path, data: bytes, each: int) -> float:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    turn = threading.Lock()

    def work(number: int) -> None:
        for _ in range(each):
            with turn:
                os.write(handle, data)
                os.fdatasync(handle)

    try:
        return _together(work) / (THREADS * each)
    finally:
        os.close(handle)


def _log_threads(path: Path, data: bytes, each: int) -> float:
    log = open_log(str(path))

    def work(number: int) -> None:
        for _ in range(each):
            log.append(16, b"record", data)

    try:
        return _together(work) / (THREADS * each)
    finally:
        log.close()


def _durable_threads(store: Path, goal: str, each: int) -> float:
    value = VALUES["1 KB"]

    def fetch(number: int) -> Any:
        return value

    def work(worker: int) -> None:
        with scope(f"worker-{worker}"):
            for number in range(each):
                step(NAME, fetch, number)

    @durable(goal_id=goal, store=store)
    def fetch_together() -> float:
        return _together(carry(work)) / (THREADS * each)

    return fetch_together()


# --- tasks -------------------------------------------------------------------------------------------------------------------


def tasks(bench: Bench) -> Iterator[Row]:
    """Tasks that share syncs off the event loop against tasks that sync on it, and how long the loop is away meanwhile."""
    data = encoded("1 KB")
    variants: dict[str, Callable[[], float]] = {
        "raw": lambda: median(raw_loop(bench.fresh("raw"), data, 50)),
        "inline": lambda: asyncio.run(_inline(bench.fresh("raw"), data, OF_A_TASK)),
        "step": lambda: asyncio.run(_durable_tasks(bench.place / "tasks", str(bench.fresh("goal")), OF_A_TASK)),
        "log": lambda: asyncio.run(_log_tasks(bench.fresh("log"), data, OF_A_TASK)),
    }
    with Contention() as others:
        found, busy, every = bench.quiet_rounds(variants, want=15, seconds=20)
    raw = {name: _us(times) for name, times in every.items()}
    for name, what in (("log", "log alone"), ("step", "steps")):
        row = Row(f"{TASKS} async tasks, {what}, to syncing inline, 1 KB", 10, "x", at_least=True)
        yield _told(row, ratio(found["inline"], found[name]), busy, _rates(found[name], found["inline"]), raw, others)


def stall(bench: Bench) -> Iterator[Row]:
    """How long the event loop is away while tasks record."""
    data = encoded("1 KB")
    variants: dict[str, Callable[[], float]] = {
        "raw": lambda: median(raw_loop(bench.fresh("raw"), data, 50)),
        "step": lambda: _probed(lambda: _durable_tasks(bench.place / "tasks", str(bench.fresh("goal")), 100)),
        "idle": lambda: _probed(lambda: asyncio.sleep(0.2)),
    }
    with Contention() as others:
        found, busy, every = bench.quiet_rounds(variants, want=15, seconds=25)
    row = Row(f"event loop stall with {TASKS} async tasks, p99", 2.0, "ms")
    worst, idle = median(found["step"]) * 1e3, median(found["idle"]) * 1e3
    note = f"an idle loop's {idle:.2f} ms"
    yield _told(row, worst, busy, note, {name: _us(times) for name, times in every.items()}, others)


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100)[-1]


async def _inline(path: Path, data: bytes, each: int) -> float:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    async def work() -> None:
        for _ in range(each):
            os.write(handle, data)
            os.fdatasync(handle)
            await asyncio.sleep(0)

    try:
        start = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(TASKS)))
        return (time.perf_counter() - start) / (TASKS * each)
    finally:
        os.close(handle)


async def _log_tasks(path: Path, data: bytes, each: int) -> float:
    log = open_log(str(path))
    syncer = Syncer(log)

    async def work() -> None:
        for _ in range(each):
            _, durable_now = syncer.append(16, b"record", data)
            if durable_now is not None:
                await durable_now

    try:
        start = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(TASKS)))
        return (time.perf_counter() - start) / (TASKS * each)
    finally:
        syncer.stop()
        log.close()


async def _durable_tasks(store: Path, goal: str, each: int) -> float:
    value = VALUES["1 KB"]

    async def fetch(number: int) -> Any:
        return value

    async def work(worker: int) -> None:
        async with scope(f"worker-{worker}"):
            for number in range(each):
                await step(NAME, fetch, number)

    @durable(goal_id=goal, store=store)
    async def fetch_together() -> float:
        start = time.perf_counter()
        await asyncio.gather(*(work(worker) for worker in range(TASKS)))
        return (time.perf_counter() - start) / (TASKS * each)

    return await fetch_together()


_CLOCK = struct.Struct("d")
_PROBE = """
import os, struct, time
while True:
    time.sleep(0.0005)
    os.write(1, struct.pack("d", time.perf_counter()))
"""


def _probed(work: Callable[[], Any]) -> float:
    """Run ``work`` while another process knocks every half millisecond; return the 99th percentile of how long a knock waits.

    An observer on the loop, or on a thread of its process, would not see the time that the loop waits for the interpreter's lock.
    """
    waits: list[float] = []

    async def listen() -> None:
        with subprocess.Popen([sys.executable, "-I", "-S", "-c", _PROBE], stdout=subprocess.PIPE) as probe:
            assert probe.stdout is not None
            source = probe.stdout.fileno()
            os.read(source, 1 << 16)  # it has started
            os.set_blocking(source, False)

            def answer() -> None:
                now = time.perf_counter()
                try:
                    knocks = os.read(source, 1 << 16)
                except BlockingIOError:
                    return
                waits.extend(now - at for (at,) in _CLOCK.iter_unpack(knocks))

            loop = asyncio.get_running_loop()
            loop.add_reader(source, answer)
            try:
                await work()
            finally:
                loop.remove_reader(source)
                probe.kill()

    asyncio.run(listen())
    return _p99(waits)
