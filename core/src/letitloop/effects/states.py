"""The states of an intent, and who may move it. Pure.

::

    PREPARED -> DISPATCHED -> SUCCEEDED
       |            |------> FAILED ------> DISPATCHED   a new attempt, and with it a new provider key
       |            `------> UNKNOWN -----> SUCCEEDED | FAILED
       `--> CANCELLED           `---------> DISPATCHED   the same attempt, the same key, inside the provider's window

An intent is DISPATCHED before the first byte leaves. It is FAILED only with a certificate that nothing happened; whatever else
goes wrong after the dispatch is UNKNOWN.
"""

from __future__ import annotations

__all__ = [
    "APPLICATION",
    "CANCELLED",
    "DISPATCHED",
    "FAILED",
    "HUMAN",
    "PREPARED",
    "RECONCILER",
    "STATES",
    "SUCCEEDED",
    "TRANSITIONS",
    "UNKNOWN",
    "WORKER",
    "allowed",
]

PREPARED = "PREPARED"
DISPATCHED = "DISPATCHED"
SUCCEEDED = "SUCCEEDED"
FAILED = "FAILED"
UNKNOWN = "UNKNOWN"
CANCELLED = "CANCELLED"
STATES = (PREPARED, DISPATCHED, SUCCEEDED, FAILED, UNKNOWN, CANCELLED)

WORKER = "worker"  # who dispatches
RECONCILER = "reconciler"  # who asks the provider afterwards; never acts
APPLICATION = "application"  # the program that owns the ledger
HUMAN = "human"  # a person, named, with evidence

TRANSITIONS = {
    ("", PREPARED): (WORKER,),
    (PREPARED, DISPATCHED): (WORKER,),
    (PREPARED, CANCELLED): (APPLICATION, HUMAN),
    (DISPATCHED, SUCCEEDED): (WORKER, RECONCILER),  # a receipt of this attempt, whoever has sent it again meanwhile
    (DISPATCHED, FAILED): (WORKER,),
    (DISPATCHED, UNKNOWN): (WORKER, RECONCILER),
    (UNKNOWN, SUCCEEDED): (RECONCILER, WORKER, HUMAN),
    (UNKNOWN, FAILED): (RECONCILER, HUMAN),
    (UNKNOWN, DISPATCHED): (APPLICATION,),
    (FAILED, DISPATCHED): (WORKER,),
}
"""Which transitions exist, and whose they are; ``""`` is no state yet."""


def allowed(before: str, after: str, actor: str) -> bool:
    """Tell whether an actor may move an intent from one state to another.

    Args:
        before: the state it is in, ``""`` if it is new.
        after: the state it is to have.
        actor: its role, perhaps with a name: ``"human alice"``.

    Example:
        >>> allowed("UNKNOWN", "FAILED", "worker")
        False
    """
    return actor.partition(" ")[0] in TRANSITIONS.get((before, after), ())
