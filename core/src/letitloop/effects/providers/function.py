"""Any function as a provider: with a way to ask afterwards if it has one, and honestly unknown if not."""

from __future__ import annotations

import inspect

from letitloop.effects.provider import (
    Caps,
    Found,
    NotExecuted,
    NotFound,
    StillRunning,
    Succeeded,
    Unavailable,
    Unknown,
)
from letitloop.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Any, TypeGuard

    from letitloop.effects.provider import Answer, Dispatch, Reply, Window

__all__ = ["FunctionProvider"]

_SPECIAL = ("idempotency_key", "dispatch", "operation")


class FunctionProvider:
    """Acts by calling a function.

    The function is given the action's arguments by name. If it has a parameter ``idempotency_key``, that is the provider key: the
    same 40 characters for every sending of one attempt. If it has a parameter ``dispatch``, that is the whole
    :class:`~letitloop.effects.provider.Dispatch`, and arguments for which it has no parameter are left to that. An argument named
    ``operation`` is passed on only if it has a parameter of that name.

    What it returns is the result, unless it is a ``Succeeded``, ``NotExecuted`` or ``Unknown``, which count as they are. What it
    raises tells nothing: the action may have happened, and the outcome is unknown. A function that knows better returns
    ``NotExecuted("rejected", "…")``.

    A function that makes retries of its own, or whose client library does, acts more than once: switch them off.

    All functions may be async; an action whose function is async is run with ``arun``.

    Args:
        fn: acts.
        identity: whose account or endpoint it acts on: the same text for ever, and no secret.
        name: what the provider is called in the ledger.
        lookup: asks what became of a dispatch, which it is given: returns ``Found(result, dispatch.provider_key, …)``, None if it
            found nothing, or another of the answers.
        tombstone: makes certain that a dispatch has not happened and never will: returns ``NotExecuted("tombstoned", "…")``,
            ``Found``, ``StillRunning`` or ``Unavailable``.
        redispatch: how long the other side recognises ``idempotency_key``; None if it does not.
        caps: what else it can do; by default what the arguments before say, with a lookup that is ``"eventual"``.

    Raises:
        InvalidArgument: something is no function, or ``caps`` promise what there is no function for.

    Example:
        >>> import time
        >>> from letitloop.effects.provider import Dispatch
        >>> def charge(amount, *, idempotency_key):
        ...     return {"charged": amount, "key": idempotency_key[:4]}
        >>> bank = FunctionProvider(charge, identity="bank/1 account-7")
        >>> bank.execute(Dispatch("shop", "order/1", 1, 1, "k" * 40, "charge", {"amount": 5}, time.time()))
        Succeeded(result={'charged': 5, 'key': 'kkkk'}, receipt=None, basis='response')
    """

    def __init__(
        self,
        fn: Callable[..., object],
        *,
        identity: str,
        name: str = "function",
        lookup: Callable[[Dispatch], object] | None = None,
        tombstone: Callable[[Dispatch], object] | None = None,
        redispatch: Window | None = None,
        caps: Caps | None = None,
    ) -> None:
        _check("fn", fn)
        for what, function in (("lookup", lookup), ("tombstone", tombstone)):
            if function is not None:
                _check(what, function)
        if not identity:
            raise InvalidArgument("identity is empty; it says whose account this acts on. Nothing was done.")
        self.name = name
        self.caps = _agreed(caps, lookup, tombstone, redispatch)
        self._identity = identity
        self._fn = fn
        self._lookup = lookup
        self._tombstone = tombstone
        self._parameters = _parameters(fn)
        # twins exist only for what is async: for the rest, async callers find none and use a thread
        if _is_async(fn):
            self.aexecute = self._aexecute
        if lookup is not None and _is_async(lookup):
            self.areconcile = self._areconcile
        if tombstone is not None and _is_async(tombstone):
            self.atombstone = self._atombstone

    def __repr__(self) -> str:
        return f"FunctionProvider({getattr(self._fn, '__qualname__', self._fn)}, identity={self._identity!r})"

    def identity(self) -> str:
        """Return what was given as identity."""
        return self._identity

    def validate(self, operation: str, arguments: Mapping[str, Any]) -> None:
        """Check that the function can be called with the arguments.

        Raises:
            InvalidArgument: it cannot; nothing was recorded, and it was not called.
        """
        if self._parameters is None:
            return
        taken = [name for name in ("idempotency_key", "dispatch") if name in arguments and name in self._parameters]
        if taken:
            raise InvalidArgument(
                f"{self!r} gets {taken} from letitloop; the action's arguments may not hold that. Nothing was done."
            )
        try:
            inspect.signature(self._fn).bind(**self._keywords(operation, arguments, "", None))
        except TypeError as exc:
            raise InvalidArgument(f"{self!r} cannot be called with {sorted(arguments)}: {exc}. Nothing was done.") from exc

    def execute(self, dispatch: Dispatch) -> Reply:
        """Call the function, once."""
        if _is_async(self._fn):
            return NotExecuted("not_sent", f"{self!r} is an async function, and was not called: use arun instead of run")
        value = self._fn(**self._arguments(dispatch))
        if inspect.isawaitable(value):
            _drop(value)
            return Unknown(f"{self!r} returned something to be awaited, though it is no async function. Use arun instead of run.")
        return _reply(value, repr(self))

    async def _aexecute(self, dispatch: Dispatch) -> Reply:
        value: Any = self._fn(**self._arguments(dispatch))
        return _reply(await value, repr(self))

    def reconcile(self, dispatch: Dispatch) -> Answer:
        """Ask the lookup; what it raises means that it could not be asked."""
        if self._lookup is None:
            return Unavailable(f"{self!r} has no lookup")
        return _asked(self._lookup, dispatch, "lookup")

    async def _areconcile(self, dispatch: Dispatch) -> Answer:
        assert self._lookup is not None
        return await _aasked(self._lookup, dispatch, "lookup")

    def tombstone(self, dispatch: Dispatch) -> Found | StillRunning | NotExecuted | Unavailable:
        """Call the tombstone function; what it raises means that nothing is certain."""
        if self._tombstone is None:
            return Unavailable(f"{self!r} has no tombstone")
        return _final(_asked(self._tombstone, dispatch, "tombstone"))

    async def _atombstone(self, dispatch: Dispatch) -> Found | StillRunning | NotExecuted | Unavailable:
        assert self._tombstone is not None
        return _final(await _aasked(self._tombstone, dispatch, "tombstone"))

    def _arguments(self, dispatch: Dispatch) -> dict[str, Any]:
        return self._keywords(dispatch.operation, dispatch.arguments, dispatch.provider_key, dispatch)

    def _keywords(self, operation: str, arguments: Mapping[str, Any], key: str, dispatch: Dispatch | None) -> dict[str, Any]:
        known = self._parameters
        if known is None:
            return {name: value for name, value in arguments.items() if name != "operation"}
        special = {"idempotency_key": key, "dispatch": dispatch, "operation": operation}
        open_ended = "dispatch" not in known or "**" in known
        passed = {name: value for name, value in arguments.items() if name in known or (open_ended and name != "operation")}
        return {**passed, **{name: special[name] for name in _SPECIAL if name in known}}


# --- the functions -----------------------------------------------------------------------------------------------------------


def _check(what: str, function: object) -> None:
    call = getattr(function, "__call__", None)  # noqa: B004  # what a callable object calls, not whether it is one
    if not callable(function):
        raise InvalidArgument(f"{what} is {function!r}, which is no function. Nothing was done.")
    for each in (function, call):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise InvalidArgument(f"{what} is a generator function; what it yields is no result. Nothing was done.")


def _is_async(function: object) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  # what a callable object calls, not whether it is one
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _parameters(function: Callable[..., object]) -> frozenset[str] | None:
    """Return the names that a function can be called with, and ``**`` if with any; None if that cannot be told."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is each.POSITIONAL_ONLY and each.default is each.empty for each in parameters):
        raise InvalidArgument(f"{function!r} has parameters that cannot be given by name. Nothing was done. Wrap it in a function.")
    named = {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    return frozenset(named | {"**" for each in parameters if each.kind is each.VAR_KEYWORD})


def _agreed(caps: Caps | None, lookup: object, tombstone: object, redispatch: Window | None) -> Caps:
    if caps is None:
        return Caps(redispatch, "none" if lookup is None else "eventual", tombstone is not None)
    if (caps.lookup != "none") != (lookup is not None) or caps.tombstone != (tombstone is not None):
        raise InvalidArgument(f"{caps} and the functions given for lookup and tombstone do not agree. Nothing was done.")
    if redispatch is not None and caps.redispatch != redispatch:
        raise InvalidArgument("redispatch stands in caps and beside it. Nothing was done. Give it once.")
    return caps


# --- what they said ----------------------------------------------------------------------------------------------------------


def _reply(value: object, who: str) -> Reply:
    if isinstance(value, (Succeeded, NotExecuted, Unknown)):
        return value
    if isinstance(value, (Found, StillRunning, NotFound, Unavailable)):
        return Unknown(f"{who} returned {value!r}, which is an answer to a lookup and no outcome of an action")
    return Succeeded(value)


def _is_answer(value: object) -> TypeGuard[Answer]:
    return isinstance(value, (Found, StillRunning, NotFound, NotExecuted, Unavailable))


def _answer(value: object, what: str) -> Answer:
    if value is None:
        return NotFound(f"{what} found nothing")
    if _is_answer(value):
        return value
    return Unavailable(f"{what} returned {type(value).__name__}; it has to return Found(…), None, or another answer")


def _asked(function: Callable[[Dispatch], object], dispatch: Dispatch, what: str) -> Answer:
    try:
        value = function(dispatch)
    except Exception as exc:
        return Unavailable(f"{what} raised {type(exc).__qualname__}: {exc}")
    if inspect.isawaitable(value):
        _drop(value)
        return Unavailable(f"{what} is async: use the async verbs of the ledger")
    return _answer(value, what)


async def _aasked(function: Callable[[Dispatch], object], dispatch: Dispatch, what: str) -> Answer:
    try:
        value: Any = function(dispatch)
        found: object = await value
    except Exception as exc:
        return Unavailable(f"{what} raised {type(exc).__qualname__}: {exc}")
    return _answer(found, what)


def _final(answer: Answer) -> Found | StillRunning | NotExecuted | Unavailable:
    """A tombstone that found nothing has achieved nothing."""
    return Unavailable(answer.detail) if isinstance(answer, NotFound) else answer


def _drop(value: Awaitable[object]) -> None:
    """End a coroutine that nobody will await."""
    if inspect.iscoroutine(value):
        value.close()
