"""What the tests of the adapter share: several lives of one program, in one process."""

from __future__ import annotations

import warnings

import pytest

from letitloop.integration import sessions

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the framework's own imports
    import smolagents  # noqa: F401

from letitloop_smolagents import _durability


class Died(BaseException):
    """The process ends here."""


@pytest.fixture
def next_life():
    """Forget everything that a process would not survive."""

    def forget():
        sessions._close_all()
        _durability._sessions.clear()

    yield forget
    forget()
