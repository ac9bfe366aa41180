"""The recipes: uninterrupted, and killed and resumed, they come to the same end, and pay for nothing twice."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.langgraph import forked

COOKBOOKS = Path(__file__).parents[2] / "cookbooks"
REFUNDS = COOKBOOKS / "langgraph_refund_agent" / "refund_agent.py"
ANALYST = COOKBOOKS / "langgraph_financial_analyst" / "analyst.py"
pytestmark = pytest.mark.timeout(300)  # up to seven processes, each of which imports the framework


def run(program, place, *options, code=0, **env):
    """Run a recipe as a reader does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LETITLOOP_", "DEEPSEEK_"))}
    done = subprocess.run(
        [sys.executable, str(program), *options],
        cwd=place, env=kept | env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


# --- the refund agent --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def refunded(tmp_path_factory):
    return run(REFUNDS, tmp_path_factory.mktemp("alone"))


def told(printed):
    return printed[printed.index("The customer reads") :]


def test_the_agent_uninterrupted(refunded):
    assert refunded.count("model call") == 3
    assert refunded.count("The service made this refund: order A-17, 1999 cents") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("kills", [("refund",), ("model",), ("model", "refund"), ("model", "model")])
def test_the_agent_killed_and_resumed(kills, tmp_path, refunded):
    def live(*options):
        process = forked.script(REFUNDS, tmp_path, *options)
        printed, said = process.stdout.read(), process.stderr.read()
        ended = process.wait()
        process.kill()
        assert ended == (-signal.SIGKILL if options else 0), said
        return printed

    for kill in kills:
        live("--kill", kill)
    assert told(live()) == told(refunded)
    happened = (tmp_path / "happened.log").read_text().splitlines()
    assert happened.count("order A-17 looked up") == 1
    assert happened.count("model call 1") == 1
    assert happened.count("model call 2") == 1 + kills.count("model")
    assert happened.count("model call 3") == 1
    assert told(live()) == told(refunded)
    assert (tmp_path / "happened.log").read_text().splitlines() == happened


# --- the financial analyst ---------------------------------------------------------------------------------------------------


def chart_of(page):
    """Return the points of the lines of the report's chart."""
    drawn = re.search(r"<svg.*</svg>", page.read_text())
    lines = ET.fromstring(drawn[0]).iter("{http://www.w3.org/2000/svg}polyline")
    return [[tuple(map(float, point.split(","))) for point in line.get("points").split()] for line in lines]


def test_the_analyst_uninterrupted_and_in_its_demonstration(tmp_path):
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    alone.mkdir()
    killed.mkdir()
    printed = run(ANALYST, alone, "--ticker", "AAPL", "--offline")
    assert printed.startswith("AAPL closed at 223.02")
    demonstrated = run(ANALYST, killed, "--ticker", "AAPL", "--offline", "--demo")
    assert re.findall(r"killed \(SIGKILL\) after the step '(.*)'", demonstrated) == ["market data", "indicators", "memo"]
    assert re.findall(r"market-data calls +(\d+) ", demonstrated) == ["1", "1", "1", "1"]
    assert re.findall(r"model calls +(\d+) ", demonstrated) == ["0", "0", "1", "1"]
    assert re.findall(r"tokens +(\d+) ", demonstrated) == ["0", "0", "38", "38"]
    assert printed in demonstrated
    assert (killed / "report.html").read_bytes() == (alone / "report.html").read_bytes()
    average, price = chart_of(alone / "report.html")
    assert len(price) == len(average) == 123  # months
    assert price[-1][1] == min(y for _, y in price)  # the last price is the highest, and SVG counts from the top
    assert run(ANALYST, alone, "--ticker", "AAPL", "--offline") == printed
    assert (alone / "calls.log").read_text().splitlines() == ['["market-data calls", 1]', '["model calls", 1]', '["tokens", 38]']


YAHOO = """
import datetime
class Ticker:
    def __init__(self, ticker):
        assert ticker == "MSFT"
    def history(self, period):
        return History()
class History:
    empty = False
    def __getitem__(self, column):
        return {datetime.date(2024, month, 1): 100.0 + month for month in range(1, 13)}
"""
DEEPSEEK = """
import os
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
class ChatDeepSeek(BaseChatModel):
    model: str
    @property
    def _llm_type(self): return "stub"
    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        used = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
        answer = f"{self.model} was asked with {os.environ['DEEPSEEK_API_KEY']!r}."
        return ChatResult(generations=[ChatGeneration(message=AIMessage(answer, usage_metadata=used))])
"""


def test_the_analyst_live_asks_the_services_with_the_key_of_the_environment(tmp_path):
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    (stubs / "yfinance.py").write_text(YAHOO)
    (stubs / "langchain_deepseek.py").write_text(DEEPSEEK)
    live = ("--ticker", "MSFT", "--live", "--model", "deepseek:deepseek-chat")
    assert "set DEEPSEEK_API_KEY" in run(ANALYST, tmp_path, *live, code=2, PYTHONPATH=str(stubs))
    printed = run(ANALYST, tmp_path, *live, PYTHONPATH=str(stubs), DEEPSEEK_API_KEY="the-key")
    assert printed.startswith("deepseek-chat was asked with 'the-key'.")
    assert '["tokens", 7]' in (tmp_path / "calls.log").read_text()
    assert len(chart_of(tmp_path / "report.html")[1]) == 12
    assert not [file for file in tmp_path.rglob("*.py*") if "the-key" in file.read_text(errors="replace")]


def test_what_the_analyst_cannot_do_is_told(tmp_path):
    said = run(ANALYST, tmp_path, "--live", "--model", "nobody:nothing", code=2)
    assert "pip install yfinance" in said
    assert "pip install langchain-nobody" in said
    assert "--demo is for --offline" in run(ANALYST, tmp_path, "--live", "--demo", code=2)
    assert "and not NONE" in run(ANALYST, tmp_path, "--ticker", "NONE", "--offline", code=1)
