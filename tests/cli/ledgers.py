"""Ledgers of the shop: words for its providers, processes that are at work or die in it, and disks that can only be read."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from letitloop import Ledger
from tests.cli import stores
from tests.cli.shop import NS

SHOP = "tests.cli.shop"
REFUNDS = ("--provider", f"{SHOP}:refunds")
OPAQUE = ("--provider", f"{SHOP}:opaque")
LOST = (NS, "order-2/lost")


def ledger_file() -> Path:
    return Path(os.environ["LETITLOOP_STORE"], "ledger.db")


def state(key: str) -> str:
    return Ledger().get(NS, key).state


def killed(key: str) -> None:
    """Let a process die after the bank has paid and before that is recorded."""
    code = f"from tests.cli.shop import *; act({key!r}, how='kill')"
    assert stores.python(code, check=False).returncode == -9


def elsewhere(code: str) -> None:
    """Do something in a process that ends, so that nobody has the ledger open."""
    stores.python(f"from tests.cli.shop import *\n{code}")


@contextmanager
def at_work(key: str):
    """A process that is carrying an action out; it ends when the block does."""
    code = f"from tests.cli.shop import *; act({key!r}, how='wait')"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=stores.environment()
    )
    try:
        assert child.stdout.readline() == "inside\n"
        yield child
    finally:
        child.communicate("", timeout=30)


def contents(folder: Path) -> dict[Path, bytes]:
    """Return what all files of a folder hold."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _without_rights() -> None:
    """Make a root that may not write everywhere, as a user may not: called in a child before it begins."""
    if os.geteuid() == 0:
        assert ctypes.CDLL(None).prctl(24, 1, 0, 0, 0) == 0  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE


def read_only(folder: Path, code: str) -> None:
    """Run a program that may read a folder and not write there, and hold the folder against what it was before."""
    files = contents(folder)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        done = stores.python(code, check=False, preexec_fn=_without_rights)
        assert done.returncode == 0, done.stderr
        assert contents(folder) == files
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
