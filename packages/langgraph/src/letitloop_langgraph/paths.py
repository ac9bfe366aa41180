"""The paths of tasks: which keys the steps of a task have in its thread's log."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from letitloop.runs.identity import escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["name_of", "path_of", "where_in"]

_LONGEST = 512  # characters of a part of a key


def path_of(parts: Iterable[str]) -> bytes:
    """Return the path of these scopes, each in the other.

    >>> path_of(["outer:1", "inner:2"])
    b'outer:1/inner:2/'
    """
    return ("/".join(escape(_fitting(part), "node") for part in parts) + "/").encode()


def _fitting(part: str) -> str:
    """Return a part of a path as it fits in a key, as different from others as it was: a digest stands for what is cut off.

    >>> _fitting("node:1"), len(_fitting("n" * 600 + ":1")), _fitting("n" * 600 + ":1") == _fitting("n" * 600 + ":2")
    ('node:1', 512, False)
    """
    if len(part) <= _LONGEST:
        return part or "-"
    digest = blake2b(part.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{part[: _LONGEST - len(digest) - 1]}~{digest}"


def name_of(part: str) -> str:
    """Return a node's name from its part of a namespace, which ends with the task's id.

    >>> name_of("node:1")
    'node'
    """
    return part.partition(":")[0]


def where_in(metadata: Mapping[str, Any]) -> str:
    """Return the step and the position at which LangGraph's metadata say that a task is: the same in every life of the program.

    >>> where_in({"langgraph_step": 2, "langgraph_path": ("__pregel_push", ("__pregel_pull", "a"), 0, True)})
    '2 (a) 0 True'
    """
    return f"{metadata.get('langgraph_step')} {_position(metadata.get('langgraph_path', ()))}"


def _position(path: Sequence[Any]) -> str:
    return " ".join(f"({_position(part)})" if isinstance(part, (tuple, list)) else str(part) for part in path[1:])
