"""What an exchange proves. Pure: the rules of HTTP, whatever carried it."""

from __future__ import annotations

import re
from typing import cast
from urllib.parse import urljoin, urlsplit

from letitloop.effects.provider import Found, NotExecuted, NotFound, StillRunning, Succeeded, Unavailable, Unknown
from letitloop.effects.providers.http_endpoint import render_lookup
from letitloop.effects.providers.http_transport import Message
from letitloop.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from letitloop.effects.provider import Answer, Dispatch, Reply
    from letitloop.effects.providers.http_endpoint import Endpoint, Lookup
    from letitloop.effects.providers.http_transport import Exchange, HttpReply

__all__ = ["described", "look_up", "no_reply", "pointed", "verdict"]

_GONE = (404, 410)
_MAX_PAGES = 1000
_MAX_TEXT = 2000
_NEXT = re.compile(r"<([^>]*)>\s*;[^,]*\brel=\"?next\b")


def verdict(endpoint: Endpoint, exchange: Exchange) -> Reply:
    """Return what an exchange with an endpoint proves about the action.

    A certificate of non-execution comes from the trace (nothing was sent) or from what is declared (a code that means "refused
    before anything was done"); success from a complete, readable 2xx; everything else is unknown.
    """
    reply = exchange.reply
    if reply is None:
        return no_reply(exchange, full_body_needed=endpoint.full_body_needed)
    if endpoint.check is not None:
        try:
            checked = endpoint.check(reply)
        except Exception as exc:
            return Unknown(f"it answered {reply.status}, and check() could not tell what that means: {described(exc)}")
        if checked is not None:
            return checked
    if 200 <= reply.status < 300:
        return _success(endpoint, reply)
    return _refusal(endpoint, exchange, reply)


def no_reply(exchange: Exchange, *, full_body_needed: bool = False) -> NotExecuted | Unknown:
    """Return what is proved by an exchange without a complete answer."""
    error = "no answer" if exchange.error is None else described(exchange.error)
    if exchange.not_sent:
        return NotExecuted("not_sent", f"no header of the request was begun: {error}")
    if full_body_needed and exchange.body_cut and exchange.status is None and exchange.started == 1:
        return NotExecuted("not_sent", f"the body did not leave completely, and the endpoint needs all of it: {error}")
    seen = "" if exchange.status is None else f" after the status {exchange.status}"
    return Unknown(f"the request was sent, and no complete answer came{seen}: {error}")


def described(error: BaseException) -> str:
    """Return an error as a line of text."""
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def pointed(value: object, pointer: str) -> object:
    """Return what a JSON pointer (RFC 6901) points to.

    Raises:
        LookupError: there is nothing.

    Example:
        >>> pointed({"data": [{"id": "re_1"}]}, "/data/0/id")
        're_1'
    """
    for raw in pointer.split("/")[1:]:
        token = raw.replace("~1", "/").replace("~0", "~")
        items = cast("list[object]", value) if isinstance(value, list) else None
        fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
        if items is not None and token.isdecimal() and int(token) < len(items):
            value = items[int(token)]
        elif token in fields:
            value = fields[token]
        else:
            raise LookupError(pointer)
    return value


def _success(endpoint: Endpoint, reply: HttpReply) -> Succeeded | Unknown:
    try:
        value = reply.value
    except ValueError as exc:
        return Unknown(f"it answered {reply.status} with a body that cannot be read: {described(exc)}")
    try:
        result = pointed(value, endpoint.result)
    except LookupError:
        return Unknown(f"it answered {reply.status}, but with nothing at {endpoint.result}")
    receipt: dict[str, object] = {"status": reply.status}
    try:
        receipt["id"] = pointed(value, endpoint.receipt_id)
    except LookupError:
        pass
    headers = {name.lower(): reply.headers[name.lower()] for name in endpoint.receipt_headers if name.lower() in reply.headers}
    if headers:
        receipt["headers"] = headers
    replayed = reply.headers.get(endpoint.replay_header.lower(), "").strip().lower() == "true"
    return Succeeded(result, receipt, "replay" if replayed else "response")


def _refusal(endpoint: Endpoint, exchange: Exchange, reply: HttpReply) -> NotExecuted | Unknown:
    status = reply.status
    if exchange.started > 1:
        return Unknown(f"the request was sent {exchange.started} times, and the last answer, {status}, speaks for one of them")
    if status == 409:
        if endpoint.conflict == "rejected":
            return NotExecuted("rejected", "409, declared as a refusal before anything was done", _statement(reply))
        running = endpoint.conflict == "running"
        return Unknown(
            "409: the key is still being worked on" if running else "409: a conflict, of which it is not known what it means"
        )
    if status in endpoint.rejected:
        return NotExecuted("rejected", f"{status}, declared as a refusal before anything was done", _statement(reply))
    if endpoint.full_body_needed and exchange.body_cut:
        return NotExecuted("rejected", f"{status} before the body had left, and the endpoint needs all of it", _statement(reply))
    if 300 <= status < 400:
        return Unknown(f"{status}: it points elsewhere, and an action is not sent on")
    return Unknown(f"{status}: it is not declared as a refusal before anything was done")


def _statement(reply: HttpReply) -> dict[str, object]:
    """Return what the service said, as data that can be recorded."""
    try:
        body = reply.value
    except ValueError:
        body = None
    if body is None or len(reply.content) > _MAX_TEXT:
        body = reply.content[:_MAX_TEXT].decode("utf-8", "replace")
    return {"status": reply.status, "body": body}


# --- receipts ----------------------------------------------------------------------------------------------------------------


def look_up(lookup: Lookup, base_url: str, dispatch: Dispatch) -> Generator[Message, HttpReply, Answer]:
    """Yield the requests for a receipt one after another, get their answers sent in, and return what they prove."""
    try:
        message = render_lookup(lookup, base_url, dispatch)
    except InvalidArgument as exc:
        return Unavailable(f"the receipt's address cannot be made: {exc}")
    seen: set[str] = set()
    while message.url not in seen and len(seen) < _MAX_PAGES:
        seen.add(message.url)
        reply = yield message
        try:
            answer = None if lookup.read is None else lookup.read(reply, dispatch)
            if answer is None:
                answer = _read(lookup, reply, dispatch)
            if not isinstance(answer, NotFound):
                return answer
            following = _following(lookup, reply)
        except Exception as exc:
            return Unavailable(f"the answer {reply.status} could not be read: {described(exc)}")
        if following is None:
            return answer
        url = urljoin(message.url, following)
        if urlsplit(url)[:2] != urlsplit(base_url)[:2]:
            return Unavailable("the next page is at another host, which is not asked")
        message = Message("GET", url, message.headers)
    return Unavailable(f"the pages go in a circle, or are more than {_MAX_PAGES}")


def _read(lookup: Lookup, reply: HttpReply, dispatch: Dispatch) -> Answer:
    if reply.status in lookup.running:
        return StillRunning(f"it answered {reply.status}")
    if reply.status in _GONE:
        return NotFound(f"it answered {reply.status}")
    if not 200 <= reply.status < 300:
        return Unavailable(f"it answered {reply.status}")
    value = reply.value
    if lookup.items is None:
        return NotFound("the answer is empty") if not value else _receipt(lookup, value, dispatch)
    items = pointed(value, lookup.items)
    if not isinstance(items, list):
        return Unavailable(f"there is no list at {lookup.items}")
    receipts = cast("list[object]", items)
    ours = [receipt for receipt in receipts if _key(lookup, receipt) == dispatch.provider_key]
    if not ours:
        return NotFound(f"none of {len(receipts)} receipts is this action's")
    return _receipt(lookup, ours[0], dispatch, count=len(ours))


def _receipt(lookup: Lookup, value: object, dispatch: Dispatch, count: int = 1) -> Found | Unavailable:
    key = dispatch.provider_key if lookup.key is None and lookup.addressed else _key(lookup, value)
    if not isinstance(key, str):
        return Unavailable(f"the receipt carries no key at {lookup.key}")
    try:
        arguments = {name: pointed(value, pointer) for name, pointer in lookup.arguments.items()}
        result = pointed(value, lookup.result)
    except LookupError as exc:
        return Unavailable(f"the receipt has nothing at {exc}")
    receipt: dict[str, object] = {"receipt": value}
    if count > 1:
        receipt["count"] = count
    return Found(result, key, arguments, receipt)


def _key(lookup: Lookup, value: object) -> object:
    try:
        return None if lookup.key is None else pointed(value, lookup.key)
    except LookupError:
        return None


def _following(lookup: Lookup, reply: HttpReply) -> str | None:
    if lookup.following is not None:
        try:
            following = pointed(reply.value, lookup.following)
        except LookupError:
            return None
        return following if isinstance(following, str) and following else None
    link = _NEXT.search(reply.headers.get("link", ""))
    return link[1] if link else None
