"""letitloop for LangGraph: a checkpointer in a write-ahead log, durable model and tool calls, effects that never repeat."""

from letitloop_langgraph.cache import LetItLoopCache
from letitloop_langgraph.calls import adurable_tool_call, durable_tool_call
from letitloop_langgraph.config import durable_config
from letitloop_langgraph.errors import CheckpointNotDurable, InputsChanged, ThreadConflict
from letitloop_langgraph.middleware import DurableMiddleware
from letitloop_langgraph.saver import LetItLoopCheckpointSaver
from letitloop_langgraph.serde import CodecSerializer
from letitloop_langgraph.store import LetItLoopStore

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
