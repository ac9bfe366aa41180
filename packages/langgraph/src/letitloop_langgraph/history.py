"""What the ancestors of a checkpoint tell: what was written to delta channels along them, and whose run it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import writes_sort_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langgraph.checkpoint.base import DeltaChannelHistory

    from letitloop_langgraph.contents import Contents, Row
    from letitloop_langgraph.index import Stored

__all__ = ["begun", "delta_history", "needed_ancestors", "newest_of_run"]


def delta_history(contents: Contents, stored: Stored | None, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
    """Walk the parents of a checkpoint; for each channel, stop at the nearest one that has its value.

    Args:
        contents: the thread.
        stored: the checkpoint; what was written at itself is not part of its history.
        channels: the channels.
    """
    rows: dict[str, list[Row]] = {channel: [] for channel in channels}
    seeds: dict[str, Any] = {}
    remaining = set(channels)
    of_ns = {} if stored is None else contents.index.checkpoints[stored.ns]
    cursor = None if stored is None or stored.parent is None else of_ns.get(stored.parent)
    while cursor is not None and remaining:
        written = contents.rows(cursor.ns, cursor.id).values()
        for row in sorted(written, key=lambda row: writes_sort_key(row[0], row[1], row[2]), reverse=True):
            if row[3] in remaining:
                rows[row[3]].append(row)
        found = contents.values(
            cursor.ns, {name: version for name, version in contents.versions(cursor).items() if name in remaining}
        )
        seeds |= found
        remaining -= found.keys()
        cursor = None if cursor.parent is None else of_ns.get(cursor.parent)
    result: dict[str, Any] = {}
    for channel in channels:
        load = contents.serde.loads_typed
        result[channel] = {"writes": [(row[1], row[3], load((row[4], row[5]))) for row in reversed(rows[channel])]}
        if channel in seeds:
            result[channel]["seed"] = seeds[channel]
    return result


def needed_ancestors(contents: Contents, stored: Stored) -> list[Stored]:
    """Return the ancestors that a checkpoint's delta channels are rebuilt from."""
    counters = contents.metadata(stored).get("counters_since_delta_snapshot") or {}
    versions = contents.versions(stored)
    remaining = {channel for channel in counters if not contents.has(stored.ns, channel, versions.get(channel))}
    of_ns = contents.index.checkpoints[stored.ns]
    found: list[Stored] = []
    cursor = None if stored.parent is None else of_ns.get(stored.parent)
    while cursor is not None and remaining:
        found.append(cursor)
        versions = contents.versions(cursor)
        remaining = {channel for channel in remaining if not contents.has(cursor.ns, channel, versions.get(channel))}
        cursor = None if cursor.parent is None else of_ns.get(cursor.parent)
    return found


def newest_of_run(contents: Contents, ns: str, run: bytes) -> tuple[Stored, Stored] | None:
    """Return the newest checkpoint that a run stored, and the newest one that goes on from it; None if it stored none.

    A checkpoint without a run's name goes on with the run that its ancestors belong to: somebody edited the state, or answered an
    interrupt, with the thread's plain config. A new input begins something else.

    Args:
        contents: the thread.
        ns: the namespace.
        run: the digest of the run's id.
    """
    newest_first = contents.index.newest_first(ns)
    own = next((stored for stored in newest_first if stored.run == run), None)
    if own is None:
        return None
    of_ns = contents.index.checkpoints[ns]
    others: set[str] = set()  # those that go on with no run, or with another one
    for stored in newest_first:
        line: list[str] = []
        cursor: Stored | None = stored
        while cursor is not None and not cursor.run and cursor.id not in others:
            line.append(cursor.id)
            begins = contents.metadata(cursor).get("source") == "input"
            cursor = None if begins or cursor.parent is None else of_ns.get(cursor.parent)
        if cursor is not None and cursor.run == run:
            return own, stored
        others.update(line)
    raise AssertionError("its own newest one is among them")


def begun(contents: Contents, ns: str, conf: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Tell whether a subgraph's newest checkpoint is of the task around it that goes on, or of one that is over.

    A subgraph with a memory of its own (``checkpointer=True``) has one namespace for all tasks that call it. When the graph around
    it resumes, LangGraph tells it to resume as well, whether it had begun in this task or not.

    Args:
        contents: the thread.
        ns: the subgraph's namespace.
        conf: the ``configurable`` that it asks with.
        metadata: that of its newest checkpoint.
    """
    now: Mapping[str, str] = conf.get("checkpoint_map") or {}
    around = max((one for one in now if one != ns and one in contents.index.checkpoints), key=len, default=None)
    then = None if around is None else (metadata.get("parents") or {}).get(around)
    if around is None or then is None or not conf.get("__pregel_resuming"):
        return True
    identity: str | None = now[around]
    while identity is not None and identity != then:
        stored = contents.index.checkpoints[around].get(identity)
        if stored is None or contents.metadata(stored).get("source") not in ("update", "fork"):
            return False
        identity = stored.parent  # somebody edited the state while the subgraph waited
    return identity is not None
