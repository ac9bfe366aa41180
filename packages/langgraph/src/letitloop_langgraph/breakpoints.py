"""A breakpoint (``interrupt_before``, ``interrupt_after``) stays one when a script is run again: an approval is a call of its own.

LangGraph goes past a breakpoint whenever it resumes, and a run that is asked for again under its name is a resume to it. Whether
somebody approved, or the process died before its caller learnt that the graph waits, nothing on record tells. So inputs that are
given again stop where they stopped; ``invoke(None, …)`` and a ``Command`` go on.

LangGraph hands a checkpointer neither what a graph was invoked with nor where it is to stop, so the loop that asks for a checkpoint
is looked for among the callers.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from langgraph.pregel._algo import should_interrupt
from langgraph.pregel._loop import PregelLoop
from langgraph.types import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from langgraph.checkpoint.base import CheckpointTuple
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from letitloop_langgraph.contents import Contents
    from letitloop_langgraph.index import Stored
    from letitloop_langgraph.thread import Thread

__all__ = ["calling_loop", "hold", "told"]

_FRAMES = 8  # between a loop and its saver: a subclass's methods, a tracer's
_AGAIN = "__pregel_letitloop_again"  # named as what LangGraph shows nobody
_INTERRUPT = "__interrupt__"
_NO_NODES = ("__start__", "__input__", _INTERRUPT)
_EDITS = ("update", "fork")
_TASKS = "__pregel_tasks"
_STOPPED = "letitloop_stopped"
_SENT = "letitloop_sent"


def calling_loop() -> Any:
    """Return LangGraph's loop that asks for a checkpoint; None if somebody else does."""
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        found = frame.f_locals.get("self")
        if isinstance(found, PregelLoop):
            return found
    return None


def told(loop: Any, thread: Thread, serde: SerializerProtocol, ns: str, parent: str | None) -> dict[str, Any]:
    """Return what the metadata of a checkpoint that a loop stores have to say for :func:`hold`; called inside ``enter``.

    Which nodes a Send reached is told by the checkpoint before alone. In exit mode that is not stored, and it may be pruned: there
    the breakpoints that the graph stopped at tell it.
    """
    if loop is None or not loop.interrupt_after:
        return {}
    if loop.durability == "exit":
        return {_STOPPED: sorted(loop.interrupt_after)} if loop.status == "interrupt_after" else {}
    with thread.guard:
        stored = None if parent is None else thread.index.checkpoints.get(ns, {}).get(parent)
        if stored is None or thread.log is None:
            return {}
        sent = _sent_to(thread.look(serde, thread.log), stored)
    return {_SENT: sorted(sent)} if sent else {}


def hold(loop: Any, contents: Contents, stored: Stored, found: CheckpointTuple) -> None:
    """Have a loop stop at the breakpoint that a checkpoint lies at, if it goes on from it since its inputs are given again."""
    conf = loop.config["configurable"]
    if loop.is_nested:
        again = conf.get(_AGAIN) and conf.get("__pregel_resuming")
    else:
        again = loop.input is not None and not isinstance(loop.input, Command) and _same_run(loop, found)
        conf[_AGAIN] = again  # the subgraphs' loops are told as well
    if not again or not (loop.interrupt_before or loop.interrupt_after):
        return
    checkpoint: Any = found.checkpoint
    seen = dict(checkpoint["versions_seen"].get(_INTERRUPT, {}))
    last = _last_superstep(contents, stored) if loop.interrupt_after and checkpoint["channel_versions"] else None
    after: Any = False
    if last is not None:
        metadata = contents.metadata(last)
        stopped = metadata.get(_STOPPED) or ()
        anywhere = "*" in stopped
        names = {*_ran_before(contents, last), *(metadata.get(_SENT) or ()), *(() if anywhere else stopped)}
        ran = [SimpleNamespace(name=name, config=None) for name in names]
        after = anywhere or should_interrupt(checkpoint, loop.interrupt_after, ran)  # type: ignore[arg-type]  # named as tasks are
    plain, before = loop.tick, loop.interrupt_before

    def tick() -> bool:
        del loop.tick  # this once
        loop.checkpoint["versions_seen"][_INTERRUPT] = seen  # which LangGraph took for passed
        loop.interrupt_before = "*" if after else before
        try:
            return bool(plain())
        finally:
            loop.interrupt_before = before

    loop.tick = tick


def _same_run(loop: Any, found: CheckpointTuple) -> bool:
    run_id = (loop.config.get("metadata") or {}).get("run_id")
    return run_id is not None and run_id == found.metadata.get("run_id")


def _last_superstep(contents: Contents, stored: Stored) -> Stored | None:
    """Return the checkpoint that nodes came to: this one, or the one that a human edited; None if it is an input."""
    of_ns = contents.index.checkpoints[stored.ns]
    cursor: Stored | None = stored
    while cursor is not None and contents.metadata(cursor).get("source") in _EDITS:
        cursor = None if cursor.parent is None else of_ns.get(cursor.parent)
    return cursor if cursor is not None and contents.metadata(cursor).get("source") == "loop" else None


def _ran_before(contents: Contents, stored: Stored) -> set[str]:
    """Return the nodes that ran right before a checkpoint."""
    of_ns = contents.index.checkpoints[stored.ns]
    seen: Mapping[str, Mapping[str, Any]] = contents.checkpoint(stored).checkpoint["versions_seen"]
    newest = {name: max(versions.values()) for name, versions in seen.items() if versions and name not in _NO_NODES}
    latest = max((max(versions.values()) for name, versions in seen.items() if versions and name != _INTERRUPT), default=None)
    ran = {name for name, version in newest.items() if version == latest}
    parent = None if stored.parent is None else of_ns.get(stored.parent)
    return ran if parent is None else ran | _sent_to(contents, parent)


def _sent_to(contents: Contents, stored: Stored) -> set[str]:
    """Return the nodes that a checkpoint's Sends reach."""
    versions = contents.versions(stored)
    if _TASKS not in versions:
        return set()
    return {send.node for send in contents.values(stored.ns, {_TASKS: versions[_TASKS]}).get(_TASKS) or ()}
