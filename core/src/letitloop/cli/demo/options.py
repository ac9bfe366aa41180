"""What the demos' commands share: bad input, files that are written at the end, signals that end a demo cleanly."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

__all__ = ["InputError", "as_text", "checked_directory", "probe", "terminable", "write"]


class InputError(click.ClickException):
    """What the user gave can't be used; nothing was run."""

    exit_code = 2


@contextlib.contextmanager
def terminable() -> Generator[None]:
    """Let SIGTERM and SIGHUP (a window that is closed) end the block like Ctrl+C: the child is killed, the directory removed."""

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    here = threading.current_thread() is threading.main_thread()
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if here and hasattr(signal, name)]
    taken = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]  # nohup ignores SIGHUP
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def probe(path: Path, option: str) -> None:
    """Find out now, not after the run, that a file can't be written."""
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise InputError(f"{option} {path} cannot be written: {error.strerror}") from None


def write(path: Path, text: str, what: str) -> None:
    """Write a file at the end of a demo."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"the {what} {path} could not be written: {error.strerror}") from None


def checked_directory(path: Path, option: str) -> Path:
    """Make a directory if it is absent, and see that files can be made in it; returns it resolved."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(f"{option} {path} cannot be used: {error.strerror}") from None
    return path.resolve()


def as_text(evidence: dict[str, Any]) -> str:
    """Write evidence as JSON."""
    return json.dumps(evidence, indent=2, ensure_ascii=True)
