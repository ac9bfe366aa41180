"""Graphs and checkpoints that several tests make, and what another process would find of them."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, TypedDict

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph

from letitloop_langgraph import LetItLoopCheckpointSaver


class State(TypedDict):
    xs: Annotated[list, operator.add]


class Counted:
    def __init__(self):
        self.calls = []

    def __call__(self, what):
        self.calls.append(what)
        return f"did {what}"

    async def later(self, what):
        await asyncio.sleep(0)
        return self(what)


def chain(saver, **nodes):
    graph = StateGraph(State)
    before = START
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(before, name)
        before = name
    return graph.compile(checkpointer=saver)


def restarted(saver):
    """Let the next use find what another process would find."""
    if isinstance(saver, LetItLoopCheckpointSaver):
        room = saver.room
        saver.close()
        room._threads.clear()
        room._known.clear()


def at(thread_id="1", ns="", checkpoint_id=None):
    conf = {"thread_id": thread_id, "checkpoint_ns": ns}
    if checkpoint_id is not None:
        conf["checkpoint_id"] = checkpoint_id
    return {"configurable": conf}


def checkpoint(identity, values, versions=None):
    made = empty_checkpoint()
    made.update(id=identity, channel_values=values, channel_versions=versions or dict.fromkeys(values, 1))
    return made


def put(saver, config, values, identity, *, new=None, metadata=None, versions=None):
    made = checkpoint(identity, values, versions)
    return saver.put(config, made, metadata or {"source": "loop", "step": 1}, made["channel_versions"] if new is None else new)


def reopen(saver):
    saver.close()
    return LetItLoopCheckpointSaver(store=saver.store)
