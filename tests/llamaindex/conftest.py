"""LlamaIndex asks pydantic for what it has deprecated."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items):
    here = __file__.rpartition("/")[0]
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning"))
