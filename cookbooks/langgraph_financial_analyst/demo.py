"""The analysis in four processes: the first three are killed, each right after a step was recorded; what they called is counted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from sources import COUNTED, LOG, counted

ANALYST = Path(__file__).with_name("analyst.py")


def live_once(ticker: str, killed_after: str) -> str:
    """Run the analysis in a process of its own, and tell how it ended."""
    command = [sys.executable, str(ANALYST), "--ticker", ticker, "--offline"]
    env = {name: value for name, value in os.environ.items() if name != "LETITLOOP_STORE"}
    ended = subprocess.run([*command, *(["--die-after", killed_after] if killed_after else [])], env=env, check=False).returncode
    if killed_after:
        if ended != -signal.SIGKILL:
            raise SystemExit(f"the process that was to be killed after {killed_after!r} ended with code {ended}")
        return f"killed (SIGKILL) after the step {killed_after!r} was recorded"
    if ended:
        raise SystemExit(ended)
    return "came to its end"


def demonstrate(ticker: str, deaths: tuple[str, ...]) -> None:
    """Kill the analysis after each of these steps, let it end, and show that no counter rises twice.

    Args:
        ticker: the stock.
        deaths: the steps after which a process dies.
    """
    LOG.unlink(missing_ok=True)
    shutil.rmtree(".letitloop", ignore_errors=True)
    before = dict.fromkeys(COUNTED, 0)
    for life, killed_after in enumerate((*deaths, ""), 1):
        how = live_once(ticker, killed_after)
        now = counted()
        print(f"\nlife {life}: {how}")
        for what, number in now.items():
            print(f"  {what:<18} {number:>4}   (+{number - before[what]})")
        before = now
    data, model = before["market-data calls"], before["model calls"]
    if (data, model) != (1, 1):
        raise SystemExit(f"{data} market-data calls and {model} model calls: something was paid for twice")
    print(f"\n{len(deaths) + 1} lives, 1 market-data call, 1 model call: nothing was paid for twice.")
