"""What a graph of variables has over an earlier one, exactly: a list that grows is recorded once, and not once a step."""

from __future__ import annotations

from typing import Any

from letitloop.codecs import default_codecs
from letitloop.codecs.ext import class_of

__all__ = ["OUTPUT", "Graphs"]

OUTPUT = "o:"
"""What stands for a step's value among the variables of a graph."""

_LONG = 64


class Graphs:
    """The graphs that the log holds by now, by the variables in them: those of one run, in the order of its steps.

    A graph is its nodes and what stands for each variable. On record it is ``["all", nodes, refs]``, or what it has over the last
    one of the same variables: ``["more", changes, nodes, refs, texts]``. A change is ``[n, node]`` for a node that is another one,
    and ``[n, None, items]`` for one that has these items more at its end; the nodes are those that follow. Texts are the ends that
    variables have more; such a variable's ref is None.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[list[Any], dict[str, Any]]] = {}

    def pack(self, nodes: list[Any], refs: dict[str, Any]) -> list[Any]:
        """Return what is recorded of a graph."""
        whole = ["all", nodes, refs]
        known = self._known.get(_variables(refs))
        more = None if known is None else _more(*known, nodes, refs)
        if more is None:
            return whole
        replaced = any(node is not None for _, node, *_ in more[1])
        return whole if replaced and len(default_codecs.encode(more)) >= len(default_codecs.encode(whole)) else more

    def unpack(self, packed: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the graph of which :meth:`pack` gave this, and note it."""
        if packed[0] == "all":
            nodes, refs = packed[1], packed[2]
        else:
            _, changes, tail, refs, texts = packed
            before, former = self._known[_variables(refs)]
            nodes = [*before, *tail]
            for n, node, *items in changes:
                nodes[n] = [*before[n][:-1], [*before[n][-1], *items[0]]] if node is None else node
            refs = {**refs, **{key: former[key] + text for key, text in texts.items()}}
        self._known[_variables(refs)] = nodes, refs
        return nodes, refs


def _variables(refs: dict[str, Any]) -> tuple[str, ...]:
    """Return the variables in a graph; a step's value, which may be one of them, is none."""
    return tuple(sorted(key for key in refs if key != OUTPUT))


def _more(before: list[Any], former: dict[str, Any], nodes: list[Any], refs: dict[str, Any]) -> list[Any] | None:
    if len(nodes) < len(before):
        return None
    changes = [change for n, (old, new) in enumerate(zip(before, nodes, strict=False)) if (change := _change(n, old, new))]
    texts = {
        key: ref[len(former[key]) :]
        for key, ref in refs.items()
        if type(ref) is str and type(old := former.get(key)) is str and len(old) > _LONG and ref.startswith(old)
    }
    return ["more", changes, nodes[len(before) :], {**refs, **dict.fromkeys(texts)}, texts]


def _change(n: int, old: list[Any], new: list[Any]) -> list[Any] | None:
    last: Any = old[-1]
    more: Any = new[-1]
    if len(old) == len(new) and class_of(last) is class_of(more) is list and len(last) < len(more):
        if _same(old, [*new[:-1], more[: len(last)]]):
            return [n, None, more[len(last) :]]
        return [n, new]
    return None if _same(old, new) else [n, new]


def _same(one: Any, other: Any) -> bool:
    """Tell whether two parts of nodes are one; ``True`` is not ``1`` here, nor ``0.0`` ``-0.0``, and a NaN is a NaN."""
    if one is other:
        return True
    cls = class_of(one)
    if cls is not class_of(other):
        return False
    if cls is list:
        return len(one) == len(other) and all(map(_same, one, other))
    if cls in (str, bytes, int):
        return bool(one == other)
    return bool(default_codecs.encode(one) == default_codecs.encode(other))
