"""The command ``lil`` (also ``letitloop`` and ``python -m letitloop``): one module a command group."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line; this is the entry point of the console scripts."""
    from letitloop.cli.app import lil

    lil()
