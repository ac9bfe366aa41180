"""What Stripe is asked, and what its answers prove. Pure: no SDK, no socket."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from letitloop.effects.provider import Found, NotExecuted, NotFound, Succeeded, Unavailable, Unknown
from letitloop.effects.providers.http_verdict import no_reply
from letitloop.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Any

    from letitloop.effects.provider import Answer, Dispatch, Reply
    from letitloop.effects.providers.http_transport import Exchange, HttpReply

__all__ = ["Kind", "kind_of", "listing", "render", "verdict"]

_MARK = "lil_intent"
_SKEW = 3600  # seconds by which this machine's clock may be ahead of Stripe's: too many cost pages, too few a receipt
_PAGE = "100"
_PARAMETER = re.compile(r"[a-z][a-z0-9_]*")
# what the SDK takes out of the parameters for itself: none of it is an argument of an action
_OPTIONS = (
    *("api_key", "stripe_version", "stripe_account", "stripe_context", "max_network_retries", "idempotency_key"),
    *("content_type", "headers", "base", "usage", "self"),
)
_NAMES = {"amount_minor": "amount"}
# refused before execution began; 402 is a card's definitive no
_REFUSED = (400, 401, 402, 403, 404, 429)


@dataclass(frozen=True, slots=True)
class Kind:
    """An operation.

    Attributes:
        object: what it creates, as Stripe calls it.
        path: where.
        parents: the parameters by which what it creates is listed.
        stated: the parameters that what it creates states.
    """

    object: str
    path: str
    parents: tuple[str, ...]
    stated: tuple[str, ...]


_KINDS = {
    "refund": Kind("refund", "/v1/refunds", ("charge", "payment_intent"), ("amount", "currency", "charge", "payment_intent")),
    "charge": Kind("charge", "/v1/charges", ("customer",), ("amount", "currency", "customer")),
    "payment_intent": Kind("payment_intent", "/v1/payment_intents", ("customer",), ("amount", "currency", "customer")),
}


def kind_of(operation: str) -> Kind:
    """Return what an operation does.

    Raises:
        InvalidArgument: this provider does not know it.
    """
    kind = _KINDS.get(operation)
    if kind is None:
        raise InvalidArgument(f"the operation {operation!r} is not one of {', '.join(_KINDS)}. Nothing was sent.")
    return kind


def render(operation: str, arguments: Mapping[str, Any], key: str) -> dict[str, str]:
    """Return an action's parameters, flat and in order: the same for the same arguments and key, byte for byte.

    Args:
        operation: ``refund``, ``charge`` or ``payment_intent``.
        arguments: Stripe's parameters; ``amount_minor`` is another name for ``amount``, and ``operation`` is not sent.
        key: the provider key, which goes into the metadata.

    Raises:
        InvalidArgument: the operation is not known, or an argument cannot be sent as it is.

    Example:
        >>> render("refund", {"charge": "ch_1", "amount_minor": 1200}, "k1")
        {'amount': '1200', 'charge': 'ch_1', 'metadata[lil_intent]': 'k1'}
    """
    kind = kind_of(operation)
    parameters = _parameters(operation, arguments)
    given = [name for name in kind.parents if parameters.get(name) is not None]
    if operation == "refund" and len(given) != 1:
        raise InvalidArgument("a refund names the charge or the payment_intent, one of them. Nothing was sent.")
    metadata = parameters.get("metadata", {})
    if not isinstance(metadata, Mapping) or _MARK in metadata:
        raise InvalidArgument(f"metadata has to be a dict without {_MARK}, by which the action is found again. Nothing was sent.")
    parameters["metadata"] = {**cast("Mapping[str, object]", metadata), _MARK: key}
    return dict(sorted(pair for name, value in parameters.items() for pair in _flat(name, value)))


def verdict(operation: str, key: str, exchange: Exchange) -> Reply:
    """Return what an exchange with Stripe proves about an action."""
    reply = exchange.reply
    if reply is None:
        return no_reply(exchange)
    body = _fields(_value(reply))
    if 200 <= reply.status < 300:
        return _created(kind_of(operation), key, reply, body)
    error = _fields(body.get("error"))
    code = error.get("code")
    if reply.status == 409 and code == "idempotency_key_in_use":
        return Unknown("409: the key is still being worked on")
    if error.get("type") == "idempotency_error":
        return Unknown(f"contradiction: the key was used before with other parameters ({reply.status})")
    if not error or reply.status not in _REFUSED or exchange.started > 1:
        return Unknown(f"{reply.status}: it does not certify that nothing was done")
    told = {name: error[name] for name in ("type", "code", "decline_code", "param", "message") if error.get(name) is not None}
    detail = {"status": reply.status, **told, **_request_id(reply)}
    words = "the card was declined" if reply.status == 402 else "refused before execution began"
    return NotExecuted("rejected", f"{reply.status} {code or error.get('type') or ''}".strip() + f": {words}", detail)


def _created(kind: Kind, key: str, reply: HttpReply, body: dict[str, object]) -> Succeeded | Unknown:
    if body.get("object") != kind.object or not isinstance(body.get("id"), str):
        return Unknown(f"it answered {reply.status} with a body that is no {kind.object}")
    if _fields(body.get("metadata")).get(_MARK) != key:
        return Unknown(f"contradiction: it answered {reply.status} with {body['id']}, which is another action's")
    replayed = reply.headers.get("idempotent-replayed", "").lower() == "true"
    return Succeeded(body, {**_receipt(body), **_request_id(reply)}, "replay" if replayed else "response")


# --- receipts ----------------------------------------------------------------------------------------------------------------


def listing(dispatch: Dispatch) -> Generator[dict[str, str], HttpReply, Answer]:
    """Yield the parameters of one page after another, get the answers sent in, and return what they prove.

    Lists are read after a write as it was; the search of Stripe lags behind and proves nothing.
    """
    kind = kind_of(dispatch.operation)
    parameters = _parameters(dispatch.operation, dispatch.arguments)
    parents = {name: parameters[name] for name in kind.parents if parameters.get(name) is not None}
    if not all(isinstance(value, str) for value in parents.values()):
        return Unavailable(f"{' and '.join(parents)} was redacted: the list that has the receipt cannot be named")
    query = {
        **cast("dict[str, str]", parents),
        "created[gte]": str(max(0, math.floor(dispatch.first_dispatched_at) - _SKEW)),
        "limit": _PAGE,
    }
    ours: list[dict[str, object]] = []
    last = ""
    while True:
        reply = yield {**query, "starting_after": last} if last else query
        page = _fields(_value(reply))
        if reply.status != 200 or not isinstance(page.get("data"), list):
            return Unavailable(
                f"the list could not be read: {reply.status} {_fields(page.get('error')).get('message', '')}".rstrip()
            )
        items = [_fields(item) for item in cast("list[object]", page["data"])]
        ours += [item for item in items if _fields(item.get("metadata")).get(_MARK) == dispatch.provider_key]
        if page.get("has_more") is not True:
            break
        following = str(items[-1].get("id", "")) if items else ""
        if following in ("", last):
            return Unavailable("the list says that it goes on, and does not")
        last = following
    return _judged(kind, dispatch, ours)


def _judged(kind: Kind, dispatch: Dispatch, ours: list[dict[str, object]]) -> Found | NotFound | NotExecuted:
    if not ours:
        return NotFound(f"no {kind.object} in the list carries the key")
    item = next((item for item in ours if not _declined(dispatch, item)), ours[0])
    if _declined(dispatch, item):
        return NotExecuted("rejected", f"the payment of {item.get('id')} was declined", _receipt(item))
    receipt = _receipt(item)
    if len(ours) > 1:
        receipt["count"] = len(ours)
    return Found(item, dispatch.provider_key, _stated(kind, dispatch, item), receipt)


def _declined(dispatch: Dispatch, item: Mapping[str, object]) -> bool:
    """Tell whether this is what a 402 leaves behind: the record of a payment that was not made."""
    if dispatch.operation == "charge":
        return item.get("status") == "failed"
    confirmed = dispatch.arguments.get("confirm") is True and dispatch.operation == "payment_intent"
    return confirmed and item.get("status") == "requires_payment_method" and bool(item.get("last_payment_error"))


def _stated(kind: Kind, dispatch: Dispatch, item: Mapping[str, object]) -> dict[str, object]:
    """Return those arguments that the receipt states, spelt as the intent spells them where they are the same."""
    stated: dict[str, object] = {}
    for name, given in dispatch.arguments.items():
        parameter = _NAMES.get(name, name)
        value = item.get(parameter)
        if parameter not in kind.stated or value is None:
            continue
        value = _fields(value).get("id", value)  # expanded
        same = str(given) == str(value) or (parameter == "currency" and str(given).lower() == str(value).lower())
        stated[name] = given if same else value
    return stated


# --- values ------------------------------------------------------------------------------------------------------------------


def _parameters(operation: str, arguments: Mapping[str, Any]) -> dict[str, object]:
    parameters: dict[str, object] = {}
    for name, value in arguments.items():
        if name == "operation" and value == operation:
            continue
        parameter = _NAMES.get(name, name)
        if parameter in parameters or parameter in _OPTIONS or not _PARAMETER.fullmatch(parameter):
            raise InvalidArgument(f"the argument {name!r} is no parameter of a {operation}, or there twice. Nothing was sent.")
        parameters[parameter] = value
    return parameters


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    if value is None:
        return
    if isinstance(value, bool):
        yield name, "true" if value else "false"
    elif isinstance(value, int):
        yield name, int.__repr__(value)
    elif isinstance(value, str):
        yield name, str.__str__(value)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _flat(f"{name}[{index}]", item)
    elif isinstance(value, Mapping):
        for part, item in cast("Mapping[str, object]", value).items():
            if not part or "[" in part or "]" in part:
                raise InvalidArgument(f"the argument {name} has {part!r}, which cannot be the name of a field. Nothing was sent.")
            yield from _flat(f"{name}[{part}]", item)
    else:
        raise InvalidArgument(
            f"the argument {name} is a {type(value).__name__}: give text, whole numbers (amounts in the currency's smallest unit), "
            "lists and dicts. An argument that was redacted cannot be sent again. Nothing was sent."
        )


def _value(reply: HttpReply) -> object:
    try:
        return json.loads(reply.content)
    except (ValueError, RecursionError):
        return None


def _fields(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _receipt(item: Mapping[str, object]) -> dict[str, object]:
    return {name: item[name] for name in ("id", "object", "status", "created", "livemode") if name in item}


def _request_id(reply: HttpReply) -> dict[str, object]:
    return {"request_id": reply.headers["request-id"]} if "request-id" in reply.headers else {}
