"""Orders of events that random ones rarely meet: a window's edge, clocks that went back, late answers, odd replies."""

from __future__ import annotations

import pytest

from letitloop import Approval, ApprovalRequired, Fenced, IntentFailed, Ledger, NotAuthorized, UnknownOutcome
from letitloop.effects.provider import Found, NotExecuted, NotFound, Succeeded, Unavailable, Unknown
from tests.effects.acting import Clock
from tests.effects.machine import WINDOW, Door


def lost_once(ledger, key="window-1"):
    class Losing(Door):
        def execute(self, dispatch):
            raise ConnectionResetError("lost")

    with pytest.raises(UnknownOutcome):
        ledger.run("n", key, Losing(key), {"operation": "move"}, recover="block")


class Sending(Door):
    def execute(self, dispatch):
        return Succeeded("sent")

    def reconcile(self, dispatch):
        return NotFound()


@pytest.mark.parametrize("after", [WINDOW, WINDOW + 1e-6, 1e9])
def test_a_window_ends_at_its_edge(tmp_path, after):
    clock = Clock()
    ledger = Ledger(tmp_path / "ledger.db", clock=clock)
    lost_once(ledger)
    began = clock.now
    clock.now += after
    with pytest.raises(UnknownOutcome, match="window"):
        ledger.resend("n", "window-1", Sending("window-1"))
    clock.now = began + WINDOW - 0.001
    if after == WINDOW:
        assert ledger.resend("n", "window-1", Sending("window-1")) == "sent"


def test_a_second_sending_does_not_move_the_window(tmp_path):
    clock = Clock()
    ledger = Ledger(tmp_path / "ledger.db", clock=clock)
    lost_once(ledger)
    clock.now += WINDOW - 1

    class LosingAgain(Sending):
        def execute(self, dispatch):
            raise ConnectionResetError("lost")

    with pytest.raises(UnknownOutcome):
        ledger.resend("n", "window-1", LosingAgain("window-1"))
    clock.now += 1
    with pytest.raises(UnknownOutcome, match="window"):
        ledger.resend("n", "window-1", Sending("window-1"))


def test_a_clock_that_went_back_over_a_question_opens_no_window(tmp_path):
    """The ledger has seen a time after the window's end; that the clock now says otherwise proves nothing."""
    clock = Clock()
    ledger = Ledger(tmp_path / "ledger.db", clock=clock)
    lost_once(ledger)
    clock.now += WINDOW + 50
    ledger.reconcile("n", "window-1", Sending("window-1"))
    clock.now -= 100
    with pytest.raises(UnknownOutcome, match=r"clock|window"):
        ledger.resend("n", "window-1", Sending("window-1"))


def test_an_answer_about_an_earlier_sending_is_no_certificate_for_a_later_one(tmp_path):
    """Asked about the first sending, which was refused; while the answer is on its way, the second one acts and is lost."""
    clock = Clock()
    ledger = Ledger(tmp_path / "ledger.db", clock=clock)
    lost_once(ledger)
    acted = []

    class Meanwhile(Sending):
        def execute(self, dispatch):
            acted.append(dispatch.epoch)
            raise ConnectionResetError("lost")

        def reconcile(self, dispatch):
            with pytest.raises(UnknownOutcome):
                ledger.resend("n", "window-1", self)
            return NotExecuted("rejected", "the request was refused: too many of them")

    intent = ledger.reconcile("n", "window-1", Meanwhile("window-1"))
    assert len(acted) == 1
    assert intent.state == "UNKNOWN", intent


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, SystemExit, GeneratorExit, UnknownOutcome, Fenced, StopIteration, MemoryError]
)
def test_whatever_leaves_a_provider_means_unknown(tmp_path, error):
    ledger = Ledger(tmp_path / "ledger.db")

    class Raising(Door):
        def execute(self, dispatch):
            raise error("of the provider")

    with pytest.raises(BaseException):
        ledger.run("n", "opaque-1", Raising("opaque-1"), {})
    assert ledger.get("n", "opaque-1").state == "UNKNOWN"
    assert [one.kind for one in ledger.events("n", "opaque-1")][-1] == "unknown"


@pytest.mark.parametrize(
    "reply",
    [
        None,
        0,
        "done",
        Found(1, "k"),
        NotFound(),
        Unavailable("away"),
        NotExecuted("", "nothing"),
        NotExecuted("timeout", "nothing"),
        NotExecuted("human", "by nobody"),
        NotExecuted(["not_sent"], "a list"),
        Unknown("\ud800"),
        Unknown(None),
        NotExecuted("probably", None),
    ],
    ids=repr,
)
def test_no_other_reply_is_a_certificate(tmp_path, reply):
    """I3: FAILED needs a certificate of a kind that exists."""
    ledger = Ledger(tmp_path / "ledger.db")

    class Odd(Door):
        def execute(self, dispatch):
            return reply

    with pytest.raises(UnknownOutcome):
        ledger.run("n", "opaque-1", Odd("opaque-1"), {})
    assert ledger.get("n", "opaque-1").state == "UNKNOWN"


class Acting(Door):
    def execute(self, dispatch):
        return Succeeded(1)


def test_what_was_taken_back_is_not_taken_back_from_another_namespace(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.run("n", "pay", Acting("opaque-1"), {})
    assert ledger.run("a", "refund", Acting("opaque-1"), {}, compensates=("n", "pay")) == 1
    with pytest.raises(NotAuthorized):
        ledger.run("b", "refund", Acting("opaque-1"), {}, compensates=("n", "pay"))
    assert ledger.run("a", "refund", Acting("opaque-1"), {}, compensates=("n", "pay")) == 1


@pytest.mark.parametrize("state", ["PREPARED", "DISPATCHED", "UNKNOWN", "FAILED", "CANCELLED", "none"])
def test_only_what_has_succeeded_is_taken_back(tmp_path, state):
    ledger = Ledger(tmp_path / "ledger.db")
    tried = []

    class Trying(Door):
        def execute(self, dispatch):
            if state == "DISPATCHED":
                tried.append(dispatch)
                with pytest.raises(NotAuthorized):
                    ledger.run("n", "back", Acting("opaque-1"), {}, compensates=("n", "pay"))
            if state == "UNKNOWN":
                raise TimeoutError
            return NotExecuted("rejected", "no")

    options = {"approval": Approval()} if state in ("PREPARED", "CANCELLED") else {}
    if state != "none":
        with pytest.raises((UnknownOutcome, IntentFailed, ApprovalRequired)):
            ledger.run("n", "pay", Trying("opaque-1"), {}, **options)
    if state == "CANCELLED":
        ledger.cancel("n", "pay")
    with pytest.raises(NotAuthorized):
        ledger.run("n", "back", Acting("opaque-1"), {}, compensates=("n", "pay"))
    assert [row.key for row in ledger.list()] == ([] if state == "none" else ["pay"])
