"""What tests of several lives begin with."""

from __future__ import annotations

import pytest

from letitloop.adapters.autogen import AutoGenStateSerializer
from tests.autogen.inside import World


@pytest.fixture
def world():
    found = World()
    yield found
    found.end()


@pytest.fixture
def begin():
    """Begin a life of a program: the one before has ended."""
    opened = []

    def begin(**options):
        if opened:
            opened.pop().close()
        opened.append(AutoGenStateSerializer(session_id="program", **options))
        return opened[-1]

    yield begin
    for one in opened:
        one.close()
