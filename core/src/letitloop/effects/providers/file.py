"""Files that are created once: each with its whole content, never in place of another one, and with a receipt.

Every provider key has a *slot*: the directory ``.lil/slots/KEY`` below the provider's own. A slot appears with all that is in it
and never goes away; what became of the key is told by the names in it, and every change is one system call that either one
process carries out or another.

* **Claim.** The worker writes ``intent`` (the receipt: path, size, hashes) and ``content`` into a draft, syncs both, and renames
  the draft to the slot. A directory is never renamed over one that holds something, so of several claims one is made.
* **Publish.** ``content`` is renamed out of the slot to the file's name, by a rename that refuses to replace
  (``RENAME_NOREPLACE``). ``content`` is made once, so it leaves once: however often a worker repeats this, and even if somebody
  takes the file away meanwhile, there is no second file. A slot with no ``content`` and no mark below is the receipt.
* **Tombstone.** Without a slot, the reconciler claims it with the mark ``tombstone`` in it: no worker can claim it any more. With
  ``content`` in the slot, it renames that to ``tombstone``. Of the two renames of ``content`` the kernel carries out one. If it is
  the reconciler's, a worker that wakes up later finds nothing to publish and sees why; if it is the worker's, the reconciler
  finds the receipt.
* **Reject.** If the name is taken by somebody else's file, the worker renames ``content`` to ``rejected``, which ends the key in
  the same way.

So a worker that is stopped between any two of its system calls has either published, and the reconciler sees it, or never will.
Whoever gives a final answer has synced the directories first: a power cut takes no answer back.

Some file systems (NFS, some in user space) cannot refuse to replace in a rename. There the worker renames ``content`` to
``linking``, hard-links that to the file's name, and unlinks it, all under a lock that the kernel holds for it. While that lock is
held the answer is that it is still running. If the worker died in between, the number of links tells whether the file was made;
with one link only, either it was not or somebody removed it since, and the outcome stays unknown.

The worker holds the lock of ``intent`` for as long as it works; that is how it is told that a dispatch is in flight. The created
file carries the key as its attribute ``user.lil.intent`` where the file system has attributes: for people, and for the case that
``.lil`` is lost.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256

from letitloop.effects.intent import Redacted
from letitloop.effects.provider import (
    Caps,
    Found,
    NotExecuted,
    NotFound,
    StillRunning,
    Succeeded,
    Unavailable,
    Unknown,
)
from letitloop.effects.providers.receipts import PERMANENT, differing, digests, stated
from letitloop.errors import InvalidArgument
from letitloop.wal.files import OsFs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Literal

    from letitloop.effects.provider import Answer, Dispatch, Reply

__all__ = ["FileProvider"]

_PRIVATE = ".lil"
_ATTRIBUTE = "user.lil.intent"
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_EXCLUSIVE_RENAME = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


@dataclass(frozen=True)
class _Intent:
    """What a slot says of the file that it is for."""

    path: str
    size: int
    sha256: str
    arguments: dict[str, str]

    def result(self) -> dict[str, object]:
        return {"path": self.path, "size": self.size, "sha256": self.sha256}


class FileProvider:
    """Creates files in a directory, each once and with its whole content.

    Arguments of an action: ``path``, relative to the directory, whose own directory must exist; and ``content``, bytes or text
    (stored as UTF-8). A file that is there already is never replaced: the action is rejected. The result is
    ``{"path": …, "size": bytes, "sha256": hex}``.

    Receipts are kept for ever in ``.lil`` below the directory; removing it forgets what has happened. May be used from several
    threads and processes at once; nothing stays open between calls.

    Args:
        directory: where the files are created; it must exist. It may be shared with programs that read, move or remove the
            files; nobody but letitloop touches ``.lil`` in it.
        name: what the provider is called in the ledger.

    Raises:
        InvalidArgument: the directory does not exist.

    Example:
        >>> import os, time
        >>> from letitloop.effects.provider import Dispatch
        >>> os.mkdir("outbox")
        >>> files = FileProvider("outbox")
        >>> arguments = {"path": "hello.txt", "content": "hello"}
        >>> dispatch = Dispatch("shop", "greeting/1", 1, 1, "k" * 40, "file", arguments, time.time())
        >>> files.execute(dispatch).result["path"]
        'hello.txt'
        >>> files.execute(dispatch).basis  # again: the receipt answers
        'replay'
    """

    caps = Caps(redispatch=PERMANENT, lookup="strong", tombstone=True, in_flight=True)

    def __init__(self, directory: str | os.PathLike[str], *, name: str = "file") -> None:
        root: str = os.path.realpath(os.fspath(directory))
        if not os.path.isdir(root):
            raise InvalidArgument(f"FileProvider({root!r}): there is no such directory. Nothing was done. Create it first.")
        self.name = name
        self._root = root
        self._device = os.stat(root).st_dev

    def __repr__(self) -> str:
        return f"FileProvider({self._root!r})"

    def identity(self) -> str:
        """Return the directory and the number of the device that it lies on."""
        root = self._root.encode("utf-8", "backslashreplace").decode()
        return f"file/1 {root} dev={self._device}"

    def validate(self, operation: str, arguments: Mapping[str, Any]) -> None:
        """Check that the path stays below the directory and that there is a content.

        Raises:
            InvalidArgument: the action cannot be carried out as described; nothing was recorded or written.
        """
        unknown = sorted(arguments.keys() - {"path", "content", "operation"})
        if unknown:
            raise InvalidArgument(f"a file is created from path and content; {unknown} mean nothing here. Nothing was done.")
        _parts(arguments.get("path"))
        if not isinstance(arguments.get("content"), (bytes, str)):
            raise InvalidArgument(
                f"content is {type(arguments.get('content')).__name__}; it has to be bytes or str. Nothing was done."
            )
        _encoded(arguments["content"])

    def execute(self, dispatch: Dispatch) -> Reply:
        """Create the file, or answer with the receipt of an earlier sending of the same key."""
        self.validate(dispatch.operation, dispatch.arguments)
        content = _encoded(dispatch.arguments["content"])
        intent = _Intent(dispatch.arguments["path"], len(content), sha256(content).hexdigest(), digests(dispatch.arguments))
        with ExitStack() as opened:
            try:
                place = _Place(opened, self._root, self._device)
                slot = place.claim(dispatch.provider_key, intent, content)
            except OSError as exc:
                return NotExecuted("not_sent", f"the file was not begun: {exc}", {"errno": exc.errno})
            return slot.publish(_parts(intent.path), dispatch)

    def reconcile(self, dispatch: Dispatch) -> Answer:
        """Read what became of a dispatch, and sync what was found."""
        try:
            with ExitStack() as opened:
                place = _Place(opened, self._root, self._device)
                slot = place.slot(dispatch.provider_key)
                if slot is not None:
                    return slot.answer(dispatch)
                if place.drafted(dispatch.provider_key):
                    return StillRunning("its content is being written")
                return place.marked(dispatch) or NotFound("nothing has claimed its key")
        except OSError as exc:
            return Unavailable(f"{self._root} could not be read: {exc}")

    def tombstone(self, dispatch: Dispatch) -> Found | StillRunning | NotExecuted | Unavailable:
        """Occupy the key, so that no worker can create the file any more; or find that it was created."""
        try:
            with ExitStack() as opened:
                place = _Place(opened, self._root, self._device)
                found = place.marked(dispatch) if place.slot(dispatch.provider_key) is None else None
                if found is not None:
                    return found
                slot = place.occupy(dispatch.provider_key)
                answer = slot.answer(dispatch)
                place.sweep(dispatch.provider_key)
        except OSError as exc:
            return Unavailable(f"the key could not be occupied in {self._root}: {exc}")
        return Unavailable(answer.detail) if isinstance(answer, NotFound) else answer


# --- arguments ---------------------------------------------------------------------------------------------------------------


def _parts(path: object) -> list[str]:
    """Split a relative path into names, none of which leads anywhere else."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidArgument(f"path is {path!r}; it has to be a relative path, as text. Nothing was done.")
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise InvalidArgument(f"path {path!r} is not a plain path below the directory. Nothing was done. Use names joined by '/'.")
    if parts[0].casefold() == _PRIVATE:
        raise InvalidArgument(f"path {path!r} lies among the provider's own receipts. Nothing was done. Use another name.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as exc:
        raise InvalidArgument(f"path {path!r} is no file name: {exc}. Nothing was done.") from exc
    return parts


def _encoded(content: bytes | str) -> bytes:
    try:
        return content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError as exc:
        raise InvalidArgument(f"content is no text that UTF-8 can hold: {exc}. Nothing was done. Pass bytes.") from exc


def _file_name(provider_key: str) -> str:
    plain = re.fullmatch("[0-9a-z]{8,64}", provider_key) is not None
    return provider_key if plain else "x" + sha256(provider_key.encode("utf-8", "surrogatepass")).hexdigest()


# --- the directory, and the slots in it --------------------------------------------------------------------------------------


class _Place:
    """The provider's directory, opened for one call: everything below is named relative to these handles."""

    def __init__(self, opened: ExitStack, root: str, device: int) -> None:
        self.opened = opened
        self.root = self.directory(root, None)
        if os.fstat(self.root).st_dev != device:
            raise OSError(errno.ENODEV, "another file system is there than when the provider was made", root)
        own = self._made(_PRIVATE, self.root)
        self.slots = self._made("slots", own)
        self.drafts = self._made("drafts", own)

    def directory(self, name: str, inside: int | None) -> int:
        """Open a directory, through no symbolic link."""
        handle = os.open(name, _DIRECTORY, dir_fd=inside)
        self.opened.callback(os.close, handle)
        return handle

    def _made(self, name: str, inside: int) -> int:
        try:
            os.mkdir(name, 0o700, dir_fd=inside)
        except FileExistsError:
            pass
        else:
            _sync(inside)
        return self.directory(name, inside)

    def parent(self, parts: list[str]) -> int:
        """Open the directory that a file is to lie in."""
        handle = self.root
        for part in parts[:-1]:
            handle = self.directory(part, handle)
        return handle

    def slot(self, key: str) -> _Slot | None:
        """Open the slot of a key; None if nobody has claimed it."""
        try:
            return _Slot(self, key, self.directory(_file_name(key), self.slots))
        except FileNotFoundError:
            return None

    def claim(self, key: str, intent: _Intent, content: bytes) -> _Slot:
        """Claim a key for creating a file, or open the slot that is there."""

        def fill(draft: int) -> None:
            handle = _create("intent", draft, 0o600, self.opened)
            fcntl.flock(handle, fcntl.LOCK_EX)  # held until this call ends: that is how others see it under way
            _write(handle, json.dumps(asdict(intent)).encode())
            with ExitStack() as soon:
                handle = _create("content", draft, 0o666, soon)
                _write(handle, content, attribute=key)

        return self.slot(key) or self._claim(key, fill)

    def occupy(self, key: str) -> _Slot:
        """Claim a key for ever so that nobody else can, or take the content out of the slot that is there."""

        def fill(draft: int) -> None:
            with ExitStack() as soon:
                _write(_create("tombstone", draft, 0o600, soon), b"")

        slot = self.slot(key) or self._claim(key, fill)
        _sync(self.slots)
        slot.bury("content", "tombstone")
        return slot

    def _claim(self, key: str, fill: Callable[[int], None]) -> _Slot:
        """Make a draft, fill it, and rename it to the slot, unless there is one by then."""
        draft = f"{_file_name(key)}.{os.urandom(8).hex()}"
        try:
            os.mkdir(draft, 0o700, dir_fd=self.drafts)
            inside = self.directory(draft, self.drafts)
            fill(inside)
            _sync(inside)
            os.rename(draft, _file_name(key), src_dir_fd=self.drafts, dst_dir_fd=self.slots)
        except OSError:
            slot = self.slot(key)
            self._discard(draft)
            if slot is None:
                raise
            return slot
        slot = _Slot(self, key, inside)
        slot.mine = True
        return slot

    def _discard(self, draft: str) -> None:
        """Remove a draft; what is left of it, if this fails, harms nobody."""
        try:
            with ExitStack() as soon:
                inside = os.open(draft, _DIRECTORY, dir_fd=self.drafts)
                soon.callback(os.close, inside)
                for name in os.listdir(inside):
                    os.unlink(name, dir_fd=inside)
            os.rmdir(draft, dir_fd=self.drafts)
        except OSError:
            pass

    def _drafts_of(self, key: str) -> list[str]:
        return [name for name in os.listdir(self.drafts) if name.partition(".")[0] == _file_name(key)]

    def drafted(self, key: str) -> bool:
        """Tell whether somebody is writing a draft for a key."""
        return any(_locked(f"{draft}/intent", self.drafts) for draft in self._drafts_of(key))

    def sweep(self, key: str) -> None:
        """Remove the drafts of workers that are gone; the key is occupied, so they are of no use."""
        for draft in self._drafts_of(key):
            if not _locked(f"{draft}/intent", self.drafts):
                self._discard(draft)

    def marked(self, dispatch: Dispatch) -> Found | None:
        """Find a file that carries the key as its attribute although there is no slot: somebody has removed that."""
        path: object = dispatch.arguments.get("path")
        if isinstance(path, Redacted):
            return None
        parts = _parts(path)
        try:
            parent = self.parent(parts)
            if _owner(parts[-1], parent, self.opened) != dispatch.provider_key:
                return None
            with open(os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW, dir_fd=parent), "rb") as file:
                content = file.read()
        except OSError:
            return None
        _sync(parent)
        intent = _Intent("/".join(parts), len(content), sha256(content).hexdigest(), {})
        return Found(intent.result(), dispatch.provider_key, {"path": path}, {"attribute": _ATTRIBUTE})


class _Slot:
    """What became of one key."""

    def __init__(self, place: _Place, key: str, handle: int) -> None:
        self.place = place
        self.key = key
        self.handle = handle
        self.mine = False

    def state(self) -> str:
        """Tell what became of the key.

        The names are looked for in the order in which one turns into the next: a name that is gone has become a later one, or was
        published.
        """
        for name in ("content", "linking", "tombstone", "rejected"):
            try:
                os.stat(name, dir_fd=self.handle, follow_symlinks=False)
            except FileNotFoundError:
                continue
            return name
        return "published"

    def intent(self) -> _Intent:
        handle = os.open("intent", os.O_RDONLY, dir_fd=self.handle)
        with open(handle, "rb") as file:
            return _Intent(**json.loads(file.read()))

    def links(self) -> int:
        return os.stat("linking", dir_fd=self.handle, follow_symlinks=False).st_nlink

    def bury(self, source: str, grave: str) -> bool:
        """Take what would be published away, for ever; false if it is not there."""
        try:
            os.rename(source, grave, src_dir_fd=self.handle, dst_dir_fd=self.handle)
        except FileNotFoundError:
            return False
        handle = os.open(grave, os.O_WRONLY, dir_fd=self.handle)
        try:
            if os.fstat(handle).st_nlink == 1:
                os.ftruncate(handle, 0)  # nobody needs the bytes any more
        finally:
            os.close(handle)
        return True

    # --- asking ---

    def answer(self, dispatch: Dispatch) -> Answer:
        """Tell what became of the key, once that will survive a power cut."""
        state = self.state()
        if state in ("tombstone", "rejected"):
            self._settle()
            return self._refused(state)
        if state == "published":
            return self._receipt(dispatch)
        if _locked("intent", self.handle):
            return StillRunning("a worker has it in hand")
        if state == "linking" and self.links() > 1:
            return self._receipt(dispatch)
        if state == "linking":
            return Unavailable(
                "the worker died while it linked the file to its name. Either it did not, or the file was removed since: this file "
                "system cannot tell. Look whether anybody has seen the file, and resolve the intent by hand."
            )
        return NotFound("its content is written, but was not published yet")

    def _receipt(self, dispatch: Dispatch) -> Found:
        intent = self.intent()
        self._settle(intent.path)
        receipt = {"slot": f"{_PRIVATE}/slots/{_file_name(self.key)}", "sha256": intent.sha256}
        return Found(intent.result(), self.key, stated(intent.arguments, dispatch.arguments), receipt)

    def _settle(self, path: str | None = None) -> None:
        """Sync the slot, that it exists, and the file's name."""
        if path is not None:
            try:
                _sync(self.place.parent(_parts(path)))
            except (FileNotFoundError, NotADirectoryError):
                pass  # removed since, together with the file
        _sync(self.handle)
        if not self.mine:  # one's own is synced before it is used
            _sync(self.place.slots)

    def _refused(self, state: str) -> NotExecuted:
        where = f"{_PRIVATE}/slots/{_file_name(self.key)}/{state}"
        if state == "tombstone":
            return NotExecuted(
                "tombstoned", f"the key is occupied ({where}): the file was not created, and cannot be under this key"
            )
        return NotExecuted("rejected", f"the file could not be created, and the key was ended ({where})")

    # --- acting ---

    def publish(self, parts: list[str], dispatch: Dispatch) -> Reply:
        """Give the content its name, unless the key has met its end before."""
        _sync(self.place.slots)
        if not self.mine:
            known = self._known(dispatch)
            if known is not None:
                return known
        try:
            parent = self.place.parent(parts)
        except OSError as exc:
            return self._reject("content", f"its directory cannot be used: {exc}", exc, dispatch)
        try:
            _rename_exclusively("content", self.handle, parts[-1], parent)
        except OSError as exc:
            if exc.errno in _NO_EXCLUSIVE_RENAME:
                return self._link(parts, parent, dispatch)
            return self._failed("content", parts, parent, exc, dispatch)
        return self._published("response")

    def _known(self, dispatch: Dispatch) -> Reply | None:
        """Answer from the slot of an earlier sending; None if this one is to go on where that one died."""
        state = self.state()
        if state in ("tombstone", "rejected"):
            self._settle()
            return self._refused(state)
        wrong = differing(self.intent().arguments, dispatch.arguments)
        if wrong:
            return Unknown(f"this key was used for another file: {wrong} differ. Nothing was done now.")
        if state == "published":
            return self._published("replay")
        handle = os.open("intent", os.O_RDONLY, dir_fd=self.handle)
        self.place.opened.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Unknown("another worker has this dispatch in hand; nothing was done now. Ask again when it has ended.")
        if self.state() != "linking":
            return None
        if self.links() == 1:
            return Unknown("an earlier worker died while it linked the file to its name, and whether it did cannot be told")
        return self._unlink("replay")

    def _link(self, parts: list[str], parent: int, dispatch: Dispatch) -> Reply:
        """Publish where a rename cannot refuse to replace."""
        try:
            os.rename("content", "linking", src_dir_fd=self.handle, dst_dir_fd=self.handle)
        except OSError as exc:
            return self._failed("content", parts, parent, exc, dispatch)
        try:
            os.link("linking", parts[-1], src_dir_fd=self.handle, dst_dir_fd=parent, follow_symlinks=False)
        except OSError as exc:
            if self.links() == 1:
                return self._failed("linking", parts, parent, exc, dispatch)
        return self._unlink("response")

    def _unlink(self, basis: Literal["response", "replay"]) -> Succeeded:
        """End a publication by link: the file's name is durable before the other one goes."""
        _sync(self.place.parent(_parts(self.intent().path)))
        os.unlink("linking", dir_fd=self.handle)
        return self._published(basis)

    def _failed(self, source: str, parts: list[str], parent: int, exc: OSError, dispatch: Dispatch) -> Reply:
        """Find out what a refused publication means."""
        if isinstance(exc, FileExistsError):
            if _owner(parts[-1], parent, self.place.opened) == self.key:
                # made under this key before, by a worker whose slot somebody has removed
                self.bury(source, "duplicate")
                return self._published("replay")
            return self._reject(source, f"{'/'.join(parts)} exists already, and is not replaced", exc, dispatch)
        return self._reject(source, f"{'/'.join(parts)} could not be created: {exc}", exc, dispatch)

    def _reject(self, source: str, certificate: str, exc: OSError, dispatch: Dispatch) -> Reply:
        """End the key, which makes the refusal final; or tell who has done so, or published, in the meantime."""
        if self.bury(source, "rejected"):
            self._settle()
            return NotExecuted("rejected", certificate, {"errno": exc.errno})
        return self._known(dispatch) or Unknown(f"the slot of this key changed under the worker: {certificate}")

    def _published(self, basis: Literal["response", "replay"]) -> Succeeded:
        intent = self.intent()
        self._settle(intent.path)
        receipt = {"slot": f"{_PRIVATE}/slots/{_file_name(self.key)}", "sha256": intent.sha256}
        return Succeeded(intent.result(), receipt, basis)


# --- system calls ------------------------------------------------------------------------------------------------------------


def _sync(handle: int) -> None:
    """Return when a file, with its attributes, or a directory has survived a power cut."""
    if sys.platform == "darwin":
        OsFs().sync(handle)
    else:
        os.fsync(handle)


def _create(name: str, inside: int, mode: int, opened: ExitStack) -> int:
    handle = os.open(name, _NEW, mode, dir_fd=inside)
    opened.callback(os.close, handle)
    return handle


def _write(handle: int, content: bytes, *, attribute: str = "") -> None:
    """Write a new file and sync it."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]
    if attribute and hasattr(os, "setxattr"):
        try:
            os.setxattr(handle, _ATTRIBUTE, attribute.encode())
        except OSError:
            pass  # no attributes here, or no room for one: the slot is the receipt
    _sync(handle)


def _owner(name: str, inside: int, opened: ExitStack) -> str:
    """Return the key that a file carries as its attribute."""
    if not hasattr(os, "getxattr"):
        return ""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=inside)
        opened.callback(os.close, handle)
        return os.getxattr(handle, _ATTRIBUTE).decode() if stat.S_ISREG(os.fstat(handle).st_mode) else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _locked(name: str, inside: int) -> bool:
    """Tell whether a worker holds the lock of a file."""
    try:
        handle = os.open(name, os.O_RDONLY, dir_fd=inside)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@cache
def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """Return the C library's function, which Python does not offer; None if it lacks it."""
    import ctypes

    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function.restype = ctypes.c_int
    found: Callable[[int, bytes, int, bytes, int], int] = function
    return found


def _rename_exclusively(source: str, source_dir: int, target: str, target_dir: int) -> None:
    """Rename in one step, and fail if the target exists."""
    import ctypes

    function = _renameat2()
    if function is None:
        raise OSError(errno.ENOSYS, "this C library has no renameat2")
    if function(source_dir, os.fsencode(source), target_dir, os.fsencode(target), 1) != 0:  # 1: RENAME_NOREPLACE
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)
