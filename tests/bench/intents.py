"""Figures of the ledger of intents: an action against two raw syncs of its bytes, eight processes on one file, bytes an intent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import count
from statistics import median, quantiles
from typing import TYPE_CHECKING

from measure import Contention, Row, ratio, raw_loop

from letitloop import Ledger
from letitloop.effects.provider import Caps, Succeeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from measure import Bench

PROCESSES = 8
ARGUMENTS = {"operation": "refund", "amount_minor": 1200, "currency": "eur", "note": "x" * 240}
BYTES = bytes(500)  # what an intent and its outcome come to


class Instant:
    """A provider that costs nothing: what is measured is the ledger."""

    name = "instant"
    caps = Caps()

    def identity(self) -> str:
        return "instant/1"

    def validate(self, operation: str, arguments: object) -> None:
        pass

    def execute(self, dispatch: object) -> Succeeded:
        return Succeeded({"id": "re_1", "status": "succeeded"}, receipt="re_1")


def act(ledger: Ledger, name: str, how_many: int) -> list[float]:
    """Return the seconds of each action."""
    times: list[float] = []
    provider = Instant()
    for number in range(how_many):
        start = time.perf_counter()
        ledger.run("shop-account-1", f"order-{name}-{number}/refund-1", provider, ARGUMENTS)
        times.append(time.perf_counter() - start)
    return times


@contextmanager
def used(bench: Bench) -> Iterator[tuple[Path, Ledger]]:
    """Give a ledger that has been in use: its log is written over, and no more grows with every commit."""
    path = bench.fresh("ledger")
    path.mkdir()
    with Ledger(path / "actions.db") as ledger:
        act(ledger, "before", 600)
        yield path / "actions.db", ledger


def single(bench: Bench) -> Iterator[Row]:
    """One action, two commits, against two raw write+fdatasync of the same bytes."""
    names = count()
    with used(bench) as (_, ledger), Contention() as others:
        variants: dict[str, Callable[[], float]] = {
            "raw": lambda: 2 * median(raw_loop(bench.fresh("raw"), BYTES, 50)),
            "run": lambda: median(act(ledger, str(next(names)), 50)),
        }
        found, busy, every = bench.quiet_rounds(variants, want=25, seconds=15)
    row = Row("Ledger.run() to two raw write+fdatasync of 500 B", 1.9, "x")
    note = f"{median(found['run']) * 1e6:.0f} of {median(found['raw']) * 1e6:.0f} us"
    measured = ratio(found["run"], found["raw"])
    raw = {name: [round(one * 1e6, 1) for one in times] for name, times in every.items()}
    if busy:
        yield row.skip(busy, measured, raw_us=raw)
    else:
        yield row.judge(measured, note=note, noise=others.noise(), raw_us=raw)


def processes(bench: Bench) -> Iterator[Row]:
    """Eight processes that act on one ledger, against one; and what the slowest of a hundred waits for."""
    with Contention() as others:
        alone, together, raw, waits = [], [], [], []
        for _ in range(5):
            raw += raw_loop(bench.fresh("raw"), BYTES, 200)
            alone.append(_rate(bench, 1, 400)[0])
            rate, times = _rate(bench, PROCESSES, 100)
            together.append(rate)
            waits += times
    noise = others.noise()
    row = Row(f"{PROCESSES} processes on one ledger, to one process's rate", 1.2, "x", at_least=True)
    note = f"{median(together):,.0f} to {median(alone):,.0f} intents a second"
    yield row.judge(median(a / b for a, b in zip(together, alone, strict=True)), note=note, noise=noise)
    slow, sync = quantiles(waits, n=100)[98], median(raw)
    row = Row(f"{PROCESSES} processes, p99 of Ledger.run() to a raw sync", 40, "x")
    yield row.judge(slow / sync, note=f"{slow * 1e3:.1f} ms of {sync * 1e6:.0f} us", noise=noise)


def _rate(bench: Bench, workers: int, each: int) -> tuple[float, list[float]]:
    """Return the actions a second of some processes that start together, and the seconds of each action."""
    with used(bench) as (path, _):
        return _race([sys.executable, __file__, str(path), str(each)], workers, each)


def _race(command: list[str], workers: int, each: int) -> tuple[float, list[float]]:
    children = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(workers)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()  # it is ready
    start = time.perf_counter()
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    times = [one for child in children if child.stdout is not None for one in json.loads(child.stdout.readline())]
    took = time.perf_counter() - start
    for child in children:
        child.wait()
    return workers * each / took, times


def size(bench: Bench) -> Iterator[Row]:
    """Bytes that an intent takes in the ledger's file, with its history."""
    path = bench.fresh("ledger")
    path.mkdir()
    with Ledger(path / "actions.db") as ledger:
        act(ledger, "all", 3000)
    row = Row("bytes on disk an intent, 320 B of arguments", 1000, "B")
    yield row.judge(os.stat(path / "actions.db").st_size / 3000)


def _child(path: str, each: str, number: str) -> None:
    with Ledger(path) as ledger:
        act(ledger, f"warm-up-{number}", 1)
        print("ready", flush=True)
        sys.stdin.read()
        times = act(ledger, number, int(each))
    print(json.dumps(times), flush=True)


if __name__ == "__main__":
    _child(*sys.argv[1:])
