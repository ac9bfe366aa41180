"""Files that are not made: names that are taken or lead elsewhere, disks that fail; nothing is replaced, and a refusal stands."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from letitloop import InvalidArgument
from letitloop.effects.intent import Redacted
from letitloop.effects.provider import NotExecuted, NotFound, Succeeded, Unavailable, Unknown
from letitloop.effects.providers import FileProvider
from letitloop.effects.providers import file as module
from tests.effects.providers.file_steps import ACTION, attempt, calls_of, steps
from tests.effects.providers.interleaving import Steps, dispatch


@pytest.mark.parametrize("what", ["file", "directory", "symlink", "dangling"])
def test_a_foreign_file_is_never_replaced(how, fresh, what):
    root = fresh()
    target = root / "a.txt"
    outside = fresh() / "outside"
    if what == "file":
        target.write_text("foreign")
    elif what == "directory":
        target.mkdir()
    else:
        if what == "symlink":
            outside.write_text("foreign")
        target.symlink_to(outside)
    before = target.lstat()
    provider = FileProvider(root)
    reply = provider.execute(ACTION)
    assert reply.kind == "rejected"
    assert "a.txt" in reply.certificate
    assert target.lstat() == before
    assert outside.exists() == (what == "symlink")
    if what != "directory":
        target.unlink()
    for answer in (provider.reconcile(ACTION), provider.tombstone(ACTION), provider.execute(ACTION)):
        assert (type(answer), answer.kind) == (NotExecuted, "rejected")


def test_a_refused_or_occupied_content_is_not_kept(how, fresh):
    root = fresh()
    (root / "a.txt").write_text("foreign")
    FileProvider(root).execute(ACTION)
    other = fresh()
    attempt("execute", other, calls_of("execute", fresh()) - 20)
    FileProvider(other).tombstone(ACTION)
    for place in (root, other):
        slot = place / ".lil" / "slots" / ACTION.provider_key
        for grave in set(os.listdir(slot)) & {"tombstone", "rejected"}:
            assert (slot / grave).stat().st_size == 0


@pytest.mark.parametrize(
    "path",
    ["", "/etc/x", "../x", "a/../../x", "a/./b", "a//b", "a/", ".", "..", ".lil/x", ".LIL/x", "a\0b", "\ud800", 5, None, b"a"],
)
def test_a_path_that_leads_elsewhere_is_refused_beforehand(fresh, path):
    root = fresh()
    with pytest.raises(InvalidArgument, match="Nothing was done"):
        FileProvider(root).validate("file", {"path": path, "content": ""})
    assert os.listdir(root) == []


@pytest.mark.parametrize(
    "arguments",
    [{"path": "a"}, {"path": "a", "content": 5}, {"path": "a", "content": "\ud800"}, {"path": "a", "content": "", "mode": 1}],
)
def test_other_arguments_are_refused_beforehand(fresh, arguments):
    with pytest.raises(InvalidArgument, match="Nothing was done"):
        FileProvider(fresh()).validate("file", arguments)


def test_directories_below_are_used_and_not_made(how, fresh):
    root = fresh()
    provider = FileProvider(root)
    (root / "in").mkdir()
    assert isinstance(provider.execute(dispatch({"operation": "file", "path": "in/a", "content": ""})), Succeeded)
    assert (root / "in" / "a").exists()
    refused = provider.execute(dispatch({"path": "out/a", "content": ""}, key="order-2"))
    assert refused.kind == "rejected"
    assert refused.detail == {"errno": errno.ENOENT}
    assert not (root / "out").exists()


def test_a_symbolic_link_to_another_directory_is_not_followed(how, fresh):
    root, outside = fresh(), fresh()
    (root / "in").symlink_to(outside)
    assert FileProvider(root).execute(dispatch({"path": "in/a", "content": ""})).kind == "rejected"
    assert os.listdir(outside) == []


def test_receipts_are_not_kept_behind_a_symbolic_link(fresh):
    root, outside = fresh(), fresh()
    (root / ".lil").symlink_to(outside)
    assert FileProvider(root).execute(ACTION).kind == "not_sent"
    assert isinstance(FileProvider(root).reconcile(ACTION), Unavailable)
    assert isinstance(FileProvider(root).tombstone(ACTION), Unavailable)
    assert os.listdir(outside) == []


def test_a_directory_that_is_removed_while_the_file_is_published(how, fresh):
    root = fresh()
    (root / "in").mkdir()
    action = dispatch({"path": "in/a", "content": ""})

    def before(count, name, args):
        if name == "renameat2":
            (root / "in").rmdir()

    with steps(before):
        reply = FileProvider(root).execute(action)
    assert reply.kind == "rejected"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_write_that_fails_has_sent_nothing(how, fresh, number):
    root = fresh()

    def before(count, name, args):
        if name == "write":
            raise OSError(number, "no")

    with steps(before):
        reply = FileProvider(root).execute(ACTION)
    assert (reply.kind, reply.detail) == ("not_sent", {"errno": number})
    assert os.listdir(root / ".lil" / "drafts") == []
    assert isinstance(FileProvider(root).reconcile(ACTION), NotFound)
    assert isinstance(FileProvider(root).execute(ACTION), Succeeded)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENAMETOOLONG, errno.EXDEV, errno.ENOSPC, errno.EIO])
def test_a_publication_that_fails_is_rejected_for_good(how, fresh, number):
    root = fresh()

    def before(count, name, args):
        if name == ("renameat2" if how == "rename" else "link"):
            raise OSError(number, "no")

    with steps(before):
        reply = FileProvider(root).execute(ACTION)
    assert (reply.kind, reply.detail) == ("rejected", {"errno": number})
    assert FileProvider(root).execute(ACTION).kind == "rejected"
    assert not (root / "a.txt").exists()


def test_a_name_that_is_too_long_is_rejected(how, fresh):
    assert FileProvider(fresh()).execute(dispatch({"path": "a" * 300, "content": ""})).kind == "rejected"


def test_a_link_whose_reply_is_an_error_counts_by_the_number_of_links(monkeypatch, fresh):
    monkeypatch.setattr(module, "_renameat2", lambda: None)
    root = fresh()

    class Lying(Steps):
        def __getattr__(self, name):
            if name == "link":

                def link(*args, **kwargs):
                    os.link(*args, **kwargs)
                    raise OSError(errno.EIO, "the reply was lost")

                return link
            return super().__getattr__(name)

    monkeypatch.setattr(module, "os", Lying(lambda *_: None))
    assert isinstance(FileProvider(root).execute(ACTION), Succeeded)
    assert (root / "a.txt").exists()


def test_another_file_under_the_same_key_is_noticed(how, fresh):
    root = fresh()
    provider = FileProvider(root)
    provider.execute(ACTION)
    other = dispatch({"path": "a.txt", "content": "other"})
    assert isinstance(provider.execute(other), Unknown)
    found = provider.reconcile(other)
    assert found.arguments["path"] == "a.txt"
    assert found.arguments["content"].startswith("sha256:")
    redacted = dispatch({"path": "a.txt", "content": Redacted("5" * 64)})
    assert provider.reconcile(redacted).arguments == {"path": "a.txt"}


def test_a_key_that_is_no_plain_name_stays_in_its_place(how, fresh):
    root = fresh()
    action = replace(ACTION, provider_key="../../x/\0", arguments={"path": "a", "content": ""})
    assert isinstance(FileProvider(root).execute(action), Succeeded)
    assert sorted(os.listdir(root)) == [".lil", "a"]
