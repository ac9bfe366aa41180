"""Faults built into the intent ledger, at least one for each of its invariants, and the test that must notice each.

A mutant is a replacement in the source of one or more modules below ``letitloop``. A forked process imports everything anew with
the replaced text and runs the one test; the files are untouched. A replacement that no longer fits its source fails loudly.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "core" / "src" / "letitloop"
INVARIANTS = "tests/effects/test_invariants.py::test_"


@dataclass(frozen=True)
class Mutant:
    """A fault: which invariant it breaks, what it is, the test that must notice it, and the texts it replaces."""

    invariant: str
    name: str
    test: str
    changes: tuple[tuple[str, str, str], ...]


def _m(invariant, name, test, *changes):
    return Mutant(invariant, name, test if "::" in test else INVARIANTS + test, changes)


def _in(module):
    return lambda old, new="": (f"effects/{module}.py", old, new)


drivers, file, guard, intents, journal = map(_in, ("drivers", "ledger_file", "guard", "intents", "journal"))
machine, plans, refusals, said = map(_in, ("machine", "plans", "refusals", "said"))

MUTANTS = [
    _m(
        "I1",
        "the dispatch is committed after the send",
        "i1_the_dispatch_is_committed_before_the_provider_acts",
        file('connection.execute("begin immediate")', 'connection.in_transaction or connection.execute("begin immediate")'),
        file(
            'connection.execute("commit")',
            'connection.execute("select kind from event order by seq desc").fetchone() == ("dispatched",) or '
            'connection.execute("commit")',
        ),
    ),
    _m(
        "I2",
        "an unknown outcome is sent again blindly",
        "i3_whatever_leaves_a_provider_is_no_certificate",
        machine(
            "    if row.state == UNKNOWN:\n        return Decision(Open(row))\n    if row.state == DISPATCHED:",
            "    if row.state == UNKNOWN:\n        return _dispatch(facts, row, request.caps, (), actor=APPLICATION)\n"
            "    if row.state == DISPATCHED:",
        ),
    ),
    _m(
        "I2",
        "a dead owner's dispatch is sent again",
        "i10_who_is_dead_is_not_waited_for",
        machine(
            "    if row.state == DISPATCHED:\n        return take_over(facts, row, WORKER)\n    if row.state == FAILED",
            "    if row.state == DISPATCHED and not facts.alive(row):\n"
            "        return _dispatch(facts, row._replace(state=UNKNOWN), request.caps, (), actor=APPLICATION)\n"
            "    if row.state == FAILED",
        ),
    ),
    _m(
        "I3",
        "an exception is a failure",
        "i3_whatever_leaves_a_provider_is_no_certificate",
        said(
            'return Replied(Unknown(_clean(action, f"the provider raised {told(reply.error)}")))',
            'return Replied(NotExecuted("not_sent", "it raised"))',
        ),
    ),
    _m(
        "I3",
        "an interrupted call is not recorded",
        "i3_whatever_leaves_a_provider_is_no_certificate",
        plans("        if not sending.claimed:\n            raise\n", "        raise\n"),
    ),
    _m(
        "I3",
        "any word is a certificate",
        "i3_no_other_reply_is_a_certificate",
        said(
            "    if isinstance(reply, NotExecuted) and reply.kind in _KINDS:",
            "    if isinstance(reply, NotExecuted):",
        ),
        machine("reply.kind in _CERTIFIES and (row.sends == 1", "(row.sends == 1"),
    ),
    _m(
        "I3",
        "a second sending certifies the first",
        "i3_that_the_second_sending_was_refused_certifies_nothing_of_the_first",
        machine(' and (row.sends == 1 or reply.kind == "tombstoned"):', ":"),
    ),
    _m(
        "I4",
        "what is absent has failed",
        "i4_what_is_not_found_changes_nothing",
        said(
            "return Answered(NotFound(_text(action, answer.detail)))",
            'return Answered(NotExecuted("rejected", "absent"))',
        ),
    ),
    _m(
        "I4",
        "a lookup that raises has failed",
        "i4_what_is_not_found_changes_nothing",
        said(
            'return Answered(Unavailable(_clean(action, f"{method} raised {told(answer.error)}")))',
            'return Answered(NotExecuted("rejected", "it raised"))',
        ),
    ),
    _m(
        "I5",
        "each sending has a key of its own",
        "i5_the_same_attempt_is_the_same_request",
        plans("provider_key(row.namespace, row.key, row.attempt)", "provider_key(row.namespace, row.key, row.epoch)"),
    ),
    _m(
        "I5",
        "sending again is a new attempt",
        "i5_the_same_attempt_is_the_same_request",
        machine("attempt = row.attempt + (row.state == FAILED)", "attempt = row.attempt + (row.state != PREPARED)"),
    ),
    _m(
        "I5",
        "a new attempt keeps its key",
        "i5_a_new_attempt_follows_a_certificate_and_has_a_new_key",
        machine("attempt = row.attempt + (row.state == FAILED)", "attempt = row.attempt"),
    ),
    _m(
        "I5",
        "what failed is tried again without being asked",
        "i5_a_new_attempt_follows_a_certificate_and_has_a_new_key",
        machine("if row.state == FAILED and not (row.retry or (", "if row.state == FAILED and not (True or ("),
    ),
    _m(
        "I5",
        "what is sent again is what the later caller says",
        "i5_the_same_attempt_is_the_same_request",
        plans("if self.arguments is not None and self.stored == row.arguments:", "if self.arguments is not None:"),
    ),
    _m(
        "I6",
        "it is sent again after the window",
        "i6_nothing_is_sent_again_outside_the_window",
        refusals("if now >= min(until, sent + window.seconds):", "if now > min(until, sent + window.seconds) + 10:"),
    ),
    _m(
        "I6",
        "a window's end belongs to it",
        "i6_nothing_is_sent_again_outside_the_window",
        refusals("if now >= min(until, sent + window.seconds):", "if now > min(until, sent + window.seconds):"),
    ),
    _m(
        "I6",
        "a clock that went back is believed",
        "i6_nothing_is_sent_again_outside_the_window",
        refusals("    if now < row.updated:", "    if now < 0:"),
    ),
    _m(
        "I6",
        "each sending opens a window",
        "i6_a_second_sending_does_not_move_the_window",
        machine("dispatched_at=row.dispatched_at if resent else facts.now,", "dispatched_at=facts.now,"),
        machine("key_expires_at=row.key_expires_at if resent else None if", "key_expires_at=None if"),
    ),
    _m(
        "I6",
        "everybody has a window",
        "i6_without_a_window_nothing_is_sent_again",
        refusals("if window is None or sent is None or until is None:", "if sent is None:"),
        refusals("if now >= min(until, sent + window.seconds):", "if window and now >= min(until or now, sent + window.seconds):"),
    ),
    _m(
        "I7",
        "the epoch is ignored",
        "i7_a_stale_owner_overwrites_nothing",
        machine(
            "if (row.state, row.epoch, row.attempt) != (DISPATCHED, dispatch.epoch, dispatch.attempt):",
            "if row.attempt != dispatch.attempt:",
        ),
        intents("if event.before != event.after and not allowed(", "if not event.actor and not allowed("),
    ),
    _m(
        "I7",
        "a contradiction is no anomaly",
        "i7_a_stale_owner_overwrites_nothing",
        machine(
            'anomaly = Event("anomaly", row.state, row.state, WORKER, {"what": what, **evidence})',
            "anomaly = note",
        ),
    ),
    _m(
        "I7",
        "a late word is dropped",
        "i7_a_stale_owner_overwrites_nothing",
        machine("            return Decision(Done(row), None, (note,))", "            return Decision(Done(row))"),
    ),
    _m(
        "I8",
        "a repeat asks the provider",
        "i8_a_repeat_returns_what_is_recorded",
        journal("    if row is None or row.state != SUCCEEDED:\n", "    if row is None or row.state:\n"),
        machine(
            "    if row.state == SUCCEEDED:\n        return Decision(Done(row))\n    if row.state == CANCELLED",
            "    if row.state == CANCELLED",
        ),
        intents("if event.before != event.after and not allowed(", "if not event.actor and not allowed("),
    ),
    _m(
        "I9",
        "another action is not noticed",
        "i9_another_action_is_refused_in_every_state",
        machine("    if conflict is not None:\n", "    if conflict is None and row is None:\n"),
    ),
    _m(
        "I9",
        "another action is not noticed in a replay",
        "i9_another_action_is_refused_in_a_replay",
        journal("    if conflict is not None:\n", "    if conflict is None and row is None:\n"),
    ),
    _m(
        "I9",
        "another account is the same",
        "i9_another_action_is_refused_in_every_state",
        refusals("    elif row.identity != fresh.identity:", "    elif row.identity != row.identity:"),
    ),
    _m(
        "I9",
        "another operation is the same",
        "i9_another_action_is_refused_in_every_state",
        refusals("    if row.operation != fresh.operation:", "    if row.operation != row.operation:"),
    ),
    _m(
        "I10",
        "a live owner is taken for dead",
        "i10_while_one_acts_nobody_else_does",
        machine("    if facts.alive(row):\n", "    if facts.alive(row) and not row.owner:\n"),
    ),
    _m(
        "I10",
        "an owner of another process is taken for dead",
        "i10_while_one_acts_nobody_else_does",
        intents("return row.owner is not None and ledger.working(", "return row.owner is None and ledger.working("),
    ),
    _m(
        "I10",
        "a dead owner is taken for alive",
        "i10_who_is_dead_is_not_waited_for",
        intents("return row.owner is not None and ledger.working(", "return row.owner is not None or ledger.working("),
    ),
    _m(
        "I11",
        "a group may have one more",
        "i11_a_group_has_so_many_and_comes_to_so_much",
        refusals("len(facts.group) >= fresh.max_intents:", "len(facts.group) > fresh.max_intents:"),
    ),
    _m(
        "I11",
        "a group's sum leaves the new one out",
        "i11_a_group_has_so_many_and_comes_to_so_much",
        refusals(
            "if fresh.max_sum is not None and spent + (fresh.amount or 0) > fresh.max_sum:",
            "if fresh.max_sum is not None and spent > fresh.max_sum:",
        ),
    ),
    _m(
        "I11",
        "an open outcome freezes nothing",
        "i11_one_open_outcome_freezes_its_group",
        refusals("    if blocking is not None and request.block_on_unknown:", "    if blocking is not None and not request:"),
    ),
    _m(
        "I12",
        "a tombstone is taken for set before it is",
        "i12_without_a_tombstone_nothing_is_certified",
        plans(
            '        answered = yield from _answer(action, "tombstone", dispatch)',
            '        yield from _answer(action, "tombstone", dispatch)\n'
            "        from letitloop.effects.provider import NotExecuted\n"
            "        from letitloop.effects.said import Answered as A\n\n"
            '        answered = A(NotExecuted("tombstoned", "surely"))',
        ),
    ),
    _m(
        "I13",
        "a model sees what is trusted",
        "i13_no_model_sees_or_sets_what_is_trusted",
        guard(
            "if name not in self.hidden])",
            "if name])",
        ),
    ),
    _m(
        "I14",
        "an approval is for whatever comes next",
        "i14_an_approval_is_for_these_arguments_and_once",
        refusals("    elif row.payload != fresh.payload:", '    elif row.payload != fresh.payload and row.state != "PREPARED":'),
    ),
    _m(
        "I14",
        "an approval is never used up",
        "i14_an_approval_is_for_these_arguments_and_once",
        machine('approval="consumed" if row.approval else None,', "approval=row.approval,"),
    ),
    _m(
        "I14",
        "an approval never ends",
        "i14_an_approval_ends",
        machine(
            "(row.approval_expires is None or facts.now < row.approval_expires)", "(row.approval_expires is None or facts.now)"
        ),
    ),
    _m(
        "I15",
        "a commit that fails before the dispatch is taken for one",
        "i15_what_cannot_be_recorded_is_not_sent",
        file(
            "            if isinstance(exc, (sqlite3.Error, OSError)):",
            "            if isinstance(exc, OSError):\n                return\n"
            "            if isinstance(exc, (sqlite3.Error, OSError)):",
        ),
    ),
    _m(
        "I15",
        "a handle whose commit failed goes on",
        "i15_an_outcome_that_cannot_be_recorded_is_unknown",
        intents("            ledger.poisoned = True\n", "            pass\n"),
    ),
    _m(
        "I15",
        "a commit that fails after the dispatch is an error to be handled",
        "i15_an_outcome_that_cannot_be_recorded_is_unknown",
        plans(
            "    except Exception as exc:  # of the disk\n        raise _unrecorded(sending, dispatch, exc) from exc",
            "    except Exception:\n        raise",
        ),
    ),
    _m(
        "I16",
        "a journal that is not durable will do",
        "i16_what_is_not_durable_is_refused",
        file('if mode != "wal" or level != 2:', "if not mode:"),
    ),
    _m(
        "I16",
        "commits are not synced",
        "i16_every_commit_is_synced",
        file('connection.execute("pragma synchronous=full")', 'connection.execute("pragma synchronous=normal")'),
        file('if mode != "wal" or level != 2:', 'if mode != "wal" or level < 1:'),
    ),
    _m(
        "I17",
        "a store writes any transition",
        "tests/effects/test_intent_store.py::TestInMemory::test_no_other_transition_is_written",
        intents("if event.before != event.after and not allowed(", "if not event.actor and not allowed("),
    ),
    _m(
        "I17",
        "a store tells the members of every namespace's group",
        "tests/effects/test_intent_store.py::TestInMemory::test_the_members_of_a_group_are_told",
        intents(
            '_SELECT + "where namespace=? and group_key=? and key<>?', '_SELECT + "where namespace>=? and group_key=? and key<>?'
        ),
    ),
    _m(
        "I17",
        "a ticket is never used",
        "tests/effects/test_intent_store.py::TestInMemory::test_a_ticket_is_used_once",
        intents("if done.rowcount == 1 and row.ticket is not None:", "if done.rowcount == 1 and row.ticket is None:"),
    ),
    _m(
        "I18",
        "a lost reply is tried again",
        "i18_one_call_is_one_request",
        drivers(
            "    return getattr(action.provider, order.method)(order.dispatch)",
            "    try:\n        return getattr(action.provider, order.method)(order.dispatch)\n    except ConnectionError:\n"
            "        return getattr(action.provider, order.method)(order.dispatch)",
        ),
    ),
    _m(
        "I18",
        "redirects are followed",
        "tests/effects/providers/test_http_verdicts.py::test_what_the_server_does_decides_the_verdict[307 after the commit-sync]",
        (
            "effects/providers/http_transport.py",
            "response = client.send(request, auth=None, follow_redirects=False)",
            "response = client.send(request, auth=None, follow_redirects=True)",
        ),
    ),
    _m(
        "I18",
        "an SDK may send again",
        "tests/effects/providers/test_stripe.py::test_an_sdk_that_asks_twice_is_refused",
        ("effects/providers/stripe.py", "    if exchange.started or exchange.reply is not None:\n", "    if not method:\n"),
    ),
    _m(
        "I19",
        "pruning leaves nothing",
        "i19_a_pruned_key_stays_used",
        intents(
            '            inside.executemany("insert or replace into stub values',
            '            () and inside.executemany("insert or replace into stub values',
        ),
    ),
    _m("I19", "pruning takes what is open", "i19_a_pruned_key_stays_used", intents('"failed": FAILED', '"failed": UNKNOWN')),
    _m(
        "I20",
        "a receipt of something else is a receipt",
        "i20_a_receipt_of_something_else_is_an_anomaly",
        machine("        if mismatch:\n", "        if not same:\n"),
    ),
    _m(
        "I20",
        "whoever looks alike is found",
        "i20_a_receipt_of_something_else_is_an_anomaly",
        said('wrong = [] if found.provider_key == dispatch.provider_key else ["provider_key"]', "wrong: list[str] = []"),
    ),
    _m(
        "I20",
        "the arguments of a receipt are not looked at",
        "i20_a_receipt_of_something_else_is_an_anomaly",
        said("    for name, value in found.arguments.items():", "    for name, value in ():"),
    ),
    _m(
        "",
        "a person's word undoes what is settled",
        "a_person_decides_only_what_is_open",
        machine('    if row.state != UNKNOWN:\n        return Decision(Refuse(refusals.not_open(row, "resolve"), row))\n', ""),
        intents("if event.before != event.after and not allowed(", "if not event.actor and not allowed("),
    ),
    _m("", "an older copy will do", "an_older_copy_is_noticed", file("int(high) <= newest", "int(high)")),
]


# --- running one -------------------------------------------------------------------------------------------------------------


class _Replaced(importlib.machinery.SourceFileLoader):
    """Loads a module from its file, with some texts replaced, and leaves no bytecode behind."""

    def __init__(self, name, path, changes):
        super().__init__(name, path)
        self._changes = changes

    def get_code(self, fullname):
        source = Path(self.path).read_text()
        for old, new in self._changes:
            source = source.replace(old, new)
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, changes):
        self._changes = {}
        for module, old, new in changes:
            self._changes.setdefault("letitloop." + module.removesuffix(".py").replace("/", "."), []).append((old, new))

    def find_spec(self, name, path=None, target=None):
        if name not in self._changes:
            return None
        file = str(SOURCE.parent / (name.replace(".", "/") + ".py"))
        return importlib.util.spec_from_file_location(name, file, loader=_Replaced(name, file, self._changes[name]))


def check_texts(mutant):
    """Fail if a mutant's texts do not stand in the source, once each."""
    for module, old, _ in mutant.changes:
        count = (SOURCE / module).read_text().count(old)
        assert count == 1, f"mutant {mutant.name!r}: its text stands {count} times in {module}, not once:\n{old}"


def survives(mutant):
    """Run a mutant's test against it, in a process of its own; tell whether it passes, and what was printed."""
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                code = _run(mutant)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        output.seek(0)
        text = output.read().decode(errors="replace")
    assert code in (0, 1), f"the test of mutant {mutant.name!r} did not run (exit code {code}):\n{text}"
    return code == 0, text


def _run(mutant):
    for name in list(sys.modules):
        if name.partition(".")[0] in ("letitloop", "tests"):
            del sys.modules[name]
    for name in [name for name in os.environ if name.startswith(("PYTEST_", "LETITLOOP_"))]:
        del os.environ[name]
    sys.meta_path.insert(0, _Finder(mutant.changes))
    sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115 - until the process ends
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", "--rootdir", str(ROOT)]
    code = int(pytest.main([*options, "-c", str(ROOT / "pyproject.toml"), str(ROOT / mutant.test)]))
    sys.stdout.flush()
    return code
