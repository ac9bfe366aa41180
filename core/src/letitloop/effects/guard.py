"""``effect``: the guard around a function that acts on the outside world, and the policy that adapters give a tool.

The application says which action a call is (the key, from validated arguments and its own context); a model that calls the
function can choose which order it is about, and never how many times it happens.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import wraps
from typing import Annotated, Any, ForwardRef, TypeVar, get_args, get_origin

from letitloop.effects.authority import Approval, Limit, amount_of, seconds
from letitloop.effects.context import EffectContext, current_context, effect_context, from_context
from letitloop.effects.ledger import Ledger
from letitloop.effects.providers import FunctionProvider
from letitloop.effects.requests import check_options, check_provider, checked_name
from letitloop.effects.templates import Template
from letitloop.errors import GeneratorFunction, InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from typing import Literal, TypeAlias

    from letitloop.effects.provider import Provider
    from letitloop.effects.requests import RunOptions

    Resolver: TypeAlias = Callable[[Any, EffectContext], Any]

__all__ = ["Effect", "Trusted", "effect", "effect_context", "from_context", "register_provider"]

T = TypeVar("T")


class _TrustedMark(str):
    """What :data:`Trusted` annotates a type with; a string, for frameworks that take annotations for descriptions."""

    __slots__ = ()


_TRUSTED = _TrustedMark("supplied by the application")
Trusted = Annotated[T, _TRUSTED]
"""``request_id: Trusted[str]``: a parameter that the application supplies; no model sees it, and none can set it."""

_providers: dict[str, Provider | Callable[[], Provider]] = {}
_made: dict[Callable[[], Provider], Provider] = {}  # by the functions among them


class UnfitArgument(InvalidArgument):
    """An argument that the caller chose makes no action, and another one may; nothing was done."""


def register_provider(name: str, provider: Provider | Callable[[], Provider]) -> None:
    """Let effects, and ``lil ledger``, find a provider by name.

    Args:
        name: what ``effect(provider="…")`` calls it.
        provider: the provider, or a function that makes it when it is first needed.

    Raises:
        InvalidArgument: another provider has the name.
    """
    if _providers.get(name, provider) is not provider:
        raise InvalidArgument(f"register_provider({name!r}): another provider has this name. Nothing was changed.")
    _providers[name] = provider


def find_provider(name: str) -> Provider:
    """Return a registered provider.

    Raises:
        InvalidArgument: there is none of that name.
    """
    found: Any = _providers.get(name)
    if found is None:
        known = ", ".join(sorted(_providers)) or "none"
        raise InvalidArgument(
            f"no provider is registered as {name!r} (registered: {known}). Nothing was recorded. Call register_provider() first."
        )
    if not hasattr(found, "identity"):
        found = _made[found] if found in _made else _made.setdefault(found, found())
    return found  # type: ignore[no-any-return]  # what has an identity is a provider


def effect(
    *,
    key: str,
    provider: Provider | str | None = None,
    scope: str = "default",
    trusted: Mapping[str, Resolver] | None = None,
    model_fields: Collection[str] | None = None,
    limit: Limit | None = None,
    approval: Approval | None = None,
    ledger: Ledger | None = None,
    ticket: str | None = None,
    payload: Collection[str] | None = None,
    redact: Collection[str] = (),
    recover: Literal["block", "reconcile", "resend"] = "reconcile",
    block_group_on: Literal["UNKNOWN"] | None = "UNKNOWN",
    retry: Collection[str] = ("not_sent",),
    max_attempts: int = 3,
) -> Effect:
    """Guard a function so that each action it stands for happens once, whoever calls it how often.

    The provider acts, with the function's arguments; without a provider the function itself does, and what it raises means that
    the outcome is unknown. Parameters annotated :data:`Trusted` are taken from :func:`effect_context`, and are not part of the
    signature that a model sees. The result is a decorator, and the policy that an adapter gives to a tool.

    Args:
        key: which action a call is, a template over the arguments: ``"refund/{order_id}/{request_id}"``.
        provider: who acts, or the name it is registered under; None: the function itself.
        scope: the namespace, a template over the application's context: ``"shop/{ctx.tenant}"``.
        trusted: for a parameter, a function of what the caller passed and the context that returns the canonical value or raises
            :class:`NotAuthorized`; :func:`from_context` takes it from the context.
        model_fields: which fields of the key a model may choose; each of them must be bounded by ``limit``. Left out, that is
            not checked.
        limit: what all actions of a group may come to; its group is a template as ``key`` is.
        approval: whether somebody has to approve it first.
        ledger: where it is recorded; the store's own ledger by default.
        ticket: the parameter that holds a ticket of :meth:`Ledger.authorize`.
        payload: which arguments must be the same in a repeat; all by default.
        redact: arguments of which the ledger keeps a hash alone.
        recover: as :meth:`Ledger.run`.
        block_group_on: as :meth:`Ledger.run`.
        retry: as :meth:`Ledger.run`.
        max_attempts: as :meth:`Ledger.run`.

    Returns:
        A decorator.

    Raises:
        InvalidArgument: the key has no field, names what is new in every attempt, or a field that a model may choose without bound.

    Example:
        >>> from letitloop import Ledger, MemoryStore, Trusted, effect, effect_context
        >>> sent = []
        >>> @effect(key="mail/{to}/{campaign}", ledger=Ledger(store=MemoryStore()))
        ... def send_mail(to: str, text: str, *, campaign: Trusted[str]) -> str:
        ...     sent.append(to)
        ...     return f"mailed {to}"
        >>> with effect_context(campaign="spring"):
        ...     send_mail("ada@example.org", "Hello"), send_mail("ada@example.org", "Hello")
        ('mailed ada@example.org', 'mailed ada@example.org')
        >>> sent
        ['ada@example.org']
    """
    options: RunOptions = {
        "payload": payload,
        "redact": redact,
        "recover": recover,
        "block_group_on": block_group_on,
        "retry": retry,
        "max_attempts": max_attempts,
    }
    return Effect(key, provider, scope, dict(trusted or {}), model_fields, limit, approval, ledger, ticket, options)


class Effect:
    """The policy of one kind of action; made by :func:`effect`.

    Attributes:
        key: the template of the key.
    """

    def __init__(
        self,
        key: str,
        provider: Provider | str | None,
        scope: str,
        trusted: dict[str, Resolver],
        model_fields: Collection[str] | None,
        limit: Limit | None,
        approval: Approval | None,
        ledger: Ledger | None,
        ticket: str | None,
        options: RunOptions,
    ) -> None:
        _check_kinds(provider, limit, approval, ledger)
        self.key = Template(key, "key")
        self._scope = Template(scope, "scope")
        self._group = None if limit is None else Template(limit.group, "limit group")
        self._provider = provider
        self._trusted = trusted
        self._limit = limit
        self._approval = approval
        self._ledger = ledger or Ledger()
        self._ticket = ticket
        self._options = options
        self._model_fields = model_fields
        if not self.key.fields:
            raise InvalidArgument(
                f"effect(key={key!r}): without a field every call would be one and the same action. Nothing was done."
            )
        if self._scope.fields:
            raise InvalidArgument(
                f"effect(scope={scope!r}): a namespace is the application's, so its fields are ctx.NAME. Nothing was done."
            )
        if approval is not None and approval.ttl is not None:
            seconds(approval.ttl)
        if limit is not None and limit.max_intents is None and limit.max_sum is None:
            raise InvalidArgument("effect(limit=Limit(…)): it bounds nothing; give max_intents or max_sum. Nothing was done.")
        check_options(options, "effect")

    # --- as a decorator ------------------------------------------------------------------------------------------------------

    def __call__(self, fn: Callable[..., T]) -> Callable[..., T]:
        """Return the function, guarded; its trusted parameters are gone from its signature."""
        bound = self.bind(fn)
        if inspect.iscoroutinefunction(fn):

            @wraps(fn)
            async def aguarded(*args: Any, **kwargs: Any) -> Any:
                return await bound.acall(*args, **kwargs)

            guarded: Any = aguarded
        else:

            @wraps(fn)
            def call_guarded(*args: Any, **kwargs: Any) -> Any:
                return bound.call(*args, **kwargs)

            guarded = call_guarded
        guarded.__signature__ = bound.visible
        guarded.__annotations__ = {name: kind for name, kind in fn.__annotations__.items() if name not in bound.hidden}
        guarded.effect = self
        return guarded  # type: ignore[no-any-return]  # a function of what fn returns

    def bind(self, fn: Callable[..., Any], name: str | None = None) -> BoundEffect:
        """Return this policy for one function or tool.

        Args:
            fn: whose parameters and, without a provider, whose code it is.
            name: the operation; the function's name by default.

        Raises:
            InvalidArgument: the key needs what is no parameter, or the parameters cannot be named.
        """
        if not callable(fn):
            raise InvalidArgument(f"effect(…) was given {type(fn).__name__}, which is no function. Nothing was done.")
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise GeneratorFunction("effect(…): what a generator function yields is no outcome of an action. Nothing was done.")
        return BoundEffect(self, fn, name or str(getattr(fn, "__name__", type(fn).__name__)))


def _check_kinds(provider: object, limit: object, approval: object, ledger: object) -> None:
    """Refuse options of other kinds; a string names a registered provider.

    Raises:
        InvalidArgument: one is.
    """
    if provider is not None and not isinstance(provider, str):
        check_provider(provider, "effect")
    for name, value, kind in (("limit", limit, Limit), ("approval", approval, Approval), ("ledger", ledger, Ledger)):
        if value is not None and not isinstance(value, kind):
            raise InvalidArgument(f"effect({name}={value!r:.80}): it is a letitloop.{kind.__name__}. Nothing was done.")


class BoundEffect:
    """An effect policy for one function: which parameters it has, which of them no model sees.

    Attributes:
        operation: what it is called in the ledger.
        visible: the signature without trusted parameters.
        hidden: the names of the trusted parameters.
    """

    def __init__(self, policy: Effect, fn: Callable[..., Any], operation: str) -> None:
        self._policy = policy
        self._fn = fn
        self.operation = operation
        signature = inspect.signature(fn)
        for one in signature.parameters.values():
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
                raise InvalidArgument(
                    f"effect on {operation}: arguments are recorded by name, so *args, **kwargs and positional-only ones are "
                    f"refused ({one}). Nothing was done."
                )
        names = list(signature.parameters)
        self._receiver = names[0] if names[:1] in (["self"], ["cls"]) else None
        self._parameters = {name: one for name, one in signature.parameters.items() if name != self._receiver}
        self.hidden = frozenset(_trusted_names(fn, names))
        self.visible = signature.replace(parameters=[one for name, one in signature.parameters.items() if name not in self.hidden])
        needed = {*policy.key.fields, *policy._trusted, *(policy._group.fields if policy._group else ())}
        needed |= {*(policy._options.get("redact") or ()), *(policy._options.get("payload") or ())}
        missing = (needed | {policy._ticket} if policy._ticket is not None else needed) - self._parameters.keys()
        if missing:
            raise InvalidArgument(f"effect on {operation}: {', '.join(sorted(missing))} is no parameter of it. Nothing was done.")
        if policy._model_fields is not None:
            self._check_fields(set(policy._model_fields))

    def _check_fields(self, chosen: set[str]) -> None:
        """Hold the fields of the key that a model may choose against the limit."""
        policy = self._policy
        fields = set(policy.key.fields) - policy._trusted.keys() - self.hidden
        bounded = policy._group is not None and not set(policy._group.fields) >= set(policy.key.fields)
        if fields - chosen:
            raise InvalidArgument(
                f"effect on {self.operation}: {', '.join(sorted(fields - chosen))} of its key is neither trusted nor in "
                "model_fields=. Nothing was done."
            )
        if fields and not bounded:
            raise InvalidArgument(
                f"effect on {self.operation}: a model may choose {', '.join(sorted(fields))} of its key, and no limit= of a wider "
                "group says how many times. Nothing was done."
            )

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Carry out the action that a call stands for; errors are those of :meth:`Ledger.run`."""
        (namespace, key, provider, arguments), options = self._prepare(args, kwargs)
        return self._policy._ledger.run(namespace, key, provider, arguments, **options)

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Do as :meth:`call`, in async code."""
        (namespace, key, provider, arguments), options = self._prepare(args, kwargs)
        return await self._policy._ledger.arun(namespace, key, provider, arguments, **options)

    def _prepare(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[str, str, Provider, dict[str, Any]], RunOptions]:
        policy, context = self._policy, current_context()
        shown = self.visible.bind(*args, **{name: value for name, value in kwargs.items() if name not in self.hidden})
        shown.apply_defaults()
        fn = self._fn
        if self._receiver is not None:  # whose method it is, is no argument of the action
            fn = fn.__get__(shown.arguments.pop(self._receiver))
        arguments = self._resolved(shown.arguments, context)
        options: RunOptions = {**policy._options, "operation": self.operation, "approval": policy._approval}
        if policy._limit is not None and policy._group is not None:
            self._check_amount(policy._limit, arguments)
            options["limit"] = replace(policy._limit, group=self._text(policy._group, "group", arguments, context))
        if policy._ticket is not None:
            options["ticket"] = arguments[policy._ticket] = str(arguments[policy._ticket])
        namespace, key = policy._scope.render(arguments, context), self._text(policy.key, "key", arguments, context)
        return (namespace, key, self._provider(fn), arguments), options

    def _chosen(self, names: Iterable[str]) -> list[str]:
        """Return those of the arguments that the caller chooses, and the application does not vouch for."""
        return [name for name in names if name in self._parameters and name not in {*self.hidden, *self._policy._trusted}]

    def _text(self, template: Template, what: str, arguments: Mapping[str, Any], context: EffectContext) -> str:
        """Return the key, or the group, of these arguments.

        Raises:
            UnfitArgument: what the caller chose makes none.
            InvalidArgument: what the application says makes none.
        """
        chosen = self._chosen(template.fields)
        try:
            template.check({name: arguments[name] for name in chosen})
        except InvalidArgument as exc:
            raise UnfitArgument(str(exc)) from None
        text = template.render(arguments, context)
        try:
            return checked_name(text, what)
        except InvalidArgument:
            if not chosen:
                raise
            raise UnfitArgument(  # without the text: what the application says of it is not the caller's
                f"the {what} of an action has to be a text of 1 to 512 characters, without a zero character and without half "
                f"characters; {', '.join(map(repr, chosen))} made it something else. Nothing was recorded."
            ) from None

    def _check_amount(self, limit: Limit, arguments: Mapping[str, Any]) -> None:
        """Refuse an amount that the caller chose and that cannot be summed up.

        Raises:
            UnfitArgument: it is none.
        """
        if limit.max_sum is None or not self._chosen([limit.max_sum[0]]):
            return
        try:
            amount_of(arguments, limit.max_sum[0])
        except InvalidArgument as exc:
            raise UnfitArgument(str(exc)) from None

    def _resolved(self, shown: Mapping[str, Any], context: EffectContext) -> dict[str, Any]:
        """Put what the application vouches for in place of what the caller said."""
        arguments: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            resolver = self._policy._trusted.get(name)
            if resolver is None and name not in self.hidden:
                arguments[name] = shown[name]
            elif resolver is not None and resolver is not from_context:
                arguments[name] = resolver(shown.get(name), context)
            elif name in context or parameter.default is parameter.empty:
                arguments[name] = getattr(context, name)
            else:
                arguments[name] = parameter.default
        return arguments

    def _provider(self, fn: Callable[..., Any]) -> Provider:
        provider = self._policy._provider
        if isinstance(provider, str):
            return find_provider(provider)
        if provider is None:
            return FunctionProvider(fn, identity=f"{fn.__module__}:{fn.__qualname__}", name="function")
        return provider


def _trusted_names(fn: Callable[..., Any], names: list[str]) -> list[str]:
    """Return the parameters annotated as Trusted, each looked at by itself: one that cannot be resolved hides no other."""
    plain = inspect.unwrap(fn)
    space = getattr(plain, "__globals__", {})
    return [name for name in names if _is_trusted(getattr(plain, "__annotations__", {}).get(name), space)]


def _is_trusted(hint: object, space: dict[str, Any]) -> bool:
    if isinstance(hint, ForwardRef):
        hint = hint.__forward_arg__
    if isinstance(hint, str):
        try:
            return _is_trusted(eval(hint, dict(space)), space)  # noqa: S307 - the program's own annotation, as typing does
        except Exception:  # a name that exists for type checkers alone: look at the words
            return "Trusted[" in hint.replace(" ", "")
    if get_origin(hint) is Annotated and any(one is _TRUSTED for one in get_args(hint)[1:]):
        return True
    return any(_is_trusted(one, space) for one in get_args(hint) if one is not hint)
