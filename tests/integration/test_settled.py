"""A reopened scope whose calls need not answer again in this process."""

from __future__ import annotations

from letitloop.integration.leaves import leaf
from letitloop.integration.sessions import Session, reopened, settled


def test_a_settled_scope_keeps_nothing_in_memory_and_everything_on_record():
    made = []
    with Session("settled") as session:
        part, other = session.root().inner("part"), session.root().inner("other")
        for scope in (part, part, other):
            leaf(reopened(scope), "work", {}, lambda: made.append(1))
        assert len(made) == 2
        settled(part)
        assert len(session.root().run._live) == 1
    with Session("settled") as session:
        leaf(reopened(session.root().inner("part")), "work", {}, lambda: made.append(1))
    assert len(made) == 2
