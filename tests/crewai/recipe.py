"""Run as a program with JSON on its standard input, ``[[directory, option, ...], ...]``: runs the recipe once for each, in a fork.

CrewAI is imported once. It prints JSON: ``[[exit status, output], ...]``.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

import tests.crewai.scripted  # noqa: F401  # sets the environment first

RECIPE = Path(__file__).parents[2] / "cookbooks" / "crewai_durable_tools" / "report_crew.py"


def life(directory, options):
    """Run the recipe as ``python report_crew.py`` does."""
    pid = os.fork()
    if not pid:
        os.chdir(directory)
        os.environ["XDG_DATA_HOME"] = str(Path(directory) / "data")
        handle = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        code = 1
        try:
            sys.argv[:] = [str(RECIPE), *options]
            sys.path.insert(0, str(RECIPE.parent))
            runpy.run_path(str(RECIPE), run_name="__main__")
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    return os.waitstatus_to_exitcode(status), (Path(directory) / "output").read_text()


if __name__ == "__main__":
    print(json.dumps([life(directory, options) for directory, *options in json.load(sys.stdin)]))
