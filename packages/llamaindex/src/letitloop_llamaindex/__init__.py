"""letitloop for LlamaIndex: workflows and agents that go on where they died."""

from __future__ import annotations

from letitloop_llamaindex.by_hand import durable_llm, durable_tool
from letitloop_llamaindex.runtime import LetItLoopRuntime
from letitloop_llamaindex.wrapping import durable_workflow

__all__ = ["LetItLoopRuntime", "durable_llm", "durable_tool", "durable_workflow"]
