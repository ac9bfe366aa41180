"""letitloop for AutoGen: agents and teams whose finished model and tool calls never repeat."""

from __future__ import annotations

from letitloop_autogen.serializer import AutoGenStateSerializer
from letitloop_autogen.tools import tool_call_key

__all__ = ["AutoGenStateSerializer", "tool_call_key"]
