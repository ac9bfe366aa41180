"""A financial analyst in four steps: market data, indicators, memo, report. Killed after any of them, it goes on with the next.

python analyst.py --ticker AAPL --offline          writes report.html and says where
python analyst.py --ticker AAPL --offline --demo   the same, killed three times on the way
python analyst.py --ticker AAPL --live --model deepseek:deepseek-chat
"""

from __future__ import annotations

import argparse
import math
import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import TypedDict

import report
import sources
from demo import demonstrate
from langgraph.graph import START, StateGraph

from letitloop import step
from letitloop.adapters.langgraph import LetItLoopCheckpointSaver, durable_config

REPORT = Path("report.html")
PAID = ("market data", "indicators", "memo")  # the steps before the report; the demonstration dies after each


class Analysis(TypedDict, total=False):
    """The graph's state."""

    ticker: str
    prices: list[tuple[str, float]]
    figures: dict[str, float]
    memo: str
    report: str


def indicators(prices: list[tuple[str, float]]) -> dict[str, float]:
    """Compute what the memo is about."""
    closes = [price for _, price in prices]
    first, last = prices[0][0], prices[-1][0]
    years = max(int(last[:4]) - int(first[:4]) + (int(last[5:7]) - int(first[5:7])) / 12, 1 / 12)
    a_year = max(2, round(len(closes) / years))
    returns = [math.log(after / before) for before, after in pairwise(closes)]
    mean = sum(returns) / len(returns)
    variance = sum((one - mean) ** 2 for one in returns) / max(1, len(returns) - 1)
    high, deepest = closes[0], 0.0
    for close in closes:
        high = max(high, close)
        deepest = max(deepest, 1 - close / high)
    return {
        "last price": closes[-1],
        "average of a year": sum(closes[-a_year:]) / len(closes[-a_year:]),
        "return a year": (closes[-1] / closes[0]) ** (1 / years) - 1,
        "volatility a year": math.sqrt(variance * a_year),
        "deepest fall": deepest,
        "prices a year": float(a_year),
    }


def build(options: argparse.Namespace):
    """Return the graph: each node is one step, so each paid call is on record the moment it is over."""

    def over(name: str) -> None:
        if options.die_after == name:
            os.kill(os.getpid(), signal.SIGKILL)  # the step's result is on disk; nothing after it is

    def market_data(state: Analysis) -> Analysis:
        prices = step("market data", sources.live_prices if options.live else sources.offline_prices, state["ticker"])
        over("market data")
        return {"prices": prices}

    def compute(state: Analysis) -> Analysis:
        figures = step("indicators", indicators, state["prices"])
        over("indicators")
        return {"figures": figures}

    def memo(state: Analysis) -> Analysis:
        if options.live:
            text = step("memo", sources.live_memo, state["ticker"], state["figures"], options.model)
        else:
            text = step("memo", sources.offline_memo, state["ticker"], state["figures"])
        over("memo")
        return {"memo": text}

    def publish(state: Analysis) -> Analysis:
        return {"report": step("report", report.write, REPORT, state["ticker"], state["prices"], state["figures"], state["memo"])}

    graph = StateGraph(Analysis)
    nodes = {"market_data": market_data, "compute_indicators": compute, "write_memo": memo, "write_report": publish}
    for before, (name, node) in zip((START, *nodes), nodes.items(), strict=False):
        graph.add_node(name, node)
        graph.add_edge(before, name)
    return graph.compile(checkpointer=LetItLoopCheckpointSaver())


def analyse(options: argparse.Namespace) -> None:
    """Run the graph, or go on with it."""
    inputs: Analysis = {"ticker": options.ticker}
    name = f"analysis-{options.ticker}-{'live' if options.live else 'offline'}"
    result = build(options).invoke(inputs, durable_config(name, inputs))
    print(result["memo"])
    print(f"The report is in {result['report']}.")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ticker", default="AAPL")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--offline", action="store_true", help="prices from a data set, a scripted model: no key, no network")
    where.add_argument("--live", action="store_true", help="prices from Yahoo, a model with a key from the environment")
    parser.add_argument("--model", default="deepseek:deepseek-chat", help="the model of a live run, PROVIDER:NAME")
    parser.add_argument("--demo", action="store_true", help="kill the process after each of the first three steps")
    parser.add_argument("--die-after", choices=PAID, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.demo and options.live:
        parser.error("--demo is for --offline: it would spend money")
    if options.live and (missing := sources.what_is_missing(options.model)):
        parser.error(f"a live run needs {'; '.join(missing)}")
    if options.demo:
        demonstrate(options.ticker, PAID)
    else:
        analyse(options)


if __name__ == "__main__":
    main()
