"""smolagents' agents whose finished model calls, tool calls and code steps never repeat."""

from __future__ import annotations

from letitloop_smolagents._durability import SmolagentsWALCallback, durable_agent, restore_agent_memory, unwrap

__all__ = ["SmolagentsWALCallback", "durable_agent", "restore_agent_memory", "unwrap"]
