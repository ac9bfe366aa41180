"""Programs of every workflow shape and agent kind, killed at events all over their run: nothing finished happens again."""

from __future__ import annotations

import os

import pytest

from letitloop.testing import kill_sweep
from tests.llamaindex import programs

SAMPLE = None if os.environ.get("SWEEP") == "all" else 7
"""How many events of each program are killed at; None: every one."""


@pytest.mark.parametrize("program", [*programs.WORKFLOWS, *programs.AGENTS], ids=lambda program: program.__name__)
@pytest.mark.timeout(3600 if SAMPLE is None else 120)
def test_killed_anywhere(program):
    report = kill_sweep(
        program,
        preload=programs.PRELOAD,
        sample=SAMPLE,
        in_flight=programs.AT_ONCE.get(program, 1),
        seed=7,
    )
    assert report.ok, report
