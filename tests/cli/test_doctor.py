"""``lil doctor``: what it finds, what it calls bad, and that it changes nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from letitloop import Approval, Ledger, atomic_marker, durable, step
from letitloop.cli import doctor_checks
from letitloop.cli.doctor_checks import mount_of
from tests.cli.ledgers import at_work, elsewhere, killed, ledger_file, read_only
from tests.cli.shop import NS, act
from tests.cli.stores import data, lil
from tests.runs.helpers import kill
from tests.runs.helpers import killed as killed_in

CHECKS = "store|file system|writable|free space|ledger|age|owners|outcomes|markers|approvals|anomalies|clock|logs".split("|")


@pytest.fixture(autouse=True)
def _narrow(shop_book, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def verdicts(*words, code: int = 0) -> dict[str, str]:
    return {one["check"]: one["verdict"] for one in data("doctor", *words, code=code)["checks"]}


def finding(check: str, *words, code: int = 0) -> dict:
    (found,) = [one for one in data("doctor", *words, code=code)["checks"] if one["check"] == check]
    return found


def test_where_there_is_nothing_all_is_good_and_nothing_is_made(tmp_path):
    said = lil("doctor")
    assert "not there yet; the first run makes it" in said
    assert "none yet: the first action or marker makes" in said
    assert said.endswith("\nall good\n")
    assert data("doctor")["ok"] is True
    assert list(tmp_path.iterdir()) == []
    assert "there is no directory" in lil("doctor", "--store", tmp_path / "none", code=2)


def test_a_good_store():
    @durable(goal_id="one")
    def run():
        return step("x", int)

    run()
    act("paid")
    found = data("doctor")
    assert [one["check"] for one in found["checks"]] == CHECKS
    assert {one["verdict"] for one in found["checks"]} == {"ok"}
    assert set(found) == {"ok", "ledger", "checks"}
    assert all(set(one) == {"check", "verdict", "said", "to_do", "items"} for one in found["checks"])
    said = lil("doctor")
    assert "journal_mode=wal, synchronous=2" in said
    assert "1 run; 'lil verify' reads their checksums" in said
    assert "1 process that sent actions" in said


def test_what_waits_for_somebody_is_listed_and_is_not_bad():
    act("lost", how="lost")
    act("large", approval=Approval())
    killed("killed")
    found = data("doctor")
    assert found["ok"] is True
    assert {one["check"] for one in found["checks"] if one["verdict"] == "warn"} == {"owners", "outcomes", "approvals"}
    assert [(one["key"], one["standing"]) for one in finding("outcomes")["items"]] == [
        ("lost", "unknown"),
        ("killed", "owner gone"),
    ]
    assert [one["key"] for one in finding("approvals")["items"]] == ["large"]
    said = lil("doctor")
    assert f"{NS} lost: open: the provider raised TimeoutError: no reply in 30 s, " in said
    assert f"{NS} large: waits for an approval, " in said
    assert said.endswith("\ngood; 3 to look at\n")


def test_markers_that_were_left_open_are_listed():
    def mark(name, *, dies=False):
        with atomic_marker(name, namespace="mails") as marker:
            if dies:
                kill()
            if name == "fails":
                raise ValueError("no")
            marker.record(1)

    mark("done")
    killed_in(lambda: mark("dies", dies=True))
    with pytest.raises(ValueError, match="no"):
        mark("fails")
    found = finding("markers")
    assert (found["verdict"], [one["name"] for one in found["items"]]) == ("warn", ["dies", "fails"])
    said = lil("doctor")
    assert "dies of marker/mails: pid " in said
    assert "fails of marker/mails: left by ValueError: no" in said
    with atomic_marker("live", namespace="mails"):
        assert len(finding("markers")["items"]) == 2  # this process is inside that one


def test_an_anomaly_is_bad_and_each_is_listed(monkeypatch):
    monkeypatch.setenv("SHOP_ASKED", "wrong")  # the receipt is one for another amount
    for key in ("one", "two"):
        act(key, how="late")
        assert Ledger().get(NS, key).state == "UNKNOWN"
    found = finding("anomalies", code=1)
    assert found["verdict"] == "bad"
    assert [one["key"] for one in found["items"]] == ["one", "two"]
    assert found["items"][0]["evidence"]["what"] == "mismatch"
    assert found["items"][0]["evidence"]["receipt"] == {"id": "re_1"}
    said = lil("doctor", code=1)
    assert f"{NS} one, " in said
    assert 'what: mismatch; fields: ["amount_minor"]' in said
    assert said.endswith("\n1 bad, 1 to look at\n")


def test_a_clock_that_is_behind_is_bad():
    act("k", ledger=Ledger(clock=lambda: time.time() + 3600))
    assert finding("clock", code=1)["verdict"] == "bad"
    assert "bad  clock       it shows " in lil("doctor", code=1)


def test_a_ledger_that_was_restored_is_bad(tmp_path):
    elsewhere("act('one')")
    copy = tmp_path / "copy.db"
    shutil.copyfile(ledger_file(), copy)
    elsewhere("act('two')")
    shutil.copyfile(copy, ledger_file())
    found = finding("age", code=1)
    assert found["verdict"] == "bad"
    assert "it was restored from a copy, and has forgotten actions since" in found["said"]
    elsewhere("l = Ledger(os.environ['LETITLOOP_STORE'] + '/ledger.db', accept_restored=True); l.list()")
    assert "restored" not in finding("age")["said"]
    Path(f"{ledger_file()}-mark").write_text(f"{'0' * 32} {3:020d}\n")
    assert "another ledger lay here" in finding("age", code=1)["said"]


def test_locks_of_dead_processes_are_told_and_removed_when_asked():
    killed("k")
    folder = ledger_file().parent / "owners"
    (left,) = folder.iterdir()
    with at_work("working") as child:
        found = finding("owners")
        assert found["verdict"] == "warn"
        assert sorted(one["state"] for one in found["items"]) == ["alive", "gone"]
        assert {one["pid"] for one in found["items"] if one["state"] == "alive"} == {child.pid}
        assert left.exists()
        found = finding("owners", "--fix")
        assert found["verdict"] == "ok"
        assert "removed 1 lock file" in found["said"]
        assert not left.exists()
        assert len(list(folder.iterdir())) == 1, "the living keep theirs"
        empty = folder / "process-1-abcdef.lock"
        empty.touch()
        assert "starting" in {one["state"] for one in finding("owners", "--fix")["items"]}
        assert empty.exists(), "it is being made"
        os.utime(empty, (1, 1))
        lil("doctor", "--fix")
        assert not empty.exists()
    assert data("ledger", "show", NS, "k", code=2)["owner_alive"] is False


@pytest.mark.parametrize("harm", ["text", "journal", "page"])
def test_a_damaged_ledger_is_bad(harm):
    elsewhere("for n in range(200): act(f'k{n:03}')")
    if harm == "text":
        ledger_file().write_text("hello")
    elif harm == "journal":
        connection = sqlite3.connect(ledger_file())
        connection.execute("pragma journal_mode=delete")
        connection.close()
    else:
        raw = bytearray(ledger_file().read_bytes())
        for at in range(20 * 4096, 21 * 4096):
            raw[at] = 0xFF
        ledger_file().write_bytes(raw)
    found = finding("ledger", code=1)
    assert found["verdict"] == "bad"
    assert {"text": "cannot be read", "journal": "journal_mode=delete", "page": ""}[harm] in found["said"]


def test_a_ledger_of_markers_alone_is_good():
    with atomic_marker("m", namespace="n"):
        pass
    assert set(verdicts().values()) == {"ok"}


def test_a_ledger_of_its_own_has_no_store(tmp_path):
    own = tmp_path / "actions.db"
    act("k", how="lost", ledger=Ledger(own))
    found = verdicts("--ledger", own)
    assert list(found) == [one for one in CHECKS if one not in ("store", "logs")]
    assert found["outcomes"] == "warn"


def test_a_store_that_is_a_file_is_told(tmp_path):
    (tmp_path / "file").write_text("x")
    said = lil("doctor", "--store", tmp_path / "file", code=1)
    assert "is a file" in said


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="takes a right away from root as Linux does it")
def test_a_read_only_disk_is_bad_and_stays_as_it_is():
    elsewhere("act('k', how='lost')")
    folder = ledger_file().parent
    code = """
from tests.cli.stores import data
found = {one["check"]: one for one in data("doctor", code=1)["checks"]}
assert [name for name in found if found[name]["verdict"] == "bad"] == ["writable"], found
assert "cannot be written by this user" in found["writable"]["said"]
assert len(found["outcomes"]["items"]) == 1
"""
    read_only(folder, code)


# --- the disk ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "verdict", "told"),
    [
        ("ext4", "ok", ""),
        ("nfs4", "bad", "a network file system"),
        ("cifs", "bad", "a network file system"),
        ("fuse.sshfs", "bad", "a network file system"),
        ("fuse.encfs", "warn", "its program's affair"),
        ("fuseblk", "ok", ""),
        ("tmpfs", "warn", "nothing survives a power cut"),
        ("overlay", "warn", "a container's own layer"),
        ("", "ok", "cannot be told"),
    ],
)
def test_file_systems(kind, verdict, told, monkeypatch):
    monkeypatch.setattr(doctor_checks, "file_system", lambda _: (kind, "/srv"))
    found = finding("file system", code=int(verdict == "bad"))
    assert found["verdict"] == verdict
    assert told in found["said"]


def test_the_mount_of_a_path():
    mounts = "/dev/a / ext4 rw 0 0\nb /srv tmpfs rw 0 0\nhost:/x /srv/my\\040data nfs4 rw 0 0\nc /srv xfs rw 0 0\nodd\n"
    assert mount_of("/home/x", mounts) == ("ext4", "/")
    assert mount_of("/srv/x", mounts) == ("xfs", "/srv")
    assert mount_of("/srv/my data/x", mounts) == ("nfs4", "/srv/my data")
    assert mount_of("/srvs", mounts) == ("ext4", "/")
    assert mount_of("/srv", "") == ("", "")


@pytest.mark.parametrize(("free", "verdict"), [(1_000_000, "bad"), (100_000_000, "warn"), (10**10, "ok")])
def test_free_space(free, verdict, monkeypatch):
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert finding("free space", code=int(verdict == "bad"))["verdict"] == verdict
