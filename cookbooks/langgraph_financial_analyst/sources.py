"""Where the analyst's prices and words come from: offline from a data set and a scripted model, live from the services.

Every call to the outside is counted in ``calls.log``, a file of its own that is synced after each line: it tells what really
happened, whoever was killed meanwhile.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

LOG = Path("calls.log")
COUNTED = ("market-data calls", "model calls", "tokens")


def count(what: str, number: int = 1) -> None:
    """Write down what happens, before anything else does."""
    handle = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, (json.dumps([what, number]) + "\n").encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def counted() -> dict[str, int]:
    """Return what happened, in all lives."""
    found: Counter[str] = Counter()
    for line in LOG.read_text().splitlines() if LOG.exists() else ():
        what, number = json.loads(line)
        found[what] += number
    return {what: found[what] for what in COUNTED}


# --- prices ------------------------------------------------------------------------------------------------------------------


def offline_prices(ticker: str) -> list[tuple[str, float]]:
    """Return real monthly prices of 2000 to 2010, from the ``stocks`` table of ``vega_datasets``."""
    from vega_datasets import data

    count("market-data calls")
    table = data.stocks()
    rows = table[table.symbol == ticker]
    if rows.empty:
        raise SystemExit(f"the data set has {', '.join(sorted(set(table.symbol)))}, and not {ticker}")
    return [(date.strftime("%Y-%m-%d"), float(price)) for date, price in zip(rows.date, rows.price, strict=True)]


def live_prices(ticker: str) -> list[tuple[str, float]]:
    """Return the daily prices of the last two years from Yahoo; needs ``pip install yfinance``."""
    import yfinance

    count("market-data calls")
    history = yfinance.Ticker(ticker).history(period="2y")
    if history.empty:
        raise RuntimeError(f"there are no prices of {ticker}")
    return [(day.strftime("%Y-%m-%d"), float(close)) for day, close in history["Close"].items()]


# --- words -------------------------------------------------------------------------------------------------------------------


def offline_memo(ticker: str, figures: dict[str, float]) -> str:
    """Play a model: what it says follows from the figures, and it costs a token a word."""
    count("model calls")
    trend = "above" if figures["last price"] > figures["average of a year"] else "below"
    text = (
        f"{ticker} closed at {figures['last price']:.2f}, {trend} its average of a year ({figures['average of a year']:.2f}). "
        f"Over the period it returned {figures['return a year']:.1%} a year with a volatility of "
        f"{figures['volatility a year']:.1%}, and at its worst stood {figures['deepest fall']:.1%} below an earlier high. "
        "Past returns promise nothing."
    )
    count("tokens", len(text.split()))
    return text


def live_memo(ticker: str, figures: dict[str, float], model: str) -> str:
    """Ask a model, e.g. ``deepseek:deepseek-chat``; its key comes from the environment alone."""
    from langchain.chat_models import init_chat_model

    lines = "\n".join(f"{name}: {value:.4f}" for name, value in figures.items())
    count("model calls")
    answer: Any = init_chat_model(model).invoke(f"Write a memo of five sentences on the stock {ticker}. Figures:\n{lines}")
    count("tokens", (answer.usage_metadata or {}).get("total_tokens", 0))
    return str(answer.text)


def what_is_missing(model: str) -> list[str]:
    """Return what a live run would need and does not find: packages, and the model's key."""
    provider = model.partition(":")[0]
    package = f"langchain-{provider}"
    found = [name for name in ("yfinance", package) if importlib.util.find_spec(name.replace("-", "_")) is None]
    missing = [f"a package: pip install {name}" for name in found]
    if provider == "deepseek" and not os.environ.get("DEEPSEEK_API_KEY"):
        missing.append("the key: set DEEPSEEK_API_KEY in the environment")
    return missing
