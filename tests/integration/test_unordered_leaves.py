"""Leaf calls that may come in another order next time."""

from __future__ import annotations

import pytest

from letitloop import StepChanged
from letitloop.integration.leaves import aleaf
from letitloop.integration.sessions import Session


async def ask(session, number, **options):
    async def answer():
        return f"answer {number}"

    return await aleaf(session.root(), "ask", {"of": number}, answer, **options)


@pytest.mark.parametrize("then", [False, True], ids=["said now", "said then"])
async def test_another_one_in_its_place_is_no_change(then):
    """It is enough that one of the two was said to be unordered."""
    with Session("unordered") as session:
        await ask(session, 1, unordered=then)
    with Session("unordered") as session:
        assert await ask(session, 2, unordered=not then) == "answer 2"
        assert await ask(session, 1) == "answer 1"


async def test_by_itself_it_is_a_change():
    with Session("unordered") as session:
        await ask(session, 1)
    with Session("unordered") as session, pytest.raises(StepChanged, match="'of' differs"):
        await ask(session, 2)
