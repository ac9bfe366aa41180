"""``lil ledger list``, ``show``, ``events``: what is shown of intents, of their history, and where there is no ledger."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from letitloop import Ledger, UnknownOutcome, atomic_marker, durable, scope, step
from letitloop.cli.app import lil as root
from tests.cli import shop, stores
from tests.cli.ledgers import LOST, OPAQUE, REFUNDS, killed
from tests.cli.shop import NS, act, fill
from tests.cli.stores import data, lil

pytestmark = pytest.mark.usefixtures("shop_book")

FIELDS = {
    *("namespace", "key", "state", "open", "owner_alive", "attempt", "epoch", "operation", "provider", "provider_identity"),
    *("provider_key", "arguments", "result", "receipt", "basis", "kind", "reason", "detail", "retry_authorised", "approval"),
    *("approver", "group", "compensates", "run_id", "step_key", "owner", "created", "updated", "dispatched_at"),
    *("key_expires_at", "next_check_at"),
}


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
