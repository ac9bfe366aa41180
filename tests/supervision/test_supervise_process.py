"""The process of a supervised function: what it shares with its caller's, what it leaves, and signals to the caller."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from letitloop import StepOutsideRun, durable, step, supervise
from tests.supervision.helpers import DEADLINE, environment, lives, python, quick, script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def test_what_a_function_changes_in_memory_stays_in_its_process():
    seen = []

    @supervise(**quick)
    def work():
        seen.append(1)
        return len(seen)

    assert (work(), work(), seen) == (1, 1, [])


def test_it_is_outside_the_run_that_it_is_called_in(tmp_path):
    @supervise(**quick)
    def inner():
        return step("inner", os.getpid)

    @durable(goal_id="outer")
    def outer():
        return inner()

    with pytest.raises(StepOutsideRun):
        outer()


def test_inside_a_step_its_result_is_the_steps(tmp_path):
    @supervise(**quick)
    def work(n):
        return lives(tmp_path / "lives") + n

    @durable(goal_id="steps")
    def run():
        return step("work", work, 10)

    assert (run(), run()) == (11, 11)


def test_handlers_at_exit_of_the_parent_are_not_the_childs(tmp_path):
    program = """
        import atexit, threading
        from letitloop import supervise
        atexit.register(lambda: print("at exit in", "parent" if os.getpid() == parent else "child", flush=True))
        parent = os.getpid()
        print("buffered", end=" ")
        @supervise(backoff=0)
        def work():
            atexit.register(lambda: print("the child's own", flush=True))
            threading.Thread(target=lambda: (time.sleep(0.1), print("a thread of the child", flush=True))).start()
        if __name__ == "__main__": work()
    """
    out = python(tmp_path, str(script(tmp_path, program))).stdout
    assert out == "buffered a thread of the child\nthe child's own\nat exit in parent\n"


SIGNALLED = """
    from letitloop import supervise
    @supervise(backoff=0)
    def work():
        try:
            print("ready", flush=True)
            signal.pause()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            {}
        finally:
            print("finally", flush=True)
    if __name__ == "__main__":
        try: print("returned", work(), flush=True)
        except KeyboardInterrupt:
            print("parent interrupted", flush=True)
            raise
"""


@pytest.mark.parametrize(
    ("reaction", "number", "seen", "code"),
    [
        ("raise", 2, ["interrupted", "finally", "parent", "interrupted"], -2),
        ("return 7", 2, ["interrupted", "finally", "returned", "7"], 0),
        ("raise", 15, [], -15),
        ("raise", 9, [], -9),
    ],
)
def test_signals_to_the_caller(tmp_path, reaction, number, seen, code):
    process = subprocess.Popen(
        [sys.executable, str(script(tmp_path, SIGNALLED.format(reaction)))],
        stdout=-1,
        stderr=-1,
        text=True,
        cwd=tmp_path,
        env=environment(),
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=DEADLINE)
    assert (out.split(), process.returncode) == (seen, code)


def test_a_handler_of_the_callers_own_runs_in_the_functions_process_and_then_in_the_callers(tmp_path):
    program = """
        from letitloop import supervise
        def told(*_):
            print("told in", "parent" if os.getpid() == parent else "child", flush=True)
            if os.getpid() != parent: os._exit(9)
        parent = os.getpid()
        signal.signal(signal.SIGTERM, told)
        @supervise(backoff=0)
        def work():
            print("ready", flush=True)
            while True: signal.pause()
        if __name__ == "__main__":
            try: work()
            except Exception as exc: print(type(exc).__name__, exc.exit_code, flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, str(script(tmp_path, program))], stdout=-1, text=True, cwd=tmp_path, env=environment()
    )
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.communicate(timeout=DEADLINE)[0] == "told in child\ntold in parent\nProcessDied 9\n"
