"""Processes that begin with the framework imported: forked from this one, they start in milliseconds instead of seconds."""

# ruff: noqa: SIM115 - streams that outlive the function that opens them

from __future__ import annotations

import os
import runpy
import sys
import traceback
import types
from pathlib import Path


class Forked:
    """A child process with pipes for its standard streams.

    Args:
        program: what it does, called without arguments.
        place: its working directory, and that of its store.
    """

    def __init__(self, program, place):
        stdin, ours_in = os.pipe()
        ours_out, stdout = os.pipe()
        ours_err, stderr = os.pipe()
        ours, theirs = (ours_in, ours_out, ours_err), (stdin, stdout, stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            _live(program, place, theirs, ours)
        for end in theirs:
            os.close(end)
        self.stdin = open(ours_in, "w", encoding="utf-8", buffering=1)
        self.stdout, self.stderr = open(ours_out, encoding="utf-8"), open(ours_err, encoding="utf-8")
        self.returncode = None

    def wait(self):
        """Return its exit code, or the number of the signal that ended it, negated."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self):
        """End it, if it has not ended, and let go of its streams."""
        if self.returncode is None:
            os.kill(self.pid, 9)
            self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()


def _live(program, place, ends, others):
    code = 1
    try:
        for end in others:
            os.close(end)
        for target, end in enumerate(ends):
            os.dup2(end, target)
            os.close(end)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=1), open(2, "w", buffering=1)
        for name in [name for name in os.environ if name.startswith("LETITLOOP_")]:
            del os.environ[name]
        os.chdir(place)
        program()
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def script(path, place, *arguments):
    """Start a Python file as a program."""

    def program():
        sys.argv[:] = [str(path), *arguments]
        sys.path.insert(0, str(Path(path).parent))
        runpy.run_path(str(path), run_name="__main__")

    return Forked(program, place)


def text(source, place, *arguments):
    """Start a program that is given as text, like ``python -c``."""

    def program():
        sys.argv[:] = ["-c", *arguments]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(source, "<program>", "exec"), main.__dict__)

    return Forked(program, place)
