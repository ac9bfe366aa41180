"""Facade of the ``letitloop-langgraph`` distribution: a checkpointer in the log, durable model and tool calls, effects."""

from letitloop.adapters._facade import missing_adapter as _missing_adapter

try:
    from letitloop_langgraph import (
        CheckpointNotDurable,
        CodecSerializer,
        DurableMiddleware,
        InputsChanged,
        LetItLoopCache,
        LetItLoopCheckpointSaver,
        LetItLoopStore,
        ThreadConflict,
        adurable_tool_call,
        durable_config,
        durable_tool_call,
    )
except ModuleNotFoundError as exc:
    raise _missing_adapter("langgraph", exc) from exc

__all__ = [
    "CheckpointNotDurable",
    "CodecSerializer",
    "DurableMiddleware",
    "InputsChanged",
    "LetItLoopCache",
    "LetItLoopCheckpointSaver",
    "LetItLoopStore",
    "ThreadConflict",
    "adurable_tool_call",
    "durable_config",
    "durable_tool_call",
]
