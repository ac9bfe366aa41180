"""Figures of size: memory while a long run is resumed, bytes on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from measure import Row
from workload import VALUES, Unfinished, latencies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from measure import Bench

_RESUME = """
import sys

def memory(what):
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(what + ":"))

import letitloop
before = memory("VmRSS")
sys.path.insert(0, sys.argv[1])
from workload import Unfinished
run = Unfinished(sys.argv[2], "resume", "10 KB", 10_000)
run.drive()
print('{"before": %f, "most": %f, "after": %f, "calls": %d}' % (before, memory("VmHWM"), memory("VmRSS"), run.calls))
"""


def memory(bench: Bench) -> Iterator[Row]:
    """What a process that replays 10,000 large results needs at most, over one that has only imported the package."""
    row = Row("resident memory to resume 10,000 x 10 KB, over the import", 60, "MB")
    if not Path("/proc/self/status").exists():
        yield row.skip("this system does not tell a process's memory")
        return
    store = bench.place / "memory"
    Unfinished(store, "resume", "10 KB", 10_000).drive()
    found = []
    for _ in range(5):
        command = [sys.executable, "-I", "-c", _RESUME, str(Path(__file__).parent), str(store)]
        found.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    if any(one["calls"] for one in found):
        raise AssertionError("a step ran again")
    need = [one["most"] - one["before"] for one in found]
    yield row.judge(median(need), note=f"{median(one['before'] for one in found):.0f} MB before", mb=found)


def on_disk(bench: Bench) -> Iterator[Row]:
    """What a finished run of 1,000 steps takes beside the bytes of its results, everything in its folder included."""
    store = bench.place / "finished"
    count = 1000
    latencies(store, "finished", "1 KB", count)
    total = sum(os.path.getsize(path) for path in (store / "runs").iterdir())
    overhead = total / count - len(VALUES["1 KB"].encode())
    yield Row("bytes on disk after a clean close, over the payload, a step", 96, "B").judge(overhead, total=total)
