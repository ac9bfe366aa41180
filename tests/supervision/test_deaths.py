"""How a death is told apart: from what real interpreters say when they end."""

from __future__ import annotations

import sys
from textwrap import dedent

import pytest

from letitloop.runs.exits import exit_code
from letitloop.supervision.deaths import what_ended
from tests.supervision.helpers import python, script

LOOP = "from letitloop import StepChanged, UnknownOutcome, durable, step\n"


def ended(folder, text, *words):
    path = script(folder, text)
    done = python(folder, str(path), *words, code=None)
    return what_ended(done.returncode, done.stderr)


@pytest.mark.parametrize(
    ("text", "cause", "permanent"),
    [
        ("def f(:\n    pass", "SyntaxError: ", "the target cannot be compiled"),
        ("if True:\nx = 1", "IndentationError: ", "the target cannot be compiled"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'", "the target cannot be imported"),
        ("from os import no_such_name", "ImportError: cannot import name", "the target cannot be imported"),
        ("import other", "ZeroDivisionError: division by zero", ""),
        ("def f():\n    import no_such_module\nf()", "ModuleNotFoundError: ", ""),
        ("def f():\n    exec('(')\nf()", "SyntaxError: ", ""),
        ("def f():\n    raise ValueError('no\\nluck')\nf()", "ValueError: no", ""),
        ("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise OSError(28, 'full') from e", "OSError: [Errno 28] full", ""),
        ("import json\njson.loads('x')", "json.decoder.JSONDecodeError: Expecting value", ""),
        ("raise KeyError('x')", "KeyError: 'x'", ""),
    ],
)
def test_exceptions(tmp_path, text, cause, permanent):
    (tmp_path / "other.py").write_text("1 / 0")
    death = ended(tmp_path, text)
    assert death.crashed
    assert death.cause.startswith(cause)
    assert death.permanent == permanent
    assert death.code == 1


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups are there from 3.11 on")
def test_a_group_is_an_exception_too(tmp_path):
    death = ended(tmp_path, "raise ExceptionGroup('two', [ValueError(1), KeyError(2)])")
    assert (death.crashed, death.permanent) == (True, "")
    assert death.cause.startswith("ExceptionGroup: two")


@pytest.mark.parametrize(
    ("text", "code", "permanent"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit('sorry')", 1, ""),
        ("import argparse; argparse.ArgumentParser().parse_args()", 2, "command line"),
    ],
)
def test_exits_are_no_crashes(tmp_path, text, code, permanent):
    death = ended(tmp_path, text, "-x")
    assert (death.code, death.crashed) == (code, False)
    assert permanent in death.permanent
    assert bool(permanent) == bool(death.permanent)


@pytest.mark.parametrize("words", [("missing.py",), ("-m", "no_such_module"), ("-m", "os.no_such"), (".",)])
def test_a_target_that_is_missing(tmp_path, words):
    done = python(tmp_path, *words, code=None)
    assert "nothing to run" in what_ended(done.returncode, done.stderr).permanent


@pytest.mark.parametrize(("name", "code"), [("UnknownOutcome", 80), ("StepChanged", 81)])
@pytest.mark.parametrize(
    "define",
    ["def run(): raise {name}('so')\nrun()", "import asyncio\nasync def run(): raise {name}('so')\nasyncio.run(durable(run)())"],
)
def test_a_halt_has_an_exit_code_of_its_own(tmp_path, name, code, define):
    text = LOOP + ("@durable\n" if "async" not in define else "") + define.format(name=name)
    death = ended(tmp_path, text)
    assert death.code == code
    assert "not mended by another try" in death.permanent


def test_a_halt_that_the_program_swallows_still_ends_it_with_its_code(tmp_path):
    death = ended(
        tmp_path,
        LOOP
        + dedent("""
        @durable
        def run():
            def halts(): raise UnknownOutcome("so")
            try: step("x", halts)
            except BaseException: pass
        run()
        """),
    )
    assert death.code == 80


def test_other_exceptions_keep_the_exit_code_of_python(tmp_path):
    death = ended(
        tmp_path,
        LOOP
        + dedent("""
        import atexit
        atexit.register(lambda: open("at-exit", "w").close())
        @durable
        def run(): raise StepChanged("so")
        try: run()
        except StepChanged: pass
        1 / 0
        """),
    )
    assert death.code == 1
    assert (tmp_path / "at-exit").exists()
    assert exit_code(ValueError()) == 0


def test_a_traceback_that_was_logged_long_before_the_end_is_none(tmp_path):
    death = ended(
        tmp_path,
        """
        import traceback
        try: 1 / 0
        except ZeroDivisionError: traceback.print_exc()
        for n in range(100): print("going on", n, file=sys.stderr)
        sys.exit(1)
        """,
    )
    assert not death.crashed


def test_signals():
    assert (what_ended(-9, "").code, what_ended(-9, "").cause) == (137, "SIGKILL")
    assert what_ended(-11, "Fatal Python error: Segmentation fault\n").signal == 11
    assert what_ended(-64, "").cause in ("SIGRTMAX", "signal 64")


def test_an_unknown_outcome_has_its_exit_code_outside_any_run_too(tmp_path):
    found = ended(
        tmp_path,
        """
        from letitloop import Ledger, MemoryStore
        from letitloop.effects.providers import FunctionProvider

        def lost(**arguments):
            raise ConnectionError("the reply was lost")

        Ledger(store=MemoryStore()).run("shop", "order-1", FunctionProvider(lost, identity="shop"), {"amount": 1})
        """,
    )
    assert found.code == 80
