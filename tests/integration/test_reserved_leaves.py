"""A leaf call whose place is taken before its work is done."""

from __future__ import annotations

import pytest

from letitloop import StepChanged
from letitloop.integration.leaves import acomplete, leaf, reserve
from letitloop.integration.sessions import Session


async def answer():
    return {"said": 4}


async def test_a_reserved_call_is_completed_once():
    for life in range(2):
        with Session("reserved") as session:
            call, known = reserve(session.root(), "result", {"of": 2})
            if life:
                assert known.value == {"said": 4}
            else:
                assert known is None
                assert await acomplete(call, answer) == {"said": 4}


async def test_a_reserved_call_that_asks_something_else():
    with Session("reserved") as session:
        call, _ = reserve(session.root(), "result", {"of": 2})
        await acomplete(call, answer)
    with Session("reserved") as session, pytest.raises(StepChanged, match="'of' differs"):
        reserve(session.root(), "result", {"of": 3})


async def test_one_that_was_never_completed_is_open_in_the_next_life():
    with Session("reserved") as session:
        reserve(session.root(), "result", {})
    with Session("reserved") as session:
        assert reserve(session.root(), "result", {})[1] is None


@pytest.mark.parametrize(("on_change", "answer"), [("reuse", 1), ("rerun", 2)])
def test_a_call_may_say_itself_what_a_change_does(on_change, answer):
    with Session("said") as session:
        assert leaf(session.root(), "one", {"of": 1}, lambda: 1) == 1
    with Session("said") as session:
        assert leaf(session.root(), "one", {"of": 2}, lambda: 2, on_change=on_change) == answer
    with Session("said") as session, pytest.raises(StepChanged, match="'of' differs"):
        leaf(session.root(), "one", {"of": 3}, lambda: 3)  # what it said is no other call's
