"""What an edited crew would do to the tasks on record; it is refused before any of them is executed where that can be seen."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from crewai.tasks.conditional_task import ConditionalTask
from crewai.utilities.constants import NOT_SPECIFIED

from letitloop.errors import StepChanged
from letitloop.integration.looking import differing, recorded_answer, recorded_scopes
from letitloop.integration.sessions import reopened
from letitloop_crewai.asking import changed_parts, parts_of, task_of
from letitloop_crewai.telling import tell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from letitloop.runs.scope import Scope
    from letitloop_crewai.driving import Drive

__all__ = ["changes", "check_ahead", "check_gone", "name_of", "refusal", "words_of"]

_LATE = frozenset(("context", "tools"))
"""What of a task's question is known when it is its turn."""

_WAYS = "use another session_id for a new run, or on_change='reuse' to hand the recorded outputs on."


def name_of(slot: Scope, scope: Scope) -> str:
    """Return what a task's scope is called in that of its kickoff."""
    return slot.prefix[len(scope.prefix) : -1].decode("utf-8", "replace")


def changes(scope: Scope, asked: Mapping[str, object]) -> tuple[str, ...] | None:
    """Return what a task asks otherwise than is on record, by names; None if nothing is on record.

    Args:
        scope: the task's.
        asked: what it asks.
    """
    found = differing(reopened(scope), "asked", asked)
    then = recorded_answer(reopened(scope), "asked") if found else None
    if not found or not isinstance(then, dict):
        return found
    now = parts_of(asked)
    return tuple(part for name in found for part in changed_parts(name, now, then))  # pyright: ignore[reportUnknownArgumentType]


def check_gone(drive: Drive, crew: str) -> None:
    """Look for recorded tasks that the crew does not have any more.

    Args:
        drive: the kickoff, at its beginning.
        crew: the crew's name.

    Raises:
        StepChanged: such a task has had effects, or any change is to be told.
    """
    scope, mode = drive.scope, drive.shared.on_change
    drive.recorded = {name: effects for name, effects in recorded_scopes(scope).items() if name.startswith("task ")}
    have = {name_of(slot, scope) for slot in drive.slots.values()}
    for name in sorted(drive.recorded.keys() - have):
        effects, run = drive.recorded[name], scope.run.id
        if mode == "raise" or (effects and mode == "rerun"):
            what = f"it has had effects ({', '.join(effects)})" if effects else "on_change='raise' asks for that to be told"
            raise StepChanged(
                f"{name!r} of run {run} is on record, and no task of {crew} is that one any more: {what}. Nothing was run, and "
                f"every record is kept. Put the task back as it was, {_WAYS}",
                run_id=run,
                step=name,
            )
        tell(f"{name!r} of run {run} is on record, and no task of {crew} is that one any more: it is left alone", loud=True)


_checking = Lock()


def check_ahead(drive: Drive, crew: Any, manager: Any) -> None:
    """Look whether tasks that will be executed again void what later ones did, before the first one is.

    Args:
        drive: the kickoff.
        crew: the crew, with everything filled in.
        manager: who executes its tasks, if not their own agents.

    Raises:
        StepChanged: a task that has had effects would be executed again; or any would, and that is to be told.
    """
    with _checking:
        recorded, drive.ahead = drive.recorded if drive.ahead else {}, False
    if not recorded or drive.shared.on_change == "reuse":
        return
    again: dict[int, str] = {}
    last_sync: list[Any] = []
    tasks = list(crew.tasks)
    for at, task in enumerate(tasks):
        slot = drive.slots[id(task)]
        before = _sources(task, tasks[:at], last_sync)
        if not task.async_execution:
            last_sync = [task]
        agent = manager or task.agent
        changed = None if agent is None else changes(slot, task_of(task, agent, "", (), str(crew.process.value)))
        sources = [words_of(one) for one in before if id(one) in again]
        known = tuple(one for one in changed or () if one.partition(" ")[0] not in _LATE)
        if changed is None:
            if not isinstance(task, ConditionalTask):  # one that was left out is not on record either
                again[id(task)] = "it is not on record"
        elif known:
            again[id(task)] = _differ(known)
        elif sources:
            again[id(task)] = f"it gets the output of {', '.join(map(repr, sources))}"
        if changed is not None and id(task) in again:
            effects = drive.recorded.get(name_of(slot, drive.scope), [])
            if effects or drive.shared.on_change == "raise":
                causes = [f"{words_of(one)!r}: {again[id(one)]}" for one in before if id(one) in again]
                raise refusal(drive, task, known or ("context",), effects, causes, executed=())


def _sources(task: Any, earlier: list[Any], last_sync: list[Any]) -> list[Any]:
    """Return the tasks whose outputs a task gets as its context."""
    if task.context is NOT_SPECIFIED:
        return last_sync if task.async_execution else earlier
    return list(task.context or ())


def refusal(
    drive: Drive, task: Any, changed: Iterable[str], effects: list[str], causes: Iterable[str], executed: Iterable[str]
) -> StepChanged:
    """Return the error for a task that is not executed again.

    Args:
        drive: the kickoff.
        task: the task.
        changed: what it asks otherwise.
        effects: the keys of the effects that have happened in it.
        causes: which tasks before it will be executed again, each with why.
        executed: which have been, each with why.
    """
    run, changed = drive.scope.run.id, tuple(changed)
    name = name_of(drive.slots[id(task)], drive.scope)
    before, done = "; ".join(causes), "; ".join(executed)
    what = f"it has had effects ({', '.join(effects)})" if effects else "on_change='raise' asks for that to be told"
    because = f" Tasks before it would be executed again, and give it another context: {before}." if before else ""
    nothing = f"Executed before it were: {done}. It was not" if done else "No task was executed"
    return StepChanged(
        f"{name!r} of run {run} would be executed again, as {_differ(changed)} from what is on record, and {what}.{because} "
        f"{nothing}, and every record of it is kept. Put what was changed back as it was, {_WAYS}",
        run_id=run,
        step=name,
        arguments=changed,
    )


def _differ(names: tuple[str, ...]) -> str:
    return f"{', '.join(map(repr, names))} differ{'s' * (len(names) == 1)}"


def words_of(task: Any) -> str:
    """Return what a task is called in messages."""
    return str(task.name or task.description).split("\n", 1)[0][:60]
