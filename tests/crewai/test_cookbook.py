"""The recipe: uninterrupted, and killed in the mail tool and resumed, it mails once; stock, it mails twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_killed_in_the_mail_tool_it_mails_once_and_stock_it_mails_twice(tmp_path):
    whole, broken, stock = (tmp_path / name for name in ("whole", "broken", "stock"))
    for place in (whole, broken, stock):
        place.mkdir()
    lives = [[whole], [broken, "--kill"], [broken], [stock, "--stock", "--kill"], [stock, "--stock"]]
    env = {name: value for name, value in os.environ.items() if not name.startswith("LETITLOOP_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.crewai.recipe"],
        input=json.dumps([[str(one) for one in life] for life in lives]),
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    codes, outputs = zip(*json.loads(done.stdout), strict=True)
    assert codes == (0, -signal.SIGKILL, 0, -signal.SIGKILL, 0), outputs
    alone, _, resumed, _, twice = (
        output[output.index("The report is") :] if "The report is" in output else "" for output in outputs
    )
    assert "mails in the mailbox: ['ada@example.org']" in alone
    assert "us-constitution has 4,363 words" in (whole / "report.md").read_text()
    assert resumed.replace("  1 x mailbox searched\n", "") == alone != resumed
    assert "['ada@example.org', 'ada@example.org']" in twice
    assert "6 x tool read_document" in twice
