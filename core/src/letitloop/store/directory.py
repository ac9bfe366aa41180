"""Stores whose logs are files: one on disk, one in this process's memory.

A directory store::

    <root>/.gitignore      "*": nothing of a store belongs into a repository
    <root>/runs/           one log a run, <name>.wal, its lock beside it
    <root>/threads/        one log a thread of an adapter
    <root>/ledger.db       markers and intents (SQLite)
    <root>/owners/         one lock file a living process or marker
    <root>/torn/           what recovery cut off, the newest few of each log

Directories have mode 0700, files 0600.
"""

from __future__ import annotations

import os

from letitloop.errors import InvalidArgument, LogWriteFailed, StoreError
from letitloop.store.supervised import tell
from letitloop.wal.files import default_fs
from letitloop.wal.lock import holder
from letitloop.wal.memory import MemoryFs
from letitloop.wal.recovery import open_log, remove_log, view_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from letitloop.store.protocol import Store
    from letitloop.wal.files import Fs
    from letitloop.wal.log import Log
    from letitloop.wal.recovery import View

__all__ = ["DEFAULT_ROOT", "VARIABLE", "DirectoryStore", "MemoryStore", "resolve_store", "store_options"]

VARIABLE = "LETITLOOP_STORE"
DEFAULT_ROOT = ".letitloop"
_SUFFIX = ".wal"
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class DirectoryStore:
    """A store in a directory, made when the first log is opened for writing.

    Args:
        root: the directory.
        fs: the file system; the machine's own by default.

    Example:
        >>> import tempfile
        >>> store = DirectoryStore(tempfile.mkdtemp())
        >>> store.open_log("runs", "example").close()
        >>> store.names("runs")
        ['example']
    """

    def __init__(self, root: str | os.PathLike[str], *, fs: Fs | None = None) -> None:
        self.root: str = os.path.realpath(os.fspath(root))  # one name for a store, however it is reached
        self._fs = fs or default_fs()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"

    @property
    def location(self) -> str:
        """The directory."""
        return self.root

    @property
    def ledger(self) -> str:
        """The store's SQLite file, as ``sqlite:PATH``."""
        return f"sqlite:{os.path.join(self.root, 'ledger.db')}"

    def open_log(
        self,
        room: str,
        name: str,
        *,
        sync: str = "power",
        seal_key: bytes | None = None,
        wait: bool = False,
        create: bool = True,
        guarded: frozenset[int] = frozenset(),
    ) -> Log:
        """Open a log for writing; see :class:`letitloop.store.protocol.Store`."""
        path = self._path(room, name)
        if not create and not self._fs.exists(path):
            raise FileNotFoundError(path)
        try:
            if not self._fs.exists(path):
                self._prepare(room)
            log = open_log(
                path,
                fs=self._fs,
                sync=sync,
                seal_key=seal_key,
                wait=wait,
                create=create,
                guarded=guarded,
                quarantine=os.path.join(self.root, "torn"),
            )
        except (FileExistsError, NotADirectoryError) as exc:
            raise self._is_file() from exc
        except (LogWriteFailed, OSError) as exc:
            if isinstance(exc, FileNotFoundError) and not create:
                raise
            raise StoreError(
                f"the store {self.root} cannot be written: {exc}. Nothing was run or recorded. Mend its permissions or space, or "
                f"name another with store= or {VARIABLE}."
            ) from exc
        tell(room, name, path, log)
        return log

    def view_log(self, room: str, name: str, *, seal_key: bytes | None = None) -> View:
        """Open a log for reading; see :class:`letitloop.store.protocol.Store`."""
        try:
            return view_log(self._path(room, name), fs=self._fs, seal_key=seal_key)
        except NotADirectoryError as exc:
            raise self._is_file() from exc

    def names(self, room: str) -> list[str]:
        """Return the names of a room's logs, sorted."""
        try:
            found = self._fs.listdir(os.path.join(self.root, room))
        except NotADirectoryError as exc:
            raise self._is_file() from exc
        return sorted(name[: -len(_SUFFIX)] for name in found if name.endswith(_SUFFIX))

    def holder(self, room: str, name: str) -> int | None:
        """Return the pid of the live process that holds a log; see :class:`letitloop.store.protocol.Store`."""
        return holder(self._fs, self._path(room, name))

    def remove(self, room: str, name: str) -> None:
        """Remove a log for good; see :class:`letitloop.store.protocol.Store`."""
        path = self._path(room, name)
        if self._fs.exists(path):
            remove_log(path, fs=self._fs)

    def _is_file(self) -> StoreError:
        return StoreError(f"the store {self.root} is a file, or lies below one. Name another with store= or {VARIABLE}.")

    def _path(self, room: str, name: str) -> str:
        for part in (room, name):
            if not 0 < len(part) <= 200 or not _NAME.issuperset(part) or part[0] == ".":
                raise InvalidArgument(
                    f"{part!r} cannot name a log: use ASCII letters, digits, '.', '_' and '-', at most 200, no leading dot."
                )
        return os.path.join(self.root, room, name + _SUFFIX)

    def _prepare(self, room: str) -> None:
        """Make the directories, and their names durable, before a log is promised to lie in them."""
        fs, folder = self._fs, os.path.join(self.root, room)
        fresh = not fs.exists(self.root)
        made = [self.root]
        while not fs.exists(above := os.path.dirname(made[-1])) and above != made[-1]:
            made.append(above)
        fs.mkdir(self.root)  # first: the mode is given to the last part of a path alone
        fs.mkdir(folder)
        ignore = os.path.join(self.root, ".gitignore")
        if fresh and not fs.exists(ignore):  # a directory that was there is somebody's, perhaps a project's own
            handle = fs.open(ignore, write=True, create=True)
            try:
                fs.pwrite(handle, b"*\n", 0)
            finally:
                fs.close(handle)
        fs.sync_dir(folder)
        fs.sync_dir(self.root)
        for folder in made:
            fs.sync_dir(os.path.dirname(folder))


class MemoryStore(DirectoryStore):
    """A store that ends with the process: for tests, and for trying things out.

    Example:
        >>> store = MemoryStore()
        >>> store.open_log("runs", "example").close()
        >>> store.names("runs")
        ['example']
    """

    def __init__(self) -> None:
        super().__init__(os.path.join(os.sep, f"memory-{os.urandom(6).hex()}"), fs=MemoryFs())

    @property
    def location(self) -> str:
        """A name that tells that nothing is kept."""
        return f"memory:{os.path.basename(self.root)}"

    @property
    def ledger(self) -> str:
        """The store's ledger, as ``memory:NAME``."""
        return self.location


_memory_stores: dict[str, MemoryStore] = {}


def store_options(store: Store) -> list[str]:
    """Return the words that tell ``lil`` of a store: none for the one that it looks at by itself, or that no other process sees."""
    root = store.root if isinstance(store, DirectoryStore) else None
    by_itself = os.path.realpath(os.environ.get(VARIABLE) or DEFAULT_ROOT)
    return [] if root is None or root == by_itself else ["--store", root]


def resolve_store(store: Store | str | bytes | os.PathLike[str] | None) -> Store:
    """Return the store that an argument names: itself, a directory, ``LETITLOOP_STORE``, or ``./.letitloop``.

    Args:
        store: a store, a directory's path, ``memory:NAME`` for one that this process shares under that name, or None; an empty
            string counts as None.

    Raises:
        StoreError: the location is of a kind that this version does not know.
    """
    if store is None or store == "":
        store = os.environ.get(VARIABLE) or DEFAULT_ROOT
    if not isinstance(store, (str, bytes, os.PathLike)):
        return store
    root = os.fsdecode(store)
    if root.startswith("memory:"):
        return _memory_stores.setdefault(root, MemoryStore())
    if "://" in root:
        raise StoreError(
            f"{root.partition('://')[0]}:// stores are not known to this version: give the path of a directory. Nothing was run."
        )
    return DirectoryStore(root)
