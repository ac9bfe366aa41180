"""``lil ledger resolve``, ``approve``, ``deny``, ``cancel``, ``prune``, ``export``: what a person decides, and what is kept."""

from __future__ import annotations

import json
import time

import pytest

from letitloop import Ledger
from tests.cli import shop
from tests.cli.ledgers import LOST, ledger_file, state
from tests.cli.shop import NS, act, fill
from tests.cli.stores import data, lil

pytestmark = pytest.mark.usefixtures("shop_book")


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
