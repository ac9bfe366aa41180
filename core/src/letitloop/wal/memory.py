"""A file system in this process's memory, for the memory store: the log's own code runs on it unchanged."""

from __future__ import annotations

import threading

__all__ = ["MemoryFs"]


class _File:
    __slots__ = ("data", "holder", "released")

    def __init__(self) -> None:
        self.data = bytearray()
        self.holder = -1
        self.released = threading.Condition()


class MemoryFs:
    """Files that end with the process. Syncing is a no-op; locks hold between openings, as the kernel's do."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._handles: dict[int, _File] = {}
        self._next = 0
        self._guard = threading.Lock()

    def open(self, path: str, *, write: bool, create: bool = False) -> int:
        del write
        with self._guard:
            file = self._files.get(path)
            if file is None:
                if not create:
                    raise FileNotFoundError(path)
                file = self._files[path] = _File()
            self._next += 1
            self._handles[self._next] = file
            return self._next

    def close(self, handle: int) -> None:
        self.unlock(handle)
        del self._handles[handle]

    def size(self, handle: int) -> int:
        return len(self._handles[handle].data)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        return bytes(self._handles[handle].data[offset : offset + size])

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        file = self._handles[handle].data
        if len(file) < offset:
            file.extend(bytes(offset - len(file)))
        file[offset : offset + len(data)] = data
        return len(data)

    def truncate(self, handle: int, size: int) -> None:
        data = self._handles[handle].data
        if size < len(data):
            del data[size:]
        else:
            data.extend(bytes(size - len(data)))

    def sync(self, handle: int) -> None:
        pass

    def sync_dir(self, path: str) -> None:
        pass

    def replace(self, source: str, target: str) -> None:
        with self._guard:
            self._files[target] = self._files.pop(source)

    def unlink(self, path: str) -> None:
        with self._guard:
            del self._files[path]

    def mkdir(self, path: str) -> None:
        pass

    def exists(self, path: str) -> bool:
        return path in self._files or any(name.startswith(path.rstrip("/") + "/") for name in list(self._files))

    def listdir(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return sorted({name[len(prefix) :].partition("/")[0] for name in list(self._files) if name.startswith(prefix)})

    def same_file(self, handle: int, path: str) -> bool:
        return self._files.get(path) is self._handles[handle]

    def lock(self, handle: int, *, wait: bool) -> bool:
        file = self._handles[handle]
        with file.released:
            while file.holder not in (-1, handle):
                if not wait:
                    return False
                file.released.wait()
            file.holder = handle
            return True

    def unlock(self, handle: int) -> None:
        file = self._handles[handle]
        with file.released:
            if file.holder == handle:
                file.holder = -1
                file.released.notify_all()
