"""Files made once: every interleaving of worker, reconciler and consumer at every system call, every crash, every refusal."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

from letitloop import InvalidArgument
from letitloop.effects.intent import Redacted
from letitloop.effects.provider import Found, NotExecuted, NotFound, StillRunning, Succeeded, Unavailable, Unknown
from letitloop.effects.providers import FileProvider
from letitloop.effects.providers import file as module
from tests.effects.providers.interleaving import Crash, Steps, dispatch

ACTION = dispatch({"path": "a.txt", "content": "hello"})


@pytest.fixture(params=["rename", "link"])
def how(request, monkeypatch):
    """Both ways of publishing: with a rename that refuses to replace, and where the file system has none."""
    if request.param == "link":
        monkeypatch.setattr(module, "_renameat2", lambda: None)
    return request.param


@pytest.fixture
def fresh(tmp_path):
    """Makes new, empty directories."""
    made = []

    def make():
        made.append(tmp_path / f"d{len(made)}")
        made[-1].mkdir()
        return made[-1]

    return make


@contextmanager
def steps(before):
    """Run ``before`` ahead of each system call of the provider."""
    watched = Steps(before)
    with pytest.MonkeyPatch.context() as patch:
        exclusive = watched.wrap("renameat2", module._rename_exclusively)
        patch.setattr(module, "os", watched)
        patch.setattr(module, "fcntl", watched)
        patch.setattr(module, "_rename_exclusively", exclusive)
        yield watched


def at(step, act):
    def before(count, name, args):
        if count == step:
            act()

    return before


def crash():
    raise Crash


def calls_of(verb, directory):
    """Count the system calls of one verb."""
    with steps(lambda *_: None) as watched:
        getattr(FileProvider(directory), verb)(ACTION)
    assert watched.count > 15
    return watched.count


def handles():
    return len(os.listdir("/proc/self/fd"))


def attempt(verb, directory, step):
    """Let one verb end at one of its system calls."""
    with steps(at(step, crash)), pytest.raises(Crash):
        getattr(FileProvider(directory), verb)(ACTION)


def certain(answer):
    return isinstance(answer, NotExecuted) and answer.kind == "tombstoned"


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


# --- a worker that sleeps, and others meanwhile ------------------------------------------------------------------------------


def test_a_tombstone_at_any_call_of_a_worker_is_final(how, fresh):
    seen = set()
    for step in range(calls_of("execute", fresh())):
        root = fresh()
        answers = []
        with steps(at(step, lambda root=root, answers=answers: answers.append(FileProvider(root).tombstone(ACTION)))):
            reply = FileProvider(root).execute(ACTION)
        (answer,) = answers
        made = (root / "a.txt").exists()
        seen.add(type(answer))
        if certain(answer):
            assert not made, step
            assert isinstance(reply, NotExecuted), step
            assert certain(FileProvider(root).reconcile(ACTION)), step
        else:
            assert made, step
            assert isinstance(reply, Succeeded), step
            assert isinstance(FileProvider(root).reconcile(ACTION), Found), step
            assert isinstance(answer, Found if how == "rename" else (Found, StillRunning)), step
        assert os.listdir(root / ".lil" / "drafts") == [], step
    assert {NotExecuted, Found} <= seen


def test_a_worker_at_any_call_of_a_tombstone_gets_the_same_answer(how, fresh):
    seen = set()
    for step in range(calls_of("tombstone", fresh())):
        root = fresh()
        replies = []
        with steps(at(step, lambda root=root, replies=replies: replies.append(FileProvider(root).execute(ACTION)))):
            answer = FileProvider(root).tombstone(ACTION)
        (reply,) = replies
        seen.add(type(reply))
        made = (root / "a.txt").exists()
        assert made == isinstance(answer, Found) == isinstance(reply, Succeeded), step
        assert made != certain(answer), step
        assert made != isinstance(reply, NotExecuted), step
    assert {Succeeded, NotExecuted} <= seen


def test_the_same_dispatch_at_any_call_of_a_worker_makes_no_second_file(how, fresh):
    """A consumer takes each file away at once, so that the name itself refuses nothing."""
    for step in range(calls_of("execute", fresh())):
        root = fresh()
        taken = []

        def second(root=root, taken=taken):
            taken.append(FileProvider(root).execute(ACTION))
            if (root / "a.txt").exists():
                (root / "a.txt").unlink()
                taken.append("taken")

        with steps(at(step, second)):
            first = FileProvider(root).execute(ACTION)
        assert taken.count("taken") + (root / "a.txt").exists() == 1, step
        assert Succeeded in (type(first), type(taken[0])), step
        assert all(isinstance(reply, (Succeeded, Unknown)) for reply in (first, taken[0])), step
        assert isinstance(FileProvider(root).reconcile(ACTION), Found), step


def test_a_reader_at_any_call_of_a_worker_never_says_no(how, fresh):
    order = [NotFound, StillRunning, Found]
    seen = []
    for step in range(calls_of("execute", fresh())):
        root = fresh()
        with steps(at(step, lambda root=root: seen.append(FileProvider(root).reconcile(ACTION)))):
            assert isinstance(FileProvider(root).execute(ACTION), Succeeded), step
    kinds = [type(answer) for answer in seen]
    assert kinds == sorted(kinds, key=order.index)
    assert set(kinds) == set(order)


def test_a_tombstone_at_any_call_of_a_reader_is_not_taken_for_a_receipt(how, fresh):
    """The worker has died with its content in the slot, which turns into something else while it is looked at."""

    def died():
        root = fresh()

        def before(count, name, args):
            if name == "renameat2":
                raise Crash

        with steps(before), pytest.raises(Crash):
            FileProvider(root).execute(ACTION)
        return root

    total = calls_of("reconcile", died())
    for verb, right in (("tombstone", certain), ("execute", lambda answer: isinstance(answer, Found))):
        for step in range(total):
            root = died()
            with steps(at(step, lambda root=root, verb=verb: getattr(FileProvider(root), verb)(ACTION))):
                answer = FileProvider(root).reconcile(ACTION)
            assert isinstance(answer, NotFound) or right(answer), (verb, step)


def test_threads_agree(how, fresh):
    for _ in range(20):
        root = fresh()
        gate = threading.Barrier(6)

        def party(verb, root=root, gate=gate):
            provider = FileProvider(root)
            gate.wait()
            return getattr(provider, verb)(ACTION)

        with ThreadPoolExecutor(6) as pool:
            replies = list(pool.map(party, ["execute", "tombstone"] * 3))
        made = (root / "a.txt").exists()
        final = FileProvider(root).tombstone(ACTION)
        assert made == isinstance(final, Found)
        assert made != certain(final)
        for reply in replies:
            assert not isinstance(reply, NotExecuted) or not made
            assert not isinstance(reply, (Succeeded, Found)) or made


# --- a process that dies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consumer", [False, True], ids=["stays", "taken"])
def test_after_a_crash_at_any_call_a_tombstone_tells_the_truth(how, fresh, consumer):
    for step in range(calls_of("execute", fresh())):
        root = fresh()
        attempt("execute", root, step)
        made = (root / "a.txt").exists()
        if made and consumer:
            (root / "a.txt").unlink()
        answer = FileProvider(root).tombstone(ACTION)
        again = FileProvider(root).execute(ACTION)
        if how == "rename":
            assert isinstance(answer, Found) == made, step
            assert certain(answer) != made, step
        elif made:
            assert isinstance(answer, (Found, Unavailable)), step
        if isinstance(answer, Found):
            assert isinstance(again, Succeeded), step
        elif certain(answer):
            assert certain(again), step
        else:
            assert isinstance(again, Unknown), step
        assert (root / "a.txt").exists() == (made and not consumer), step
        assert os.listdir(root / ".lil" / "drafts") == [], step


@pytest.mark.parametrize("consumer", [False, True], ids=["stays", "taken"])
def test_after_a_crash_at_any_call_a_resend_makes_one_file(how, fresh, consumer):
    for step in range(calls_of("execute", fresh())):
        root = fresh()
        attempt("execute", root, step)
        made = (root / "a.txt").exists()
        if made and consumer:
            (root / "a.txt").unlink()
        reply = FileProvider(root).execute(ACTION)
        if how == "rename" or not isinstance(reply, Unknown):
            assert isinstance(reply, Succeeded), step
            assert (root / "a.txt").exists() == (not (made and consumer)), step
            assert isinstance(FileProvider(root).tombstone(ACTION), Found), step
        else:
            assert isinstance(FileProvider(root).tombstone(ACTION), Unavailable), step


def test_after_a_crash_at_any_call_a_reader_tells_the_truth(how, fresh):
    for step in range(calls_of("execute", fresh())):
        root = fresh()
        attempt("execute", root, step)
        made = (root / "a.txt").exists()
        answer = FileProvider(root).reconcile(ACTION)
        assert isinstance(answer, Found if made else (NotFound, Unavailable)), step


def test_after_a_tombstone_that_crashed_at_any_call_all_agree(how, fresh):
    for step in range(calls_of("tombstone", fresh())):
        root = fresh()
        attempt("tombstone", root, step)
        reply = FileProvider(root).execute(ACTION)
        answer = FileProvider(root).tombstone(ACTION)
        made = (root / "a.txt").exists()
        assert made == isinstance(reply, Succeeded) == isinstance(answer, Found), step
        assert made != certain(answer), step


def test_a_worker_that_a_consumer_overtook_is_still_found(how, fresh):
    root = fresh()
    provider = FileProvider(root)
    provider.execute(ACTION)
    (root / "a.txt").unlink()
    assert isinstance(provider.tombstone(ACTION), Found)
    assert provider.execute(ACTION).basis == "replay"
    assert not (root / "a.txt").exists()


def test_only_where_links_are_needed_a_taken_file_may_leave_it_unknown(monkeypatch, fresh):
    monkeypatch.setattr(module, "_renameat2", lambda: None)
    root = fresh()

    def before(count, name, args):
        if name == "unlink" and args == ("linking",):
            raise Crash

    with steps(before), pytest.raises(Crash):
        FileProvider(root).execute(ACTION)
    assert isinstance(FileProvider(root).reconcile(ACTION), Found)
    (root / "a.txt").unlink()
    assert "resolve the intent by hand" in FileProvider(root).tombstone(ACTION).reason
    assert isinstance(FileProvider(root).execute(ACTION), Unknown)


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


# --- refusals ----------------------------------------------------------------------------------------------------------------


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
