"""SIGKILL at every event of three workflows and at 200 random instants of each; every state is also crashed during recovery."""

from __future__ import annotations

import os

import pytest

from letitloop.testing import kill_sweep
from tests.crash import simulated, worlds
from tests.crash.workflows import WORKFLOWS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("name", WORKFLOWS)
@pytest.mark.parametrize("kills", [1, 2])
def test_a_workflow_is_killed_at_every_event(name, kills):
    script, in_flight = WORKFLOWS[name]
    report = kill_sweep(script, instants=200, seed=kills, kills=kills, in_flight=in_flight)
    assert report.ok, report
    assert report.trials >= len(report.events) + 200


@pytest.mark.parametrize("strict_dirs", [False, True], ids=["ordinary", "strict"])
@pytest.mark.parametrize("name", simulated.WORKLOADS)
def test_every_state_after_a_power_cut_is_cut_again_during_recovery(name, strict_dirs):
    fs, history = simulated.run(worlds.real(), simulated.WORKLOADS[name], strict_dirs=strict_dirs)
    assert simulated.power_cuts(worlds.real(), fs, history, deep=1, per_instant=100_000) > 1000
