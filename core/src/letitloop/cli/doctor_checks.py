"""What ``lil doctor`` looks at. Each check reads, changes nothing, and returns what it found."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from letitloop.cli.common import ago, count, iso, moment, plain, size
from letitloop.cli.ledger_view import advice, event_data, note, told, where
from letitloop.effects.owners import is_alive
from letitloop.effects.reading import events_in, owner_locks, owners_folder, read, rows_in
from letitloop.errors import StoreError
from letitloop.runs.opening import ROOM
from letitloop.wal.files import default_fs, process_alive

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from letitloop.cli.ledger_at import LedgerAt
    from letitloop.effects.intent import Row
    from letitloop.effects.intents import Recorded
    from letitloop.store.directory import DirectoryStore

__all__ = ["BAD", "OK", "WARN", "Finding", "check_disk", "check_ledger", "check_logs", "file_system", "mount_of"]

OK, WARN, BAD = "ok", "warn", "bad"

_NETWORK = frozenset(
    "nfs nfs4 cifs smb3 smbfs afs ceph glusterfs lustre gpfs beegfs orangefs pvfs2 coda davfs ncpfs "
    "fuse.sshfs fuse.s3fs fuse.rclone fuse.gcsfuse fuse.glusterfs fuse.ceph fuse.ceph-fuse fuse.juicefs fuse.davfs".split()
)
_MEMORY = frozenset(("tmpfs", "ramfs"))
_LEAST = 16_000_000  # bytes of free space, below which a commit may fail
_LITTLE = 200_000_000


@dataclass
class Finding:
    """What one check found.

    Attributes:
        check: what was looked at.
        verdict: ``"ok"``, ``"warn"`` (somebody should look, and it works), or ``"bad"``.
        said: what was found, in one sentence.
        to_do: what to do about it; empty for nothing.
        items: each thing that was found: a line for people, and data.
    """

    check: str
    verdict: str
    said: str
    to_do: str = ""
    items: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])


# --- the disk ----------------------------------------------------------------------------------------------------------------


def check_disk(folder: str, files: list[str]) -> list[Finding]:
    """Look at the file system that a directory lies on, or would lie on.

    Args:
        folder: the directory; it need not be there.
        files: files in it that are written to, if they are there.
    """
    there = folder
    while not os.path.isdir(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    return [_check_kind(there), _check_writable(folder, there, files), _check_space(there)]


def _check_kind(there: str) -> Finding:
    kind, where_ = file_system(there)
    if not kind:
        return Finding(
            "file system", OK, "which one it is cannot be told on this system; a network file system is refused at opening"
        )
    said = f"{kind}, mounted at {where_}"
    if kind in _NETWORK:
        advised = "put the store on a local disk: locks and syncs of a network file system prove nothing"
        return Finding("file system", BAD, f"{said}: a network file system", advised)
    if kind in _MEMORY:
        return Finding("file system", WARN, f"{said}: in memory, so nothing survives a power cut", "put the store on a disk")
    if kind == "overlay":
        return Finding("file system", WARN, f"{said}: a container's own layer, which goes with it", "put the store on a volume")
    if kind.startswith("fuse") and kind != "fuseblk":
        return Finding("file system", WARN, f"{said}: whether it syncs and locks is its program's affair", "prefer a local disk")
    return Finding("file system", OK, said)


def file_system(path: str) -> tuple[str, str]:
    """Return the type of the file system that a path lies on, and where it is mounted; empty where the system does not tell."""
    try:
        with open("/proc/mounts", encoding="utf-8", errors="surrogateescape") as file:
            return mount_of(os.path.realpath(path), file.read())
    except OSError:
        return "", ""


def mount_of(path: str, mounts: str) -> tuple[str, str]:
    r"""Find a path's file system in the text of ``/proc/mounts``.

    >>> mount_of("/srv/my data/x", "/dev/a / ext4 rw 0 0\nhost:/x /srv/my\\040data nfs4 rw 0 0\n")
    ('nfs4', '/srv/my data')
    """
    best = ("", "")
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[1])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[1]):  # the later of two at one place hides the earlier
            best = (fields[2], point)
    return best


def _check_writable(folder: str, there: str, files: list[str]) -> Finding:
    wanted = [folder, *files] if there == folder else [there]
    refused = [path for path in wanted if os.path.exists(path) and not os.access(path, os.W_OK)]
    if os.path.exists(folder) and not os.path.isdir(folder):
        return Finding("writable", BAD, f"{folder} is a file, and a directory is needed", "name another store")
    if refused:
        said = f"{', '.join(refused)} cannot be written by this user: a run or action that begins here is refused"
        return Finding("writable", BAD, said, "mend the permissions, or mount it for writing")
    return Finding("writable", OK, "yes" if there == folder else f"not there yet; it can be made in {there}")


def _check_space(there: str) -> Finding:
    import shutil

    free = shutil.disk_usage(there).free
    if free < _LEAST:
        return Finding("free space", BAD, f"{size(free)}: the next commit may fail", "free space")
    if free < _LITTLE:
        return Finding("free space", WARN, size(free), "free space before it runs out")
    return Finding("free space", OK, size(free))


def check_logs(store: DirectoryStore) -> Finding:
    """Count the logs; reading them from end to end is another command's work."""
    try:
        found = count(len(store.names(ROOM)), "run")
    except StoreError as error:
        return Finding("logs", BAD, str(error))
    return Finding("logs", OK, f"{found}; 'lil verify' reads their checksums, which is not done here")


# --- the ledger --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Facts:
    """What was read of a ledger at one moment."""

    uuid: str
    rows: list[Row]
    markers: list[tuple[Any, ...]]
    anomalies: list[Recorded]
    newest: int
    newest_at: float
    journal: str
    synchronous: int
    damage: str


def _facts(connection: sqlite3.Connection) -> _Facts:
    def one(query: str) -> Any:
        found = connection.execute(query).fetchone()
        return None if found is None else found[0]

    connection.execute("pragma synchronous=full")  # of this connection alone, as each opening does
    rows = [row for state in ("UNKNOWN", "DISPATCHED", "PREPARED") for row in rows_in(connection, state=state)]
    return _Facts(
        uuid=one("select v from meta where k='ledger_uuid'") or "",
        rows=rows,
        markers=connection.execute(
            "select namespace, name, attempts, owner, started, error from marker where state='STARTED' order by started"
        ).fetchall(),
        anomalies=events_in(connection, kind="anomaly"),
        newest=one("select max(seq) from event") or 0,
        newest_at=one("select max(at) from event") or 0.0,
        journal=one("pragma journal_mode"),
        synchronous=one("pragma synchronous"),
        damage="" if (found := one("pragma quick_check(1)")) == "ok" else str(found),
    )


def check_ledger(place: LedgerAt, *, fix: bool) -> Iterator[Finding]:
    """Look at a ledger: its file, the mark beside it, its owners, and what in it waits for somebody.

    Args:
        place: the ledger.
        fix: remove the lock files of owners that are gone.
    """
    if not place.exists:
        yield Finding("ledger", OK, f"none yet: the first action or marker makes {place.path}")
        return
    try:
        found = read(place.location, _facts, None)
    except StoreError as error:
        yield Finding("ledger", BAD, str(error), "restore it from a copy: to remove it is to forget which actions have happened")
        return
    if found is None:
        yield Finding("ledger", OK, "it holds markers alone; the next opening adds the tables of intents")
        return
    yield _check_file(place, found)
    yield _check_age(place, found)
    yield _check_owners(place, fix=fix)
    yield _check_open(place, found.rows)
    yield _check_markers(found.markers)
    yield _check_approvals(place, found.rows)
    yield _check_anomalies(place, found.anomalies)
    yield _check_clock(found)


def _check_file(place: LedgerAt, found: _Facts) -> Finding:
    journal = found.journal if found.journal == "wal" else _journal_of(place.path)
    said = f"{place.path}, journal_mode={journal}, synchronous={found.synchronous} where it is opened"
    if found.damage:
        return Finding("ledger", BAD, f"{said}; damaged: {found.damage}", "restore it from a copy")
    if journal != "wal" or found.synchronous != 2:
        return Finding("ledger", BAD, f"{said}; wal and 2 are needed to survive a power cut", "put the store on a local disk")
    return Finding("ledger", OK, said)


def _journal_of(path: str) -> str:
    """Return the journal's mode from the file's head: SQLite tells it only of a file that it may lock."""
    with open(path, "rb") as file:
        file.seek(18)
        return "wal" if file.read(2) == b"\2\2" else "delete"


def _check_age(place: LedgerAt, found: _Facts) -> Finding:
    try:
        with open(place.path + "-mark", "rb") as file:
            uuid, _, high = file.read(64).decode("ascii", "replace").partition(" ")
    except FileNotFoundError:
        return Finding("age", OK, "no event is marked yet")
    except OSError as error:
        return Finding("age", WARN, f"the mark beside the ledger cannot be read: {error.strerror or error}")
    if not high.strip().isdigit() or (uuid == found.uuid and int(high) <= found.newest):
        return Finding("age", OK, f"it is the one that was written last, up to event {found.newest:,}")
    if uuid == found.uuid:
        said = f"it ends with event {found.newest:,}, and {int(high):,} were recorded: it was restored from a copy"
    else:
        said = "another ledger lay here: it was replaced"
    advised = "put the newest file back; or look at the providers for what is missing, then open it with accept_restored=True"
    return Finding("age", BAD, f"{said}, and has forgotten actions since", advised)


def _check_owners(place: LedgerAt, *, fix: bool) -> Finding:
    locks = owner_locks(place.location)
    alive = [lock for lock in locks if lock.state != "gone"]
    gone = [lock for lock in locks if lock.state == "gone"]
    said = f"{len(alive)} process{'es' * (len(alive) != 1)} that sent actions"
    items = [(f"{lock.name}: {lock.state}", {"owner": lock.name, "pid": lock.pid or None, "state": lock.state}) for lock in locks]
    if not gone:
        return Finding("owners", OK, said, items=items)
    left = (
        f"{count(len(gone), 'lock file')} of a process that is gone" if len(gone) == 1 else f"{len(gone):,} lock files of dead ones"
    )
    if not fix:
        return Finding("owners", WARN, f"{said}; {left}", "nothing: they are harmless, and --fix removes them", items)
    folder, fs = owners_folder(place.location), default_fs()
    removed = 0
    for lock in gone:
        try:
            removed += not is_alive(fs, folder, lock.name)
        except OSError as error:
            return Finding("owners", BAD, f"{said}; {left}, not removed: {error.strerror or error}", "mend the permissions", items)
    return Finding("owners", OK, f"{said}; removed {left}", items=items)


def _check_open(place: LedgerAt, rows: list[Row]) -> Finding:
    found = [row for row in rows if place.open(row)]
    if not found:
        return Finding("outcomes", OK, "none is unknown")
    said = f"{count(len(found), 'intent')} may or may not have happened"
    return Finding("outcomes", WARN, said, "lil ledger reconcile or resolve them", [_item(place, row) for row in found])


def _check_markers(rows: list[tuple[Any, ...]]) -> Finding:
    items: list[tuple[str, dict[str, Any]]] = []
    for namespace, name, attempts, owner, started, error in rows:
        pid = str(owner).rpartition(" ")[2]
        if not error and pid.isdigit() and process_alive(int(pid)):
            continue  # inside its block
        left = plain(f"left by {error}" if error else f"{owner} died inside its block")
        about = {
            "namespace": namespace,
            "name": name,
            "attempts": attempts,
            "owner": owner,
            "started": iso(started),
            "error": error,
        }
        items.append((f"{plain(name)} of {plain(namespace)}: {left}, {ago(started)}", about))
    if not items:
        return Finding("markers", OK, "none is open")
    said = f"{count(len(items), 'marker')} whose action may or may not have happened"
    return Finding(
        "markers", WARN, said, "find out at the provider; the next run that comes there is told (marker.uncertain)", items
    )


def _check_approvals(place: LedgerAt, rows: list[Row]) -> Finding:
    found = [row for row in rows if place.standing(row) == "waiting"]
    if not found:
        return Finding("approvals", OK, "none is waited for")
    said = f"{count(len(found), 'intent')} {'waits' if len(found) == 1 else 'wait'} for one"
    return Finding("approvals", WARN, said, "lil ledger approve or deny", [_item(place, row) for row in found])


def _item(place: LedgerAt, row: Row) -> tuple[str, dict[str, Any]]:
    standing = place.standing(row)
    said = f"{where(row)}: {plain(note(row, standing))}, {ago(row.updated)}"
    about = {"namespace": row.namespace, "key": row.key, "state": row.state, "standing": standing, "updated": iso(row.updated)}
    return said, {**about, "to_do": advice(place, row)}


def _check_anomalies(place: LedgerAt, events: list[Recorded]) -> Finding:
    if not events:
        return Finding("anomalies", OK, "none")
    items: list[tuple[str, dict[str, Any]]] = []
    for event in events:
        data = event_data(place, event)
        items.append((f"{plain(event.namespace)} {plain(event.key)}, {moment(event.at)}: {told(data)}", data))
    said = f"{count(len(events), 'event')} of which each contradicts what is recorded: an action may have happened twice"
    return Finding("anomalies", BAD, said, "look at the provider, and put right what happened twice; the record stays", items)


def _check_clock(found: _Facts) -> Finding:
    now = time.time()
    if now < found.newest_at:
        said = f"it shows {moment(now)}, and the newest event is of {moment(found.newest_at)}"
        return Finding("clock", BAD, said, "set the clock: while it is behind, nothing is sent again and approvals last longer")
    return Finding("clock", OK, "after the newest event" if found.newest_at else "no event to compare it with")
