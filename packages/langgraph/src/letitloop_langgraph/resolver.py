"""How ``step`` and effects find their place inside a node: LangGraph's own runtime tells thread, task and attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.runnables.config import var_child_runnable_config

from letitloop.runs.scope import add_resolver
from letitloop_langgraph.saver import LetItLoopCheckpointSaver

if TYPE_CHECKING:
    from letitloop.errors import LetItLoopError
    from letitloop_langgraph.places import Place
    from letitloop_langgraph.thread import Thread

__all__ = ["current_place", "meet_task", "refuse"]


def current_place() -> Place | None:
    """Return the place of the node that the program is in; None outside one, or if its graph has another checkpointer."""
    config: Any = var_child_runnable_config.get()
    if not config:
        return None
    return place_in(config)


def place_in(config: Any) -> Place | None:
    """Return the place that a node's config tells."""
    found = _attempt_in(config)
    return None if found is None else found[0].places.find(found[1], config)


def meet_task() -> None:
    """Keep for a task's leaves the numbers that they have on record: what is not recorded is about to ask LangGraph for some."""
    config: Any = var_child_runnable_config.get()
    found = _attempt_in(config) if config else None
    if found is not None and found[0].index.numbers.of(str(found[1].task_id)):
        found[0].places.find(found[1], config)


def refuse(refused: LetItLoopError) -> None:
    """Have nothing count that the task which the program is in writes, nor the tasks around it, whoever swallows this."""
    place = current_place()
    if place is not None:
        place.halt(refused)
        thread, info = _attempt_in(var_child_runnable_config.get())  # type: ignore[misc]  # where there is a place
        thread.places.refuse(info.checkpoint_ns, refused)


def _attempt_in(config: Any) -> tuple[Thread, Any] | None:
    conf = config.get("configurable") or {}
    saver = conf.get("__pregel_checkpointer")
    info = getattr(conf.get("__pregel_runtime"), "execution_info", None)
    if info is None or info.thread_id is None or not isinstance(saver, LetItLoopCheckpointSaver):
        return None
    thread = saver.room.thread(str(info.thread_id))
    thread.codecs.serde = saver.serde  # what is recorded in a node is written as its graph's state is
    return thread, info


add_resolver(current_place)
