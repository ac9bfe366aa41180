"""``lil runs``, ``show``, ``rewind``, ``forget``: which runs there are, and taking back what they recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from letitloop import DirectoryStore, durable, step
from letitloop.codecs import default_codecs
from letitloop.runs.records import ENDED, OK, RESUME, START, pack_head
from letitloop.wal.recovery import open_log
from tests.cli import stores
from tests.cli.stores import data, lil, workflow


@pytest.fixture(autouse=True)
def _narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def living():
    """A process that drives a run and waits in its second step; gives its pid."""
    code = """
import sys
from letitloop import durable, step
@durable(goal_id="living")
def run():
    step("first", int)
    step("second", lambda: (print("ready", flush=True), sys.stdin.read())[1])
run()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=stores.environment()
    )
    assert child.stdout.readline() == "ready\n"
    yield child.pid
    child.communicate("", timeout=30)


def killed(at):
    """Drive a run in a process that kills itself in its step ``at``."""
    assert stores.python(stores.KILLED, check=False, AT=at).returncode == -9


# --- without a store ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["runs", "verify"])
def test_without_a_store_there_is_a_friendly_line(command, tmp_path):
    assert "no runs here yet" in lil(command)
    assert data(command) == []
    assert not Path(os.environ["LETITLOOP_STORE"]).exists(), "looking makes no store"


@pytest.mark.parametrize(
    "command", [["show"], ["rewind", "x"], ["export"], ["repair"], ["seal"], ["verify"], ["compact"], ["forget"]]
)
def test_a_run_that_is_not_there_is_one_message(command):
    said = lil(command[0], "nope", *command[1:], code=1)
    assert said.startswith("Error: there is no run 'nope'")
    assert said.count("\n") == 1


def test_a_store_that_is_a_file_is_one_message(tmp_path):
    (tmp_path / "file").write_text("x")
    for command in (["runs"], ["show", "x"], ["verify"], ["forget", "--all", "--yes"], ["compact", "--all"]):
        assert "is a file" in lil(*command, "--store", tmp_path / "file", code=1)


def test_an_unknown_kind_of_store_is_one_message():
    assert "not known to this version" in lil("runs", "--store", "weird://host/db", code=1)


# --- runs --------------------------------------------------------------------------------------------------------------------


def test_runs_lists_what_there_is():
    name = workflow()
    said = lil("runs")
    line = next(line for line in said.splitlines() if line.startswith(name))
    assert "finished" in line
    assert any(line.startswith("└ ") and "finished" in line for line in said.splitlines()), "the nested run stands under it"
    found = data("runs")
    assert {run["goal"]: run["status"] for run in found if run["run"] == name} == {"sync": "finished"}
    assert [run["parent"] for run in found if run["run"] != name] == [name]


@pytest.mark.parametrize("dumb", [False, True])
@pytest.mark.parametrize("width", range(40, 200, 7))
def test_a_name_is_never_cut(width, dumb, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    if dumb:
        monkeypatch.setenv("TERM", "dumb")
    name = workflow("a-goal-with-a-name-that-is-quite-long")
    lines = lil("runs").splitlines()
    (line,) = [line for line in lines if line.startswith(name)]
    assert "finished" in line
    if width > len(name) + 11:
        assert max(map(len, lines)) <= width
        assert len(lines) == 4


def test_an_error_takes_one_line_of_the_list():
    workflow("short", fail=True)

    @durable(goal_id="long")
    def run():
        raise ValueError("so long " * 90)

    with pytest.raises(ValueError, match="so long"):
        run()
    lines = [line for line in lil("runs").splitlines() if "ValueError" in line]
    assert [line.endswith("… (lil show has all of it)") for line in lines] == [True, False]
    assert lil("show", "long").count("so long") == 90


def test_a_log_of_no_bytes_is_a_run_that_did_not_begin():
    name = workflow()
    stores.log_path(name).write_bytes(b"")
    assert "the file is empty" in lil("show", name)
    assert {run["run"]: run["status"] for run in data("runs")}[name] == "interrupted"
    assert data("verify", name)[0]["ok"]
    workflow()
    assert data("show", name)["status"] == "finished"


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (START, {}),
        (START, {"goal": "g", "function": "f", "created": "x", "pid": 1}),
        (START, {"goal": 5, "function": None, "created": float("nan"), "pid": 1, "parent": [1]}),
        (RESUME, {"at": float("inf"), "pid": 4, "in_flight": [5, None]}),
        (RESUME, {"at": 5.0}),
        (RESUME, {"at": 5.0, "pid": b"x"}),
        (ENDED, {}),
        (OK, pack_head(0, b"", 0, float("nan"), float("inf")) + b"\xc0"),
        (OK, pack_head(0, b"", 0, 1e300, float("-inf")) + b"\xc0"),
        (OK, b""),
    ],
)
def test_a_record_that_no_run_writes_hides_no_other_run(kind, payload):
    name, other = workflow(), workflow("other")
    log = open_log(str(stores.log_path(name)))
    log.append(kind, b"odd\xff" if kind == OK else b"", payload if isinstance(payload, bytes) else default_codecs.encode(payload))
    log.close()
    for command in (["runs"], ["show", name]):
        assert name in lil(*command)
        data(*command)
    assert other in lil("runs")


def test_a_store_that_was_named_and_is_not_there_is_an_error(tmp_path):
    for command in (["runs"], ["verify"], ["compact", "--all"], ["forget", "--all", "--yes"]):
        assert "there is no directory" in lil(*command, "--store", tmp_path / "typo", code=2)
    assert "Name another with --store or" in lil("runs", "--store", __file__, code=1)


def test_a_log_that_cannot_be_read_does_not_hide_the_others():
    name = workflow()
    (stores.log_path("foreign")).write_text("hello")
    said = lil("runs")
    assert name in said
    assert "not a letitloop log" in said
    assert {run["run"]: run["status"] for run in data("runs")}["foreign"] == "damaged"


def test_a_living_run_names_its_process(living):
    assert f"process {living} drives it" in lil("runs")
    (run,) = data("runs")
    assert (run["status"], run["pid"]) == ("running", living)
    shown = data("show", "living")
    assert shown["lives"][0]["in_flight_at_end"] == ["second"]
    assert "alive; in flight: second" in lil("show", "living")
    assert data("verify")[0]["ok"], "a log is verified while it is written"
    name = run["run"]
    for command in (["forget", "living"], ["rewind", "living", "first"], ["repair", "living"], ["compact", "living"]):
        said = f"run {name} is being driven by process {living}, which is alive. Nothing was changed. Wait for it to end."
        assert lil(*command, code=1) == f"Error: {said}\n"
    assert lil("compact", "--all") == f"{name}: left as it is: {said}\n"
    assert data("forget", "--all", "--yes") == {"removed": [], "kept": [run["run"]]}


# --- show --------------------------------------------------------------------------------------------------------------------


def test_show_tells_steps_failures_and_lives():
    name = workflow()
    said = lil("show", name[:6])
    for expected in ("sync", "fetch#4", "branch/fetch", "boom", "done", "finished", "━"):
        assert expected in said
    assert "\x1b" not in said, "a recorded text controls no terminal"
    assert "no_luck" not in said
    assert "in no_luck" in lil("show", name, "--traceback")
    found = data("show", name)
    assert [one["step"] for one in found["steps"]] == [
        "fetch", "fetch#2", "fetch#3", "fetch#4", "boom", "branch/fetch", "notify", "notify", "last"
    ]  # fmt: skip
    assert [one["status"] for one in found["steps"]].count("failed") == 1
    assert found["children"]


def test_show_tells_what_was_in_flight_when_it_was_killed():
    killed("second")
    assert "in flight when it died: second" in lil("show", "killed")
    assert "1 step will be answered from the log" in lil("show", "killed")
    killed("third")
    first, second = data("show", "killed")["lives"]
    assert (first["in_flight_at_end"], second["in_flight_at_end"]) == (["second"], ["third"])
    assert first["pid"] != second["pid"]


def test_show_breaks_no_name_of_a_step(monkeypatch):
    long = "a_name_of_a_step_that_is_as_long_as_this_one_is"

    @durable(goal_id="narrow")
    def run():
        step(long, int)
        step("short", int)

    run()
    for width in range(20, 160, 5):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = lil("show", "narrow").splitlines()
        (line,) = [line for line in lines if line.startswith(long)]
        assert line.split()[:2] == [long, "ok"]
        assert any("timeline" in line for line in lines) == (width >= 95)
        assert any("status" in line for line in lines) == (width >= len(long) + 9)
        steps = lines[next(number for number, line in enumerate(lines) if "end" in line) + 3 :]
        assert all(len(line) <= width or line.startswith(long) for line in steps)


def test_show_of_a_life_breaks_no_name_of_a_step(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    code = stores.KILLED.replace('"second"', '"a_step_with_a_longer_name"')
    assert stores.python(code, check=False, AT="a_step_with_a_longer_name").returncode == -9
    assert any(line.split()[-1] == "a_step_with_a_longer_name" for line in lil("show", "killed").splitlines() if line)


@pytest.mark.parametrize("given", [{"TERM": "xterm"}, {"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}])
def test_a_terminal_gets_colours_unless_it_is_dumb_or_says_no(given):
    pty = pytest.importorskip("pty")
    workflow()
    environment = {name: value for name, value in stores.environment().items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-m", "letitloop", "show", "sync"], stdout=theirs, stdin=theirs, env={**environment, **given}
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not more:
            break
        said += more
    done.wait(timeout=30)
    os.close(ours)
    assert b"boom" in said
    assert (b"\x1b[32m" in said) == (given == {"TERM": "xterm"})
    assert given["TERM"] != "dumb" or b"\x1b" not in said


def test_show_of_many_steps_leaves_the_middle_out():
    name = workflow(steps=200)
    assert "... 145 more" in lil("show", name)
    assert "fetch#100" in lil("show", name, "--all")
    assert len(data("show", name)["steps"]) == 205


def test_show_of_a_failed_run_says_why():
    name = workflow(fail=True)
    said = lil("show", name)
    assert "failed" in said.splitlines()[0]
    assert "no \\x1b[31mluck" in said


def test_an_ambiguous_name_is_told():
    workflow("one")
    workflow("only")
    assert "names 2 runs" in lil("show", "on", code=1)


# --- rewind ------------------------------------------------------------------------------------------------------------------


def test_a_rewound_step_runs_again():
    calls = []

    @durable(goal_id="counted")
    def run():
        return [step("a", lambda: calls.append("a")), step("b", lambda: calls.append("b")), step("c", lambda: calls.append("c"))]

    run()
    assert data("rewind", "counted", "b")["runs_again"] == ["b", "c"]
    run()
    assert calls == ["a", "b", "c", "b", "c"]
    assert "c\n" in lil("rewind", "counted", "c")


def test_rewind_to_an_unknown_step_changes_nothing():
    name = workflow()
    before = stores.log_path(name).read_bytes()
    assert "has no step 'nope' on record" in lil("rewind", name, "nope", code=1)
    assert stores.log_path(name).read_bytes() == before


def test_rewind_keeps_the_note_of_what_was_in_flight():
    killed("second")
    lil("rewind", "killed", "first")
    assert data("show", "killed")["lives"][0]["in_flight_at_end"] == ["second"]
    killed("third")
    assert data("show", "killed")["lives"][0]["in_flight_at_end"] == ["second"]


# --- forget ------------------------------------------------------------------------------------------------------------------


def test_forget_names_what_it_removed_with_the_runs_inside():
    name = workflow()
    said = lil("forget", name)
    assert said.count("removed ") == 2
    assert DirectoryStore(os.environ["LETITLOOP_STORE"]).names("runs") == []


def test_forget_chooses_by_status_and_age():
    done, failed = workflow("done"), workflow("failed", fail=True)
    assert data("forget", "--older-than", "7d", "--yes")["removed"] == []
    assert failed not in data("forget", "--finished", "--older-than", "0s", "--yes")["removed"]
    assert [run["run"] for run in data("runs") if not run["parent"]] == [failed]
    assert data("forget", "--all", "--yes")["removed"]
    assert done not in lil("runs")


def test_forget_leaves_the_parts_of_a_run_that_it_leaves():
    failed = workflow("failed", fail=True)
    (part,) = data("show", failed)["children"]
    for options in (["--finished"], ["--finished", "--older-than", "0s"]):
        assert data("forget", *options, "--yes") == {"removed": [], "kept": []}
    assert data("forget", part)["removed"] == [part], "named, it is removed"
    workflow("failed", fail=True)
    assert len(data("forget", "--older-than", "0s", "--yes")["removed"]) == 2


def test_forget_removes_nothing_of_a_run_that_a_live_process_drives():
    code = """
import sys
from letitloop import durable, step
@durable
def part(): return step("inner", int)
@durable(goal_id="living")
def run():
    part()
    step("second", lambda: (print("ready", flush=True), sys.stdin.read())[1])
run()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=stores.environment()
    )
    try:
        assert child.stdout.readline() == "ready\n"
        other = workflow("other")
        (part,) = data("show", "living")["children"]
        for names in (["living"], [part], [other, part], [part, "living"]):
            assert "is alive. Nothing was changed" in lil("forget", *names, code=1)
        assert len(data("runs")) == 4
        assert data("forget", "--all", "--yes")["kept"] == [data("show", "living")["run"]]
        assert len(data("runs")) == 2
    finally:
        child.communicate("", timeout=30)


def test_forget_refuses_to_guess():
    name = workflow()
    assert "Name the runs" in lil("forget", code=2)
    assert "say --yes" in lil("forget", "--all", code=2)
    assert "exclude each other" in lil("forget", "--all", name, code=2)
    assert "is no age" in lil("forget", "--older-than", "soon", "--yes", code=2)
    assert len(data("runs")) == 2


def test_forget_asks_on_a_terminal(monkeypatch):
    name = workflow()
    from letitloop.cli import runs

    class Terminal:
        stdin = type("stdin", (), {"isatty": staticmethod(lambda: True)})

    monkeypatch.setattr(runs, "sys", Terminal)
    lil("forget", name, input="n\n", code=1)
    assert len(data("runs")) == 2
    assert "for good?" in lil("forget", name, input="y\n")
    assert data("runs") == []


# --- the program -------------------------------------------------------------------------------------------------------------


def test_help_tells_commands_and_exit_codes():
    said = lil("--help")
    for expected in ("runs", "verify", "completion", "Exit codes"):
        assert expected in said
    for command in ("runs", "show", "rewind", "forget", "export", "verify", "repair", "compact", "seal", "proof", "completion"):
        assert "--json" in lil(command, "--help")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["shwo"], "'show'"),
        (["rnus"], "'runs'"),
        (["SHOW"], "'show'"),
        (["demo", "breif"], "'brief'"),
        (["rewnid", "x"], "'rewind'"),
    ],
)
def test_a_mistyped_command_is_asked_about(typed, meant):
    assert f"Did you mean {meant}" in lil(*typed, code=2)


def test_what_is_like_no_command_is_not_guessed():
    assert "Did you mean" not in lil("xyz", code=2)
    assert "Did you mean" not in lil("demo", "no-such-file.txt", code=2)
    assert "--traceback" in lil("show", "--tracebck", "x", code=2)


def test_ctrl_c_is_exit_code_130(monkeypatch):
    from letitloop.cli import runs

    def interrupted(_store):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "all_runs", interrupted)
    assert "Interrupted" in lil("runs", code=130)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_runs(shell):
    name = workflow()
    assert "_LIL_COMPLETE" in lil("completion", shell)
    words = {"bash": {"COMP_WORDS": "lil show sy", "COMP_CWORD": "2"}, "zsh": {"COMP_WORDS": "lil show sy", "COMP_CWORD": "2"}}
    words["fish"] = {"COMP_WORDS": "lil show sy", "COMP_CWORD": "sy"}
    done = stores.python(
        "from letitloop.cli.app import lil; lil(prog_name='lil')", _LIL_COMPLETE=f"{shell}_complete", **words[shell]
    )
    assert name in done.stdout


def test_a_reader_that_closes_the_pipe_is_no_fault():
    workflow(steps=400)
    done = subprocess.run(
        f"{sys.executable} -m letitloop export sync | head -1",
        shell=True,
        capture_output=True,
        text=True,
        env=stores.environment(),
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("{")


def test_threads_of_langgraph_are_told_of():
    assert "LangGraph" not in lil("runs")
    DirectoryStore(os.environ["LETITLOOP_STORE"]).open_log("threads", "one").close()
    assert "1 thread of LangGraph: app.get_state" in " ".join(lil("runs").split())
    workflow()
    assert "And 1 thread of LangGraph" in " ".join(lil("runs").split())
    assert len(data("runs")) == 2  # a run, and the run inside it
