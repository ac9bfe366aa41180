"""What this adapter raises, and how a :class:`~letitloop.errors.Halt` gets through a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph.errors import GraphBubbleUp

from letitloop.errors import Halt, LetItLoopError, UnknownOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ASK_BEFORE", "CheckpointNotDurable", "InputsChanged", "ThreadConflict", "bubbling", "explained"]

ASK_BEFORE = (
    "Ask before the effect: with interrupt() in the node, in a node of its own, or with HumanInTheLoopMiddleware; or let the "
    "effect wait for it with effect(approval=…)"
)


class ThreadConflict(LetItLoopError):
    """Another process went on with a thread meanwhile; this checkpoint was not stored, and nothing was lost.

    Attributes:
        thread_id: the thread.
        checkpoint_ns: the namespace within it, empty for the root graph.
        parent_id: the checkpoint that this process went on from.
        newest_id: the checkpoint that the other process stored meanwhile.
    """

    def __init__(
        self, message: str, *, thread_id: str = "", checkpoint_ns: str = "", parent_id: str = "", newest_id: str = ""
    ) -> None:
        super().__init__(message)
        self.thread_id = thread_id
        self.checkpoint_ns = checkpoint_ns
        self.parent_id = parent_id
        self.newest_id = newest_id


class InputsChanged(LetItLoopError):
    """A run is on record under this name with other inputs; nothing was run.

    Attributes:
        thread_id: the thread.
        run_id: the run's name in the thread's metadata.
    """

    def __init__(self, message: str, *, thread_id: str = "", run_id: str = "") -> None:
        super().__init__(message)
        self.thread_id = thread_id
        self.run_id = run_id


class CheckpointNotDurable(LetItLoopError):
    """The checkpoint that a task hangs on never reached the disk, so the step or effect in it was not executed.

    Attributes:
        thread_id: the thread.
        checkpoint_id: the checkpoint.
    """

    def __init__(self, message: str, *, thread_id: str = "", checkpoint_id: str = "") -> None:
        super().__init__(message)
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id


def explained(halted: Halt) -> Halt:
    """Add to an unknown outcome that a subgraph inside the effect was interrupted, and what to do instead."""
    if isinstance(halted, UnknownOutcome) and "raised GraphInterrupt" in halted.reason and ASK_BEFORE not in str(halted):
        halted.args = (f"{halted} interrupt() was called inside the effect, and nobody was asked. {ASK_BEFORE}.",)
    return halted


def bubbling(halt: Halt) -> Halt:
    """Return a Halt that LangGraph lets through as it lets an interrupt through, and that no ``except Exception`` catches.

    LangGraph asks ``isinstance(exc, GraphBubbleUp)`` to decide that siblings go on, that no error is recorded and that no error
    handler is called, and it catches ``Exception`` to retry. A Halt must answer the first with yes and escape the second, in the
    program's own handlers too. So it stays a ``BaseException`` by its type and calls itself a ``GraphBubbleUp`` by its
    ``__class__``, which is what ``isinstance`` asks for and ``except`` does not.
    """
    cls = type(halt)
    if cls in _made.values():
        return halt
    derived = _made.get(cls) or _made.setdefault(cls, _derive(cls))
    other: Halt = derived.__new__(derived)
    other.args = halt.args
    other.__dict__.update(halt.__dict__)
    other.__traceback__ = halt.__traceback__
    other.__cause__, other.__context__ = halt.__cause__, halt.__context__
    return other


_made: dict[type[Halt], type[Halt]] = {}


def _derive(cls: type[Halt]) -> type[Halt]:
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    seen = type(cls.__name__, (cls, GraphBubbleUp), dict(names))
    answer: Callable[[Any], type] = lambda self: seen  # noqa: ARG005, E731 - a property's getter
    return type(cls.__name__, (cls,), {**names, "__class__": property(answer)})
