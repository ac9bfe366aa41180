"""The log's own code, or a copy of it with one fault built in.

A mutant is a replacement in the source of one module of ``letitloop.wal``. All modules of the room are then executed anew, so
that the copy is whole and the original is untouched. A replacement that no longer fits its source fails loudly.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

ROOM = ("files", "format", "seal", "lock", "group_commit", "log", "recovery")


@dataclass(frozen=True)
class World:
    """One version of the log's code."""

    name: str
    modules: dict[str, types.ModuleType]

    @property
    def open_log(self):
        return self.modules["recovery"].open_log

    @property
    def view_log(self):
        return self.modules["recovery"].view_log

    @property
    def format(self):
        return self.modules["format"]


def real() -> World:
    return World("as it is", {name: importlib.import_module(f"letitloop.wal.{name}") for name in ROOM})


@contextmanager
def _replaced(modules: dict[str, types.ModuleType]) -> Iterator[None]:
    package = importlib.import_module("letitloop.wal")
    before = {name: sys.modules[f"letitloop.wal.{name}"] for name in ROOM}
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules[f"letitloop.wal.{name}"] = module
            setattr(package, name, module)


def mutated(name: str, *changes: tuple[str, str, str]) -> World:
    """Return the code with ``(module, old text, new text)`` replaced."""
    for module, _, _ in changes:
        assert module in ROOM, module
    modules: dict[str, types.ModuleType] = {}
    original = real().modules
    with _replaced(modules):
        for part in ROOM:
            full = f"letitloop.wal.{part}"
            source = inspect.getsource(original[part])
            for module, old, new in changes:
                if module == part:
                    count = source.count(old)
                    assert count == 1, f"mutant {name!r}: its text stands {count} times in wal/{part}.py, not once:\n{old}"
                    source = source.replace(old, new)
            made = types.ModuleType(full)
            made.__file__ = original[part].__file__
            made.__package__ = "letitloop.wal"
            sys.modules[full] = modules[part] = made
            exec(compile(source, str(made.__file__), "exec"), made.__dict__)
    return World(name, modules)
