"""A data analyst that is killed while it works, and finishes with the same plot: ``python analyst.py --help`` says how."""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
from collections import Counter
from pathlib import Path

os.environ["MPLBACKEND"] = "Agg"  # plots go to files

from script import STEPS
from smolagents import ChatMessage, CodeAgent, Model, tool
from smolagents.models import MessageRole
from vega_datasets import local_data

from letitloop import effect
from letitloop.adapters.smolagents import SmolagentsWALCallback

CALLS = Path("calls.txt")  # what was really called, in all lives
PRINT_SHOP = Path("posters.txt")  # what the print shop was really sent
PLOT = Path("rain.png")


def called(what: str) -> None:
    with CALLS.open("a") as calls:
        calls.write(f"{what}\n")


class Analyst(Model):
    """Plays the model: it answers from script.py, and kills the process when it is asked for step ``kill_at``."""

    def __init__(self, kill_at: int) -> None:
        super().__init__(model_id="analyst-1")
        self.kill_at = kill_at

    def generate(self, messages, **options):
        number = 1 + sum(message.role == MessageRole.ASSISTANT for message in messages)
        if number == self.kill_at:
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        called(f"model, step {number}")
        return ChatMessage(role=MessageRole.ASSISTANT, content=STEPS[number - 1])


@tool
def load(name: str) -> object:
    """Load a data set as a pandas data frame.

    Args:
        name: its name in vega_datasets.
    """
    called("tool load")
    return local_data(name)


@tool
def order_posters(title: str, copies: int) -> str:
    """Have a plot printed.

    Args:
        title: what the poster is called.
        copies: how many.
    """
    called("tool order_posters")
    with PRINT_SHOP.open("a") as shop:
        shop.write(f"{copies} x {title}\n")
    return f"{copies} posters ordered"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kill-at", type=int, default=0, metavar="N", help="die when the model is asked for step N")
    options.add_argument("--stock", action="store_true", help="without letitloop")
    chosen = options.parse_args()
    callback = SmolagentsWALCallback(
        session_id="rain in Seattle",
        tools={
            "order_posters": effect(key="posters/{title}"),  # once, however often it is asked for
            "python_interpreter": "rerun",  # its code computes and draws: done again, it does no harm
        },
    )
    agent = CodeAgent(
        tools=[load, order_posters],
        model=Analyst(chosen.kill_at),
        additional_authorized_imports=["pandas", "matplotlib.pyplot"],
        step_callbacks=[] if chosen.stock else [callback],
        verbosity_level=-1,
    )
    answer = agent.run("In which month does it rain most in Seattle, and how sure is that? Draw it, and have posters made.")
    print(answer)
    print(f"plot: {hashlib.sha256(PLOT.read_bytes()).hexdigest()[:16]}")
    for what, count in Counter(CALLS.read_text().splitlines()).items():
        print(f"  {count} x {what}")
    print(f"the print shop got {len(PRINT_SHOP.read_text().splitlines())} order(s)")


if __name__ == "__main__":
    main()
