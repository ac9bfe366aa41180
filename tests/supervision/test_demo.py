"""``lil demo --supervised``: the demo kills the process, and ``lil watch`` starts it again."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.supervision.helpers import python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def test_the_watcher_restarts_the_killed_child(tmp_path):
    (tmp_path / "voyage.md").write_text(
        "\n\n".join(
            f"# Day {day}\n\n"
            + " ".join(f"On day {day} the ship met {thing} at sea. The crew spoke of {thing}." for thing in things)
            for day, things in enumerate((("ice", "whales"), ("storms", "rain"), ("islands", "palms")), 1)
        )
    )
    result = json.loads(
        python(tmp_path, "-m", "letitloop", "demo", "--supervised", "--json", "--store", "store", "voyage.md").stdout
    )
    assert result["ok"], result["differences"]
    first, second = result["lives"]
    assert (first["status"], second["status"]) == (-signal.SIGKILL, 0)
    assert first["pid"] != second["pid"]
    assert result["replayed"]
    assert result["repeated"] == []
    (run,) = json.loads(python(tmp_path, "-m", "letitloop", "runs", "--json", "--store", "store").stdout)
    assert (run["lives"], run["restarts"]) == (2, 1)
