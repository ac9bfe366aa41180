"""What the log asks of the system: the :class:`Fs` protocol, and the one module that calls ``os``.

A log never touches a file but through an ``Fs``, so a simulated one (``letitloop.testing.SimFs``) sees every operation and can
enumerate what a power cut may leave of it. Handles are integers, as descriptors are.
"""

from __future__ import annotations

import os
import sys

from letitloop import failpoints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Fs(Protocol):
        """The operations on files and directories that a log and its lock are built from.

        Every method raises :class:`OSError` as the system would; none retries. ``pwrite`` may write less than it was given.
        """

        def open(self, path: str, *, write: bool, create: bool = False) -> int:
            """Open ``path`` and return a handle; with ``create`` make the file (mode 0600) if it is absent."""
            ...

        def close(self, handle: int, /) -> None:
            """Close ``handle``; a lock taken through it ends."""
            ...

        def size(self, handle: int) -> int:
            """Return the size of the file in bytes."""
            ...

        def pread(self, handle: int, size: int, offset: int, /) -> bytes:
            """Return up to ``size`` bytes from ``offset``; fewer only at the end of the file."""
            ...

        def pwrite(self, handle: int, data: bytes, offset: int, /) -> int:
            """Write ``data`` at ``offset`` and return how many bytes were written; the file grows as needed."""
            ...

        def truncate(self, handle: int, size: int) -> None:
            """Cut the file off, or extend it with zeros, to ``size`` bytes."""
            ...

        def sync(self, handle: int, /) -> None:
            """Return when the file's bytes and its size have survived a power cut."""
            ...

        def sync_dir(self, path: str) -> None:
            """Return when the names in the directory ``path`` have survived a power cut."""
            ...

        def replace(self, source: str, target: str) -> None:
            """Rename ``source`` to ``target`` in one step, in place of what is there."""
            ...

        def unlink(self, path: str) -> None:
            """Remove the name ``path``."""
            ...

        def mkdir(self, path: str) -> None:
            """Make the directory ``path`` (mode 0700) with its parents; one that exists is left as it is."""
            ...

        def exists(self, path: str) -> bool:
            """Tell whether ``path`` names something."""
            ...

        def listdir(self, path: str) -> list[str]:
            """Return the names in the directory ``path``, in no order; none if it does not exist."""
            ...

        def same_file(self, handle: int, path: str) -> bool:
            """Tell whether ``path`` still names the file that ``handle`` was opened on."""
            ...

        def lock(self, handle: int, *, wait: bool) -> bool:
            """Lock the file for this handle alone; return False if another handle holds it and ``wait`` is false."""
            ...

        def unlock(self, handle: int) -> None:
            """End the lock of this handle."""
            ...


__all__ = ["OsFs", "default_fs", "process_alive"]

_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class OsFs:
    """The machine's own file system.

    ``sync`` is ``fdatasync`` where there is one; on macOS ``F_FULLFSYNC``, since ``fsync`` does not flush the drive's cache
    there; else ``fsync``.
    """

    def open(self, path: str, *, write: bool, create: bool = False) -> int:
        flags = _BINARY | (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return os.open(path, flags, 0o600)

    close = staticmethod(os.close)  # not wrapped: a call of ours would be a place where Ctrl+C may keep it from happening

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def listdir(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def same_file(self, handle: int, path: str) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(path))
        except FileNotFoundError:
            return False

    if sys.platform == "win32":  # no positioned calls; every caller holds its log's lock, so the two calls cannot interleave

        def pread(self, handle: int, size: int, offset: int) -> bytes:
            os.lseek(handle, offset, os.SEEK_SET)
            return os.read(handle, size)

        def pwrite(self, handle: int, data: bytes, offset: int) -> int:
            os.lseek(handle, offset, os.SEEK_SET)
            return os.write(handle, data)
    else:
        pread = staticmethod(os.pread)  # not wrapped: each step calls them
        pwrite = staticmethod(os.pwrite)

    if sys.platform == "darwin":

        def sync(self, handle: int) -> None:
            import fcntl

            try:
                fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            except OSError:  # a network file system that knows no F_FULLFSYNC
                os.fsync(handle)
    elif sys.platform == "win32":

        def sync(self, handle: int) -> None:
            os.fsync(handle)
    else:
        sync = staticmethod(os.fdatasync)

    if sys.platform == "win32":

        def sync_dir(self, path: str) -> None:
            """Windows has no way to sync a directory: NTFS journals its names by itself."""

        def lock(self, handle: int, *, wait: bool) -> bool:
            import msvcrt

            os.lseek(handle, 0, os.SEEK_SET)
            while True:
                try:
                    msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
                except OSError:
                    if not wait:
                        return False
                else:
                    return True

        def unlock(self, handle: int) -> None:
            import msvcrt

            os.lseek(handle, 0, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
    else:

        def sync_dir(self, path: str) -> None:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _BINARY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

        def lock(self, handle: int, *, wait: bool) -> bool:
            # flock, not lockf: a second handle of the same process must be refused too, and closing some other
            # handle of the same file must not free the lock
            import fcntl

            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                return False
            return True

        def unlock(self, handle: int) -> None:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_UN)


class _WatchedFs(OsFs):
    """The same, with a failpoint before and after each operation that changes what a crash leaves."""

    def pwrite(self, handle: int, data: Any, offset: int, /) -> int:
        failpoints.hit("fs.pwrite")
        written = super().pwrite(handle, data, offset)
        failpoints.hit("fs.pwritten")
        return written

    def sync(self, handle: Any, /) -> None:
        failpoints.hit("fs.sync")
        super().sync(handle)
        failpoints.hit("fs.synced")

    def truncate(self, handle: int, size: int) -> None:
        failpoints.hit("fs.truncate")
        super().truncate(handle, size)
        failpoints.hit("fs.truncated")

    def replace(self, source: str, target: str) -> None:
        failpoints.hit("fs.replace")
        super().replace(source, target)
        failpoints.hit("fs.replaced")

    def unlink(self, path: str) -> None:
        failpoints.hit("fs.unlink")
        super().unlink(path)

    def sync_dir(self, path: str) -> None:
        failpoints.hit("fs.sync_dir")
        super().sync_dir(path)


def default_fs() -> Fs:
    """Return the machine's file system; with failpoints in it where a test has set some."""
    return _WatchedFs() if failpoints.active else OsFs()


def process_alive(pid: int) -> bool:
    """Tell whether a process of that id lives on this machine; True where that cannot be asked without harm."""
    if sys.platform == "win32":
        return True  # os.kill(pid, 0) would end it
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # OverflowError: no pid at all
        return False
    except PermissionError:
        return True
    return True
