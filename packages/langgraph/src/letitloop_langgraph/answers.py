"""A human's answer that waits in a thread for the interrupt that fetches it, and how it is told that it has been fetched.

LangGraph stores the answer of ``Command(resume=…)`` beside the checkpoint and leaves it there. A graph that goes on without a new
answer, since a script is run again after a crash, would hand it to whoever asks next: the answer to one question to another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from letitloop_langgraph.records import unpack

if TYPE_CHECKING:
    from langgraph.checkpoint.base import CheckpointTuple

    from letitloop_langgraph.contents import Contents

__all__ = ["NOBODY", "RESUME", "without_fetched"]

NOBODY = "00000000-0000-0000-0000-000000000000"
"""The task of what comes from outside the graph."""
RESUME = "__resume__"
_INTERRUPT = "__interrupt__"


def without_fetched(contents: Contents, ns: str, found: CheckpointTuple) -> CheckpointTuple:
    """Return a checkpoint for a graph that goes on from it, without an answer that was fetched."""
    waiting = next((write for write in found.pending_writes or () if write[:2] == (NOBODY, RESUME)), None)
    if waiting is None or not _fetched(contents, ns, found.checkpoint["id"], waiting[2]):
        return found
    return found._replace(pending_writes=[write for write in found.pending_writes or () if write is not waiting])


def _fetched(contents: Contents, ns: str, identity: str, answer: Any) -> bool:
    """Tell whether a task has stored, later than the answer, that it was given it, or that it asks for another one."""
    writes = contents.index.writes
    given = -1
    for task, _, entry in writes.get((ns, identity), ()):
        if task == NOBODY and any(row[1] == RESUME for row in unpack(contents.read(entry))):
            given = entry.seq
    if given < 0:
        return False
    for (within, _), records in writes.items():
        for task, _, entry in records:
            if task == NOBODY or entry.seq <= given:
                continue
            for _, channel, tag, body in unpack(contents.read(entry)):
                if (channel == _INTERRUPT and within == ns) or (
                    channel == RESUME and _ends_with(contents.serde.loads_typed((tag, body)), answer)
                ):
                    return True
    return False


def _ends_with(answers: Any, answer: Any) -> bool:
    last = answers[-1] if isinstance(answers, list) and answers else answers
    try:
        return bool(last == answer)
    except Exception:  # values that cannot be compared: whoever needs an answer asks again
        return True
