"""``lil demo http``, called as a person calls it; what it claims is counted again from the service's own log."""

from __future__ import annotations

import http.client
import json
import sys
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

from letitloop.cli import app
from letitloop.cli.demo import http_play
from letitloop.cli.demo.http_play import STRATEGIES, blind_retry
from letitloop.cli.demo.service import CLOSED, Service, Terms
from tests.cli.demos import lil, offline, on_terminal

CLAIMED = {"blind": (2, 2), "native": (2, 1), "receipt": (1, 1), "unknown": (1, 1)}  # POSTs, effects


def check(evidence: dict) -> dict[str, dict]:
    """Hold evidence against the service's log in it; return the strategies by name."""
    assert (evidence["demo"], evidence["ok"], evidence["differences"]) == ("http", True, [])
    found = {one["strategy"]: one for one in evidence["strategies"]}
    assert list(found) == list(CLAIMED)
    for name, one in found.items():
        log = one["service_log"]
        assert {entry["account"] for entry in log} == {name}
        sent = [entry for entry in log if entry["request"] == "POST"]
        assert (len(sent), sum(entry["effect"] is not None for entry in log)) == CLAIMED[name]
        assert (one["posts"], one["effects"], one["lookups"]) == (*CLAIMED[name], len(log) - len(sent))
        assert sent[0]["effect"] == "re_1"
        assert sent[0]["reply"] == CLOSED
        assert all(one["ok"] and one["expected"] == one["found"] for one in one["checks"])
    return found


def test_four_strategies_side_by_side(tmp_path):
    report = tmp_path / "lost.html"
    begin = time.monotonic()
    done = lil("demo", "http", "--report", report)
    assert time.monotonic() - begin < 20
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    for line in (
        "blind retry: 2 POSTs, 2 effects",
        "native idempotency key: 2 POSTs, 1 effect",
        "letitloop, receipt: 1 POST, 1 effect",
        "letitloop, lookup down: 1 POST, 1 effect",
        "UNKNOWN; a repeat: blocked",
        "OK: every assertion holds against the service's own log.",
        f"Report: {report}",
        f"Evidence: {tmp_path}/lost.evidence.json",
    ):
        assert line in done.stdout
    found = check(json.loads((tmp_path / "lost.evidence.json").read_text()))
    page = offline(report.read_text(encoding="utf-8"))
    picture = page.texts["text"]
    assert picture.count("POST") == sum(one["posts"] for one in found.values())
    assert picture.count("GET receipt") == sum(one["lookups"] for one in found.values())
    assert sum(text.startswith("paid re_") for text in picture) == sum(one["effects"] for one in found.values())
    assert [text for text in picture if "effect" in text] == ["2 effects", "1 effect", "1 effect", "1 effect; a repeat is blocked"]
    assert "Every assertion holds against the service's own log" in page.texts["div"]
    assert "FAILED" not in page.texts["td"]


def test_the_evidence_tells_what_each_caller_and_the_ledger_knew(tmp_path):
    done = lil("demo", "http", "--json", TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    evidence = json.loads(done.stdout)
    assert (evidence["report"], evidence["evidence"]) == (None, None)
    found = check(evidence)
    assert list(tmp_path.iterdir()) == []

    assert found["blind"]["told"]["result"]["id"] == "re_2"
    assert found["native"]["told"]["result"]["id"] == "re_1"
    for name in ("blind", "native"):
        assert found[name]["intent"] is None
        assert (found[name]["told"]["tries"], len(found[name]["told"]["errors"])) == (2, 1)

    receipt, unknown = found["receipt"], found["unknown"]
    assert (receipt["told"]["outcome"], receipt["told"]["result"]["id"], receipt["told"]["tries"]) == ("result", "re_1", 1)
    assert (receipt["intent"]["state"], receipt["intent"]["basis"]) == ("SUCCEEDED", "receipt")
    assert receipt["told"]["repeat"] == "the recorded result"
    assert receipt["lookups"] == 1  # and none for the repeat
    assert (unknown["told"]["outcome"], unknown["told"]["repeat"]) == ("UNKNOWN", "blocked")
    assert (unknown["intent"]["state"], unknown["intent"]["open"]) == ("UNKNOWN", True)
    for one in (receipt, unknown):
        assert [event["kind"] for event in one["events"]].count("dispatched") == 1
        assert {entry["key"] for entry in one["service_log"]} == {one["intent"]["provider_key"]}


# --- its assertions can fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (0, {"terms": Terms(replies_lost=0)}, "blind retry: effects by the service's log: 1 instead of 2"),
        (0, {"terms": Terms(replies_lost=9)}, "blind retry: the caller was told: error instead of result"),
        (1, {"act": blind_retry}, "native idempotency key: effects by the service's log: 2 instead of 1"),
        (1, {"terms": Terms()}, "native idempotency key: effects by the service's log: 2 instead of 1"),
        (2, {"act": blind_retry}, "letitloop, receipt: POSTs by the service's log: 2 instead of 1"),
        (2, {"act": blind_retry}, "letitloop, receipt: state in the ledger: None instead of SUCCEEDED"),
        (2, {"terms": Terms(receipts="none")}, "letitloop, receipt: the caller was told: UNKNOWN instead of result"),
        (2, {"terms": Terms(receipts="yes", replies_lost=0)}, "what that rests on: response instead of receipt"),
        (3, {"act": blind_retry}, "letitloop, lookup down: effects by the service's log: 2 instead of 1"),
        (3, {"terms": Terms(receipts="yes")}, "letitloop, lookup down: the caller was told: result instead of UNKNOWN"),
    ],
)
def test_a_strategy_that_misbehaves_is_told(number, change, message, monkeypatch, tmp_path):
    changed = [*STRATEGIES]
    changed[number] = replace(changed[number], **change)
    monkeypatch.setattr(http_play, "STRATEGIES", changed)
    report = tmp_path / "r.html"
    done = CliRunner().invoke(app.lil, ["demo", "http", "--report", str(report)])
    assert done.exit_code == 1, done.output
    assert f"- {message}" in done.stdout or message in done.stdout
    assert "NOT OK:" in done.stdout
    assert "OK: every" not in done.stdout
    evidence = json.loads((tmp_path / "r.evidence.json").read_text())
    assert not evidence["ok"]
    assert any(message in difference for difference in evidence["differences"])
    page = offline(report.read_text(encoding="utf-8"))
    assert "Not as it should be" in page.texts["div"]
    assert "FAILED" in page.texts["td"]
    done = CliRunner().invoke(app.lil, ["demo", "http", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["ok"]) == (1, False)


# --- the command -------------------------------------------------------------------------------------------------------------


def test_without_httpx_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    done = CliRunner().invoke(app.lil, ["demo", "http"])
    assert done.exit_code == 1
    assert done.stderr == 'Error: lil demo http needs httpx. Install it: pip install "letitloop[http]"\n'


@pytest.mark.parametrize("report", ["no/r.html", ".", ""])
def test_a_report_that_cannot_be_written_is_refused_before_anything_is_sent(report, monkeypatch, tmp_path):
    monkeypatch.setattr(http_play, "perform", None)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app.lil, ["demo", "http", "--report", report])
    assert done.exit_code == 2, done.output
    assert "cannot be written" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_documents_of_these_names_are_documents_where_they_are_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("http", "crash"):
        (tmp_path / name).write_bytes(b"\0\1\2")
        for arguments in (["brief", name], [f"./{name}"]):
            done = CliRunner().invoke(app.lil, ["demo", *arguments])
            assert (done.exit_code, "is a binary file" in done.stderr) == (2, True)


@pytest.mark.parametrize("columns", [80, 50])
def test_on_a_terminal(columns):
    lines = on_terminal(columns, "demo", "http")
    assert max(map(len, lines)) <= columns
    text = " ".join(" ".join(lines).split())
    assert "2 POSTs, 2 effects" in text
    assert "OK: every assertion holds against the service's own log." in text
    assert "Traceback" not in text


# --- the service -------------------------------------------------------------------------------------------------------------


def ask(url: str, method: str, path: str, key: str = "") -> tuple[int, dict | None]:
    connection = http.client.HTTPConnection(url.split("/")[2], timeout=30)
    headers = {"Idempotency-Key": key} if key else {}
    connection.request(method, f"/{url.rpartition('/')[2]}{path}", b'{"amount_minor": 5}' if method == "POST" else None, headers)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply.status, json.loads(body) if body else None


def test_the_service_commits_before_it_loses_the_reply(tmp_path):
    file = tmp_path / "log.jsonl"
    with Service({"a": Terms(receipts="yes")}, file) as service:
        with pytest.raises(http.client.RemoteDisconnected):
            ask(service.url("a"), "POST", "/refunds", "k")
        assert ask(service.url("a"), "GET", "/refunds/k") == (200, {"id": "re_1", "key": "k", "amount_minor": 5})
        assert ask(service.url("a"), "GET", "/refunds/q") == (404, None)
        assert ask(service.url("a"), "POST", "/refunds", "k")[1]["id"] == "re_2"  # no key is honoured that was not promised
        log = service.log("a")
    assert [json.loads(line) for line in file.read_text().splitlines()] == log
    assert [(entry["n"], entry["effect"], entry["reply"]) for entry in log] == [
        (1, "re_1", CLOSED),
        (2, None, 200),
        (3, None, 404),
        (4, "re_2", 201),
    ]


def test_the_service_keeps_accounts_apart_and_refuses_what_it_does_not_know():
    terms = Terms(honours_keys=True, replies_lost=0)
    with Service({"a": terms, "b": replace(terms, receipts="down")}) as service:
        for account in ("a", "b"):
            for _ in range(2):
                assert ask(service.url(account), "POST", "/refunds", "k")[1]["id"] == "re_1"
        assert ask(service.url("a"), "GET", "/refunds/k") == (404, None)
        assert ask(service.url("b"), "GET", "/refunds/k") == (503, None)
        for method, path in (("POST", "/refunds/k"), ("GET", "/refunds"), ("POST", "/charges"), ("GET", "/")):
            assert ask(service.url("a"), method, path) == (404, None)
        assert ask(service.url("c"), "POST", "/refunds") == (404, None)
        assert [entry["effect"] for entry in service.log("a")] == ["re_1", None, None]
        assert service.log("c") == []
