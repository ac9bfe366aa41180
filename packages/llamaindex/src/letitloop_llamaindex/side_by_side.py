"""The calls that a step makes side by side: they may come in another order in each life, and are known by what they ask.

A step that fetches pages and asks a model about each as it comes asks in the order in which the pages arrived. In its next life
those that had arrived are there at once, in the order of the program. So what stands on record at the place of such a call says
nothing of a change: a call takes the answer to what it asks, wherever that stands, and else it is made. A changed program is told
when the step has ended: then all its calls are known, and one on record that was not made again is left over. Calls that nothing
in their step runs beside come in the program's order, and a changed one is refused at once, by the rule of every step.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from functools import cache
from os.path import dirname
from typing import TYPE_CHECKING, Any

from letitloop.codecs.fingerprint import hints
from letitloop.errors import StepChanged
from letitloop.runs.identity import argument_names, base_of, unwrapped
from letitloop.runs.records import STEP_KINDS, unpack_head
from letitloop.runs.scope import Scope, running_loop

if TYPE_CHECKING:
    from letitloop.runs.run import Call, Run

__all__ = ["StepScope"]


class StepScope(Scope):
    """The scope of one execution of a step's attempt; made in the task that executes it.

    Args:
        run: the run.
        prefix: of the attempt.
        sync: whether the step's function is, which the framework calls in a thread.
    """

    __slots__ = ("_asked", "_before", "_mixed", "_own", "_sync", "_tasks")

    def __init__(self, run: Run, prefix: bytes, *, sync: bool) -> None:
        super().__init__(run, prefix, nested=True)
        self._sync = sync
        self._own: Any = None if sync else asyncio.current_task()  # a sync step's thread is known when it asks
        self._before = asyncio.all_tasks()
        self._mixed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asked: list[tuple[bytes, bytes, tuple[str, ...]]] = []

    def reserved(self, call: Call) -> None:
        """Note a call, and whether anything runs beside it."""
        if self._is_beside():
            self._mixed = True
            call.unordered = call.overlapped = True
        self._asked.append(
            (call.counter.base, call.fingerprint, tuple(argument_names(*unwrapped(call.fn, call.args, call.kwargs))))
        )

    def _is_beside(self) -> bool:
        task = asyncio.current_task() if running_loop() is not None else None
        if task is None and self._sync and self._own is None and threading.current_thread().name.startswith("asyncio_"):
            self._own = threading.get_ident()
        if (task or threading.get_ident()) != self._own:
            if task is not None:
                self._tasks.add(task)
            return True
        return self._mixed or (task is not None and any(_is_the_programs(one) for one in asyncio.all_tasks() - self._before))

    def check_all_made(self) -> None:
        """The step has ended: refuse to record it if it left out calls that it had made, which may have come in any order.

        Raises:
            StepChanged: there is such a call, and changes are to be told.
        """
        # what a task would have asked that was cancelled, or goes on, is not known
        if not self._mixed or any(not task.done() or task.cancelled() for task in self._tasks):
            return
        size = len(self.prefix)
        left = [key for key in list(self.run.journal.index) if key.startswith(self.prefix) and not {*b"/>"} & {*key[size:]}]
        if not left:
            return
        names = ", ".join(sorted({base_of(key)[size:].decode("utf-8", "replace") for key in left}))
        place = self.prefix.decode("utf-8", "replace").rstrip("/")
        what = f"step {place!r} of run {self.run.id} has run again, and did not ask what it had asked, side by side: {names}."
        if self.run._on_change != "raise":
            logging.getLogger("letitloop").warning("letitloop: %s", what)
            return
        error = StepChanged(
            f"{what} The program has changed, or its calls depend on what is not recorded. What it asked instead is on record, and "
            "so is everything before; the step's end is not. on_change='rerun' and 'reuse' go on with what it asked now; "
            f"{self.run.rewinding(left[0].decode('utf-8', 'replace'))} voids the records from the first such call on.",
            run_id=self.run.id,
            step=left[0].decode("utf-8", "replace"),
            arguments=self._differing(left),
        )
        self.run.halt(error)
        raise error

    def _differing(self, left: list[bytes]) -> tuple[str, ...]:
        """Return the arguments in which the calls on record differ from those made in their stead, as far as it is told."""
        journal = self.run.journal
        found: list[str] = []
        then: dict[bytes, list[list[bytes]]] = {}
        recorded = {unpack_head(journal.payload(entry)).fingerprint for entry in journal.entries() if entry.kind in STEP_KINDS}
        for key in left:
            then.setdefault(base_of(key), []).append(hints(unpack_head(journal.payload(journal.index[key])).fingerprint))
        for base, fingerprint, names in self._asked:
            now = hints(fingerprint)
            for other in then.get(base, []) if fingerprint not in recorded else []:
                if len(other) == len(now):
                    found += [name for i, name in enumerate(names) if now[i : i + 1] != other[i : i + 1]]
        return tuple(dict.fromkeys(found))


def _is_the_programs(task: asyncio.Task[Any]) -> bool:
    """Tell whether a task is perhaps one that the step has started: none of the framework's own."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is None or not code.co_filename.startswith(_own_folders())


@cache
def _own_folders() -> tuple[str, ...]:
    modules = (sys.modules[name] for name in ("workflows", "letitloop", __package__))
    return tuple(dirname(str(module.__file__)) for module in modules)
