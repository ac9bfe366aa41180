"""What others are told of a session: whether what was begun in it has come to its end, and why its program stopped."""

from __future__ import annotations

import subprocess
import sys

import pytest

from letitloop import MemoryStore
from letitloop.integration import sessions
from letitloop.integration.leaves import leaf
from letitloop.integration.sessions import Session
from letitloop.runs.history import _SESSION, list_runs


def status(store):
    (run,) = list_runs(store)
    return run.status


@pytest.mark.parametrize(("begun", "last"), [("run", "result"), ("run agent", "result"), ("run team", "cancelled"), ("", "over")])
def test_a_session_is_finished_when_all_that_was_begun_in_it_is(begun, last):
    store = MemoryStore()
    part = begun.removeprefix("run ") or "crew"
    for number in range(2):  # and it can go on after that
        with Session("one", store=store, kind="test") as session:
            if begun:
                for at in range(number + 1):
                    leaf(session.root(), begun, {"task": at}, lambda: None)
            for at in range(number + 1):
                with session.entered(part) as scope:
                    leaf(scope, "model", {}, lambda: "answer")
                    if at == number:
                        session.close()
                        assert status(store) == "interrupted"
        with Session("one", store=store, kind="test") as session:
            for _ in range(number + 1):
                with session.entered(part) as scope:
                    leaf(scope, "model", {}, lambda: pytest.fail("it is recorded"))
                    leaf(scope, last, {}, lambda: None)
        assert status(store) == "finished"


def test_a_session_in_which_something_was_only_asked_for_is_not_finished():
    store = MemoryStore()
    with Session("one", store=store, kind="test") as session:
        leaf(session.root(), "run agent", {"task": 1}, lambda: None)
    assert status(store) == "interrupted"


def test_what_a_run_says_that_it_is_of_is_a_session():
    assert f"{sessions.__name__}:{sessions._session.__qualname__}" == _SESSION


def test_changed_inputs_have_their_exit_code(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from letitloop.integration.leaves import leaf\n"
        "from letitloop.integration.sessions import Session\n"
        "session = Session('one', store='store')\n"
        "with session.entered('run') as scope:\n"
        "    leaf(scope, 'model', {'prompt': sys.argv[1]}, lambda: print('asked'))\n"
    )
    codes = [
        subprocess.run([sys.executable, str(program), word], cwd=tmp_path, capture_output=True, check=False, timeout=60).returncode
        for word in ("hello", "goodbye", "hello")
    ]
    assert codes == [0, 81, 0]
