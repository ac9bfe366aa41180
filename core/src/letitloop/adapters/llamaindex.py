"""Facade of the ``letitloop-llamaindex`` distribution."""

from __future__ import annotations

from letitloop.adapters._facade import missing_adapter as _missing_adapter

try:
    from letitloop_llamaindex import LetItLoopRuntime, durable_llm, durable_tool, durable_workflow
except ModuleNotFoundError as exc:
    raise _missing_adapter("llamaindex", exc) from exc

__all__ = ["LetItLoopRuntime", "durable_llm", "durable_tool", "durable_workflow"]
