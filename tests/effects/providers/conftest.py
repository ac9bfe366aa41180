"""What the tests of providers look at: the exchanges of an HTTP provider, and fresh directories for a provider of files."""

from __future__ import annotations

import pytest

from letitloop.effects.providers import http
from letitloop.effects.providers.http_transport import Exchange


@pytest.fixture
def exchanges(monkeypatch):
    """The exchanges of a test, as the transport's trace told them."""
    seen: list[Exchange] = []

    def noted() -> Exchange:
        seen.append(Exchange())
        return seen[-1]

    monkeypatch.setattr(http, "Exchange", noted)
    return seen


@pytest.fixture(params=["rename", "link"])
def how(request, monkeypatch):
    """Both ways of publishing: with a rename that refuses to replace, and where the file system has none."""
    if request.param == "link":
        monkeypatch.setattr("letitloop.effects.providers.file._renameat2", lambda: None)
    return request.param


@pytest.fixture
def fresh(tmp_path):
    """Makes new, empty directories."""
    made = []

    def make():
        made.append(tmp_path / f"d{len(made)}")
        made[-1].mkdir()
        return made[-1]

    return make
