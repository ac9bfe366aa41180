"""What most tests begin with: a saver, on each kind of store."""

from __future__ import annotations

import pytest

from letitloop import MemoryStore
from letitloop_langgraph import LetItLoopCheckpointSaver


@pytest.fixture(params=["directory", "memory"])
def saver(request, tmp_path):
    made = LetItLoopCheckpointSaver(store=tmp_path / "store" if request.param == "directory" else MemoryStore())
    yield made
    made.close()
