"""Speed and size against their bars: ``nox -s bench``, or ``python tests/bench/run.py --help``.

Every figure is taken in this one run: ratios between variants that were run in shuffled rounds, CPU times as the least of many
repeats. Where the disk or the CPU is too busy to tell, a figure is skipped or called noisy, with a word; it never passes by that.

Exit code: 0, or 1 if a bar is missed, or 2 for bad arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import agents
import intents
import on_cpu
import on_disk
import restart
import sizes
from measure import Bench, Contention, Row, pwrite_cost, spin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GROUPS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "single": on_disk.single,
    "long": on_disk.long_run,
    "process": on_cpu.process_step,
    "replay": on_cpu.replay,
    "open": on_cpu.opening,
    "memory": sizes.memory,
    "size": sizes.on_disk,
    "threads": on_disk.threads,
    "tasks": on_disk.tasks,
    "stall": on_disk.stall,
    "import": on_cpu.importing,
    "restart": restart.restart,
    "intent": intents.single,
    "intents": intents.processes,
    "intent-size": intents.size,
}
ADAPTERS: dict[str, Callable[[Bench], Iterator[Row]]] = {"autogen": agents.autogen, "smolagents": agents.smolagents}
"""What needs a framework: measured where it is asked for."""


def main() -> int:
    """Measure, print the table, write the data."""
    options = _options()
    os.environ.pop("LETITLOOP_STORE", None)
    parent = Path(options.dir or ".").resolve()
    if not parent.is_dir():
        print(f"{parent} is no directory", file=sys.stderr)
        return 2
    place = Path(tempfile.mkdtemp(prefix="bench-work-", dir=parent))
    start = time.perf_counter()
    try:
        bench = Bench(place, options.seed)
        with Contention() as others:
            calibration = {"pwrite_1kb_us": pwrite_cost(place) * 1e6, "spin_ns": min(spin() for _ in range(25)) / 20_000 * 1e9}
            rows: list[Row] = []
            for name in options.only or GROUPS:
                print(f"measuring: {name} ...", file=sys.stderr, flush=True)
                rows += {**GROUPS, **ADAPTERS}[name](bench)
            calibration["others_cores"] = others.cores or 0.0
        calibration["others_cores"] = others.cores
        calibration["worst_drift"] = max((one["drift"] for one in bench.calibrations), default=1.0)
        calibration["median_others_cores"] = median([one["others_cores"] for one in bench.calibrations] or [0.0])
    finally:
        shutil.rmtree(place, ignore_errors=True)
    took = time.perf_counter() - start
    _print_table(rows)
    print(
        f"\npwrite of 1 KB {calibration['pwrite_1kb_us']:.2f} us, a turn of an empty loop {calibration['spin_ns']:.1f} ns; "
        f"other processes took {calibration['others_cores']:.2f} cores of {os.cpu_count()}; seed {options.seed}; {took:.0f} s"
    )
    written = _write(options, rows, calibration, bench, took)
    missed = [row.figure for row in rows if row.verdict == "MISSED" or (options.strict and row.verdict in {"noisy", "skipped"})]
    print(f"data: {written}")
    if missed:
        print(f"\nnot met: {len(missed)} of {len(rows)} figures\n  " + "\n  ".join(missed))
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speed and size of letitloop against their bars.")
    parser.add_argument("--dir", help="a directory on the disk to measure; the working directory by default")
    parser.add_argument("--json", help="where the raw data goes; bench-results/bench-<time>.json by default")
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="decides the order in each round"
    )
    parser.add_argument(
        "--only", action="append", choices=sorted({**GROUPS, **ADAPTERS}), help="measure this group; may be given several times"
    )
    parser.add_argument("--strict", action="store_true", help="count figures that could not be told as missed")
    return parser.parse_args()


def _print_table(rows: list[Row]) -> None:
    lines = [("figure", "bar", "measured", "verdict", "")]
    for row in rows:
        sign = ">=" if row.at_least else "<="
        measured = "-" if row.measured is None else f"{row.measured:.2f} {row.unit}".rstrip()
        lines.append((row.figure, f"{sign} {row.bar:g} {row.unit}".rstrip(), measured, row.verdict, row.note))
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    for line in lines:
        figure, bar, measured, verdict, note = line
        print(f"{figure:<{widths[0]}}  {bar:>{widths[1]}}  {measured:>{widths[2]}}  {verdict:<{widths[3]}}  {note}".rstrip())


def _write(options: argparse.Namespace, rows: list[Row], calibration: dict[str, float], bench: Bench, took: float) -> Path:
    path = Path(options.json or Path("bench-results", f"bench-{time.strftime('%Y%m%d-%H%M%S')}.json"))
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "at": time.time(),
        "took": took,
        "seed": options.seed,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "calibration": calibration | {"of_each_cpu_figure": bench.calibrations},
        "figures": [row.as_json() for row in rows],
    }
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
