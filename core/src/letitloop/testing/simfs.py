"""A file system in memory that can tell every disk content a power cut may leave behind.

:class:`SimFs` is an ``Fs`` (see ``letitloop.wal.files``). It keeps what is durable apart from what is merely written, records
every operation, and :meth:`SimFs.crash_states` then walks through the recording and yields, for each instant, all contents
that the disk may hold if the power fails there. A state becomes a file system again with :meth:`SimFs.from_state`: recovery
runs on it, is recorded in its turn, and can be crashed as well.

The model:

* A file has durable bytes and a list of pending writes and truncations. ``sync`` makes that file's list durable.
* Names have a durable mapping and a list of pending operations (create, rename, unlink, mkdir). They are journalled in order:
  a crash keeps a prefix of that list, never a later one without an earlier one.
* ``sync_dir`` makes the pending names of the directory durable, and with them all earlier ones. In the ordinary model (as
  ext4, xfs and btrfs behave) the ``sync`` of a file also makes its creation durable, with all earlier operations on names.
  With ``strict_dirs=True`` nothing but ``sync_dir`` does, and it speaks for its own directory only.
* Pending data obeys no order: everything may be kept or lost, each write alone lost or alone kept, any subset where at most
  five are pending. Kept writes that overlap are applied in the order in which they were made.
* A write may be torn: cut at 0, 1, half, the last byte and each 512-byte boundary of the file, the rest being what was there
  before, zeros, or garbage; or a single sector of it may be lost, or be the only one that is kept.
* Bytes outside a write's own range are not touched by tearing it (a sector is not damaged by writing a part of it).
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    _Fate = int | tuple[str, int]

__all__ = ["CrashState", "SimFs"]

SECTOR = 512
ALL_SUBSETS_UP_TO = 5
GARBAGE = bytes(value ^ 0xA5 for value in range(256))

MAX_CUTS = 24

_DROPPED, _KEPT = 0, 1


@dataclass(frozen=True, eq=False)
class _Op:
    """One recorded operation; ``node`` is the file's number, -1 where there is none."""

    kind: str
    node: int = -1
    offset: int = 0
    data: bytes = b""
    zero: bool = False
    path: str = ""
    target: str = ""
    token: Hashable = None

    def __str__(self) -> str:
        if self.kind == "write":
            return f"write of {len(self.data)} bytes at {self.offset} of file {self.node}"
        if self.kind == "truncate":
            return f"truncate of file {self.node} to {self.offset}"
        if self.kind == "ack":
            return f"ack {self.token!r}"
        return f"{self.kind} {self.path or f'of file {self.node}'}{f' to {self.target}' if self.target else ''}"


class _Content:
    """The bytes of a file, sparse at the end: ``body``, then zeros up to ``size``."""

    __slots__ = ("body", "size")

    def __init__(self, body: bytes | bytearray = b"", size: int | None = None) -> None:
        self.body = bytearray(body)
        self.size = len(body) if size is None else size

    def copy(self) -> _Content:
        return _Content(self.body, self.size)

    def write(self, offset: int, data: bytes, *, zero: bool) -> None:
        end, body = offset + len(data), self.body
        if not data:
            return
        if zero and end > len(body):  # zeros at the end need no bytes
            del body[offset:]
        else:
            if offset > len(body):
                body.extend(bytes(offset - len(body)))
            body[offset:end] = data
        self.size = max(self.size, end)

    def truncate(self, size: int) -> None:
        del self.body[size:]
        self.size = size

    def read(self, size: int, offset: int) -> bytes:
        size = max(0, min(size, self.size - offset))
        piece = bytes(self.body[offset : offset + size])
        return piece + bytes(size - len(piece))

    def key(self) -> int:
        return hash((self.size, bytes(self.body).rstrip(b"\0")))


@dataclass(frozen=True)
class CrashState:
    """What a disk holds after a power cut, and what had been acknowledged before it.

    Attributes:
        instant: how many recorded operations had been carried out.
        acks: the acknowledgements given until then, in order.
        directories: the directories that exist.
        why: what was kept and what was lost, for messages.
    """

    instant: int
    acks: tuple[Hashable, ...]
    directories: frozenset[str]
    contents: dict[str, _Content] = field(repr=False)
    why: str

    @property
    def files(self) -> dict[str, bytes]:
        """The bytes of each file by its path."""
        return {path: content.read(content.size, 0) for path, content in self.contents.items()}


class SimFs:
    """An ``Fs`` in memory whose power can be cut.

    Args:
        strict_dirs: names survive only through ``sync_dir``.
        directories: the directories that exist, durably, from the start.

    Example:
        >>> fs = SimFs(directories=["/sim"])
        >>> handle = fs.open("/sim/a", write=True, create=True)
        >>> fs.pwrite(handle, b"hello", 0)
        5
        >>> fs.sync(handle)
        >>> fs.ack("hello")
        >>> all(state.files["/sim/a"] == b"hello" for state in fs.crash_states() if "hello" in state.acks)
        True
    """

    def __init__(self, *, strict_dirs: bool = False, directories: Iterable[str] = ("/sim",)) -> None:
        self.strict_dirs = strict_dirs
        self.operations: list[_Op] = []
        self._lock = threading.Condition(threading.RLock())
        self._nodes: list[_Content] = []
        self._names: dict[str, int] = {}
        self._directories = {"/", "."}
        for directory in directories:
            path = posixpath.normpath(directory)
            while path not in self._directories:
                self._directories.add(path)
                path = _parent(path)
        self._handles: dict[int, tuple[int, bool]] = {}
        self._locks: dict[int, int] = {}
        self._next_handle = 3
        self._acks: list[Hashable] = []
        self._start = CrashState(0, (), frozenset(self._directories), {}, "the start")

    @classmethod
    def from_state(cls, state: CrashState, *, strict_dirs: bool = False) -> SimFs:
        """Return a file system that holds durably what ``state`` holds; its acknowledgements count on."""
        fs = cls(strict_dirs=strict_dirs, directories=state.directories)
        for path, content in state.contents.items():
            fs._names[path] = len(fs._nodes)
            fs._nodes.append(content.copy())
        fs._acks = list(state.acks)
        fs._start = state
        return fs

    # --- what the simulation adds ----------------------------------------------------------------------------------------

    def ack(self, token: Hashable) -> None:
        """Record that the program has just told somebody that ``token`` is done."""
        with self._lock:
            self._acks.append(token)
            self._record(_Op("ack", token=token))

    @property
    def acks(self) -> tuple[Hashable, ...]:
        """All acknowledgements until now, those before an earlier crash included."""
        return tuple(self._acks)

    def kill_state(self) -> CrashState:
        """Return what stands after the process was killed now: all that was written, since the page cache lives on."""
        with self._lock:
            contents = {path: self._nodes[node].copy() for path, node in self._names.items()}
            directories = frozenset(self._directories)
        return CrashState(len(self.operations), self.acks, directories, contents, "the process was killed, nothing is lost")

    def kill(self) -> None:
        """Take every handle and every lock away, as the end of the process does; what is pending stays pending.

        The next program on the same machine then works on what is in the page cache, and the power may fail after that.
        """
        with self._lock:
            self._handles.clear()
            self._locks.clear()
            self._lock.notify_all()

    def crash_states(
        self, *, per_instant: int = 5000, seed: int = 0, start: int = 0, leave_out: tuple[str, ...] = ()
    ) -> Iterator[CrashState]:
        """Yield every legal content of the disk for a power cut after each recorded operation, each content once.

        An instant right before an acknowledgement is left out: the one after it has the same contents and promises more.

        Args:
            per_instant: with more states than this at one instant, so many are drawn at random (and a line tells it).
            seed: for that draw.
            start: leave out the instants before this number of operations.
            leave_out: ends of the names of files that no state contains, such as ``(".lock",)`` for files whose content
                nobody depends on: with them every state comes in many variants.
        """
        disk = _Disk(self._start, strict_dirs=self.strict_dirs, leave_out=leave_out)
        operations = list(self.operations)
        seen: set[Hashable] = set()
        for instant in range(len(operations) + 1):
            if instant:
                disk.apply(operations[instant - 1])
            if instant < start or (instant < len(operations) and operations[instant].kind == "ack"):
                continue
            yield from disk.states(instant, seen, per_instant, seed)

    def lose_pending(self, handle: int) -> None:
        """Do what a kernel does when a sync fails: report it once, and take the file's pending writes for written.

        They stay readable while the process lives; no later sync makes them durable, whatever it returns.
        """
        with self._lock:
            self._record(_Op("lose", self._node(handle)))

    def _record(self, operation: _Op) -> None:
        self.operations.append(operation)

    def _node(self, handle: int, *, write: bool = False) -> int:
        try:
            node, writable = self._handles[handle]
        except KeyError:
            raise _error(errno.EBADF, str(handle)) from None
        if write and not writable:
            raise _error(errno.EBADF, str(handle))
        return node

    # --- Fs --------------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, write: bool, create: bool = False) -> int:
        path = posixpath.normpath(path)
        with self._lock:
            if path in self._directories:
                raise _error(errno.EISDIR, path)
            node = self._names.get(path)
            if node is None:
                if not create or _parent(path) not in self._directories:
                    raise _error(errno.ENOENT, path)
                node = self._names[path] = len(self._nodes)
                self._nodes.append(_Content())
                self._record(_Op("create", node, path=path))
            handle, self._next_handle = self._next_handle, self._next_handle + 1
            self._handles[handle] = (node, write)
            return handle

    def close(self, handle: int) -> None:
        with self._lock:
            node = self._node(handle)
            del self._handles[handle]
            if self._locks.get(node) == handle:
                del self._locks[node]
                self._lock.notify_all()

    def size(self, handle: int) -> int:
        return self._nodes[self._node(handle)].size

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        with self._lock:
            return self._nodes[self._node(handle)].read(size, offset)

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        data = bytes(data)
        zero = not data.strip(b"\0") if len(data) < SECTOR else data.count(0) == len(data)
        with self._lock:
            node = self._node(handle, write=True)
            self._nodes[node].write(offset, data, zero=zero)
            self._record(_Op("write", node, offset, data, zero))
        return len(data)

    def truncate(self, handle: int, size: int) -> None:
        with self._lock:
            node = self._node(handle, write=True)
            self._nodes[node].truncate(size)
            self._record(_Op("truncate", node, size))

    def sync(self, handle: int) -> None:
        with self._lock:
            self._record(_Op("sync", self._node(handle)))

    def sync_dir(self, path: str) -> None:
        path = posixpath.normpath(path)
        with self._lock:
            if path not in self._directories:
                raise _error(errno.ENOENT, path)
            self._record(_Op("sync_dir", path=path))

    def replace(self, source: str, target: str) -> None:
        source, target = posixpath.normpath(source), posixpath.normpath(target)
        with self._lock:
            if source not in self._names or _parent(target) not in self._directories:
                raise _error(errno.ENOENT, source)
            if target in self._directories:
                raise _error(errno.EISDIR, target)
            self._names[target] = self._names.pop(source)
            self._record(_Op("rename", path=source, target=target))

    def unlink(self, path: str) -> None:
        path = posixpath.normpath(path)
        with self._lock:
            if path not in self._names:
                raise _error(errno.ENOENT, path)
            del self._names[path]
            self._record(_Op("unlink", path=path))

    def mkdir(self, path: str) -> None:
        path = posixpath.normpath(path)
        with self._lock:
            if path in self._directories:
                return
            if path in self._names:
                raise _error(errno.EEXIST, path)
            self.mkdir(_parent(path))
            self._directories.add(path)
            self._record(_Op("mkdir", path=path))

    def exists(self, path: str) -> bool:
        path = posixpath.normpath(path)
        return path in self._names or path in self._directories

    def listdir(self, path: str) -> list[str]:
        path = posixpath.normpath(path)
        with self._lock:
            everything = [*self._names, *self._directories]
        return [posixpath.basename(name) for name in everything if name not in ("/", ".") and _parent(name) == path]

    def same_file(self, handle: int, path: str) -> bool:
        return self._names.get(posixpath.normpath(path), -1) == self._node(handle)

    def lock(self, handle: int, *, wait: bool) -> bool:
        with self._lock:
            node = self._node(handle)
            while self._locks.get(node, handle) != handle:
                if not wait:
                    return False
                self._lock.wait()
            self._locks[node] = handle
            return True

    def unlock(self, handle: int) -> None:
        with self._lock:
            node = self._node(handle)
            if self._locks.get(node) == handle:
                del self._locks[node]
                self._lock.notify_all()


if TYPE_CHECKING:
    _Plan = tuple[int, dict[str, int], frozenset[str], list[_Op], tuple[_Fate, ...]]


class _Disk:
    """The recording played back: what is durable, what is pending, and the states between the two."""

    def __init__(self, start: CrashState, *, strict_dirs: bool, leave_out: tuple[str, ...]) -> None:
        self.strict_dirs = strict_dirs
        self.leave_out = leave_out
        self.names: dict[str, int] = {}
        self.nodes: dict[int, _Content] = {}
        for path, content in start.contents.items():
            self.names[path] = len(self.nodes)
            self.nodes[self.names[path]] = content
        self.directories = set(start.directories)
        self.acks: tuple[Hashable, ...] = start.acks
        self.pending_names: list[_Op] = []
        self.pending_data: list[_Op] = []
        self._cache: dict[Hashable, tuple[_Content, int]] = {}

    def apply(self, operation: _Op) -> None:
        kind = operation.kind
        if kind in ("write", "truncate"):
            self.pending_data.append(operation)
        elif kind == "sync":
            self._sync(operation.node)
        elif kind == "lose":
            self.pending_data = [op for op in self.pending_data if op.node != operation.node]
        elif kind == "sync_dir":
            self._sync_dir(operation.path)
        elif kind == "ack":
            self.acks = (*self.acks, operation.token)
        else:
            if kind == "create":
                self.nodes[operation.node] = _Content()
            self.pending_names.append(operation)

    def _sync(self, node: int) -> None:
        self.nodes[node] = self._content(node, [(op, _KEPT) for op in self.pending_data if op.node == node])[0]
        self.pending_data = [op for op in self.pending_data if op.node != node]
        self._cache.clear()
        if not self.strict_dirs:
            for index, op in enumerate(self.pending_names):
                if op.kind == "create" and op.node == node:
                    self._commit_names(self.pending_names[: index + 1])
                    break

    def _sync_dir(self, path: str) -> None:
        mine = [
            index
            for index, op in enumerate(self.pending_names)
            if path in (_parent(op.path), _parent(op.target) if op.target else None)
        ]
        if self.strict_dirs:
            self._commit_names([self.pending_names[index] for index in mine])
        else:
            self._commit_names(self.pending_names[: mine[-1] + 1] if mine else [])

    def _commit_names(self, operations: list[_Op]) -> None:
        for op in operations:
            _apply_name(op, self.names, self.directories)
        committed = set(operations)
        self.pending_names = [op for op in self.pending_names if op not in committed]

    # --- enumeration -----------------------------------------------------------------------------------------------------

    def states(self, instant: int, seen: set[Hashable], cap: int, seed: int) -> Iterator[CrashState]:
        names, directories = dict(self.names), set(self.directories)
        plans: list[_Plan] = []
        for kept in range(len(self.pending_names) + 1):
            if kept:
                _apply_name(self.pending_names[kept - 1], names, directories)
            reachable = frozenset(path for path in directories if _reachable(path, directories))
            # a file whose directory was lost is lost with it
            visible = {
                path: node
                for path, node in names.items()
                if _parent(path) in reachable and not (self.leave_out and path.endswith(self.leave_out))
            }
            nodes = set(visible.values())
            pending = [op for op in self.pending_data if op.node in nodes]
            plans.extend((kept, visible, reachable, pending, fates) for fates in _fates(pending, seed))
        if len(plans) > cap:
            print(f"SimFs: instant {instant} has {len(plans)} states, {cap} of them drawn with seed={seed}")
            plans = random.Random(f"{seed}:{instant}").sample(plans, cap)
        for plan in plans:
            state = self._state(instant, seen, plan)
            if state is not None:
                yield state

    def _state(self, instant: int, seen: set[Hashable], plan: _Plan) -> CrashState | None:
        kept, visible, directories, pending, fates = plan
        chosen: dict[int, list[tuple[_Op, _Fate]]] = {}
        for op, fate in zip(pending, fates, strict=True):
            chosen.setdefault(op.node, []).append((op, fate))
        contents: dict[str, _Content] = {}
        keys: list[Hashable] = []
        for path, node in visible.items():
            contents[path], key = self._content(node, chosen.get(node, []))
            keys.append((path, key))
        whole = (frozenset(keys), directories, self.acks)
        if whole in seen:
            return None
        seen.add(whole)
        return CrashState(instant, self.acks, directories, contents, self._why(kept, pending, fates))

    def _content(self, node: int, chosen: list[tuple[_Op, _Fate]]) -> tuple[_Content, int]:
        cache_key = (node, tuple([(id(op), fate) for op, fate in chosen if fate != _DROPPED]))
        found = self._cache.get(cache_key)
        if found is None:
            content = self.nodes[node].copy()
            for op, fate in chosen:
                if fate == _DROPPED:
                    continue
                if op.kind == "truncate":
                    content.truncate(op.offset)
                elif isinstance(fate, tuple):
                    _tear(content, op, *fate)
                else:
                    content.write(op.offset, op.data, zero=op.zero)
            found = self._cache[cache_key] = (content, content.key())
        return found

    def _why(self, kept: int, pending: list[_Op], fates: tuple[_Fate, ...]) -> str:
        parts = [f"names kept: {kept} of {len(self.pending_names)}"] if self.pending_names else []
        for op, fate in zip(pending, fates, strict=True):
            if fate != _KEPT:
                parts.append(f"{op} {'lost' if fate == _DROPPED else f'torn {fate}'}")
        return "; ".join(parts) or "all kept"


def _error(number: int, what: str) -> OSError:
    return OSError(number, os.strerror(number), what)


def _parent(path: str) -> str:
    return posixpath.dirname(path) or "."


def _reachable(path: str, directories: set[str]) -> bool:
    while path not in ("/", "."):
        if path not in directories:
            return False
        path = _parent(path)
    return True


def _apply_name(op: _Op, names: dict[str, int], directories: set[str]) -> None:
    if op.kind == "create":
        names[op.path] = op.node
    elif op.kind == "rename":
        node = names.pop(op.path, None)  # absent only in the strict model: its creation was in another, lost directory
        if node is not None:
            names[op.target] = node
    elif op.kind == "unlink":
        names.pop(op.path, None)
    else:
        directories.add(op.path)


def _fates(pending: list[_Op], seed: int) -> Iterator[tuple[_Fate, ...]]:
    """Yield the fates of the pending writes, one tuple a state; some may amount to the same content."""
    count = len(pending)
    if count <= ALL_SUBSETS_UP_TO:
        for mask in range(2**count - 1, -1, -1):
            yield tuple([_KEPT if mask & (1 << index) else _DROPPED for index in range(count)])
    else:
        yield (_KEPT,) * count
        yield (_DROPPED,) * count
        for index in range(count):
            yield (_KEPT,) * index + (_DROPPED,) + (_KEPT,) * (count - index - 1)
            yield (_DROPPED,) * index + (_KEPT,) + (_DROPPED,) * (count - index - 1)
            yield (_KEPT,) * index + (_DROPPED,) * (count - index)
    for index, op in enumerate(pending):
        after = count - index - 1
        for tear in _tears(op, seed):
            yield (_KEPT,) * index + (tear,) + (_DROPPED,) * after
            if after:
                yield (_KEPT,) * index + (tear,) + (_KEPT,) * after
            if index:
                yield (_DROPPED,) * index + (tear,) + (_DROPPED,) * after


def _tears(op: _Op, seed: int) -> Iterator[tuple[str, int]]:
    """Yield the ways in which one write may be torn."""
    length = len(op.data)
    if op.kind != "write" or not length:
        return
    borders = list(range(SECTOR - op.offset % SECTOR, length, SECTOR))
    if len(borders) > MAX_CUTS:  # a large write: its first and last sectors, and some between them
        between = random.Random(f"{seed}:{op.offset}:{length}").sample(borders[4:-4], MAX_CUTS - 8)
        borders = borders[:4] + sorted(between) + borders[-4:]
    for cut in sorted({0, 1, length // 2, length - 1, *borders} - {length}):
        if cut:
            yield "old", cut
        if not op.zero:
            yield "zeros", cut
        yield "garbage", cut
    if borders:
        for start in (0, *borders):
            yield "without", start
            yield "only", start


def _tear(content: _Content, op: _Op, kind: str, cut: int) -> None:
    """Apply a torn write; ``cut`` counts from the start of the write."""
    data, offset = op.data, op.offset
    if kind in ("without", "only"):
        end = min(len(data), cut + SECTOR - (offset + cut) % SECTOR)
        if kind == "only":
            content.write(offset + cut, data[cut:end], zero=op.zero)
            return
        content.write(offset, data[:cut], zero=op.zero)
        content.write(offset + end, data[end:], zero=op.zero)
        return
    content.write(offset, data[:cut], zero=op.zero)
    if kind == "zeros":
        content.write(offset + cut, bytes(len(data) - cut), zero=True)
    elif kind == "garbage":
        content.write(offset + cut, data[cut:].translate(GARBAGE), zero=False)
