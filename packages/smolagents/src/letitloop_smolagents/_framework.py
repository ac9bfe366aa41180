"""The parts of smolagents that this adapter touches, in one place; the framework has no types to check against."""

from __future__ import annotations

from importlib import import_module
from typing import Any

agents: Any = import_module("smolagents.agents")
interpreter: Any = import_module("smolagents.local_python_executor")
memory: Any = import_module("smolagents.memory")
models: Any = import_module("smolagents.models")
monitoring: Any = import_module("smolagents.monitoring")
types: Any = import_module("smolagents.agent_types")
default_tools: Any = import_module("smolagents.default_tools")
tools: Any = import_module("smolagents.tools")
utils: Any = import_module("smolagents.utils")
Image: Any = import_module("PIL.Image")
