"""HTTP that reaches nobody: certainly not sent, and only where the transport was seen to send nothing."""

from __future__ import annotations

import socket
import ssl

import httpx
import pytest
import trustme

from letitloop.effects.providers.http import REFUSED
from tests.effects.providers import http_server as faults
from tests.effects.providers.http_calls import BOTH, NOT_SENT, SUCCEEDED, UNKNOWN, call, dispatch, provider, verdict_of
from tests.effects.providers.http_server import FullBacklog, Server

# --- where nothing is sent ---------------------------------------------------------------------------------------------------


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
def test_a_transport_that_retries_connecting_still_sends_once(mode, exchanges):
    options = {
        "transport": lambda: httpx.HTTPTransport(retries=1),
        "async_transport": lambda: httpx.AsyncHTTPTransport(retries=1),
    }
    not_sent(f"http://127.0.0.1:{faults.closed_port()}", mode, exchanges, options=options)


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
