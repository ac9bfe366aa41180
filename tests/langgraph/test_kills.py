"""Graphs killed with SIGKILL at every event and at random instants: the same result, no finished leaf and no effect again."""

from __future__ import annotations

import os

import pytest

from letitloop.testing import kill_sweep
from tests.langgraph import programs

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.timeout(3600),
]

ALL = os.environ.get("SWEEP") == "all"  # every event; an hour
AT_ONCE = {  # how many calls may be under way at one instant
    "chain_sync": 1, "chain_async": 3, "fan_out_sync": 5, "fan_out_async": 5,
    "subgraph_sync": 1, "subgraph_async": 2, "agent_sync": 3, "agent_async": 3,
}  # fmt: skip


def killed(name, sample, **options):
    return kill_sweep(
        getattr(programs, name),
        preload=["tests.langgraph.programs"],
        sample=None if ALL else sample,
        in_flight=AT_ONCE[name],
        **options,
    )


@pytest.mark.parametrize("name", programs.NAMES)
def test_killed_anywhere_it_goes_on(name):
    report = killed(name, 18, instants=20 if ALL else 2, seed=1)
    print(report)
    assert report.ok, report


@pytest.mark.parametrize("name", ["chain_sync", "agent_async"])
def test_killed_three_times_it_goes_on(name):
    report = killed(name, 6, kills=3, seed=2)
    assert report.ok, report
