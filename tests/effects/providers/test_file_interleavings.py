"""Worker, reconciler and consumer of one file at every system call of each other, and after a crash at every one: all agree."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from letitloop.effects.provider import Found, NotExecuted, NotFound, StillRunning, Succeeded, Unavailable, Unknown
from letitloop.effects.providers import FileProvider
from letitloop.effects.providers import file as module
from tests.effects.providers.file_steps import ACTION, at, attempt, calls_of, certain, steps
from tests.effects.providers.interleaving import Crash

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
