"""The report: one HTML page without a script or a link, with a timeline of both lives as a picture."""

from __future__ import annotations

import hashlib
from html import escape

from letitloop.cli.demo.display import duration
from letitloop.cli.demo.sheet import now, sheet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from letitloop.cli.demo.lives import Life
    from letitloop.cli.demo.outcome import Outcome, Run

__all__ = ["page", "timeline"]

LABEL, WIDTH, ROW, TOP = 250.0, 1080.0, 24.0, 64.0  # pixels of the picture
PITCHES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)  # seconds between two marks of the time axis
MARKS = 14  # how many of them there are at most


def page(outcome: Outcome) -> str:
    """Write the report of an outcome, as one self-contained HTML page."""
    calls, alone = outcome.interrupted.summariser_calls(), outcome.uninterrupted.summariser_calls()
    figures = (
        (str(len(outcome.replayed())), "steps answered from the log"),
        (str(len(outcome.repeated())), "finished calls repeated"),
        (f"{calls} / {alone}", "summariser calls, killed / uninterrupted"),
        (
            str(len(outcome.interrupted.deliveries)),
            "delivery to the receiver" if len(outcome.interrupted.deliveries) == 1 else "deliveries to the receiver",
        ),
        (duration(outcome.second.resumed()), "from process start to new work"),
    )
    cards = "".join(f"<div><b>{escape(value)}</b><span>{escape(label)}</span></div>" for value, label in figures)
    digest = hashlib.sha256(outcome.interrupted.brief.encode()).hexdigest()
    lead = f"""{len(outcome.sections)} sections were to be summarised. Process {outcome.first.pid} was killed (SIGKILL) when
{escape(outcome.first.killed_after)} had finished, and the program was started again: what had finished came from the log,
the rest ran."""
    body = f"""<div class="figures">{cards}</div>
<section><h2>Both lives</h2>{timeline(outcome)}
<p class="key"><i style="background:var(--ran)"></i>ran<i style="background:var(--lost)"></i>in flight at the kill
<i style="background:var(--replayed)"></i>replayed from the log</p></section>
<section><h2>Counted from the evidence</h2>{_counts(outcome)}</section>
<section><h2>Step by step</h2>{_steps(outcome)}</section>
<section class="brief"><h2>The brief that was delivered</h2>{_brief(outcome.interrupted.brief)}</section>"""
    return sheet(
        title="lil demo brief: killed and resumed",
        heading="A run that was killed, and went on",
        lead=lead,
        good="Same brief, delivered once, no finished call repeated",
        differences=outcome.differences(),
        body=body,
        footer=f"Written by <code>lil demo brief</code> on {now()}. SHA-256 of the brief: <code>{digest}</code>",
    )


def timeline(outcome: Outcome) -> str:
    """Draw both lives on one time axis: bars for what ran, marks for what was replayed, a line for the kill."""
    first, second = outcome.first, outcome.second
    gap = 0.03 * (first.ended + second.ended)
    whole = first.ended + gap + second.ended
    scale = (WIDTH - LABEL - 60) / whole
    bottom = TOP + ROW * len(outcome.steps)
    pitch = next((pitch for pitch in PITCHES if whole / pitch <= MARKS), 60.0)

    def x(seconds: float) -> float:
        return LABEL + seconds * scale

    parts = [
        f'<svg viewBox="0 0 {WIDTH:.0f} {bottom + 34:.0f}" role="img" aria-label="Timeline of both lives">',
        *(_life_head(life, x(offset), x(offset + life.ended), bottom, name) for life, offset, name in _placed(outcome, gap)),
        *(mark for life, offset, _ in _placed(outcome, gap) for mark in _axis(life, pitch, offset, x, bottom)),
    ]
    for row, step in enumerate(outcome.steps):
        y = TOP + ROW * row
        title = outcome.title(step)
        name = f"{step}  {title}" if title else step
        short = name if len(name) <= 31 else name[:30] + "…"
        parts.append(f'<text x="0" y="{y + 16:.1f}">{escape(short)}<title>{escape(name)}</title></text>')
        parts.append(f'<line class="grid" x1="0" x2="{WIDTH:.0f}" y1="{y + ROW:.1f}" y2="{y + ROW:.1f}"/>')
        parts += [_bar(outcome, life, step, x, offset, y) for life, offset, _ in _placed(outcome, gap)]
    if first.killed is not None:
        at = x(first.killed)
        parts.append(f'<line class="kill" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 16:.0f}" y2="{bottom:.0f}"/>')
        parts.append(f'<text class="killtext" text-anchor="middle" x="{at:.1f}" y="{TOP - 22:.0f}">SIGKILL</text>')
    parts.append("</svg>")
    return "".join(parts)


def _placed(outcome: Outcome, gap: float) -> Iterable[tuple[Life, float, str]]:
    return ((outcome.first, 0.0, "First life"), (outcome.second, outcome.first.ended + gap, "Second life"))


def _life_head(life: Life, left: float, right: float, bottom: float, name: str) -> str:
    return (
        f'<rect class="band" x="{left:.1f}" y="{TOP:.0f}" width="{right - left:.1f}" height="{bottom - TOP:.0f}"/>'
        f'<text class="head" x="{left:.1f}" y="16">{name}<tspan class="soft" dx="8">pid {life.pid}</tspan></text>'
    )


def _axis(life: Life, pitch: float, offset: float, x: Callable[[float], float], bottom: float) -> Iterable[str]:
    """Mark the seconds since the start of a life."""
    for number in range(int(life.ended / pitch) + 1):
        at = x(offset + number * pitch)
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP:.0f}" y2="{bottom + 6:.0f}"/>'
        yield f'<text class="soft" text-anchor="middle" x="{at:.1f}" y="{bottom + 22:.0f}">{number * pitch:.3g} s</text>'


def _bar(outcome: Outcome, life: Life, step: str, x: Callable[[float], float], offset: float, y: float) -> str:
    state = outcome.state(life, step)
    if state == "-":
        return ""
    if state == "replayed":
        at, waited = life.returned[step]
        tip = f"{step}: replayed in {duration(waited)}"
        middle, centre = x(offset + at), y + ROW / 2
        return f'<path class="mark" d="M{middle:.1f} {centre - 6:.1f}l6 6l-6 6l-6 -6z"><title>{escape(tip)}</title></path>'
    end = life.done.get(step, life.ended) if state == "ran" else life.ended
    left = x(offset + life.calls[step])
    width = max(2.5, x(offset + end) - left)
    tip = f"{step}: {'ran in ' + duration(end - life.calls[step]) if state == 'ran' else 'in flight at the kill'}"
    name = "bar-ran" if state == "ran" else "bar-lost"
    return (
        f'<rect class="{name}" x="{left:.1f}" y="{y + 5:.1f}" width="{width:.1f}" height="{ROW - 10:.0f}" rx="3">'
        f"<title>{escape(tip)}</title></rect>"
    )


def _counts(outcome: Outcome) -> str:
    one, other = outcome.interrupted, outcome.uninterrupted
    again = sum("#" in step for step in outcome.ran_again())
    rows = (
        ("Summariser calls", str(one.summariser_calls()), str(other.summariser_calls())),
        ("of them in flight at the kill, called again", str(again), "0"),
        ("Finished calls repeated", str(len(outcome.repeated())), "0"),
        ("Deliveries", str(len(one.deliveries)), str(len(other.deliveries))),
        ("The intent in the ledger", _intent(one), _intent(other)),
        ("Time, all lives", duration(one.seconds()), duration(other.seconds())),
    )
    body = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{escape(left)}</td><td class="number">{escape(right)}</td></tr>'
        for name, left, right in rows
    )
    head = '<tr><th></th><th class="number">Killed and resumed</th><th class="number">Uninterrupted</th></tr>'
    return f"<table>{head}{body}</table>"


def _intent(run: Run) -> str:
    """Say how the ledger has the delivery: its state and its history."""
    return f"{run.intent.get('state', '-')} ({', '.join(run.intent.get('events', ()))})"


def _steps(outcome: Outcome) -> str:
    rows = "".join(
        f"<tr><td>{escape(step)}</td><td>{escape(outcome.title(step))}</td>"
        f"{_cell(outcome, outcome.first, step)}{_cell(outcome, outcome.second, step, again=step in outcome.ran_again())}</tr>"
        for step in outcome.steps
    )
    return f"<table><tr><th>Step</th><th>Section</th><th>First life</th><th>Second life</th></tr>{rows}</table>"


def _cell(outcome: Outcome, life: Life, step: str, *, again: bool = False) -> str:
    state = outcome.state(life, step)
    if state == "-":
        return '<td class="none">-</td>'
    if state == "in flight":
        return '<td class="lost">in flight at the kill</td>'
    if state == "replayed":
        return f'<td class="replayed">replayed in {duration(life.returned[step][1])}</td>'
    return f'<td class="ran">ran{" again" if again else ""} in {duration(life.done[step] - life.calls[step])}</td>'


def _brief(text: str) -> str:
    """Turn the brief's few Markdown forms into HTML."""
    parts: list[str] = []
    items: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("- "):
            items.append(f"<li>{escape(line[2:])}</li>")
            continue
        if items:
            parts.append(f"<ul>{''.join(items)}</ul>")
            items = []
        if line.startswith("### "):
            parts.append(f"<h4>{escape(line[4:])}</h4>")
        elif line.startswith("## "):
            parts.append(f"<h3>{escape(line[3:])}</h3>")
        elif line.startswith("> "):
            parts.append(f"<blockquote>{escape(line[2:])}</blockquote>")
        elif line and not line.startswith("# "):
            parts.append(f"<p>{escape(line.strip('*'))}</p>")
    return "".join(parts)
