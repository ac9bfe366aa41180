"""Who acts behind a guard: functions and methods of every kind, sync and async, and providers found by name."""

from __future__ import annotations

import asyncio
import inspect
import threading
from dataclasses import dataclass

import pytest

from letitloop import ActionConflict, InvalidArgument, Ledger, UnknownOutcome, effect, effect_context, register_provider
from letitloop.effects import guard
from tests.effects.acting import Bank
from tests.effects.guard.refunds import refund


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(guard, "_providers", {})


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
