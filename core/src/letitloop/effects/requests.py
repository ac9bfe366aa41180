"""From what a user passes to ``run`` to what the machine decides about: checked, encoded, fingerprinted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from letitloop.codecs.digest import sha256
from letitloop.effects.authority import LARGEST, amount_of, seconds
from letitloop.effects.intent import Redacted, Row
from letitloop.effects.intents import Wanted
from letitloop.effects.machine import Request
from letitloop.effects.plans import Action, run_plan
from letitloop.effects.said import secrets_of
from letitloop.effects.vault import Unread
from letitloop.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, Literal, TypedDict

    from letitloop.effects.authority import Approval, Limit
    from letitloop.effects.intent import Ticket
    from letitloop.effects.ledger import Ledger
    from letitloop.effects.plans import Plan
    from letitloop.effects.provider import Provider
    from letitloop.effects.vault import Vault

    class RunOptions(TypedDict, total=False):
        """The options of :meth:`letitloop.Ledger.run`, which describes them."""

        operation: str | None
        recover: Literal["block", "reconcile", "resend"]
        redact: Collection[str]
        payload: Collection[str] | None
        limit: Limit | None
        block_group_on: Literal["UNKNOWN"] | None
        approval: Approval | None
        compensates: tuple[str, str] | None
        ticket: Ticket | str | None
        retry: Collection[str]
        max_attempts: int


__all__ = ["IntentCall", "check_options", "check_provider", "checked_name", "make_call", "retry_plan"]

_LONGEST = 512  # characters
_RECOVER = ("block", "reconcile", "resend")
_KINDS = frozenset(("not_sent", "rejected", "tombstoned"))
_OPTIONS = frozenset("operation recover redact payload limit block_group_on approval compensates ticket retry max_attempts".split())


class IntentCall(NamedTuple):
    """One call of ``run``: who acts, what is asked, and what an open outcome is met with."""

    action: Action
    request: Request
    recover: str

    @property
    def where(self) -> tuple[str, str]:
        """The intent's identity."""
        return self.request.fresh.where

    def begun_in(self, run: str, step: str) -> IntentCall:
        """Return the same call, with the run and the step that it is made in."""
        fresh = self.request.fresh._replace(run_id=run, step_key=step)
        return self._replace(request=self.request._replace(fresh=fresh))

    def plan(self) -> Plan:
        """Return the plan that carries it out."""
        return run_plan(self.action, self.request, self.recover)


def checked_name(name: str, what: str, longest: int = _LONGEST) -> str:
    """Return a namespace, key or other name.

    Raises:
        InvalidArgument: it is no text of 1 to so many characters, or has a zero character.
    """
    if not isinstance(name, str) or not 0 < len(name) <= longest or "\0" in name:  # type: ignore[redundant-expr]  # pyright: ignore[reportUnnecessaryIsInstance]  # users pass anything
        raise InvalidArgument(
            f"{what} {name!r:.80} has to be a text of 1 to {longest} characters, without a zero character. Nothing was recorded."
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} {name!r:.80} has half a character in it (a lone surrogate). Nothing was recorded.") from None
    return name


def make_call(
    ledger: Ledger, namespace: str, key: str, provider: Provider, arguments: Mapping[str, Any], options: RunOptions
) -> IntentCall:
    """Check and encode what ``run`` was given.

    Raises:
        InvalidArgument: an option means nothing.
        UnencodableError: the arguments cannot be recorded.
        NotAuthorized: the ticket does not allow the action.
        Exception: the provider's own, from ``validate``.
    """
    _check(namespace, key, arguments, options)
    check_provider(provider, "run")
    operation = checked_name(options.get("operation") or _operation(provider, arguments), "operation")
    provider.validate(operation, arguments)
    redact, payload = options.get("redact", ()), options.get("payload")
    limit, approval = options.get("limit"), options.get("approval")
    compensates, ticket = options.get("compensates"), options.get("ticket")
    salt = ledger.intents.salt() if redact else b""
    codecs = ledger.vault.codecs
    stored = {
        name: Redacted(_hash(ledger.vault, salt, name, value)) if name in redact else value for name, value in arguments.items()
    }
    # a redacted argument always counts: when the action is sent again, the caller's is taken for the recorded one
    counted = {name: arguments[name] for name in arguments if payload is None or name in payload or name in redact}
    fresh = Row(
        namespace=namespace,
        key=key,
        state="",
        attempt=1,
        epoch=0,
        sends=0,
        operation=operation,
        provider=checked_name(provider.name, "the provider's name"),
        identity=checked_name(provider.identity(), "the provider's identity", 4096),
        arguments=ledger.vault.encode(stored, path="arguments"),
        payload=_payload(operation, counted, codecs.fingerprint((), counted)),
        created=0.0,
        updated=0.0,
        compensates=None if compensates is None else "\0".join(compensates),
        ticket=None if ticket is None else ledger.check(ticket, operation, arguments),
        **_limits(limit, arguments),
        **_approval(approval),
    )
    request = Request(
        fresh=fresh,
        caps=provider.caps,
        retry=frozenset(options.get("retry", ("not_sent",))),
        max_attempts=options.get("max_attempts", 3),
        needs_approval=approval is not None and approval.needed(arguments),
        block_on_unknown=options.get("block_group_on", "UNKNOWN") is not None,
        differing=partial(_differing, ledger.vault, salt, counted, payload),
    )
    wanted = Wanted(namespace, key, fresh.group_key, fresh.compensates, fresh.ticket, holder=object())
    secrets = secrets_of(arguments, stored) if redact else ()
    action = Action(wanted, provider, ledger.vault, arguments, fresh.arguments, secrets, ledger.typed_place)
    return IntentCall(action, request, options.get("recover", "reconcile"))


def check_provider(provider: object, what: str) -> None:
    """Refuse what is no provider.

    Raises:
        InvalidArgument: it is none.
    """
    acts = hasattr(provider, "execute") or hasattr(provider, "aexecute")
    if isinstance(provider, type) or not (acts and hasattr(provider, "name") and hasattr(provider, "validate")):
        shown = getattr(provider, "__name__", None) or repr(provider)
        raise InvalidArgument(
            f"{what}(provider={shown:.80}): it is no provider, which has a name, validate() and execute(). A plain function is "
            "made one by letitloop.effects.providers.FunctionProvider(fn, identity=…). Nothing was done."
        )


def _check(namespace: str, key: str, arguments: Mapping[str, Any], options: RunOptions) -> None:
    checked_name(namespace, "namespace")
    checked_name(key, "key")
    if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # users pass anything
        raise InvalidArgument(f"run(arguments={arguments!r:.80}): it is a mapping of names to values. Nothing was recorded.")
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise TypeError(f"run() got an unexpected keyword argument {min(unknown)!r}")
    if any(not isinstance(name, str) for name in arguments):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument("run(arguments=…): the names of arguments are texts. Nothing was recorded.")
    check_options(options, "run")
    for name, names in (("redact", options.get("redact")), ("payload", options.get("payload"))):
        if isinstance(names, str) or (names and not arguments.keys() >= set(names)):
            raise InvalidArgument(f"run({name}={names!r}): it is a collection of names of arguments. Nothing was recorded.")
    compensates = options.get("compensates")
    if compensates is not None:
        if not isinstance(compensates, tuple) or len(compensates) != 2:  # type: ignore[redundant-expr]  # pyright: ignore[reportUnnecessaryIsInstance]  # the same
            raise InvalidArgument(f"run(compensates={compensates!r:.80}): it is a (namespace, key). Nothing was recorded.")
        for part in compensates:
            checked_name(part, "compensates=")


def check_options(options: RunOptions, what: str) -> None:
    """Check the options that mean something by themselves.

    Raises:
        InvalidArgument: one means nothing.
    """
    recover, retry = options.get("recover", "reconcile"), options.get("retry", ())
    if recover not in _RECOVER:
        raise InvalidArgument(f"{what}(recover={recover!r}): it is 'block', 'reconcile' or 'resend'. Nothing was recorded.")
    if isinstance(retry, str) or not _KINDS.issuperset(retry):
        raise InvalidArgument(f"{what}(retry={retry!r}): it is a collection of {', '.join(sorted(_KINDS))}. Nothing was recorded.")
    if options.get("block_group_on", "UNKNOWN") not in ("UNKNOWN", None):
        raise InvalidArgument(f"{what}(block_group_on=…): it is 'UNKNOWN' or None. Nothing was recorded.")
    if options.get("max_attempts", 3) < 1:
        raise InvalidArgument(f"{what}(max_attempts=…): it is at least 1. Nothing was recorded.")


def _operation(provider: Provider, arguments: Mapping[str, Any]) -> str:
    named = arguments.get("operation")
    return named if isinstance(named, str) and named else provider.name


def _limits(limit: Limit | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    if limit is None:
        return {}
    found: dict[str, Any] = {"group_key": checked_name(limit.group, "group"), "max_intents": limit.max_intents}
    if limit.max_sum is not None:
        field, bound = limit.max_sum
        found["amount"] = amount_of(arguments, field)
        found["max_sum"] = bound if isinstance(bound, int) else bound(arguments)
    for name in ("max_intents", "max_sum"):
        if not isinstance(found.get(name, 0) or 0, int) or not 0 <= (found.get(name) or 0) <= LARGEST:
            raise InvalidArgument(f"Limit({name}={found[name]!r}): it is a whole number from 0 to 2**63 - 1. Nothing was recorded.")
    return found


def _approval(approval: Approval | None) -> dict[str, Any]:
    return {} if approval is None or approval.ttl is None else {"approval_ttl": seconds(approval.ttl)}


# --- what must be the same in a repeat ---------------------------------------------------------------------------------------


def _payload(operation: str, counted: Mapping[str, Any], fingerprint: bytes) -> bytes:
    """Return the hash of what must be the same: the operation, the arguments' names, and their fingerprint."""
    text = "\0".join(("lil1", operation, *sorted(counted))).encode("utf-8", "surrogatepass")
    return sha256(text + b"\0" + fingerprint).digest()


def _hash(vault: Vault, salt: bytes, name: str, value: object) -> str:
    fingerprint = vault.codecs.fingerprint((), {name: value})
    return sha256(salt + fingerprint).hexdigest()


def _differing(vault: Vault, salt: bytes, counted: Mapping[str, Any], payload: Collection[str] | None, row: Row) -> tuple[str, ...]:
    """Name the arguments that are recorded otherwise, comparing hashes."""
    recorded: Any = vault.read(row.arguments)
    if isinstance(recorded, Unread):
        return ()
    counts = [name for name, value in recorded.items() if payload is None or name in payload or isinstance(value, Redacted)]
    names = dict.fromkeys([*counted, *counts])
    fingerprint = vault.codecs.fingerprint
    different: list[str] = []
    for name in names:
        if name not in recorded or name not in counted:
            different.append(name)
            continue
        before, now = recorded[name], counted[name]
        if isinstance(before, Redacted):
            same = before.sha256 == _hash(vault, salt, name, now)
        else:
            same = fingerprint((before,), {}) == fingerprint((now,), {})
        if not same:
            different.append(name)
    return tuple(sorted(different))


def retry_plan(action: Action, row: Row) -> Plan:
    """Return the plan of one more attempt of a failed intent, from what the ledger holds of it.

    Raises:
        InvalidArgument: arguments that the ledger keeps as hashes alone are needed.
    """
    if not action.complete(row):
        raise InvalidArgument(
            f"intent {row.key!r} of {row.namespace!r} keeps arguments as hashes alone: its attempt is allowed, and run() with all "
            "arguments makes it. Nothing was sent."
        )
    return run_plan(action, Request(fresh=row, caps=action.provider.caps), "reconcile")
