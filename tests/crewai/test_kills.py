"""Programs of every process kind, killed at events all over their run: nothing finished happens again, nothing is lost."""

from __future__ import annotations

import os

import pytest

from letitloop.testing import kill_sweeps
from tests.crewai import programs

SWEEP = os.environ.get("SWEEP", "3")
"""How many events of each program are killed at: a number, or ``all``."""


@pytest.mark.parametrize("part", [0, 1])  # two, for two processors: importing CrewAI takes seconds, so it is done once for many
@pytest.mark.timeout(300 if SWEEP == "3" else 4 * 3600)
def test_killed_anywhere(part):
    sweeps = {program: {"in_flight": programs.AT_ONCE.get(program, 1)} for program in programs.ALL[part::2]}
    sample = None if SWEEP == "all" else int(SWEEP)
    reports = kill_sweeps(sweeps, preload=programs.PRELOAD, sample=sample, seed=int(os.environ.get("SEED", "7")), jobs=2)
    assert all(report.ok for report in reports), "\n\n".join(map(str, reports))
