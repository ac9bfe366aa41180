"""Trusted parameters and the context that they come from: no model sees or sets them."""

from __future__ import annotations

import asyncio
import inspect
import typing
from concurrent.futures import ThreadPoolExecutor

import pytest

import letitloop
from letitloop import NotAuthorized, Trusted, carry, effect, effect_context
from letitloop.effects.context import current_context, from_context
from tests.effects.guard.refunds import refund

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
