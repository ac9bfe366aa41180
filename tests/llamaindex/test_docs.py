"""The code blocks of the adapter's pages, and its docstrings' examples, run as they stand."""

from __future__ import annotations

import doctest
import os
from pathlib import Path

import pytest

from letitloop_llamaindex import by_hand, runtime, wrapping
from tests.docs.blocks import run_page

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["docs/how-to/llamaindex.md", "packages/llamaindex/README.md"])
def test_page_runs(page, tmp_path):
    assert run_page(ROOT / page, tmp_path) > 0


@pytest.mark.parametrize("module", [by_hand, runtime, wrapping])
def test_examples_of_docstrings(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(module).failed == 0
    assert os.listdir(tmp_path) == []
