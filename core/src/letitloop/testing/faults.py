"""A file system that fails on request: :class:`FaultFs` passes every call on, but for the ones it was told to spoil."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from letitloop.testing.simfs import SimFs

if TYPE_CHECKING:
    from letitloop.wal.files import Fs

__all__ = ["Fault", "FaultFs"]

KINDS = (
    "open",
    "close",
    "size",
    "pread",
    "pwrite",
    "truncate",
    "sync",
    "sync_dir",
    "replace",
    "unlink",
    "mkdir",
    "exists",
    "listdir",
    "same_file",
    "lock",
)


@dataclass
class Fault:
    """One fault to inject.

    Args:
        kind: the method of ``Fs`` to spoil, e.g. ``"sync"``.
        nth: at which call of that kind, from 1.
        error: the ``errno`` to raise.
        short: for ``pwrite``: carry out so many bytes only; with ``error=0`` the call then returns that number as the system
            would, else the error is raised after the partial write.
        after: carry the call out first, then raise: the work was done but the caller is told that it failed.
        times: at how many calls in a row; ``-1``: at every call from the ``nth`` on (a disk that stays full).
    """

    kind: str
    nth: int = 1
    error: int = errno.EIO
    short: int | None = None
    after: bool = False
    times: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is no method of Fs; there are {', '.join(KINDS)}")

    def covers(self, call: int) -> bool:
        """Tell whether the fault strikes at that call of its kind."""
        return call >= self.nth and (self.times < 0 or call < self.nth + self.times)


class FaultFs:
    """An ``Fs`` around another one, with faults in it.

    A ``sync`` that fails on a :class:`SimFs` loses what was pending, as a kernel does (:meth:`SimFs.lose_pending`).

    Args:
        fs: the file system that does the work.
        *faults: what goes wrong, and when; more can be added later with :meth:`add`.

    Attributes:
        calls: how often each method was called.
        injected: the faults that struck, as ``(kind, call)``.

    Example:
        >>> from letitloop.testing import SimFs
        >>> fs = FaultFs(SimFs(), Fault("sync", nth=2))
        >>> handle = fs.open("/sim/a", write=True, create=True)
        >>> fs.sync(handle)
        >>> fs.sync(handle)
        Traceback (most recent call last):
        OSError: [Errno 5] Input/output error: 'injected into sync, call 2'
    """

    def __init__(self, fs: Fs, *faults: Fault) -> None:
        self.inner = fs
        self.calls: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.injected: list[tuple[str, int]] = []
        self._faults = list(faults)
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        """Inject one more fault; its ``nth`` counts from the next call of that kind on."""
        with self._lock:
            fault.nth += self.calls[fault.kind]
            self._faults.append(fault)

    def clear(self) -> None:
        """Inject nothing more: the disk is well again."""
        with self._lock:
            self._faults.clear()

    def _strike(self, kind: str) -> Fault | None:
        with self._lock:
            self.calls[kind] += 1
            call = self.calls[kind]
            for fault in self._faults:
                if fault.kind == kind and fault.covers(call):
                    self.injected.append((kind, call))
                    return fault
        return None

    def _before(self, kind: str) -> Fault | None:
        fault = self._strike(kind)
        if fault is not None and not fault.after and fault.short is None:
            self._fail(fault)
        return fault

    def _fail(self, fault: Fault | None) -> None:
        if fault is not None and fault.error:
            raise OSError(fault.error, os.strerror(fault.error), f"injected into {fault.kind}, call {self.calls[fault.kind]}")

    def open(self, path: str, *, write: bool, create: bool = False) -> int:
        self._before("open")
        return self.inner.open(path, write=write, create=create)

    def close(self, handle: int) -> None:
        fault = self._before("close")
        self.inner.close(handle)
        self._fail(fault)

    def size(self, handle: int) -> int:
        self._before("size")
        return self.inner.size(handle)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self._before("pread")
        return self.inner.pread(handle, size, offset)

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        fault = self._before("pwrite")
        if fault is not None and fault.short is not None:
            written = self.inner.pwrite(handle, data[: fault.short], offset) if fault.short else 0
            self._fail(fault)
            return written
        written = self.inner.pwrite(handle, data, offset)
        self._fail(fault)
        return written

    def truncate(self, handle: int, size: int) -> None:
        fault = self._before("truncate")
        self.inner.truncate(handle, size)
        self._fail(fault)

    def sync(self, handle: int) -> None:
        fault = self._strike("sync")
        if fault is not None and not fault.after:
            if isinstance(self.inner, SimFs):
                self.inner.lose_pending(handle)
            self._fail(fault)
        self.inner.sync(handle)
        self._fail(fault)

    def sync_dir(self, path: str) -> None:
        fault = self._before("sync_dir")
        self.inner.sync_dir(path)
        self._fail(fault)

    def replace(self, source: str, target: str) -> None:
        fault = self._before("replace")
        self.inner.replace(source, target)
        self._fail(fault)

    def unlink(self, path: str) -> None:
        fault = self._before("unlink")
        self.inner.unlink(path)
        self._fail(fault)

    def mkdir(self, path: str) -> None:
        fault = self._before("mkdir")
        self.inner.mkdir(path)
        self._fail(fault)

    def exists(self, path: str) -> bool:
        self._before("exists")
        return self.inner.exists(path)

    def listdir(self, path: str) -> list[str]:
        self._before("listdir")
        return self.inner.listdir(path)

    def same_file(self, handle: int, path: str) -> bool:
        self._before("same_file")
        return self.inner.same_file(handle, path)

    def lock(self, handle: int, *, wait: bool) -> bool:
        self._before("lock")
        return self.inner.lock(handle, wait=wait)

    def unlock(self, handle: int) -> None:
        self._before("unlock")
        self.inner.unlock(handle)
