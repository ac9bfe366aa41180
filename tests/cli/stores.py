"""Stores with runs in them, damage to their logs, and ``lil`` called on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from letitloop import DirectoryStore, atomic_marker, durable, scope, step
from letitloop.cli.app import lil as group
from letitloop.wal.format import Entry
from letitloop.wal.recovery import view_log

KEY = "0123456789abcdef-secret"


@dataclass
class Point:
    x: int
    y: float


def lil(*arguments, code: int | None = 0, **kwargs) -> str:
    """Call ``lil`` in this process; return what it printed, standard error for a failure included."""
    found = CliRunner().invoke(group, [str(argument) for argument in arguments], **kwargs)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert "Traceback" not in found.stderr
    if code is not None:
        assert found.exit_code == code, found.output
    return found.output


def data(*arguments, code: int = 0, **kwargs):
    return json.loads(lil(*arguments, "--json", code=code, **kwargs))


def environment(**more) -> dict[str, str]:
    path = os.pathsep.join(entry for entry in [*sys.path, str(Path(__file__).parents[2])] if entry)
    return {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", **more}


def python(code: str, *, check=True, preexec_fn=None, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(**more),
        check=check,
        preexec_fn=preexec_fn,
    )


def value(n):
    return {"n": n, "pair": (n, 1.5), "raw": b"\0\1", "at": Point(n, 0.5), 7: None}


def no_luck():
    raise ValueError("no \x1b[31mluck")


def workflow(goal="sync", *, steps=4, fail=False, **options):
    """Drive a run with a nested run, a marker, a caught failure and a scope; return its name."""

    @durable
    def part(n):
        return step("inner", value, n)

    @durable(goal_id=goal, **options)
    def run():
        for n in range(steps):
            step("fetch", value, n)
        try:
            step("boom", no_luck)
        except ValueError:
            pass
        with scope("branch"):
            step("fetch", value, 9)
        part(3)
        with atomic_marker("notify") as go:
            if go:
                step("notify", value, 1)
        step("last", no_luck if fail else value, *([] if fail else [2]))
        return steps

    try:
        run()
    except ValueError:
        assert fail
    return next(name for name in DirectoryStore(os.environ["LETITLOOP_STORE"]).names("runs") if name.startswith(goal + "-"))


KILLED = """
import os, signal
from letitloop import durable, step
@durable(goal_id="killed")
def run():
    step("first", int)
    for name in ("second", "third"):
        step(name, lambda: os.environ["AT"] == name and os.kill(os.getpid(), signal.SIGKILL))
run()
"""


def log_path(name: str) -> Path:
    return Path(os.environ["LETITLOOP_STORE"], "runs", f"{name}.wal")


def entries(path: Path) -> list[Entry]:
    view = view_log(str(path))
    try:
        return view.entries
    finally:
        view.close()


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 4
    path.write_bytes(raw)


def rot(name: str, seq: int) -> Path:
    """Damage a record's payload."""
    path = log_path(name)
    entry = entries(path)[seq]
    flip(path, entry.offset + 3 if entry.size > 3 else entry.offset - 20)
    return path


def suspect(name: str) -> Path:
    """Damage the last record."""
    return rot(name, len(entries(log_path(name))) - 1)


def torn(name: str) -> Path:
    path = log_path(name)
    path.write_bytes(path.read_bytes() + b"\1\2\3")
    return path
