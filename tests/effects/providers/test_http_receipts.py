"""Receipts of an HTTP service: whose they are, all pages of them, and when a lookup says nothing."""

from __future__ import annotations

import pytest

from letitloop.effects.provider import Found, NotExecuted, NotFound, StillRunning, Unavailable
from letitloop.effects.providers.http import Lookup
from tests.effects.providers import http_server as faults
from tests.effects.providers.http_calls import BOTH, KEY, LOOKUP, REJECTED, SHORT, call, dispatch, provider, verdict_of
from tests.effects.providers.http_server import Server


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
