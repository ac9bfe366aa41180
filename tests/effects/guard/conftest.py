"""The ledger of the tests of the guard: in memory."""

from __future__ import annotations

import pytest

from letitloop import Ledger, MemoryStore


@pytest.fixture
def ledger():
    return Ledger(store=MemoryStore())
