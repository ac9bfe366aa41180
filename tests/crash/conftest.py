"""Shows the table of the mutation gate at the end of the session, whatever options pytest was given."""

from __future__ import annotations

import textwrap


def pytest_terminal_summary(terminalreporter):
    rows = [
        tuple(value)
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        for name, value in getattr(report, "user_properties", [])
        if name == "mutant"
    ]
    if not rows:
        return
    terminalreporter.section("mutants, and what killed each")
    for number, (name, layer, violation) in enumerate(sorted(rows, key=lambda row: (row[1], row[0])), 1):
        verdict = "killed by" if violation else "SURVIVED"
        terminalreporter.line(f"{number:3}  {name}")
        terminalreporter.line(f"     {verdict} {layer}")
        if violation:
            terminalreporter.line(f"     {textwrap.shorten(violation, 140)}")
    killed = sum(bool(row[2]) for row in rows)
    terminalreporter.line(f"{killed} of {len(rows)} mutants killed")
