"""What every facade in this package does when its distribution is absent."""

from __future__ import annotations

__all__ = ["AdapterNotInstalledError", "missing_adapter"]

_FRAMEWORKS = {
    "autogen": ("autogen_agentchat", "autogen_core"),
    "crewai": ("crewai",),
    "langgraph": ("langgraph", "langchain_core"),
    "llamaindex": ("llama_index", "workflows"),
    "smolagents": ("smolagents",),
}


class AdapterNotInstalledError(ModuleNotFoundError):
    """The distribution that provides an adapter, or its framework, is not installed."""


def missing_adapter(adapter: str, exc: ModuleNotFoundError) -> ModuleNotFoundError:
    """Turn "No module named" into advice; leave a bug inside the adapter as it is.

    Args:
        adapter: its name.
        exc: what its import raised.
    """
    root = (exc.name or "").partition(".")[0]
    if root not in (f"letitloop_{adapter}", *_FRAMEWORKS[adapter]):
        return exc
    return AdapterNotInstalledError(
        f"letitloop.adapters.{adapter} is not installed (no module named {exc.name!r}). Install it with: pip install "
        f'"letitloop[{adapter}]"',
        name=exc.name,
    )
