"""The guard around a function that acts: what it refuses to decorate, keys, trusted values, policies, kinds of functions."""

from __future__ import annotations

import asyncio
import inspect
import threading
import typing
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, localcontext
from enum import Enum
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import letitloop
from letitloop import (
    ActionConflict,
    Approval,
    ApprovalRequired,
    InvalidArgument,
    Ledger,
    Limit,
    MemoryStore,
    NotAuthorized,
    Redacted,
    Trusted,
    UnknownOutcome,
    carry,
    effect,
    effect_context,
    register_provider,
)
from letitloop.effects import guard
from letitloop.effects.context import EffectContext, current_context, from_context
from letitloop.effects.templates import Template
from tests.effects.acting import Bank, capable, loses_its_reply, never_arrives


@pytest.fixture
def ledger():
    return Ledger(store=MemoryStore())


@pytest.fixture
def bank():
    return Bank()


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(guard, "_providers", {})


# --- what is refused when it is decorated ------------------------------------------------------------------------------------


def refund(order_id: str, amount_minor: int, *, request_id: Trusted[str] = "r") -> str:
    return f"{order_id}:{amount_minor}:{request_id}"


BAD_POLICIES = {
    "a key without a field": {"key": "refund"},
    "an empty key": {"key": ""},
    "a key of the context alone": {"key": "refund/{ctx.tenant}"},
    "an index": {"key": "refund/{order_id[0]}"},
    "an attribute": {"key": "refund/{order_id.x}"},
    "a format": {"key": "refund/{order_id:>10}"},
    "a conversion": {"key": "refund/{order_id!r}"},
    "a number": {"key": "refund/{0}"},
    "no name": {"key": "refund/{}"},
    "an open brace": {"key": "refund/{order_id"},
    "a nested field": {"key": "refund/{order_id:{amount_minor}}"},
    "the whole context": {"key": "refund/{ctx}"},
    "an unknown parameter": {"key": "refund/{order}"},
    "two fields with nothing between": {"key": "refund/{order_id}{amount_minor}"},
    "a scope from arguments": {"key": "{order_id}", "scope": "shop/{order_id}"},
    "a trusted parameter that is none": {"key": "{order_id}", "trusted": {"customer": from_context}},
    "a group of what is no parameter": {"key": "{order_id}", "limit": Limit(group="{customer}", max_intents=1)},
    "a ticket that is no parameter": {"key": "{order_id}", "ticket": "ticket"},
    "a redacted argument that is no parameter": {"key": "{order_id}", "redact": ("card",)},
    "a payload that is no parameter": {"key": "{order_id}", "payload": ("card",)},
    "a time that is none": {"key": "{order_id}", "approval": Approval(ttl="soon")},
    "a limit of nothing": {"key": "{order_id}", "model_fields": ("order_id",), "limit": Limit(group="refunds")},
    "a field that a model may choose without bound": {"key": "{order_id}", "model_fields": ("order_id",)},
    "a bound as narrow as the key": {
        "key": "{order_id}",
        "model_fields": ("order_id",),
        "limit": Limit(group="g/{order_id}", max_intents=1),
    },
    "a field that nobody answers for": {
        "key": "{order_id}/{amount_minor}",
        "model_fields": ("order_id",),
        "limit": Limit(group="g/{order_id}", max_intents=1),
    },
    "a recovery that does not exist": {"key": "{order_id}", "recover": "hope"},
    "no attempt": {"key": "{order_id}", "max_attempts": 0},
}


@pytest.mark.parametrize("options", BAD_POLICIES.values(), ids=BAD_POLICIES)
def test_a_policy_that_means_nothing_is_refused_when_a_function_is_decorated(options):
    with pytest.raises(InvalidArgument, match=r"effect|duration"):
        effect(**options)(refund)


FICKLE = ["uuid", "tool_call_id", "call_id", "run_id", "attempt", "timestamp", "now", "time", "random", "nonce", "epoch", "UUID"]


@pytest.mark.parametrize("name", FICKLE)
@pytest.mark.parametrize("form", ["{order_id}/{NAME}", "{order_id}/{ctx.NAME}"])
def test_a_key_with_what_is_new_in_every_attempt_is_refused(name, form):
    with pytest.raises(InvalidArgument, match="every attempt"):
        effect(key=form.replace("NAME", name))


def test_a_function_without_named_parameters_is_refused():
    for fn in (lambda order_id, *more: 1, lambda order_id, **more: 1):
        with pytest.raises(InvalidArgument, match="args"):
            effect(key="{order_id}")(fn)


def test_a_policy_where_a_model_chooses_which_and_not_how_often_is_accepted(ledger, bank):
    @effect(
        key="refund/{order_id}/{request_id}",
        trusted={"request_id": from_context},
        model_fields=("order_id",),
        limit=Limit(group="refund/{order_id}", max_intents=1),
        provider=bank,
        ledger=ledger,
    )
    def tool(order_id: str, *, request_id: Trusted[str]): ...

    with effect_context(request_id="r1"):
        tool("o1")
    with effect_context(request_id="r2"), pytest.raises(NotAuthorized):
        tool("o1")


def test_a_parameter_annotated_as_trusted_needs_nobody_else_to_answer_for_it():
    effect(key="refund/{order_id}/{request_id}", model_fields=("order_id",), limit=Limit(group="refund/{order_id}", max_intents=1))(
        refund
    )


# --- keys --------------------------------------------------------------------------------------------------------------------

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


# --- trusted parameters ------------------------------------------------------------------------------------------------------


def defined(code, **names):
    """Return the function ``tool`` that some other module defines."""
    names["__name__"] = "theirs"
    exec(compile(code, "theirs", "exec", dont_inherit=True), names)
    return names["tool"]


TRUSTED_FORMS = {
    "plain": "request_id: Trusted[str]",
    "with a default": "request_id: Trusted[str] = 'd'",
    "by its module": "request_id: letitloop.Trusted[str]",
    "by another name of its module": "request_id: lil.Trusted[str]",
    "by another name": "request_id: FromApp[str]",
    "optional": "request_id: Trusted[str] | None = None",
    "optional, in old words": "request_id: typing.Optional[Trusted[str]] = None",
    "annotated further": "request_id: typing.Annotated[Trusted[str], 'doc']",
    "of what is trusted": "request_id: typing.Annotated[typing.Annotated[str, 'doc'], 'more'] | Trusted[str] = 'd'",
    "beside an annotation that is unknown here": "request_id: Trusted[str], note: 'NotDefinedAnywhere' = ''",
    "by another module name beside an unknown one": "request_id: lil.Trusted[str], note: NotDefinedAnywhere = ''",
    "by another name beside an unknown one": "request_id: FromApp[str], note: NotDefinedAnywhere = ''",
}


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"], ids=["objects", "texts"])
@pytest.mark.parametrize("form", TRUSTED_FORMS.values(), ids=TRUSTED_FORMS)
def test_no_model_sees_or_sets_a_trusted_parameter_however_it_is_written(ledger, bank, form, future):
    if not future:
        form = form.replace("NotDefinedAnywhere =", "'NotDefinedAnywhere' =")
    names = {
        "letitloop": letitloop,
        "lil": letitloop,
        "Trusted": Trusted,
        "FromApp": Trusted,
        "typing": typing,
        "__name__": "theirs",
    }
    tool = defined(f"{future}def tool(order_id: str, *, {form}): ...", **names)
    tool = effect(key="refund/{order_id}/{request_id}", provider=bank, ledger=ledger)(tool)
    assert "request_id" not in inspect.signature(tool).parameters
    assert "request_id" not in tool.__annotations__
    with effect_context(request_id="app"):
        tool("o1", request_id="model's")
        tool("o1")
    (sent,) = bank.sent
    assert sent.arguments["request_id"] == "app"
    assert sent.key == "refund/o1/app"


def test_the_other_parameters_and_what_it_returns_are_still_seen():
    tool = effect(key="refund/{order_id}/{request_id}")(refund)
    assert list(inspect.signature(tool).parameters) == ["order_id", "amount_minor"]
    assert typing.get_type_hints(tool) == {"order_id": str, "amount_minor": int, "return": str}
    assert (tool.__name__, tool.__doc__, tool.__wrapped__) == ("refund", refund.__doc__, refund)


def test_a_trusted_positional_parameter_is_not_counted_among_what_a_caller_passes(ledger, bank):
    @effect(key="refund/{order_id}/{request_id}", provider=bank, ledger=ledger)
    def tool(request_id: Trusted[str], order_id: str, amount_minor: int = 5): ...

    with effect_context(request_id="app"):
        tool("o1", 7)
        with pytest.raises(TypeError):
            tool("model's", "o1", 7)
    assert bank.sent[0].arguments == {"request_id": "app", "order_id": "o1", "amount_minor": 7}


def test_without_a_context_a_trusted_parameter_refuses_the_action_unless_it_has_a_default(ledger, bank):
    tool = effect(key="refund/{order_id}/{request_id}", provider=bank, ledger=ledger)
    with pytest.raises(NotAuthorized, match=r"effect_context\(request_id="):
        tool(strict)("o1", 5)
    tool(refund)("o1", 5)
    assert bank.sent[0].arguments["request_id"] == "r"
    with effect_context(request_id="app"):
        tool(refund)("o1", 5)
    assert bank.sent[1].arguments["request_id"] == "app"


def strict(order_id: str, amount_minor: int, *, request_id: Trusted[str]): ...


def test_a_resolver_is_given_what_was_passed_and_the_context_and_returns_what_counts(ledger, bank):
    seen = []

    def resolve(value, context):
        seen.append((value, context.tenant))
        if value == "somebody else's":
            raise NotAuthorized("not your order")
        return value.upper()

    tool = effect(key="refund/{order_id}", trusted={"order_id": resolve}, provider=bank, ledger=ledger)(refund)
    with effect_context(tenant="acme"):
        tool("o1", 5)
        tool("O1", 5)
        with pytest.raises(NotAuthorized, match="not your order"):
            tool("somebody else's", 5)
    assert seen == [("o1", "acme"), ("O1", "acme"), ("somebody else's", "acme")]
    assert [one.key for one in bank.sent] == ["refund/O1"]
    assert "order_id" in inspect.signature(tool).parameters, "a model says which order it means"


def test_a_resolver_of_a_hidden_parameter_is_never_given_what_a_model_said(ledger, bank):
    seen = []
    trusted = {"request_id": lambda value, context: seen.append(value) or context.request}
    tool = effect(key="refund/{order_id}/{request_id}", trusted=trusted, provider=bank, ledger=ledger)(refund)
    with effect_context(request="app"):
        tool("o1", 5, request_id="model's")
    assert seen == [None]
    assert bank.sent[0].arguments["request_id"] == "app"


def test_from_context_takes_a_parameter_that_is_seen_from_the_context(ledger, bank):
    tool = effect(key="refund/{order_id}", trusted={"order_id": from_context}, provider=bank, ledger=ledger)(refund)
    with effect_context(order_id="real"):
        tool("model's", 5)
    assert bank.sent[0].key == "refund/real"
    with pytest.raises(NotAuthorized):
        tool("model's", 5)


def test_missing_and_unknown_arguments_are_the_caller_s_mistakes(ledger, bank):
    tool = effect(key="refund/{order_id}", provider=bank, ledger=ledger)(refund)
    for arguments, keywords in (((), {}), (("o1",), {}), (("o1", 5, 6), {}), (("o1", 5), {"bogus": 1})):
        with pytest.raises(TypeError):
            tool(*arguments, **keywords)
    assert ledger.list() == []


# --- the context -------------------------------------------------------------------------------------------------------------


def test_inner_contexts_add_to_outer_ones_and_end_with_their_blocks():
    with effect_context(tenant="acme", user="ada") as outer:
        with effect_context(user="ben", order=1) as inner:
            current = current_context()
            assert (current.tenant, current.user, current.order) == ("acme", "ben", 1)
            assert inner is current
        assert current_context() is outer
        assert outer.user == "ada"
        with pytest.raises(ValueError, match="odd"), effect_context(user="cleo"):
            raise ValueError("odd")
        assert current_context() is outer
    with pytest.raises(NotAuthorized, match="tenant"):
        _ = current_context().tenant


@pytest.mark.parametrize("name", ["tenant", "current", "merged", "values", "self", "name"])
def test_a_value_of_any_name_can_be_given(ledger, bank, name):
    exec_names = {"Trusted": Trusted, "__name__": "theirs"}
    exec(f"def tool(order_id: str, *, {name}: Trusted[str]): ...", exec_names)
    tool = effect(key=f"refund/{{order_id}}/{{{name}}}", scope=f"shop/{{ctx.{name}}}", provider=bank, ledger=ledger)(
        exec_names["tool"]
    )
    with effect_context(**{name: "acme"}):
        tool("o1")
    assert (bank.sent[0].namespace, bank.sent[0].key) == ("shop/acme", "refund/o1/acme")
    assert bank.sent[0].arguments[name] == "acme"


async def test_each_task_has_the_context_it_was_started_in(ledger):
    acted = []

    @effect(key="mail/{to}/{campaign}", scope="shop/{ctx.tenant}", ledger=ledger)
    async def mail(to: str, *, campaign: Trusted[str]):
        await asyncio.sleep(0)
        acted.append((to, campaign))
        return campaign

    async def of(tenant):
        with effect_context(tenant=tenant, campaign=f"c-{tenant}"):
            await asyncio.sleep(0)
            return await mail("ada")

    assert await asyncio.gather(*(of(f"t{n}") for n in range(9))) == [f"c-t{n}" for n in range(9)]
    assert len(acted) == 9
    assert {intent.namespace for intent in ledger.list()} == {f"shop/t{n}" for n in range(9)}


def test_a_thread_has_no_context_but_the_one_it_is_given(ledger, bank):
    tool = effect(key="refund/{order_id}/{request_id}", provider=bank, ledger=ledger)(strict)
    with effect_context(request_id="app"), ThreadPoolExecutor(1) as pool:
        with pytest.raises(NotAuthorized):
            pool.submit(tool, "o1", 5).result()
        pool.submit(carry(tool), "o1", 5).result()
    assert bank.sent[0].key == "refund/o1/app"


def test_a_namespace_is_the_application_s(ledger, bank):
    tool = effect(key="refund/{order_id}", scope="shop/{ctx.tenant}", provider=bank, ledger=ledger)(refund)
    for tenant in ("acme", "zeta", "a/b"):
        with effect_context(tenant=tenant):
            tool("o1", 5)
    assert [one.namespace for one in bank.sent] == ["shop/acme", "shop/zeta", "shop/a%2Fb"]
    with pytest.raises(NotAuthorized, match="tenant"):
        tool("o1", 5)


# --- limits, approvals, tickets ----------------------------------------------------------------------------------------------


def test_a_group_is_made_of_arguments_and_context(ledger, bank):
    tool = effect(
        key="refund/{order_id}/{request_id}",
        limit=Limit(group="{ctx.tenant}/{order_id}", max_intents=1, max_sum=("amount_minor", lambda a: 100)),
        provider=bank,
        ledger=ledger,
    )(refund)
    with effect_context(tenant="acme", request_id="1"):
        tool("o1", 60)
        tool("o2", 60)
        with pytest.raises(NotAuthorized, match="100"):
            tool("o3", 101)
    with effect_context(tenant="acme", request_id="2"), pytest.raises(NotAuthorized, match="acme/o1"):
        tool("o1", 1)
    with effect_context(tenant="zeta", request_id="2"):
        tool("o1", 1)
    assert [intent.group for intent in ledger.list()] == ["acme/o1", "zeta/o1", "acme/o2"]


def test_one_unknown_outcome_freezes_its_group_and_block_group_on_none_does_not(ledger):
    bank = Bank(never_arrives, never_arrives)
    options = {"key": "refund/{order_id}/{request_id}", "provider": bank, "ledger": ledger}
    limit = Limit(group="refund/{order_id}", max_intents=9)
    frozen = effect(limit=limit, **options)(refund)
    free = effect(limit=limit, block_group_on=None, **options)(refund)
    with effect_context(request_id="1"), pytest.raises(UnknownOutcome):
        frozen("o1", 5)
    with effect_context(request_id="2"):
        with pytest.raises(UnknownOutcome, match="same group"):
            frozen("o1", 5)
        with pytest.raises(UnknownOutcome):
            free("o1", 5)
    assert len(bank.sent) == 2


def test_an_approval_is_asked_for_where_when_says_so(ledger, bank):
    approval = Approval(when=lambda a: a["amount_minor"] > 5000, ttl="1h")
    tool = effect(key="refund/{order_id}", approval=approval, provider=bank, ledger=ledger)(refund)
    tool("small", 5000)
    with pytest.raises(ApprovalRequired) as caught:
        tool("large", 5001)
    ledger.approve(caught.value.namespace, caught.value.key, by="alice")
    tool("large", 5001)
    assert [one.key for one in bank.sent] == ["refund/small", "refund/large"]


def test_a_parameter_may_hold_a_ticket(ledger, bank):
    @effect(key="refund/{order_id}/{ticket}", ticket="ticket", provider=bank, ledger=ledger)
    def refund_with(order_id: str, amount_minor: int, *, ticket: Trusted[str]): ...

    tickets = [ledger.authorize("refund_with", {"order_id": "o1"}, max_amount=100) for _ in range(2)]
    for ticket in tickets:
        for given_as in (ticket, str(ticket)):
            with effect_context(ticket=given_as):
                refund_with("o1", 100)
    assert len(bank.sent) == 2
    with effect_context(ticket=tickets[0]), pytest.raises(NotAuthorized):
        refund_with("o2", 100)
    with effect_context(ticket="made up"), pytest.raises(NotAuthorized):
        refund_with("o1", 100)


def test_options_reach_the_ledger(ledger):
    bank = capable(loses_its_reply)
    tool = effect(key="refund/{order_id}", recover="block", redact=("amount_minor",), provider=bank, ledger=ledger)(refund)
    with pytest.raises(UnknownOutcome):
        tool("o1", 5)
    assert not bank.asked
    (intent,) = ledger.list()
    assert isinstance(intent.arguments["amount_minor"], Redacted)
    assert (intent.operation, intent.namespace) == ("refund", "default")


# --- who acts ----------------------------------------------------------------------------------------------------------------


def test_without_a_provider_the_function_itself_acts_and_what_it_raises_is_unknown(ledger):
    acted = []

    @effect(key="mail/{to}", ledger=ledger)
    def mail(to: str, text: str = "Hello", *, tone: str = "warm") -> str:
        acted.append((to, text, tone))
        if to == "nobody":
            raise ConnectionError("lost")
        return f"{text} {to}"

    assert mail("ada") == mail(to="ada") == mail("ada", "Hello", tone="warm") == "Hello ada"
    with pytest.raises(UnknownOutcome, match="lost"):
        mail("nobody")
    with pytest.raises(UnknownOutcome):
        mail("nobody")
    assert acted == [("ada", "Hello", "warm"), ("nobody", "Hello", "warm")]


def test_positional_only_parameters_are_named_in_the_ledger_too(ledger):
    def mail(to: str, /, text: str) -> str:
        return f"{text} {to}"

    try:
        mail = effect(key="mail/{to}", ledger=ledger)(mail)
    except InvalidArgument:  # or they are refused when they are decorated
        return
    assert mail("ada", "Hello") == "Hello ada"
    assert ledger.list()[0].arguments == {"to": "ada", "text": "Hello"}


async def test_an_async_function_acts_in_async_code(ledger):
    acted = []

    @effect(key="mail/{to}", ledger=ledger)
    async def mail(to: str) -> str:
        await asyncio.sleep(0)
        acted.append(to)
        return f"mailed {to}"

    assert inspect.iscoroutinefunction(mail)
    assert await mail("ada") == await mail("ada") == "mailed ada"
    assert acted == ["ada"]


async def test_a_provider_acts_for_an_async_function_too(ledger, bank):
    @effect(key="refund/{order_id}", provider=bank, ledger=ledger)
    async def tool(order_id: str, amount_minor: int):
        raise AssertionError("the provider acts")

    assert await tool("o1", 5) == {"refunded": 5, "to": "refund/o1"}


@dataclass(frozen=True)
class Shop:
    name: str

    @effect(key="mail/{to}", scope="shop")
    def mail(self, to: str) -> str:
        return f"{self.name} to {to}"


class Mailer:
    """Has nothing that could be recorded."""

    def __init__(self, ledger):
        self.sent = []
        self.lock = threading.Lock()
        self.mail = effect(key="mail/{to}", ledger=ledger)(self._mail)

    def _mail(self, to: str) -> str:
        self.sent.append(to)
        return f"mailed {to}"

    @effect(key="note/{to}", scope="notes")
    def note(self, to: str) -> str:
        self.sent.append(to)
        return f"noted {to}"

    @staticmethod
    @effect(key="static/{to}")
    def static(to: str) -> str:
        return f"static {to}"

    @classmethod
    @effect(key="class/{to}")
    def of_class(cls, to: str) -> str:
        return f"{cls.__name__} {to}"


def test_a_bound_method_can_be_guarded(ledger):
    mailer = Mailer(ledger)
    assert mailer.mail("ada") == mailer.mail("ada") == "mailed ada"
    assert mailer.sent == ["ada"]


def test_methods_can_be_decorated_and_the_object_is_no_argument_of_the_action(ledger):
    shop = Shop("acme")
    assert shop.mail("ada") == shop.mail("ada") == "acme to ada"
    mailer = Mailer(ledger)
    assert mailer.note("ada") == mailer.note("ada") == "noted ada"
    assert mailer.sent == ["ada"]
    assert Mailer.static("ada") == mailer.static("ada") == "static ada"
    assert Mailer.of_class("ada") == "Mailer ada"
    assert Ledger().get("notes", "note/ada").arguments == {"to": "ada"}


def test_a_provider_is_found_by_name_when_it_is_needed(ledger, bank, registry):
    tool = effect(key="refund/{order_id}", provider="bank", ledger=ledger)(refund)
    with pytest.raises(InvalidArgument, match=r"'bank' \(registered: none\)"):
        tool("o1", 5)
    made = []
    register_provider("bank", lambda: made.append(1) or bank)
    assert made == []
    tool("o1", 5)
    tool("o2", 5)
    assert (len(made), len(bank.sent)) == (1, 2)
    with pytest.raises(InvalidArgument, match="another provider"):
        register_provider("bank", Bank())
    other = Bank()
    register_provider("other", other)
    register_provider("other", other)
    assert guard.find_provider("other") is other


def test_a_factory_may_be_registered_again(bank, registry):
    """A module that is imported twice, or reloaded, registers again."""

    def factory():
        return bank

    register_provider("bank", factory)
    guard.find_provider("bank")
    register_provider("bank", factory)
    assert guard.find_provider("bank") is bank


def test_the_policy_is_at_hand_for_adapters(ledger, bank):
    policy = effect(key="refund/{order_id}/{request_id}", provider=bank, ledger=ledger)
    assert policy(refund).effect is policy
    bound = policy.bind(refund, name="refund_tool")
    assert (bound.operation, bound.hidden) == ("refund_tool", {"request_id"})
    assert list(bound.visible.parameters) == ["order_id", "amount_minor"]
    with effect_context(request_id="app"):
        bound.call("o1", 5)
        asyncio.run(bound.acall("o1", 5))
    assert len(bank.sent) == 1
    assert ledger.list()[0].operation == "refund_tool"


def test_one_policy_may_guard_several_functions(ledger, bank):
    policy = effect(key="k/{order_id}", provider=bank, ledger=ledger)
    policy(refund)("o1", 5)

    def charge(order_id: str, amount_minor: int): ...

    with pytest.raises(ActionConflict) as caught:
        policy(charge)("o1", 5)
    assert caught.value.kind == "operation"


def test_guarding_what_is_guarded_is_refused_or_acts_once(ledger, bank):
    inner = effect(key="refund/{order_id}", provider=bank, ledger=ledger)(lambda order_id: None)
    try:
        outer = effect(key="again/{order_id}", ledger=ledger)(inner)
    except InvalidArgument:
        return
    outer("o1")
    outer("o1")
    assert len(bank.sent) == 1


@pytest.mark.parametrize("value", [5, "name", None, b"x"])
def test_only_a_function_can_be_guarded(value):
    with pytest.raises((InvalidArgument, TypeError)):
        effect(key="k/{order_id}")(value)


def test_a_generator_function_is_refused():
    """What it does it does while it is iterated, long after the action was recorded."""

    def generator(order_id):
        yield order_id

    async def async_generator(order_id):
        yield order_id

    for fn in (generator, async_generator):
        with pytest.raises((InvalidArgument, TypeError)):
            effect(key="k/{order_id}")(fn)


def test_a_context_s_time_of_day_may_be_part_of_a_group_and_not_of_a_key():
    assert Template("{ctx.day}", "limit group").render({}, EffectContext({"day": datetime(2026, 1, 2)})) == "2026-01-02 00:00:00"
