"""The process that a kill sweep forks its trials from; started by ``letitloop.testing.sweep``, never imported by a program."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import itertools
import json
import os
import pprint
import random
import runpy
import select
import shutil
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from letitloop import failpoints
from letitloop.testing.evidence import EVIDENCE, CallLog, Life, judge, read_lives
from letitloop.testing.sweep import Plan, SweepFailure, SweepReport

if TYPE_CHECKING:
    from collections.abc import Callable

INSTANT = "an instant"
_BASES = 3
"""How often the program runs uninterrupted: threads may pass a different number of events each time."""


@dataclass(frozen=True)
class Kill:
    """Where a life ends: at its ``event``-th failpoint, or ``delay`` seconds after its start; neither: nowhere."""

    event: int = 0
    delay: float = 0.0

    def __str__(self) -> str:
        return f"at event {self.event}" if self.event else f"after {self.delay * 1e6:.0f} us"


@dataclass(frozen=True)
class Outcome:
    """How a life ended: ``value`` is the result as text, ``where`` the failpoint it was killed at."""

    kind: str
    value: str = ""
    where: str = ""


def main(*directories: str) -> None:
    """Carry out the plan in each directory, and leave the report there; what is heavy is imported once for all."""
    failpoints.observe(lambda _: None)  # whatever asks for a file system while it is imported gets a watched one
    for directory in map(Path, directories):
        plan = Plan(**json.loads((directory / "plan").read_text()))
        sys.path[:] = plan.sys_path
        for name in plan.preload:
            importlib.import_module(name)
        report = _sweep(plan, _load(plan))
        (directory / "report").write_text(report.to_json())


def _load(plan: Plan) -> Callable[[Path], object]:
    if plan.function:
        function: Callable[[Path], object] = getattr(_module(plan), plan.function)
        return function
    arguments = [plan.path, *plan.argv]

    def run(evidence: Path) -> object:
        sys.argv[:] = arguments
        sys.path.insert(0, str(Path(plan.path).parent))
        runpy.run_path(plan.path, run_name="__main__")
        sys.stdout.flush()
        return (evidence.parent / "stdout").read_text()

    return run


def _module(plan: Plan) -> object:
    """Import the script's module: by its name where that leads to the same file, else from the file."""
    if plan.module in sys.modules:
        found = sys.modules[plan.module]
        if _same_file(getattr(found, "__file__", None), plan.path):
            return found
    if plan.module != "__main__":
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(plan.module)
            if spec is not None and _same_file(spec.origin, plan.path):
                return importlib.import_module(plan.module)
    name = "__sweep_main__" if plan.module == "__main__" else plan.module
    spec = importlib.util.spec_from_file_location(name, plan.path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {plan.path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _same_file(name: str | None, path: str) -> bool:
    return name is not None and os.path.exists(name) and os.path.samefile(name, path)


# --- the sweep ---------------------------------------------------------------------------------------------------------------


@dataclass
class _Alone:
    """The uninterrupted run."""

    value: str
    life: Life
    events: tuple[str, ...]
    seconds: float


def _sweep(plan: Plan, program: Callable[[Path], object]) -> SweepReport:
    alone = max((_alone(plan, program, number) for number in range(_BASES)), key=lambda one: len(one.events))
    report = SweepReport(plan.script, plan.seed, alone.events)
    trials = list(_plan_trials(plan, alone))
    workers = [_start_worker(plan, program, alone, trials[share :: plan.jobs]) for share in range(min(plan.jobs, len(trials)))]
    for pid, path in workers:
        _, status = os.waitpid(pid, 0)
        if status:
            raise RuntimeError(f"a worker of the sweep ended with status {status}")
        part = SweepReport.from_json(path.read_text())
        report.add(part)
    report.failures.sort(key=lambda failure: failure.trial)
    return report


def _plan_trials(plan: Plan, alone: _Alone) -> list[tuple[str, tuple[Kill, ...]]]:
    rng = random.Random(plan.seed)
    total = len(alone.events)
    events = list(range(1, total + 1))
    if plan.sample is not None and plan.sample < total:
        events = sorted(rng.sample(events, plan.sample))
    trials: list[tuple[str, tuple[Kill, ...]]] = []
    for event in events:
        later = [Kill(event=rng.randint(1, total)) for _ in range(plan.kills - 1)]
        trials.append((f"event-{event}", (Kill(event=event), *later)))
    for number in range(plan.instants):
        delays = [Kill(delay=max(rng.uniform(0, alone.seconds * 1.1), 1e-6)) for _ in range(plan.kills)]
        trials.append((f"instant-{number}", tuple(delays)))
    return trials


def _start_worker(
    plan: Plan, program: Callable[[Path], object], alone: _Alone, trials: list[tuple[str, tuple[Kill, ...]]]
) -> tuple[int, Path]:
    path = Path(plan.workdir) / f"part-{trials[0][0]}"
    pid = os.fork()
    if not pid:
        code = 1
        try:
            report = SweepReport(plan.script, plan.seed)
            for name, kills in trials:
                _trial(plan, program, alone, name, kills, report)
            path.write_text(report.to_json())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid, path


def _alone(plan: Plan, program: Callable[[Path], object], number: int) -> _Alone:
    directory = Path(plan.workdir) / f"uninterrupted-{number}"
    began = time.perf_counter()
    outcome = _life(plan, program, directory, 0, Kill())
    seconds = time.perf_counter() - began
    if outcome.kind not in ("returned", "raised"):
        raise SystemExit(f"the uninterrupted run of {plan.script} {outcome.kind}:\n{_output(directory)}")
    lives = read_lives(directory / "evidence")
    events = tuple((directory / "events").read_text().split())
    if outcome.kind == "raised":
        raise SystemExit(f"the uninterrupted run of {plan.script} raised:\n{_output(directory)}")
    shutil.rmtree(directory)
    return _Alone(outcome.value, lives[0], events, seconds)


def _trial(
    plan: Plan, program: Callable[[Path], object], alone: _Alone, name: str, kills: tuple[Kill, ...], report: SweepReport
) -> None:
    directory = Path(plan.workdir) / name
    problems: list[str] = []
    places: list[str] = []
    outcome = Outcome("")
    for number, kill in enumerate([*kills, Kill()]):
        outcome = _life(plan, program, directory, number, kill)
        if outcome.kind == "killed":
            report.killed_at[outcome.where] = report.killed_at.get(outcome.where, 0) + 1
            places.append(f"{kill}, {outcome.where}")
        elif outcome.kind == "raised":
            problems.append(f"life {number} raised:\n{_output(directory)}")
        elif outcome.kind != "returned":
            problems.append(f"life {number} {outcome.kind}:\n{_output(directory)}")
        if problems:
            break
    if not problems:
        if outcome.value != alone.value:
            problems.append(f"the result is {outcome.value}, uninterrupted it is {alone.value}")
        problems += judge(read_lives(directory / "evidence"), alone.life, in_flight=plan.in_flight)
    report.trials += 1
    report.killed += bool(places)
    if problems:
        report.failures.append(SweepFailure(name, tuple(places), tuple(problems), str(directory)))
    else:
        shutil.rmtree(directory)


def _output(directory: Path) -> str:
    texts = [(directory / name).read_text(errors="replace")[-4000:] for name in ("stdout", "stderr") if (directory / name).exists()]
    return "\n".join(texts)


# --- one life ----------------------------------------------------------------------------------------------------------------


def _life(plan: Plan, program: Callable[[Path], object], directory: Path, number: int, kill: Kill) -> Outcome:
    """Fork a child that runs the program in ``directory``; kill it where ``kill`` says; tell how it ended."""
    evidence, result = directory / "evidence", directory / f"result-{number}"
    evidence.mkdir(parents=True, exist_ok=True)
    ready, tell = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(ready)
        _child(program, directory, evidence, result, number, kill, tell)
    os.close(tell)
    try:
        killed_here = _wait(ready, plan.timeout, kill)
        if killed_here:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(ready)
    where = directory / "killed"
    if os.WIFSIGNALED(status):
        if killed_here == "hung":
            return Outcome(f"hung for {plan.timeout} s")
        if killed_here:
            return Outcome("killed", where=INSTANT)
        if where.exists():
            name = where.read_text()
            where.unlink()
            return Outcome("killed", where=name)
        return Outcome(f"ended by signal {os.WTERMSIG(status)}")
    if not result.exists():
        return Outcome(f"ended with exit code {os.WEXITSTATUS(status)}, without a result")
    kind, _, value = result.read_text().partition("\n")
    return Outcome(kind, value)


def _wait(ready: int, timeout: float, kill: Kill) -> str:
    """Wait until the child has ended (its end of the pipe closes), or until it is due to be killed; tell which, and why."""
    os.read(ready, 1)  # it is about to start
    if kill.delay:
        return "" if select.select([ready], [], [], kill.delay)[0] else "due"
    return "" if select.select([ready], [], [], timeout)[0] else "hung"


def _child(
    program: Callable[[Path], object], directory: Path, evidence: Path, result: Path, number: int, kill: Kill, tell: int
) -> NoReturn:
    code = 1
    try:
        _settle(directory, evidence, number)
        _watch(directory, kill)
        os.write(tell, b"!")
        try:
            outcome = "returned\n" + pprint.pformat(program(evidence), width=100)
        except BaseException:
            traceback.print_exc()
            outcome = "raised\n"
        part = result.with_suffix(".part")
        part.write_text(outcome)
        part.replace(result)
        atexit._run_exitfuncs()  # what a program's end would do; the rest of an interpreter's end is not worth its time
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _settle(directory: Path, evidence: Path, number: int) -> None:
    """Give the child its own store, evidence and output."""
    os.environ["LETITLOOP_STORE"] = str(directory / "store")
    os.environ[EVIDENCE] = str(evidence)
    os.chdir(directory)
    for stream, target in ((sys.stdout, "stdout"), (sys.stderr, "stderr")):
        stream.flush()
        # only what the last life prints counts
        handle = os.open(directory / target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(handle, stream.fileno())
        os.close(handle)
    calls = CallLog(evidence)
    calls.life(number)
    calls.close()


def _watch(directory: Path, kill: Kill) -> None:
    """Count the failpoints, and end the process at the one it is to be killed at."""
    handle = os.open(directory / "events", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    count = itertools.count(1)
    place, own = str(directory / "killed"), os.getpid()

    def passed(name: str) -> None:
        if os.getpid() != own:  # a process that the program forked: not ours to count
            return
        if next(count) == kill.event:
            where = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.write(where, name.encode())
            os.kill(own, signal.SIGKILL)
        if not kill.event and not kill.delay:
            os.write(handle, f"{name}\n".encode())

    failpoints.observe(passed)


if __name__ == "__main__":
    main(*sys.argv[1:])
