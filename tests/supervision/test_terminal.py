"""The watched program has the terminal: colours, input, Ctrl+C, Ctrl+Z. The terminals are real, as those of ``script`` are."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shlex
import signal
import struct
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.supervision.helpers import DEADLINE, environment, script

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="this system has no terminals of that kind")


class Session:
    """A program that leads a session of its own on a terminal of its own."""

    def __init__(self, folder, *words, size=(24, 80)):
        self.pid, self.master = pty.fork()
        if not self.pid:
            os.chdir(folder)
            os.execvpe(words[0], [str(word) for word in words], environment(PS1="$ ", TERM="xterm"))
        self.seen = ""
        self.resize(*size)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.master, text.encode())

    def until(self, text):
        """Read until a text is on the screen that was not there when the last one was found; return what came."""
        end = time.monotonic() + DEADLINE
        while text not in self.seen:
            assert select.select([self.master], [], [], max(0.0, end - time.monotonic()))[0], f"no {text!r} in {self.seen!r}"
            try:
                data = os.read(self.master, 4096)
            except OSError:
                data = b""
            assert data, f"the terminal was closed, and {text!r} is not in {self.seen!r}"
            self.seen += data.decode("utf-8", "replace")
        before, _, self.seen = self.seen.partition(text)
        return before

    def end(self):
        """Wait for the end of the session's leader; return its exit code."""
        while True:
            try:
                if not os.read(self.master, 4096):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def session(tmp_path):
    made = []

    def make(*words, **options):
        made.append(Session(tmp_path, *words, **options))
        return made[-1]

    yield make
    for one in made:
        try:
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(one.master)


def lil(*words):
    return [sys.executable, "-m", "letitloop", "watch", "--backoff", "0", *words]


def test_the_program_sees_a_terminal_on_all_its_streams(tmp_path, session):
    program = """
        print("terminals:", [os.isatty(n) for n in (0, 1, 2)], os.get_terminal_size(2).columns, os.get_terminal_size(1).columns)
        print("foreground:", os.tcgetpgrp(0) == os.getpgrp())
        print("\\033[31mred\\033[0m", file=sys.stderr)
    """
    one = session(*lil(script(tmp_path, program)), size=(30, 101))
    one.until("terminals: [True, True, True] 101 101")
    one.until("foreground: True")
    assert one.until("red\033[0m\r\n").endswith("\033[31m")
    assert one.end() == 0


def test_the_program_reads_what_is_typed_in_every_life(tmp_path, session):
    program = """
        print("life", life(), flush=True)
        word = input("word? ")
        print("<" + word + ">", flush=True)
        if word != "end": die()
    """
    one = session(*lil(script(tmp_path, program)))
    for word in ("one", "two", "end"):
        one.until("word? ")
        one.type(word + "\n")
        one.until(f"<{word}>")
    assert one.end() == 0


CAREFUL = """
    try:
        print("ready", life(), flush=True)
        while True: signal.pause()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        {}
    finally:
        print("finally", flush=True)
"""


@pytest.mark.parametrize(("reaction", "code"), [("raise", 130), ("sys.exit(7)", 7), ("1 / 0", 1), ("os.kill(os.getpid(), 9)", 137)])
def test_ctrl_c_reaches_the_program_once_and_ends_it_for_good(tmp_path, session, reaction, code):
    one = session(*lil(script(tmp_path, CAREFUL.format(reaction))))
    one.until("ready 1")
    one.type("\x03")
    one.until("interrupted")
    if code != 137:
        one.until("finally")
    assert one.end() == code
    assert os.path.getsize(tmp_path / "lives") == 1


def test_ctrl_c_twice_kills_what_does_not_want_to_end(tmp_path, session):
    program = """
        signal.signal(signal.SIGINT, lambda *_: print("ignored", flush=True))
        print("ready", flush=True)
        while True: signal.pause()
    """
    one = session(*lil("--grace", "3000", script(tmp_path, program)))
    one.until("ready")
    one.type("\x03")
    one.until("ignored")
    one.until("Ctrl+C kills it at once")  # two that come in the same instant are one to any process
    one.type("\x03")
    assert one.end() == 137


def test_ctrl_c_ends_a_program_that_is_stopped(tmp_path, session):
    program = """
        open("pid", "w").write(str(os.getpid()))
        try:
            print("ready", flush=True)
            while True: signal.pause()
        finally:
            print("finally", flush=True)
    """
    one = session(*lil(script(tmp_path, program)))
    one.until("ready")
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").exists() and " T " not in Path(f"/proc/{pid}/stat").read_text():
        pass
    one.type("\x03")
    one.until("finally")
    assert one.end() == 130


def test_ctrl_c_during_backoff(tmp_path, session):
    one = session(*lil("--backoff", "3000", "--max-backoff", "3000", script(tmp_path, "die()")))
    one.until("restart 1 in")
    one.type("\x03")
    assert one.end() == 130


def test_ctrl_c_is_for_the_script_around_the_watcher_too(tmp_path, session):
    command = shlex.join(map(str, lil(script(tmp_path, CAREFUL.format("raise")))))
    one = session("sh", "-c", f"trap 'echo script told' INT; {command}; echo after $?")
    one.until("ready 1")
    one.type("\x03")
    one.until("interrupted")
    one.until("finally")
    one.until("script told")
    one.until("after 130")


SUPERVISED = """
    import asyncio
    from letitloop import supervise
    @supervise
    def work():
        try:
            print("<" + input("word? ") + ">", flush=True)
            while True: signal.pause()
        finally: print("finally", flush=True)
    @supervise
    async def awork():
        try:
            print("ready", flush=True)
            await asyncio.sleep(3000)
        finally: print("finally", flush=True)
    if __name__ == "__main__":
        try: work() if sys.argv[1] == "sync" else asyncio.run(awork())
        except KeyboardInterrupt:
            print("parent told", flush=True)
            raise
"""


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_supervised_function_has_the_terminal_and_its_ctrl_c(tmp_path, session, kind):
    one = session(sys.executable, script(tmp_path, SUPERVISED), kind)
    if kind == "sync":
        one.until("word? ")
        one.type("typed\n")
        one.until("<typed>")
    else:
        one.until("ready\r\n")
    one.type("\x03")
    one.until("finally")
    one.until("parent told")
    assert one.end() == -signal.SIGINT


def test_a_supervised_function_on_a_thread_gets_the_terminal_when_it_reads(tmp_path, session):
    program = """
        import threading
        from letitloop import supervise
        @supervise
        def work(): return input("word? ")
        if __name__ == "__main__":
            thread = threading.Thread(target=lambda: print("<" + work() + ">", flush=True))
            thread.start()
            thread.join()
    """
    one = session(sys.executable, script(tmp_path, program))
    one.until("word? ")
    one.type("typed\n")
    one.until("<typed>")
    assert one.end() == 0


def test_the_terminal_is_put_in_order_after_a_death(tmp_path, session):
    program = """
        import tty
        if life() == 1:
            tty.setraw(0)
            die()
        import termios
        print("sane:", bool(termios.tcgetattr(0)[3] & termios.ICANON))
    """
    one = session(*lil(script(tmp_path, program)))
    one.until("sane: True")
    assert one.end() == 0


@pytest.fixture
def shell(session, tmp_path):
    one = session("sh", "-i")
    one.type("set -m; echo control is $((6 * 7))\n")
    one.until("control is 42")
    return one


def test_ctrl_z_stops_the_job_and_fg_continues_it(tmp_path, shell):
    program = """
        print("ready", flush=True)
        while True: print("<" + input() + ">", flush=True)
    """
    shell.type(shlex.join(map(str, lil(script(tmp_path, program)))) + "\n")
    shell.until("ready")
    for number in (1, 2):
        shell.type("\x1a")
        shell.until("Stopped")
        shell.type(f"echo the shell is back: $(({number} * 11))\n")
        shell.until(f"the shell is back: {number * 11}")
        shell.type("fg\n")
        shell.until("watch")
        shell.type(f"typed {number}\n")
        shell.until(f"<typed {number}>")
    shell.type("\x03")
    shell.until("KeyboardInterrupt")
    shell.until("$ ")
    shell.type("echo code $?\n")
    shell.until("code 130")


def test_a_program_that_stops_itself_stops_the_job(tmp_path, shell):
    program = """
        for _ in range(5): os.kill(os.getpid(), signal.SIGTSTP)  # the next time at once, while the watcher is going on
        print("<" + input() + ">", flush=True)
    """
    shell.type(shlex.join(map(str, lil(script(tmp_path, program)))) + "\n")
    for number in range(1, 6):
        shell.until("Stopped")
        shell.type(f"echo the shell is back: $(({number} * 11))\n")
        shell.until(f"the shell is back: {number * 11}")
        shell.type("fg\n")
        shell.until("watch")
    shell.type("typed\n")
    shell.until("<typed>")
    shell.type("echo code $?\n")
    shell.until("code 0")


def test_time_that_a_job_was_stopped_for_does_not_count(tmp_path, shell):
    program = 'print("ready", life(), flush=True)\nprint("<" + input() + ">", flush=True)'
    shell.type(shlex.join(map(str, lil("--timeout", "5", "--stall", "5", script(tmp_path, program)))) + "\n")
    shell.until("ready 1")
    shell.type("\x1a")
    shell.until("Stopped")
    shell.type("sleep 6; echo slept $((6 * 7))\n")
    shell.until("slept 42")
    shell.type("fg\n")
    shell.until("watch")
    shell.type("typed\n")
    shell.until("<typed>")
    shell.type("echo code $?\n")
    shell.until("code 0")
    assert os.path.getsize(tmp_path / "lives") == 1


def test_in_the_background_a_job_stops_when_it_reads_and_goes_on_in_the_foreground(tmp_path, shell):
    program = 'print("ready", flush=True)\nprint("<" + input() + ">", flush=True)'
    shell.type(shlex.join(map(str, lil(script(tmp_path, program)))) + " &\n")
    shell.until("ready")
    shell.type("wait; jobs; echo listed $((6 * 7))\n")
    shell.until("listed 42")
    shell.type("fg\n")
    shell.until("watch")
    shell.type("typed\n")
    shell.until("<typed>")
    shell.type("echo code $?\n")
    shell.until("code 0")


def test_a_job_can_be_continued_in_the_background(tmp_path, shell):
    program = """
        signal.signal(signal.SIGCONT, lambda *_: os.write(1, b"continued\\n"))
        os.write(1, b"ready\\n")
        while not os.path.exists("end"): time.sleep(0.01)
    """
    shell.type(shlex.join(map(str, lil(script(tmp_path, program)))) + "\n")
    shell.until("ready")
    shell.type("\x1a")
    shell.until("Stopped")
    shell.type("bg\n")
    shell.until("continued")
    shell.type("touch end; wait; echo code $?\n")
    shell.until("code 0")


def test_the_end_of_a_terminal_ends_the_program(tmp_path, session):
    program = """
        def told(*_):
            open("told", "w").close()
            sys.exit(0)
        signal.signal(signal.SIGHUP, told)
        print("ready", flush=True)
        while True: signal.pause()
    """
    one = session(*lil(script(tmp_path, program)))
    one.until("ready\r\n")
    os.close(one.master)
    one.master = os.open(os.devnull, os.O_RDONLY)
    assert os.waitstatus_to_exitcode(os.waitpid(one.pid, 0)[1]) in (0, 129, 143)
    assert (tmp_path / "told").exists()


def test_without_a_terminal_on_standard_input_ctrl_c_still_works(tmp_path, session):
    command = shlex.join(map(str, lil(script(tmp_path, CAREFUL.format("raise")))))
    one = session("sh", "-c", f"exec {command} < /dev/null 2> errors | cat")
    one.until("ready 1")
    one.type("\x03")
    one.end()
    assert os.path.getsize(tmp_path / "lives") == 1
