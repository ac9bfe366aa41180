"""What is declared about an endpoint, and the request that follows from it. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from string import Formatter
from typing import cast
from urllib.parse import quote

from letitloop.effects.providers.http_transport import Message
from letitloop.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any, Literal

    from letitloop.effects.provider import Answer, Dispatch, Reply, Window
    from letitloop.effects.providers.http_transport import HttpReply

__all__ = ["REFUSED", "Endpoint", "Lookup", "plain", "render", "render_lookup"]

REFUSED = (400, 401, 403, 404, 405, 413, 415, 422, 429)
"""The codes that an API may document as "refused before anything was done": a value for ``Endpoint(rejected=...)``."""

_METHODS = ("POST", "PUT", "PATCH", "DELETE")
_KEY = "provider_key"
_SINCE = "since"
_SKEW = 300  # seconds by which the service's clock may be behind


@dataclass(frozen=True, slots=True)
class Lookup:
    """How a receipt is found: by a GET, which acts on nothing.

    Attributes:
        path: where; ``{provider_key}``, ``{since}`` (5 minutes before the first dispatch, in whole seconds since 1970-01-01 UTC)
            and the names of arguments are filled in.
        consistency: how soon the receipt is there: ``"eventual"``, ``"list"`` (a complete listing) or ``"strong"`` (at once).
        key: a JSON pointer to the key that the receipt carries. It may be left out only where the path before the ``?`` holds
            ``{provider_key}``: a service that does not know a query parameter answers with everything it has.
        items: a JSON pointer to the list of receipts; those with another key are passed over. None: the answer is one receipt.
        following: a JSON pointer to the next page's address; a ``Link`` header with ``rel="next"`` is followed without it.
        result: a JSON pointer, within the receipt, to what the caller gets; the whole receipt if empty.
        arguments: JSON pointers, within the receipt, to the arguments that it states, by their names in the intent.
        running: the codes that mean "still being worked on".
        read: reads the answer instead of the pointers: gets the reply and the dispatch, returns a ``Found``, ``StillRunning``,
            ``NotFound``, ``NotExecuted`` or ``Unavailable``, or None to leave it to the pointers.

    Example:
        >>> found = Lookup("/refunds?reference={provider_key}", items="/data", key="/reference", arguments={"amount": "/amount"})
    """

    path: str
    consistency: Literal["eventual", "list", "strong"] = "eventual"
    key: str | None = None
    items: str | None = None
    following: str | None = None
    result: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    running: Collection[int] = ()
    read: Callable[[HttpReply, Dispatch], Answer | None] | None = None

    def __post_init__(self) -> None:
        _names(self.path)
        if self.read is None and self.key is None and (self.items is not None or not self.addressed):
            raise InvalidArgument(
                f"a lookup at {self.path} needs key=, a JSON pointer to the key that a receipt carries, or {{{_KEY}}} in its path: "
                "otherwise the receipt of another action could be taken for this one's."
            )
        if self.consistency not in ("eventual", "list", "strong"):
            raise InvalidArgument(f"consistency={self.consistency!r}: it is 'eventual', 'list' or 'strong'.")
        _check_pointers(self.key, self.items, self.following, self.result, *self.arguments.values())

    @property
    def addressed(self) -> bool:
        """Whether the address names the key, so that what lies there needs not to."""
        return _KEY in _names(self.path.partition("?")[0])


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One operation of an API. What is not declared is assumed to be the worst: no window, no lookup, no answer but success.

    Attributes:
        method: ``POST``, ``PUT``, ``PATCH`` or ``DELETE``.
        path: below the base URL; the names of arguments and ``{provider_key}`` are filled in, quoted.
        query: the arguments that go to the query, in this order; one that is None or not there is left out.
        body: the arguments that go to the JSON body; None: all that go nowhere else, except ``operation`` where it names the
            operation; empty: no body.
        key_header: the header that carries the key; None for none.
        key_quoted: whether its value stands in quotation marks, as the IETF draft has it; most services want it raw.
        key_field: a field of the body that carries the key; empty for none.
        window: how long the service recognises a repeated key, from the first dispatch; None: it does not.
        lookup: how receipts are found; None: not at all.
        rejected: the codes that the API documents as "refused before anything was done", such as :data:`REFUSED`. 408, 425 and
            server errors cannot be among them: an intermediary may have answered.
        conflict: what 409 means: not known, ``"running"`` (the key is being worked on) or ``"rejected"``.
        full_body_needed: whether the service acts only after it has the whole body: a request that broke off before is then
            certified as not executed.
        result: a JSON pointer to what the caller gets; the whole body if empty.
        receipt_id: a JSON pointer to the id that goes into the receipt.
        receipt_headers: the headers that go into the receipt.
        replay_header: the header that says ``true`` where an earlier answer is repeated.
        check: looks at every complete answer first: gets the reply, returns a ``Succeeded``, ``NotExecuted`` or ``Unknown``, or
            None to leave it to the rules. For services that answer 200 to what they refuse.

    Example:
        >>> refunds = Endpoint("POST", "/orders/{order_id}/refunds", rejected=REFUSED, conflict="running")
    """

    method: str
    path: str
    query: tuple[str, ...] = ()
    body: tuple[str, ...] | None = None
    key_header: str | None = "Idempotency-Key"
    key_quoted: bool = False
    key_field: str = ""
    window: Window | None = None
    lookup: Lookup | None = None
    rejected: Collection[int] = ()
    conflict: Literal["unknown", "running", "rejected"] = "unknown"
    full_body_needed: bool = False
    result: str = ""
    receipt_id: str = "/id"
    receipt_headers: tuple[str, ...] = ("location", "request-id", "x-request-id")
    replay_header: str = "Idempotent-Replayed"
    check: Callable[[HttpReply], Reply | None] | None = None

    def __post_init__(self) -> None:
        if self.method not in _METHODS:
            raise InvalidArgument(
                f"method={self.method!r}: an effect needs one of {', '.join(_METHODS)}; others may be repeated by proxies."
            )
        names = _names(self.path)
        if self.window is not None and not (self.key_header or self.key_field or _KEY in names):
            raise InvalidArgument(f"{self.path} has a window= but the key goes nowhere: give it a key_header= or key_field=.")
        wrong = [code for code in self.rejected if not 300 <= code < 500 or code in (408, 409, 425)]
        if wrong:
            raise InvalidArgument(
                f"rejected= has {wrong}: success, 408, 425 and server errors certify nothing, and conflict= says what 409 means."
            )
        if self.conflict not in ("unknown", "running", "rejected"):
            raise InvalidArgument(f"conflict={self.conflict!r}: it is 'unknown', 'running' or 'rejected'.")
        _check_pointers(self.result, self.receipt_id)


# --- rendering ---------------------------------------------------------------------------------------------------------------


def render(endpoint: Endpoint, base_url: str, operation: str, arguments: Mapping[str, Any], key: str) -> Message:
    """Return the request of an action: the same for the same arguments and key, byte for byte.

    Args:
        endpoint: what is declared.
        base_url: what the path is put behind.
        operation: what is to be done; an argument ``operation`` of the same value is not sent.
        arguments: with what.
        key: the provider key.

    Raises:
        InvalidArgument: an argument is missing, or cannot be sent as it is.
    """
    if _KEY in arguments:
        raise InvalidArgument(f"an argument cannot be called {_KEY}: that name stands for the key. Nothing was sent.")
    url = base_url + _fill(endpoint.path, {**arguments, _KEY: key})
    pairs = [pair for name in endpoint.query for pair in _query(name, arguments.get(name))]
    if pairs:
        url += ("&" if "?" in url else "?") + "&".join(pairs)
    content = _body(endpoint, operation, arguments, key)
    headers = [("Accept", "application/json"), ("Accept-Encoding", "identity"), ("User-Agent", "letitloop")]
    if endpoint.key_header is not None:
        headers.append((endpoint.key_header, f'"{key}"' if endpoint.key_quoted else key))
    if content:
        headers.append(("Content-Type", "application/json"))
    return Message(endpoint.method, url, tuple(headers), content)


def render_lookup(lookup: Lookup, base_url: str, dispatch: Dispatch) -> Message:
    """Return the request for a dispatch's receipt.

    Raises:
        InvalidArgument: an argument in the path is missing, or was redacted.
    """
    since = str(max(0, math.floor(dispatch.first_dispatched_at) - _SKEW))
    url = base_url + _fill(lookup.path, {_SINCE: since, **dispatch.arguments, _KEY: dispatch.provider_key})
    return Message("GET", url, (("Accept", "application/json"), ("Accept-Encoding", "identity"), ("User-Agent", "letitloop")))


def plain(value: object, where: str) -> object:
    """Return a value as JSON has it: objects with their names in order, decimals as strings.

    Raises:
        InvalidArgument: it is, or holds, a value that JSON has no one form for.
    """
    kind = type(value).__name__
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{index}]") for index, item in enumerate(cast("list[object]", value))]
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value)
        if all(isinstance(name, str) for name in fields):
            return {name: plain(fields[name], f"{where}.{name}") for name in sorted(fields)}
    raise InvalidArgument(
        f"the argument {where} is a {kind} that cannot be sent as it is: give text, whole numbers, lists and "
        "dicts with text as keys. An argument that was redacted cannot be sent again. Nothing was sent."
    )


def _body(endpoint: Endpoint, operation: str, arguments: Mapping[str, Any], key: str) -> bytes:
    elsewhere = {*_names(endpoint.path), *endpoint.query}
    rest = [name for name in arguments if name not in elsewhere and not (name == "operation" and arguments[name] == operation)]
    names = rest if endpoint.body is None else [name for name in endpoint.body if name in arguments]
    lost = [name for name in rest if name not in names]
    if lost:
        raise InvalidArgument(f"the arguments {', '.join(sorted(lost))} go nowhere at {endpoint.path}. Nothing was sent.")
    if endpoint.body == () and not endpoint.key_field:
        return b""
    fields = {name: arguments[name] for name in names}
    if endpoint.key_field:
        if endpoint.key_field in fields:
            raise InvalidArgument(f"the field {endpoint.key_field} is both an argument and the key. Nothing was sent.")
        fields[endpoint.key_field] = key
    text = json.dumps({name: plain(fields[name], name) for name in sorted(fields)}, ensure_ascii=False, separators=(",", ":"))
    return _utf8(text, "body").encode()


def _names(template: str) -> tuple[str, ...]:
    """Return the names in a path, which has to begin with a slash."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as exc:
        raise InvalidArgument(f"the path {template!r} cannot be read: {exc}.") from exc
    names = tuple(name for _, name, _, _ in parts if name is not None)
    plain_names = all(name.isidentifier() for name in names) and not any(form or conversion for _, _, form, conversion in parts)
    if not template.startswith("/") or template.startswith("//") or "#" in template or not plain_names:
        raise InvalidArgument(f"the path {template!r} has to begin with one slash, and may have only names in braces and no '#'.")
    return names


def _fill(template: str, values: Mapping[str, Any]) -> str:
    filled: list[str] = []
    in_query = False
    for literal, name, _, _ in Formatter().parse(template):
        filled.append(literal)
        in_query = in_query or "?" in literal
        if name is not None:
            if name not in values:
                raise InvalidArgument(f"the argument {name} is missing: the path {template} needs it. Nothing was sent.")
            text = _text(values[name], name)
            if text in ("", ".", "..") and not in_query:
                raise InvalidArgument(
                    f"the argument {name} is {text!r}, which would lead to another address than {template}. Nothing was sent."
                )
            filled.append(quote(text, safe=""))
    return "".join(filled)


def _query(name: str, value: object) -> list[str]:
    if value is None:
        return []
    values = cast("list[object]", value) if isinstance(value, (list, tuple)) else [value]
    return [f"{quote(name, safe='')}={quote(_text(item, name), safe='')}" for item in values]


def _text(value: object, name: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _utf8(str.__str__(value), name)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, (Decimal, float)) and math.isfinite(value):
        return str(value)
    raise InvalidArgument(
        f"the argument {name} is a {type(value).__name__}, which has no place in an address: give text or a number. An argument "
        "that was redacted cannot be sent again. Nothing was sent."
    )


def _utf8(text: str, name: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidArgument(f"the {name} has half a surrogate pair, which is no text. Nothing was sent.") from exc
    return text


def _check_pointers(*pointers: str | None) -> None:
    for pointer in pointers:
        if pointer and not pointer.startswith("/"):
            raise InvalidArgument(f"{pointer!r} is no JSON pointer: it begins with a slash, as in '/data/id'.")
