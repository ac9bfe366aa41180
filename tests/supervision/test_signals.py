"""Ctrl+C, SIGTERM, SIGKILL and what they leave: signals to the watcher and to what it watches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.supervision.helpers import end_of, environment, python, script, started

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

CAREFUL = """
    n = life()
    def told(number, frame): raise SystemExit(f"told {signal.Signals(number).name}")
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT"): signal.signal(getattr(signal, name), told)
    try:
        print("ready", os.getpid(), flush=True)
        while True: signal.pause()
    except KeyboardInterrupt:
        print("KeyboardInterrupt", flush=True)
        raise
    finally:
        print("finally", flush=True)
"""

STUBBORN = """
    life()
    for name in ("SIGINT", "SIGTERM"): signal.signal(getattr(signal, name), lambda *_: print("ignored", flush=True))
    print("ready", os.getpid(), flush=True)
    while True: signal.pause()
"""


def ready(process: subprocess.Popen[str]) -> int:
    """Wait until the program runs; return its process."""
    word, pid = process.stdout.readline().split()
    assert word == "ready"
    return int(pid)


@pytest.mark.parametrize(
    ("name", "code", "seen"),
    [
        ("SIGINT", 130, ["KeyboardInterrupt", "finally"]),
        ("SIGTERM", 1, ["finally"]),
        ("SIGHUP", 1, ["finally"]),
        ("SIGQUIT", 1, ["finally"]),
    ],
)
def test_the_same_signal_goes_to_the_program_whose_handlers_run(tmp_path, name, code, seen):
    process = started(tmp_path, script(tmp_path, CAREFUL))
    ready(process)
    process.send_signal(getattr(signal, name))
    done = end_of(process)
    assert (done.code, done.out.split(), done.restarts) == (code, seen, 0)
    assert os.path.getsize(tmp_path / "lives") == 1
    if name != "SIGINT":
        assert f"told {name}" in done.err


def test_a_signal_ends_the_program_that_has_no_handler(tmp_path):
    process = started(tmp_path, script(tmp_path, 'life()\nprint("ready", os.getpid(), flush=True)\nsignal.pause()'))
    ready(process)
    process.terminate()
    assert end_of(process).code == 143


def test_a_program_that_ends_well_after_a_signal_has_its_own_exit_code(tmp_path):
    text = CAREFUL.replace("        raise\n", "        sys.exit(0)\n")
    process = started(tmp_path, script(tmp_path, text))
    ready(process)
    process.send_signal(signal.SIGINT)
    assert end_of(process).code == 0


def test_a_step_is_interrupted_and_the_run_goes_on_the_next_time(tmp_path):
    program = """
        from letitloop import durable, step
        n = life()
        def wait():
            if n == 1:
                print("ready", os.getpid(), flush=True)
                signal.pause()
            return n
        @durable(goal_id="interrupted")
        def interrupted(): return step("first", abs, -1), step("wait", wait)
        print(interrupted())
    """
    path = script(tmp_path, program)
    process = started(tmp_path, path)
    ready(process)
    process.send_signal(signal.SIGINT)
    assert end_of(process).code == 130
    assert python(tmp_path, str(path)).stdout == "(1, 2)\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_backoff_ends_it_at_once(tmp_path, number, code):
    process = started(tmp_path, "--backoff", 3000, "--max-backoff", 3000, script(tmp_path, "life()\ndie()"))
    assert '"restart"' in process.stderr.readline()
    process.send_signal(number)
    done = end_of(process)
    assert done.code == code
    assert os.path.getsize(tmp_path / "lives") == 1


def test_a_program_that_ignores_sigterm_is_killed_after_its_grace(tmp_path):
    process = started(tmp_path, "--grace", 0.2, script(tmp_path, STUBBORN))
    ready(process)
    process.terminate()
    done = end_of(process)
    assert (done.code, done.out, done.restarts) == (137, "ignored\n", 0)
    assert "did not end within 0.2 s of SIGTERM and was killed" in done.end["why"]


def test_a_second_ctrl_c_kills_at_once(tmp_path):
    process = started(tmp_path, "--grace", 3000, script(tmp_path, STUBBORN))
    ready(process)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "ignored\n"
    process.send_signal(signal.SIGINT)
    assert end_of(process).code == 137


def test_a_second_sigterm_does_not_shorten_the_grace(tmp_path):
    process = started(tmp_path, "--grace", 3000, script(tmp_path, STUBBORN))
    pid = ready(process)
    for _ in range(2):
        process.terminate()
    assert process.stdout.readline() == "ignored\n"
    os.kill(pid, signal.SIGKILL)
    assert end_of(process).code == 137


def test_other_signals_are_passed_on(tmp_path):
    text = """
        signal.signal(signal.SIGUSR1, lambda *_: print("USR1", flush=True))
        signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))
        print("ready", os.getpid(), flush=True)
        while True: signal.pause()
    """
    process = started(tmp_path, script(tmp_path, text))
    ready(process)
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "USR1\n"
    process.send_signal(signal.SIGUSR2)
    assert end_of(process).code == 0


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    command = f'trap "" HUP; exec "{sys.executable}" -m letitloop watch "$0"'
    program = 'print(signal.getsignal(signal.SIGHUP).name, flush=True)\nprint("ready", os.getpid(), flush=True)\nsignal.pause()'
    path = script(tmp_path, program)
    process = subprocess.Popen(
        ["sh", "-c", command, str(path)], stdout=-1, stderr=-1, text=True, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL
    )
    assert process.stdout.readline() == "SIG_IGN\n"
    ready(process)
    process.send_signal(signal.SIGHUP)
    process.terminate()
    assert end_of(process).code == 143


# --- nobody is left behind. A stream comes to its end when the last process that has it is gone: that is what is waited for.

GRANDCHILDREN = """
    import subprocess
    def sleepers(count, *words):
        for _ in range(count):
            subprocess.Popen([*words, "sleep", "3000"], stdin=subprocess.DEVNULL)
"""


def test_the_death_of_the_watcher_ends_the_program_and_what_it_has_started(tmp_path):
    text = (
        GRANDCHILDREN
        + """
    sleepers(3)
    sleepers(1, "nohup")
    print("ready", os.getpid(), flush=True)
    print(os.environ["LETITLOOP_SUPERVISION"].rpartition("@")[2], flush=True)
    signal.pause()
    """
    )
    process = started(tmp_path, script(tmp_path, text))
    ready(process)
    file = process.stdout.readline().strip()
    assert os.path.exists(file)
    process.kill()
    assert end_of(process).code == -signal.SIGKILL
    assert not os.path.exists(file)


@pytest.mark.parametrize("when", ["stubborn", "stopped"])
def test_a_program_that_resists_dies_with_its_watcher_too(tmp_path, when):
    text = STUBBORN if when == "stubborn" else 'print("ready", os.getpid(), flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)'
    process = started(tmp_path, script(tmp_path, text))
    ready(process)
    process.kill()
    end_of(process)


def test_the_guard_alone_ends_the_group(tmp_path):
    """Where the system sends no signal upon a parent's death, the guard does it; it hides nowhere from a signal to the group."""
    text = """
        import ctypes
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
        print("ready", os.getpid(), flush=True)
        os.killpg(0, signal.SIGTERM) if life() == 1 else signal.pause()
    """
    process = started(tmp_path, script(tmp_path, text))
    ready(process)
    ready(process)
    process.kill()
    end_of(process)


def test_a_crowd_of_grandchildren_ends_with_the_program(tmp_path):
    text = GRANDCHILDREN + "    if life() == 1:\n        sleepers(60)\n        die()\n    print('done')\n"
    process = started(tmp_path, script(tmp_path, text))
    done = end_of(process)
    assert (done.code, done.out, done.restarts) == (0, "done\n", 1)


def test_grandchildren_of_a_program_that_succeeds_end_too(tmp_path):
    done = end_of(started(tmp_path, script(tmp_path, GRANDCHILDREN + "    sleepers(5)\n")))
    assert done.code == 0


def test_grandchildren_get_the_signal_too(tmp_path):
    text = """
        import subprocess
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(child.wait()))
        child = subprocess.Popen(["sh", "-c", "trap 'echo child told; exit 0' TERM; echo ready $$; while :; do sleep 0.05; done"])
        while True: signal.pause()
    """
    process = started(tmp_path, script(tmp_path, text))
    ready(process)
    process.terminate()
    done = end_of(process)
    assert "child told" in done.out


# --- many deaths


def test_a_thousand_quick_deaths_leak_nothing(tmp_path):
    program = """
        import gc
        from letitloop.supervision.policy import Policy
        from letitloop.supervision.program import watch_program
        from letitloop.supervision.reports import Teller
        from letitloop.supervision.watcher import Limits

        class Silent(Teller):
            def say(self, line): pass

        def watch(deaths):
            policy = Policy(max_restarts=deaths, max_rapid_failures=0, backoff=0.0)
            ending = watch_program("sh", ["sh", "-c", "kill -9 $$"], policy=policy, limits=Limits(), teller=Silent())
            assert (ending.code, ending.event.attempt) == (137, deaths), ending.code
            gc.collect()
            with open("/proc/self/statm") as file: pages = int(file.read().split()[1])
            children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
            return len(os.listdir("/proc/self/fd")), len(gc.get_objects()), pages * os.sysconf("SC_PAGE_SIZE"), len(children)

        watch(5)
        few, many = watch(100), watch(1000)
        assert many[0] == few[0], (few, many)
        assert many[1] - few[1] < 200, (few, many)
        assert many[2] - few[2] < 4_000_000, (few, many)
        assert many[3] == 0
        print("no leak")
    """
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("this system does not tell a process's descriptors and memory")
    assert python(tmp_path, str(script(tmp_path, program))).stdout == "no leak\n"
