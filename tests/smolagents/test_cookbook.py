"""The recipe: uninterrupted, and killed at each of its steps and resumed, it comes to the same plot; stock, it does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "cookbooks" / "smolagents_data_analyst" / "analyst.py"


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
    assert "month 11: 5.35 mm a day" in alone
    assert "1 x tool order_posters" in alone


@pytest.mark.parametrize("step", ["4", "6"])
def test_killed_and_resumed(tmp_path, alone, step):
    run(tmp_path, "--kill-at", step, killed=True)
    assert run(tmp_path) == alone


def test_without_letitloop_the_posters_are_ordered_twice(tmp_path):
    run(tmp_path, "--stock", "--kill-at", "6", killed=True)
    printed = run(tmp_path, "--stock")
    assert "the print shop got 2 order(s)" in printed
    assert "2 x model, step 1" in printed
