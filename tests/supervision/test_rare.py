"""What happens seldom and must not end a supervision, or hide what ended it."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from letitloop import supervise
from letitloop.supervision import watcher
from letitloop.supervision.deaths import what_ended
from tests.supervision.helpers import DEADLINE, end_of, environment, python, script, started, watch

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def test_colours_hide_no_exception(tmp_path):
    """Python 3.13 colours tracebacks on a terminal."""
    path = script(tmp_path, "def f(): raise ConnectionError('no route')\nf()")
    done = python(tmp_path, str(path), code=None, FORCE_COLOR="1", NO_COLOR="", PYTHON_COLORS="1")
    assert what_ended(done.returncode, done.stderr).cause == "ConnectionError: no route"
    red, end = "\x1b[1;35m", "\x1b[0m"
    said = f'Traceback (most recent call last):\n  File {red}"x.py"{end}, line {red}1{end}, in {red}f{end}\n    f()\n'
    death = what_ended(1, f"{said}{red}ConnectionError{end}: {red}no route{end}\n")
    assert (death.crashed, death.cause) == (True, "ConnectionError: no route")


TABLE = [
    # name, program, options, restarts, exit code
    ("exit 80 that says nothing", "life(); sys.exit(80)", ("--restart-on", "any"), 0, 80),
    ("exit 81 behind a shell", "life(); sys.exit(81)", ("--restart-on", "any"), 0, 81),
    ("exit 80, named", "sys.exit(80 if life() < 3 else 0)", ("--restart-on", "exit:80"), 2, 0),
    (
        "a traceback that was logged",
        "import logging\nlife()\ntry: 1/0\nexcept Exception: logging.exception('x')\nsys.exit(3)",
        (),
        0,
        3,
    ),
    ("a NUL and half a character in the message", "if life() < 3: raise ConnectionError('a \\0 b \\ud800 c')", (), 2, 0),
    (
        "UnknownOutcome, and a failure at exit",
        "import atexit\nfrom letitloop import *\natexit.register(lambda: 1/0)\n@durable\ndef f(): raise UnknownOutcome('so')\nf()",
        (),
        0,
        80,
    ),
]


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_deaths(tmp_path, row):
    _, program, options, restarts, code = row
    path = script(tmp_path, program)
    words = ("--", "sh", "-c", f"{sys.executable} {path} 2>/dev/null") if "shell" in row[0] else (path,)
    done = watch(tmp_path, *options, *words)
    assert (done.code, done.restarts) == (code, restarts), done.err


@pytest.mark.parametrize("leave", ["os.setpgrp()", "os.setsid()"])
def test_a_program_that_leaves_its_group_is_told_too(tmp_path, leave):
    text = f"""
        {leave}
        def told(number, frame): raise SystemExit(7)
        signal.signal(signal.SIGTERM, told)
        print("ready", flush=True)
        while True: signal.pause()
    """
    process = started(tmp_path, script(tmp_path, text))
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert end_of(process).code == 7


def test_what_it_has_started_in_a_group_of_its_own_is_killed_with_it(tmp_path):
    """As ``timeout 100 python agent.py`` does; both streams end, so nobody is left behind."""
    text = """
        import subprocess
        os.setpgrp()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import signal; print('child', flush=True); signal.pause()"])
        print("ready", flush=True)
        while True: signal.pause()
    """
    process = started(tmp_path, "--grace", 0.2, script(tmp_path, text))
    assert {process.stdout.readline(), process.stdout.readline()} == {"ready\n", "child\n"}
    process.terminate()
    assert end_of(process).code == 137


PROGRESS = """
    from letitloop import durable, step
    n_life = life()
    from letitloop.store.supervised import levels
    (level,) = levels()
    assert os.path.exists(level.file)
    if {removes}: os.unlink(level.file)
    @durable(goal_id="further")
    def steps():
        for n in range(5):
            step("part", abs, n)
            if n == n_life - 1: die()
    steps()
"""


@pytest.mark.parametrize("removes", [True, False])
def test_progress_is_seen_though_somebody_cleans_up_and_names_are_odd(tmp_path, removes):
    odd = tmp_path / "a:b%25c"
    odd.mkdir()
    program = script(tmp_path, PROGRESS.format(removes=removes))
    done = watch(tmp_path, "--max-rapid-failures", 2, "--max-restarts", 50, program, env=environment(TMPDIR=str(odd)))
    assert (done.code, done.restarts) == (0, 5), done.err
    assert all(event["progress"] for event in done.events)
    assert not os.listdir(odd)


def test_a_json_line_stands_alone_though_the_program_died_in_the_middle_of_one(tmp_path):
    text = "sys.stderr.write('progress 50%'); sys.stderr.flush()\nif life() < 3: die()"
    done = watch(tmp_path, script(tmp_path, text))
    assert (done.code, len(done.events)) == (0, 2)


@pytest.mark.parametrize("waiting", [False, True])
def test_a_signal_that_ends_it_is_told_to_machines(tmp_path, waiting):
    text = "print('ready', flush=True)\nsignal.pause()" if not waiting else "die()"
    process = started(tmp_path, "--on-restart", "cat >> events", "--backoff", 3000, "--max-backoff", 3000, script(tmp_path, text))
    if waiting:
        assert '"restart"' in process.stderr.readline()
    else:
        process.stdout.readline()
    process.terminate()
    done = end_of(process)
    assert done.code == 143
    assert (done.end["ended_by"], done.end["wait"]) == ("signal", 0.0)
    assert "SIGTERM" in done.end["why"]
    assert '"ended_by": "signal"' in (tmp_path / "events").read_text()


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_machine_that_has_no_room_for_a_moment_is_waited_for(tmp_path, monkeypatch, number):
    failures = iter([False, True, True])
    stock = watcher.Child

    def child(*args, **options):
        if next(failures, False):
            raise OSError(number, os.strerror(number))
        return stock(*args, **options)

    monkeypatch.setattr(watcher, "Child", child)

    @supervise(backoff=0.0)
    def dies_once():
        with open(tmp_path / "lives", "a") as file:
            file.write("x")
        if os.path.getsize(tmp_path / "lives") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    assert dies_once() == "done"
    assert next(failures, None) is None


def test_a_program_that_is_being_written_is_tried_again(tmp_path):
    """ETXTBSY, as while a new version is put in place."""
    program = tmp_path / "program"
    shutil.copy("/bin/true", program)
    program.chmod(0o755)
    with program.open("r+b"):
        process = started(tmp_path, "--backoff", 0.1, "--max-backoff", 0.1, "--", program)
        assert "cannot be started" in process.stderr.readline()
    assert end_of(process).code == 0


def test_orphans_are_reaped_by_the_first_process_of_a_container(tmp_path):
    text = """
        import subprocess
        for _ in range(3): subprocess.Popen(["sleep", "1000"])
        if life() < 3: die()
    """
    program = f"""
        import ctypes, os
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # as process 1: orphans become its children
        from letitloop.cli import main
        sys.argv[1:] = ["watch", "--backoff", "0", {str(script(tmp_path, text))!r}]
        try: main()
        except SystemExit as end: print("code", end.code)
        try: print("left", os.waitpid(-1, os.WNOHANG))
        except ChildProcessError: print("none left")
    """
    container = script(tmp_path, program, "container.py")
    assert python(tmp_path, str(container)).stdout.split("\n")[:2] == ["code 0", "none left"]


def test_a_watcher_is_not_held_up_by_lines_that_nobody_reads(tmp_path):
    program = script(
        tmp_path,
        """
        from letitloop.supervision.reports import Teller
        source, sink = os.pipe()
        os.set_blocking(sink, False)
        try:
            while True: os.write(sink, bytes(4096))
        except BlockingIOError: pass
        os.set_blocking(sink, True)
        os.dup2(sink, 2)
        Teller().say("x" * 100_000)
        print("on")
        """,
    )
    done = subprocess.run(
        [sys.executable, str(program)], env=environment(), stdout=subprocess.PIPE, timeout=DEADLINE, check=True, text=True
    )
    assert done.stdout == "on\n"


def test_a_guard_that_somebody_ended_is_no_reason_to_stop_watching(tmp_path):
    text = """
        print("ready", os.getpgrp(), flush=True)
        sys.stdin.readline()
        sys.exit(5)
    """
    process = started(tmp_path, script(tmp_path, text), stdin=subprocess.PIPE)
    _, group = process.stdout.readline().split()
    os.kill(int(group), signal.SIGKILL)
    process.stdin.write("go\n")
    assert end_of(process).code == 5


@pytest.mark.parametrize(("together", "handles", "code"), [(1, True, 7), (2, True, 7), (1, False, -15), (2, False, -15)])
def test_sigterm_to_the_caller_of_an_async_function_is_told_to_its_process(tmp_path, together, handles, code):
    text = f"""
        import asyncio
        from letitloop import supervise

        @supervise
        async def work(number):
            def told(*_): raise SystemExit(7)
            if {handles}: signal.signal(signal.SIGTERM, told)
            try:
                os.write(1, b"ready\\n")
                while True: signal.pause()
            finally:
                os.write(1, b"finally\\n")

        async def main():
            await asyncio.gather(*(work(n) for n in range({together})), return_exceptions=True)
            print("never", flush=True)

        asyncio.run(main())
    """
    path = script(tmp_path, text)
    process = subprocess.Popen([sys.executable, str(path)], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True)
    assert [process.stdout.readline() for _ in range(together)] == ["ready\n"] * together
    process.terminate()
    out, _ = process.communicate(timeout=DEADLINE)
    assert out == "finally\n" * together * handles
    assert process.returncode == code


def test_a_handler_of_the_users_own_loop_stays_in_charge(tmp_path):
    text = """
        import asyncio
        from letitloop import supervise

        @supervise
        async def work():
            print("ready", flush=True)
            while not os.path.exists("go on"): time.sleep(0.01)
            return "done"

        async def main():
            told = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, lambda: (told.set(), open("go on", "w").close()))
            print(await work(), told.is_set(), loop.remove_signal_handler(signal.SIGTERM), flush=True)

        asyncio.run(main())
    """
    path = script(tmp_path, text)
    process = subprocess.Popen([sys.executable, str(path)], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    out, _ = process.communicate(timeout=DEADLINE)
    assert (out, process.returncode) == ("done True True\n", 0)


ON_A_THREAD = """
    import threading
    from letitloop import supervise

    @supervise(grace={grace}, start={start!r})
    def work():
        {first}
        with open("pid", "w") as file: file.write(str(os.getpid()))
        try:
            print("ready", flush=True)
            while True: signal.pause()
        finally:
            print("on standard error", file=sys.stderr, flush=True)
            print("finally", flush=True)

    if __name__ == "__main__":
        thread = threading.Thread(target=work)
        thread.start()
        if {joins}: thread.join()
"""
HANDLES = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
IGNORES = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
linux_alone = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")


def caller(folder, text, **options):
    """Start a program; return it when its supervised function runs."""
    process = subprocess.Popen(
        [sys.executable, str(script(folder, text))], cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True, **options
    )
    assert process.stdout.readline() == "ready\n"
    return process


def see_it_end(folder):
    """Wait for the function's process to end, for ever."""
    see_end(int((folder / "pid").read_text()))


def see_end(pid):
    """Wait for a process to end, for ever: one that nobody has waited for yet has ended."""
    try:
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
            pass
    except OSError:
        return


@linux_alone
@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("number", "first", "grace", "said"),
    [
        (signal.SIGTERM, HANDLES, 10.0, True),
        (signal.SIGHUP, HANDLES, 10.0, True),
        (signal.SIGTERM, "pass", 10.0, False),  # it ends the process as it ended the caller
        (signal.SIGTERM, IGNORES, 0.2, False),  # killed when that time is over
        (signal.SIGTERM, HANDLES, 0, False),
        (signal.SIGKILL, IGNORES, 10.0, False),  # it asks for no time
    ],
)
def test_a_signal_that_ends_the_caller_on_a_thread_is_told_to_the_process(tmp_path, start, number, first, grace, said):
    text = ON_A_THREAD.format(start=start, first=first, grace=grace, joins=start == "fork")
    process = caller(tmp_path, text, stderr=subprocess.PIPE)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=DEADLINE)  # the end of its streams: nothing is left
    assert process.returncode == -number
    assert (out, "on standard error" in err) == ("finally\n" * said, said)


@linux_alone
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_it_is_told_too_if_somebody_has_waited_for_the_caller_at_once(tmp_path, start):
    for _ in range(10):
        process = caller(tmp_path, ON_A_THREAD.format(start=start, first=HANDLES, grace=10.0, joins=True), stderr=subprocess.PIPE)
        process.terminate()
        process.wait(DEADLINE)  # before the guard can look
        assert process.communicate(timeout=DEADLINE)[0] == "finally\n"


@linux_alone
@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("leaves", ["pass", "os.setsid()"])
@pytest.mark.timeout(60)
def test_the_callers_death_on_a_thread_leaves_nobody_behind(tmp_path, start, number, leaves):
    process = caller(tmp_path, ON_A_THREAD.format(start=start, first=leaves, grace=10.0, joins=True), stderr=subprocess.PIPE)
    os.kill(process.pid, number)
    process.communicate(timeout=DEADLINE)
    see_it_end(tmp_path)


@linux_alone
@pytest.mark.parametrize("ends", ["os.write(2, b'x' * 300_000)", "while True: os.write(2, b'x' * 65536)"])
@pytest.mark.timeout(60)
def test_what_nobody_reads_does_not_keep_the_process_of_a_dead_caller_alive(tmp_path, ends):
    first = f"""
        def told(*_):
            {ends}
        signal.signal(signal.SIGTERM, told)
    """
    first = first.strip().replace("\n        ", "\n        ")
    source, sink = os.pipe()  # a reader that is there, and does not read
    process = caller(tmp_path, ON_A_THREAD.format(start="fork", first=first, grace=0.5, joins=True), stderr=sink)
    os.close(sink)
    process.terminate()
    process.communicate(timeout=DEADLINE)  # its standard output ends when the process does
    see_it_end(tmp_path)
    os.close(source)


@linux_alone
@pytest.mark.timeout(60)
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_guard_does_not_wait_for_a_reader_that_is_gone(tmp_path, start):
    source, sink = os.pipe()
    process = caller(tmp_path, ON_A_THREAD.format(start=start, first=HANDLES, grace=600.0, joins=True), stderr=sink)
    guard = os.getpgid(int((tmp_path / "pid").read_text()))
    os.close(sink)
    os.close(source)
    process.terminate()
    process.wait(DEADLINE)
    see_it_end(tmp_path)
    see_end(guard)
    process.stdout.close()


@linux_alone
@pytest.mark.parametrize("blocking", [True, False])
def test_all_that_a_process_writes_after_its_callers_death_arrives(tmp_path, blocking):
    first = f"{HANDLES}; import atexit; atexit.register(lambda: [os.write(2, b'x' * 100) for _ in range(3000)])"
    source, sink = os.pipe()
    os.set_blocking(sink, blocking)
    process = caller(tmp_path, ON_A_THREAD.format(start="fork", first=first, grace=10.0, joins=True), stderr=sink)
    os.close(sink)
    process.terminate()
    process.wait(DEADLINE)
    found = b""
    while data := os.read(source, 65536):
        found += data
    process.communicate(timeout=DEADLINE)
    os.close(source)
    assert found.count(b"x") == 300_000 + found.count(b"ex")


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "<&- 2>&-"])
def test_a_function_on_a_thread_needs_no_standard_streams(tmp_path, closed):
    path = script(
        tmp_path,
        """
        import threading
        from letitloop import supervise
        @supervise(max_restarts=0)
        def work(): return 42
        def keep():
            with open("result", "w") as file: file.write(str(work()))
        thread = threading.Thread(target=keep); thread.start(); thread.join()
        """,
    )
    subprocess.run(["sh", "-c", f"{sys.executable} {path} {closed}"], cwd=tmp_path, env=environment(), check=True, timeout=DEADLINE)
    assert (tmp_path / "result").read_text() == "42"


def test_arguments_are_not_left_lying_about_by_a_killed_caller(tmp_path):
    text = """
        from letitloop import supervise
        @supervise(start="spawn")
        def work(secret):
            print("ready", flush=True)
            signal.pause()
        if __name__ == "__main__": work("what nobody else may see")
    """
    (tmp_path / "temporary").mkdir()
    process = subprocess.Popen(
        [sys.executable, str(script(tmp_path, text))],
        cwd=tmp_path, env=environment(TMPDIR=str(tmp_path / "temporary")), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate(timeout=DEADLINE)
    assert not [file for file in (tmp_path / "temporary").iterdir() if b"nobody else" in file.read_bytes()]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_what_asks_a_program_to_end_is_no_reason_to_start_it_again(tmp_path, start):
    text = f"""
        from letitloop import supervise
        class Stop(BaseException): pass
        @supervise(backoff=0, start={start!r})
        def work():
            life()
            raise Stop("enough")
        if __name__ == "__main__":
            try: work()
            except BaseException as error: print(error)
    """
    done = python(tmp_path, str(script(tmp_path, text)))
    assert "enough" in done.stdout
    assert os.path.getsize(tmp_path / "lives") == 1
