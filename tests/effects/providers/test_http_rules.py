"""What can be declared of an HTTP endpoint, and the requests that follow from it: no socket is opened."""

from __future__ import annotations

import enum
from decimal import Decimal

import pytest

from letitloop.effects.intent import Redacted
from letitloop.effects.provider import Window
from letitloop.effects.providers.http import Endpoint, HttpProvider, Lookup
from letitloop.effects.providers.http_endpoint import render
from letitloop.effects.providers.http_verdict import pointed
from letitloop.errors import InvalidArgument

KEY = "k" * 40


def rendered(endpoint: Endpoint, /, **arguments):
    return render(endpoint, "http://x/v1", "refund", arguments, KEY)


def test_arguments_go_to_path_query_and_body():
    endpoint = Endpoint("POST", "/o/{order_id}?mode=x", query=("notify", "tags", "absent"), key_field="ref")
    message = rendered(endpoint, order_id="a b/é", notify=True, tags=["x", "y&z"], amount=1, operation="refund")
    assert message.url == "http://x/v1/o/a%20b%2F%C3%A9?mode=x&notify=true&tags=x&tags=y%26z"
    assert message.content == b'{"amount":1,"ref":"%b"}' % KEY.encode()


def test_only_the_named_arguments_go_to_a_declared_body():
    message = rendered(Endpoint("PUT", "/o/{provider_key}", body=("amount", "note")), amount=1)
    assert (message.method, message.url, message.content) == ("PUT", f"http://x/v1/o/{KEY}", b'{"amount":1}')


def test_no_body():
    message = rendered(Endpoint("DELETE", "/o/{order_id}", body=()), order_id=7)
    assert message.content == b""
    assert "Content-Type" not in dict(message.headers)


def test_an_argument_that_goes_nowhere_is_refused():
    with pytest.raises(InvalidArgument, match="note go nowhere"):
        rendered(Endpoint("POST", "/o", body=("amount",)), amount=1, note="lost")


def test_an_argument_called_operation_is_sent_if_it_is_not_the_operation():
    assert rendered(Endpoint("POST", "/o"), operation="appendectomy").content == b'{"operation":"appendectomy"}'


def test_the_key_header():
    assert dict(rendered(Endpoint("POST", "/o")).headers)["Idempotency-Key"] == KEY
    assert dict(rendered(Endpoint("POST", "/o", key_header="X-Key", key_quoted=True)).headers)["X-Key"] == f'"{KEY}"'
    assert KEY not in str(rendered(Endpoint("POST", "/o", key_header=None)).headers)


@pytest.mark.parametrize("value", ["", ".", "..", None, 1.5j, ["a"], {"a": 1}, float("nan"), "\ud800", Redacted("ab")])
def test_values_that_have_no_place_in_a_path(value):
    with pytest.raises(InvalidArgument):
        rendered(Endpoint("POST", "/o/{order_id}"), order_id=value)


def test_a_missing_argument_of_the_path():
    with pytest.raises(InvalidArgument, match="order_id is missing"):
        rendered(Endpoint("POST", "/o/{order_id}"), amount=1)


@pytest.mark.parametrize(
    "value", [float("inf"), Decimal("NaN"), b"x", {1: 2}, {"a": object()}, [{"b": {3}}], "\ud800", Redacted("ab"), {"s": "\udfff"}]
)
def test_values_that_have_no_place_in_a_body(value):
    with pytest.raises(InvalidArgument):
        rendered(Endpoint("POST", "/o"), value=value)


def test_values_of_a_body():
    class Colour(str, enum.Enum):
        RED = "red"

    class Size(enum.IntEnum):
        BIG = 3

    message = rendered(
        Endpoint("POST", "/o/{c}/{s}"), c=Colour.RED, s=Size.BIG, d=Decimal("1.50"), t=(1, 2), u="ü", e=Colour.RED, i=Size.BIG
    )
    assert message.url == "http://x/v1/o/red/3"
    assert message.content == '{"d":"1.50","e":"red","i":3,"t":[1,2],"u":"ü"}'.encode()


def test_names_that_stand_for_the_key():
    with pytest.raises(InvalidArgument, match="provider_key"):
        rendered(Endpoint("POST", "/o"), provider_key="x")
    with pytest.raises(InvalidArgument, match="both"):
        rendered(Endpoint("POST", "/o", key_field="ref"), ref="x")


def test_validate_refuses_what_cannot_be_sent():
    target = HttpProvider("http://x", Endpoint("POST", "/o/{order_id}"), account="a")
    target.validate("refund", {"order_id": 1})
    with pytest.raises(InvalidArgument):
        target.validate("refund", {"order_id": ".."})


@pytest.mark.parametrize("path", ["o", "//o", "/o#x", "/{}", "/{0}", "/{a.b}", "/{a!r}", "/{a:>3}", "/{a", "/a}"])
def test_paths_that_cannot_be_read(path):
    with pytest.raises(InvalidArgument, match="path"):
        Endpoint("POST", path)


@pytest.mark.parametrize("method", ["GET", "HEAD", "post", "OPTIONS", ""])
def test_methods_that_are_no_effect(method):
    with pytest.raises(InvalidArgument, match="effect"):
        Endpoint(method, "/o")


@pytest.mark.parametrize("code", [100, 200, 201, 408, 409, 425, 500, 502, 503, 504])
def test_codes_that_certify_nothing(code):
    with pytest.raises(InvalidArgument, match=f"{code}"):
        Endpoint("POST", "/o", rejected=(404, code))


def test_a_window_needs_a_key_that_goes_somewhere():
    with pytest.raises(InvalidArgument, match="window"):
        Endpoint("POST", "/o", window=Window(60.0), key_header=None)
    Endpoint("PUT", "/o/{provider_key}", window=Window(60.0), key_header=None)
    Endpoint("POST", "/o", window=Window(60.0), key_header=None, key_field="ref")


def test_other_declarations_that_mean_nothing():
    for declared in ({"conflict": "maybe"}, {"result": "id"}, {"receipt_id": "id"}):
        with pytest.raises(InvalidArgument):
            Endpoint("POST", "/o", **declared)
    for declared in ({"consistency": "quick"}, {"arguments": {"a": "b"}}, {"items": "data"}, {"key": "ref"}):
        with pytest.raises(InvalidArgument):
            Lookup("/o/{provider_key}", **declared)


def test_a_lookup_has_to_tell_its_receipts_from_others():
    for path, declared in [("/o?key={provider_key}", {}), ("/o", {}), ("/o/{provider_key}", {"items": "/data"})]:
        with pytest.raises(InvalidArgument, match="another action"):
            Lookup(path, **declared)
    Lookup("/o", read=lambda reply, dispatch: None)


def test_pointers():
    value = {"a/b": {"~c": [10, {"": 20}]}, "0": 1}
    assert pointed(value, "") is value
    assert pointed(value, "/a~1b/~0c/1/") == 20
    assert pointed(value, "/0") == 1
    for pointer in ("/a", "/a~1b/~0c/2", "/a~1b/~0c/-1", "/a~1b/~0c/x", "/0/0"):
        with pytest.raises(LookupError):
            pointed(value, pointer)
