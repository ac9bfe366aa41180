"""What an answer about a dispatch does to an intent that others have moved meanwhile: each transition is one that exists."""

from __future__ import annotations

import pytest

from letitloop.effects.intent import Row
from letitloop.effects.machine import Facts, answered
from letitloop.effects.provider import Dispatch, Found, NotExecuted, NotFound, StillRunning, Unavailable
from letitloop.effects.states import CANCELLED, DISPATCHED, FAILED, SUCCEEDED, UNKNOWN, allowed

ANSWERS = [
    Found("done", "k" * 40),
    NotExecuted("tombstoned", "its key is occupied"),
    NotExecuted("rejected", "it was refused"),
    NotFound(),
    StillRunning(),
    Unavailable("it is down"),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__ + getattr(answer, "kind", ""))
@pytest.mark.parametrize("epoch", [1, 2], ids=["as it was asked about", "sent again meanwhile"])
@pytest.mark.parametrize("state", [DISPATCHED, UNKNOWN, SUCCEEDED, FAILED, CANCELLED])
def test_an_answer_moves_an_intent_only_as_the_table_allows(state, epoch, answer):
    row = Row("shop", "k", state, 1, epoch, epoch, "refund", "bank", "bank/1", b"", b"", 1.0, 1.0, dispatched_at=1.0)
    dispatch = Dispatch("shop", "k", 1, 1, "k" * 40, "refund", {}, 1.0)
    decision = answered(Facts(row, 2.0, "me", lambda _: True), dispatch, answer)
    moves = [event for event in decision.events if event.before != event.after]
    assert all(allowed(event.before, event.after, event.actor) for event in moves), moves
    if isinstance(answer, Found) and state in (DISPATCHED, UNKNOWN):
        assert decision.row is not None
        assert decision.row.state == SUCCEEDED
