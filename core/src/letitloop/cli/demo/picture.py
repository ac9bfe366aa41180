"""A sequence diagram as SVG: who sent what to whom, what happened there, and what got lost."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal, TypeAlias

    Event: TypeAlias = "Arrow | Dot"

__all__ = ["Arrow", "Dot", "Panel", "picture"]

WIDTH, GAP, ROW, TOP, BOTTOM = 1080.0, 26.0, 34.0, 74.0, 58.0  # pixels of the picture


@dataclass(frozen=True)
class Arrow:
    """Something that went from one lane to another.

    Args:
        start: the lane it came from.
        end: the lane it went to.
        text: what it was.
        lost: whether it never arrived.
    """

    start: int
    end: int
    text: str
    lost: bool = False


@dataclass(frozen=True)
class Dot:
    """Something that happened in a lane.

    Args:
        lane: which one.
        text: what it was.
        kind: ``effect``: the outside world has changed; ``known``: something is recorded; ``stop``: somebody died or was refused.
    """

    lane: int
    text: str
    kind: Literal["effect", "known", "stop"]


@dataclass(frozen=True)
class Panel:
    """One story.

    Args:
        title: what it is about.
        lanes: who takes part, from left to right.
        events: what happened, from top to bottom.
        verdict: how it ended.
        good: whether that is good.
    """

    title: str
    lanes: Sequence[str]
    events: Sequence[Event]
    verdict: str
    good: bool


def picture(panels: Sequence[Panel], label: str) -> str:
    """Draw panels side by side.

    Args:
        panels: the stories.
        label: what the picture shows, for those who cannot see it.
    """
    width = (WIDTH - GAP * (len(panels) - 1)) / len(panels)
    length = max(len(panel.events) for panel in panels) * ROW
    height = TOP + length + BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{escape(label)}">']
    for number, panel in enumerate(panels):
        parts += _panel(panel, number * (width + GAP), width, length)
    return "".join([*parts, "</svg>"])


def _panel(panel: Panel, left: float, width: float, length: float) -> list[str]:
    middle, bottom = left + width / 2, TOP + length
    # lanes stand so far from the edge that a text beside a dot has room
    lanes = [left + width * (0.5 + place) / len(panel.lanes) for place in range(len(panel.lanes))]
    parts = [
        f'<rect class="band" x="{left:.1f}" y="0" width="{width:.1f}" height="{bottom + BOTTOM:.1f}" rx="10"/>',
        _text("head", middle, 24, panel.title),
    ]
    for x, name in zip(lanes, panel.lanes, strict=True):
        parts.append(_text("soft", x, 50, name))
        parts.append(f'<line class="lane" x1="{x:.1f}" x2="{x:.1f}" y1="60" y2="{bottom:.1f}"/>')
    for row, event in enumerate(panel.events):
        y = TOP + ROW * (row + 0.5)
        parts += _arrow(event, lanes, y) if isinstance(event, Arrow) else _dot(event, lanes, y)
    return [*parts, _text("good" if panel.good else "killtext", middle, bottom + 36, panel.verdict)]


def _arrow(arrow: Arrow, lanes: Sequence[float], y: float) -> list[str]:
    start, end = lanes[arrow.start], lanes[arrow.end]
    sign = 1 if end > start else -1
    text = _text("said lost" if arrow.lost else "said", (start + end) / 2, y - (9 if arrow.lost else 5), arrow.text)
    if not arrow.lost:
        head = f'<path class="tip" d="M{end:.1f} {y:.1f}l{-9 * sign} -5v10z"/>'
        return [f'<line class="arrow" x1="{start:.1f}" x2="{end - 8 * sign:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>', head, text]
    at = start + (end - start) * 0.55
    line = f'<line class="arrow lost" x1="{start:.1f}" x2="{at - 8 * sign:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return [line, _cross(at, y), text]


def _dot(dot: Dot, lanes: Sequence[float], y: float) -> list[str]:
    x = lanes[dot.lane]
    last = dot.lane == len(lanes) - 1
    if dot.kind == "stop":
        mark = _cross(x, y)
    else:
        mark = f'<circle class="{"effect" if dot.kind == "effect" else "known"}" cx="{x:.1f}" cy="{y:.1f}" r="7"/>'
    side = -13 if last else 13
    anchor = "end" if last else "start"
    name = {"effect": "effecttext", "known": "knowntext", "stop": "lost"}[dot.kind]
    return [mark, f'<text class="{name}" text-anchor="{anchor}" x="{x + side:.1f}" y="{y + 4:.1f}">{escape(dot.text)}</text>']


def _cross(x: float, y: float) -> str:
    return f'<path class="cross" d="M{x - 6:.1f} {y - 6:.1f}l12 12m0 -12l-12 12"/>'


def _text(name: str, x: float, y: float, text: str) -> str:
    return f'<text class="{name}" text-anchor="middle" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
