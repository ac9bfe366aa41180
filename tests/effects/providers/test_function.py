"""Any function as a provider: what it is given, what its answers mean, and what its exceptions do not."""

from __future__ import annotations

import functools
import inspect

import pytest

from letitloop import InvalidArgument
from letitloop.effects.provider import (
    Caps,
    Found,
    NotExecuted,
    NotFound,
    StillRunning,
    Succeeded,
    Unavailable,
    Unknown,
    Window,
)
from letitloop.effects.providers import FunctionProvider
from tests.effects.providers.interleaving import Crash, dispatch

ACTION = dispatch({"amount": 5, "to": "ada"}, operation="pay")
KEY = ACTION.provider_key


def provider(fn, **options):
    return FunctionProvider(fn, identity="bank/1 account-7", **options)


def pay(amount, to):
    return {"paid": amount, "to": to}


# --- what it is given --------------------------------------------------------------------------------------------------------


def test_the_arguments_come_by_name():
    assert provider(pay).execute(ACTION) == Succeeded({"paid": 5, "to": "ada"})


def test_the_key_comes_if_it_is_asked_for():
    given = provider(lambda amount, to, *, idempotency_key: (amount, to, idempotency_key))
    given.validate("pay", ACTION.arguments)
    assert given.execute(ACTION).result == (5, "ada", KEY)


def test_with_the_dispatch_the_arguments_may_be_left_out():
    alone = provider(lambda dispatch: dispatch)
    alone.validate("pay", ACTION.arguments)
    assert alone.execute(ACTION).result is ACTION
    some = provider(lambda dispatch, amount: (dispatch.key, amount))
    some.validate("pay", ACTION.arguments)
    assert some.execute(ACTION).result == ("order-1", 5)


def test_the_operation_comes_if_it_is_asked_for():
    action = dispatch({"operation": "pay", "amount": 5}, operation="pay")
    for fn, wanted in (
        (lambda amount: amount, 5),
        (lambda operation, amount: (operation, amount), ("pay", 5)),
        (lambda **all_of_them: all_of_them, {"amount": 5}),
    ):
        provider(fn).validate("pay", action.arguments)
        assert provider(fn).execute(action).result == wanted


def test_a_function_of_anything_gets_everything():
    def anything(idempotency_key, **rest):
        return idempotency_key, rest

    assert provider(anything).execute(ACTION).result == (KEY, {"amount": 5, "to": "ada"})
    with_dispatch = provider(lambda dispatch, **rest: rest)
    assert with_dispatch.execute(ACTION).result == {"amount": 5, "to": "ada"}


def test_partials_methods_and_callable_objects():
    class Bank:
        def pay(self, amount, to, idempotency_key):
            return amount, to, idempotency_key

        def __call__(self, amount, to):
            return amount, to

    assert provider(Bank().pay).execute(ACTION).result == (5, "ada", KEY)
    assert provider(Bank()).execute(ACTION).result == (5, "ada")
    assert provider(functools.partial(pay, to="bob")).execute(dispatch({"amount": 5})).result == {"paid": 5, "to": "bob"}
    assert provider(dict).execute(ACTION).result == {"amount": 5, "to": "ada"}


@pytest.mark.parametrize("arguments", [{"amount": 5}, {"amount": 5, "to": "ada", "note": "x"}, {}])
def test_arguments_that_do_not_fit_are_refused_beforehand(arguments):
    with pytest.raises(InvalidArgument, match="Nothing was done"):
        provider(pay).validate("pay", arguments)


@pytest.mark.parametrize("name", ["idempotency_key", "dispatch"])
def test_what_letitloop_gives_is_not_given_twice(name):
    with pytest.raises(InvalidArgument, match=name):
        provider(lambda idempotency_key, dispatch: None).validate("pay", {name: "x"})


def test_an_argument_called_so_is_an_argument_where_nothing_is_asked_for():
    plain = provider(lambda **rest: rest)
    plain.validate("pay", {"dispatch": 1})
    assert plain.execute(dispatch({"dispatch": 1})).result == {"dispatch": 1}


# --- what it says ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [Succeeded(1, 2, "replay"), NotExecuted("rejected", "no"), Unknown("who knows")])
def test_an_outcome_counts_as_it_is(outcome):
    assert provider(lambda **_: outcome).execute(ACTION) is outcome


@pytest.mark.parametrize("answer", [Found(1, KEY), NotFound(), StillRunning(), Unavailable("x")])
def test_an_answer_to_another_question_is_no_result(answer):
    assert isinstance(provider(lambda **_: answer).execute(ACTION), Unknown)


@pytest.mark.parametrize("error", [ConnectionRefusedError("no"), ValueError("x"), Crash(), KeyboardInterrupt()])
def test_an_exception_passes_and_certifies_nothing(error):
    calls = []

    def fails(**_):
        calls.append(1)
        raise error

    with pytest.raises(type(error)) as caught:
        provider(fails).execute(ACTION)
    assert caught.value is error
    assert calls == [1]


# --- asking ------------------------------------------------------------------------------------------------------------------


def test_without_a_lookup_nothing_is_promised():
    plain = provider(pay)
    assert plain.caps == Caps()
    assert isinstance(plain.reconcile(ACTION), Unavailable)
    assert isinstance(plain.tombstone(ACTION), Unavailable)


@pytest.mark.parametrize(
    ("returned", "answer"),
    [
        (None, NotFound("lookup found nothing")),
        (Found(5, KEY, {"amount": 5}), Found(5, KEY, {"amount": 5})),
        (StillRunning("x"), StillRunning("x")),
        (NotExecuted("rejected", "no"), NotExecuted("rejected", "no")),
        (Unavailable("x"), Unavailable("x")),
        ({"paid": 5}, Unavailable("lookup returned dict; it has to return Found(…), None, or another answer")),
        (Succeeded(5), Unavailable("lookup returned Succeeded; it has to return Found(…), None, or another answer")),
        (False, Unavailable("lookup returned bool; it has to return Found(…), None, or another answer")),
    ],
)
def test_a_lookup_answers(returned, answer):
    asked = []
    bank = provider(pay, lookup=lambda dispatch: asked.append(dispatch) or returned)
    assert bank.caps == Caps(lookup="eventual")
    assert bank.reconcile(ACTION) == answer
    assert asked == [ACTION]


def test_a_lookup_that_raises_could_not_be_asked():
    assert provider(pay, lookup=lambda dispatch: 1 / 0).reconcile(ACTION) == Unavailable(
        "lookup raised ZeroDivisionError: division by zero"
    )


@pytest.mark.parametrize(
    ("returned", "answer"),
    [
        (NotExecuted("tombstoned", "occupied"), NotExecuted("tombstoned", "occupied")),
        (Found(5, KEY), Found(5, KEY)),
        (None, Unavailable("tombstone found nothing")),
        (NotFound("x"), Unavailable("x")),
        (True, Unavailable("tombstone returned bool; it has to return Found(…), None, or another answer")),
    ],
)
def test_a_tombstone_answers(returned, answer):
    bank = provider(pay, tombstone=lambda dispatch: returned)
    assert bank.caps == Caps(tombstone=True)
    assert bank.tombstone(ACTION) == answer


# --- async -------------------------------------------------------------------------------------------------------------------


async def apay(amount, to, *, idempotency_key):
    return amount, to, idempotency_key


async def test_an_async_function_is_awaited():
    bank = provider(apay)
    bank.validate("pay", ACTION.arguments)
    assert await bank.aexecute(ACTION) == Succeeded((5, "ada", KEY))


async def test_async_questions_are_awaited():
    async def found(dispatch):
        return Found(5, dispatch.provider_key)

    async def nothing(dispatch):
        return None

    async def fails(dispatch):
        raise ValueError("x")

    assert await provider(pay, lookup=found).areconcile(ACTION) == Found(5, KEY)
    assert await provider(pay, lookup=nothing).areconcile(ACTION) == NotFound("lookup found nothing")
    assert await provider(pay, lookup=fails).areconcile(ACTION) == Unavailable("lookup raised ValueError: x")
    assert await provider(pay, tombstone=nothing).atombstone(ACTION) == Unavailable("tombstone found nothing")


def test_sync_code_does_not_call_an_async_function():
    calls = []

    async def fn():
        calls.append(1)

    async def lookup(dispatch):
        calls.append(2)

    bank = provider(fn, lookup=lookup)
    reply = bank.execute(dispatch({}))
    assert reply.kind == "not_sent"
    assert "arun" in reply.certificate
    assert isinstance(bank.reconcile(ACTION), Unavailable)
    assert calls == []


def test_a_plain_function_that_returns_a_coroutine_may_have_acted():
    calls = []

    async def later():
        calls.append("later")

    def fn():
        calls.append("now")
        return later()

    assert isinstance(provider(fn).execute(dispatch({})), Unknown)
    assert calls == ["now"]


def test_twins_exist_for_what_is_async_only():
    bank = provider(pay, lookup=lambda dispatch: None)
    assert not any(hasattr(bank, name) for name in ("aexecute", "areconcile", "atombstone"))
    bank = provider(apay, lookup=lambda dispatch: None)
    assert hasattr(bank, "aexecute")
    assert not hasattr(bank, "areconcile")


async def test_a_callable_object_may_be_async():
    class Bank:
        async def __call__(self, amount, to):
            return amount

    assert (await provider(Bank()).aexecute(ACTION)).result == 5
    assert (await provider(functools.partial(apay, to="bob")).aexecute(dispatch({"amount": 5}))).result == (5, "bob", KEY)


# --- making one --------------------------------------------------------------------------------------------------------------


def test_caps_say_what_the_functions_do():
    window = Window(3600.0)
    assert provider(pay, redispatch=window).caps == Caps(window)
    own = Caps(window, lookup="strong", tombstone=True, in_flight=True)
    assert provider(pay, lookup=pay, tombstone=pay, caps=own).caps == own
    for options in ({}, {"lookup": pay}, {"tombstone": pay}, {"lookup": pay, "tombstone": pay, "redispatch": Window(5.0)}):
        with pytest.raises(InvalidArgument, match="Nothing was done"):
            provider(pay, caps=own, **options)
    with pytest.raises(InvalidArgument):
        provider(pay, lookup=pay, caps=Caps())


def generator():
    yield 1


async def async_generator():
    yield 1


@pytest.mark.parametrize("fn", [5, None, generator, async_generator, lambda a, /: a])
def test_what_is_no_function_is_refused(fn):
    with pytest.raises(InvalidArgument, match="Nothing was done"):
        provider(fn)


def test_an_identity_is_needed():
    with pytest.raises(InvalidArgument, match="identity"):
        FunctionProvider(pay, identity="")
    bank = provider(pay, name="bank")
    assert (bank.name, bank.identity()) == ("bank", "bank/1 account-7")
    assert "pay" in repr(bank)


def test_a_function_that_tells_nothing_of_its_parameters_gets_all_by_name(monkeypatch):
    def refuse(function):
        raise ValueError("no signature")

    monkeypatch.setattr(inspect, "signature", refuse)
    bank = provider(pay)
    bank.validate("pay", {"anything": 1})
    assert bank.execute(ACTION).result == {"paid": 5, "to": "ada"}
