"""What code of an agent refers to: by name, and through the functions and classes that it defined before."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from letitloop.codecs.ext import class_of
from letitloop_smolagents._graph import BASE, code_class, source_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from letitloop_smolagents._graph import World

__all__ = ["Reach", "look"]


@dataclass
class Reach:
    """What a piece of code refers to.

    Attributes:
        names: every name in it, and in the functions and classes that it refers to.
        outside: what reaches outside other than by tools, for messages.
        imports: by name, what it imports from which module, under which name there.
        random: whether it refers to the module ``random``.
        tools: whether it refers to a tool or a managed agent.
    """

    names: set[str] = field(default_factory=set[str])
    outside: set[str] = field(default_factory=set[str])
    imports: dict[str, tuple[str, str]] = field(default_factory=dict[str, "tuple[str, str]"])
    random: bool = False
    tools: bool = False


def look(code: str, world: World, *, outside: Collection[str], tools: Collection[str]) -> Reach:
    """Find what a piece of code refers to.

    Args:
        code: the code.
        world: the variables it will be executed with.
        outside: names that reach outside: functions that were added, variables that hold modules, connections, data frames.
        tools: the names of tools and managed agents.
    """
    reach = Reach()
    try:
        pending: list[ast.AST] = [ast.parse(code)]
    except (SyntaxError, ValueError):
        return reach  # it will not be executed
    while pending:
        for node in ast.walk(pending.pop()):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                _imports(node, reach)
            elif isinstance(node, ast.Name) and node.id not in reach.names:
                reach.names.add(node.id)
                pending += _behind(node.id, world)
    reach.outside |= reach.names & set(outside)
    reach.tools = bool(reach.names & set(tools))
    reach.random |= any(_is_random(world, name) for name in reach.names)
    return reach


def _imports(node: ast.Import | ast.ImportFrom, reach: Reach) -> None:
    if isinstance(node, ast.ImportFrom):
        modules = [node.module or ""]
        reach.imports.update({alias.asname or alias.name: (modules[0], alias.name) for alias in node.names})
    else:
        modules = [alias.name for alias in node.names]
    for module in modules:
        reach.random |= module.partition(".")[0] == "random"
        if module.partition(".")[0] not in BASE:
            reach.outside.add(module)


def _behind(name: str, world: World) -> list[ast.AST]:
    """Return the syntax trees of what a name stands for, if code defined it."""
    found: list[ast.AST] = []
    for value in (world.state.get(name), world.custom_tools.get(name)):
        cls: Any = value if code_class(value) else class_of(value)
        members: Any = cls.__dict__.values() if code_class(cls) else ()
        found += [tree for one in (value, *members) if (tree := source_of(one)) is not None]
    return found


def _is_random(world: World, name: str) -> bool:
    value = world.state.get(name)
    return getattr(value, "__name__", "") == "random" or world.imports.get(name, ("", ""))[0] == "random"
