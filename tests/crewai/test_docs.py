"""The code blocks of the adapter's pages, and its docstrings' examples, run as they stand."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import tests.crewai.scripted  # noqa: F401  # sets the environment first
from letitloop_crewai import handler, persistence
from tests.docs.blocks import run_page

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ["docs/how-to/crewai.md", "packages/crewai/README.md"])
def test_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert run_page(ROOT / page, tmp_path) > 0


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("module", [handler, persistence], ids=lambda module: module.__name__)
def test_examples_of_docstrings(module):
    assert doctest.testmod(module).failed == 0
