"""What becomes of a code step: a pure decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    Past: TypeAlias = Literal["new", "under way", "finished"]
    Decision: TypeAlias = Literal["execute", "set", "unknown"]

__all__ = ["decide"]


def decide(past: Past, *, outside: bool, opaque: bool, policy: object) -> Decision:
    """Decide what is done about a code step.

    =============  =======  ======  ========  ================================================================================
    past           outside  opaque  policy    decision
    =============  =======  ======  ========  ================================================================================
    new            any      any     any       execute: nothing of it has happened
    under way      no       any     any       execute: what it asked its tools is answered from the log
    under way      yes      any     none      unknown: what it did outside may have happened
    under way      yes      any     any       execute: it may happen twice
    finished       any      any     rerun     execute, and then set the variables on record
    finished       any      no      other     set the variables on record
    finished       no       yes     other     execute: what cannot be recorded is made again
    finished       yes      yes     none      unknown: what it did outside would happen again
    finished       yes      yes     record    execute: it may happen twice
    =============  =======  ======  ========  ================================================================================

    Args:
        past: what the log knows of it.
        outside: whether it can reach outside other than by tools.
        opaque: whether it made what cannot be recorded: a generator, an open file, the state of a managed agent.
        policy: what the user said of code: None, ``"record"`` or ``"rerun"``.
    """
    if past == "finished" and policy != "rerun" and not opaque:
        return "set"
    if past != "new" and outside and policy is None:
        return "unknown"
    return "execute"
