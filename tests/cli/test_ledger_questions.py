"""``lil ledger reconcile``, ``resend``, ``retry``: whom they ask, what they send, and what stays unknown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import pytest

from letitloop import Ledger, UnknownOutcome
from letitloop.cli import ledger_questions
from tests.cli import shop, stores
from tests.cli.ledgers import LOST, OPAQUE, REFUNDS, SHOP, killed, state
from tests.cli.shop import NS, act, fill
from tests.cli.stores import data, lil

pytestmark = pytest.mark.usefixtures("shop_book")


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


PROGRAMS = {
    "an action": "Ledger().run(NS, 'new', refunds, {'amount_minor': 1})",
    "an action in async code": "asyncio.run(Ledger().arun(NS, 'new', refunds, {'amount_minor': 1}))",
    "a run": "durable(goal_id='job')(lambda: step('pay', pay, 1, idempotency_key='new'))()",
    "a marker": "with atomic_marker('m', namespace='n') as m: pay(1, idempotency_key='new')",
}


@pytest.mark.parametrize("verb", ["reconcile", "resend"])
@pytest.mark.parametrize("what", PROGRAMS)
def test_a_module_that_does_something_when_it_is_imported_does_nothing(tmp_path, monkeypatch, what, verb):
    """Most scripts do their work at the top: to ask about an action is no reason to send another."""
    act("order-2/lost", how="lost")
    monkeypatch.syspath_prepend(tmp_path)
    head = "import asyncio\nfrom letitloop import *\nfrom tests.cli.shop import NS, pay, refunds\n"
    name = f"program_{list(PROGRAMS).index(what)}_{verb}"
    (tmp_path / f"{name}.py").write_text(head + PROGRAMS[what] + "\n")
    (tmp_path / f"{name}_kept.py").write_text(head + f"if __name__ == '__main__':\n    {PROGRAMS[what]}\n")
    before = shop.book()
    said = lil("ledger", verb, *LOST, "--provider", f"{name}:refunds", code=1)
    assert "if __name__ == '__main__'" in said
    assert f"of module '{name}' was about to begin" in said
    assert (shop.book(), len(data("ledger", "events", *LOST))) == (before, 4)
    lil("ledger", "reconcile", *LOST, "--provider", f"{name}_kept:refunds", code=None)
    assert len(data("ledger", "events", *LOST)) > 4


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
