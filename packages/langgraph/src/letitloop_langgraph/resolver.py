"""How ``step`` and effects find their place inside a node: LangGraph's own runtime tells thread, task and attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.runnables.config import var_child_runnable_config

from letitloop.runs.scope import add_resolver
from letitloop_langgraph.saver import LetItLoopCheckpointSaver

if TYPE_CHECKING:
    from letitloop_langgraph.places import Place

__all__ = ["current_place"]


def current_place() -> Place | None:
    """Return the place of the node that the program is in; None outside one, or if its graph has another checkpointer."""
    config: Any = var_child_runnable_config.get()
    if not config:
        return None
    return place_in(config)


def place_in(config: Any) -> Place | None:
    """Return the place that a node's config tells."""
    conf = config.get("configurable") or {}
    saver = conf.get("__pregel_checkpointer")
    info = getattr(conf.get("__pregel_runtime"), "execution_info", None)
    if info is None or info.thread_id is None or not isinstance(saver, LetItLoopCheckpointSaver):
        return None
    return saver.room.thread(str(info.thread_id)).places.find(info, config)


add_resolver(current_place)
