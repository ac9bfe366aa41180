"""Deleting checkpoints, and giving back the bytes that nothing needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from letitloop.runs.records import EFFECT, START
from letitloop.wal.format import Entry
from letitloop_langgraph.contents import INLINE, PIECES, WRITTEN, Contents
from letitloop_langgraph.history import needed_ancestors
from letitloop_langgraph.records import BLOB, DROP, NUMBER, pack, short, whole
from letitloop_langgraph.values import Items

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from langgraph.checkpoint.serde.base import SerializerProtocol

    from letitloop_langgraph.index import Stored
    from letitloop_langgraph.thread import Thread

__all__ = ["drop", "keep_latest", "over_limit", "shrink"]

_SLACK = 64
"""How many checkpoints more than ``retain`` a namespace may have before the log is rewritten."""


def over_limit(thread: Thread, retain: int) -> bool:
    """Tell whether a namespace has so many checkpoints that the log is worth rewriting.

    What had to stay the last time counts: a delta channel needs its ancestors, and a log that keeps growing is rewritten when it
    has doubled, not at every checkpoint.
    """
    stayed = thread.stayed
    return any(len(of_ns) >= 2 * max(retain, stayed.get(ns, 0)) + _SLACK for ns, of_ns in thread.index.checkpoints.items())


def keep_latest(contents: Contents, count: int) -> list[tuple[str, str]]:
    """Return the checkpoints that go when each namespace keeps its newest ones, and what their delta channels need.

    Those of a subgraph's call go all with the checkpoint that it was called from.
    """
    gone: list[tuple[str, str]] = []
    of_all = contents.index.checkpoints
    stays: dict[str, set[str]] = {}
    for ns in sorted(of_all, key=lambda ns: ns.count("|")):  # around before inside
        newest = contents.index.newest_first(ns)[:count]
        kept: set[str] = set()
        if not _called_from_gone(contents, ns, newest, stays):
            kept = {stored.id for stored in newest}
            for stored in newest:
                kept |= {ancestor.id for ancestor in needed_ancestors(contents, stored)}
        stays[ns] = kept
        gone += [(ns, identity) for identity in of_all[ns] if identity not in kept]
    return gone


def _called_from_gone(contents: Contents, ns: str, newest: Sequence[Stored], stays: Mapping[str, set[str]]) -> bool:
    """Tell whether a namespace is that of a subgraph's call, and the checkpoint that it was called from goes."""
    around, _, name = ns.rpartition("|")
    if ":" not in name or not newest or around not in stays:
        return False
    parent = (contents.metadata(newest[0]).get("parents") or {}).get(around)
    last = contents.index.latest(around)
    # a greater one is on its way
    return parent is not None and parent not in stays[around] and last is not None and parent < last.id


def drop(thread: Thread, gone: Collection[tuple[str, str]]) -> None:
    """Queue the record that these checkpoints are deleted, and forget them."""
    if gone:
        assert thread.log is not None, "the caller entered"
        thread.log.queue(DROP, b"", pack([[ns, short(identity)] for ns, identity in gone]))
        thread.index.drop(list(gone))


def shrink(thread: Thread, serde: SerializerProtocol) -> None:
    """Rewrite the log without what nothing needs; called with the guard held and everything durable.

    Values that lie in records that go are written again first: a crash in between leaves them twice, and nothing lost.
    """
    log = thread.log
    assert log is not None, "the caller entered"
    index = thread.index
    contents = Contents(thread.id, index, log.read, serde, {}, {})
    stored = [one for of_ns in index.checkpoints.values() for one in of_ns.values()]
    needed = {(one.ns, channel, version) for one in stored for channel, version in contents.versions(one).items()}
    kept = {id(one.entry) for one in stored}
    for ns, identity in list(index.writes):
        newest = index.latest(ns)
        if identity not in index.checkpoints.get(ns, {}) and newest is not None and identity < newest.id:
            index.writes.pop((ns, identity))  # its checkpoint was lost in a crash; that of a greater id may be on its way
    kept |= {id(entry) for records in index.writes.values() for _, _, entry in records}
    blobs = {place: found for place, found in index.blobs.items() if place in needed}
    for place in list(blobs):
        blobs[place] = _kept_blob(thread, contents, place, needed, kept) or blobs[place]
    kept |= {id(entry) for entry, slot in blobs.values() if slot < 0}

    def keep(entries: list[Entry]) -> Iterable[Entry]:
        steps = _kept_steps(thread, entries)  # asked for now: a task of this thread may have recorded one meanwhile
        kept.update(steps)
        if steps:
            _leave_places(entries, kept)
        return [entry for entry in entries if id(entry) in kept or entry.kind == START]

    log.compact(keep)
    index.blobs = blobs
    index.shadows.clear()
    thread.rewritten()


def _kept_blob(
    thread: Thread, contents: Contents, place: tuple[str, str, Any], needed: set[tuple[str, str, Any]], kept: set[int]
) -> tuple[Entry, int] | None:
    """Write a value again if it lies in, or refers to, what goes; None if it may stay where it is."""
    ns, channel, version = place
    entry, slot = contents.index.blobs[place]
    form = contents.form(ns, channel, version)
    stays = slot < 0 or id(entry) in kept
    if stays and _refers_to_kept(contents, ns, channel, form, needed):
        return None
    log = thread.log
    assert log is not None, "the caller entered"
    made = log.queue(BLOB, pack([ns, channel, version]), pack(_by_itself(contents, place, form, needed)))
    log.write()
    return made, -1


def _refers_to_kept(contents: Contents, ns: str, channel: str, form: list[Any], needed: set[tuple[str, str, Any]]) -> bool:
    if not form or form[0] == INLINE:
        return True
    if form[0] == WRITTEN:
        return (ns, whole(form[1][0])) in contents.index.writes
    if form[1] is not None and (ns, channel, form[1]) not in needed:
        return False
    return all(len(piece) > 1 or (ns, whole(piece[0][0])) in contents.index.writes for piece in form[2])


def _by_itself(contents: Contents, place: tuple[str, str, Any], form: list[Any], needed: set[tuple[str, str, Any]]) -> list[Any]:
    """Return a form of the same value that refers to nothing that goes."""
    ns, channel, version = place
    if not form or form[0] == INLINE:
        return form
    if form[0] == PIECES and form[1] is not None and (ns, channel, form[1]) in needed:
        return [PIECES, form[1], [_written(contents._piece(ns, piece)) for piece in form[2]]]
    parts = contents.parts(ns, channel, version)
    if not parts:
        return []
    if len(parts) == 1 and isinstance(parts[0], tuple) and len(parts[0]) == 2:
        return [INLINE, *parts[0]]
    if all(isinstance(part, Items) for part in parts):
        return [PIECES, None, [[sum(part.count for part in parts), b"".join(part.data() for part in parts)]]]
    return [PIECES, None, [_written(part) for part in parts]]


def _written(part: Any) -> list[Any]:
    """Return a part of a list as it is written."""
    return [part.count, part.data()] if isinstance(part, Items) else list(part)


def _kept_steps(thread: Thread, entries: Iterable[Entry]) -> set[int]:
    """Return the records of steps whose checkpoint is still there; effects are told by the ledger."""
    index = thread.index
    newest = index.latest("")
    going_on = f"exit {'start' if newest is None else newest.id}/".encode()  # a run in exit mode that was killed
    in_use = thread.places.paths_in_use()  # of tasks whose checkpoint is on its way, comes at the end, or was deleted under them
    prefixes: list[bytes] = []
    kept: set[int] = set()
    for (ns, identity), paths in list(index.places.items()):
        if identity not in index.checkpoints.get(ns, {}) and not any(path.startswith(going_on) for path in paths):
            for path in paths.keys() - in_use:
                del paths[path]
        if not paths:
            del index.places[ns, identity]
        prefixes += paths
        kept |= {id(entry) for entry in paths.values()}
    within = tuple(prefixes)
    index.numbers.keep(within)
    if not prefixes:
        return set()
    return kept | {
        id(entry)
        for entry in entries
        if (START < entry.kind < 128 and (not entry.key or entry.key.startswith(within) or entry.kind == EFFECT))
        or (entry.kind == NUMBER and entry.key.startswith(within))
    }


def _leave_places(entries: list[Entry], kept: set[int]) -> None:
    """Let empty records stand for what goes: steps' records, and steps under way, name others by their number."""
    for at, entry in enumerate(entries):
        if id(entry) not in kept and entry.kind != START:
            empty = entries[at] = Entry(255, b"", entry.offset, 0, entry.seq)  # another object: some may still hold the record's
            kept.add(id(empty))
