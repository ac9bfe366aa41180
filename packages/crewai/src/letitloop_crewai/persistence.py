"""CrewAI's persistence of a flow's state, over a log."""

from __future__ import annotations

from copy import deepcopy
from threading import RLock
from typing import Any

from crewai.flow.async_feedback.types import PendingFeedbackContext
from crewai.flow.persistence import FlowPersistence
from pydantic import BaseModel, PrivateAttr

from letitloop.errors import UnencodableError
from letitloop.integration.open_leaves import OpenLeaf
from letitloop.integration.sessions import Session
from letitloop_crewai.driving import place
from letitloop_crewai.growth import Growing

__all__ = ["LetItLoopFlowPersistence"]


class LetItLoopFlowPersistence(FlowPersistence):
    """Keeps what ``@persist`` saves in a log: durable, never torn, one log for each flow's id.

    It holds **state only**, as every persistence of CrewAI does: which methods had finished is not in it, so a flow that is kicked
    off again with its id runs all of them again, on the state they had left. What makes methods happen once is
    :func:`letitloop.adapters.crewai.wrap_flow`; a wrapped flow needs no persistence, and may have one.

    Args:
        store: the directory; ``LETITLOOP_STORE`` or ``./.letitloop`` by default.

    Example:
        >>> from letitloop.adapters.crewai import LetItLoopFlowPersistence
        >>> persistence = LetItLoopFlowPersistence(store="memory:crewai-states")
        >>> persistence.save_state("flow-1", "fetch", {"id": "flow-1", "pages": 3})
        >>> persistence.load_state("flow-1")
        {'id': 'flow-1', 'pages': 3}
    """

    persistence_type: str = "LetItLoopFlowPersistence"
    store: str | None = None
    _logs: dict[str, Any] = PrivateAttr(default_factory=dict[str, Any])
    _guard: Any = PrivateAttr(default_factory=RLock)

    def init_db(self) -> None:
        """Do nothing: a log is made when it is first written to."""

    def save_state(self, flow_uuid: str, method_name: str, state_data: dict[str, Any] | BaseModel) -> None:
        """Save the state that a method left.

        Raises:
            UnencodableError: something in it cannot be recorded.
            LogLocked: another live process works with this flow's state.
        """
        self._append(flow_uuid, {"method": str(method_name), "state": _fields(state_data), "pending": None})

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """Return the newest state of a flow, None if there is none."""
        last = self._last(flow_uuid)
        return None if last is None else last["state"]

    def save_pending_feedback(
        self, flow_uuid: str, context: PendingFeedbackContext, state_data: dict[str, Any] | BaseModel
    ) -> None:
        """Save the state of a flow that waits for a human."""
        pending = context.to_dict()
        self._append(flow_uuid, {"method": str(context.method_name), "state": _fields(state_data), "pending": pending})

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
        """Return the state of a flow that waits for a human, and what it asked; None if it waits for none."""
        last = self._last(flow_uuid)
        if last is None or last["pending"] is None:
            return None
        return last["state"], PendingFeedbackContext.from_dict(last["pending"])

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """Note that the human has answered."""
        last = self._last(flow_uuid)
        if last is not None and last["pending"] is not None:
            self._append(flow_uuid, {**last, "pending": None})

    def close(self) -> None:
        """Let another process have the states; the process's end does it too."""
        with self._guard:
            while self._logs:
                self._logs.popitem()[1].session.close()

    # --- one log a flow ------------------------------------------------------------------------------------------------------

    def _saved(self, flow_uuid: str) -> _Saved:
        found = self._logs.get(flow_uuid)
        if found is None:
            found = self._logs[flow_uuid] = _Saved(Session(f"flow {flow_uuid}", store=self.store, kind="crewai-state"))
        return found

    def _append(self, flow_uuid: str, state: dict[str, Any]) -> None:
        with self._guard:
            self._saved(flow_uuid).append(state)

    def _last(self, flow_uuid: str) -> dict[str, Any] | None:
        with self._guard:
            return self._saved(flow_uuid).last()


class _Saved:
    """What was saved of one flow: a numbered record each time, of what the state has over the one before."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._scope = place(session.root(), "states")
        self._codecs = self._scope.run.codecs
        self._count = 0
        self._newest: Any = None
        self._states = Growing(list)  # all that are on record are gone through here
        whole: Any = None
        while (known := OpenLeaf(self._scope, f"state {self._count + 1}", {})).known:
            self._count, self._newest = self._count + 1, known.answer()
            whole = self._states.whole(self._newest["state"])
        if isinstance(whole, bytes):
            self._states.keep(self._newest["state"], whole)
            self._newest = {**self._newest, "state": self._codecs.decode(whole)}

    def append(self, state: dict[str, Any]) -> None:
        """Save a state."""
        try:
            whole: Any = self._codecs.encode(state["state"])
        except UnencodableError:
            whole = state["state"]  # the record says what it is of
        form = self._states.form(whole)
        OpenLeaf(self._scope, f"state {self._count + 1}", {}).record({**state, "state": form})
        self._states.keep(form, whole)
        self._count += 1
        self._newest = state

    def last(self) -> dict[str, Any] | None:
        """Return the newest state; a copy, as a flow works on it."""
        newest: dict[str, Any] | None = deepcopy(self._newest)
        return newest


def _fields(state: dict[str, Any] | BaseModel) -> dict[str, Any]:
    return state.model_dump() if isinstance(state, BaseModel) else deepcopy(state)
