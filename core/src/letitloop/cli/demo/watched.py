"""The first two lives of the run under ``lil watch``: the demo kills the process, and the watcher starts the next one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from letitloop.cli.demo.lives import ChildFailed, Life, _account, _end, _events, _take, environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["live_watched"]


def live_watched(
    arguments: Sequence[str],
    *,
    store: Path,
    transcript: Path,
    kill_when: Callable[[Life, str], bool],
    watch: Callable[[int, Life, str, str], None],
) -> tuple[Life, Life]:
    """Run the workflow's process under the watcher, kill it once, and wait for the process that follows it.

    Args:
        arguments: the child's own arguments.
        store: the store that the child uses.
        transcript: the file that takes what the child and the watcher print.
        kill_when: asked after each step that has returned, while the child waits; true: kill it there and then.
        watch: told of each event: the act, the life, the event's name, the step.

    Returns:
        The two lives, the same one twice if nothing was killed. The second one's times count from the death of the first.

    Raises:
        ChildFailed: a process ended without a result and was not killed by us.
    """
    watcher, read_end, start = _start(arguments, store, transcript)
    lives: dict[int, Life] = {}
    first = Life(0, start)
    answers = watcher.stdin
    assert answers is not None
    try:
        watch(0, first, "started", "")
        for event in _events(read_end):
            life = _life(event, lives, first)
            act = 0 if life is first else 1
            if act and not life.ready:
                watch(0, first, "over", "")
                watch(1, life, "started", "")
            step = _take(life, event)
            watch(act, life, event["event"], step)
            if event["event"] != "returned":
                continue
            if life is first and first.killed is None and kill_when(first, step):
                os.kill(first.pid, signal.SIGKILL)
                first.killed, first.killed_after = time.monotonic() - start, step
            elif life is not first or first.killed is None:
                answers.write(b".")
                answers.flush()
    finally:
        os.close(read_end)
        _end(watcher)
    second = list(lives.values())[-1] if lives else first
    second.ended, second.status = time.monotonic() - second.start, watcher.returncode
    if first.killed is not None:
        first.ended, first.status = first.killed, _status(transcript)
    if second.brief is None or second.status:
        raise ChildFailed(_account(second, transcript))
    watch(0 if second is first else 1, second, "over", "")
    return first, second


def _start(arguments: Sequence[str], store: Path, transcript: Path) -> tuple[subprocess.Popen[bytes], int, float]:
    """Start the watcher; return it, the reading end of the child's pipe, and when that was."""
    read_end, write_end = os.pipe()
    module = ["-m", "letitloop.cli.demo.brief_child", "--pipe", str(write_end), "--answers", "0"]
    command = [sys.executable, "-m", "letitloop", "watch", "--log-json", "--backoff", "0", *module, *arguments]
    start = time.monotonic()
    try:
        with transcript.open("ab") as output:
            watcher = subprocess.Popen(
                command,
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
    return watcher, read_end, start


def _life(event: dict[str, Any], lives: dict[int, Life], first: Life) -> Life:
    """Return the life that an event belongs to; what a killed process had told last comes after its death."""
    pid = event["pid"]
    if pid not in lives:
        if not lives:
            first.pid = pid
            lives[pid] = first
        else:
            lives[pid] = Life(pid, first.start + (first.killed or 0.0))
    return lives[pid]


def _status(transcript: Path) -> int:
    """Return what the watcher saw the first life end by."""
    for line in transcript.read_bytes().splitlines():
        if line.startswith(b'{"event": "restart"'):
            return 128 - int(json.loads(line)["exit_code"])
    return 0
