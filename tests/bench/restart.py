"""How long a watched run stands still when its process dies: from the death to its first new step."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median
from typing import TYPE_CHECKING

from measure import Contention, Row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from measure import Bench

ROUNDS = 15
BACKOFF = 0.2  # seconds; what is compared starts after the same pause, since the caches and the clock of an idle CPU are cold

# CLOCK_MONOTONIC is one clock for all processes: each tells its own moments
FIRST_LINE = """import time
begun = time.monotonic()
import os, sys
with open(sys.argv[1], "a") as times: print("begun", begun, file=times)
"""

WATCHED = (
    FIRST_LINE
    + """
from letitloop import durable, step

def work(number):
    with open(sys.argv[1], "a") as times: print("step", time.monotonic(), file=times)
    return number

@durable(goal_id="restart", store=sys.argv[2])
def run():
    for number in range(100):
        step("work", work, number)
        if number == 50 and not os.path.exists(sys.argv[2] + "/died"):
            os.mkdir(sys.argv[2] + "/died")
            with open(sys.argv[1], "a") as times: print("death", time.monotonic(), file=times, flush=True)
            os.kill(os.getpid(), 9)

run()
"""
)

FORKED = WATCHED.replace("from letitloop import durable, step", "from letitloop import durable, step, supervise").replace(
    "@durable", "@supervise(backoff=0)\n@durable"
)


def restart(bench: Bench) -> Iterator[Row]:
    """Death to first new step, for a program and for a function; the start of a bare interpreter is taken off for the program."""
    for name, text in (("bare", FIRST_LINE), ("watched", WATCHED), ("forked", FORKED)):
        (bench.place / f"{name}.py").write_text(text, encoding="utf-8")
    _watched(bench)  # the bytecode is compiled
    variants = {
        "bare": lambda: _bare(bench),
        "by hand": lambda: _by_hand(bench),
        "watched": lambda: _watched(bench),
        "forked": lambda: _forked(bench),
    }
    with Contention() as others:
        found = bench.rounds(variants, ROUNDS)
    middle = {name: median(times) for name, times in found.items()}
    noise = others.noise()
    row = Row("death of a watched program to its first new step, beyond backoff and the interpreter's start", 30, "ms")
    note = f"{middle['watched']:.0f} less {middle['bare']:.0f} ms"
    yield row.judge(middle["watched"] - middle["bare"], note=note, noise=noise, ms=found)
    row = Row("the same, beyond backoff and starting the program by hand", 30, "ms")
    note = f"{middle['watched']:.0f} less {middle['by hand']:.0f} ms"
    yield row.judge(middle["watched"] - middle["by hand"], note=note, noise=noise)
    row = Row("death of a supervised function's process to its first new step", 30, "ms")
    yield row.judge(middle["forked"], noise=noise, ms=found["forked"])


def _by_hand(bench: Bench) -> float:
    """Return the milliseconds from the start of the program, by hand after its death, to its first new step."""
    times, store = bench.fresh("times"), bench.fresh("store")
    store.mkdir()
    command = [sys.executable, str(bench.place / "watched.py"), str(times), str(store)]
    subprocess.run(command, check=False)
    time.sleep(BACKOFF)
    start = time.monotonic()
    subprocess.run(command, check=True)
    return (min(moment for moment in _moments(times)["step"] if moment > start) - start) * 1e3


def _bare(bench: Bench) -> float:
    """Return the milliseconds from the start of an interpreter to its program's first line."""
    times = bench.fresh("times")
    time.sleep(BACKOFF)
    start = time.monotonic()
    subprocess.run([sys.executable, str(bench.place / "bare.py"), str(times)], check=True)
    return (_moments(times)["begun"][0] - start) * 1e3


def _watched(bench: Bench) -> float:
    command = [sys.executable, "-m", "letitloop", "watch", "--log-json", "--backoff", str(BACKOFF), str(bench.place / "watched.py")]
    return _stood_still(bench, command)


def _forked(bench: Bench) -> float:
    return _stood_still(bench, [sys.executable, str(bench.place / "forked.py")])


def _stood_still(bench: Bench, command: list[str]) -> float:
    """Return the milliseconds from the death to the first new step."""
    times, store = bench.fresh("times"), bench.fresh("store")
    store.mkdir()
    done = subprocess.run([*command, str(times), str(store)], check=True, stderr=subprocess.PIPE)
    waits = [json.loads(line)["wait"] for line in done.stderr.splitlines() if line.startswith(b"{")]
    found = _moments(times)
    (death,) = found["death"]
    return (min(moment for moment in found["step"] if moment > death) - death - sum(waits)) * 1e3


def _moments(times: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for line in times.read_text(encoding="utf-8").splitlines():
        what, moment = line.split()
        found.setdefault(what, []).append(float(moment))
    return found
