"""What the tests of ``lil ledger`` and ``lil doctor`` begin with: a shop whose book is the test's own."""

from __future__ import annotations

import pytest


@pytest.fixture
def shop_book(monkeypatch, tmp_path):
    """The shop behaves well, and its book is empty; the terminal has 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("SHOP_BOOK", str(tmp_path / "book"))
    monkeypatch.setenv("SHOP", "")
    monkeypatch.delenv("SHOP_ASKED", raising=False)
