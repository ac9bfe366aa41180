"""The ledger of the tests of authority: in memory, with the test's clock."""

from __future__ import annotations

import pytest

from letitloop import Ledger, MemoryStore


@pytest.fixture
def ledger(clock):
    return Ledger(store=MemoryStore(), clock=clock)
