"""Programs and functions that die, ``lil watch`` on them as a process, and what both tell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

DEADLINE = 100  # seconds after which a test hangs; nothing here takes so long
quick = {"backoff": 0.0}


@dataclass
class Watched:
    """What came of a watched program."""

    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict]:
        return [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]

    @property
    def restarts(self) -> int:
        return sum(event["event"] == "restart" for event in self.events)

    @property
    def end(self) -> dict:
        (found,) = [event for event in self.events if event["event"] == "stop"]
        return found


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(entry for entry in [*sys.path, str(Path(__file__).parents[2])] if entry)
    return {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", **more}


def script(folder: Path, text: str, name: str = "program.py") -> Path:
    """Write a program; ``life()`` in it counts its lives, from 1."""
    path = folder / name
    prelude = """
        import os, signal, sys, time
        def life():
            with open("lives", "a") as file:
                file.write("x")
            return os.path.getsize("lives")
        def die(number=9):
            os.kill(os.getpid(), number)
            signal.pause()
    """
    path.write_text(dedent(prelude) + dedent(text), encoding="utf-8")
    return path


def started(folder: Path, *words: object, json_lines: bool = True, **options) -> subprocess.Popen[str]:
    """Start ``lil watch`` with short waits."""
    command = [sys.executable, "-m", "letitloop", "watch", *(["--log-json"] if json_lines else []), "--backoff", "0"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "env": environment(), **options}
    return subprocess.Popen([*command, *map(str, words)], cwd=folder, text=True, encoding="utf-8", **options)


def watch(folder: Path, *words: object, **options) -> Watched:
    """Run ``lil watch`` to its end."""
    return end_of(started(folder, *words, **options))


def end_of(process: subprocess.Popen[str]) -> Watched:
    """Wait for the end of a watcher, and of everything that has its streams."""
    try:
        out, err = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
        process.wait()
    return Watched(process.returncode, out or "", err or "")


def python(folder: Path, *words: str, code: int | None = 0, **more: str) -> subprocess.CompletedProcess[str]:
    """Run an interpreter to its end."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=DEADLINE,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done


def lives(path: Path) -> int:
    """Count the calls of a function across processes, from 1."""
    with path.open("a") as file:
        file.write("x")
    return path.stat().st_size


def die(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)
    signal.pause()
