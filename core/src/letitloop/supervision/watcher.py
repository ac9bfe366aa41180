"""Watching: a process is started, attended to, and started again as the policy says, until it is done or given up."""

from __future__ import annotations

import errno
import os
import random
import sys
import time

from letitloop.errors import InvalidArgument
from letitloop.store.supervised import VARIABLE
from letitloop.supervision.deaths import Death, signal_name
from letitloop.supervision.policy import Restarts, check_seconds
from letitloop.supervision.progress import Progress
from letitloop.supervision.reports import SupervisionEvent
from letitloop.supervision.signals import CANCEL, STOPPING, SUSPENDING, numbers

if sys.platform == "win32":
    from letitloop.supervision.child_windows import Child, Terminal, relay, run, run_fresh, stdout_is_read
else:
    from letitloop.supervision.child import Child, Terminal, relay, run, run_fresh, stdout_is_read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from letitloop.supervision.policy import Policy
    from letitloop.supervision.reports import Teller
    from letitloop.supervision.signals import Mailbox

    Start = Callable[[Child, dict[str, str]], None]
    Judge = Callable[[Child, str, str], Death | None]

__all__ = ["Child", "Ending", "Limits", "Watcher", "run", "run_fresh"]

_INTERRUPTS = numbers("SIGINT", "SIGQUIT", "SIGBREAK")
_HANGUP = numbers("SIGHUP")
_TERMINAL = numbers("SIGINT", "SIGQUIT")
_CONTINUE = numbers("SIGCONT")
_ABORT = numbers("SIGABRT")[0]
_LONG = 3600.0
_A_MOMENT = 0.05
_PASSING = frozenset((errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY, errno.ENOSPC))
"""What the system has not enough of for a moment, or a file that is being written."""
_TRIES = 60  # one a second
_PATIENCE = 1.0  # seconds after Ctrl+C until somebody who waits is told what for


class Limits:
    """How long things may take, in seconds.

    Attributes:
        grace: from the signal that ends the process to SIGKILL.
        timeout: the life of a process; None: as long as it likes.
        stall: the time without progress of a log; None: as long as it likes.

    Raises:
        InvalidArgument: a value means nothing.
    """

    __slots__ = ("grace", "stall", "timeout")

    def __init__(self, *, grace: float = 10.0, timeout: float | None = None, stall: float | None = None) -> None:
        check_seconds("grace", grace)
        for name, seconds in (("timeout", timeout), ("stall", stall)):
            if seconds is not None:
                check_seconds(name, seconds)
                if not seconds:
                    raise InvalidArgument(f"{name}=0: nothing could be done in no time. Leave it out for no limit.")
        self.grace = grace
        self.timeout = timeout
        self.stall = stall


class Ending:
    """How a supervision ended.

    Attributes:
        code: the last exit code; 128+n for signal n.
        death: how the last process ended if it did not succeed.
        stopped: the signal that told the watcher to stop, 0 if none did.
        result: what the last process wrote to its result's pipe.
        event: what was told of the end, if anything was.
    """

    __slots__ = ("code", "death", "event", "result", "stopped")

    def __init__(
        self, code: int, *, death: Death | None = None, stopped: int = 0, result: bytes = b"", event: SupervisionEvent | None = None
    ) -> None:
        self.code = code
        self.death = death
        self.stopped = stopped
        self.result = result
        self.event = event


class Watcher:
    """Watches one program or function.

    Args:
        target: what it is called.
        start: starts the process as a child, with what it is to have in its environment.
        judge: tells how a process ended that is told to have written this last, and been ended for that; None: it succeeded.
        policy: when it is started again.
        limits: how long things may take.
        teller: tells what happens.
        mailbox: the signals that arrive; entered by the caller.
        fresh: whether this process must not be forked.
    """

    def __init__(
        self,
        target: str,
        start: Start,
        judge: Judge,
        *,
        policy: Policy,
        limits: Limits,
        teller: Teller,
        mailbox: Mailbox,
        fresh: bool = False,
    ) -> None:
        self._target = target
        self._start = start
        self._judge = judge
        self._restarts = Restarts(policy, random.random)
        self._limits = limits
        self._teller = teller
        self._mailbox = mailbox
        self._fresh = fresh
        self._until: float | None = None  # when a process that was told to end is killed
        self._hint: float | None = None  # when somebody who has pressed Ctrl+C is told what is waited for
        self._timeout: float | None = None
        self._stall: float | None = None
        self._stopping = 0  # the signal that told to stop
        self._killed = False  # and it did not stop within its grace
        self._by = ""  # what the watcher ended the process for
        self._relayed: dict[int, int] = {}
        self._last: SupervisionEvent | None = None

    def watch(self) -> Ending:
        """Watch until the process succeeds, is not started again, or a signal tells to stop."""
        self._terminal = Terminal()
        self._progress = Progress(os.environ.get(VARIABLE, ""))
        try:
            life, wait_until = 1, 0.0
            death: Death | None = None
            while True:
                # made before the wait is over: what takes time need not be waited for then
                child = self._child(death)
                if isinstance(child, Ending):
                    return child
                ending = self._wait(wait_until, death) if death is not None else None
                if ending is not None:
                    child.abandon()
                    return ending
                ending, death, wait_until = self._live(child, life, death.cause if death is not None else "")
                if ending is not None:
                    return ending
                life += 1
        finally:
            self._progress.close()
            self._terminal.close()
            self._teller.close()

    def _child(self, death: Death | None) -> Child | Ending:
        """Make what the next life needs; return the end if a signal tells to stop meanwhile.

        A machine without memory or processes to spare is what a watcher is for: after a first life it waits until there are some.
        """
        for _ in range(_TRIES):
            try:
                return self._new_child()
            except OSError as exc:
                if death is None or exc.errno not in _PASSING:
                    raise
            ending = self._wait(time.monotonic() + 1.0, death)
            if ending is not None:
                return ending
        return self._new_child()

    def _new_child(self) -> Child:
        return Child(self._mailbox, self._terminal, self._progress.file, self._limits.grace, fresh=self._fresh)

    # --- one life ------------------------------------------------------------------------------------------------------------

    def _live(self, child: Child, life: int, reason: str) -> tuple[Ending | None, Death | None, float]:
        """Let the process live once; return the end of it all, or how it died and when it is started again."""
        self._by, self._until, self._hint = "", None, None
        self._progress.begin()
        begun = time.monotonic()
        try:
            self._start(child, self._progress.environment(life, reason))
        except OSError as exc:
            child.abandon()
            code = 127 if isinstance(exc, FileNotFoundError) else 126
            why = f"it cannot be started ({exc.strerror or exc})"
            passing = exc.errno in _PASSING
            return self._died(
                child, Death(code, cause=why if passing else "", crashed=passing, permanent="" if passing else why), "", begun
            )
        except BaseException:
            child.abandon()
            raise
        try:
            self._attend(child, begun)
        except BaseException:
            self._end(child)
            raise
        said = child.finish()
        assert child.status is not None
        death = self._judge(child, said, self._by)
        if death is None:
            return Ending(child.status, result=bytes(child.result), stopped=self._stopping), None, 0.0
        return self._died(child, death, said, begun)

    def _attend(self, child: Child, begun: float) -> None:
        limits = self._limits
        self._timeout = begun + limits.timeout if limits.timeout is not None else None
        self._stall = begun + limits.stall if limits.stall is not None else None
        while child.status is None:
            now = time.monotonic()
            next_look = min(filter(None, (self._until, self._hint, self._timeout, self._stall)), default=now + _LONG)
            for number in child.attend(max(0.0, next_look - now)):
                if number < 0:
                    self._suspend(child, -number)
                elif number in STOPPING:
                    self._stop(child, number, has_it=True)
            for number in self._mailbox.take():
                self._obey(child, number)
            if child.status is None:
                self._look_at_the_clock(child)
        for number in child.all_heard():
            if number in STOPPING:
                self._stop(child, number, has_it=True)

    def _obey(self, child: Child, number: int) -> None:
        """Do what a signal to the watcher means."""
        if self._relayed.get(number):
            self._relayed[number] -= 1
        elif number == CANCEL:
            if not self._stopping:
                self._stop(child, _INTERRUPTS[0])
        elif number in STOPPING:
            # a terminal that is closed tells its session's leader first, then the group in its foreground
            if number in _HANGUP and self._terminal.there:
                time.sleep(_A_MOMENT)
            self._stop(child, number, has_it=number in child.all_heard())
        elif number in _CONTINUE:
            self._progress.restart_clock()
            child.resume()
        elif number in SUSPENDING:
            child.signal(number)  # when it has stopped, so does the watcher
        else:
            child.signal_alone(number)

    def _stop(self, child: Child, number: int, *, has_it: bool = False) -> None:
        """End the process for good; told again by Ctrl+C, at once."""
        if has_it and number in _TERMINAL:
            if number in self._mailbox.former:
                self._relayed[number] = self._relayed.get(number, 0) + 1
            relay(number)
        if self._stopping:
            if number in _INTERRUPTS:
                child.kill()
            return
        self._stopping = number
        now = time.monotonic()
        self._until = now + self._limits.grace
        if number in _INTERRUPTS and self._limits.grace > 2 * _PATIENCE:
            self._hint = now + _PATIENCE
        if has_it:
            child.wake()
        else:
            child.signal(number)

    def _look_at_the_clock(self, child: Child) -> None:
        now = time.monotonic()
        if self._hint is not None and now >= self._hint:
            self._hint = None
            left = (self._until or now) - now
            self._teller.hint(f"letitloop: {self._target} is given {left:.0f} s more to end; Ctrl+C kills it at once.")
        if self._until is not None and now >= self._until:
            self._killed, self._until = True, None
            child.kill()
        if self._stopping or self._by:
            return
        if self._timeout is not None and now >= self._timeout:
            self._abort(child, f"a life of more than {self._limits.timeout:g} s")
        elif self._stall is not None and now >= self._stall:
            left = (self._limits.stall or 0.0) - self._progress.idle()
            if left > 0:
                self._stall = now + max(left, 0.001)
            else:
                what = "no log progress" if self._progress.watched else "no log was opened and none grew"
                self._abort(child, f"{what} for {self._limits.stall:g} s")

    def _abort(self, child: Child, why: str) -> None:
        """End a process that hangs: SIGABRT has Python print where each thread is."""
        self._by, self._timeout, self._stall = why, None, None
        self._until = time.monotonic() + self._limits.grace
        child.signal_alone(_ABORT)

    def _suspend(self, child: Child, number: int) -> None:
        """The process was stopped; if that was for its job, stop too. Time that it was stopped for does not count."""
        if number not in SUSPENDING:
            return
        since = time.monotonic()
        child.suspend(number)
        self._mailbox.drop(_CONTINUE)  # it has been obeyed; once more, it would undo a Ctrl+Z that comes now
        paused = time.monotonic() - since
        self._until, self._timeout, self._stall = (
            None if at is None else at + paused for at in (self._until, self._timeout, self._stall)
        )
        self._progress.restart_clock()

    def _end(self, child: Child) -> None:
        """End the process because the watcher itself is being ended by an exception: as gently as there is time for."""
        try:
            if child.status is None and not self._stopping:
                self._stop(child, numbers("SIGINT" if isinstance(sys.exc_info()[1], KeyboardInterrupt) else "SIGTERM")[0])
            while child.status is None:
                child.attend(max(0.0, (self._until or 0.0) - time.monotonic()))
                self._look_at_the_clock(child)
        finally:
            child.abandon()

    # --- a death -------------------------------------------------------------------------------------------------------------

    def _died(self, child: Child, death: Death, said: str, begun: float) -> tuple[Ending | None, Death | None, float]:
        """Decide what follows a death, and tell it."""
        now = time.monotonic()
        progress = self._progress.made()
        if (death.signal in numbers("SIGPIPE") or death.cause.startswith("BrokenPipeError")) and not stdout_is_read():
            death.permanent = "nobody reads its standard output any more"
        stopping = self._stopping
        decision = None if stopping else self._restarts.died(death, now=now, lived=now - begun, progress=progress)
        event = SupervisionEvent(
            "restart" if decision is not None and decision.restart else "stop",
            target=self._target,
            pid=child.pid,
            reason=death.cause,
            exit_code=death.code,
            lived=now - begun,
            attempt=self._restarts.count,
            progress=progress,
            runs=self._progress.where(),
            causes=self._restarts.causes,
            stderr=said,
            wait=decision.wait if decision is not None else 0.0,
            ended_by="signal" if decision is None else decision.ended_by,
            why=decision.why if decision is not None else self._why_stopped(),
        )
        if said and not said.endswith("\n"):
            self._teller.say("")  # it died in the middle of a line
        self._teller.tell(event, aloud=not stopping or self._killed)
        self._last = event
        if event.event == "restart":
            return None, death, now + event.wait
        return Ending(death.code, death=death, stopped=stopping, result=bytes(child.result), event=event), death, 0.0

    def _why_stopped(self) -> str:
        name = signal_name(self._stopping)
        return (
            f"{name} ended it" if not self._killed else f"it did not end within {self._limits.grace:g} s of {name} and was killed"
        )

    def _wait(self, until: float, death: Death | None) -> Ending | None:
        """Wait for the restart; return the end if a signal tells to stop meanwhile."""
        while True:
            for number in self._mailbox.take():
                if self._relayed.get(number):
                    self._relayed[number] -= 1
                elif number in STOPPING or number == CANCEL:
                    self._stopping = _INTERRUPTS[0] if number == CANCEL else number
                    return self._stopped_waiting(death)
                elif number in SUSPENDING:
                    self._terminal.suspend(number)
            left = until - time.monotonic()
            if left <= 0:
                return None
            self._mailbox.wait(left)

    def _stopped_waiting(self, death: Death | None) -> Ending:
        """Tell that a signal has ended it all between two lives."""
        if self._last is not None:
            self._teller.tell(self._last.stopped(f"{signal_name(self._stopping)} ended the wait for the restart"), aloud=False)
        return Ending(128 + self._stopping, death=death, stopped=self._stopping)
