"""The variables of an executor: which of them a step changed, what is recorded of them, and setting them as they were."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from letitloop_smolagents._framework import interpreter
from letitloop_smolagents._graph import Freezer, Thawer
from letitloop_smolagents._growth import OUTPUT, Graphs
from letitloop_smolagents._reach import Reach
from letitloop_smolagents._shown import steady
from letitloop_smolagents._world import World

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypedDict

    from typing_extensions import NotRequired

    class Changes(TypedDict):
        """What is recorded of the variables after a step.

        Attributes:
            groups: the variables that it changed, together with those that they share objects with; see :class:`Graphs`.
            digests: of each of these variables, what tells its value from another one.
            deleted: the variables that are gone.
            opaque: the variables that it changed and that cannot be recorded.
            text: the text of its value, where another process would print another one.
        """

        groups: list[Any]
        digests: dict[str, bytes]
        deleted: list[str]
        opaque: list[str]
        text: NotRequired[str]


__all__ = ["Variables", "freeze_random", "names", "random_since", "thaw_random"]

_NUMBERS = 624 * 4  # bytes of a Mersenne Twister's numbers; how many of them were drawn comes after them


@dataclass
class _Mark:
    """What is known of a variable after a step.

    Attributes:
        digest: what tells its value from another one.
        group: the variables that it shares objects with.
        opaques: the identities of what in it cannot be recorded: that may have changed, and look the same.
    """

    digest: bytes
    group: frozenset[str]
    opaques: set[int] = field(default_factory=set[int])


class Variables:
    """The variables of one local executor.

    Args:
        inner: the executor.

    Attributes:
        imports: by name, what its code imported from which module, under which name there.
    """

    def __init__(self, inner: Any) -> None:
        self.imports: dict[str, tuple[str, str]] = {}
        self._inner = inner
        self._marks: dict[str, _Mark] = {}
        self._graphs = Graphs()

    def world(self) -> World:
        """Return what the code's functions refer to, as it is now."""
        inner = self._inner
        tools = dict(inner.static_tools or {})
        if "final_answer" in tools:
            tools["final_answer"] = _ending(tools["final_answer"])
        return World(inner.state, inner.custom_tools, tools, inner.authorized_imports, self.imports)

    def begin_run(self) -> None:
        """Start with a run's first record: what is recorded refers to earlier records of the same run."""
        self._graphs = Graphs()

    def given(self, handed: Iterable[str]) -> None:
        """Note variables that were handed over: no step made them."""
        world = self.world()
        values = {f"s:{name}": world.state[name] for name in handed if name in world.state}
        self._marks.update(_marks({key: _single(world, value) for key, value in values.items()}))

    # --- what changed --------------------------------------------------------------------------------------------------------

    def changes(self, output: Any, reach: Reach, *, final: bool) -> Changes:
        """Return what a step that was just executed changed, as it is recorded."""
        world = self.world()
        values = world.variables()
        if output is not None:
            values[OUTPUT] = output
        singles = {key: _single(world, value) for key, value in values.items()}
        marks = _marks(singles)
        together = {key: mark.group for key, mark in marks.items()}
        before, self._marks = self._marks, {key: mark for key, mark in marks.items() if key != OUTPUT}
        for mark in self._marks.values():
            mark.group = mark.group - {OUTPUT}
        changed = {key for key, mark in marks.items() if _differs(before.get(key), mark, reach)}
        groups: list[Any] = []
        opaque: set[str] = set()
        digests: dict[str, bytes] = {}
        for group in sorted({tuple(sorted(together[key])) for key in changed}):
            freezer, refs = _graph(world, values, list(group), singles)
            if freezer.opaque:
                opaque.update(group)
            else:
                groups.append(self._graphs.pack(freezer.nodes, refs))
                digests.update({key: marks[key].digest for key in refs if key != OUTPUT})
        found: Changes = {
            "groups": groups,
            "digests": digests,
            "deleted": sorted(before.keys() - marks.keys()),
            "opaque": sorted(opaque - {OUTPUT}),
        }
        if not steady(output):
            found["text"] = str(output)
        if OUTPUT in opaque and final:
            found["opaque"].append(OUTPUT)  # the run's result: nothing can stand in for it
        return found

    def all_of_them(self) -> Changes:
        """Return all variables, as it is recorded."""
        self._marks = {}
        return self.changes(None, Reach(), final=False)

    @staticmethod
    def none(output: Any) -> Changes:
        """Return what is recorded where the variables are elsewhere."""
        found: Changes = {"groups": [], "digests": {}, "deleted": [], "opaque": []}
        if not steady(output):
            found["text"] = str(output)
        return found

    def unpack(self, changes: Changes) -> list[Any]:
        """Return the graphs of a record, and note that it is in the log."""
        return [self._graphs.unpack(packed) for packed in changes["groups"]]

    # --- as it was -----------------------------------------------------------------------------------------------------------

    def apply(self, changes: Changes, groups: list[Any], *, executed: bool) -> None:
        """Set the variables that a finished step changed, where executing it again did not make the same ones."""
        world = self.world()
        now = self._look_at(world) if executed else {}
        digests = changes["digests"]
        for key in changes["deleted"]:
            world.drop(key)
        for nodes, refs in groups:
            thawer = Thawer(world, nodes)
            keys = [key for key in refs if key != OUTPUT]
            same = executed and all(key in now and now[key].digest == digests[key] for key in keys)
            for key in keys if not same else ():
                world.put(key, thawer.value(refs[key]))
        if executed:
            self._marks = self._look_at(world)
            return
        for key in changes["deleted"]:
            self._marks.pop(key, None)
        for _, refs in groups:
            group = frozenset(refs) - {OUTPUT}
            self._marks.update({key: _Mark(digests[key], group) for key in group})

    def output(self, changes: Changes, groups: list[Any], again: Any) -> Any:
        """Return the value of a finished step."""
        value = again
        for nodes, refs in groups:
            if OUTPUT in refs:
                ref = refs[OUTPUT]
                value = self._variable(refs, ref) if isinstance(ref, list) else ref
                if value is None and ref is not None:
                    value = Thawer(self.world(), nodes).value(ref)
        return value

    def _variable(self, refs: dict[str, Any], ref: Any) -> Any:
        """Return the variable that is the same object as the output, if there is one."""
        variables = self.world().variables()
        return next((variables.get(key) for key, one in refs.items() if one == ref and key != OUTPUT), None)

    def _look_at(self, world: World) -> dict[str, _Mark]:
        return _marks({key: _single(world, value) for key, value in world.variables().items()})


def names(keys: Iterable[str]) -> str:
    """Return variables as their code calls them."""
    return ", ".join(key[2:] for key in keys if key != OUTPUT)


def _single(world: World, value: Any) -> tuple[Freezer, Any]:
    freezer = Freezer(world)
    try:
        return freezer, freezer.ref(value)
    except RecursionError:
        freezer.give_up(value)
        return freezer, None


def _graph(world: World, values: dict[str, Any], group: list[str], singles: dict[str, tuple[Freezer, Any]]) -> tuple[Freezer, Any]:
    if len(group) == 1:
        freezer, ref = singles[group[0]]
        return freezer, {group[0]: ref}
    freezer = Freezer(world)
    try:
        return freezer, {key: freezer.ref(values[key]) for key in group}
    except RecursionError:
        freezer.opaque = True
        return freezer, {}


def _groups(singles: dict[str, tuple[Freezer, Any]]) -> dict[str, frozenset[str]]:
    """Put variables that share objects into one group; return the group of each."""
    leader: dict[str, str] = {key: key for key in singles}

    def lead(key: str) -> str:
        while leader[key] != key:
            leader[key] = leader[leader[key]]
            key = leader[key]
        return key

    holder: dict[int, str] = {}
    for key, (freezer, _) in singles.items():
        for one in freezer.shared:
            leader[lead(key)] = lead(holder.setdefault(one, key))
        for other in singles if freezer.boundless else ():
            leader[lead(other)] = lead(key)
    groups: dict[str, set[str]] = {}
    for key in singles:
        groups.setdefault(lead(key), set()).add(key)
    frozen = {key: frozenset(group) for key, group in groups.items()}
    return {key: frozen[lead(key)] for key in singles}


def _marks(singles: dict[str, tuple[Freezer, Any]]) -> dict[str, _Mark]:
    groups = _groups(singles)
    return {key: _Mark(freezer.digest(ref), groups[key], freezer.opaques) for key, (freezer, ref) in singles.items()}


def _differs(before: _Mark | None, mark: _Mark, reach: Reach) -> bool:
    if before is None or before.digest != mark.digest or before.group != mark.group:
        return True
    return not reach.touched.isdisjoint(mark.opaques)


def _ending(final_answer: Any) -> Any:
    """Return ``final_answer`` as code calls it: it ends the code."""

    def ending(*args: Any, **kwargs: Any) -> Any:
        raise interpreter.FinalAnswerException(final_answer(*args, **kwargs))

    return ending


def freeze_random() -> list[Any]:
    """Return the state of the module ``random``."""
    version, numbers, gauss = random.getstate()
    return [version, b"".join(number.to_bytes(4, "big") for number in numbers), gauss]


def random_since(before: list[Any]) -> list[Any]:
    """Return the state of the module ``random``, as what differs from an earlier one: a few draws only move on in its numbers."""
    after = freeze_random()
    return after if after[1][:_NUMBERS] != before[1][:_NUMBERS] else [after[0], after[1][_NUMBERS:], after[2]]


def thaw_random(state: list[Any], before: list[Any] | None = None) -> None:
    """Put the module ``random`` into a state again.

    Args:
        state: what :func:`freeze_random` returned, or :func:`random_since`.
        before: the earlier state that that was told of.
    """
    version, data, gauss = state
    if before is not None and len(data) < _NUMBERS:
        data = before[1][:_NUMBERS] + data
    random.setstate((version, tuple(int.from_bytes(data[n : n + 4], "big") for n in range(0, len(data), 4)), gauss))
