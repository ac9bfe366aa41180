"""Facade of the ``letitloop-crewai`` distribution."""

from __future__ import annotations

from letitloop.adapters._facade import missing_adapter as _missing_adapter

try:
    from letitloop_crewai import CrewAIDurabilityHandler, LetItLoopFlowPersistence, wrap_crew, wrap_flow
except ModuleNotFoundError as exc:
    raise _missing_adapter("crewai", exc) from exc

__all__ = ["CrewAIDurabilityHandler", "LetItLoopFlowPersistence", "wrap_crew", "wrap_flow"]
