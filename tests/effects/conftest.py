"""What most tests of the ledger begin with: a ledger on disk, a clock that only the test moves, and a bank."""

from __future__ import annotations

import pytest

from letitloop import Ledger
from tests.effects.acting import Bank, Clock
from tests.interrupts import in_memory


@pytest.fixture
def folder():
    with in_memory() as path:
        yield path


@pytest.fixture
def path(folder):
    return f"{folder}/actions.db"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ledger(path, clock):
    return Ledger(path, clock=clock)


@pytest.fixture
def bank():
    return Bank()
