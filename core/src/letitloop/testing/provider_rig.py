"""What :class:`letitloop.testing.ProviderContract` puts around a provider: processes that die, workers that wake up, lost words."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from letitloop import failpoints
from letitloop.effects.ledger_file import open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from letitloop.effects.ledger import Ledger
    from letitloop.effects.provider import Caps, Dispatch, Provider, Reply

__all__ = ["Blocking", "Mute", "Outcome", "Wrapped", "adopted", "died", "paused_at", "run"]

_DEATH = 42
_PATIENCE = 60.0  # seconds, for a machine that is busy


class Blocking:
    """A provider that acts in async code alone, with plain methods in place of the async ones.

    Args:
        inner: the provider itself.
    """

    def __init__(self, inner: Provider) -> None:
        self._inner: Any = inner
        self.name = inner.name
        self.caps = inner.caps
        self.identity = inner.identity
        self.validate = inner.validate

    def execute(self, dispatch: Dispatch) -> Any:
        """Act, on an event loop of this call's own."""
        return self._call("execute", dispatch)

    def reconcile(self, dispatch: Dispatch) -> Any:
        """Ask, on an event loop of this call's own."""
        return self._call("reconcile", dispatch)

    def tombstone(self, dispatch: Dispatch) -> Any:
        """Occupy the key, on an event loop of this call's own."""
        return self._call("tombstone", dispatch)

    def _call(self, method: str, dispatch: Dispatch) -> Any:
        act = getattr(self._inner, f"a{method}", None) or getattr(self._inner, method)
        value = act(dispatch)
        return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Any) -> Any:
    return await value


class Wrapped:
    """A provider in front of another one, of the same identity, that may keep replies back or make up answers.

    Args:
        inner: the provider itself.
        after: called with each reply; what it returns is the reply, what it raises is raised.
        answers: returned to every question, in place of the provider's own.
    """

    def __init__(self, inner: Provider, *, after: Callable[[Any], Any] | None = None, answers: Any = None) -> None:
        self._inner = inner
        self._asked: Any = inner  # whose caps say what it has
        self._after = after
        self._answers = answers
        self.dispatches: list[Dispatch] = []

    @property
    def name(self) -> str:
        """The provider's own name."""
        return self._inner.name

    @property
    def caps(self) -> Caps:
        """What the provider itself can do."""
        return self._inner.caps

    def identity(self) -> str:
        """Return the provider's own identity."""
        return self._inner.identity()

    def validate(self, operation: str, arguments: Mapping[str, Any]) -> None:
        """Check as the provider does."""
        self._inner.validate(operation, arguments)

    def execute(self, dispatch: Dispatch) -> Reply:
        """Act, then do to the reply what is to be done to it."""
        self.dispatches.append(dispatch)
        reply = self._inner.execute(dispatch)
        return reply if self._after is None else self._after(reply)

    def reconcile(self, dispatch: Dispatch) -> Any:
        """Ask the provider, or say what is to be said."""
        return self._asked.reconcile(dispatch) if self._answers is None else self._said()

    def tombstone(self, dispatch: Dispatch) -> Any:
        """Ask the provider, or say what is to be said."""
        return self._asked.tombstone(dispatch) if self._answers is None else self._said()

    def _said(self) -> Any:
        if isinstance(self._answers, BaseException):
            raise self._answers
        return self._answers


class Mute(Blocking):
    """A provider that never acts, and from which no reply arrives."""

    def execute(self, dispatch: Dispatch) -> Any:
        """Lose the request."""
        raise ConnectionResetError("the request was lost")


@dataclass(frozen=True)
class Outcome:
    """What came of a verb: a value, or what was raised."""

    value: object = None
    raised: BaseException | None = None

    @property
    def name(self) -> str:
        """The raised error's class; empty for a value."""
        return "" if self.raised is None else type(self.raised).__name__


def run(verb: Callable[[], object]) -> Outcome:
    """Call a verb of a ledger."""
    try:
        return Outcome(verb())
    except BaseException as exc:
        return Outcome(raised=exc)


def died(work: Callable[[], object], point: str) -> bool:
    """Do ``work`` in a forked process that ends, without a word, at a failpoint; tell whether it came that far.

    Args:
        work: is called in the child.
        point: the failpoint.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            failpoints.observe(lambda name: os._exit(_DEATH) if name == point else None)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, _DEATH), f"the child failed (exit code {code}); what it said stands in its standard error"
    return code == _DEATH


@contextmanager
def paused_at(point: str, work: Callable[[], object]) -> Generator[Callable[[], Outcome]]:
    """Do ``work`` on a thread that stops at a failpoint; the value is what wakes it up, and returns what came of it.

    Args:
        point: the failpoint.
        work: is called on the thread.
    """
    there, go = threading.Event(), threading.Event()
    outcomes: list[Outcome] = []

    def observe(name: str) -> None:
        if name == point and threading.current_thread() is thread:
            there.set()
            assert go.wait(_PATIENCE), "nobody woke the worker"

    def wake() -> Outcome:
        go.set()
        thread.join(_PATIENCE)
        assert outcomes, "the worker does not end"
        return outcomes[0]

    thread = threading.Thread(target=lambda: outcomes.append(run(work)), name="letitloop-late-worker", daemon=True)
    failpoints.observe(observe)
    try:
        thread.start()
        assert there.wait(_PATIENCE), f"the worker never came to {point}: {outcomes}"
        yield wake
    finally:
        go.set()
        thread.join(_PATIENCE)
        failpoints.observe(None)


def adopted(ledger: Ledger) -> None:
    """Let the ledger take whoever is acting in this process for dead, as if its lock were lost."""
    open_ledger(ledger.location).owner.under_way.clear()
