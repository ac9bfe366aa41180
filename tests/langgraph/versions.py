"""Which version of langgraph the tests run with: the newest that the lock has, or the oldest that the adapter declares."""

from __future__ import annotations

from importlib.metadata import version


def langgraph():
    """Return the version as numbers."""
    return tuple(map(int, version("langgraph").split(".")))
