"""``lil demo brief``, called as a person calls it: real processes, a real SIGKILL, counts from evidence."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from letitloop import Ledger
from letitloop.cli import app
from letitloop.cli.demo import brief_child, lives, outcome, stage
from letitloop.cli.demo.command import demo as demo_group
from letitloop.cli.demo.documents import Section
from letitloop.cli.demo.lives import ChildFailed, Life
from letitloop.cli.demo.outcome import Outcome, Run
from letitloop.cli.demo.receiver import Delivery, Receiver
from letitloop.cli.demo.report import page
from letitloop.cli.demo.witness import Witness
from tests.cli.demos import lil, offline

FIELDS = {
    "demo",
    "ok",
    "differences",
    "sections",
    "sections_left_out",
    "kill",
    "lives",
    "log",
    "replayed",
    "ran_again",
    "repeated",
    "resume_seconds",
    "interrupted",
    "uninterrupted",
    "brief_sha256",
    "brief",
    "store",
    "directory",
    "report",
}


def demo(*arguments, **kwargs) -> dict:
    done = lil("demo", "--json", *arguments, **kwargs)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "voyage.md"
    parts = [
        f"# Day {day} of <the> [voyage] & more\n\n"
        + " ".join(f"On day {day} the ship met {thing} at sea. The crew spoke of {thing} for long." for thing in things.split())
        for day, things in enumerate(("ice whales fog", "storms rain", "islands birds palms", "harbours boats"), 1)
    ]
    path.write_text("\n\n".join(parts), encoding="utf-8")
    return path


def test_the_shipped_texts(tmp_path):
    report = tmp_path / "report.html"
    done = lil("demo", "--report", report)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed (SIGKILL) after summarise#" in done.stdout
    assert "replayed in" in done.stdout
    assert "ran again" in done.stdout
    assert "the intent in the ledger" in done.stdout
    assert "OK: same brief as uninterrupted, delivered once, no finished call repeated." in done.stdout
    assert str(report) in done.stdout.replace("\n", "")
    assert "Traceback" not in done.stdout + done.stderr
    assert "Four score" in report.read_text(encoding="utf-8") or "war" in report.read_text(encoding="utf-8")


def test_killed_mid_fan_out(document):
    result = demo(document)
    assert set(result) == FIELDS
    assert result["ok"]
    assert result["differences"] == []
    assert [section["step"] for section in result["sections"]] == [f"summarise#{n}" for n in (1, 2, 3, 4)]
    assert result["sections"][0]["title"] == "Day 1 of <the> [voyage] & more"
    first, second = result["lives"]
    assert first["status"] == -signal.SIGKILL
    assert second["status"] == 0
    assert first["pid"] != second["pid"]
    assert result["kill"]["requested"] is None
    assert result["kill"]["after"].startswith("summarise#")
    returned = [step["step"] for step in first["steps"] if step["state"] == "ran"]
    # a step that was recorded when the workflow had no time left to see it counts as ran, and is replayed
    seen = [step["step"] for step in first["steps"] if step["returned_at"] is not None]
    assert sum(step.startswith("summarise") for step in seen) == 2
    assert result["replayed"] == returned
    assert result["repeated"] == []
    assert result["uninterrupted"]["summariser_calls"] == 4
    assert result["interrupted"]["summariser_calls"] == 4 + len(result["ran_again"])
    assert result["interrupted"]["deliveries"] == result["uninterrupted"]["deliveries"] == 1
    for run in (result["interrupted"], result["uninterrupted"]):
        intent = run["intent"]
        assert (intent["key"], intent["state"], intent["attempt"], intent["basis"]) == ("deliver", "SUCCEEDED", 1, "response")
        assert intent["events"] == ["prepared", "dispatched", "succeeded"]
        assert run["idempotency_keys"] == [intent["provider_key"]]
        assert intent["arguments_sha256"] == result["brief_sha256"]
    # one run, at two addresses: the key is that of the intent, wherever it is delivered to
    assert result["interrupted"]["intent"]["provider_key"] == result["uninterrupted"]["intent"]["provider_key"]
    assert 0 < result["resume_seconds"] < second["seconds"]
    assert "Day 3" in result["brief"]
    assert result["log"]["run"].startswith("brief-")
    assert [record["status"] for record in result["log"]["records"]].count("ok") == 7
    assert sum(record["life"] == 1 for record in result["log"]["records"]) == len(result["replayed"])


@pytest.mark.parametrize(
    ("step", "replayed"),
    [("split", 1), ("summarise#3", None), ("SUMMARIZE#1", None), ("merge", 6), ("deliver", 7)],
)
def test_killed_at_each_kind_of_step(document, step, replayed):
    result = demo(document, "--kill-at", step)
    name = step.lower().replace("z", "s")
    assert result["kill"]["after"] == result["kill"]["requested"] == name
    assert result["kill"]["status"] == -signal.SIGKILL
    assert name in result["replayed"]
    assert replayed is None or len(result["replayed"]) == replayed
    assert result["interrupted"]["deliveries"] == 1
    assert result["interrupted"]["calls"][name] == 1


def test_the_counts_come_from_files_that_can_be_looked_at(document, tmp_path):
    store = tmp_path / "store"
    result = demo(document, "--store", store, "--keep", TMPDIR=str(tmp_path))
    work = result["directory"]
    with open(f"{work}/interrupted.calls", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    starts = [line["step"] for line in lines if line["what"] == "start"]
    assert {step: starts.count(step) for step in starts} == result["interrupted"]["calls"]
    assert {line["pid"] for line in lines} == {life["pid"] for life in result["lives"]}
    assert result["store"] == str(store)
    assert any(store.iterdir())


def test_the_delivery_is_an_intent_of_the_store_s_ledger(document, tmp_path):
    store = tmp_path / "store"
    done = lil("demo", document, "--store", store)
    assert done.returncode == 0, done.stderr
    command = re.search(r"The delivery's intent: lil (.*)", done.stdout)[1]
    events = json.loads(lil(*command.split(), "--json").stdout)
    assert [event["kind"] for event in events] == ["prepared", "dispatched", "succeeded"]
    (run,) = json.loads(lil("runs", "--store", store, "--json").stdout)
    shown = json.loads(lil("show", run["run"], "--store", store, "--json").stdout)
    assert [(intent["key"], intent["state"]) for intent in shown["intents"]] == [("deliver", "SUCCEEDED")]
    assert shown["markers"] == {}


def test_a_delivery_whose_reply_was_lost_is_found_by_its_receipt(tmp_path, monkeypatch):
    monkeypatch.setattr(brief_child, "witness", Witness(os.open(os.devnull, os.O_WRONLY), str(tmp_path / "calls")), raising=False)
    sent = brief_child.post

    def lose(*args):
        sent(*args)
        raise ConnectionResetError

    monkeypatch.setattr(brief_child, "post", lose)
    with Receiver() as receiver:
        provider = brief_child.receiver_at(receiver.url("/a"))
        ledger = Ledger(tmp_path / "actions.db")
        assert ledger.run("brief-1", "deliver", provider, {"brief": "Bé"}) == 200
        assert ledger.get("brief-1", "deliver").basis == "receipt"
        assert [delivery.body for delivery in receiver.deliveries("/a")] == ["Bé".encode()]


def test_a_store_can_be_used_again(document, tmp_path):
    results = [demo(document, "--store", tmp_path / "store") for _ in range(2)]
    assert all(result["uninterrupted"]["summariser_calls"] == 4 for result in results)
    assert all(result["interrupted"]["summariser_calls"] >= 4 for result in results)
    assert results[0]["brief"] == results[1]["brief"]


def test_nothing_is_left_behind(document, tmp_path):
    place = tmp_path / "tmp"
    place.mkdir()
    demo(document, TMPDIR=str(place))
    assert list(place.iterdir()) == []


def test_several_documents_and_standard_input(document, tmp_path):
    other = tmp_path / "lettre.txt"
    other.write_bytes("Le café est fermé. Le café ouvrira demain.".encode("latin-1"))
    result = demo(other, document, "-", stdin="Only this. And that.")
    assert [section["document"] for section in result["sections"]] == ["lettre.txt", *["voyage.md"] * 4, "standard input"]
    assert "café" in result["brief"]


def test_one_sentence_is_enough(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("There is only this sentence.")
    result = demo(path)
    assert result["kill"]["after"] == "summarise#1"
    assert "There is only this sentence." in result["brief"]


def test_very_many_sections_are_limited_and_it_says_so(tmp_path):
    path = tmp_path / "many.md"
    path.write_text("\n\n".join(f"# Section {i}\n\nText number {i}." for i in range(70)))
    done = lil("demo", path, "--kill-at", "split")
    assert done.returncode == 0, done.stderr
    assert "10 more sections are left out" in done.stdout


@pytest.mark.parametrize("arguments", [["demo", "brief"], ["demo"]])
def test_bad_input_is_named_and_nothing_is_run(arguments, tmp_path, document):
    binary, empty = tmp_path / "image.png", tmp_path / "empty.txt"
    binary.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    empty.write_text(" \n")
    for bad, message in (
        ([tmp_path / "no.txt"], "no.txt: there is no such file"),
        ([tmp_path], "is a directory"),
        ([document, binary], "image.png is a binary file"),
        ([empty], "empty.txt is empty"),
        ([document, "--kill-at", "summarise#5"], "The steps are split, summarise#1 .. summarise#4, merge and deliver"),
        ([document, "--kill-at", ""], "there is no such step"),
        ([document, "--report", tmp_path / "no" / "report.html"], "cannot be written"),
        ([document, "--report", tmp_path], "cannot be written"),
        ([document, "--store", empty], "cannot be used"),
        ([document, "--no-such-option"], "No such option"),
    ):
        done = CliRunner().invoke(app.lil, [*arguments, *map(str, bad)])
        assert done.exit_code == 2, (bad, done.output)
        assert message in " ".join(done.stderr.split())
        assert not done.stdout


def test_bad_input_ends_the_process_with_status_2_and_no_traceback(tmp_path):
    done = lil("demo", tmp_path / "no.txt")
    assert done.returncode == 2
    assert done.stderr == f"Error: {tmp_path}/no.txt: there is no such file\n"
    assert not done.stdout


def test_help_of_the_group_tells_how_to_use_it():
    text = lil("demo", "--help").stdout
    assert "--kill-at" in text
    assert "[DOCUMENT]" in text
    assert "brief" in text
    assert "SIGKILL" in text
    assert "demo" in lil("--help").stdout


@pytest.mark.parametrize("name", ["brief", "http", "crash"])
def test_every_option_is_on_the_page_of_the_command_line(name):
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    body = page.partition(f"### lil demo {name}\n")[2].partition("\n### ")[0]
    options = [option for parameter in demo_group.commands[name].params for option in parameter.opts if option.startswith("--")]
    assert options
    assert [option for option in options if f"`{option}" not in body] == []


def test_the_group_loads_no_other_command():
    code = (
        "import sys; from click.testing import CliRunner; from letitloop.cli.app import lil\n"
        "assert CliRunner().invoke(lil, ['--version']).output.startswith('letitloop ')\n"
        "assert not [name for name in sys.modules if name.startswith('letitloop.cli.demo')]"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    )


def test_a_file_of_the_users_does_not_shadow_the_standard_library(document, tmp_path):
    (tmp_path / "queue.py").write_text("raise SystemExit('the user’s own queue was imported')")
    code = "from letitloop.cli import main; main()"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else ["-I"]), "-c", code, "demo", str(document), "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if sys.version_info >= (3, 11):
        assert done.returncode == 0, done.stderr


def test_the_report_is_self_contained_and_escapes_what_users_wrote(document, tmp_path):
    path = tmp_path / "report.html"
    result = demo(document, "--report", path)
    text = path.read_text(encoding="utf-8")
    parsed = offline(text)
    assert result["report"] == str(path)
    assert "the" not in parsed.tags  # "<the>" of the document's headings
    assert "Day 1 of &lt;the&gt; [voyage] &amp; more" in text
    assert "SIGKILL" in text
    assert "SUCCEEDED (prepared, dispatched, succeeded)" in text
    # a diamond for each replayed step, a bar for each that ran or was in flight
    assert text.count('<path class="mark"') == len(result["replayed"])
    states = [step["state"] for life in result["lives"] for step in life["steps"]]
    assert text.count('<rect class="bar-ran"') == states.count("ran")
    assert text.count('<rect class="bar-lost"') == states.count("in flight")
    assert result["brief_sha256"] in text


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_ctrl_c_and_a_closed_window_end_the_child(document, tmp_path, name):
    code = (
        "import os, signal, sys\n"
        "from letitloop.cli.demo import stage\n"
        "real = stage.live\n"
        "def live(*args, **kwargs):\n"
        "    def watch(life, event, step):\n"
        "        if event == 'returned':\n"
        "            print(life.pid, flush=True)\n"
        f"            os.kill(os.getpid(), signal.{name})\n"
        "    return real(*args, **{**kwargs, 'watch': watch})\n"
        "stage.live = live\n"
        "from letitloop.cli import main\n"
        "main()"
    )
    place = tmp_path / "tmp"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "--json", str(document)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(place)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 128 + signal.Signals[name]
    assert "Traceback" not in done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout.split()[0]), 0)
    assert list(place.iterdir()) == []


def test_a_child_that_fails_is_told_with_what_it_wrote(tmp_path):
    plan = stage.Plan([("gone.txt", b"\0")], [Section("gone.txt", "Gone", "Text.")])
    with pytest.raises(ChildFailed, match=r"(?s)ended with status 1 without a result; it wrote:.*binary file"):
        stage.perform(plan, tmp_path, tmp_path / "store")


def test_a_child_that_is_stuck_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(lives, "SILENCE", 0.0)
    monkeypatch.setattr(subprocess.Popen, "wait", _impatient(subprocess.Popen.wait))
    plan = stage.Plan([("a.txt", b"Text.")], [Section("a.txt", "A", "Text.")])
    with pytest.raises(ChildFailed, match="was ended by SIGKILL"):
        stage.perform(plan, tmp_path, tmp_path / "store")


def _impatient(wait):
    def at_once(self, timeout=None):
        return wait(self, timeout=None if timeout is None else 0)

    return at_once


def test_the_receiver_counts_every_request_whatever_its_key():
    with Receiver() as receiver:
        for _ in range(2):
            assert brief_child.post(receiver.url("/a"), "brief", "key") == 200
        assert brief_child.post(receiver.url("/b"), "brief é", "key") == 200
        assert [delivery.key for delivery in receiver.deliveries("/a")] == ["key", "key"]
        assert receiver.deliveries("/b")[0].body == "brief é".encode()


def _life(pid: int, *, calls: list[str], returned: list[str], **more) -> Life:
    times = {step: 0.1 * i for i, step in enumerate(calls)}
    return Life(pid, 0.0, calls=times, done=dict(times), returned=dict.fromkeys(returned, (1.0, 0.1)), ended=2.0, **more)


LOG = ("split", "summarise", "merge", "deliver")
INTENT = {"state": "SUCCEEDED", "provider_key": "k", "events": ["prepared", "dispatched", "succeeded"]}


def _outcome(
    *,
    second: list[str],
    deliveries: int = 1,
    brief: str = "B",
    status: int = -9,
    first_merge: int = 2,
    intent: dict = INTENT,
) -> Outcome:
    steps = outcome.steps_of(1)
    records = [
        {"key": key, "status": "ok", "life": life} for key, life in zip(LOG, (1, first_merge - 1, first_merge, 2), strict=True)
    ]
    lives_ = [
        _life(1, calls=steps[:2], returned=steps[:2], status=status, killed=1.0, killed_after="summarise#1"),
        _life(2, calls=second, returned=steps, status=0, brief=brief, log={"records": records}, intent=intent),
    ]
    counted = [{"pid": life.pid, "step": step, "what": "start", "t": 0.0} for life in lives_ for step in life.calls]
    alone = _life(3, calls=steps, returned=steps, status=0, brief="B", intent=INTENT)
    return Outcome(
        [Section("d", "t", "x")],
        0,
        "",
        Run(lives_, counted, [Delivery("/i", "k", brief.encode(), 0.0)] * deliveries),
        Run([alone], [{"pid": 3, "step": step, "what": "start", "t": 0.0} for step in steps], [Delivery("/u", "k", b"B", 0.0)]),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"second": ["summarise#1", "merge", "deliver"]}, "finished steps were called again: summarise#1"),
        ({"second": ["merge", "deliver"], "deliveries": 2}, "delivered 2 times"),
        ({"second": ["merge", "deliver"], "deliveries": 0}, "delivered 0 times"),
        ({"second": ["merge", "deliver"], "brief": "C"}, "differs"),
        ({"second": ["merge", "deliver"], "status": 0}, "was not killed by SIGKILL"),
        (
            {"second": ["merge", "deliver"], "first_merge": 1},
            "the log tells otherwise in which life it recorded: summarise#1, merge",
        ),
        ({"second": ["merge"]}, "no evidence of a call for deliver"),
        (
            {"second": ["merge", "deliver"], "intent": {**INTENT, "state": "UNKNOWN"}},
            "the ledger has the delivery of the interrupted run as UNKNOWN, dispatched 1 times",
        ),
        ({"second": ["merge", "deliver"], "intent": {**INTENT, "events": ["dispatched"] * 2}}, "as SUCCEEDED, dispatched 2 times"),
        ({"second": ["merge", "deliver"], "intent": {}}, "as None, dispatched 0 times"),
        ({"second": ["merge", "deliver"], "intent": {**INTENT, "provider_key": "q"}}, "under another key than its intent's"),
    ],
)
def test_what_is_wrong_is_found_and_told(changes, message):
    assert _outcome(second=["merge", "deliver"]).differences() == []
    wrong = _outcome(**changes)
    assert any(message in difference for difference in wrong.differences())
    assert not wrong.as_json()["ok"]
    assert "Not as it should be" in page(wrong)


def test_a_difference_ends_with_status_1(document, tmp_path):
    code = (
        "from letitloop.cli.demo import outcome\n"
        "outcome.Outcome.differences = lambda self: ['something differs']\n"
        "from letitloop.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", str(document)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "NOT OK" in done.stdout
    assert "something differs" in done.stdout
