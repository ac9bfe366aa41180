"""Leaf calls in two halves, and streams."""

from __future__ import annotations

import pytest

from letitloop import StepChanged, UnencodableError
from letitloop.integration.leaves import leaf
from letitloop.integration.open_leaves import OpenLeaf, stream_leaf
from letitloop.integration.sessions import Session


@pytest.fixture
def life(tmp_path):
    """Give a scope of the same session, each time as a new process would find it."""
    session = Session("open leaves", store=tmp_path)

    def again():
        session.close()
        return session.root()

    yield again
    session.close()


@pytest.mark.parametrize("wait", [True, False])
def test_what_is_recorded_answers(life, wait):
    first = OpenLeaf(life(), "code", {"code": "x = 1"})
    assert not first.known
    assert first.record({"x": 1}, wait=wait) == {"x": 1}
    second = OpenLeaf(life(), "code", {"code": "x = 1"})
    assert second.known
    assert second.answer() == {"x": 1}
    with pytest.raises(StepChanged) as caught:
        OpenLeaf(life(), "code", {"code": "x = 2"})
    assert caught.value.arguments == ("code",)


def test_a_failure_inside_is_history_once_the_record_stands(life):
    def broken():
        raise ValueError("no")

    def code(scope):
        outer = OpenLeaf(scope, "code", {})
        with pytest.raises(ValueError, match="no"):
            leaf(scope.inner("turn"), "tool", {}, broken)
        if not outer.known:
            outer.record(None)

    code(life())

    def never():
        raise AssertionError("called again")

    scope = life()
    assert OpenLeaf(scope, "code", {}).known
    with pytest.raises(ValueError, match="no"):
        leaf(scope.inner("turn"), "tool", {}, never)


def test_what_was_given_up_is_new_work(life):
    first = OpenLeaf(life(), "code", {})
    first.begin()
    first.abandon()
    scope = life()
    assert scope.run.in_flight == ("code",)
    assert not OpenLeaf(scope, "code", {}).known


def test_a_failure_that_ended_everything_is_tried_again(life):
    first = OpenLeaf(life(), "code", {})
    first.fail(ValueError("no"))
    assert not OpenLeaf(life(), "code", {}).known
    scope = life()
    OpenLeaf(scope, "code", {}).fail(ValueError("no"))
    leaf(scope, "later", {}, lambda: 1)
    survived = OpenLeaf(life(), "code", {})
    assert survived.known
    with pytest.raises(ValueError, match="no"):
        survived.answer()


def test_a_stream_comes_again_piece_by_piece(life):
    assert list(stream_leaf(life(), "model", {}, lambda: iter("abc"))) == ["a", "b", "c"]

    def never():
        raise AssertionError("asked again")

    assert list(stream_leaf(life(), "model", {}, never)) == ["a", "b", "c"]


def test_a_stream_that_was_not_read_to_its_end_is_asked_again(life):
    stream = stream_leaf(life(), "model", {}, lambda: iter("abc"))
    assert next(stream) == "a"
    stream.close()
    assert list(stream_leaf(life(), "model", {}, lambda: iter("xyz"))) == ["x", "y", "z"]


def test_it_is_on_record_before_the_reader_knows_that_it_ended(life):
    stream = stream_leaf(life(), "model", {}, lambda: iter("ab"))
    assert [next(stream), next(stream)] == ["a", "b"]
    assert not OpenLeaf(life(), "model", {}).known
    stream = stream_leaf(life(), "model", {}, lambda: iter("ab"))
    assert list(stream) == ["a", "b"]
    assert OpenLeaf(life(), "model", {}).known


def test_a_stream_that_fails_or_cannot_be_recorded(life):
    def broken():
        yield "a"
        raise ValueError("cut")

    scope = life()
    stream = stream_leaf(scope, "model", {}, broken)
    assert next(stream) == "a"
    with pytest.raises(ValueError, match="cut"):
        next(stream)
    with pytest.raises(UnencodableError):
        list(stream_leaf(scope, "model", {}, lambda: iter([object()])))
    leaf(scope, "later", {}, lambda: 1)
    with pytest.raises(ValueError, match="cut"):
        list(stream_leaf(life(), "model", {}, broken))
