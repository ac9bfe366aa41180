"""The request of an HTTP provider, byte by byte; what a success and a refusal keep; what a provider says of itself."""

from __future__ import annotations

import sys

import pytest

from letitloop.effects.provider import Caps, NotExecuted, Succeeded, Window
from letitloop.effects.providers.http import REFUSED, Endpoint, HttpProvider, Lookup
from letitloop.errors import InvalidArgument
from tests.effects.providers import http_server as faults
from tests.effects.providers.http_calls import BOTH, KEY, LOOKUP, REJECTED, SUCCEEDED, UNKNOWN, call, dispatch, provider, verdict_of
from tests.effects.providers.http_server import Server

# --- the request -------------------------------------------------------------------------------------------------------------


def test_the_same_attempt_is_the_same_bytes_sync_and_async_and_whatever_the_order_of_arguments():
    one = {"order_id": "a/b", "amount_minor": 1200, "reason": "späte Lieferung", "deep": {"b": [1, None, True], "a": "x"}}
    other = {"deep": {"a": "x", "b": [1, None, True]}, "reason": "späte Lieferung", "amount_minor": 1200, "order_id": "a/b"}
    with Server(faults.answering(201, {"id": 1}, ("Set-Cookie", "session=1"))) as server:
        options = {"auth": lambda: {"Authorization": "Bearer 1"}, "headers": {"X-Shop": "1"}}
        target = provider(server.url, options=options, key_quoted=True)
        call(target, "sync", "execute", dispatch(**one), dispatch(**other))
        call(target, "async", "execute", dispatch(**other), dispatch(**one))
    assert len({request.raw for request in server.received}) == 1
    assert server.received[0].raw == (
        b"POST /orders/a%%2Fb/refunds HTTP/1.1\r\n"
        b"Host: 127.0.0.1:%d\r\n"
        b"Accept: application/json\r\n"
        b"Accept-Encoding: identity\r\n"
        b"User-Agent: letitloop\r\n"
        b'Idempotency-Key: "%b"\r\n'
        b"Content-Type: application/json\r\n"
        b"X-Shop: 1\r\n"
        b"Authorization: Bearer 1\r\n"
        b"Content-Length: %d\r\n"
        b"\r\n"
        b"%b"
        % (
            server.port,
            KEY.encode(),
            len(server.received[0].body),
            '{"amount_minor":1200,"deep":{"a":"x","b":[1,null,true]},"reason":"späte Lieferung"}'.encode(),
        )
    )


@BOTH
def test_success_has_result_receipt_and_basis(mode):
    with Server(faults.refund_by_key) as server:
        target = provider(server.url, window=Window(3600.0), result="/id", key_field="reference2")
        first = call(target, mode, "execute", dispatch())
        again = call(target, mode, "execute", dispatch())
    assert first == Succeeded("re_1", {"status": 201, "id": "re_1"}, "response")
    assert again == Succeeded("re_1", {"status": 201, "id": "re_1"}, "replay")
    assert len(server.committed) == 1


def test_success_without_json():
    for body, kind, result in [
        (b"done", "text/plain", "done"),
        (b"", "text/plain", None),
        ("dé".encode("latin-1"), "text/plain; charset=latin-1", "dé"),
        (b'{"a": 1}', "application/problem+json", {"a": 1}),
    ]:
        with Server(faults.answering(200, body, kind=kind)) as server:
            target = provider(server.url)
            assert target.execute(dispatch()).result == result
            target.close()


def test_receipt_headers():
    with Server(faults.refund) as server:
        target = provider(server.url)
        assert target.execute(dispatch()).receipt == {"status": 201, "id": "re_1", "headers": {"request-id": "req_1"}}
        target.close()


def test_check_is_asked_first_and_its_errors_mean_unknown():
    def check(reply):
        if reply.value.get("ok") is False:
            return NotExecuted("rejected", "it says so")
        return {}["missing"] if reply.value.get("odd") else None

    for body, verdict in [({"ok": False}, REJECTED), ({"odd": True}, UNKNOWN), ({"ok": True}, SUCCEEDED)]:
        with Server(faults.answering(200, body)) as server:
            target = provider(server.url, check=check)
            assert verdict_of(target.execute(dispatch())) == verdict
            target.close()


def test_a_refusal_keeps_what_the_service_said():
    with Server(faults.answering(422, {"error": "too much"})) as server:
        target = provider(server.url, rejected=REFUSED)
        assert target.execute(dispatch()).detail == {"status": 422, "body": {"error": "too much"}}
        target.close()
    with Server(faults.answering(422, b"x" * 5000, kind="application/json")) as server:
        target = provider(server.url, rejected=REFUSED)
        assert target.execute(dispatch()).detail == {"status": 422, "body": "x" * 2000}
        target.close()


# --- what a provider says of itself ------------------------------------------------------------------------------------------


def test_identity_and_repr_hold_no_secret():
    target = provider(
        "https://api.example.com/v1/", options={"auth": lambda: {"Authorization": "secret"}, "headers": {"X-Shop": "shop"}}
    )
    assert target.identity() == "http/1 shop-1 POST https://api.example.com/v1/orders/{order_id}/refunds"
    assert repr(target) == f"<HttpProvider {target.identity()}>"


def test_caps_follow_from_the_endpoint():
    assert provider("http://x").caps == Caps()
    full = provider("http://x", window=Window(60.0), lookup=LOOKUP, conflict="running")
    assert full.caps == Caps(redispatch=Window(60.0), lookup="eventual", in_flight=True)
    assert provider("http://x", lookup=Lookup("/r/{provider_key}", "strong", running=(202,))).caps == Caps(
        lookup="strong", in_flight=True
    )


@pytest.mark.parametrize(
    "url", ["https://user:pass@api.example.com", "https://api.example.com?x=1", "https://api.example.com#x", "api.example.com", ""]
)
def test_base_urls_that_cannot_be_part_of_an_identity(url):
    with pytest.raises(InvalidArgument, match="base_url"):
        provider(url)


def test_an_account_is_needed():
    with pytest.raises(InvalidArgument, match="account"):
        HttpProvider("http://x", Endpoint("POST", "/a"), account="")


def test_headers_that_the_provider_writes_itself():
    for name in ("Idempotency-Key", "content-type", "Host", "Content-Length"):
        with pytest.raises(InvalidArgument, match="itself"):
            provider("http://x", options={"headers": {name: "1"}})


def test_without_httpx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(InvalidArgument, match=r'pip install "letitloop\[http\]"'):
        provider("http://x")
