"""``lil ledger``: what is shown of intents, what a person can do about them, and what looking leaves behind: nothing."""

from __future__ import annotations

import ctypes
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from letitloop import Ledger, UnknownOutcome, atomic_marker, durable, scope, step
from letitloop.cli import ledger_questions
from letitloop.cli.app import lil as root
from tests.cli import shop, stores
from tests.cli.shop import NS, act, fill
from tests.cli.stores import data, lil

SHOP = "tests.cli.shop"
REFUNDS = ("--provider", f"{SHOP}:refunds")
OPAQUE = ("--provider", f"{SHOP}:opaque")
LOST = (NS, "order-2/lost")
FIELDS = {
    *("namespace", "key", "state", "open", "owner_alive", "attempt", "epoch", "operation", "provider", "provider_identity"),
    *("provider_key", "arguments", "result", "receipt", "basis", "kind", "reason", "detail", "retry_authorised", "approval"),
    *("approver", "group", "compensates", "run_id", "step_key", "owner", "created", "updated", "dispatched_at"),
    *("key_expires_at", "next_check_at"),
}


@pytest.fixture(autouse=True)
def _bank(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("SHOP_BOOK", str(tmp_path / "book"))
    monkeypatch.setenv("SHOP", "")
    monkeypatch.delenv("SHOP_ASKED", raising=False)


def ledger_file() -> Path:
    return Path(os.environ["LETITLOOP_STORE"], "ledger.db")


def state(key: str) -> str:
    return Ledger().get(NS, key).state


def killed(key: str) -> None:
    """Let a process die after the bank has paid and before that is recorded."""
    code = f"from tests.cli.shop import *; act({key!r}, how='kill')"
    assert stores.python(code, check=False).returncode == -9


def elsewhere(code: str) -> None:
    """Do something in a process that ends, so that nobody has the ledger open."""
    stores.python(f"from tests.cli.shop import *\n{code}")


@contextmanager
def at_work(key: str):
    """A process that is carrying an action out; it ends when the block does."""
    code = f"from tests.cli.shop import *; act({key!r}, how='wait')"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=stores.environment()
    )
    try:
        assert child.stdout.readline() == "inside\n"
        yield child
    finally:
        child.communicate("", timeout=30)


# --- where there is no ledger ------------------------------------------------------------------------------------------------


def test_without_a_ledger_there_is_a_friendly_line_and_none_is_made(tmp_path):
    said = lil("ledger", "list")
    assert said.startswith("no ledger here yet: there is no file ")
    assert said.count("\n") == 1
    assert data("ledger", "list") == []
    assert data("ledger", "export")["intents"] == []
    assert lil("ledger", "export", "--jsonl") == ""
    assert "no ledger here yet" in lil("ledger", "prune", "--older-than", "1d", "--yes")
    assert data("ledger", "prune", "--older-than", "1d") == {"pruned": 0}
    assert "no ledger here yet" in lil("ledger", "reconcile", "--all", *REFUNDS)
    assert data("ledger", "reconcile", "--all", *REFUNDS) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        ["show"],
        ["events"],
        ["reconcile", *REFUNDS],
        ["resend", *REFUNDS],
        ["retry"],
        ["resolve", "--as", "failed", "--evidence", "x", "--by", "ada"],
        ["approve", "--by", "ada"],
        ["deny", "--by", "ada", "--reason", "x"],
        ["cancel"],
    ],
)
def test_an_intent_that_is_not_there_is_one_line(command, tmp_path):
    for more in ([], ["--ledger", tmp_path / "own.db"]):
        said = lil("ledger", command[0], NS, "nope", *command[1:], *more, code=1)
        assert said.startswith("Error: no ledger here yet: ")
        assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    act("order-1/paid")
    said = lil("ledger", command[0], NS, "nope", *command[1:], code=1)
    assert said.startswith(f"Error: there is no intent 'nope' of '{NS}' in the ledger ")
    assert said.count("\n") == 1


def test_a_store_that_is_not_there_is_a_mistake(tmp_path):
    assert "there is no directory" in lil("ledger", "list", "--store", tmp_path / "none", code=2)


def test_store_and_ledger_exclude_each_other(tmp_path):
    assert "exclude each other" in lil("ledger", "list", "--store", tmp_path, "--ledger", tmp_path / "a.db", code=2)


# --- looking -----------------------------------------------------------------------------------------------------------------


def test_the_list_shows_states_and_what_needs_somebody():
    fill()
    killed("order-6/killed")
    lines = lil("ledger", "list").splitlines()
    found = {line.split()[1]: line for line in lines[2:8]}
    assert "SUCCEEDED" in found["order-1/paid"]
    assert "FAILED" in found["order-4/rejected"]
    assert "DISPATCHED, open" in found["order-6/killed"]
    assert f"{NS} order-2/lost: open: the provider raised TimeoutError: no reply in 30 s" in lines
    assert f"{NS} order-5/large: waits for an approval" in lines
    assert any(line.startswith(f"{NS} order-6/killed: open: its owner is gone (process-") for line in lines)
    assert not any(line.startswith((f"{NS} order-1", f"{NS} order-4")) for line in lines[9:])


def test_the_list_as_json_and_its_filters():
    fill()
    act("order-9/other", ledger=Ledger(), redact=("amount_minor",))
    Ledger().run("other", "k", shop.refunds, {"amount_minor": 1})
    found = data("ledger", "list")
    assert [(one["namespace"], one["state"], one["open"]) for one in found] == [
        ("other", "SUCCEEDED", False),
        (NS, "SUCCEEDED", False),
        (NS, "UNKNOWN", True),
        (NS, "UNKNOWN", True),
        (NS, "FAILED", False),
        (NS, "PREPARED", False),
        (NS, "SUCCEEDED", False),
    ]
    assert all(set(one) == FIELDS for one in found)
    assert found[1]["arguments"] == {"amount_minor": 1200}
    assert found[1]["result"] == {"refund": "re_1", "amount": 1200}
    assert found[-1]["arguments"]["amount_minor"]["$type"] == "redacted"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found[1]["created"])
    assert [one["key"] for one in data("ledger", "list", "--state", "unknown")] == ["order-2/lost", "order-3/opaque"]
    assert [one["key"] for one in data("ledger", "list", "--namespace", "other")] == ["k"]
    assert "holds no such intents" in lil("ledger", "list", "--namespace", "none")
    lil("ledger", "list", "--state", "odd", code=2)


@pytest.mark.parametrize("width", [20, 40, 60, 70, 80, 100, 140])
def test_no_width_of_a_terminal_breaks_a_name(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    fill()
    killed("order-6/killed")
    said = lil("ledger", "list")
    for key in ("order-1/paid", "order-2/lost", "order-3/opaque", "order-4/rejected", "order-5/large", "order-6/killed"):
        assert key in said
    table = said.partition("\n\n")[0].splitlines()
    assert width < 50 or all(len(line.rstrip()) <= width for line in table)
    assert "DISPATCHED, open" in said
    for key in ("order-2/lost", "order-4/rejected"):
        assert "TimeoutError" in lil("ledger", "events", NS, key) or key != "order-2/lost"


def test_show_says_how_it_stands_and_what_can_be_done():
    fill()
    killed("order-6/killed")
    said = lil("ledger", "show", NS, "order-6/killed", code=2)
    assert said.startswith("order-6/killed  DISPATCHED  (open: its owner is gone)\n")
    assert f"lil ledger reconcile {NS} order-6/killed --provider MODULE:NAME" in said
    assert f"lil ledger resend {NS} order-6/killed" in said
    assert f"lil ledger resolve {NS} order-6/killed --as succeeded|failed" in said
    said = lil("ledger", "show", *LOST, code=2)
    assert "reason      the provider raised TimeoutError: no reply in 30 s" in said
    assert "lil ledger resend" not in lil("ledger", "show", NS, "order-3/opaque", code=2)
    said = lil("ledger", "show", NS, "order-1/paid")
    assert 'result      {"refund": "re_1", "amount": 1200}' in said
    assert "next " not in said
    said = lil("ledger", "show", NS, "order-4/rejected")
    assert r"reason      rejected: 402 card \x1b[31mdeclined" in said
    assert f"lil ledger retry {NS} order-4/rejected" in said
    said = lil("ledger", "show", NS, "order-5/large")
    assert "approval    pending" in said
    assert f"lil ledger approve {NS} order-5/large --by NAME" in said
    assert data("ledger", "show", NS, "order-6/killed", code=2)["owner_alive"] is False


def test_what_is_redacted_is_shown_as_redacted():
    Ledger().run(NS, "k", shop.refunds, {"amount_minor": 5, "card": "4242 4242"}, redact=("card",))
    said = lil("ledger", "show", NS, "k")
    assert "card = (redacted: a hash is kept)" in said
    assert "4242" not in said
    mark = data("ledger", "show", NS, "k")["arguments"]["card"]
    assert mark["$type"] == "redacted"
    assert re.fullmatch("[0-9a-f]{64}", mark["sha256"])


def test_a_name_that_would_control_a_terminal_is_escaped():
    Ledger().run("a b", "k\x1b[2J", shop.refunds, {"amount_minor": 5})
    for said in (lil("ledger", "list"), lil("ledger", "show", "a b", "k\x1b[2J"), lil("ledger", "events", "a b", "k\x1b[2J")):
        assert "\x1b" not in said


def test_the_history_is_played_back():
    fill()
    lil("ledger", "resolve", *LOST, "--as", "failed", "--evidence", "not on the statement", "--by", "ada")
    found = data("ledger", "events", *LOST)
    assert [(one["kind"], one["before"], one["after"]) for one in found] == [
        ("prepared", None, "PREPARED"),
        ("dispatched", "PREPARED", "DISPATCHED"),
        ("unknown", "DISPATCHED", "UNKNOWN"),
        ("checked", "UNKNOWN", "UNKNOWN"),
        ("resolved", "UNKNOWN", "FAILED"),
    ]
    assert (found[-1]["actor"], found[-1]["evidence"]) == ("human ada", "not on the statement")
    assert set(found[0]) == {
        *("seq", "namespace", "key", "at", "kind", "before", "after", "attempt", "epoch", "actor", "evidence"),
    }
    said = lil("ledger", "events", *LOST)
    assert "not on the statement" in said
    assert "human ada" in said


def test_arguments_of_a_class_that_is_not_known_here_are_shown_and_can_be_resolved():
    code = """
from dataclasses import make_dataclass
import sys, types
sys.modules["gone"] = types.ModuleType("gone")
sys.modules["gone"].Price = make_dataclass("Price", [("n", int)])
Price = sys.modules["gone"].Price
Price.__module__ = "gone"
try: Ledger().run(NS, "k", opaque, {"amount_minor": Price(3)})
except BaseException as error: assert "may or may not" in str(error), error
"""
    stores.python("from tests.cli.shop import *\n" + code, SHOP="lost")
    assert data("ledger", "list")[0]["arguments"]["amount_minor"]["fields"] == {"n": 3}
    assert "gone:Price" in lil("ledger", "show", NS, "k", code=2)
    said = lil("ledger", "reconcile", NS, "k", *OPAQUE, code=1)
    assert "Error: the arguments of 'k' cannot be read here" in said
    lil("ledger", "resolve", NS, "k", "--as", "failed", "--evidence", "seen", "--by", "ada")
    assert data("ledger", "show", NS, "k")["state"] == "FAILED"


def test_a_shell_completes_namespaces_and_keys():
    fill()
    Ledger().run("other", "k", shop.refunds, {"amount_minor": 1})
    shell = ShellComplete(root, {}, "lil", "_LIL_COMPLETE")
    assert [one.value for one in shell.get_completions(["ledger", "show"], "sh")] == [NS]
    assert [one.value for one in shell.get_completions(["ledger", "show", NS], "order-1")] == ["order-1/paid"]
    assert [one.value for one in shell.get_completions(["ledger", "show", "other"], "")] == ["k"]


# --- asking the provider -----------------------------------------------------------------------------------------------------


def test_a_receipt_settles_what_a_dead_process_left_and_nothing_is_sent():
    killed("order-6/killed")
    said = lil("ledger", "reconcile", NS, "order-6/killed", *REFUNDS)
    assert said == f"{NS} order-6/killed: SUCCEEDED, by receipt\n"
    assert len(shop.book()) == 1
    assert data("ledger", "show", NS, "order-6/killed")["receipt"] == {"id": "re_1"}
    said = lil("ledger", "reconcile", NS, "order-6/killed", *REFUNDS)
    assert "nobody was asked, for it was not open" in said


def test_what_stays_unknown_exits_with_2(monkeypatch):
    fill()
    assert "still UNKNOWN: not found, which proves nothing" in lil("ledger", "reconcile", *LOST, *REFUNDS, code=2)
    monkeypatch.setenv("SHOP_ASKED", "down")
    assert "still UNKNOWN: unavailable: connection refused" in lil("ledger", "reconcile", *LOST, *REFUNDS, code=2)
    found = data("ledger", "reconcile", *LOST, *REFUNDS, code=2)
    assert (found["state"], found["open"]) == ("UNKNOWN", True)
    assert "cannot be asked" in lil("ledger", "reconcile", NS, "order-3/opaque", *OPAQUE, code=2)


def test_all_that_are_open_at_the_providers_account_are_asked_about():
    fill()
    killed("order-6/killed")
    said = lil("ledger", "reconcile", "--all", *REFUNDS, code=2)
    assert re.search(rf"^{NS} order-2/lost: still UNKNOWN", said, re.MULTILINE)
    assert re.search(rf"^{NS} order-6/killed: SUCCEEDED, by receipt", said, re.MULTILINE)
    assert "order-3" not in said
    assert "order-1" not in said
    assert [one["key"] for one in data("ledger", "reconcile", "--all", *REFUNDS, code=2)] == ["order-2/lost"]
    lil("ledger", "resolve", *LOST, "--as", "failed", "--evidence", "x", "--by", "ada")
    assert "no intent of bank/1 acct_1 is open." in lil("ledger", "reconcile", "--all", *REFUNDS)
    assert data("ledger", "reconcile", "--all", *REFUNDS) == []


def test_watching_asks_again_when_it_is_worth_while_and_ends_when_nothing_is_open(monkeypatch):
    act("order-2/lost", how="lost")  # it has been asked about once; the next time is a second later
    pauses = []
    sleep = time.sleep

    def waits(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            shop.enter(Ledger().get(*LOST).provider_key, 1200)
        sleep(seconds)

    monkeypatch.setattr(ledger_questions.time, "sleep", waits)
    said = lil("ledger", "reconcile", "--all", "--watch", *REFUNDS)
    assert "still UNKNOWN: not found" in said
    assert "; asked again " in said
    assert said.endswith("SUCCEEDED, by receipt\n")
    assert len(pauses) <= 4, "no busy loop"
    assert sum(pauses) > 1


def test_watching_gives_up_what_cannot_be_asked():
    act("order-3/opaque", shop.opaque, how="lost")
    assert "cannot be asked" in lil("ledger", "reconcile", "--all", "--watch", *OPAQUE, code=2)


def test_ctrl_c_ends_watching(monkeypatch):
    act("order-2/lost", how="lost")

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger_questions.time, "sleep", interrupted)
    found = lil("ledger", "reconcile", "--all", "--watch", "--json", *REFUNDS, code=130)
    assert json.loads(found[: found.rindex("]") + 1])[0]["state"] == "UNKNOWN"


def test_one_intent_or_all():
    for words in ([], ["--all", NS, "k"], [NS]):
        assert "NS and KEY" in lil("ledger", "reconcile", *words, *REFUNDS, code=2)


def test_a_provider_that_acts_in_async_code_alone_is_asked_too():
    async def main():
        with pytest.raises(UnknownOutcome):
            await Ledger().arun(NS, "k", shop.in_loop, {"amount_minor": 3})

    import asyncio

    asyncio.run(main())
    lil("ledger", "reconcile", NS, "k", "--provider", f"{SHOP}:in_loop", code=2)
    shop.enter(Ledger().get(NS, "k").provider_key, 3)
    lil("ledger", "reconcile", NS, "k", "--provider", f"{SHOP}:in_loop")
    assert state("k") == "SUCCEEDED"


def test_another_provider_is_refused():
    act("order-2/lost", how="lost")
    said = lil("ledger", "reconcile", *LOST, *OPAQUE, code=1)
    assert "with provider 'bank/1 acct_1'" in said
    assert said.count("\n") == 1


# --- which provider ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--provider", "no_such_module_here:x"], "importing it failed: ModuleNotFoundError: No module named"),
        (["--provider", f"{SHOP}:nope"], "has no nope"),
        (["--provider", f"{SHOP}:number"], "it is int, and no provider"),
        (["--provider", f"{SHOP}:fail"], "making it failed: OSError: no credentials"),
        (["--provider", f"{SHOP}:"], "it is MODULE:NAME"),
        (["--provider", "unheard"], "no provider is registered as 'unheard'"),
        (["--provider", "bank", "--import", "no_such_module_here"], "--import no_such_module_here: importing it failed"),
    ],
)
def test_a_provider_that_cannot_be_had_is_one_line(words, told):
    act("order-2/lost", how="lost")
    said = lil("ledger", "reconcile", *LOST, *words, code=1)
    assert said.startswith("Error: --")
    assert told in said
    assert said.count("\n") == 1
    assert len(data("ledger", "events", *LOST)) == 4, "nothing was done"


@pytest.mark.parametrize("words", [["--provider", f"{SHOP}:make"], ["--provider", "bank", "--import", SHOP]])
def test_a_provider_may_be_made_or_registered(words):
    killed("k")
    lil("ledger", "reconcile", NS, "k", *words)


def test_a_module_in_the_current_directory_is_found(tmp_path):
    killed("k")
    (tmp_path / "payments_here.py").write_text("from tests.cli.shop import refunds\n")
    command = [sys.executable, "-P"] if sys.version_info >= (3, 11) else [sys.executable]
    done = subprocess.run(
        [
            *command,
            "-c",
            "from letitloop.cli import main; main()",
            "ledger",
            "reconcile",
            NS,
            "k",
            "--provider",
            "payments_here:refunds",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=stores.environment(),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{NS} k: SUCCEEDED, by receipt\n"), done.stderr


# --- sending, and trying again -----------------------------------------------------------------------------------------------


def test_an_open_intent_is_sent_again_inside_the_window(monkeypatch):
    act("order-2/lost", how="lost")
    monkeypatch.setenv("SHOP", "lost")
    said = lil("ledger", "resend", *LOST, *REFUNDS, code=2)
    assert "may or may not have happened" in said
    monkeypatch.setenv("SHOP", "")
    assert lil("ledger", "resend", *LOST, *REFUNDS) == f"{NS} order-2/lost: UNKNOWN -> SUCCEEDED; by response\n"
    found = data("ledger", "show", *LOST)
    assert (found["attempt"], found["state"]) == (1, "SUCCEEDED")
    assert shop.book() == [[found["provider_key"], 1200]]


def test_without_a_window_nothing_is_sent_again():
    act("order-3/opaque", shop.opaque, how="lost")
    assert "declares no window" in lil("ledger", "resend", NS, "order-3/opaque", *OPAQUE, code=2)
    assert shop.book() == []


def test_what_certainly_did_not_happen_may_be_tried_again(monkeypatch):
    act("order-4/rejected", how="reject")
    said = lil("ledger", "retry", NS, "order-4/rejected", "--by", "ada")
    assert "attempt 2 is allowed: the program's next call makes it" in said
    assert data("ledger", "show", NS, "order-4/rejected")["retry_authorised"] is True
    assert data("ledger", "events", NS, "order-4/rejected")[-1]["actor"] == "human ada"
    monkeypatch.setenv("SHOP", "reject")
    said = lil("ledger", "retry", NS, "order-4/rejected", *REFUNDS, code=1)
    assert "attempt 2, certainly did not happen" in said
    monkeypatch.setenv("SHOP", "lost")
    lil("ledger", "retry", NS, "order-4/rejected", *REFUNDS, code=2)
    monkeypatch.setenv("SHOP", "")
    lil("ledger", "resolve", NS, "order-4/rejected", "--as", "failed", "--evidence", "x", "--by", "ada")
    found = data("ledger", "retry", NS, "order-4/rejected", *REFUNDS)
    assert (found["state"], found["attempt"]) == ("SUCCEEDED", 4)
    assert "Only what certainly did not happen" in lil("ledger", "retry", NS, "order-4/rejected", code=1)


# --- what a person decides ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--as", "failed", "--by", "ada"], 2),
        (["--as", "failed", "--by", "ada", "--evidence", "  "], 1),
        (["--as", "failed", "--by", "", "--evidence", "seen"], 1),
        (["--as", "failed", "--evidence", "seen"], 2),
        (["--as", "perhaps", "--by", "ada", "--evidence", "seen"], 2),
        (["--by", "ada", "--evidence", "seen"], 2),
    ],
)
def test_without_evidence_and_a_name_nothing_is_resolved(words, code):
    act("order-2/lost", how="lost")
    lil("ledger", "resolve", *LOST, *words, code=code)
    assert state("order-2/lost") == "UNKNOWN"


@pytest.mark.parametrize(("content", "kept"), [(b'{"id": 7}', {"id": 7}), (b"line 3\n", "line 3\n"), (b"\xff\xfe", b"\xff\xfe")])
def test_a_resolution_keeps_evidence_receipt_and_result(content, kept, tmp_path):
    act("order-2/lost", how="lost")
    (tmp_path / "receipt").write_bytes(content)
    (tmp_path / "result").write_text('{"refund": "re_9"}')
    more = ("--receipt", tmp_path / "receipt", "--result", tmp_path / "result")
    said = lil("ledger", "resolve", *LOST, "--as", "succeeded", "--evidence", "on the statement", "--by", "ada", *more)
    assert said == f"{NS} order-2/lost: UNKNOWN -> SUCCEEDED; resolved by ada: on the statement\n"
    found = Ledger().get(*LOST)
    assert (found.receipt, found.basis) == (kept, "human")
    assert Ledger().run(*LOST, shop.refunds, {"amount_minor": 1200}, operation="refund") == {"refund": "re_9"}
    again = lil("ledger", "resolve", *LOST, "--as", "failed", "--evidence", "x", "--by", "ada", code=1)
    assert "Only an outcome that is unknown can be resolved" in again


def test_an_approval_is_granted_and_denied():
    fill()
    act("order-7/large", approval=shop.Approval())
    act("order-8/large", approval=shop.Approval())
    said = lil("ledger", "approve", NS, "order-5/large", "--by", "ada")
    assert "refund is approved by ada; the program's next call sends it" in said
    assert act("order-5/large", approval=shop.Approval(ttl="1h")) == ""
    assert "CANCELLED; denied by bob: too much" in lil("ledger", "deny", NS, "order-7/large", "--by", "bob", "--reason", "too much")
    assert "CANCELLED" in lil("ledger", "cancel", NS, "order-8/large", "--reason", "not wanted")
    found = data("ledger", "show", NS, "order-8/large")
    assert (found["state"], found["reason"]) == ("CANCELLED", "not wanted")
    assert "Only what was never sent" in lil("ledger", "cancel", NS, "order-1/paid", code=1)
    assert "Only what waits for an approval" in lil("ledger", "approve", NS, "order-1/paid", "--by", "ada", code=1)


# --- pruning and exporting ---------------------------------------------------------------------------------------------------


def test_pruning_says_what_and_asks():
    old = Ledger(clock=lambda: time.time() - 100 * 86400)
    for number in range(3):
        act(f"old-{number}", shop.opaque, ledger=old)
    act("old-open", shop.opaque, how="lost", ledger=old)
    act("new", shop.opaque)
    said = lil("ledger", "prune", "--older-than", "90d", code=2)
    assert "This would prune 3 intents (3 SUCCEEDED), the oldest settled 100 d ago" in said
    assert len(data("ledger", "list")) == 5
    lil("ledger", "prune", "--older-than", "ninety", code=2)
    assert data("ledger", "prune", "--older-than", "90d", "--namespace", "other", "--yes") == {"pruned": 0}
    assert lil("ledger", "prune", "--older-than", "90d", "--yes") == "pruned 3 intents; their keys stay used.\n"
    assert [one["key"] for one in data("ledger", "list")] == ["new", "old-open"]
    assert "was SUCCEEDED, and was pruned" in lil("ledger", "show", NS, "old-1", code=1)
    assert "nothing is to be pruned" in lil("ledger", "prune", "--older-than", "90d")


def test_what_pruning_announces_is_what_it_does(monkeypatch):
    old = Ledger(clock=lambda: time.time() - 100 * 86400)
    act("settled", shop.opaque, ledger=old)
    act("in its window")
    act("taken back", shop.opaque)
    act("takes back", shop.opaque, ledger=old, compensates=(NS, "taken back"))
    monkeypatch.setenv("SHOP_ASKED", "wrong")
    act("odd", how="late", ledger=old)
    lil("ledger", "resolve", NS, "odd", "--as", "succeeded", "--evidence", "x", "--by", "ada")
    kept = {"in its window", "taken back", "takes back", "odd"}
    said = lil("ledger", "prune", "--older-than", "90d", code=2)
    assert "This would prune 1 intent (1 SUCCEEDED)" in said
    assert data("ledger", "prune", "--older-than", "90d", "--yes") == {"pruned": 1}
    assert {one["key"] for one in data("ledger", "list")} == kept


def test_pruning_on_a_terminal_may_be_refused(monkeypatch):
    act("old", shop.opaque, ledger=Ledger(clock=lambda: time.time() - 100 * 86400))
    from letitloop.cli import ledger

    monkeypatch.setattr(ledger, "_is_terminal", lambda: True)
    lil("ledger", "prune", "--older-than", "90d", input="n\n", code=1)
    assert len(data("ledger", "list")) == 1
    lil("ledger", "prune", "--older-than", "90d", input="y\n")
    assert data("ledger", "list") == []


def test_the_export_holds_everything():
    fill()
    act("old", shop.opaque, ledger=Ledger(clock=lambda: time.time() - 100 * 86400))
    lil("ledger", "prune", "--older-than", "90d", "--yes")
    found = json.loads(lil("ledger", "export"))
    assert (found["format"], found["version"], found["ledger"]) == ("letitloop-ledger-export", 1, str(ledger_file()))
    assert [one["key"] for one in found["intents"]] == [one["key"] for one in data("ledger", "list")]
    assert found["pruned"] == [{"namespace": NS, "key": "old", "state": "SUCCEEDED"}]
    for one in found["intents"]:
        assert one["events"] == data("ledger", "events", one["namespace"], one["key"])
    lines = [json.loads(line) for line in lil("ledger", "export", "--jsonl").splitlines()]
    assert lines[:-1] == found["intents"]
    assert lines[-1] == {"namespace": NS, "key": "old", "state": "SUCCEEDED", "pruned": True}


# --- processes, disks, and other ledgers -------------------------------------------------------------------------------------


def test_what_another_process_is_carrying_out_is_left_to_it():
    with at_work("k") as child:
        found = data("ledger", "show", NS, "k")
        assert (found["state"], found["open"], found["owner_alive"]) == ("DISPATCHED", False, True)
        assert found["owner"].startswith(f"process-{child.pid}-")
        assert f"{NS} k: under way: " in lil("ledger", "list")
        said = lil("ledger", "reconcile", NS, "k", *REFUNDS, code=1)
        assert "which is alive. It was not started again" in said
        resolved = lil("ledger", "resolve", NS, "k", "--as", "failed", "--evidence", "x", "--by", "ada", code=1)
        assert "which is alive" in resolved
        assert lil("ledger", "reconcile", "--all", *REFUNDS) == "no intent of bank/1 acct_1 is open.\n"
    assert data("ledger", "show", NS, "k")["state"] == "SUCCEEDED"
    assert len(shop.book()) == 1


def _without_rights() -> None:
    """Make a root that may not write everywhere, as a user may not: called in a child before it begins."""
    if os.geteuid() == 0:
        assert ctypes.CDLL(None).prctl(24, 1, 0, 0, 0) == 0  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="takes a right away from root as Linux does it")
@pytest.mark.parametrize("left", ["nothing", "a log", "a log without its index"])
def test_a_read_only_disk_is_enough_to_look(left):
    elsewhere("fill()")
    killed("order-6/killed")
    folder = ledger_file().parent
    if left == "nothing":
        connection = sqlite3.connect(ledger_file())
        connection.execute("pragma wal_checkpoint(truncate)")
        connection.close()
        assert not Path(f"{ledger_file()}-wal").exists()
    elif left != "a log":
        Path(f"{ledger_file()}-shm").unlink()
    files = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    code = f"""
import sys
from tests.cli.stores import data, lil
try: open({str(folder / "new")!r}, "w")
except OSError: pass
else: sys.exit("this disk can be written")
assert [one["state"] for one in data("ledger", "list")] == ["SUCCEEDED", "UNKNOWN", "UNKNOWN", "FAILED", "PREPARED", "DISPATCHED"]
assert "its owner is gone" in lil("ledger", "show", "{NS}", "order-6/killed", code=2)
assert [one["kind"] for one in data("ledger", "events", "{NS}", "order-6/killed")] == ["prepared", "dispatched"]
assert len(data("ledger", "export")["intents"]) == 6
assert "cannot be used" in lil("ledger", "cancel", "{NS}", "order-5/large", code=1)
"""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=stores.environment(),
            timeout=60,
            check=False,
            preexec_fn=_without_rights,
        )
        assert done.returncode == 0, done.stderr
        assert {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()} == files
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_looking_makes_no_file_where_it_could():
    elsewhere("fill()")
    folder = ledger_file().parent
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    lil("ledger", "list")
    lil("ledger", "show", *LOST, code=2)
    lil("ledger", "events", *LOST)
    lil("ledger", "export")
    lil("doctor")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


def test_a_ledger_of_its_own(tmp_path):
    own = tmp_path / "actions.db"
    act("k", how="lost", ledger=Ledger(own))
    assert [one["key"] for one in data("ledger", "list", "--ledger", own)] == ["k"]
    assert data("ledger", "list") == []
    lil("ledger", "resolve", NS, "k", "--as", "failed", "--evidence", "x", "--by", "ada", "--ledger", own)
    assert Ledger(own).get(NS, "k").state == "FAILED"


@pytest.mark.parametrize("harm", ["text", "foreign", "newer", "directory"])
def test_a_ledger_that_cannot_be_read_is_one_line(harm):
    elsewhere("fill()")
    match harm:
        case "text":
            ledger_file().write_text("hello")
        case "directory":
            ledger_file().unlink()
            ledger_file().mkdir()
        case _:
            connection = sqlite3.connect(ledger_file())
            connection.execute("pragma user_version=99" if harm == "newer" else "pragma application_id=7")
            connection.close()
    told = {"newer": "it is a newer ledger (version 99)", "foreign": "it is no ledger of letitloop"}.get(harm, "")
    for command in (["list"], ["show", *LOST], ["events", *LOST], ["export"]):
        said = lil("ledger", *command, code=1)
        assert "ledger.db cannot be read: " + told in said
        assert said.count("\n") == 1


def test_a_ledger_with_markers_alone_holds_no_intents():
    with atomic_marker("m", namespace="n"):
        pass
    assert data("ledger", "list") == []
    assert "holds no intents" in lil("ledger", "list")


def test_an_encrypted_ledger_is_written_by_its_own_cipher_alone(tmp_path):
    own = tmp_path / "secret.db"
    act("k", how="lost", ledger=Ledger(own, cipher=shop.Xor()))
    where = ("--ledger", own)
    words = (NS, "k", "--as", "failed", "--evidence", "seen", "--by", "ada", *where)
    assert data("ledger", "show", NS, "k", *where, code=2)["arguments"]["$type"] == "unreadable"
    assert "(unreadable: " in lil("ledger", "show", NS, "k", *where, code=2)
    said = lil("ledger", "resolve", *words, code=1)
    assert "are encrypted, or damaged. Nothing was changed" in said
    cipher = ("--cipher", f"{SHOP}:Xor")
    assert data("ledger", "show", NS, "k", *where, *cipher, code=2)["arguments"] == {"amount_minor": 1200}
    lil("ledger", "reconcile", NS, "k", *REFUNDS, *where, *cipher, code=2)
    lil("ledger", "resolve", *words, *cipher)
    assert Ledger(own, cipher=shop.Xor()).events(NS, "k")[-1].evidence == "seen"


# --- intents in runs ---------------------------------------------------------------------------------------------------------


def test_a_run_shows_the_intents_that_were_begun_in_it(monkeypatch):
    monkeypatch.setenv("SHOP", "lost")

    @durable(goal_id="paying")
    def run():
        os.environ["SHOP"] = ""
        Ledger().run(NS, "order-1/a#b", shop.refunds, {"amount_minor": 1})
        with scope("branch"):
            Ledger().run(NS, "inner", shop.refunds, {"amount_minor": 2})
        with atomic_marker("mark"):
            pass
        step("between", int)
        os.environ["SHOP"] = "lost"
        Ledger().run(NS, "open", shop.refunds, {"amount_minor": 3})

    with pytest.raises(UnknownOutcome):
        run()
    found = data("show", "paying")
    statuses = {one["step"]: one["status"] for one in found["steps"] if one["status"] not in ("ok", "failed")}
    assert statuses == {"order-1%2Fa%23b": "succeeded", "branch/inner": "succeeded", "mark": "done", "open": "unknown"}
    assert {one["key"]: one["open"] for one in found["intents"]} == {"order-1/a#b": False, "inner": False, "open": True}
    assert list(found["markers"]) == ["mark"]
    said = lil("show", "paying")
    assert f"intent {NS} open: open: the provider raised TimeoutError: no reply in 30 s" in said
    assert "1 intent of unknown outcome, see below" in said
    assert "effect" not in said


def test_an_intent_that_another_run_began_is_known_too():
    def of(goal):
        @durable(goal_id=goal)
        def run():
            return Ledger().run(NS, "shared", shop.refunds, {"amount_minor": 1})

        return run

    of("first")()
    of("second")()
    for goal in ("first", "second"):
        assert [one["status"] for one in data("show", goal)["steps"]] == ["succeeded", "ok"]


# --- the page ----------------------------------------------------------------------------------------------------------------


def test_every_command_of_the_group_is_on_the_page_with_its_options():
    text = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    body = text.partition("\n## lil ledger\n")[2].partition("\n## ")[0]
    group = root.get_command(click.Context(root), "ledger")
    assert isinstance(group, click.Group)
    for name in group.list_commands(click.Context(group)):
        assert f"`lil ledger {name}" in body
        command = group.get_command(click.Context(group), name)
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        assert [option for option in options if f"{option}`" not in body and f"{option} " not in body] == []
        assert "as_json" in [parameter.name for parameter in command.params]
