"""An agent that is kicked off by itself (``Agent.kickoff``): in a flow's method, or in a call that is recorded.

Nobody can wrap it beforehand: it may be made there. So the class tells of each such kickoff; outside a wrapped one it is as it was.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from crewai import Agent

from letitloop.runs.scope import running_loop
from letitloop_crewai.driving import current_frame, frame_around, framed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["watch_agents"]

_MARK = "letitloop_watched"


def watch_agents() -> None:
    """Let each agent that is kicked off by itself inside a wrapped kickoff be a part of it; done once."""
    cls: Any = Agent
    if not hasattr(cls.kickoff, _MARK):
        cls.kickoff = _kickoff(cls.kickoff)
        cls.kickoff_async = _kickoff_async(cls.kickoff_async)


@contextmanager
def _part(agent: Any) -> Generator[None]:
    """Be in the part of the kickoff that an agent's own one is; its model and tools are adopted.

    In a call that is recorded (a tool, a callback) it is a part of that, and effects of its tools hold all the same.
    """
    frame = current_frame()
    around = frame or frame_around()
    if around is None:
        yield
        return
    around.drive.check()
    owner: Any = around.drive.owner
    with around.drive.watched():
        owner.adopt(agent, agent.tools)
    if frame is None:
        yield
        return
    with framed(frame.inner(f"agent {agent.role}", agent=agent)):
        yield


def _kickoff(stock: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(stock)
    def kickoff(self: Any, *args: Any, **kwargs: Any) -> Any:
        if running_loop() is not None:
            return stock(self, *args, **kwargs)  # which gives kickoff_async to await
        with _part(self):
            return stock(self, *args, **kwargs)

    setattr(kickoff, _MARK, True)
    return kickoff


def _kickoff_async(stock: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(stock)
    async def kickoff_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _part(self):
            return await stock(self, *args, **kwargs)

    return kickoff_async
