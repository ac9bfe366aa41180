"""``lil demo crash``, called as a person calls it: real processes that really die, counted again from what they leave."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from letitloop import Ledger
from letitloop.cli import app
from letitloop.cli.demo import crash_play
from letitloop.cli.demo.crash_child import DEATH, refunds_at
from letitloop.cli.demo.service import Service, Terms
from tests.cli.demos import lil, offline, on_terminal

FILES = {"actions.db", "service.jsonl", "evidence.json", "report.html"}
AFTER = {"receipt": ("result", "SUCCEEDED", "receipt", 1), "opaque": ("UNKNOWN", "UNKNOWN", None, 0)}


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def check(evidence: dict, directory: Path, first: int = 1) -> None:
    """Hold evidence against the service's log and the ledger in the directory."""
    assert (evidence["demo"], evidence["ok"], evidence["differences"]) == ("crash", True, [])
    assert (evidence["directory"], evidence["ledger"]) == (str(directory), str(directory / "actions.db"))
    assert [one["provider"] for one in evidence["cases"]] == list(AFTER)
    ledger = Ledger(directory / "actions.db")
    pids = set()
    for number, one in enumerate(evidence["cases"], first):
        outcome, state, basis, asked = AFTER[one["provider"]]
        intent = ledger.get(one["namespace"], one["key"])
        assert one["key"] == f"order-{number}/refund-1"
        assert (intent.state, intent.basis, intent.attempt) == (state, basis, 1)
        assert [event.kind for event in ledger.events(one["namespace"], one["key"])].count("dispatched") == 1
        assert (one["first"]["status"], one["second"]["status"], one["second"]["outcome"]) == (DEATH, 0, outcome)
        assert (one["between"]["intent"]["state"], one["between"]["intent"]["owner_alive"]) == ("DISPATCHED", False)
        assert (one["between"]["effects"], one["posts"], one["effects"], one["lookups"]) == (1, 1, 1, asked)
        log = [entry for entry in lines(directory / "service.jsonl") if entry["key"] == intent.provider_key]
        assert log == one["service_log"]
        assert [entry["request"] for entry in log] == ["POST"] + ["GET"] * asked
        assert [entry["effect"] for entry in log] == ["re_1"] + [None] * asked
        pids |= {one["first"]["pid"], one["second"]["pid"]}
    assert len(pids) == 4
    assert evidence["cases"][0]["second"]["result"]["id"] == "re_1"
    ledger.close()


def test_it_dies_and_goes_on_and_leaves_all_to_be_looked_at(tmp_path):
    place = tmp_path / "new" / "crash"
    done = lil("demo", "crash", "--directory", place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    for text in (
        "reconciled by receipt",
        "UNKNOWN, nothing sent",
        "DISPATCHED, owner gone",
        f"exit {DEATH}",
        "OK: one effect each",
    ):
        assert text in done.stdout
    assert {file.name for file in place.iterdir()} >= FILES
    evidence = json.loads((place / "evidence.json").read_text())
    check(evidence, place)

    page = offline((place / "report.html").read_text(encoding="utf-8"))
    picture = page.texts["text"]
    assert (picture.count("POST"), picture.count("GET receipt"), picture.count(f"exit {DEATH}")) == (2, 1, 2)
    assert sum(text.startswith("paid re_") for text in picture) == 2
    assert "1 effect, reconciled by receipt" in picture
    assert "1 effect, UNKNOWN, nothing sent" in picture
    assert page.texts["pre"][0].splitlines() == evidence["commands"]

    # the commands that it prints do what they say
    printed = [line.strip() for line in done.stdout.splitlines() if line.startswith("  lil ")]
    assert printed == evidence["commands"]
    *looking, resolve = (shlex.split(line)[1:] for line in printed)
    states = [one["state"] for one in json.loads(lil(*looking[0], "--json").stdout)]
    assert states == ["SUCCEEDED", "UNKNOWN"]
    histories = [[event["kind"] for event in json.loads(lil(*command, "--json").stdout)] for command in looking[1:]]
    assert histories[0] == [event["kind"] for event in evidence["cases"][0]["events"]]
    assert (histories[1][-1], evidence["cases"][1]["events"][-1]["after"]) == ("takeover", "UNKNOWN")
    assert lil(*resolve).returncode == 0
    assert Ledger(place / "actions.db").get("shop-1", "order-2/refund-1").basis == "human"


def test_the_same_directory_again_adds_to_what_is_there(tmp_path):
    for first in (1, 3):
        done = lil("demo", "crash", "--directory", tmp_path, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        evidence = json.loads(done.stdout)
        assert evidence == json.loads((tmp_path / "evidence.json").read_text())
        check(evidence, tmp_path, first)
    assert len(lines(tmp_path / "service.jsonl")) == 6


def test_without_a_directory_it_keeps_a_temporary_one(tmp_path):
    done = lil("demo", "crash", "--json", "--no-report", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    evidence = json.loads(done.stdout)
    (place,) = tmp_path.iterdir()
    check(evidence, place)
    assert evidence["report"] is None
    assert not (place / "report.html").exists()


def test_a_directory_of_somebody_else_s_is_left_alone(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "actions.db").write_bytes(b"mine")
    (tmp_path / "file").write_text("")
    for bad, message in ((other, "holds files that are not of this demo"), (tmp_path / "file", "is a file")):
        done = CliRunner().invoke(app.lil, ["demo", "crash", "--directory", str(bad)])
        assert done.exit_code == 2, done.output
        assert message in " ".join(done.stderr.split())
    assert [file.name for file in other.iterdir()] == ["actions.db"]
    for text in ("[]", "{", '{"demo": "http"}'):
        (other / "evidence.json").write_text(text)
        assert CliRunner().invoke(app.lil, ["demo", "crash", "--directory", str(other)]).exit_code == 2


@pytest.mark.parametrize("columns", [80, 50])
def test_on_a_terminal(columns, tmp_path):
    shown = on_terminal(columns, "demo", "crash", "--directory", tmp_path / "d")
    table = [line for line in shown if line and line[0] in "┏┃┡│└"]
    assert len(table) > 9
    assert max(map(len, table)) <= columns
    text = " ".join(" ".join(shown).split())
    assert "died; then reconciled by receipt" in text or columns < 80
    assert "OK: one effect each" in text


# --- its assertions can fail -------------------------------------------------------------------------------------------------


def crash(directory: Path) -> tuple[int, str, dict]:
    done = CliRunner().invoke(app.lil, ["demo", "crash", "--directory", str(directory)])
    evidence = directory / "evidence.json"
    return done.exit_code, done.output, json.loads(evidence.read_text()) if evidence.exists() else {}


def test_a_second_process_that_sends_again_is_told(tmp_path, monkeypatch):
    run = crash_play._run

    def forgetful(arguments, expected):
        """Give the second process a ledger that knows nothing."""
        if expected == 0:
            arguments = [f"{one}-2" if one.endswith("actions.db") else one for one in arguments]
        return run(arguments, expected)

    monkeypatch.setattr(crash_play, "_run", forgetful)
    code, said, evidence = crash(tmp_path)
    assert (code, evidence["ok"]) == (1, False)
    for about in ("provider with a receipt", "opaque provider"):
        for what in ("POSTs", "effects"):
            assert f"- {about}: {what} by the service's log: 2 instead of 1" in said
    assert "OK: one effect" not in said
    page = offline((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "Not as it should be" in page.texts["div"]
    assert "FAILED" in page.texts["td"]
    assert any(text.startswith("2 effects") for text in page.texts["text"])


def test_a_receipt_that_cannot_be_had_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(crash_play, "Terms", lambda receipts, replies_lost: Terms(receipts="down", replies_lost=replies_lost))
    code, said, evidence = crash(tmp_path)
    assert code == 1
    assert "- provider with a receipt: the second process was told: UNKNOWN instead of result" in said
    assert [one["effects"] for one in evidence["cases"]] == [1, 1]


def test_a_first_process_that_does_not_die_is_told(tmp_path, monkeypatch):
    run = crash_play._run
    monkeypatch.setattr(crash_play, "_run", lambda arguments, expected: run([a for a in arguments if a != "--dies"], expected))
    code, said, _ = crash(tmp_path)
    assert code == 1
    assert "ended with status 0; it wrote:\n(nothing)" in said


def test_a_process_that_fails_is_told_with_what_it_wrote(tmp_path, monkeypatch):
    run = crash_play._run
    monkeypatch.setattr(crash_play, "_run", lambda arguments, expected: run(["--no-such-option", *arguments], expected))
    code, said, _ = crash(tmp_path)
    assert code == 1
    assert "--no-such-option" in said


def test_a_process_that_is_stuck_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(crash_play, "TIMEOUT", 0.0)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    done = CliRunner().invoke(app.lil, ["demo", "crash"])
    assert done.exit_code == 1
    assert "did not end within 0 s" in done.stderr
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stderr.split("process ")[1].split()[0]), 0)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_ctrl_c_leaves_no_process_and_no_directory(name, tmp_path):
    code = (
        "import os, signal, subprocess\n"
        "real = subprocess.Popen.communicate\n"
        "def communicate(self, *args, **kwargs):\n"
        "    print(self.pid, flush=True)\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "    return real(self, *args, **kwargs)\n"
        "subprocess.Popen.communicate = communicate\n"
        "from letitloop.cli import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "crash", "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 128 + signal.Signals[name]
    assert "Traceback" not in done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout.split()[0]), 0)
    assert list(tmp_path.iterdir()) == []


# --- the provider of the child -----------------------------------------------------------------------------------------------


def test_the_child_s_provider_tells_nothing_found_from_out_of_order(tmp_path):
    make = partial(refunds_at, account="a", receipts=True)
    with (
        Service({"a": Terms(receipts="yes", replies_lost=0), "b": Terms(receipts="down")}) as service,
        Ledger(tmp_path / "l.db") as ledger,
    ):
        provider = make(service.url("a"))
        assert ledger.run("n", "k", provider, {"order": "o", "amount_minor": 5})["id"] == "re_1"
        assert make("http://127.0.0.1:1").identity() == provider.identity()  # whatever the port: it is the same account
        dispatch = _dispatch("q" * 40)
        assert type(provider.reconcile(dispatch)).__name__ == "NotFound"
        assert "503" in make(service.url("b")).reconcile(dispatch).reason


def _dispatch(key: str):
    from letitloop.effects.provider import Dispatch

    return Dispatch("n", "k", 1, 1, key, "refund", {"order": "o", "amount_minor": 5}, 0.0)
