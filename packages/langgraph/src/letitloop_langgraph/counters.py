"""LangGraph's counters of a task: the interrupts, subgraphs and ``@task`` calls in it are told by the order they come in.

What a leaf (a step, an effect, a model or tool call) asked for while it was carried out had numbers of these counters. Answered
from the log it asks for nothing, and what comes after it in its task must not get its numbers: with them it would get the answer
that a human gave to the leaf, or the state of its subgraph. So each number is recorded with the leaf that took it, and a task that
begins again hands it to nobody else. A leaf that is carried out again gets its own numbers, in the order in which it took them;
all others get what is left.

LangGraph tells a human's answers by the same numbers, one after the other. An interrupt whose leaf is on record is answered for
good; an answer that was given to it, and is still waiting to be fetched, must not be fetched by the next one.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.runnables.config import var_child_runnable_config

from letitloop.errors import CodecError, InvalidArgument
from letitloop.runs.records import FAILED
from letitloop_langgraph.answers import RESUME
from letitloop_langgraph.errors import ASK_BEFORE
from letitloop_langgraph.records import NUMBER, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from letitloop.runs.run import Call
    from letitloop_langgraph.places import ThreadRun

__all__ = ["Number", "Numbers", "Task", "finished", "watch"]

INTERRUPT = 0
_COUNTERS = ("interrupt_counter", "subgraph_counter", "call_counter")
_WHOLE_KEY = 1 << 16
_leaves: ContextVar[tuple[Call, ...]] = ContextVar("letitloop_langgraph_leaves", default=())
"""The leaves that the program is in, outermost first; those that have ended count no more."""


class Number(NamedTuple):
    """A number that a leaf took.

    Attributes:
        counter: of which counter, by its place in ``_COUNTERS``.
        number: the number.
        around: the keys of the leaves of the same task that the leaf lies in.
        answer: what an interrupt was answered, as the codecs encode it; None if they cannot, and for other counters.
    """

    counter: int
    number: int
    around: tuple[bytes, ...]
    answer: bytes | None


class Numbers:
    """The numbers that a thread's leaves took, by task and by the leaf's key."""

    def __init__(self) -> None:
        self._of: dict[str, dict[bytes, list[Number]]] = {}

    def of(self, task: str) -> Mapping[bytes, list[Number]]:
        """Return those of a task, as they are now."""
        return {key: list(numbers) for key, numbers in list(self._of.get(task, {}).items())}

    def add(self, key: bytes, task: str, number: Number) -> None:
        """Take in one."""
        self._of.setdefault(task, {}).setdefault(key, []).append(number)

    def load(self, key: bytes, payload: bytes) -> None:
        """Take in a record."""
        task, counter, number, around, answer = unpack(payload)
        self.add(key, task, Number(counter, number, tuple(around), answer))

    def keep(self, prefixes: tuple[bytes, ...]) -> None:
        """Forget those of leaves that do not lie below one of these paths."""
        for task, of_task in list(self._of.items()):
            for key in [key for key in of_task if not key.startswith(prefixes)]:
                del of_task[key]
            if not of_task:
                del self._of[task]


class _Counter:
    """One counter of a task, in the place of LangGraph's own.

    Attributes:
        task: the task.
        which: which of its counters it is.
        given: all numbers that a leaf has, by its key.
        left: those of them that it has not asked for again.
    """

    def __init__(self, task: Task, which: int, plain: Callable[[], int], recorded: Mapping[bytes, Iterable[Number]]) -> None:
        self.task = task
        self.which = which
        self.given = {key: sorted({one.number for one in numbers if one.counter == which}) for key, numbers in recorded.items()}
        self.left = {key: list(numbers) for key, numbers in self.given.items()}
        self.taken = {number for numbers in self.given.values() for number in numbers}
        self._next = plain()  # lower ones were handed out before anything durable was met in the task

    def __call__(self) -> int:
        return self.task.number(self)

    def free(self) -> int:
        """Take the smallest number that nobody has."""
        while self._next in self.taken:
            self._next += 1
        self.taken.add(self._next)
        return self._next


class Task:
    """A task that is carried out, through all attempts that LangGraph makes at it in this process."""

    def __init__(self, identity: str, scratchpad: Any, recorded: Mapping[bytes, Iterable[Number]]) -> None:
        self.id = identity
        self.under_way: dict[Call, None] = {}
        self._guard = threading.Lock()
        self._resume: list[Any] = scratchpad.resume  # the answers so far, by number; LangGraph's own list
        self._waiting: Callable[[bool], Any] = scratchpad.get_null_resume
        self._asking = threading.local()
        self._on_record: set[tuple[int, bytes, int]] = set()
        for which in range(1, len(_COUNTERS)):
            self._put(scratchpad, which, recorded)
        object.__setattr__(scratchpad, "get_null_resume", self.waiting)

    def attempt(self, scratchpad: Any, send: Callable[[list[tuple[str, Any]]], object], run: ThreadRun) -> None:
        """Begin an attempt: LangGraph counts interrupts anew in each, and what else a task asks for it counts through."""
        recorded = run.thread.index.numbers.of(self.id)
        self._on_record = {(one.counter, key, one.number) for key, numbers in recorded.items() for one in numbers}
        self._interrupts = self._put(scratchpad, INTERRUPT, recorded)
        self._send = send
        self._codecs = run.codecs
        self._settled = self._hand_in(run, recorded)
        self.tell(self._settled)

    def _put(self, scratchpad: Any, which: int, recorded: Mapping[bytes, Iterable[Number]]) -> _Counter:
        counter = _Counter(self, which, getattr(scratchpad, _COUNTERS[which]), recorded)
        object.__setattr__(scratchpad, _COUNTERS[which], counter)  # a frozen dataclass
        return counter

    def _hand_in(self, run: ThreadRun, recorded: Mapping[bytes, Iterable[Number]]) -> int:
        """Take the answers that finished leaves got for fetched; return up to which number answers are settled by that."""
        asked = [(one.number, key, one) for key, numbers in recorded.items() for one in numbers if one.counter == INTERRUPT]
        asked.sort(key=lambda one: one[:2])
        if not asked:
            return 0
        done = finished(run, {name for _, key, one in asked for name in (key, *one.around)})
        upto = 0
        for number, key, one in asked:
            if number > len(self._resume):
                break
            if done.isdisjoint((key, *one.around)):
                continue
            if number == len(self._resume):
                self._waiting(True)  # what is waiting is the answer to this one: LangGraph has not asked for another since
                self._resume.append(self._decoded(one.answer))
            upto = number + 1
        return upto

    def tell(self, upto: int) -> None:
        """Have LangGraph store the answers up to a number, as an interrupt does that is answered: what was told last counts."""
        if upto:
            self._send([(RESUME, self._resume[:upto])])

    def answered(self) -> None:
        """A leaf was answered from the log: what its interrupts were answered counts again."""
        self.tell(self._settled)

    def began(self, call: Call) -> None:
        """A leaf's function is about to be called, perhaps once more."""
        _leaves.set((*(one for one in _open() if one is not call), call))
        interrupts = self._interrupts
        if call.key in interrupts.given:
            with self._guard:
                interrupts.left[call.key] = list(interrupts.given[call.key])

    def ended(self, call: Call) -> None:
        """A leaf has ended, whatever it came to."""
        self.under_way.pop(call, None)
        _leaves.set(tuple(one for one in _leaves.get() if one is not call))

    def number(self, counter: _Counter) -> int:
        """Hand out a number, and record which leaf has it."""
        if counter.which == INTERRUPT:
            _refuse_in_effect()
        leaves = [call for call in _leaves.get() if call in self.under_way]
        with self._guard:
            key = leaves[-1].key if leaves else None
            left = None if key is None else counter.left.get(key)
            if left:
                number = left.pop(0)
            else:
                number = counter.free()
                if key is not None:
                    counter.given.setdefault(key, []).append(number)
            if counter.which == INTERRUPT and number >= len(self._resume):
                self._asking.number, self._asking.leaves = number, leaves  # recorded if an answer is waiting for it
                self.tell(len(self._resume))  # whatever finished leaves were answered is known when this question is stored
            else:
                answer = self._encoded(self._resume[number]) if counter.which == INTERRUPT else None
                self._record(leaves, counter.which, number, answer)
        return number

    def waiting(self, consume: bool = False) -> Any:  # noqa: FBT001, FBT002 - as LangGraph calls it
        """Return the answer that waits to be fetched, None to an interrupt whose turn it is not: it is another's."""
        asking = self._asking.__dict__.pop("number", None) if consume else None
        if asking is None:
            return self._waiting(consume)
        leaves = self._asking.__dict__.pop("leaves")
        answer = self._waiting(True) if asking == len(self._resume) else None
        if answer is not None:
            with self._guard:
                self._record(leaves, INTERRUPT, asking, self._encoded(answer))
        return answer

    def _record(self, leaves: list[Call], which: int, number: int, answer: bytes | None) -> None:
        """Record that the innermost leaf has a number, if the task has one here."""
        if not leaves or (which, leaves[-1].key, number) in self._on_record:
            return
        call = leaves[-1]
        one = Number(which, number, tuple(around.key for around in leaves[:-1]), answer)
        run: Any = call.run
        # queued: it is written before the leaf's own record, and before whatever a subgraph of this number stores
        run.log.queue(NUMBER, call.key, pack([self.id, which, number, list(one.around), answer]))
        run.thread.index.numbers.add(call.key, self.id, one)
        self._on_record.add((which, call.key, number))
        for each in leaves:
            each.numbered = True  # type: ignore[attr-defined]  # a call has a dict

    def _encoded(self, answer: object) -> bytes | None:
        try:
            return self._codecs.encode(answer)
        except CodecError:
            return None

    def _decoded(self, answer: bytes | None) -> Any:
        try:
            return None if answer is None else self._codecs.decode(answer)
        except CodecError:
            return None


def watch(run: ThreadRun) -> Task | None:
    """Return the task that the program is in, its counters watched from now on; None if LangGraph counts nothing here."""
    config: Any = var_child_runnable_config.get()
    conf = (config or {}).get("configurable") or {}
    scratchpad: Any = conf.get("__pregel_scratchpad")
    counter = getattr(scratchpad, "interrupt_counter", None)
    if type(counter) is _Counter:
        return counter.task
    if counter is None or "__pregel_task_id" not in conf or "__pregel_send" not in conf:
        return None
    with run.thread.guard:
        counter = scratchpad.interrupt_counter
        if type(counter) is _Counter:  # another thread was first
            return counter.task
        former = scratchpad.subgraph_counter
        if type(former) is _Counter:  # of an attempt before
            task = former.task
        else:
            identity = str(conf["__pregel_task_id"])
            task = Task(identity, scratchpad, run.thread.index.numbers.of(identity))
        task.attempt(scratchpad, conf["__pregel_send"], run)
        return task


def _open() -> list[Call]:
    """Return the leaves that the program is in, of all tasks, outermost first."""
    return [call for call in _leaves.get() if call in call.task.under_way]  # type: ignore[attr-defined]  # a call has a dict


def finished(run: ThreadRun, keys: set[bytes]) -> set[bytes]:
    """Return the leaves that are answered from the log: those with a result, and failures that the program went on from."""
    journal = run.journal
    found = journal.results(_WHOLE_KEY) | run.numbered
    for entry in journal.entries():
        if entry.kind == FAILED and entry.key in keys and journal.survived(entry, entry.key[: entry.key.rfind(b"/") + 1]):
            found.add(entry.key)
    return found


def _refuse_in_effect() -> None:
    """Refuse to ask a human inside an effect.

    Raises:
        InvalidArgument: the program is in one.
    """
    for call in _open():
        if getattr(call, "acts", False):
            raise InvalidArgument(
                f"interrupt() was called inside the effect {call.name!r}: an effect counts as sent when its function is called, "
                f"and what this one did before it asked is not known. Nobody was asked. {ASK_BEFORE}"
            )
