"""The recipe: uninterrupted, and killed at each of its steps and resumed, it comes to the same; stock, it refunds twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "cookbooks" / "autogen_support_team" / "support_team.py"


def run(place, *options, killed=False):
    env = {name: value for name, value in os.environ.items() if not name.startswith("LETITLOOP_")}
    done = subprocess.run(
        [sys.executable, str(RECIPE), *options], cwd=place, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == (-signal.SIGKILL if killed else 0), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run(tmp_path_factory.mktemp("alone"))


def test_uninterrupted(alone):
    assert "goodbye" in alone
    assert alone.count("1 x ") == 9
    assert "[('42', 3990)]" in alone


@pytest.mark.parametrize("step", ["1", "3", "4", "5", "6"])
def test_killed_and_resumed(tmp_path, alone, step):
    run(tmp_path, "--kill-at", step, killed=True)
    assert run(tmp_path) == alone


def test_without_letitloop_it_refunds_twice(tmp_path):
    run(tmp_path, "--stock", "--kill-at", "5", killed=True)
    assert "[('42', 3990), ('42', 3990)]" in run(tmp_path, "--stock")
