"""The analyst's report: one page of HTML with the memo, the figures, and a chart of the prices drawn as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 860, 360
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 40, 40
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse } td { padding: .2em 2em .2em 0; border-bottom: 1px solid #ddd }
td + td { text-align: right; font-variant-numeric: tabular-nums } svg { width: 100%; height: auto; margin: 1em 0 }
"""


def moving_average(closes: list[float], width: int) -> list[float]:
    """Return for each price the average of as many as ``width`` up to it."""
    return [sum(part) / len(part) for end in range(1, len(closes) + 1) if (part := closes[max(0, end - width) : end])]


def ticks(low: float, high: float) -> list[float]:
    """Return four to ten round numbers that a scale from ``low`` to ``high`` is marked with."""
    rough = (high - low) / 5 or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * by for by in (1, 2, 5, 10) if unit * by >= rough)
    first = math.floor(low / step)
    return [step * at for at in range(first, math.ceil(high / step) + 1)]


def years(days: list[str]) -> Iterator[tuple[int, str]]:
    """Yield where each year begins, and its name."""
    for at, day in enumerate(days):
        if at and day[:4] != days[at - 1][:4]:
            yield at, day[:4]


def chart(ticker: str, prices: list[tuple[str, float]], width: int) -> str:
    """Draw the prices, and their moving average over ``width`` of them."""
    closes = [price for _, price in prices]
    marks = ticks(min(closes), max(closes))
    low, high = marks[0], marks[-1]

    def x(at: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / max(1, len(prices) - 1)

    def y(price: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (price - low) / (high - low)

    def line(values: list[float], look: str) -> str:
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in enumerate(values))
        return f'<polyline points="{points}" fill="none" stroke-linejoin="round" {look}/>'

    def label(left: float, top: float, text: str, look: str = "") -> str:
        return f'<text x="{left:.1f}" y="{top:.1f}" {look}>{escape(text)}</text>'

    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for mark in marks:
        parts.append(f'<path d="M{LEFT} {y(mark):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(label(LEFT - 8, y(mark) + 4, f"{mark:g}", 'text-anchor="end"'))
    for at, year in years([day for day, _ in prices]):
        parts.append(f'<path d="M{x(at):.1f} {HEIGHT - BOTTOM}v5" stroke="#888"/>')
        parts.append(label(x(at), HEIGHT - BOTTOM + 20, year, 'text-anchor="middle"'))
    parts.append(line(moving_average(closes, width), 'stroke="#d9822b" stroke-width="1.5" stroke-dasharray="5 3"'))
    parts.append(line(closes, 'stroke="#1f5fa8" stroke-width="2"'))
    parts.append(label(LEFT, 22, f"{ticker}: closing price", 'font-size="15" font-weight="bold" fill="#1f5fa8"'))
    parts.append(label(WIDTH - RIGHT, 22, "average of a year", 'text-anchor="end" fill="#d9822b"'))
    frame = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="#444"'
    name = escape(f"{ticker}, from {prices[0][0]} to {prices[-1][0]}")
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {frame}><title>{name}</title>{"".join(parts)}</svg>'


def write(path: Path, ticker: str, prices: list[tuple[str, float]], figures: dict[str, float], memo: str) -> str:
    """Write the page, all of it or nothing, and return its name."""
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{value:,.3f}</td></tr>" for name, value in figures.items())
    drawn = chart(ticker, prices, int(figures["prices a year"]))
    page = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(ticker)}</title><style>{STYLE}</style>\n'
        f"<h1>{escape(ticker)}</h1>\n<p>{escape(memo)}</p>\n{drawn}\n<table>{rows}</table>\n</html>\n"
    )
    part = path.with_suffix(".part")
    part.write_text(page, encoding="utf-8")
    part.replace(path)
    return str(path)
