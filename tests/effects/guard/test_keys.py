"""Keys of a guarded function: no two actions have one, and no action has two."""

from __future__ import annotations

import unicodedata
from datetime import date, datetime
from decimal import Decimal, localcontext
from enum import Enum
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from letitloop import ActionConflict, InvalidArgument, effect
from letitloop.effects.context import EffectContext
from letitloop.effects.templates import Template
from tests.effects.guard.refunds import refund

NOBODY = EffectContext({})
TEMPLATES = ["{a}/{b}", "refund/{a}/{b}", "{a}-{b}", "{a}:{b}", "{a} and {b}", "{a}%{b}", "x{a}2F{b}", "{a}%2F{b}", "{a}/{b}/{a}"]
texts = st.text(st.sampled_from("ab-/%2F: \u00e9e\u0301andx{}"), min_size=1, max_size=6) | st.text(min_size=1)
values = texts | st.integers() | st.integers(-3, 3) | st.uuids() | st.dates()
decimals = st.decimals(-10, 10, places=1) | st.decimals(-10, 10, places=2) | st.integers(-10, 10)


def rendered(template, a, b):
    try:
        return Template(template, "key").render({"a": a, "b": b}, NOBODY)
    except InvalidArgument:
        return None  # nothing but white space


def canonical(value):
    """What a value counts as: texts alike but for white space around them, or composed otherwise, are one."""
    return unicodedata.normalize("NFC", value).strip() if isinstance(value, str) else str(value)


@pytest.mark.parametrize("template", TEMPLATES)
@given(values, values, values, values)
@example("1-2", "3", "1", "2-3")
@example("a:b", "c", "a", "b:c")
@example("a and b", "c", "a", "b and c")
@example("a/b", "c", "a", "b/c")
@example("a%2Fb", "c", "a/b", "c")
@example("a2F", "b", "a", "2Fb")
def test_no_two_pairs_of_values_have_one_key(template, a, b, c, d):
    first, second = rendered(template, a, b), rendered(template, c, d)
    if first is not None and first == second:
        assert (canonical(a), canonical(b)) == (canonical(c), canonical(d))


@given(st.lists(texts, min_size=1, max_size=4), st.lists(texts, min_size=1, max_size=4))
def test_no_value_imitates_the_template_s_own_words(many, others):
    keys = set()
    for found in (many, others):
        names = [f"f{n}" for n in range(len(found))]
        template = Template("refund/" + "/".join(f"{{{name}}}" for name in names), "key")
        try:
            keys.add(template.render(dict(zip(names, found, strict=True)), NOBODY))
        except InvalidArgument:
            return
    if [canonical(one) for one in many] != [canonical(one) for one in others]:
        assert len(keys) == 2


class Kind(Enum):
    FULL = "full"
    PART = 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("42", "42"),
        (42, "42"),
        (-1, "-1"),
        (10**30, "1" + "0" * 30),
        (" 42\n", "42"),
        ("e\u0301", "\u00e9"),
        ("a/b", "a%2Fb"),
        ("100%", "100%25"),
        (Decimal("12.34"), "12.34"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (date(2026, 1, 2), "2026-01-02"),
        (Kind.FULL, "full"),
        (Kind.PART, "2"),
        ("{order_id}", "{order_id}"),
    ],
)
def test_the_text_of_a_value_in_a_key(value, text):
    assert Template("k/{a}", "key").render({"a": value}, NOBODY) == f"k/{text}"


@pytest.mark.parametrize("value", [None, True, 1.5, b"x", [1], {}, object(), "", "  ", "\n", Decimal("NaN")])
def test_what_has_no_one_text_cannot_be_part_of_a_key(ledger, bank, value):
    tool = effect(key="refund/{order_id}", provider=bank, ledger=ledger)(lambda order_id: None)
    with pytest.raises(InvalidArgument, match="order_id"):
        tool(value)
    assert ledger.list() == []
    assert not bank.sent


@given(decimals, decimals)
@example(Decimal("1.0"), Decimal("1.00"))
@example(Decimal("1E+1"), 10)
@example(10**30, 10**30 + 1)
@example(Decimal(10**30), Decimal(10**30 + 1))
@example(Decimal("1E-40"), Decimal("1.1E-40"))
@example(Decimal("-0.00"), 0)
def test_equal_numbers_have_one_key_and_others_have_others(one, other):
    assert (rendered("{a}/{b}", one, "x") == rendered("{a}/{b}", other, "x")) == (one == other)


@pytest.mark.parametrize("value", [123456789, Decimal("1234.56"), -10, 10**40])
def test_a_key_does_not_depend_on_the_program_s_decimal_context(value):
    with localcontext() as context:
        context.prec = 3
        low = rendered("{a}/{b}", value, "x")
    assert low == rendered("{a}/{b}", value, "x")


def test_a_key_that_comes_out_too_long_or_broken_is_refused(ledger, bank):
    tool = effect(key="refund/{order_id}", provider=bank, ledger=ledger)(lambda order_id: None)
    for value in ("x" * 600, "a\0b", "\ud800"):
        with pytest.raises(InvalidArgument):
            tool(value)
    assert ledger.list() == []


def test_braces_in_a_template_are_doubled(ledger, bank):
    effect(key="{{refund}}/{order_id}", provider=bank, ledger=ledger)(lambda order_id: None)("o1")
    assert ledger.list()[0].key == "{refund}/o1"


def test_the_same_key_with_other_arguments_is_a_conflict_and_payload_says_which_count(ledger, bank):
    tool = effect(key="refund/{order_id}", provider=bank, ledger=ledger)(refund)
    tool("o1", 5)
    with pytest.raises(ActionConflict) as caught:
        tool("o1", 6)
    assert caught.value.fields == ("amount_minor",)
    lenient = effect(key="mail/{to}", payload=("to",), provider=bank, ledger=ledger)(lambda to, text: None)
    assert lenient("ada", "Hello") == lenient("ada", "Hi")
    assert len(bank.sent) == 2


def test_a_context_s_time_of_day_may_be_part_of_a_group_and_not_of_a_key():
    assert Template("{ctx.day}", "limit group").render({}, EffectContext({"day": datetime(2026, 1, 2)})) == "2026-01-02 00:00:00"
