"""What the tests of crews and of flows begin with."""

from __future__ import annotations

import pytest

from tests.crewai.lives import Lives  # sets the environment first

# isort: split
from letitloop.adapters.crewai import CrewAIDurabilityHandler


@pytest.fixture
def lives(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    found = Lives(tmp_path / "store")
    yield found
    found.end()


@pytest.fixture
def handlers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # where CrewAI keeps a database, which versions do not share
    made = []

    def begin(**options):
        for one in made:
            one.unwrap()
            one.close()
        made.append(CrewAIDurabilityHandler(session_id="flows", store=str(tmp_path / "store"), **options))
        return made[-1]

    yield begin
    for one in made:
        one.unwrap()
        one.close()
