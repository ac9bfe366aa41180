"""The counterpart of :mod:`child` on Windows: written from the system's documentation, and not run by the project's tests.

The process and all that it starts lie in a job object, which the system ends when the watcher's handle of it is closed, however
the watcher dies. There are no process groups that a terminal knows, so Ctrl+C reaches the process by itself; what another process
asks for is sent on as Ctrl+Break. There is no SIGABRT with a dump: a process that hangs is ended.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    import os
    import signal
    import subprocess
    import threading
    from collections.abc import Sequence
    from typing import Any

    from letitloop.supervision.signals import Mailbox

    __all__ = ["Child", "Terminal", "relay", "run", "run_fresh", "stdout_is_read"]

    _KEPT = 64 * 1024
    _KILL_ON_JOB_CLOSE = 0x2000
    _EXTENDED_LIMITS = 9
    _LOOK = 0.05  # seconds between looks: nothing can be waited for together with a lock here

    class Terminal:
        """What has no meaning here."""

        there = False

        def suspend(self, number: int) -> None:
            """There is no job control."""

        def close(self) -> None:
            """There is nothing to close."""

    class Child:
        """A watched process; see :class:`letitloop.supervision.child.Child`."""

        group = 0
        gentle = False

        def __init__(self, mailbox: Mailbox, terminal: Terminal, file: str, grace: float, *, fresh: bool) -> None:
            self._mailbox = mailbox
            self._process: subprocess.Popen[bytes] | None = None
            self._job: Any = None
            self._pump: threading.Thread | None = None
            self._kept = bytearray()
            self.pid = 0
            self.status: int | None = None
            self.result = bytearray()
            self.result_file = ""

        def start(self, arguments: Sequence[str], environment: dict[str, str]) -> None:
            """Start the process inside a job, with its standard error passed on."""
            console = os.isatty(2)  # colours need a console: its end is not kept then
            process = subprocess.Popen(arguments, env=environment, stderr=None if console else subprocess.PIPE)
            self._process, self.pid = process, process.pid
            self._job = _job_of(process)
            if process.stderr is not None:
                self._pump = threading.Thread(target=self._pass_on, daemon=True)
                self._pump.start()

        def _pass_on(self) -> None:
            assert self._process is not None
            assert self._process.stderr is not None
            source = self._process.stderr.fileno()
            while data := os.read(source, 65536):
                self._kept += data
                del self._kept[:-_KEPT]
                try:
                    os.write(2, data)
                except OSError:  # nobody reads it
                    continue

        def attend(self, seconds: float) -> list[int]:
            """Wait until something happens, or so long."""
            assert self._process is not None
            self._mailbox.wait(min(seconds, _LOOK))
            code = self._process.poll()
            if code is not None:
                # a crash has the code of its exception, which is above what an exit code may be elsewhere
                self.status = code if 0 <= code < 256 else -int(signal.SIGSEGV) if code == 0xC0000005 else -int(signal.SIGABRT)
            return []

        def all_heard(self) -> list[int]:
            """Ctrl+C comes to the mailbox."""
            return []

        def signal(self, number: int) -> None:
            """Ctrl+C has reached the process by itself; anything else is sent as Ctrl+Break."""
            if number not in (signal.SIGINT, signal.SIGBREAK):
                self.signal_alone(signal.CTRL_BREAK_EVENT)

        def signal_alone(self, number: int) -> None:
            """Send what this system can send; end the process otherwise."""
            assert self._process is not None
            if number == signal.CTRL_BREAK_EVENT:
                self._process.send_signal(number)
            else:
                self._process.kill()

        def kill(self) -> None:
            """End the process at once."""
            assert self._process is not None
            self._process.kill()

        def wake(self) -> None:
            """Nothing stops a process here."""

        def resume(self) -> None:
            """There is no job control."""

        def suspend(self, number: int) -> None:
            """There is no job control."""

        def finish(self) -> str:
            """End what is left of the job; return what was written to standard error last."""
            _close(self._job)
            self._job = None
            if self._pump is not None:
                self._pump.join(1.0)
            if self._process is not None and self._process.stderr is not None:
                self._process.stderr.close()
            if self.result_file:
                try:
                    with open(self.result_file, "rb") as file:
                        self.result += file.read()
                except OSError:  # it died before
                    pass
            return bytes(self._kept).decode("utf-8", "replace")

        def abandon(self) -> None:
            """Give up a child that was never started, or end it with whatever it is doing."""
            if self._process is not None and self.status is None:
                self._process.kill()
                self.status = self._process.wait()
            self.finish()

    def run(child: Child, arguments: Sequence[str], environment: dict[str, str], mailbox: Mailbox) -> None:
        """Start a program as the watched process."""
        child.start(arguments, environment)

    def run_fresh(child: Child, arguments: Sequence[str], environment: dict[str, str]) -> None:
        """Start an interpreter as the watched process."""
        child.start(arguments, environment)

    def relay(number: int) -> None:
        """The console has sent it to everybody."""

    def stdout_is_read() -> bool:
        """It cannot be asked here."""
        return True

    def _job_of(process: subprocess.Popen[bytes]) -> Any:
        """Put a process into a job that ends with its last handle, which is ours."""
        import ctypes
        from ctypes import wintypes

        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.CreateJobObjectW.restype = wintypes.HANDLE
        job = kernel.CreateJobObjectW(None, None)
        # JOBOBJECT_EXTENDED_LIMIT_INFORMATION: the flags lie behind two 64-bit times
        limits = (ctypes.c_byte * (144 if ctypes.sizeof(ctypes.c_void_p) == 8 else 112))()
        ctypes.c_uint32.from_buffer(limits, 16).value = _KILL_ON_JOB_CLOSE
        handle = wintypes.HANDLE(int(process._handle))  # type: ignore[attr-defined]
        if not (
            job
            and kernel.SetInformationJobObject(wintypes.HANDLE(job), _EXTENDED_LIMITS, limits, len(limits))
            and kernel.AssignProcessToJobObject(wintypes.HANDLE(job), handle)
        ):
            process.kill()
            raise ctypes.WinError(ctypes.get_last_error())
        return wintypes.HANDLE(job)

    def _close(job: Any) -> None:
        if job is not None:
            import ctypes

            ctypes.WinDLL("kernel32").CloseHandle(job)
