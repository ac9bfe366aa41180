"""``lil watch`` on programs that really die: (death, options) -> (restarts, exit code, what the program saw)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.supervision.helpers import environment, python, script, started, watch

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

TWICE = "if life() <= 2: {}\nprint('done')\n"
ALWAYS = "life(); {}\n"

TABLE = [
    # name, program, options, restarts, exit code, lives
    ("SIGKILL twice, then success", TWICE.format("die(9)"), (), 2, 0, 3),
    ("SIGSEGV twice, then success", TWICE.format("die(11)"), (), 2, 0, 3),
    ("a real segmentation fault", TWICE.format("import ctypes; ctypes.string_at(0)"), (), 2, 0, 3),
    ("SIGABRT", TWICE.format("os.abort()"), (), 2, 0, 3),
    ("SIGTERM from outside", TWICE.format("die(15)"), (), 2, 0, 3),
    ("SIGKILL for ever", ALWAYS.format("die(9)"), ("--max-restarts", 3), 3, 137, 4),
    ("SIGTERM for ever", ALWAYS.format("die(15)"), ("--max-restarts", 1), 1, 143, 2),
    ("SIGSEGV for ever", ALWAYS.format("die(11)"), ("--max-restarts", 0), 0, 139, 1),
    ("SIGKILL, not wanted", ALWAYS.format("die(9)"), ("--restart-on", "crash"), 0, 137, 1),
    ("the breaker", ALWAYS.format("die(9)"), ("--max-rapid-failures", 3), 2, 137, 3),
    ("no breaker", ALWAYS.format("die(9)"), ("--max-rapid-failures", 0, "--max-restarts", 8), 8, 137, 9),
    ("healthy at once", ALWAYS.format("die(9)"), ("--healthy-after", 0, "--max-restarts", 8), 8, 137, 9),
    ("exit 3", ALWAYS.format("sys.exit(3)"), (), 0, 3, 1),
    ("exit 3, any", TWICE.format("sys.exit(3)"), ("--restart-on", "any"), 2, 0, 3),
    ("exit 3, named", TWICE.format("sys.exit(3)"), ("--restart-on", "exit:3"), 2, 0, 3),
    ("exit 3, another named", ALWAYS.format("sys.exit(3)"), ("--restart-on", "exit:4,5"), 0, 3, 1),
    ("exit 3 for ever", ALWAYS.format("sys.exit(3)"), ("--restart-on", "any", "--max-restarts", 2), 2, 3, 3),
    ("exit 2", ALWAYS.format("sys.exit(2)"), ("--restart-on", "any"), 0, 2, 1),
    ("exit 2, named", TWICE.format("sys.exit(2)"), ("--restart-on", "exit:2"), 2, 0, 3),
    ("exit 0", ALWAYS.format("sys.exit(0)"), ("--restart-on", "any"), 0, 0, 1),
    ("an exception", TWICE.format("raise ConnectionError('no route')"), (), 2, 0, 3),
    ("an exception, not wanted", ALWAYS.format("raise ConnectionError"), ("--restart-on", "signal"), 0, 1, 1),
    ("sys.exit with a message", ALWAYS.format("sys.exit('sorry')"), (), 0, 1, 1),
    ("SyntaxError", "def f(:\n", (), 0, 1, 0),
    ("ImportError", "life()\nimport no_such_module\n", (), 0, 1, 1),
    ("UnknownOutcome", "from letitloop import *\nlife()\n@durable\ndef f(): raise UnknownOutcome('so')\nf()\n", (), 0, 80, 1),
    ("StepChanged", "from letitloop import *\nlife()\n@durable\ndef f(): raise StepChanged('so')\nf()\n", (), 0, 81, 1),
]


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_deaths(tmp_path, row):
    _, program, options, restarts, code, lives = row
    done = watch(tmp_path, *options, script(tmp_path, program))
    assert (done.code, done.restarts) == (code, restarts), done.err
    assert (os.path.getsize(tmp_path / "lives") if lives else 0) == lives
    assert done.out == ("done\n" if code == 0 and "done" in program else "")
    assert not [name for name in os.listdir(tmp_path) if name.startswith("letitloop-watch")]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("missing.py",), 2),
        (("-m", "no_such_module"), 1),
        (("-m", "os.path.no"), 1),
        (("--", "no-such-command"), 127),
        (("--", "./lives.txt"), 126),
    ],
)
def test_a_target_that_is_missing_is_not_tried_again(tmp_path, words, code):
    (tmp_path / "lives.txt").write_text("no program")
    done = watch(tmp_path, *words, json_lines=False)
    assert done.code == code
    assert "restart " not in done.err
    assert done.err.count("\n") <= 5
    assert "Traceback" not in done.err


def test_one_line_says_why_a_program_is_not_started_again(tmp_path):
    done = watch(tmp_path, script(tmp_path, "import no_such_module"), json_lines=False)
    (line,) = [line for line in done.err.splitlines() if line.startswith("letitloop: ")]
    assert "ModuleNotFoundError: No module named 'no_such_module'" in line
    assert line.endswith("not started again: the target cannot be imported")


def test_each_restart_is_told_in_one_line_with_what_the_log_says(tmp_path):
    program = """
        from letitloop import durable, step
        @durable(goal_id="customer_sync")
        def sync():
            for n in range(7): step("part", abs, n)
            if life() == 1: die()
        sync()
    """
    done = watch(tmp_path, script(tmp_path, program), json_lines=False)
    (line,) = done.err.splitlines()
    assert line.startswith("letitloop: program.py (process ")
    assert "ended by SIGKILL after" in line
    assert line.endswith("restart 1 now; resuming customer_sync at step 7 of 7 recorded")


def test_the_end_says_what_died_how_often_with_the_last_lines(tmp_path):
    program = "n = life()\nprint('line', n, file=sys.stderr, flush=True)\ndie(9 if n % 2 else 11)"
    words = ("--max-restarts", 3, "--max-rapid-failures", 0, script(tmp_path, program))
    done = watch(tmp_path, *words, json_lines=False)
    assert done.code == 139
    assert "the budget of restarts is used up (3 within 600 s)" in done.err
    assert "after 3 restarts; deaths: 2 x SIG" in done.err
    assert "letitloop: the last it wrote to standard error:\n  | line 4\n" in done.err
    (tmp_path / "lives").unlink()
    end = watch(tmp_path, *words).end
    assert end["ended_by"] == "budget"
    assert end["causes"] == {"SIGKILL": 2, "SIGSEGV": 2}
    assert end["stderr"][0] == "line 4"
    assert end["attempt"] == 3


def test_the_breaker_opens_without_progress_and_stays_closed_with_it(tmp_path):
    program = """
        from letitloop import durable, step
        n_life = life()
        @durable(goal_id="{}")
        def steps():
            for n in range(6):
                if {}: die()
                step("part", abs, n)
                if {}: die()
        steps()
    """
    words = ("--max-rapid-failures", 2, "--max-restarts", 50)
    done = watch(tmp_path, *words, script(tmp_path, program.format("further", False, "n == n_life - 1")))
    assert (done.code, done.restarts) == (0, 6), done.err
    assert all(event["progress"] for event in done.events)
    assert done.events[-1]["runs"] == ["resuming further at step 6 of 6 recorded"]

    done = watch(tmp_path, *words, script(tmp_path, program.format("stuck", "n == 3", False)))
    assert (done.code, done.end["ended_by"]) == (137, "breaker")
    # the first life got three steps far, the next two not a step further
    assert [event["progress"] for event in done.events] == [True, False, False]


def test_failing_the_same_step_again_is_no_progress(tmp_path):
    program = """
        from letitloop import durable, step
        @durable(goal_id="failing")
        def failing():
            step("good", abs, 1)
            step("bad", lambda: 1 / 0)
        failing()
    """
    done = watch(tmp_path, "--max-rapid-failures", 2, script(tmp_path, program))
    assert [event["progress"] for event in done.events] == [True, False, False]
    assert done.end["ended_by"] == "breaker"
    assert done.end["reason"] == "ZeroDivisionError: division by zero"


# --- arguments and streams


def test_arguments_behind_the_target_are_its_own_but_for_three(tmp_path):
    program = script(tmp_path, "print(sys.argv[1:])")
    words = (
        program,
        "--max-restarts",
        "7",
        "-v",
        "--stall",
        "3",
        "--backoff=2",
        "--max-backoff",
        "9",
        "--",
        "--backoff",
        "1",
        "--",
    )
    assert watch(tmp_path, *words).out == "['-v', '--stall', '3', '--backoff', '1', '--']\n"


def test_options_behind_the_target_count(tmp_path):
    assert watch(tmp_path, script(tmp_path, ALWAYS.format("die()")), "--max-restarts", "1", "-v").restarts == 1


def test_a_module_gets_its_arguments(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    script(tmp_path / "package", "if life() < 3: die()\nprint(__name__, sys.argv[1:])", "module.py")
    done = watch(tmp_path, "--max-rapid-failures", "9", "-m", "package.module", "-v", "--stall", "x")
    assert (done.out, done.restarts) == ("__main__ ['-v', '--stall', 'x']\n", 2)


def test_any_command(tmp_path):
    command = 'echo x >> lives; test "$(wc -l < lives)" -gt 2 || kill -9 $$; echo "$@"'
    done = watch(tmp_path, "--", "sh", "-c", command, "sh", "-v", "--", "-x")
    assert (done.code, done.out, done.restarts) == (0, "-v -- -x\n", 2)


def test_interpreter_flags_are_kept(tmp_path):
    program = script(tmp_path, "print(__debug__, sys.flags.dont_write_bytecode)")
    command = [sys.executable, "-O", "-B", "-m", "letitloop", "watch", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=tmp_path, check=True)
    assert done.stdout == "False 1\n"


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--",),
        ("-m",),
        ("--max-restarts", "-1", "program.py"),
        ("--backoff", "soon", "program.py"),
        ("--stall", "0", "program.py"),
        ("--window", "0", "program.py"),
        ("--restart-on", "never", "program.py"),
        ("--no-such-option", "program.py"),
        ("program.py", "--max-restarts", "many"),
    ],
)
def test_a_command_line_that_means_nothing(tmp_path, words):
    script(tmp_path, "life()")
    done = watch(tmp_path, *words, json_lines=False)
    assert done.code == 2
    assert "Error: " in done.err
    assert not (tmp_path / "lives").exists()


def test_a_command_that_is_given_as_a_script_is_refused_with_the_way(tmp_path):
    command = tmp_path / "command"
    command.write_text("#!/bin/sh\nexit 0\n")
    command.chmod(0o755)
    done = watch(tmp_path, command, json_lines=False)
    assert done.code == 2
    assert "lil watch -- " in done.err


def test_standard_input_is_the_programs(tmp_path):
    program = script(tmp_path, "line = sys.stdin.readline()\nprint(line, end='', flush=True)\nif life() < 3: die()")
    process = started(tmp_path, program, stdin=subprocess.PIPE)
    out, err = process.communicate("one\ntwo\nthree\n", timeout=50)
    assert process.returncode == 0
    assert out == "one\n"  # what was read ahead died with the process; the rest is at its end
    assert err.count("restart") >= 2


def test_standard_error_is_passed_on_as_it_comes_and_in_full(tmp_path):
    program = script(
        tmp_path,
        """
        os.write(2, b"no line end")
        sys.stdin.readline()
        for n in range(20000): os.write(2, b"%06d %s\\n" % (n, b"x" * 60))
        os.write(2, bytes(range(256)))
        """,
    )
    command = [sys.executable, "-m", "letitloop", "watch", str(program)]
    with subprocess.Popen(command, stdin=-1, stderr=-1, cwd=tmp_path, env=environment()) as process:
        assert process.stderr.read(11) == b"no line end"  # it comes before the program goes on
        process.stdin.write(b"\n")
        process.stdin.close()
        rest = process.stderr.read()
    lines = rest[:-256].splitlines()
    assert [int(line[:6]) for line in lines] == list(range(20000))
    assert rest[-256:] == bytes(range(256))


@pytest.mark.parametrize("closed", [(1,), (2,), (0,), (0, 1, 2)])
def test_a_closed_stream_is_no_reason_to_fail(tmp_path, closed):
    program = script(tmp_path, "print('hello')\nif life() < 3: die()\nopen('done', 'w').close()")
    redirect = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in closed)
    command = f'exec "$0" -m letitloop watch --backoff 0 "$1" {redirect}'
    words = ["sh", "-c", command, sys.executable, str(program)]
    done = subprocess.run(words, env=environment(), cwd=tmp_path, check=False, timeout=50)
    assert done.returncode == 0
    assert (tmp_path / "done").exists()
    assert os.path.getsize(tmp_path / "lives") == 3


@pytest.mark.parametrize(
    "text", ["while True: print('x' * 1000)", "signal.signal(13, signal.SIG_DFL)\nwhile True: os.write(1, b'x' * 1000)"]
)
def test_a_program_whose_output_nobody_reads_any_more_is_not_started_again(tmp_path, text):
    process = started(tmp_path, script(tmp_path, "life()\n" + text))
    process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(50) in (1, 120, 141)
    assert os.path.getsize(tmp_path / "lives") == 1
    assert "nobody reads its standard output any more" in err
    process.stderr.close()


def test_a_stderr_that_nobody_reads_does_not_hold_the_program_up(tmp_path):
    program = script(tmp_path, "for n in range(100): os.write(2, b'x' * 10000)\nopen('done', 'w').close()")
    source, sink = os.pipe()
    os.close(source)
    process = started(tmp_path, program, stderr=sink)
    os.close(sink)
    assert process.wait(50) == 0
    process.stdout.close()
    assert (tmp_path / "done").exists()


def test_descriptors_that_were_passed_on_are_the_programs_and_no_others(tmp_path):
    text = "os.write(int(sys.argv[1]), b'hello')\nprint(sorted(map(int, os.listdir('/dev/fd'))), flush=True)\nif life() < 3: die()"
    program = script(tmp_path, text)
    source, sink = os.pipe()
    process = started(tmp_path, program, sink, pass_fds=[sink])
    os.close(sink)
    out, _ = process.communicate(timeout=50)
    assert os.read(source, 100) == b"hello" * 3
    os.close(source)
    listed = json.loads(out.splitlines()[-1])
    assert len(set(listed) - {0, 1, 2, sink}) == 1  # the one that lists them


def test_the_environment_tells_the_life_and_the_reason(tmp_path):
    text = "print(os.environ['LETITLOOP_SUPERVISION'].rpartition('@')[0], flush=True)\nif life() < 3: die()"
    program = script(tmp_path, text)
    assert watch(tmp_path, program).out == "1@\n2@SIGKILL\n3@SIGKILL\n"


# --- what runs say


def test_runs_and_show_list_the_restarts(tmp_path):
    program = """
        from letitloop import durable, step
        @durable(goal_id="listed")
        def listed():
            step("one", abs, 1)
            if life() < 3: die()
        listed()
    """
    assert watch(tmp_path, script(tmp_path, program)).code == 0
    (run,) = json.loads(python(tmp_path, "-m", "letitloop", "runs", "--json").stdout)
    assert (run["lives"], run["restarts"]) == (3, 2)
    shown = json.loads(python(tmp_path, "-m", "letitloop", "show", run["run"], "--json").stdout)
    assert [life["restarted_after"] for life in shown["lives"]] == [None, "SIGKILL", "SIGKILL"]
    text = python(tmp_path, "-m", "letitloop", "show", run["run"]).stdout
    assert text.count("SIGKILL; restarted by its watcher") == 2
    assert "3 (2 restarts)" in python(tmp_path, "-m", "letitloop", "runs").stdout


@pytest.mark.parametrize("options", ["", "goal_id='named'", "on_complete='restart'", "on_complete='raise'", "goal_id=lambda: 'x'"])
def test_a_finished_run_is_not_done_again_because_its_process_died_later(tmp_path, options):
    program = f"""
        from letitloop import durable, step
        @durable({options})
        def work():
            with open("worked", "a") as file: file.write("x")
            return step("value", lambda: os.getpid())
        print(work(), flush=True)
        if life() < 4: die()
    """
    done = watch(tmp_path, script(tmp_path, program))
    assert done.code == 0, done.err
    assert os.path.getsize(tmp_path / "worked") == 1
    assert len(set(done.out.split())) == 1
    assert len(done.out.split()) == 4


def test_an_unnamed_function_still_runs_whenever_it_is_called(tmp_path):
    program = """
        from letitloop import durable, step
        @durable
        def tick():
            with open("ticks", "a") as file: file.write("x")
            return os.path.getsize("ticks")
        if life() == 1:
            print(tick(), tick(), tick(), flush=True)
            die()
        print(tick(), tick(), flush=True)  # the one that had just finished, and a new one
        if life() == 3: die()
        print(tick(), flush=True)
    """
    assert watch(tmp_path, script(tmp_path, program)).out == "1 2 3\n3 4\n4 5\n6\n"


def test_another_supervision_does_the_work_again(tmp_path):
    program = "from letitloop import durable\n@durable\ndef work(): life()\nwork()"
    for lives in (1, 2):
        assert watch(tmp_path, script(tmp_path, program)).code == 0
        assert os.path.getsize(tmp_path / "lives") == lives


# --- alerts


def test_on_restart_gets_each_event(tmp_path):
    program = script(tmp_path, ALWAYS.format("die()"))
    done = watch(tmp_path, "--max-restarts", 2, "--on-restart", "cat >> events", program)
    assert done.code == 137
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert sorted((event["event"], event["attempt"]) for event in events) == [("restart", 1), ("restart", 2), ("stop", 2)]


def test_an_on_restart_that_fails_changes_nothing(tmp_path):
    done = watch(tmp_path, "--on-restart", "no-such-command-at-all", script(tmp_path, TWICE.format("die()")))
    assert done.code == 0


# --- time


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_program_whose_logs_do_not_grow_is_ended_with_a_dump_and_started_again(tmp_path, stubborn):
    program = f"""
        from letitloop import durable, step
        def hang_here():
            if {stubborn}:
                signal.signal(signal.SIGABRT, signal.SIG_IGN)
            while True: signal.pause()
        @durable(goal_id="stalls")
        def stalls():
            step("one", abs, 1)
            if life() == 1: hang_here()
        stalls()
    """
    done = watch(tmp_path, "--stall", 3, "--grace", 0.2, script(tmp_path, program))
    assert (done.code, done.restarts) == (0, 1)
    assert "no log progress for 3 s" in done.events[0]["reason"]
    assert done.events[0]["exit_code"] == (137 if stubborn else 134)
    assert ("in hang_here" in done.err) == (not stubborn)


def test_a_program_that_makes_progress_does_not_stall(tmp_path):
    program = """
        from letitloop import durable, step
        @durable(goal_id="slow")
        def slow():
            for n in range(40):
                step("wait", lambda n: time.sleep(0.1), n)
        slow()
    """
    done = watch(tmp_path, "--stall", 3, script(tmp_path, program))
    assert (done.code, done.restarts) == (0, 0)


def test_a_life_that_lasts_too_long_is_ended(tmp_path):
    done = watch(tmp_path, "--timeout", 3, script(tmp_path, "if life() < 3: signal.pause()"))
    assert (done.code, done.restarts) == (0, 2)
    assert "a life of more than 3 s" in done.events[0]["reason"]


def test_what_hangs_for_ever_uses_its_budget_up(tmp_path):
    program = script(tmp_path, "signal.pause()")
    done = watch(tmp_path, "--timeout", 0.2, "--restart-on", "crash", "--max-restarts", 1, program)
    assert (done.code, done.restarts, done.end["ended_by"]) == (134, 1, "budget")
