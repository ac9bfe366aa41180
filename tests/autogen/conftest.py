"""What tests of several lives begin with."""

from __future__ import annotations

import pytest

from tests.autogen.inside import World


@pytest.fixture
def world():
    found = World()
    yield found
    found.end()
