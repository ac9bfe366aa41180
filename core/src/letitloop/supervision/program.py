"""What is watched on the command line: a Python script, a module, or any command."""

from __future__ import annotations

import os
import subprocess
import sys

from letitloop.supervision.deaths import what_ended
from letitloop.supervision.signals import Mailbox
from letitloop.supervision.watcher import Watcher, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from letitloop.supervision.deaths import Death
    from letitloop.supervision.policy import Policy
    from letitloop.supervision.reports import Teller
    from letitloop.supervision.watcher import Child, Ending, Limits

__all__ = ["interpreter", "watch_program"]


def interpreter() -> list[str]:
    """Return the command of this interpreter with the flags that it was started with (``-O``, ``-W error``)."""
    flags = getattr(subprocess, "_args_from_interpreter_flags", list)  # what multiprocessing uses; not documented
    return [sys.executable, *flags()]


def watch_program(
    target: str, command: Sequence[str], *, policy: Policy, limits: Limits, teller: Teller, python: bool = False
) -> Ending:
    """Start a program, and again when it dies, as the policy says.

    Args:
        target: what it is called.
        command: the program and its arguments.
        policy: when it is started again.
        limits: how long things may take.
        teller: tells what happens.
        python: whether it is Python, which can tell where it hangs or crashes.
    """
    with Mailbox(everything=True) as mailbox:

        def start(child: Child, told: dict[str, str]) -> None:
            environment = {**os.environ, **told}
            if python:
                environment.setdefault("PYTHONFAULTHANDLER", "1")
            run(child, command, environment, mailbox)

        def judge(child: Child, said: str, by: str) -> Death | None:
            assert child.status is not None
            return what_ended(child.status, said, by=by) if child.status or by else None

        return Watcher(target, start, judge, policy=policy, limits=limits, teller=teller, mailbox=mailbox).watch()
