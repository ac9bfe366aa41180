"""What every test begins with: nothing done, no trouble; and LlamaIndex asks pydantic for what it has deprecated."""

from __future__ import annotations

import pytest

from tests.llamaindex.helpers import made, trouble


def pytest_collection_modifyitems(items):
    here = __file__.rpartition("/")[0]
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"))


@pytest.fixture(autouse=True)
def _nothing_yet():
    """No test finds what one before it has done, or the trouble that it was in."""
    made.clear()
    trouble.clear()
