"""Both stores pass the suite that every store must pass."""

from __future__ import annotations

import pytest

from letitloop import DirectoryStore, MemoryStore
from letitloop.testing import SimFs, StoreContract


class TestDirectoryStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path):
        self.tmp_path = tmp_path
        self.made = 0

    def make_store(self):
        self.made += 1
        return DirectoryStore(self.tmp_path / f"store-{self.made}")


class TestDirectoryStoreOnASimulatedDisk(StoreContract):
    made = 0

    def make_store(self):
        type(self).made += 1
        return DirectoryStore(f"/sim/store-{self.made}", fs=SimFs())


class TestMemoryStore(StoreContract):
    def make_store(self):
        return MemoryStore()
