"""Workflows need no llama-index-core, and do not import it; agents that are imported later take the runtime all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

WORKFLOW = """
import asyncio, sys
from letitloop.adapters.llamaindex import LetItLoopRuntime, durable_llm, durable_tool, durable_workflow
from workflows import Workflow, step
from workflows.events import StartEvent, StopEvent

class Greeting(Workflow):
    @step
    async def greet(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=f"Hello {ev.name}")

async def main():
    workflow = durable_workflow(Greeting())
    return await workflow.run(run_id="a", name="Ada"), await Greeting(runtime=LetItLoopRuntime()).run(run_id="a", name="Ada")

assert asyncio.run(main()) == ("Hello Ada", "Hello Ada")
assert not any(name.startswith("llama_index.") for name in sys.modules), sorted(sys.modules)
"""

ABSENT = """
import sys
sys.modules["llama_index"] = None
"""

LATE = """
from letitloop.adapters.llamaindex import LetItLoopRuntime
runtime = LetItLoopRuntime()
LetItLoopRuntime()
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import MockLLM
assert FunctionAgent(llm=MockLLM(), runtime=runtime).runtime is runtime
"""


@pytest.mark.parametrize("program", [WORKFLOW, ABSENT + WORKFLOW, LATE], ids=["workflow", "absent", "late"])
def test_imports(program, tmp_path):
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
