"""A file is made once: its content is exact, its receipt is found, what is reported is synced, its directory is the one meant."""

from __future__ import annotations

import errno
import os

import pytest

from letitloop import InvalidArgument
from letitloop.effects.provider import Found, NotFound, Succeeded, Unavailable
from letitloop.effects.providers import FileProvider
from letitloop.effects.providers import file as module
from tests.effects.providers.file_steps import ACTION, attempt, calls_of, certain, steps
from tests.effects.providers.interleaving import Crash, Steps, dispatch, handles

# --- the plain course --------------------------------------------------------------------------------------------------------


def test_a_file_is_created_and_its_receipt_found(how, fresh):
    root = fresh()
    provider = FileProvider(root)
    assert provider.reconcile(ACTION) == NotFound("nothing has claimed its key")
    reply = provider.execute(ACTION)
    digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert reply.result == {"path": "a.txt", "size": 5, "sha256": digest}
    assert reply.basis == "response"
    assert (root / "a.txt").read_bytes() == b"hello"
    assert (root / "a.txt").stat().st_nlink == 1
    found = provider.reconcile(ACTION)
    assert found == Found(reply.result, ACTION.provider_key, dict(ACTION.arguments), reply.receipt)
    assert provider.tombstone(ACTION) == found
    assert provider.execute(ACTION) == Succeeded(reply.result, reply.receipt, "replay")


@pytest.mark.parametrize("content", [b"", b"\0\xff\n", "ä\n", b"x" * 3_000_000], ids=["empty", "bytes", "text", "large"])
def test_the_content_is_exact(how, fresh, content):
    root = fresh()
    FileProvider(root).execute(dispatch({"path": "a", "content": content}))
    assert (root / "a").read_bytes() == (content.encode() if isinstance(content, str) else content)


def test_a_short_write_is_continued(fresh):
    root = fresh()

    class Short(Steps):
        def __getattr__(self, name):
            if name == "write":
                return lambda handle, data: os.write(handle, bytes(data[:2]))
            return super().__getattr__(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "os", Short(lambda *_: None))
        FileProvider(root).execute(ACTION)
    assert (root / "a.txt").read_text() == "hello"


def test_the_mode_is_the_umask_s(fresh):
    root = fresh()
    before = os.umask(0o027)
    try:
        FileProvider(root).execute(ACTION)
    finally:
        os.umask(before)
    assert (root / "a.txt").stat().st_mode & 0o777 == 0o640
    assert (root / ".lil").stat().st_mode & 0o777 == 0o700


def test_the_file_says_whose_it_is(how, fresh):
    root = fresh()
    FileProvider(root).execute(ACTION)
    try:
        carried = os.getxattr(root / "a.txt", "user.lil.intent")
    except OSError:
        pytest.skip("this file system has no attributes")
    assert carried == ACTION.provider_key.encode()


def test_without_attributes_the_slot_is_the_receipt(how, fresh):
    root = fresh()
    provider = FileProvider(root)

    def refuse(count, name, args):
        if name == "setxattr":
            raise OSError(errno.ENOTSUP, "no attributes")

    with steps(refuse):
        assert isinstance(provider.execute(ACTION), Succeeded)
    assert isinstance(provider.reconcile(ACTION), Found)
    assert isinstance(provider.tombstone(ACTION), Found)


def test_if_the_receipts_are_lost_the_attribute_still_tells(how, fresh):
    root = fresh()
    provider = FileProvider(root)
    result = provider.execute(ACTION).result
    (root / ".lil").rename(root.parent / "lost")
    assert provider.reconcile(ACTION).result == result
    assert provider.tombstone(ACTION).result == result
    reply = provider.execute(ACTION)
    assert (reply.result, reply.basis) == (result, "replay")
    assert provider.reconcile(ACTION).result == result
    assert (root / "a.txt").read_text() == "hello"


def test_a_new_attempt_after_a_tombstone_succeeds(how, fresh):
    root = fresh()
    provider = FileProvider(root)
    assert certain(provider.tombstone(ACTION))
    assert certain(provider.execute(ACTION))
    assert not (root / "a.txt").exists()
    again = dispatch(ACTION.arguments, attempt=2)
    assert isinstance(provider.execute(again), Succeeded)
    assert certain(provider.reconcile(ACTION))


def test_two_actions_for_one_name_make_one_file(how, fresh):
    root = fresh()
    provider = FileProvider(root)
    provider.execute(ACTION)
    other = dispatch({"path": "a.txt", "content": "other"}, key="order-2")
    assert provider.execute(other).kind == "rejected"
    assert (root / "a.txt").read_text() == "hello"


def test_nothing_stays_open_and_no_draft_stays(how, fresh):
    root = fresh()
    provider = FileProvider(root)
    before = handles()
    provider.reconcile(ACTION)
    provider.execute(ACTION)
    provider.execute(ACTION)
    provider.tombstone(ACTION)
    provider.tombstone(dispatch(ACTION.arguments, key="order-2"))
    provider.execute(dispatch(ACTION.arguments, key="order-3"))
    assert handles() == before
    assert os.listdir(root / ".lil" / "drafts") == []


# --- durability --------------------------------------------------------------------------------------------------------------


def test_what_is_published_is_synced_first_and_reported_when_its_name_is(how, fresh):
    root = fresh()
    log = []

    def before(count, name, args):
        if name == "fsync":
            log.append(("sync", os.path.relpath(os.readlink(f"/proc/self/fd/{args[0]}"), root)))
        elif name in ("rename", "renameat2", "link") or args == ("linking",):
            log.append((name, args[0]))

    FileProvider(root).tombstone(dispatch({"path": "other", "content": ""}, key="other"))  # makes .lil
    with steps(before):
        FileProvider(root).execute(ACTION)
    names = [(kind, os.path.basename(what)) for kind, what in log]
    claim = next(index for index, (kind, _) in enumerate(names) if kind == "rename")
    draft = names[claim][1]
    assert {("sync", "intent"), ("sync", "content"), ("sync", draft)} <= set(names[:claim])
    key = ACTION.provider_key
    published = {
        "rename": [("sync", "slots"), ("renameat2", "content"), ("sync", "."), ("sync", key)],
        "link": [
            *[("sync", "slots"), ("renameat2", "content"), ("rename", "content"), ("link", "linking"), ("sync", ".")],
            *[("unlink", "linking"), ("sync", "."), ("sync", key)],
        ],
    }
    assert names[claim + 1 :] == published[how]


def test_a_certificate_is_synced(fresh):
    root = fresh()
    synced = []

    def before(count, name, args):
        if name == "fsync":
            synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{args[0]}")))

    attempt("tombstone", root, calls_of("tombstone", fresh()) - 1)
    with steps(before):
        assert certain(FileProvider(root).tombstone(ACTION))
    assert {ACTION.provider_key, "slots"} <= set(synced)


def test_a_receipt_is_synced(fresh):
    root = fresh()
    synced = []

    def die(count, name, args):
        if synced:
            raise Crash
        if name == "renameat2":
            synced.append("next")

    def before(count, name, args):
        if name == "fsync":
            synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{args[0]}"), root))

    with steps(die), pytest.raises(Crash):
        FileProvider(root).execute(ACTION)
    assert (root / "a.txt").exists()
    with steps(before):
        assert isinstance(FileProvider(root).reconcile(ACTION), Found)
    assert synced[1:] == [".", f".lil/slots/{ACTION.provider_key}", ".lil/slots"]


def test_a_sync_that_fails_after_the_fact_leaves_it_to_the_receipt(how, fresh):
    root = fresh()

    def before(count, name, args):
        if name == "fsync" and os.readlink(f"/proc/self/fd/{args[0]}") == str(root) and (root / "a.txt").exists():
            raise OSError(errno.EIO, "a failing disk")

    with steps(before), pytest.raises(OSError, match="a failing disk"):
        FileProvider(root).execute(ACTION)
    assert isinstance(FileProvider(root).reconcile(ACTION), Found)


# --- the directory -----------------------------------------------------------------------------------------------------------


def test_identity_is_the_real_directory_and_its_device(fresh):
    root = fresh()
    (root.parent / "alias").symlink_to(root)
    provider = FileProvider(root.parent / "alias")
    assert provider.identity() == f"file/1 {root.resolve()} dev={root.stat().st_dev}"
    assert provider.identity() == FileProvider(str(root)).identity()


def test_a_directory_that_is_not_there_is_refused(fresh):
    root = fresh()
    with pytest.raises(InvalidArgument, match="Create it first"):
        FileProvider(root / "none")
    provider = FileProvider(root)
    root.rmdir()
    assert provider.execute(ACTION).kind == "not_sent"
    assert isinstance(provider.reconcile(ACTION), Unavailable)
    assert isinstance(provider.tombstone(ACTION), Unavailable)


def test_another_file_system_in_its_place_is_not_asked(fresh):
    root = fresh()
    provider = FileProvider(root)
    provider._device += 1
    assert "another file system" in provider.execute(ACTION).certificate
    assert "another file system" in provider.reconcile(ACTION).reason
    assert "another file system" in provider.tombstone(ACTION).reason
    assert os.listdir(root) == []
