"""Stripe: localstripe behind idempotency keys for what it can do, answers made up for the rest; each server's log is the judge."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time

import httpx
import pytest
import stripe

from letitloop.effects.intent import Redacted
from letitloop.effects.provider import Dispatch, Found, NotFound, Succeeded, Unavailable, Unknown, Window
from letitloop.effects.providers import StripeProvider
from letitloop.effects.providers.stripe_rules import render
from letitloop.errors import InvalidArgument
from tests.effects.providers import http_server as faults
from tests.effects.providers.http_calls import (
    BOTH,
    KEY,
    NOT_SENT,
    REJECTED,
    SHORT,
    SUCCEEDED,
    TRUSTING_NOBODY,
    UNKNOWN,
    call,
    verdict_of,
)
from tests.effects.providers.http_server import Server
from tests.effects.providers.stripe_server import Running


@pytest.fixture(autouse=True)
def _sdk_at_home(tmp_path, monkeypatch):
    """What the SDK keeps of its own goes to the test's directory."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def running():
    server = Running()
    yield server
    server.close()


@pytest.fixture
def local(running):
    running.local.reset()
    yield running.local
    running.local.gate.set()


def provider(url, **options) -> StripeProvider:
    return StripeProvider(
        "sk_test_12345", account="acct_1", base_url=url, **{"timeout": 10.0, "verify": TRUSTING_NOBODY, **options}
    )


def dispatch(operation="refund", key=KEY, at=None, **arguments) -> Dispatch:
    return Dispatch("shop", "order-42", 1, 1, key, operation, arguments, time.time() if at is None else at)


def post(url, path, **data):
    response = httpx.post(
        url + path, data=data, headers={"Authorization": "Bearer sk_test_12345"}, trust_env=False, verify=TRUSTING_NOBODY
    )
    assert response.status_code == 200, response.text
    return response.json()


def customer(url, number="4242424242424242") -> str:
    method = post(
        url,
        "/v1/payment_methods",
        type="card",
        **{"card[number]": number, "card[exp_month]": 12, "card[exp_year]": 40, "card[cvc]": "123"},
    )["id"]
    made = post(url, "/v1/customers", name="Ada")["id"]
    post(url, f"/v1/payment_methods/{method}/attach", customer=made)
    post(url, f"/v1/customers/{made}", **{"invoice_settings[default_payment_method]": method})
    return made


@pytest.fixture
def charge(running, local):
    return post(running.url, "/v1/charges", amount=5000, currency="eur", customer=customer(running.url))["id"]


def everything(url, mode, operation, **arguments):
    """Carry out an action whose reply is lost, and return the receipt that is found."""
    answer = call(provider(url), mode, "execute", dispatch(operation, **arguments))
    assert verdict_of(answer) == UNKNOWN, answer
    return call(provider(url), mode, "reconcile", dispatch(operation, **arguments))


# --- localstripe -------------------------------------------------------------------------------------------------------------


@BOTH
def test_a_refund(running, local, charge, mode):
    reply = call(provider(running.url), mode, "execute", dispatch(charge=charge, amount_minor=1200, operation="refund"))
    assert isinstance(reply, Succeeded)
    assert (reply.result["object"], reply.result["amount"], reply.result["charge"]) == ("refund", 1200, charge)
    assert reply.result["metadata"] == {"lil_intent": KEY}
    assert reply.basis == "response"
    assert reply.receipt.items() >= {"id": reply.result["id"], "object": "refund", "request_id": "req_local"}.items()
    assert (local.posts, local.executed, len(local.objects("refund"))) == ([KEY], 1, 1)


@BOTH
@pytest.mark.parametrize("operation", ["charge", "payment_intent"])
def test_charges_and_payment_intents(running, local, mode, operation):
    who = customer(running.url)
    arguments = {"amount": 700, "currency": "EUR", "customer": who, "metadata": {"order": "42"}}
    reply = call(provider(running.url), mode, "execute", dispatch(operation, **arguments))
    assert isinstance(reply, Succeeded)
    assert reply.result["metadata"] == {"lil_intent": KEY, "order": "42"}
    assert len(local.objects(operation)) == 1
    found = call(provider(running.url), mode, "reconcile", dispatch(operation, **arguments))
    assert isinstance(found, Found)
    assert found.result["id"] == reply.result["id"]
    assert found.arguments == {"amount": 700, "currency": "EUR", "customer": who}


@BOTH
def test_lost_reply_is_found_in_the_list_and_replayed_under_the_same_key(running, local, charge, mode):
    local.fault = "drop"
    found = everything(running.url, mode, "refund", charge=charge, amount_minor=1200)
    assert isinstance(found, Found)
    assert found.provider_key == KEY
    assert found.arguments == {"charge": charge, "amount_minor": 1200}
    assert found.receipt["id"] == found.result["id"]
    assert (local.posts, local.executed) == ([KEY], 1)
    local.fault = ""
    again = call(provider(running.url), mode, "execute", dispatch(charge=charge, amount_minor=1200))
    assert isinstance(again, Succeeded)
    assert (again.basis, again.result["id"]) == ("replay", found.result["id"])
    assert (local.executed, len(local.objects("refund"))) == (1, 1)


@BOTH
def test_a_500_after_the_commit_is_unknown_and_is_replayed_as_such(running, local, charge, mode):
    local.fault = "500"
    arguments = {"charge": charge, "amount_minor": 1200}
    reply = call(provider(running.url), mode, "execute", dispatch(**arguments), dispatch(**arguments))
    assert verdict_of(reply) == UNKNOWN
    assert (len(local.posts), local.executed) == (2, 1)
    assert isinstance(call(provider(running.url), mode, "reconcile", dispatch(**arguments)), Found)


@BOTH
def test_the_same_key_with_another_amount_is_a_contradiction(running, local, charge, mode):
    reply = call(
        provider(running.url),
        mode,
        "execute",
        dispatch(charge=charge, amount_minor=1200),
        dispatch(charge=charge, amount_minor=1300),
    )
    assert isinstance(reply, Unknown)
    assert "contradiction" in reply.reason
    found = call(provider(running.url), mode, "reconcile", dispatch(charge=charge, amount_minor=1300))
    assert found.arguments["amount_minor"] == 1200
    assert len(local.objects("refund")) == 1


def test_the_same_key_at_the_same_time_is_still_running(running, local, charge):
    local.fault = "gate"
    target, first = provider(running.url), []
    thread = threading.Thread(target=lambda: first.append(target.execute(dispatch(charge=charge, amount_minor=1200))))
    thread.start()
    local.arrived.wait()
    second = target.execute(dispatch(charge=charge, amount_minor=1200))
    local.gate.set()
    thread.join()
    target.close()
    assert "still being worked on" in second.reason
    assert isinstance(first[0], Succeeded)
    assert local.executed == 1


@BOTH
def test_what_stripe_refuses_before_execution(running, local, charge, mode):
    for arguments in ({"charge": "ch_none", "amount": 1}, {"charge": charge, "amount": -1}):
        reply = call(provider(running.url), mode, "execute", dispatch(**arguments))
        assert verdict_of(reply) == REJECTED
        assert reply.detail["status"] in (400, 404)
    assert local.executed == 0


@BOTH
def test_a_declined_card_is_definitive_by_reply_and_by_receipt(running, local, mode):
    who = customer(running.url, "4000000000000341")
    arguments = {"amount": 700, "currency": "eur", "customer": who}
    reply = call(provider(running.url), mode, "execute", dispatch("charge", **arguments))
    assert verdict_of(reply) == REJECTED
    assert (reply.detail["status"], reply.detail["code"]) == (402, "card_declined")
    receipt = call(provider(running.url), mode, "reconcile", dispatch("charge", **arguments))
    assert verdict_of(receipt) == REJECTED
    assert "declined" in receipt.certificate


@BOTH
def test_a_declined_payment_intent(running, local, mode):
    method = post(
        running.url,
        "/v1/payment_methods",
        type="card",
        **{"card[number]": "4000000000000341", "card[exp_month]": 12, "card[exp_year]": 40, "card[cvc]": "123"},
    )["id"]
    arguments = {"amount": 700, "currency": "eur", "payment_method": method, "confirm": True}
    for asked in ("execute", "reconcile"):
        assert verdict_of(call(provider(running.url), mode, asked, dispatch("payment_intent", **arguments))) == REJECTED


@BOTH
def test_every_page_is_read_and_only_the_exact_key_counts(running, local, charge, mode):
    target = provider(running.url)
    for number in range(5):
        target.execute(dispatch(key=f"{KEY}{number}", charge=charge, amount=1))
    target.close()
    local.page = 2
    assert isinstance(call(provider(running.url), mode, "reconcile", dispatch(charge=charge, amount=1)), NotFound)
    assert len(local.gets) == 3
    for number in range(5):
        found = call(provider(running.url), mode, "reconcile", dispatch(key=f"{KEY}{number}", charge=charge, amount=1))
        assert found.result["metadata"]["lil_intent"] == f"{KEY}{number}"


@BOTH
def test_the_list_begins_before_the_first_dispatch(running, local, charge, mode):
    call(provider(running.url), mode, "execute", dispatch(charge=charge, amount=1))
    answers = {
        ahead: call(provider(running.url), mode, "reconcile", dispatch(charge=charge, amount=1, at=time.time() + ahead))
        for ahead in (0, 3000, 7200)
    }
    assert [type(answer) for answer in answers.values()] == [Found, Found, NotFound]
    assert all("search" not in query and f"charge={charge}" in query and "created[gte]=" in query for query in local.gets)


def test_the_state_before_anything_was_sent(running, local, charge):
    target = provider(running.url)
    assert isinstance(target.reconcile(dispatch(charge=charge, amount=1)), NotFound)
    target.close()
    assert not local.posts


def test_localstripe_writes_no_pickle(running, local, charge, tmp_path):
    import localstripe.resources

    localstripe.resources.store.dump_to_disk()
    assert localstripe.resources.Store.dump_to_disk.__name__ == "<lambda>"


# --- one dispatch, whatever the SDK's defaults are ---------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "fault",
    [
        faults.commits_then_closes,
        faults.answering(500, {"error": {}}, commit=True),
        faults.answering(409, {"error": {}}, commit=True),
    ],
)
def test_one_request_whatever_the_defaults(mode, fault, monkeypatch):
    monkeypatch.setattr(stripe, "max_network_retries", 5)
    monkeypatch.setattr(stripe, "enable_telemetry", True)
    monkeypatch.setattr(stripe.HTTPClient, "_should_retry", lambda *_: True)
    monkeypatch.setattr(
        stripe.StripeClient.__init__, "__kwdefaults__", {**stripe.StripeClient.__init__.__kwdefaults__, "max_network_retries": 5}
    )
    with Server(fault) as server:
        reply = call(provider(server.url), mode, "execute", dispatch(charge="ch_1", amount=1))
        assert verdict_of(reply) == UNKNOWN
        assert (len(server.received), len(server.committed)) == (1, 1)


@BOTH
def test_an_sdk_that_asks_twice_is_refused(mode, monkeypatch):
    asked = []

    def insists(client, method, url, **parameters):
        asked.append(stripe_raw(client, method, url, **parameters))
        return stripe_raw(client, method, url, **parameters)

    async def ainsists(client, method, url, **parameters):
        asked.append(await stripe_araw(client, method, url, **parameters))
        return await stripe_araw(client, method, url, **parameters)

    stripe_raw, stripe_araw = stripe.StripeClient.raw_request, stripe.StripeClient.raw_request_async
    monkeypatch.setattr(stripe.StripeClient, "raw_request", insists)
    monkeypatch.setattr(stripe.StripeClient, "raw_request_async", ainsists)
    with Server(faults.answering(200, refund(), commit=True)) as server:
        assert verdict_of(call(provider(server.url), mode, "execute", dispatch(charge="ch_1", amount=1))) == SUCCEEDED
        assert len(server.committed) == len(asked) == 1


def test_an_sdk_that_fails_after_the_reply_changes_nothing(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr("stripe._api_requestor._APIRequestor._interpret_response", fails)
    with Server(faults.answering(200, refund(), commit=True)) as server:
        assert verdict_of(call(provider(server.url), "sync", "execute", dispatch(charge="ch_1", amount=1))) == SUCCEEDED


# --- what each answer proves -------------------------------------------------------------------------------------------------


def refund(**more):
    return {"id": "re_1", "object": "refund", "status": "succeeded", "metadata": {"lil_intent": KEY}, **more}


def error(kind="invalid_request_error", **more):
    return {"error": {"type": kind, "message": "words", **more}}


ROWS = [
    ("success", faults.answering(200, refund(), commit=True), 1, SUCCEEDED),
    ("success of another kind", faults.answering(200, refund(object="charge"), commit=True), 1, UNKNOWN),
    ("success of another action", faults.answering(200, refund(metadata={"lil_intent": "other"}), commit=True), 1, UNKNOWN),
    ("success without metadata", faults.answering(200, {"id": "re_1", "object": "refund"}, commit=True), 1, UNKNOWN),
    ("success that is no JSON", faults.answering(200, b"<html>", commit=True), 1, UNKNOWN),
    ("success that is a list", faults.answering(200, [1], commit=True), 1, UNKNOWN),
    ("400", faults.answering(400, error()), 0, REJECTED),
    ("401", faults.answering(401, error()), 0, REJECTED),
    ("402", faults.answering(402, error("card_error", code="card_declined", decline_code="generic_decline")), 0, REJECTED),
    ("403", faults.answering(403, error()), 0, REJECTED),
    ("404", faults.answering(404, error(code="resource_missing")), 0, REJECTED),
    ("429", faults.answering(429, error("rate_limit_error", code="rate_limit")), 0, REJECTED),
    ("403 of somebody in between", faults.answering(403, b"<html>denied</html>", kind="text/html"), 0, UNKNOWN),
    ("404 of somebody in between", faults.answering(404, {"message": "no such route"}), 0, UNKNOWN),
    ("400, the key had other parameters", faults.answering(400, error("idempotency_error")), 0, UNKNOWN),
    ("409, the key is in use", faults.answering(409, error("idempotency_error", code="idempotency_key_in_use")), 0, UNKNOWN),
    ("409", faults.answering(409, error()), 0, UNKNOWN),
    ("408", faults.answering(408, error()), 0, UNKNOWN),
    ("425", faults.answering(425, error()), 0, UNKNOWN),
    ("500", faults.answering(500, error("api_error"), commit=True), 1, UNKNOWN),
    ("502", faults.answering(502, b"<html>", kind="text/html"), 0, UNKNOWN),
    ("503", faults.answering(503, error("api_error")), 0, UNKNOWN),
    ("307", faults.answering(307, b"", ("Location", "/v1/elsewhere"), commit=True), 1, UNKNOWN),
    ("commits, then closes", faults.commits_then_closes, 1, UNKNOWN),
    ("commits, then resets", faults.commits_then_resets, 1, UNKNOWN),
    ("commits, then hangs", faults.commits_then_hangs, 1, UNKNOWN),
    ("partial body", faults.commits_then_sends(b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"id": "re_1"'), 1, UNKNOWN),
    ("garbage", faults.commits_then_sends(b"\x00garbage\r\n\r\n"), 1, UNKNOWN),
]


@BOTH
@pytest.mark.parametrize(("name", "fault", "executed", "verdict"), ROWS, ids=[row[0] for row in ROWS])
def test_what_an_answer_proves(name, fault, executed, verdict, mode):
    with Server(fault) as server:
        reply = call(provider(server.url, timeout=SHORT), mode, "execute", dispatch(charge="ch_1", amount=1))
        assert verdict_of(reply) == verdict, reply
        assert (len(server.received), len(server.committed)) == (1, executed)


@BOTH
def test_a_connection_that_is_refused_certifies(mode):
    reply = call(provider(f"http://127.0.0.1:{faults.closed_port()}"), mode, "execute", dispatch(charge="ch_1", amount=1))
    assert verdict_of(reply) == NOT_SENT
    assert "ConnectError" in reply.certificate


def test_a_replay_says_so():
    with Server(faults.answering(200, refund(), ("Idempotent-Replayed", "true"), ("Request-Id", "req_1"))) as server:
        reply = call(provider(server.url), "sync", "execute", dispatch(charge="ch_1", amount=1))
    assert reply == Succeeded(refund(), {"id": "re_1", "object": "refund", "status": "succeeded", "request_id": "req_1"}, "replay")


def test_a_refusal_keeps_what_stripe_said_and_nothing_more():
    with Server(faults.answering(402, error("card_error", code="card_declined", charge="ch_2"), ("Request-Id", "req_1"))) as server:
        reply = call(provider(server.url), "sync", "execute", dispatch(charge="ch_1", amount=1))
    assert reply.detail == {"status": 402, "type": "card_error", "code": "card_declined", "message": "words", "request_id": "req_1"}


@BOTH
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (faults.answering(200, {"data": [], "has_more": False}), NotFound),
        (faults.answering(200, {"data": [refund()], "has_more": False}), Found),
        (faults.answering(200, {"data": [refund(metadata={"lil_intent": KEY + "x"}), "odd", {}], "has_more": False}), NotFound),
        (faults.answering(200, {"data": [], "has_more": True}), Unavailable),
        (faults.answering(200, {"data": [refund(metadata={})], "has_more": True}), Unavailable),
        (faults.answering(200, {"object": "list"}), Unavailable),
        (faults.answering(200, b"{"), Unavailable),
        (faults.answering(401, error()), Unavailable),
        (faults.answering(404, error()), Unavailable),
        (faults.answering(500, error()), Unavailable),
        (faults.answering(302, b"", ("Location", "/elsewhere")), Unavailable),
        (faults.hangs, Unavailable),
        (faults.resets, Unavailable),
    ],
)
def test_what_a_list_can_answer(mode, fault, expected):
    with Server(fault) as server:
        answer = call(provider(server.url, timeout=SHORT), mode, "reconcile", dispatch(charge="ch_1", amount=1))
    assert isinstance(answer, expected), answer
    assert {request.method for request in server.received} == {"GET"}


def test_two_objects_of_one_key_are_counted_and_a_payment_goes_before_a_decline():
    declined = {"id": "ch_1", "object": "charge", "status": "failed", "metadata": {"lil_intent": KEY}}
    paid = {**declined, "id": "ch_2", "status": "succeeded"}
    with Server(faults.answering(200, {"data": [declined, paid], "has_more": False})) as server:
        answer = call(provider(server.url), "sync", "reconcile", dispatch("charge", amount=1, currency="eur"))
    assert (answer.result["id"], answer.receipt["count"]) == ("ch_2", 2)


def test_what_a_receipt_states_is_said_in_the_words_of_the_intent():
    item = refund(amount=1200, currency="eur", charge={"id": "ch_1", "object": "charge"}, payment_intent=None)
    with Server(faults.answering(200, {"data": [item], "has_more": False})) as server:
        target = provider(server.url)
        same = target.reconcile(dispatch(charge="ch_1", amount_minor=1200, currency="EUR", reason="duplicate"))
        other = target.reconcile(dispatch(charge="ch_1", amount=Redacted("ab"), currency="usd"))
        target.close()
    assert same.arguments == {"charge": "ch_1", "amount_minor": 1200, "currency": "EUR"}
    assert other.arguments == {"charge": "ch_1", "amount": 1200, "currency": "eur"}


def test_a_redacted_parent_cannot_be_listed():
    target = provider("http://127.0.0.1:9")
    assert isinstance(target.reconcile(dispatch(charge=Redacted("ab"))), Unavailable)
    assert isinstance(target.tombstone(dispatch(charge="ch_1")), Unavailable)


# --- the request -------------------------------------------------------------------------------------------------------------


def test_the_same_attempt_is_the_same_bytes():
    one = {"charge": "ch_1", "amount_minor": 1200, "metadata": {"b": "2", "a": "ü"}, "reverse_transfer": True, "expand": ["charge"]}
    other = {"expand": ["charge"], "reverse_transfer": True, "metadata": {"a": "ü", "b": "2"}, "amount": 1200, "charge": "ch_1"}
    with Server(faults.answering(200, refund(), ("Request-Id", "req_1"))) as server:
        call(provider(server.url), "sync", "execute", dispatch(**one), dispatch(**other), dispatch(**one))
        call(provider(server.url), "async", "execute", dispatch(**other), dispatch(**one))
    assert len({request.raw for request in server.received}) == 1
    assert (
        server.received[0].body
        == (
            f"amount=1200&charge=ch_1&expand[0]=charge&metadata[a]=%C3%BC&metadata[b]=2&metadata[lil_intent]={KEY}&reverse_transfer=true"
        ).encode()
    )
    sent = server.received[0]
    assert (sent.method, sent.target) == ("POST", "/v1/refunds")
    assert sent.header("idempotency-key") == KEY
    assert sent.header("stripe-version") == "2025-03-31.basil"
    assert sent.header("authorization") == "Bearer sk_test_12345"
    assert sent.header("stripe-account") is None


def test_a_connected_account_and_another_version():
    with Server(faults.answering(200, refund())) as server:
        target = provider(server.url, connected_account="acct_2", api_version="2024-06-20")
        call(target, "sync", "execute", dispatch(charge="ch_1"))
        assert server.received[0].header("stripe-account") == "acct_2"
        assert server.received[0].header("stripe-version") == "2024-06-20"
        assert target.identity() == f"stripe/1 acct_1 livemode=0 version=2024-06-20 connected=acct_2 at={server.url}"


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("payout", {}),
        ("refund", {}),
        ("refund", {"charge": "ch_1", "payment_intent": "pi_1"}),
        ("refund", {"charge": "ch_1", "amount": 1, "amount_minor": 1}),
        ("refund", {"charge": "ch_1", "amount": 1.5}),
        ("refund", {"charge": "ch_1", "amount": Redacted("ab")}),
        ("refund", {"charge": "ch_1", "metadata": {"lil_intent": "mine"}}),
        ("refund", {"charge": "ch_1", "metadata": "text"}),
        ("refund", {"charge": "ch_1", "metadata": {"a[b]": "x"}}),
        ("refund", {"charge": "ch_1", "metadata": {"": "x"}}),
        ("refund", {"charge": "ch_1", "metadata[lil_intent]": "x"}),
        *[
            ("refund", {"charge": "ch_1", name: "x"})
            for name in ("api_key", "stripe_account", "headers", "idempotency_key", "base", "usage", "self")
        ],
        ("refund", {"charge": "ch_1", "max_network_retries": 5}),
        ("charge", {"operation": "refund", "Amount": 1}),
    ],
)
def test_arguments_that_are_no_parameters(operation, arguments):
    with pytest.raises(InvalidArgument):
        provider("http://127.0.0.1:9").validate(operation, arguments)


def test_values_of_parameters():
    assert render(
        "charge", {"operation": "charge", "amount": 1, "capture": False, "customer": None, "x": ("a", {"b": 2})}, "k"
    ) == {
        "amount": "1",
        "capture": "false",
        "metadata[lil_intent]": "k",
        "x[0]": "a",
        "x[1][b]": "2",
    }


# --- the account and its key -------------------------------------------------------------------------------------------------


def test_identity_caps_and_repr_hold_no_secret():
    target = StripeProvider("sk_live_secret", account="acct_1")
    assert target.identity() == "stripe/1 acct_1 livemode=1 version=2025-03-31.basil"
    assert "secret" not in repr(target)
    assert StripeProvider("rk_test_secret", account="acct_1").identity() != target.identity()
    assert target.caps.redispatch == Window(23 * 3600.0, checks_body=True, stores_5xx=True)
    assert (target.caps.lookup, target.caps.tombstone, target.caps.atomic) == ("list", False, False)


@pytest.mark.parametrize("key", ["", "pk_test_1", "sk_org_1", "secret"])
def test_keys_whose_mode_cannot_be_told(key):
    with pytest.raises(InvalidArgument) as caught:
        StripeProvider(key, account="acct_1")
    assert "secret" not in str(caught.value)


def test_an_account_and_an_address_are_checked():
    for options in (
        {"account": "me"},
        {"account": "acct_1", "connected_account": "me"},
        {"account": "acct_1", "base_url": "http://a:b@c"},
    ):
        with pytest.raises(InvalidArgument):
            StripeProvider("sk_test_1", **options)


@BOTH
def test_a_key_that_turns_live_sends_nothing(mode):
    keys = iter(["sk_test_1", "sk_live_1"])
    with Server(faults.answering(200, refund())) as server:
        target = StripeProvider(lambda: next(keys), account="acct_1", base_url=server.url)
        reply = call(target, mode, "execute", dispatch(charge="ch_1"))
        assert verdict_of(reply) == NOT_SENT
        assert "sk_" not in reply.certificate
        assert not server.connections


def test_a_key_is_asked_for_each_request():
    keys = iter(["sk_test_1", "sk_test_2", "sk_test_3"])
    with Server(faults.answering(200, refund())) as server:
        target = StripeProvider(lambda: next(keys), account="acct_1", base_url=server.url)
        call(target, "sync", "execute", dispatch(charge="ch_1"), dispatch(charge="ch_1"))
    assert [request.header("authorization") for request in server.received] == ["Bearer sk_test_2", "Bearer sk_test_3"]


def test_ctrl_c_is_not_swallowed():
    def interrupted(request):
        raise KeyboardInterrupt

    target = provider("http://127.0.0.1:9", transport=lambda: httpx.MockTransport(interrupted))
    with pytest.raises(KeyboardInterrupt):
        target.execute(dispatch(charge="ch_1"))


def test_cancellation_is_not_swallowed():
    async def cancelled():
        target = provider(server.url)
        task = asyncio.create_task(target.aexecute(dispatch(charge="ch_1")))
        await asyncio.to_thread(server.arrived.wait)
        task.cancel()
        try:
            await task
        finally:
            await target.aclose()

    with Server(faults.commits_then_hangs) as server, pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


@pytest.mark.parametrize("missing", ["stripe", "httpx"])
def test_without_the_sdk_the_extra_is_named(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InvalidArgument, match=r'pip install "letitloop\[stripe\]"'):
        StripeProvider("sk_test_1", account="acct_1")


def test_results_are_plain_data():
    with Server(faults.answering(200, refund(deep={"list": [1, {"a": None}]}))) as server:
        reply = call(provider(server.url), "sync", "execute", dispatch(charge="ch_1"))
    assert json.loads(json.dumps(reply.result)) == reply.result
    assert type(reply.result["deep"]) is dict
