"""The code blocks of the adapter's pages run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import run_page

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["docs/how-to/smolagents.md", "packages/smolagents/README.md"])
def test_page_runs(page, tmp_path):
    assert run_page(ROOT / page, tmp_path) > 0
