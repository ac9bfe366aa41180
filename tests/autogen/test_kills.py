"""Programs of every team and agent type, killed at events all over their run: nothing finished happens again, nothing is lost."""

from __future__ import annotations

import os

import pytest

from letitloop.testing import kill_sweep
from tests.autogen import programs

SAMPLE = None if os.environ.get("SWEEP") == "all" else 12
"""How many events of each program are killed at; with SWEEP=all every one."""


@pytest.mark.parametrize("program", programs.ALL, ids=lambda program: program.__name__)
@pytest.mark.timeout(120 if SAMPLE else 1800)
def test_killed_anywhere(program):
    report = kill_sweep(
        program,
        preload=programs.PRELOAD,
        sample=SAMPLE,
        in_flight=programs.AT_ONCE.get(program, 1),
        seed=6,
    )
    assert report.ok, report
