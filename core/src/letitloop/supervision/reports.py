"""What a watcher tells: one line an event on standard error, for people or as JSON, and a command or a function for alerts."""

from __future__ import annotations

import os
import sys
import time
from copy import copy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["SupervisionEvent", "Teller"]

_LINES = 20  # of standard error, in an event
_WIDTH = 500  # characters of each
_PIECE = 4096  # bytes that a pipe with room takes without waiting


class SupervisionEvent:
    """What a watcher tells of a death.

    Attributes:
        event: ``"restart"``, or ``"stop"`` if it is not started again.
        target: what is watched.
        pid: the process that died.
        reason: how it died: ``SIGKILL``, ``exit code 3``, ``ValueError: no luck``.
        exit_code: its exit code; 128+n for signal n.
        lived: how many seconds it lived.
        attempt: which restart it is, from 1; for a stop, how many there were.
        wait: seconds until the restart; 0 for a stop.
        ended_by: for a stop ``"death"``, ``"budget"``, ``"breaker"`` or ``"signal"``; else empty.
        why: for a stop, why it is not started again.
        progress: whether the process got further than those before it.
        runs: what the logs say, a line a run: ``resuming customer_sync at step 7 of 7 recorded``.
        causes: how often each cause has ended the process.
        stderr: the last lines that it wrote to standard error.
    """

    __slots__ = (
        "attempt",
        "causes",
        "ended_by",
        "event",
        "exit_code",
        "lived",
        "pid",
        "progress",
        "reason",
        "runs",
        "stderr",
        "target",
        "wait",
        "why",
    )

    def __init__(
        self,
        event: str,
        *,
        target: str,
        pid: int,
        reason: str,
        exit_code: int,
        lived: float,
        attempt: int,
        progress: bool,
        runs: list[str],
        causes: dict[str, int],
        stderr: str,
        wait: float = 0.0,
        ended_by: str = "",
        why: str = "",
    ) -> None:
        self.event = event
        self.target = target
        self.pid = pid
        self.reason = reason
        self.exit_code = exit_code
        self.lived = lived
        self.attempt = attempt
        self.wait = wait
        self.ended_by = ended_by
        self.why = why
        self.progress = progress
        self.runs = tuple(runs)
        self.causes = dict(causes)
        self.stderr = tuple(line[:_WIDTH] for line in stderr.splitlines()[-_LINES:])

    def __repr__(self) -> str:
        return f"<{self.event} of {self.target} after {self.reason}>"

    def stopped(self, why: str) -> SupervisionEvent:
        """Return what is told if the restart that this tells of does not come: a signal has ended the supervision."""
        event = copy(self)
        event.event, event.wait, event.ended_by, event.why = "stop", 0.0, "signal", why
        return event

    def as_data(self) -> dict[str, Any]:
        """Return everything that it says, for JSON."""
        return {name: getattr(self, name) for name in ("event", *(slot for slot in self.__slots__ if slot != "event"))}


class Teller:
    """Tells events.

    Args:
        as_json: write JSON instead of lines for people.
        command: a shell command that is run for each event, with its JSON on standard input.
        callback: a function that is called with each event.
        raises: the end is told to a caller, by an exception.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        command: str = "",
        callback: Callable[[SupervisionEvent], object] | None = None,
        raises: bool = False,
    ) -> None:
        self._raises = raises
        self._as_json = as_json
        self._command = command
        self._callback = callback
        self._alerts: list[Any] = []

    def tell(self, event: SupervisionEvent, *, aloud: bool = True) -> None:
        """Tell an event to whoever wants to know; nothing fails for it.

        Args:
            event: what happened.
            aloud: tell people as well, who need not be told what they have asked for.
        """
        if self._as_json:
            import json

            self.say(json.dumps(event.as_data()))
        elif aloud and (event.event == "restart" or not self._raises):
            for line in _lines(event):
                self.say(line)
        if self._callback is not None:
            try:
                self._callback(event)
            except Exception as exc:
                self.say(f"letitloop: on_restart raised {type(exc).__name__}: {_printable(str(exc))}; the supervision goes on.")
        if self._command:
            self._alert(event)

    def say(self, line: str) -> None:
        """Write a line to standard error; where there is none, or nobody reads it, nothing is said."""
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        try:
            sys.stderr.flush()
            while data and _takes_more():
                data = data[os.write(2, data[:_PIECE]) :]
        except (AttributeError, OSError, ValueError):
            pass

    def hint(self, line: str) -> None:
        """Tell a person at a terminal something."""
        if not self._as_json and os.isatty(2):
            self.say(line)

    def _alert(self, event: SupervisionEvent) -> None:
        """Start the command and do not wait for it: the restart must not depend on it."""
        import json
        import subprocess
        import tempfile

        self._alerts = [alert for alert in self._alerts if alert.poll() is None]
        if len(self._alerts) >= 8:
            self.say("letitloop: eight commands of --on-restart are still running; this event is not given to one.")
            return
        try:
            with tempfile.TemporaryFile() as file:
                file.write(json.dumps(event.as_data()).encode() + b"\n")
                file.seek(0)
                # its words are the user's own; its output is no part of what the watched program prints
                self._alerts.append(subprocess.Popen(self._command, shell=True, stdin=file, stdout=subprocess.DEVNULL))  # noqa: S602
        except OSError as exc:
            self.say(f"letitloop: --on-restart could not be started: {exc}; the supervision goes on.")

    def close(self, seconds: float = 10.0) -> None:
        """Wait a while for the commands that are still running, so long for all: what is sent to tell of the end should arrive."""
        deadline = time.monotonic() + seconds
        for alert in self._alerts:
            try:
                alert.wait(max(0.0, deadline - time.monotonic()))
            except Exception:  # it takes too long, or somebody else waited for it
                alert.returncode = alert.returncode or 0
        self._alerts.clear()


def _takes_more() -> bool:
    """Wait a second at most for standard error to take a piece: a pipe that nobody reads must not stop the watching."""
    if sys.platform == "win32":
        return True
    import select

    poll = select.poll()
    poll.register(2, select.POLLOUT)
    return bool(poll.poll(1000))


def _lines(event: SupervisionEvent) -> list[str]:
    logs = "".join(f"; {_printable(one)}" for one in event.runs[:3])
    died = f"letitloop: {event.target} (process {event.pid}) ended by {_printable(event.reason)} after {_seconds(event.lived)}"
    if event.event == "restart":
        wait = f"in {_seconds(event.wait)}" if event.wait else "now"
        return [f"{died}; restart {event.attempt} {wait}{logs}"]
    if event.ended_by in ("death", "signal") and not event.attempt:
        return [f"{died}; not started again: {event.why}"]
    counted = sorted(event.causes.items(), key=lambda item: -item[1])
    deaths = ", ".join(f"{count} x {_printable(cause)}" for cause, count in counted[:5])
    restarts = f"{event.attempt} restart{'s' * (event.attempt != 1)}"
    lines = [f"{died}; not started again: {event.why}{logs}", f"letitloop: after {restarts}; deaths: {deaths}"]
    if event.stderr:
        lines += ["letitloop: the last it wrote to standard error:", *(f"  | {_printable(line)}" for line in event.stderr)]
    return lines


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
