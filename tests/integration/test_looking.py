"""What is on record, before anything is asked of it."""

from __future__ import annotations

from pydantic import BaseModel, PrivateAttr

from letitloop import Ledger, effect
from letitloop.integration.leaves import leaf
from letitloop.integration.looking import differing, recorded_scopes
from letitloop.integration.patching import Patches
from letitloop.integration.sessions import Session, entered


def test_what_a_call_would_ask_otherwise(tmp_path):
    asked = {"words": "a", "model": "m"}
    with Session("looking", store=str(tmp_path)) as session:
        assert differing(session.root(), "ask", asked) is None
        leaf(session.root(), "ask", asked, lambda: 1)
        leaf(session.root(), "ask", asked, lambda: 2)
    with Session("looking", store=str(tmp_path)) as session:
        root = session.root()
        assert differing(root, "ask", asked) == ()
        assert differing(root, "ask", {**asked, "words": "b"}) == ("words",)
        assert differing(root, "ask", {**asked, "more": 1}) == ("model", "more", "words")
        assert leaf(root, "ask", asked, lambda: 3) == 1  # looking takes nothing
        assert root.run.journal.payload(root.run.journal.entries()[-1])


def test_scopes_on_record_tell_their_effects(tmp_path):
    sent = []

    @effect(key="mail/{to}", ledger=Ledger(store=str(tmp_path)))
    def send(to: str) -> str:
        sent.append(to)
        return to

    def drive(session):
        for name in ("quiet", "loud"):
            inner = session.root().inner(name)
            with entered(inner):
                leaf(inner, "ask", {}, lambda: 1)
                if name == "loud":
                    send("ada")

    with Session("scopes", store=str(tmp_path)) as session:
        drive(session)
    with Session("scopes", store=str(tmp_path)) as session:
        assert recorded_scopes(session.root()) == {"quiet": [], "loud": ["loud/mail%2Fada"]}
        assert not session.root().run.halted
        drive(session)
    assert sent == ["ada"]


def test_a_private_attribute_is_given_back():
    class Model(BaseModel):
        _secret: int = PrivateAttr(default=1)

    model, patches = Model(), Patches()
    patches.replace(model, "_secret", lambda stock: stock + 1)
    assert model._secret == 2
    patches.undo()
    assert model._secret == 1
