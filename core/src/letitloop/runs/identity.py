"""What a run and a step are called. Pure.

A run is a goal and the arguments of the call; its log's name is ``<slug of the goal>-<hash of both>``.

A step's key is its scope's path, its name, and its ordinal: how often that name was reserved in that scope. Keys are readable,
since people meet them in ``lil show`` and give them to ``lil rewind``::

    fetch            the first step "fetch" of the run
    fetch#2          the second
    branch-1/fetch   the first "fetch" in the first scope "branch-1"
    plan>ask#3       the third "ask" called inside the step "plan"
    plan~1f0c33ab>ask    "ask" inside the step "plan" that was called with arguments of that fingerprint; ``~1f0c33ab#2>``
                     inside the second call of "plan" with the same ones

``% / # > ~`` in a name are written ``%25 %2F %23 %3E %7E``.
"""

from __future__ import annotations

import sys
from functools import partial

from letitloop.codecs.digest import sha256
from letitloop.errors import AsyncMisuse, GeneratorFunction, InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

    from letitloop.codecs import Codecs

__all__ = [
    "ASYNC",
    "PLAIN",
    "SPECIAL",
    "argument_names",
    "base_of",
    "bound",
    "call_kind",
    "enclosing",
    "escape",
    "function_goal",
    "inner_prefix",
    "is_inside",
    "is_part",
    "run_name",
    "source_fingerprint",
    "step_key",
    "step_kind",
    "unwrapped",
]

PLAIN = 0
ASYNC = 1
_GENERATOR = 2

_CO_GENERATOR = 0x20
_CO_COROUTINE = 0x80
_CO_ITERABLE_COROUTINE = 0x100
_CO_ASYNC_GENERATOR = 0x200
SPECIAL = _CO_GENERATOR | _CO_COROUTINE | _CO_ITERABLE_COROUTINE | _CO_ASYNC_GENERATOR

_PLAIN_VALUES = (str, bytes, int, float, complex, tuple, frozenset)
_MAX_NAME = 512
_ESCAPES = {"%": "%25", "/": "%2F", "#": "%23", ">": "%3E", "~": "%7E"}
_SLUG = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")


def escape(name: object, what: str) -> str:
    """Check a step's or scope's name and write it as a part of a key.

    Args:
        name: the name as the user gave it.
        what: what is named, for the message.

    Raises:
        InvalidArgument: it is no string, empty, longer than 512 characters, or has a lone surrogate.

    Example:
        >>> escape("fetch", "step"), escape("a/b#2", "step")
        ('fetch', 'a%2Fb%232')
    """
    if not isinstance(name, str):
        raise InvalidArgument(f"a {what}'s name is a string, not {type(name).__name__} ({name!r}). Nothing was run.")
    if not 0 < len(name) <= _MAX_NAME:
        raise InvalidArgument(f"a {what}'s name has 1 to {_MAX_NAME} characters; this one has {len(name)}. Nothing was run.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"a {what}'s name must be text that UTF-8 can hold; {name!r} has a lone surrogate. Nothing was run."
        ) from None
    if any(mark in name for mark in _ESCAPES):
        return "".join(_ESCAPES.get(char, char) for char in name)
    return name


def step_key(base: bytes, ordinal: int) -> bytes:
    """Return the key of the ``ordinal``-th step of that path and name, counted from 1."""
    return base if ordinal == 1 else b"%b#%d" % (base, ordinal)


def base_of(key: bytes) -> bytes:
    """Return a step's key without its ordinal."""
    cut = max(key.rfind(b"/"), key.rfind(b">")) + 1
    mark = key.find(b"#", cut)
    return key if mark < 0 else key[:mark]


def inner_prefix(base: bytes, fingerprint: bytes, place: int) -> bytes:
    """Return the path of the steps inside a step.

    Args:
        base: the step's key without its ordinal: after a crash calls of one name may come in another order.
        fingerprint: its arguments' fingerprint.
        place: the how-manieth call of that name and fingerprint it is, from 1.
    """
    mark = b"~" + fingerprint[:4].hex().encode() if fingerprint else b""
    return base + mark + (b">" if place == 1 else b"#%d>" % place)


def is_inside(base: bytes, key: bytes) -> bool:
    """Tell whether the step ``key`` was called inside a step of the base ``base``."""
    return key.startswith(base) and key[len(base) : len(base) + 1] in (b">", b"~", b"#") and b">" in key[len(base) :]


def is_part(base: bytes, fingerprint: bytes, key: bytes) -> bool:
    """Tell whether the step ``key`` was called inside the step of that base and fingerprint, whichever of several it is."""
    path, _, _ = inner_prefix(base, fingerprint, 1).rpartition(b">")
    rest = key.removeprefix(path)
    return rest != key and (rest[:1] == b">" or (rest[:1] == b"#" and b">" in rest))


def enclosing(prefix: bytes, key: bytes) -> bool:
    """Tell whether the scope of the step ``key`` is the scope ``prefix`` or lies around it.

    Args:
        prefix: a scope's path with its separator at the end; empty for the root.
        key: a step's key.
    """
    cut = max(key.rfind(b"/"), key.rfind(b">")) + 1
    return prefix.startswith(key[:cut])


def function_goal(fn: Callable[..., object]) -> str:
    """Return the goal of a function that was given none: ``module:qualname``, with the script's stem for ``__main__``."""
    fn = unwrapped(fn, (), {})[0]
    module = getattr(fn, "__module__", None) or "unknown"
    if module in ("__main__", "__mp_main__"):  # the second in a child that multiprocessing spawned
        main = sys.modules.get(module)
        spec = getattr(main, "__spec__", None)
        if spec is not None and spec.name != "__main__" and module == "__main__":
            module = spec.name.removesuffix(".__main__")
        else:
            file = str(getattr(main, "__file__", None) or "interactive").replace("\\", "/")
            folder, _, name = file.rpartition("/")
            if name == "__main__.py":  # a zip application, or a directory that is run
                name = folder.rpartition("/")[2] or name
            module = name.removesuffix(".py").removesuffix(".pyz")
    return f"{module}:{getattr(fn, '__qualname__', type(fn).__qualname__)}"


def run_name(goal: str, arguments: bytes, parent: bytes = b"") -> str:
    """Return the name of a run's log.

    Args:
        goal: the run's goal.
        arguments: the fingerprint of the call's arguments.
        parent: for a run inside a run, what names its place there; empty otherwise.

    Example:
        >>> run_name("Customer sync!", b"")
        'customer-sync-e86ee300a9862c93'
    """
    digest = sha256(b"\0".join((goal.encode("utf-8", "surrogatepass"), arguments, parent))).hexdigest()[:16]
    slug = "".join(char if char in _SLUG else "-" for char in goal.lower())
    slug = "-".join(part for part in slug.split("-") if part)[:60].strip("-")
    return f"{slug or 'run'}-{digest}"


def unwrapped(
    fn: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[Callable[..., object], tuple[object, ...], dict[str, object]]:
    """Look through ``functools.partial`` and methods of plain values (``"{}".format``): what they hold is an argument as well.

    The object of any other method is not: such methods change their object, and a replayed step does not.
    """
    seen: Any = fn
    while isinstance(seen, partial):
        args = (*seen.args, *args)
        kwargs = {**seen.keywords, **kwargs}
        seen = seen.func
    owner: object = getattr(seen, "__self__", None) if isinstance(seen, type(len)) else None
    if type(owner) in _PLAIN_VALUES:
        args = (owner, *args)
    return seen, args, kwargs


def argument_names(fn: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> list[str]:
    """Return a name for each argument of a call, in the order of its fingerprint: positional ones, then keywords sorted.

    Args:
        fn: the function that is called.
        args: the positional arguments.
        kwargs: the keyword arguments.
    """
    code: CodeType | None = getattr(fn, "__code__", None)
    bound_to = 1 if hasattr(fn, "__func__") else 0  # a method's own object is no argument of the call
    names: tuple[str, ...] = () if code is None else code.co_varnames[bound_to : code.co_argcount]
    positional = [names[i] if i < len(names) else f"argument {i + 1}" for i in range(len(args))]
    return positional + sorted(kwargs)


def bound(fn: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object], codecs: Codecs) -> dict[str, object]:
    """Return a call's arguments by name, without those that equal their default.

    So ``f(1)``, ``f(x=1)`` and ``f(1, flag=False)`` with ``flag`` false by default are one run, and a parameter that is added
    with a default leaves the runs under way what they are.
    """
    fn, args, kwargs = unwrapped(fn, args, kwargs)
    code: CodeType | None = getattr(fn, "__code__", None)
    only = 0 if code is None else code.co_posonlyargcount
    names = argument_names(fn, args, {})
    found = {f"/{name}" if i < only else name: value for i, (name, value) in enumerate(zip(names, args, strict=True))}
    found.update(kwargs)
    for name, default in _defaults(fn).items():
        # not ==, to which 1 is True, and which a class may define as it likes
        if name in found and codecs.fingerprint((found[name],), {}) == codecs.fingerprint((default,), {}):
            del found[name]
    return found


def _defaults(fn: Callable[..., object]) -> dict[str, object]:
    code: CodeType | None = getattr(fn, "__code__", None)
    if code is None:
        return {}
    defaults: tuple[object, ...] = getattr(fn, "__defaults__", None) or ()
    first = code.co_argcount - len(defaults)
    named = {
        f"/{code.co_varnames[i]}" if i < code.co_posonlyargcount else code.co_varnames[i]: default
        for i, default in enumerate(defaults, first)
    }
    return named | (getattr(fn, "__kwdefaults__", None) or {})


def call_kind(fn: Callable[..., object]) -> int:
    """Tell whether calling ``fn`` runs it (``PLAIN``) or makes a coroutine (``ASYNC``).

    Looks through ``functools.partial`` and at the ``__call__`` of an object.

    Raises:
        GeneratorFunction: it is a generator function, sync or async.
    """
    seen: Any = fn
    while isinstance(seen, partial):
        seen = seen.func
    code = getattr(seen, "__code__", None)
    if code is None:
        code = getattr(getattr(seen.__class__, "__call__", None), "__code__", None)  # noqa: B004 - its code is wanted
    code = getattr(getattr(seen, "__func__", None), "__code__", code)
    flags: int = getattr(code, "co_flags", 0)
    if not flags & SPECIAL:
        return PLAIN
    if flags & (_CO_COROUTINE | _CO_ITERABLE_COROUTINE):
        return ASYNC
    raise GeneratorFunction(
        f"{getattr(fn, '__qualname__', fn)!s} is a generator function: what it yields cannot be recorded as one value. It was not "
        "run. Return a list, or make each item a step of its own."
    )


def step_kind(fn: Callable[..., object], name: str) -> int:
    """Return a step function's :func:`call_kind`, or refuse what cannot be called.

    Raises:
        InvalidArgument: ``fn`` is not callable.
        AsyncMisuse: ``fn`` is a coroutine: the function was called instead of being given.
        GeneratorFunction: it is a generator function.
    """
    code: CodeType | None = getattr(fn, "__code__", None)
    if code is not None and code.co_flags & SPECIAL in (0, _CO_COROUTINE):
        return ASYNC if code.co_flags & _CO_COROUTINE else PLAIN
    if callable(fn):
        return call_kind(fn)
    escape(name, "step")  # step(fn, x): the name was forgotten
    if hasattr(fn, "__await__"):
        close = getattr(fn, "close", None)
        if close is not None:
            close()  # or Python warns that it was never awaited
        raise AsyncMisuse(
            f"step {name!r} was given a coroutine, not a function: write step({name!r}, fn, x) instead of step({name!r}, fn(x)). "
            "Nothing was run."
        )
    raise InvalidArgument(
        f"step {name!r} was given {type(fn).__name__}, which cannot be called: write step({name!r}, fn, arguments…). "
        "Nothing was run."
    )


def source_fingerprint(fn: Callable[..., object]) -> bytes:
    """Return 8 bytes that change when the function's code does (or the Python version that compiled it)."""
    code: CodeType | None = getattr(fn, "__code__", None)
    if code is None:
        return b""
    digest = sha256()
    pending = [code]
    while pending:
        code = pending.pop()
        digest.update(code.co_code)
        digest.update(repr(code.co_names).encode())
        for const in code.co_consts:
            if hasattr(const, "co_code"):
                pending.append(const)
            elif not isinstance(const, frozenset):  # its order is not that of another process
                digest.update(repr(const).encode("utf-8", "backslashreplace"))
    return digest.digest()[:8]
