"""Kill a program everywhere: at each event of its run, run it again, and compare with the run that nobody interrupted.

:func:`kill_sweep` starts one process that imports what is heavy, and forks a trial from it for each place to kill at, so a trial
costs milliseconds even under a framework that imports for seconds. Each trial has an empty store of its own. The child counts
the failpoints it passes (``letitloop.failpoints``) and sends itself SIGKILL at the chosen one; or the parent kills it at a random
instant. Then another child runs the program to its end, and the two lives are judged.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from letitloop.errors import InvalidArgument, LetItLoopError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["SweepFailure", "SweepReport", "kill_sweep", "kill_sweeps"]


@dataclass(frozen=True)
class Plan:
    """A sweep as the trial process is told of it: ``function`` of ``module`` in the file ``path``, or that file itself."""

    path: str
    module: str
    function: str
    preload: tuple[str, ...]
    workdir: str
    sample: int | None
    instants: int
    seed: int
    kills: int
    in_flight: int | None
    timeout: float
    jobs: int
    argv: tuple[str, ...]
    sys_path: tuple[str, ...]

    @property
    def script(self) -> str:
        """What is run, for people."""
        return f"{self.module}:{self.function}" if self.function else self.path


@dataclass(frozen=True)
class SweepFailure:
    """One trial that went wrong.

    Attributes:
        trial: its name; its directory with store, evidence and output is kept under ``directory``.
        kills: where the lives were killed.
        problems: what was wrong.
        directory: the trial's directory.
    """

    trial: str
    kills: tuple[str, ...]
    problems: tuple[str, ...]
    directory: str

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> SweepFailure:
        """Return the failure that ``dataclasses.asdict`` took apart."""
        return cls(values["trial"], tuple(values["kills"]), tuple(values["problems"]), values["directory"])

    def __str__(self) -> str:
        where = ", then ".join(self.kills) or "not killed"
        return f"{self.trial} ({where}):\n  " + "\n  ".join(self.problems) + f"\n  kept in {self.directory}"


@dataclass
class SweepReport:
    """What a sweep found.

    Attributes:
        script: what was run.
        seed: repeats the sweep.
        events: the failpoints that the uninterrupted run passes, in order.
        trials: how many trials were made.
        killed: in how many of them at least one life was really killed.
        killed_at: how many lives ended at which failpoint, ``"an instant"`` for those killed by the clock.
        failures: the trials that went wrong.
    """

    script: str
    seed: int
    events: tuple[str, ...] = ()
    trials: int = 0
    killed: int = 0
    killed_at: dict[str, int] = field(default_factory=dict[str, int])
    failures: list[SweepFailure] = field(default_factory=list[SweepFailure])

    @property
    def ok(self) -> bool:
        """Whether every trial went well, and at least one life was killed."""
        return self.killed > 0 and not self.failures

    def to_json(self) -> str:
        """Return the report as JSON, e.g. for a build's artefacts."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SweepReport:
        """Return the report that :meth:`to_json` wrote."""
        report = cls(**json.loads(text))
        report.events = tuple(report.events)
        report.failures = [SweepFailure.from_dict(failure) for failure in json.loads(text)["failures"]]
        return report

    def add(self, part: SweepReport) -> None:
        """Count the trials of another report of the same sweep as well."""
        self.trials += part.trials
        self.killed += part.killed
        for place, count in part.killed_at.items():
            self.killed_at[place] = self.killed_at.get(place, 0) + count
        self.failures += part.failures

    def __str__(self) -> str:
        head = (
            f"{self.script}: {len(self.events)} events, {self.trials} trials, {self.killed} killed, "
            f"{len(self.failures)} failed, seed={self.seed}"
        )
        return "\n".join([head, *map(str, self.failures[:5]), *(["..."] if len(self.failures) > 5 else [])])


def kill_sweep(
    script: Callable[[Path], object] | str | os.PathLike[str],
    *,
    preload: Sequence[str] = (),
    sample: int | None = None,
    instants: int = 0,
    seed: int = 0,
    kills: int = 1,
    in_flight: int | None = None,
    timeout: float = 60.0,
    jobs: int | None = None,
    argv: Sequence[str] = (),
    workdir: str | os.PathLike[str] | None = None,
) -> SweepReport:
    """Run a program many times, kill it each time somewhere else, and check what its second life makes of it.

    A trial fails if the program's result differs from that of the uninterrupted run, if a call whose step had returned ran again,
    if more calls ran again than were in flight, or if a life hung.

    Args:
        script: a function at the top level of a module, called with the trial's evidence directory; its result is compared as
            ``pprint`` shows it, so what is in it needs a ``repr`` that stays the same. Or the path of a Python file, which is
            run as ``__main__``; then what it prints to its standard output is compared, and ``CallLog()`` finds the evidence
            directory by itself.
        preload: modules to import once, before the trials are forked; they must start no threads.
        sample: kill at so many events drawn at random, instead of at every one.
        instants: kill at so many random instants in addition.
        seed: for every draw; printed when a trial fails.
        kills: how often each trial is killed before it may run to its end.
        in_flight: how many calls may be under way at one instant; see :func:`letitloop.testing.evidence.judge`.
        timeout: seconds after which a life counts as hung.
        jobs: how many trials to run at a time; default: the number of processors, at most 8.
        argv: the arguments of a script file.
        workdir: where the trials' stores lie; default: a temporary directory, in memory where the system has one (SIGKILL loses
            nothing that was written, on any file system). It is removed unless a trial fails.

    Returns:
        The report. ``assert report.ok, report`` is what a test does with it.

    Raises:
        InvalidArgument: the function cannot be imported by another process, or an argument is out of range.
        LetItLoopError: the system cannot fork, or the uninterrupted run itself failed.

    Example:
        >>> def test_survives_being_killed_anywhere():
        ...     report = kill_sweep(workflow, sample=20)
        ...     assert report.ok, report
    """
    settings: dict[str, Any] = {
        "preload": preload,
        "sample": sample,
        "instants": instants,
        "seed": seed,
        "kills": kills,
        "in_flight": in_flight,
        "timeout": timeout,
        "jobs": jobs,
        "argv": argv,
    }
    return _sweep([_plan(script, workdir, **settings)], kept=workdir is not None)[0]


def kill_sweeps(scripts: Mapping[Callable[[Path], object], Mapping[str, Any]], **options: Any) -> list[SweepReport]:
    """Make several sweeps in one process, so that what all of them import is imported once.

    Args:
        scripts: the functions, each with its own options of :func:`kill_sweep`.
        options: those of all.

    Returns:
        The reports, in the order of the functions; errors are those of :func:`kill_sweep`.

    Example:
        >>> def test_all_survive_being_killed_anywhere():
        ...     for report in kill_sweeps({workflow: {}, other_workflow: {"in_flight": 2}}, sample=20):
        ...         assert report.ok, report
    """
    return _sweep([_plan(script, None, **{**options, **own}) for script, own in scripts.items()], kept=False)


def _plan(
    script: Callable[[Path], object] | str | os.PathLike[str],
    workdir: str | os.PathLike[str] | None,
    *,
    preload: Sequence[str] = (),
    sample: int | None = None,
    instants: int = 0,
    seed: int = 0,
    kills: int = 1,
    in_flight: int | None = None,
    timeout: float = 60.0,
    jobs: int | None = None,
    argv: Sequence[str] = (),
) -> Plan:
    if not hasattr(os, "fork") or sys.platform == "win32":
        raise LetItLoopError("kill_sweep forks its trials, and this system has no fork: run it on Linux or macOS. Nothing was run.")
    if kills < 1 or (sample is not None and sample < 0) or instants < 0:
        raise InvalidArgument(
            f"kill_sweep: kills={kills}, sample={sample}, instants={instants}: at least 1, 0 and 0. Nothing was run."
        )
    path, module, function = _target(script)
    base = Path(workdir) if workdir is not None else _temporary()
    base.mkdir(parents=True, exist_ok=True)
    return Plan(
        path=path,
        module=module,
        function=function,
        preload=tuple(preload),
        workdir=str(base),
        sample=sample,
        instants=instants,
        seed=seed,
        kills=kills,
        in_flight=in_flight,
        timeout=timeout,
        jobs=jobs or min(os.cpu_count() or 1, 8),
        argv=tuple(argv),
        sys_path=tuple(sys.path),
    )


def _sweep(plans: list[Plan], *, kept: bool) -> list[SweepReport]:
    """Carry the plans out; what a failed trial left is there to be looked at."""
    keep = {plan.workdir for plan in plans if kept}
    try:
        reports = _run(plans)
        for plan, report in zip(plans, reports, strict=True):
            if report.failures:
                keep.add(plan.workdir)
                print(report)
        return reports
    finally:
        for plan in plans:
            if plan.workdir not in keep:
                shutil.rmtree(plan.workdir, ignore_errors=True)


def _run(plans: list[Plan]) -> list[SweepReport]:
    for plan in plans:
        (Path(plan.workdir) / "plan").write_text(json.dumps(asdict(plan)))
    environment = {name: value for name, value in os.environ.items() if name != "LETITLOOP_FAILPOINT"}
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-m", "letitloop.testing.trials", *(plan.workdir for plan in plans)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    missing = [plan.script for plan in plans if not (Path(plan.workdir) / "report").exists()]
    if done.returncode or missing:
        raise LetItLoopError(
            f"the sweep of {', '.join(missing)} could not be made (exit code {done.returncode}):\n{done.stdout[-8000:]}"
        )
    return [SweepReport.from_json((Path(plan.workdir) / "report").read_text()) for plan in plans]


def _temporary() -> Path:
    memory = Path("/dev/shm")  # noqa: S108 - a directory of one's own is made in it
    parent = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="letitloop-sweep-", dir=parent))


def _target(script: Callable[[Path], object] | str | os.PathLike[str]) -> tuple[str, str, str]:
    """Return the file, the module and the function by which another process finds the script."""
    if not callable(script):
        path = Path(script).resolve()
        if not path.is_file():
            raise InvalidArgument(f"kill_sweep: {path} is no file. Nothing was run.")
        return str(path), "", ""
    name = getattr(script, "__qualname__", "")
    module = getattr(script, "__module__", "")
    try:
        source = inspect.getsourcefile(inspect.unwrap(script))
    except TypeError:  # it is not written in Python
        source = None
    if source is None or not name or not module or "." in name or "<" in name:
        raise InvalidArgument(
            f"kill_sweep: {script!r} cannot be found by another process: give it a function at the top level of a module, or the "
            "path of a script. Nothing was run."
        )
    return str(Path(source).resolve()), module, name
