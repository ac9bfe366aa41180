"""The SQLite store of intents passes the suite that every store of intents must pass: on disk, and in memory."""

from __future__ import annotations

import pytest

from letitloop import Ledger
from letitloop.codecs import default_codecs
from letitloop.effects.intents import SqliteIntents
from letitloop.effects.ledger_file import LedgerFile, close_ledger, open_ledger
from letitloop.effects.vault import Vault
from letitloop.testing import IntentStoreContract
from tests.effects.acting import Xor
from tests.effects.bank import Bank


class OnSqlite(IntentStoreContract):
    cipher = None

    @pytest.fixture(autouse=True)
    def _places(self, tmp_path):
        self.tmp_path = tmp_path
        self.locations = {}

    def store_at(self, location):
        store = SqliteIntents(lambda: open_ledger(location), Vault(default_codecs, self.cipher), lambda: self.now)
        self.locations[id(store)] = (location, store)
        return store


class TestOnDisk(OnSqlite):
    def make_store(self):
        return self.store_at(f"sqlite:{self.tmp_path / f'ledger-{len(self.locations)}.db'}")

    def reopen(self, store):
        location, _ = self.locations[id(store)]
        close_ledger(location)
        return self.store_at(location)


class TestOnDiskEncrypted(TestOnDisk):
    cipher = Xor()


class TestInMemory(OnSqlite):
    lacks = dict.fromkeys(["processes"], "its memory is this process's own")

    def make_store(self):
        return self.store_at(f"memory:contract-{id(self)}-{len(self.locations)}")

    def reopen(self, store):
        """The memory lives as long as the process: what dies is the owner."""
        location, _ = self.locations[id(store)]
        open_ledger(location).owner.end()
        open_ledger(location)._owner = None
        return self.store_at(location)


def test_a_ledger_works_on_any_store_that_passes(tmp_path):
    contract = TestInMemory()
    contract.locations = {}
    store = contract.make_store()
    ledger, bank = Ledger(tmp_path / "unused.db"), Bank(str(tmp_path / "bank"), "receipt", "lost")
    ledger.intents = store
    assert ledger.run("n", "k", bank, {"amount": 5}) == {"moved": 5}
    assert store.row("n", "k").basis == "receipt"
    assert not (tmp_path / "unused.db").exists()


def test_a_store_is_closed_with_its_file(tmp_path):
    file = LedgerFile(f"sqlite:{tmp_path / 'ledger.db'}")
    file.close()
    assert file.poisoned
