"""The recipe: uninterrupted, and killed and resumed, it comes to the same; nothing is done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "cookbooks" / "llamaindex_durable_workflow" / "briefing.py"


def run(place, *options, killed=False):
    env = {name: value for name, value in os.environ.items() if not name.startswith("LETITLOOP_")}
    done = subprocess.run(
        [sys.executable, str(RECIPE), *options], cwd=place, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == (-signal.SIGKILL if killed else 0), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    place = tmp_path_factory.mktemp("alone")
    return run(place, "--approve", "Ada"), (place / "out" / "briefing.txt").read_text()


def test_uninterrupted(alone):
    said, briefing = alone
    assert "1 x split, 14 x rank, 1 x draft" in said
    assert said.startswith("Published(path='briefing.txt'")
    assert briefing.endswith("Approved by Ada.\n")


def test_killed_and_approved_in_a_later_process(tmp_path, alone):
    run(tmp_path, "--kill-at", "9", killed=True)
    run(tmp_path, "--kill-at", "11", killed=True)
    assert run(tmp_path).startswith("draft of 14 lines written")
    assert (tmp_path / "draft.txt").read_text() in alone[1]
    for _ in range(2):
        assert run(tmp_path, "--approve", "Ada") == alone[0]
    assert (tmp_path / "out" / "briefing.txt").read_text() == alone[1]
