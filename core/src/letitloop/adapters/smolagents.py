"""smolagents: agents whose finished model calls, tool calls and code steps never repeat. Facade of ``letitloop-smolagents``."""

from __future__ import annotations

from letitloop.adapters._facade import missing_adapter as _missing_adapter

try:
    from letitloop_smolagents import SmolagentsWALCallback, durable_agent, restore_agent_memory, unwrap
except ModuleNotFoundError as exc:
    raise _missing_adapter("smolagents", exc) from exc

__all__ = ["SmolagentsWALCallback", "durable_agent", "restore_agent_memory", "unwrap"]
