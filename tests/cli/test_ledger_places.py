"""``lil ledger`` beside other processes, on read-only disks, and on ledgers that are damaged, encrypted or somebody else's."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest

from letitloop import Ledger, atomic_marker
from tests.cli import shop
from tests.cli.ledgers import LOST, REFUNDS, SHOP, at_work, contents, elsewhere, killed, ledger_file, read_only
from tests.cli.shop import NS, act
from tests.cli.stores import data, lil

pytestmark = pytest.mark.usefixtures("shop_book")


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
    read_only(folder, code)


def test_looking_makes_no_file_where_it_could():
    elsewhere("fill()")
    folder = ledger_file().parent
    files = contents(folder)
    lil("ledger", "list")
    lil("ledger", "show", *LOST, code=2)
    lil("ledger", "events", *LOST)
    lil("ledger", "export")
    lil("doctor")
    assert contents(folder) == files


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
