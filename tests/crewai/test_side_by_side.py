"""Beside the stock framework: what a rerun repeats, and what is written, with nothing, with its own checkpoints, with letitloop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def table(found):
    lines = [
        "killed in the mail tool's task of three, and run again:",
        f"{'':24}{'model calls':>14}{'mails':>8}{'key on disk':>14}",
    ]
    for name, row in found["repeats"].items():
        lines.append(f"{name:24}{row['model']:>14}{row['mail']:>8}{'yes' if row['key on disk'] else 'no':>14}")
    lines.append("bytes written, by the number of tasks:")
    for name, row in found["bytes"].items():
        lines.append(f"{name:24}" + "".join(f"{count:>5}: {size:>10,}" for count, size in row.items()))
    return "\n".join(lines)


@pytest.mark.timeout(300)
def test_beside_the_stock_framework():
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LETITLOOP_", "OPENAI_"))}
    command = [sys.executable, "-m", "tests.crewai.stock"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    measured = json.loads(done.stdout.splitlines()[-1])
    print(table(measured))

    repeats = measured["repeats"]
    assert (repeats["nothing"]["model"], repeats["nothing"]["mail"]) == (7, 2)  # 4 are needed, the first process made 3
    assert repeats["checkpoints"]["mail"] == 2
    assert repeats["checkpoints"]["model"] in (6, 7)  # the first task is skipped, if its checkpoint came in time
    for name in ("letitloop", "letitloop, an effect"):
        assert repeats[name] == {"model": 5, "mail": 1, "key on disk": False}  # the call that was in flight, once more

    log, stock = measured["bytes"]["letitloop"], measured["bytes"]["checkpoints"]
    per_task = {int(count): size / int(count) for count, size in log.items()}
    assert per_task[60] < 1.2 * per_task[5]
    assert stock["20"] > 20 * log["20"]
