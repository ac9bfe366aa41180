"""The lives of a run: its process started, listened to, killed at a chosen event, and started again."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["ChildFailed", "Life", "environment", "live"]

SILENCE = 120.0  # seconds without an event after which the child counts as stuck


class ChildFailed(Exception):
    """The child process ended by itself without a result, or got stuck; the message ends with what it wrote."""


@dataclass
class Life:
    """One life of the run, as its process told it; times are seconds since the process was started.

    Args:
        pid: its process id.
        start: when it was started, on the monotonic clock.
        calls: when each step's function was entered.
        done: when each step's function had ended.
        returned: when each step's value had reached the workflow, and how long the workflow had waited for it.
        ready: when the interpreter had started and everything was imported.
        killed: when this life was killed; ``None``: it was not.
        killed_after: the step upon whose return it was killed.
        ended: when its process was gone.
        status: its exit status; negative: the signal that ended it.
        brief: its result.
        log: what the run's log holds at the end: the run's name, its bytes, and of each record key, status and life.
        intent: what the ledger knows of the delivery at the end.
    """

    pid: int
    start: float
    calls: dict[str, float] = field(default_factory=dict[str, float])
    done: dict[str, float] = field(default_factory=dict[str, float])
    returned: dict[str, tuple[float, float]] = field(default_factory=dict[str, "tuple[float, float]"])
    ready: float = 0.0
    killed: float | None = None
    killed_after: str = ""
    ended: float = 0.0
    status: int | None = None
    brief: str | None = None
    log: dict[str, Any] = field(default_factory=dict[str, Any])
    intent: dict[str, Any] = field(default_factory=dict[str, Any])

    def state(self, step: str) -> str:
        """Tell what happened to a step in this life: ``ran``, ``replayed``, ``in flight`` or ``-``."""
        if step in self.returned:
            return "ran" if step in self.calls else "replayed"
        return "in flight" if step in self.calls else "-"

    def add(self, counted: Sequence[dict[str, Any]]) -> None:
        """Add the calls that the counter file knows of and whose event never got through the pipe."""
        for line in counted:
            if line["pid"] == self.pid:
                (self.calls if line["what"] == "start" else self.done).setdefault(line["step"], line["t"] - self.start)

    def resumed(self) -> float:
        """Give the seconds from the start of the process until it did new work, or had its result if there was none to do."""
        return min(self.calls.values(), default=self.ended)


def environment() -> dict[str, str]:
    """Make the environment of a child."""
    made = dict(os.environ)
    if os.getcwd() not in {os.path.abspath(entry or ".") for entry in sys.path}:
        made["PYTHONSAFEPATH"] = "1"  # a statistics.py in the user's directory is not for us, here as in this process
    return made


def live(
    arguments: Sequence[str],
    *,
    store: Path,
    transcript: Path,
    kill_when: Callable[[Life, str], bool] | None = None,
    watch: Callable[[Life, str, str], None] | None = None,
) -> Life:
    """Run the workflow's process until it ends, or until it is killed.

    Args:
        arguments: the child's own arguments.
        store: the store that the child uses.
        transcript: the file that takes what the child prints.
        kill_when: asked after each step that has returned, while the child waits; true: kill it there and then.
        watch: told of each event: the life, the event's name (``started``, those of the child, ``over``), the step.

    Raises:
        ChildFailed: the process ended without a result and was not killed by us.
    """
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "letitloop.cli.demo.brief_child", "--pipe", str(write_end)]
    if kill_when is not None:
        command += ["--answers", "0"]
    start = time.monotonic()
    try:
        with transcript.open("ab") as output:
            child = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[write_end],
                env={**environment(), "LETITLOOP_STORE": str(store), "PYTHONUNBUFFERED": "1"},
            )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    life = Life(child.pid, start)
    answers = child.stdin
    assert answers is not None
    tell = watch or _ignore
    try:
        tell(life, "started", "")
        for event in _events(read_end):
            step = _take(life, event)
            tell(life, event["event"], step)
            if event["event"] != "returned" or kill_when is None or life.killed is not None:
                continue
            if kill_when(life, step):
                os.kill(child.pid, signal.SIGKILL)
                child.wait()
                life.killed, life.killed_after = time.monotonic() - start, step
            else:
                answers.write(b".")
                answers.flush()
    finally:
        os.close(read_end)
        _end(child)
    life.ended, life.status = time.monotonic() - start, child.returncode
    if life.killed is None and (life.brief is None or life.status):
        raise ChildFailed(_account(life, transcript))
    tell(life, "over", "")
    return life


def _ignore(_life: Life, _event: str, _step: str) -> None:
    """Watch nothing."""


def _events(descriptor: int) -> Iterator[dict[str, Any]]:
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while selector.select(SILENCE):
            data = os.read(descriptor, 65536)
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                yield json.loads(line)


def _take(life: Life, event: dict[str, Any]) -> str:
    at, step = event["t"] - life.start, str(event.get("step", ""))
    match event["event"]:
        case "ready":
            life.ready = at
        case "call":
            life.calls[step] = at
        case "done":
            life.done[step] = at
        case "returned":
            life.returned[step] = (at, event["seconds"])
        case "log":
            life.log = event["log"]
        case "ledger":
            life.intent = event["intent"]
        case "result":
            life.brief = event["brief"]
        case _:
            pass
    return step


def _end(child: subprocess.Popen[bytes]) -> None:
    """Wait for a child whose pipe has ended; kill one that is still at work, as after Ctrl+C."""
    assert child.stdin is not None
    try:
        child.stdin.close()
    except BrokenPipeError:
        pass
    try:
        # not so short that a busy machine turns a normal end into a kill, nor so long that Ctrl+C seems to hang
        child.wait(timeout=0 if sys.exc_info()[0] else 10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _account(life: Life, transcript: Path) -> str:
    if life.status is not None and life.status < 0:
        how = f"was ended by {signal.Signals(-life.status).name}"
    else:
        how = f"ended with status {life.status}"
    said = transcript.read_text(errors="replace").strip()
    return f"the workflow's process {life.pid} {how} without a result; it wrote:\n{said[-4000:] or '(nothing)'}"
