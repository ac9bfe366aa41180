"""Facade of the ``letitloop-autogen`` distribution."""

from __future__ import annotations

from letitloop.adapters._facade import missing_adapter as _missing_adapter

try:
    from letitloop_autogen import AutoGenStateSerializer, tool_call_key
except ModuleNotFoundError as exc:
    raise _missing_adapter("autogen", exc) from exc

__all__ = ["AutoGenStateSerializer", "tool_call_key"]
