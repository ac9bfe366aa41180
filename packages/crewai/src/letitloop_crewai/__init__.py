"""letitloop for CrewAI: crews and flows whose finished tasks, model and tool calls never repeat."""

from __future__ import annotations

from letitloop_crewai.handler import CrewAIDurabilityHandler, wrap_crew, wrap_flow
from letitloop_crewai.persistence import LetItLoopFlowPersistence

__all__ = ["CrewAIDurabilityHandler", "LetItLoopFlowPersistence", "wrap_crew", "wrap_flow"]
