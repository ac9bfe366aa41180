"""What the tests of crews begin with."""

from __future__ import annotations

import pytest

from tests.crewai.lives import Lives


@pytest.fixture
def lives(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    found = Lives(tmp_path / "store")
    yield found
    found.end()
