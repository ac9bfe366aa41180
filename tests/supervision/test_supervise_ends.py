"""``supervise`` of functions that fail, and of processes that end otherwise: what is tried again, what is raised, what is told."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

import pytest

from letitloop import Halt, InvalidArgument, ProcessDied, StepChanged, StepOutsideRun, UnencodableError, UnknownOutcome, supervise
from tests.supervision.helpers import die, lives, python, quick, script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


class OwnError(Exception):
    def __init__(self, message, *, number):
        super().__init__(message)
        self.number = number


def test_an_exception_is_the_functions_own_with_its_traceback(tmp_path):
    @supervise(max_restarts=2, **quick)
    def fails():
        lives(tmp_path / "lives")
        raise OwnError("no luck", number=7)

    with pytest.raises(OwnError, match="no luck") as caught:
        fails()
    assert caught.value.number == 7
    assert "in fails" in str(caught.value.__cause__)
    assert lives(tmp_path / "lives") == 4
    if sys.version_info >= (3, 11):
        assert "not called again after 2 restarts: the budget" in caught.value.__notes__[0]


def test_an_exception_may_pass(tmp_path):
    @supervise(**quick)
    def flaky():
        if lives(tmp_path / "lives") < 3:
            raise ConnectionError
        return "done"

    assert flaky() == "done"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StepChanged("changed", step="x", arguments=("a",)), StepChanged),
        (UnknownOutcome("unknown", key="k"), UnknownOutcome),
        (ImportError("no module"), ImportError),
        (InvalidArgument("bad"), InvalidArgument),
        (StepOutsideRun("outside"), StepOutsideRun),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (SystemExit(3), SystemExit),
        (SystemExit("text"), SystemExit),
        (SystemExit(), SystemExit),
        (asyncio.CancelledError(), asyncio.CancelledError),
    ],
    ids=repr,
)
def test_what_cannot_pass_by_itself_is_raised_at_once(tmp_path, error, kind):
    @supervise(**quick)
    def fails():
        lives(tmp_path / "lives")
        raise error

    with pytest.raises(kind) as caught:
        fails()
    assert str(caught.value) == str(error)
    assert lives(tmp_path / "lives") == 2
    if isinstance(error, Halt):
        assert vars(caught.value) == vars(error)
    if isinstance(error, SystemExit):
        assert caught.value.code == error.code


def test_a_halt_has_its_exit_code_in_the_callers_process_too(tmp_path):
    program = """
        from letitloop import UnknownOutcome, supervise
        @supervise
        def halts(): raise UnknownOutcome("so")
        if __name__ == "__main__": halts()
    """
    python(tmp_path, str(script(tmp_path, program)), code=80)


def test_sys_exit_with_a_code_that_was_named(tmp_path):
    @supervise(restart_on="exit:3", **quick)
    def leaves():
        if lives(tmp_path / "lives") < 3:
            sys.exit(3)
        return "done"

    assert leaves() == "done"


def test_a_process_that_dies_too_often(tmp_path, capfd):
    seen = []

    @supervise(max_restarts=2, on_restart=seen.append, **quick)
    def dies():
        os.write(2, b"last words\n")
        die(signal.SIGSEGV)

    with pytest.raises(ProcessDied, match=r"ended by SIGSEGV and is not started again: the budget.*last words"[:48]) as caught:
        dies()
    error = caught.value
    assert (error.reason, error.exit_code, error.restarts) == ("SIGSEGV", 139, 2)
    assert error.stderr == ("last words",) or "last words" in error.stderr
    assert [(event.event, event.attempt, event.ended_by) for event in seen] == [
        ("restart", 1, ""),
        ("restart", 2, ""),
        ("stop", 2, "budget"),
    ]
    assert capfd.readouterr().err.count("last words") == 3


def test_os_exit_is_no_result(tmp_path):
    @supervise(**quick)
    def leaves():
        os._exit(0)

    with pytest.raises(ProcessDied, match=r"os\._exit\(0\)"):
        leaves()


def test_a_process_that_dies_after_its_function_returned_has_done_its_work(tmp_path):
    @supervise(**quick)
    def work():
        import atexit

        lives(tmp_path / "lives")
        atexit.register(os.kill, os.getpid(), signal.SIGKILL)
        return "done"

    assert work() == "done"
    assert lives(tmp_path / "lives") == 2


def test_a_result_that_cannot_be_handed_over_is_no_reason_to_try_again(tmp_path):
    @supervise(**quick)
    def work():
        lives(tmp_path / "lives")
        return {"lock": threading.Lock()}

    with pytest.raises(UnencodableError, match=r"cannot be handed to the process that called it.*result\['lock'\]"):
        work()
    assert lives(tmp_path / "lives") == 2


def test_a_callback_that_fails_changes_nothing(tmp_path, capfd):
    @supervise(on_restart=lambda event: 1 / 0, **quick)
    def work():
        if lives(tmp_path / "lives") < 2:
            die()
        return "done"

    assert work() == "done"
    assert "on_restart raised ZeroDivisionError" in capfd.readouterr().err


def test_a_function_that_hangs(tmp_path, capfd):
    @supervise(stall=1, **quick)
    def hangs():
        if lives(tmp_path / "lives") < 2:
            signal.pause()
        return "done"

    assert hangs() == "done"
    said = capfd.readouterr().err
    assert "in hangs" in said
    assert "no log was opened and none grew for 1 s" in said
