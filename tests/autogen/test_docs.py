"""The code blocks of the adapter's pages, and its docstring's example, run as they stand."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from letitloop_autogen import serializer
from tests.docs.blocks import run_page

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["docs/how-to/autogen.md", "packages/autogen/README.md"])
def test_page_runs(page, tmp_path):
    assert run_page(ROOT / page, tmp_path) > 0


def test_examples_of_docstrings():
    assert doctest.testmod(serializer).failed == 0
