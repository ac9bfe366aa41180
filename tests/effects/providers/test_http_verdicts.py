"""HTTP against real sockets: what each way of failing proves, judged by the server's own log."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field

import httpx
import pytest

from letitloop.effects.providers.http import REFUSED
from tests.effects.providers import http_server as faults
from tests.effects.providers.http_calls import (
    BOTH,
    NOT_SENT,
    REJECTED,
    SHORT,
    SUCCEEDED,
    UNKNOWN,
    call,
    dispatch,
    provider,
    verdict_of,
)
from tests.effects.providers.http_server import Server

LARGE = {"order_id": 42, "note": "x" * 1_000_000}
# more than the buffers between two sockets hold
BIG = {"order_id": 42, "note": "x" * 16_000_000}


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
