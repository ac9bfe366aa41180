"""What holds for every test: a store of its own, no network, and random tests that can be repeated."""

from __future__ import annotations

import os
import socket
import sys

import hypothesis
import pytest

# An automatic run draws the same examples each time; a developer's draws new ones, and prints what repeats a failure.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") or os.environ.get("NOX_CURRENT_SESSION") else "default")

_connect = socket.socket.connect
_connect_ex = socket.socket.connect_ex


class NetworkRefused(BaseException):
    """A test tried to leave this machine; a BaseException, so that no retry and no ``except Exception`` hides it."""


def _check(sock: socket.socket, address) -> None:
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        host = str(address[0])
        if not (host.startswith("127.") or host in ("::1", "localhost")):
            raise NetworkRefused(f"a test tried to connect to {address!r}: tests talk to this machine only")


@pytest.fixture(autouse=True, scope="session")
def _no_network():
    def connect(self, address):
        _check(self, address)
        return _connect(self, address)

    def connect_ex(self, address):
        _check(self, address)
        return _connect_ex(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect)
        patch.setattr(socket.socket, "connect_ex", connect_ex)
        yield


@pytest.fixture(autouse=True)
def _own_store(tmp_path, monkeypatch):
    """Runs go to a directory of this test; settings of the developer's shell do not reach it."""
    for name in [name for name in os.environ if name.startswith("LETITLOOP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LETITLOOP_STORE", str(tmp_path / "letitloop-store"))
    yield
    ledger_file = sys.modules.get("letitloop.effects.ledger_file")
    if ledger_file is not None:
        ledger_file.close_ledgers()  # a program has one or two, a test run thousands
