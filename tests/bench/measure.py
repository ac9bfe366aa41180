"""How figures are taken: shuffled rounds, medians, a calibration that tells whether the machine can be believed, and verdicts."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

SLOW_DISK = 1e-3  # seconds for a raw write+fdatasync: beyond it a disk is busy, and ratios tell about its queue
UNSTEADY = 1.5  # a quiet round's raw loop by the quietest round's
BUSY_CPU = 0.3  # cores' worth of work by others
CLOCK_DRIFT = 1.15  # a fixed loop's typical CPU time by its best one

Verdict = Literal["ok", "MISSED", "skipped", "noisy"]


class Row:
    """One figure of the table.

    Attributes:
        figure: what is measured.
        bar: what it must not exceed, or must reach where ``at_least``.
        unit: what measured and bar are counted in.
        measured: the figure, None where nothing could be told.
        verdict: what came of it.
        note: why it was skipped or is noisy, or what else belongs to it.
        raw: the data behind it, for the JSON file.
    """

    def __init__(self, figure: str, bar: float, unit: str, *, at_least: bool = False) -> None:
        self.figure = figure
        self.bar = bar
        self.unit = unit
        self.at_least = at_least
        self.measured: float | None = None
        self.verdict: Verdict = "skipped"
        self.note = ""
        self.raw: dict[str, Any] = {}

    def judge(self, measured: float, *, note: str = "", noise: str = "", **raw: Any) -> Row:
        """Hold a figure against its bar; with a word about ``noise`` a miss proves nothing."""
        self.measured = measured
        self.raw.update(raw)
        met = measured >= self.bar if self.at_least else measured <= self.bar
        self.verdict = "ok" if met else "noisy" if noise else "MISSED"
        self.note = "; ".join(filter(None, (note, noise)))
        return self

    def skip(self, why: str, measured: float | None = None, **raw: Any) -> Row:
        """Give no verdict, and say why."""
        self.measured, self.verdict, self.note = measured, "skipped", why
        self.raw.update(raw)
        return self

    def as_json(self) -> dict[str, Any]:
        """Return everything that is known of the figure."""
        return {
            "figure": self.figure,
            "bar": self.bar,
            "at_least": self.at_least,
            "unit": self.unit,
            "measured": self.measured,
            "verdict": self.verdict,
            "note": self.note,
            "raw": self.raw,
        }


class Bench:
    """What every figure needs: a place on the disk under test, and the order of chance.

    Args:
        place: a directory; everything is written below it.
        seed: decides the order within each round.
    """

    def __init__(self, place: Path, seed: int) -> None:
        self.place = place
        self.seed = seed
        self.calibrations: list[dict[str, float]] = []
        self._chance = random.Random(seed)
        self._names = 0

    def fresh(self, what: str) -> Path:
        """Return a path below the place that nothing has used yet."""
        self._names += 1
        return self.place / f"{what}-{self._names}"

    def rounds(self, variants: Mapping[str, Callable[[], T]], count: int) -> dict[str, list[T]]:
        """Run every variant once a round, in a new order each round; return each one's results in the order of the rounds."""
        results: dict[str, list[T]] = {name: [] for name in variants}
        order = list(variants)
        for _ in range(count):
            self._chance.shuffle(order)
            for name in order:
                results[name].append(variants[name]())
        return results

    def quiet_rounds(
        self, variants: Mapping[str, Callable[[], float]], *, want: int, seconds: float
    ) -> tuple[dict[str, list[float]], str, dict[str, list[float]]]:
        """Run rounds until enough of them fell into times when the disk was quiet, as the variant ``raw`` in them tells.

        The rounds are chosen by the raw loop alone, so what disturbs the others counts against them.

        Args:
            variants: each returns seconds; one of them is ``raw``, a write+fdatasync.
            want: how many quiet rounds are wanted.
            seconds: when to give up.

        Returns:
            The quiet rounds' results; a word if they are too few to tell; and the results of all rounds.
        """
        found: dict[str, list[float]] = {name: [] for name in variants}
        quiet: list[int] = []
        end = time.perf_counter() + seconds
        while len(quiet) < want and (time.perf_counter() < end or len(found["raw"]) < 5):
            for name, results in self.rounds(variants, 1).items():
                found[name] += results
            limit = min(SLOW_DISK, UNSTEADY * min(found["raw"]))
            quiet = [number for number, raw in enumerate(found["raw"]) if raw <= limit]
        why = ""
        if len(quiet) < 5:
            best, middle = min(found["raw"]) * 1e6, median(found["raw"]) * 1e6
            why = f"disk too busy to tell: raw write+fdatasync takes {best:.0f} us at best, {middle:.0f} mostly"
            quiet = list(range(len(found["raw"])))
        return {name: [results[number] for number in quiet] for name, results in found.items()}, why, found

    def least_cpu(self, work: Callable[[], float], repeats: int) -> tuple[float, str, list[float]]:
        """Return the least of repeated CPU times, a word if others kept the CPU busy meanwhile, and all of them."""
        with Contention() as others:
            loops, times = [], []
            for _ in range(repeats):
                loops.append(spin())
                times.append(work())
        calibration = {"spin_us": min(loops) * 1e6, "drift": median(loops) / min(loops), "others_cores": others.cores}
        self.calibrations.append(calibration)
        noise = others.noise()
        if not noise and calibration["drift"] > CLOCK_DRIFT:
            noise = f"CPU unsteady: a fixed loop takes {calibration['drift']:.2f} times its best, mostly"
        return min(times), noise, times


class Contention:
    """How many cores' worth of work other processes (and other machines on the same host) did during a ``with`` block."""

    def __init__(self) -> None:
        self.cores = 0.0

    def __enter__(self) -> Contention:  # noqa: PYI034 - Self is not there before 3.11
        self._start = self._look()
        return self

    def __exit__(self, *exc: object) -> None:
        wall, busy, own = (after - before for after, before in zip(self._look(), self._start, strict=True))
        self.cores = max(0.0, (busy - own) / wall) if wall and busy else 0.0

    def noise(self) -> str:
        """Return a word if that was much."""
        return f"CPU contended: others {self.cores:.1f} cores" if self.cores > BUSY_CPU else ""

    @staticmethod
    def _look() -> tuple[float, float, float]:
        """Return the wall clock, the whole machine's CPU seconds (0 if it can't be asked), and ours with our children's."""
        own = sum(os.times()[:4])
        try:
            ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=9)[1:9]]
        except (OSError, ValueError):
            return time.perf_counter(), 0.0, own
        user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
        return time.perf_counter(), (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK"), own


def spin() -> float:
    """Return the CPU seconds of a loop that is always the same."""
    start = time.thread_time()
    for _ in range(20_000):
        pass
    return time.thread_time() - start


def pwrite_cost(place: Path, repeats: int = 15) -> float:
    """Return the least CPU seconds of a ``pwrite`` of 1 KB into a file that has its blocks."""
    path = place / "calibration"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(handle, bytes(1 << 20), 0)
        data, least = bytes(range(256)) * 4, 1.0
        for _ in range(repeats):
            start = time.thread_time()
            for at in range(0, 1 << 20, 1 << 10):
                os.pwrite(handle, data, at)
            least = min(least, (time.thread_time() - start) / 1024)
        return least
    finally:
        os.close(handle)
        path.unlink()


def raw_loop(path: Path, data: bytes, count: int) -> list[float]:
    """Return the seconds of each ``write`` + ``fdatasync`` on a file that grows: what a program does without a thought."""
    sync = getattr(os, "fdatasync", os.fsync)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        times = []
        clock, write = time.perf_counter, os.write
        for _ in range(count):
            start = clock()
            write(handle, data)
            sync(handle)
            times.append(clock() - start)
        return times
    finally:
        os.close(handle)


def ratio(of: list[float], to: list[float]) -> float:
    """Return the median of the rounds' ratios: what lasts longer than a round cancels out."""
    return median(a / b for a, b in zip(of, to, strict=True))
