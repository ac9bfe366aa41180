"""An intent as a step: inside a durable run, its log keeps a reference, and the ledger keeps the truth.

The step's record holds the intent's identity and no result. Replay asks the ledger, so that losing the log loses no guard; and a
reference whose intent is not in the ledger tells that the ledger was lost.
"""

from __future__ import annotations

from letitloop import failpoints
from letitloop.effects import refusals
from letitloop.effects.drivers import adrive, drive
from letitloop.effects.states import SUCCEEDED
from letitloop.errors import UnknownOutcome
from letitloop.runs.api import async_step, step
from letitloop.runs.scope import current_scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from letitloop.effects.intent import Row
    from letitloop.effects.ledger import Ledger
    from letitloop.effects.provider import Succeeded
    from letitloop.effects.requests import IntentCall
    from letitloop.effects.vault import Vault

__all__ = ["acarry_out", "carry_out", "result_of"]


def result_of(outcome: tuple[Row, Succeeded | None], vault: Vault) -> Any:
    """Return what the caller of an intent that SUCCEEDED gets: what the provider just returned, or what is recorded."""
    row, fresh = outcome
    return vault.decode(row.result) if fresh is None else fresh.result


def carry_out(call: IntentCall, ledger: Ledger) -> Any:
    """Carry an action out, as a step of the current run if there is one."""
    if not _in_run():
        return _directly(call, ledger)
    fresh: list[Any] = []

    def act(namespace: str, key: str) -> dict[str, str]:
        fresh.append(_directly(call.begun_in(*_tell_run()), ledger))
        return {"namespace": namespace, "key": key}

    namespace, key = call.where
    reference = step(key, act, namespace, key)
    return fresh[0] if fresh else _recorded(call, ledger, reference)


async def acarry_out(call: IntentCall, ledger: Ledger) -> Any:
    """Do as :func:`carry_out`, in async code: nothing waits for the disk on the event loop."""
    from letitloop.runs.drive_async import in_thread

    if not _in_run():
        return await _adirectly(call, ledger)
    fresh: list[Any] = []

    async def act(namespace: str, key: str) -> dict[str, str]:
        fresh.append(await _adirectly(call.begun_in(*_tell_run()), ledger))
        return {"namespace": namespace, "key": key}

    namespace, key = call.where
    reference = await async_step(key, act, namespace, key)
    return fresh[0] if fresh else await in_thread(lambda: _recorded(call, ledger, reference))


def _in_run() -> bool:
    scope = current_scope()
    return scope is not None and scope.run.active


def _tell_run() -> tuple[str, str]:
    """Record in the run's log that an effect begins here: it is never taken back, and a replay must not come this far.

    Returns:
        The names of the run and the step.
    """
    scope = current_scope()
    assert scope is not None, "called inside a step"
    key = getattr(scope, "key", scope.prefix).decode("utf-8", "surrogatepass")
    scope.run.about_to_act(key)
    scope.run.effect(key)
    if failpoints.active:
        failpoints.hit("intent.in_run")
    return scope.run.id, key


def _directly(call: IntentCall, ledger: Ledger) -> Any:
    return result_of(drive(call.plan(), call.action, ledger.intents), ledger.vault)


async def _adirectly(call: IntentCall, ledger: Ledger) -> Any:
    return result_of(await adrive(call.plan(), call.action, ledger.intents), ledger.vault)


def _known(call: IntentCall, ledger: Ledger) -> Row | None:
    """Return the intent if it has SUCCEEDED: nothing is locked or written for a repeat.

    Raises:
        ActionConflict: another action is on record under this key.
    """
    row = ledger.intents.row(*call.where)
    if row is None or row.state != SUCCEEDED:
        return None
    conflict = refusals.conflict(row, call.request.fresh, call.request.differing)
    if conflict is not None:
        raise conflict
    return row


def _recorded(call: IntentCall, ledger: Ledger, reference: Any) -> Any:
    """Return the result of an intent that the run's log says has succeeded.

    Raises:
        UnknownOutcome: the ledger does not say so: it was lost, or an older copy lies there.
    """
    known = _known(call, ledger)
    if known is not None:
        return ledger.vault.decode(known.result)
    namespace, key = call.where
    raise UnknownOutcome(
        f"intent {key!r} of {namespace!r} has succeeded, as the run's log says, and the ledger {ledger.location} does not know it. "
        "It was lost, replaced or restored from a copy. Nothing was sent. Put the newest ledger back, or look at the provider and "
        "record the outcome there.",
        namespace=namespace,
        key=key,
        reason="the ledger has lost it",
    )
