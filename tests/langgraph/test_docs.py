"""The code blocks of the adapter's pages, and the examples of its docstrings, run as they stand."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import letitloop_langgraph
from tests.docs.blocks import run_page

ROOT = Path(__file__).parents[2]
MODULES = [module.name for module in pkgutil.iter_modules(letitloop_langgraph.__path__)]


@pytest.mark.timeout(300)  # a dozen processes, each of which imports the framework
@pytest.mark.parametrize("page", ["docs/how-to/langgraph.md", "packages/langgraph/README.md"])
def test_page_runs(page, tmp_path):
    assert run_page(ROOT / page, tmp_path) > 0


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name):
    module = importlib.import_module(f"letitloop_langgraph.{name}")
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0
