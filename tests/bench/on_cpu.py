"""Figures of the processor alone: steps that are not synced, replay, opening, importing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING
from zlib import crc32

from measure import Contention, Row
from workload import Unfinished

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from measure import Bench

FORBIDDEN = (
    *("asyncio", "inspect", "dataclasses", "typing", "logging", "uuid", "pathlib", "subprocess", "json", "sqlite3"),
    *("importlib.metadata", "ormsgpack", "msgpack"),
)


def process_step(bench: Bench) -> Iterator[Row]:
    """A step that is handed to the kernel and not synced."""
    count = 1000

    def once() -> float:
        run = Unfinished(bench.place / "process", str(bench.fresh("goal")), "1 KB", count)
        run.drive()
        return run.driven / count * 1e6

    once()
    least, noise, times = bench.least_cpu(once, 25)
    yield Row("process step, 1 KB, CPU", 10, "us").judge(least, note=f"median {median(times):.1f}", noise=noise, us=times)


def replay(bench: Bench) -> Iterator[Row]:
    """A step that is on record."""
    count = 1000
    for size, bar, what in (("1 KB", 5, "1 KB"), ("2 KB", 7, "a chat response of 2 KB")):
        run = Unfinished(bench.place / "replay", f"replay {size}", size, count)
        run.drive()

        def once(run: Unfinished = run) -> float:
            run.drive()
            if run.calls:
                raise AssertionError(f"a replayed step was called: {run.calls} of {count}")
            return run.driven / count * 1e6

        least, noise, times = bench.least_cpu(once, 25)
        yield Row(f"replayed step, {what}, CPU", bar, "us").judge(least, note=f"median {median(times):.1f}", noise=noise, us=times)


def opening(bench: Bench) -> Iterator[Row]:
    """Opening a log: every checksum verified, every key in the index, up to the first line of the durable function."""
    count = 20_000
    run = Unfinished(bench.place / "small", "open 200 B", "200 B", count)
    run.drive()

    def once() -> float:
        run.drive(open_only=True)
        return run.opened / count * 1e6

    least, noise, times = bench.least_cpu(once, 11)
    yield Row("open and index, 200 B records, CPU a record", 2, "us").judge(least, noise=noise, us=times)
    for count in (1000, 10_000):
        yield _opening_large(bench, count)


def _opening_large(bench: Bench, count: int) -> Row:
    """The same for large records, against reading the file and one checksum over all of it."""
    store = bench.place / f"large-{count}"
    run = Unfinished(store, "open 10 KB", "10 KB", count)
    run.drive()
    (path,) = (store / "runs").glob("*.wal")

    def own() -> float:
        run.drive(open_only=True)
        return run.opened * 1e3

    with Contention() as others:
        found = bench.rounds({"open": own, "read": lambda: _read(path)}, 11)
    least = {name: min(times) for name, times in found.items()}
    row = Row(f"open and index, {count:,} x 10 KB, to reading the file and one crc32", 1.5, "x")
    note = f"{least['open']:.1f} of {least['read']:.1f} ms"
    return row.judge(least["open"] / least["read"], note=note, noise=others.noise(), ms=found, others_cores=others.cores)


def _read(path: Path) -> float:
    start = time.thread_time()
    with path.open("rb", buffering=0) as file:
        crc32(file.read())
    return (time.thread_time() - start) * 1e3


def importing(bench: Bench) -> Iterator[Row]:
    """What ``import letitloop`` adds to an interpreter's start, in fresh processes."""
    programs = {
        "bare": "pass",
        "import": "import letitloop",
        "names": "from letitloop import durable, step",
    }
    for program in programs.values():
        _cpu_of(program)  # the bytecode is compiled, as it is for an installed distribution
    with Contention() as others:
        found = bench.rounds({name: partial(_cpu_of, program) for name, program in programs.items()}, 21)
    added = {name: min(found[name]) - min(found["bare"]) for name in ("import", "names")}
    row = Row("import letitloop with durable and step, over a bare interpreter, CPU", 20, "ms")
    middle = median(found["names"]) - median(found["bare"])
    note = f"median {middle:.1f}; the bare import {added['import']:.1f}; a bare interpreter {min(found['bare']):.1f}"
    yield row.judge(added["names"], note=note, noise=others.noise(), ms=found)
    code = f"import sys; before = set(sys.modules)\n{programs['names']}\nprint(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.split()
    wrong = sorted(set(FORBIDDEN) & set(loaded))
    yield Row("modules loaded by it that are forbidden", 0, "").judge(len(wrong), note=", ".join(wrong), loaded=loaded)


def _cpu_of(program: str) -> float:
    """Return the CPU milliseconds of an interpreter that runs a program and ends."""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-c", program], os.environ)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise AssertionError(f"{program!r} ended with status {status}")
    return (usage.ru_utime + usage.ru_stime) * 1e3
