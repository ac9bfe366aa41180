"""HTTP against real sockets: what each way of failing proves, judged by the server's own log."""

from __future__ import annotations

import asyncio
import gc
import gzip
import os
import signal
import socket
import ssl
import sys
import threading
from dataclasses import dataclass, field

import httpx
import pytest
import trustme

from letitloop.effects.provider import (
    Caps,
    Dispatch,
    Found,
    NotExecuted,
    NotFound,
    StillRunning,
    Succeeded,
    Unavailable,
    Window,
)
from letitloop.effects.providers import http
from letitloop.effects.providers.http import REFUSED, Endpoint, HttpProvider, Lookup
from letitloop.effects.providers.http_transport import Exchange
from letitloop.errors import InvalidArgument
from tests.effects.providers import http_server as faults
from tests.effects.providers.http_server import FullBacklog, Server

KEY = "k" * 40
LARGE = {"order_id": 42, "note": "x" * 1_000_000}
# more than the buffers between two sockets hold
BIG = {"order_id": 42, "note": "x" * 16_000_000}
TRUSTING_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # loading the public certificates costs more than a test
NOT_SENT, REJECTED, UNKNOWN, SUCCEEDED = "not_sent", "rejected", "unknown", "succeeded"
BOTH = pytest.mark.parametrize("mode", ["sync", "async"])


def dispatch(**arguments) -> Dispatch:
    return Dispatch(
        "shop", "order-42/refund", 1, 1, KEY, "refund", arguments or {"order_id": 42, "amount_minor": 1200}, 1_700_000_000.0
    )


def provider(url, *, timeout=10.0, options=None, **declared) -> HttpProvider:
    return HttpProvider(
        url,
        Endpoint("POST", "/orders/{order_id}/refunds", **declared),
        account="shop-1",
        timeout=timeout,
        **{"verify": TRUSTING_NOBODY, **(options or {})},
    )


def call(target: HttpProvider, mode: str, method: str = "execute", *dispatches: Dispatch):
    """Call a method for each dispatch, and return the last answer."""
    if mode == "sync":
        answers = [getattr(target, method)(each) for each in dispatches]
        target.close()
        return answers[-1]

    async def calls():
        try:
            return [await getattr(target, "a" + method)(each) for each in dispatches]
        finally:
            await target.aclose()

    return asyncio.run(calls())[-1]


def verdict_of(reply) -> str:
    return reply.kind if isinstance(reply, NotExecuted) else type(reply).__name__.lower()


@pytest.fixture
def exchanges(monkeypatch):
    """The exchanges of a test, as the transport's trace told them."""
    seen: list[Exchange] = []

    def noted() -> Exchange:
        seen.append(Exchange())
        return seen[-1]

    monkeypatch.setattr(http, "Exchange", noted)
    return seen


# --- the table ---------------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """A way to fail: how often headers were started, what the server received and did, and what may be concluded."""

    name: str
    server: dict
    started: int
    received: int
    executed: int
    verdict: str
    declared: dict = field(default_factory=dict)
    timeout: object = 10.0
    arguments: dict = field(default_factory=dict)


def status_line(status: int, rest: str = "", body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {status} X\r\n{rest}\r\n".encode() + body


SHORT = httpx.Timeout(10.0, read=0.2)
STUCK = httpx.Timeout(10.0, write=0.3)
PARTIAL_GZIP = gzip.compress(b'{"id": "re_1"}' * 99)[:-12]

TABLE = [
    Row("a complete 2xx", {}, 1, 1, 1, SUCCEEDED),
    Row("closes having read nothing", {"greet": faults.closes_unread}, 1, 0, 0, UNKNOWN),
    Row("resets having read nothing", {"greet": faults.resets_unread}, 1, 0, 0, UNKNOWN),
    Row("resets with the body incomplete", {"fault": faults.resets, "early": True}, 1, 1, 0, UNKNOWN, arguments=BIG),
    Row(
        "resets with the body incomplete, all of it declared as needed",
        {"fault": faults.resets, "early": True},
        *(1, 1, 0, NOT_SENT),
        declared={"full_body_needed": True},
        arguments=BIG,
    ),
    Row("never reads a big body", {"fault": faults.hangs, "early": True}, 1, 1, 0, UNKNOWN, timeout=STUCK, arguments=BIG),
    Row(
        "never reads a big body, all of it declared as needed: the rest may still be sent from a buffer",
        {"fault": faults.hangs, "early": True},
        *(1, 1, 0, UNKNOWN),
        declared={"full_body_needed": True},
        timeout=STUCK,
        arguments=BIG,
    ),
    Row("commits, then closes", {"fault": faults.commits_then_closes}, 1, 1, 1, UNKNOWN),
    Row("commits, then resets", {"fault": faults.commits_then_resets}, 1, 1, 1, UNKNOWN),
    Row("commits, then hangs", {"fault": faults.commits_then_hangs}, 1, 1, 1, UNKNOWN, timeout=SHORT),
    Row("hangs", {"fault": faults.hangs}, 1, 1, 0, UNKNOWN, timeout=SHORT),
    Row("partial status line", {"fault": faults.commits_then_sends(b"HTTP/1.1 20")}, 1, 1, 1, UNKNOWN),
    Row(
        "partial body",
        {"fault": faults.commits_then_sends(status_line(201, "Content-Length: 99\r\n", b'{"id": "re_1"}'))},
        *(1, 1, 1, UNKNOWN),
    ),
    Row(
        "partial chunk",
        {"fault": faults.commits_then_sends(status_line(201, "Transfer-Encoding: chunked\r\n", b'e\r\n{"id": "re_1"}\r\n'))},
        *(1, 1, 1, UNKNOWN),
    ),
    Row(
        "bad gzip",
        {"fault": faults.commits_then_sends(status_line(201, "Content-Encoding: gzip\r\nContent-Length: 4\r\n", b"gzip"))},
        *(1, 1, 1, UNKNOWN),
    ),
    Row(
        "gzip cut short",
        {
            "fault": faults.commits_then_sends(
                status_line(
                    201,
                    f"Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: {len(PARTIAL_GZIP)}\r\n",
                    PARTIAL_GZIP,
                )
            )
        },
        *(1, 1, 1, UNKNOWN),
    ),
    Row("garbage", {"fault": faults.commits_then_sends(b"\x00\x01garbage\r\n\r\n")}, 1, 1, 1, UNKNOWN),
    Row("2xx that says JSON and is none", {"fault": faults.answering(201, b'{"id": ', commit=True)}, 1, 1, 1, UNKNOWN),
    Row(
        "2xx in an unknown charset",
        {"fault": faults.answering(201, b"a", commit=True, kind="text/plain; charset=klingon")},
        1,
        1,
        1,
        UNKNOWN,
    ),
    Row("2xx without the declared result", {"fault": faults.refund}, 1, 1, 1, UNKNOWN, declared={"result": "/refund/id"}),
    Row("early 413", {"fault": faults.refuses_and_drains(413), "early": True}, 1, 1, 0, UNKNOWN, arguments=LARGE),
    Row(
        "early 413, declared",
        {"fault": faults.refuses_and_drains(413), "early": True},
        *(1, 1, 0, REJECTED),
        declared={"rejected": REFUSED},
        arguments=LARGE,
    ),
    Row("500 after the commit", {"fault": faults.answering(500, commit=True)}, 1, 1, 1, UNKNOWN, declared={"rejected": REFUSED}),
    *(
        Row(f"{code}", {"fault": faults.answering(code)}, 1, 1, 0, UNKNOWN, declared={"rejected": REFUSED})
        for code in (408, 425, 502, 503, 504)
    ),
    *(Row(f"{code}, not declared", {"fault": faults.answering(code)}, 1, 1, 0, UNKNOWN) for code in (400, 401, 404, 422, 429)),
    *(
        Row(f"{code}, declared", {"fault": faults.answering(code, {"e": 1})}, 1, 1, 0, REJECTED, declared={"rejected": REFUSED})
        for code in REFUSED
    ),
    Row("409", {"fault": faults.answering(409)}, 1, 1, 0, UNKNOWN),
    Row("409, running", {"fault": faults.answering(409)}, 1, 1, 0, UNKNOWN, declared={"conflict": "running"}),
    Row("409, rejected", {"fault": faults.answering(409)}, 1, 1, 0, REJECTED, declared={"conflict": "rejected"}),
    *(
        Row(
            f"{code} after the commit",
            {"fault": faults.answering(code, b"", ("Location", "/elsewhere"), commit=True)},
            1,
            1,
            1,
            UNKNOWN,
        )
        for code in (301, 302, 303, 307, 308)
    ),
    Row(
        "303, declared",
        {"fault": faults.answering(303, b"", ("Location", "/login"))},
        *(1, 1, 0, REJECTED),
        declared={"rejected": (303,)},
    ),
]


@BOTH
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_what_the_server_does_decides_the_verdict(row, mode, exchanges):
    with Server(**row.server) as server:
        target = provider(server.url, timeout=row.timeout, **row.declared)
        reply = call(target, mode, "execute", dispatch(**row.arguments))
    assert verdict_of(reply) == row.verdict, reply
    assert [each.started for each in exchanges] == [row.started]
    assert (len(server.received), len(server.committed)) == (row.received, row.executed)


@BOTH
@pytest.mark.parametrize("fault", [faults.closes_at_once, faults.resets_at_once])
def test_an_end_right_after_accept_is_certified_only_if_it_came_before_the_first_header(mode, fault, exchanges):
    with Server(greet=fault) as server:
        for _ in range(10):
            reply = call(provider(server.url), mode, "execute", dispatch())
            assert (exchanges[-1].started, verdict_of(reply)) in ((0, NOT_SENT), (1, UNKNOWN))
    assert not server.received


# --- the rows in which nothing is sent, or a connection is used again ----------------------------------------------------------


def not_sent(url, mode, exchanges, **more):
    reply = call(provider(url, **more), mode, "execute", dispatch())
    assert verdict_of(reply) == NOT_SENT, reply
    assert [each.started for each in exchanges] == [0]
    return reply


@BOTH
def test_connection_refused(mode, exchanges):
    reply = not_sent(f"http://127.0.0.1:{faults.closed_port()}", mode, exchanges)
    assert "ConnectError" in reply.certificate


@BOTH
def test_no_such_host(mode, exchanges, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "no such host")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    not_sent("http://nowhere.invalid", mode, exchanges)


@BOTH
def test_connect_timeout(mode, exchanges):
    with FullBacklog() as full:
        reply = not_sent(f"http://127.0.0.1:{full.port}", mode, exchanges, timeout=0.2)
    assert "ConnectTimeout" in reply.certificate


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def server_tls(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@BOTH
def test_tls_handshake_fails(mode, exchanges, server_tls):
    with Server(tls=server_tls) as server:
        not_sent(server.url, mode, exchanges, options={"verify": None})  # the public certificates
        assert not server.received


@BOTH
def test_tls_with_the_certificates_given(mode, authority, server_tls):
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with Server(tls=server_tls) as server:
        reply = call(provider(server.url, options={"verify": trusting}), mode, "execute", dispatch())
        assert verdict_of(reply) == SUCCEEDED
        assert len(server.committed) == 1


@BOTH
def test_unsupported_scheme(mode, exchanges):
    not_sent("ftp://127.0.0.1", mode, exchanges)


@BOTH
def test_pool_exhausted(mode, exchanges):
    gate = threading.Event()
    limits = httpx.Limits(max_connections=1)
    options = {
        "transport": lambda: httpx.HTTPTransport(limits=limits),
        "async_transport": lambda: httpx.AsyncHTTPTransport(limits=limits),
    }
    with Server(faults.commits_then_replies_when(gate)) as server:
        target = provider(server.url, timeout=httpx.Timeout(10.0, pool=0.1), options=options)
        if mode == "sync":
            first = []
            thread = threading.Thread(target=lambda: first.append(target.execute(dispatch())))
            thread.start()
            server.arrived.wait()
            second = target.execute(dispatch())
            gate.set()
            thread.join()
            target.close()
            first = first[0]
        else:

            async def both():
                one = asyncio.create_task(target.aexecute(dispatch()))
                await asyncio.to_thread(server.arrived.wait)
                two = await target.aexecute(dispatch())
                gate.set()
                try:
                    return await one, two
                finally:
                    await target.aclose()

            first, second = asyncio.run(both())
        assert (verdict_of(first), verdict_of(second)) == (SUCCEEDED, NOT_SENT)
        assert "PoolTimeout" in second.certificate
        assert [each.started for each in exchanges] == [1, 0]
        assert len(server.committed) == 1


@BOTH
def test_dead_proxy(mode, exchanges):
    with Server() as server:
        not_sent(server.url, mode, exchanges, options={"proxy": f"http://127.0.0.1:{faults.closed_port()}"})
        assert not server.received


@BOTH
def test_proxy_that_refuses_to_connect(mode, exchanges):
    with Server(faults.answering(502)) as proxy:
        reply = not_sent("https://shop.invalid", mode, exchanges, options={"proxy": proxy.url})
        assert [request.method for request in proxy.received] == ["CONNECT"]
    assert "ProxyError" in reply.certificate


@BOTH
@pytest.mark.parametrize("status", [502, 503, 504])
def test_proxy_that_answers_in_place_of_the_service(mode, status):
    with Server(faults.answering(status)) as proxy:
        reply = call(provider("http://shop.invalid", options={"proxy": proxy.url}, rejected=REFUSED), mode, "execute", dispatch())
        assert verdict_of(reply) == UNKNOWN
        assert len(proxy.received) == 1


@BOTH
def test_the_environment_names_no_proxy_unless_asked(mode, monkeypatch):
    with Server() as server, Server(faults.answering(502)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        assert verdict_of(call(provider(server.url), mode, "execute", dispatch())) == SUCCEEDED
        assert not proxy.received
        asking = provider("http://shop.invalid", options={"trust_env": True})
        assert verdict_of(call(asking, mode, "execute", dispatch())) == UNKNOWN
        assert len(proxy.received) == 1


@BOTH
def test_pooled_connection_that_was_closed_while_idle(mode, exchanges):
    with Server() as server:
        target = provider(server.url)
        if mode == "sync":
            first = target.execute(dispatch())
            server.close_idle()
            second = target.execute(dispatch())
            target.close()
        else:

            async def both():
                one = await target.aexecute(dispatch())
                server.close_idle()
                try:
                    return one, await target.aexecute(dispatch())
                finally:
                    await target.aclose()

            first, second = asyncio.run(both())
        assert (verdict_of(first), verdict_of(second)) == (SUCCEEDED, SUCCEEDED)
        assert [each.started for each in exchanges] == [1, 1]
        assert (len(server.received), len(server.committed), server.connections) == (2, 2, 2)


@BOTH
def test_pooled_connection_that_closes_as_the_request_is_sent(mode, exchanges):
    with Server(faults.first_well_then_resets_unread) as server:
        reply = call(provider(server.url), mode, "execute", dispatch(), dispatch())
        assert verdict_of(reply) == UNKNOWN
        assert [each.started for each in exchanges] == [1, 1]
        assert (len(server.committed), server.connections) == (1, 1)


@BOTH
def test_pooled_connection_on_which_the_server_acts_and_closes(mode, exchanges):
    with Server(faults.first_well_then(faults.commits_then_closes)) as server:
        reply = call(provider(server.url), mode, "execute", dispatch(), dispatch())
        assert verdict_of(reply) == UNKNOWN
        assert "Server disconnected without sending a response" in reply.reason
        assert [each.started for each in exchanges] == [1, 1]
        assert (len(server.committed), server.connections) == (2, 1)


@BOTH
def test_a_transport_that_retries_connecting_still_sends_once(mode, exchanges):
    options = {
        "transport": lambda: httpx.HTTPTransport(retries=1),
        "async_transport": lambda: httpx.AsyncHTTPTransport(retries=1),
    }
    not_sent(f"http://127.0.0.1:{faults.closed_port()}", mode, exchanges, options=options)


# --- interruptions -----------------------------------------------------------------------------------------------------------


def test_ctrl_c_after_the_request_is_not_swallowed():
    def interrupts(peer, request):
        peer.server.commit(request)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        peer.server.released.wait()

    assert threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Server(interrupts) as server:
            target = provider(server.url)
            with pytest.raises(KeyboardInterrupt):
                target.execute(dispatch())
            assert len(server.committed) == 1
            target.close()
    finally:
        signal.signal(signal.SIGINT, previous)


def test_cancellation_after_the_request_is_not_swallowed():
    async def cancelled():
        task = asyncio.create_task(target.aexecute(dispatch()))
        await asyncio.to_thread(server.arrived.wait)
        task.cancel()
        try:
            await task
        finally:
            await target.aclose()

    with Server(faults.commits_then_hangs) as server:
        target = provider(server.url)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancelled())


@BOTH
def test_memory_error_is_not_swallowed(mode):
    def full(request):
        raise MemoryError

    mock = httpx.MockTransport(full)
    with pytest.raises(MemoryError):
        call(
            provider("http://shop.invalid", options={"transport": lambda: mock, "async_transport": lambda: mock}),
            mode,
            "execute",
            dispatch(),
        )


# --- what counts as a certificate --------------------------------------------------------------------------------------------


@BOTH
def test_a_transport_that_traces_nothing_certifies_nothing(mode, exchanges):
    def breaks(request):
        raise httpx.ConnectError("it says that it could not connect")

    mock = httpx.MockTransport(breaks)
    target = provider("http://shop.invalid", options={"transport": lambda: mock, "async_transport": lambda: mock})
    assert verdict_of(call(target, mode, "execute", dispatch())) == UNKNOWN


def test_a_wrapped_transport_certifies_once_it_is_seen_tracing():
    class Wrapped(httpx.HTTPTransport):
        pass

    target = provider(f"http://127.0.0.1:{faults.closed_port()}", options={"transport": Wrapped})
    assert verdict_of(target.execute(dispatch())) == NOT_SENT
    target.close()


def test_a_transport_that_sends_twice_gets_no_refusal_certified():
    class Twice(httpx.HTTPTransport):
        def handle_request(self, request):
            super().handle_request(request).read()
            return super().handle_request(request)

    with Server(faults.answering(422)) as server:
        target = provider(server.url, options={"transport": Twice}, rejected=REFUSED)
        reply = target.execute(dispatch())
        target.close()
        assert len(server.received) == 2
    assert verdict_of(reply) == UNKNOWN
    assert "sent 2 times" in reply.reason


@BOTH
def test_auth_that_fails_means_not_sent(mode):
    def no_token():
        raise OSError("no token")

    with Server() as server:
        reply = call(provider(server.url, options={"auth": no_token}), mode, "execute", dispatch())
        assert verdict_of(reply) == NOT_SENT
        assert not server.received


@BOTH
@pytest.mark.parametrize("token", ["secret\n", " secret", "", "se\x00cret", "secr\N{GREEK SMALL LETTER EPSILON}t"])
def test_a_token_that_cannot_be_a_header_is_not_sent_and_not_shown(mode, token):
    with Server() as server:
        reply = call(provider(server.url, options={"auth": lambda: {"Authorization": token}}), mode, "execute", dispatch())
        assert verdict_of(reply) == NOT_SENT
        assert "Authorization" in reply.certificate
        assert "secr" not in reply.certificate
        assert not server.connections


def test_auth_cannot_replace_the_key():
    with Server() as server:
        target = provider(server.url, options={"auth": lambda: {"idempotency-key": "other"}})
        assert verdict_of(target.execute(dispatch())) == NOT_SENT
        target.close()


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


# --- receipts ----------------------------------------------------------------------------------------------------------------

LOOKUP = Lookup(
    "/refunds?reference={provider_key}", items="/data", key="/reference", arguments={"amount_minor": "/amount"}, result="/id"
)


def looked_up(mode, fault, lookup=LOOKUP, **options):
    with Server(fault) as server:
        answer = call(provider(server.url, lookup=lookup, options=options), mode, "reconcile", dispatch())
    assert not server.committed
    assert {request.method for request in server.received} <= {"GET"}
    return answer, server


def receipts(*items, status=200, **more):
    return faults.answering(status, {"data": list(items), **more})


OURS = {"id": "re_1", "reference": KEY, "amount": 1200}
THEIRS = {"id": "re_0", "reference": "other", "amount": 1}


@BOTH
def test_a_receipt_is_found_among_others(mode):
    answer, server = looked_up(mode, receipts(THEIRS, OURS))
    assert answer == Found("re_1", KEY, {"amount_minor": 1200}, {"receipt": OURS})
    assert server.received[0].target == f"/refunds?reference={KEY}"


def test_two_receipts_of_one_key_are_counted():
    answer, _ = looked_up("sync", receipts(OURS, {**OURS, "id": "re_2"}))
    assert answer.receipt["count"] == 2


@BOTH
def test_other_receipts_are_no_receipt(mode):
    answer, _ = looked_up(mode, receipts(THEIRS, {"id": "no reference"}, "no object"))
    assert isinstance(answer, NotFound)


@BOTH
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (faults.answering(404), NotFound),
        (faults.answering(410), NotFound),
        (faults.answering(401), Unavailable),
        (faults.answering(429), Unavailable),
        (faults.answering(500), Unavailable),
        (faults.answering(302, b"", ("Location", "/login")), Unavailable),
        (faults.answering(200, b"{"), Unavailable),
        (faults.answering(200, b"<html>", kind="text/html"), Unavailable),
        (faults.answering(200, {"data": {}}), Unavailable),
        (receipts({"reference": KEY, "id": "no amount"}), Unavailable),
        (receipts({"reference": KEY, "amount": "no id"}), Unavailable),
        (faults.hangs, Unavailable),
        (faults.resets, Unavailable),
    ],
)
def test_what_a_lookup_can_answer(mode, fault, expected):
    with Server(fault) as server:
        answer = call(provider(server.url, lookup=LOOKUP, timeout=SHORT), mode, "reconcile", dispatch())
    assert isinstance(answer, expected)


@BOTH
def test_a_lookup_that_reaches_nobody(mode):
    answer = call(provider(f"http://127.0.0.1:{faults.closed_port()}", lookup=LOOKUP), mode, "reconcile", dispatch())
    assert isinstance(answer, Unavailable)


@BOTH
def test_all_pages_are_read(mode):
    def pages(peer, request):
        page = int(request.target.rpartition("page=")[2]) if "page=" in request.target else 1
        link = ("Link", f'</x>; rel="prev", </refunds?page={page + 1}>; rel="next"')
        peer.reply(200, {"data": [OURS if page == 3 else THEIRS]}, *([link] if page < 3 else []))

    answer, server = looked_up(mode, pages)
    assert isinstance(answer, Found)
    assert len(server.received) == 3


def test_the_next_page_by_pointer():
    def pages(peer, request):
        peer.reply(200, {"data": [OURS]} if "cursor=b" in request.target else {"data": [], "next": "?cursor=b"})

    pointed = Lookup("/refunds?reference={provider_key}", items="/data", key="/reference", following="/next")
    answer, server = looked_up("sync", pages, pointed)
    assert isinstance(answer, Found)
    assert server.received[1].target == "/refunds?cursor=b"


def test_pages_that_lead_elsewhere_or_in_a_circle_are_left():
    with Server() as other:
        away = faults.answering(200, {"data": []}, ("Link", f'<{other.url}/refunds>; rel="next"'))
        answer, _ = looked_up("sync", away, auth=lambda: {"Authorization": "secret"})
        assert isinstance(answer, Unavailable)
        assert not other.connections
    answer, server = looked_up("sync", faults.answering(200, {"data": []}, ("Link", '</refunds?again>; rel="next"')))
    assert isinstance(answer, Unavailable)
    assert len(server.received) == 2


@BOTH
def test_a_receipt_by_address(mode):
    by_address = Lookup("/refunds/{provider_key}", consistency="strong", running=(202,))
    for fault, expected in [
        (faults.answering(200, OURS), Found(OURS, KEY, {}, {"receipt": OURS})),
        (faults.answering(202), StillRunning("it answered 202")),
        (faults.answering(200, {}), NotFound("the answer is empty")),
        (faults.answering(204), NotFound("the answer is empty")),
    ]:
        assert looked_up(mode, fault, by_address)[0] == expected


def test_a_receipt_with_another_key_says_so():
    answer, _ = looked_up("sync", faults.answering(200, THEIRS), Lookup("/refunds/{provider_key}", key="/reference"))
    assert answer.provider_key == "other"


def test_read_decides_and_leaves_the_rest_to_the_pointers():
    def read(reply, asked):
        if reply.status == 418:
            return NotExecuted("rejected", f"it never will: {asked.key}")
        return {}["missing"] if reply.status == 419 else None

    lookup = Lookup("/refunds?reference={provider_key}", items="/data", key="/reference", read=read)
    assert verdict_of(looked_up("sync", faults.answering(418), lookup)[0]) == REJECTED
    assert isinstance(looked_up("sync", faults.answering(419), lookup)[0], Unavailable)
    assert isinstance(looked_up("sync", receipts(OURS), lookup)[0], Found)
    bare = Lookup("/refunds?reference={provider_key}", read=read)
    assert isinstance(looked_up("sync", faults.answering(200, OURS), bare)[0], Unavailable)


def test_no_lookup_is_unavailable():
    target = provider("http://shop.invalid")
    assert isinstance(target.reconcile(dispatch()), Unavailable)
    assert isinstance(target.tombstone(dispatch()), Unavailable)


def test_the_lookup_knows_arguments_and_the_time():
    lookup = Lookup("/orders/{order_id}/refunds?since={since}", key="/reference", items="/data")
    _, server = looked_up("sync", receipts(), lookup)
    assert server.received[0].target == "/orders/42/refunds?since=1699999700"


# --- the connections ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_child_opens_its_own_connection_and_leaves_the_parent_its():
    with Server() as server:
        target = provider(server.url)
        assert verdict_of(target.execute(dispatch())) == SUCCEEDED
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(0 if isinstance(target.execute(dispatch()), Succeeded) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert verdict_of(target.execute(dispatch())) == SUCCEEDED
        target.close()
    assert (len(server.committed), server.connections) == (3, 2)


def test_each_event_loop_has_its_own_connections():
    with Server() as server:
        target = provider(server.url)
        for _ in range(2):
            assert verdict_of(call(target, "async", "execute", dispatch(), dispatch())) == SUCCEEDED
    assert (len(server.committed), server.connections) == (4, 2)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_loops_that_ended_without_closing_are_forgotten():
    with Server() as server:
        target = provider(server.url)
        for _ in range(3):
            asyncio.run(target.aexecute(dispatch()))
        assert len(target._connections._async) == 1
        target._connections._async.clear()
        gc.collect()


def test_threads_share_one_pool():
    with Server() as server:
        target = provider(server.url)
        replies = []
        threads = [threading.Thread(target=lambda: replies.append(target.execute(dispatch()))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [verdict_of(reply) for reply in replies] == [SUCCEEDED] * 8
        assert len(target._connections._plain) == 1
        target.close()


def test_a_closed_provider_opens_again():
    with Server() as server:
        target = provider(server.url)
        target.close()
        assert verdict_of(call(target, "sync", "execute", dispatch())) == SUCCEEDED
        assert verdict_of(call(target, "sync", "execute", dispatch())) == SUCCEEDED


def test_a_sibling_shares_the_connections():
    with Server() as server:
        target = provider(server.url)
        charges = target.sibling(Endpoint("PUT", "/charges/{provider_key}", key_header=None))
        target.execute(dispatch())
        charges.execute(dispatch())
        charges.close()
    assert [request.target for request in server.received] == ["/orders/42/refunds", f"/charges/{KEY}"]
    assert server.connections == 1
    assert charges.identity() != target.identity()


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
