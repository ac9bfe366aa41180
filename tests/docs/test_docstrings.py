"""Every example in a docstring of the core runs, in a directory and a store of its own."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import letitloop

MODULES = [
    "letitloop",
    *(
        found.name
        for found in pkgutil.walk_packages(letitloop.__path__, "letitloop.")
        # a facade needs its distribution, whose own session has it
        if not found.name.endswith("__main__") and not found.name.startswith("letitloop.adapters.")
    ),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert failed == 0, "see the output above"


def test_the_public_functions_have_examples():
    lacking = [
        name
        for name in ("durable", "step", "async_step", "scope", "atomic_marker", "carry")
        if ">>> " not in (getattr(letitloop, name).__doc__ or "")
    ]
    assert not lacking
