"""SIGKILL at a sample of the events of three workflows, and at random instants; every one of them is in ``tests/sweeps``."""

from __future__ import annotations

import os

import pytest

from letitloop.testing import kill_sweep
from tests.crash.workflows import WORKFLOWS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_killed_workflow_goes_on_where_it_was(name):
    script, in_flight = WORKFLOWS[name]
    report = kill_sweep(script, sample=40, instants=20, seed=1, in_flight=in_flight)
    assert report.ok, report
    assert "step.recorded" in report.events
    assert "marker.started" in report.events


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_that_is_killed_three_times_goes_on(name):
    script, in_flight = WORKFLOWS[name]
    report = kill_sweep(script, sample=15, instants=5, seed=2, kills=3, in_flight=in_flight)
    assert report.ok, report
