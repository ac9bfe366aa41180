"""The frame of every report: one HTML page without a script, a link or anything else that is loaded from elsewhere."""

from __future__ import annotations

import time
from html import escape
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from letitloop.cli.demo.checks import Check

__all__ = ["assertions", "log_table", "now", "rows", "sheet"]


def sheet(*, title: str, heading: str, lead: str, good: str, differences: Sequence[str], body: str, footer: str) -> str:
    """Make the page of a report.

    Args:
        title: of the window, as text.
        heading: as text.
        lead: what was done, as HTML.
        good: the verdict if all is well, as text.
        differences: what is not as it should be, as texts.
        body: the rest, as HTML.
        footer: as HTML.
    """
    problems = "".join(f'<p class="lost">{escape(difference)}</p>' for difference in differences)
    style = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{style}</style></head><body><main>
<h1>{escape(heading)}</h1>
<p class="lead">{lead}</p>
<div class="verdict{" bad" if differences else ""}">{escape("Not as it should be" if differences else good)}</div>{problems}
{body}
<footer>{footer}</footer>
</main></body></html>
"""


def now() -> str:
    """Write the present moment in local time, as HTML."""
    return escape(time.strftime("%Y-%m-%d %H:%M:%S %z"))


def rows(head: Sequence[str], cells: Iterable[Sequence[object]], *, number: Sequence[int] = ()) -> str:
    """Make a table.

    Args:
        head: the columns' names.
        cells: the rows; what is no text is written as one.
        number: which columns hold numbers.
    """

    def line(tag: str, texts: Sequence[object]) -> str:
        opened = [f'<{tag} class="number">' if place in number else f"<{tag}>" for place in range(len(texts))]
        shown = (f"{start}{escape(str(text))}</{tag}>" for start, text in zip(opened, texts, strict=True))
        return f"<tr>{''.join(shown)}</tr>"

    return f"<table>{line('th', head)}{''.join(line('td', texts) for texts in cells)}</table>"


def assertions(checks: Iterable[Check]) -> str:
    """Make the table of what a demo asserts."""
    shown = ((check.about, check.what, check.expected, check.found, "holds" if check.ok else "FAILED") for check in checks)
    return rows(("", "asserted", "expected", "found", ""), shown)


def log_table(log: Iterable[Mapping[str, object]]) -> str:
    """Make the table of the service's own log."""
    names = ("n", "account", "request", "key", "effect", "reply")
    return rows(names, ([entry[name] or "-" for name in names] for entry in log), number=(0,))
