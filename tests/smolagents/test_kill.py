"""Agents killed with SIGKILL, at every event and at random instants: the same result, and finished work never again."""

from __future__ import annotations

import os

import pytest

from letitloop.testing import kill_sweep
from tests.smolagents import programs

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

# how many of the events are killed at; with SWEEP=all every one, and random instants besides: 25 minutes
SAMPLE = None if os.environ.get("SWEEP") == "all" else 12


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "in_flight"),
    [
        ("code_agent", 1),
        ("tool_agent", 3),
        ("planning_agent", 1),
        ("managed_agent", 1),
        ("parallel_managed_agent", 3),
        ("unknown_agent", 1),
        ("streaming_agent", 1),
        ("several_runs", 1),
        ("inner_agents", 2),
        ("survived_ends", 1),
    ],
)
def test_killed_anywhere_it_goes_on(name, in_flight):
    report = kill_sweep(
        getattr(programs, name), preload=["smolagents"], sample=SAMPLE, seed=1, in_flight=in_flight, instants=0 if SAMPLE else 10
    )
    assert report.ok, report
    print(report)


@pytest.mark.timeout(3600)
def test_killed_twice_it_goes_on():
    report = kill_sweep(programs.code_agent, preload=["smolagents"], sample=15, seed=2, kills=2, in_flight=1)
    assert report.ok, report
