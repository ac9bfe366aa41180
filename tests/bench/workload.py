"""What is measured: a durable function whose one step takes an integer and returns text, or a model's answer."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from letitloop import Codecs, durable, step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = "fetch_page"


class Stop(BaseException):
    """Ends a drive as a kill would: no step failed, and the run is not finished."""


def text(size: int) -> str:
    """Return words of that many bytes in all."""
    chance = random.Random(size)
    words: list[str] = []
    length = 0
    while length < size:
        words.append("".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 10))))
        length += len(words[-1]) + 1
    return " ".join(words)[:size]


def chat_response() -> dict[str, Any]:
    """Return an answer of a model's interface, of 2 KB when it is encoded."""
    return {
        "id": "chatcmpl-9aXk2Lw8vQ3nT5rB7yC1mZ0p",
        "object": "chat.completion",
        "created": 1735689600,
        "model": "large-2024-11-20",
        "system_fingerprint": "fp_5f20662549",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": text(1560),
                    "refusal": None,
                    "tool_calls": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 812,
            "completion_tokens": 301,
            "total_tokens": 1113,
            "prompt_tokens_details": {"cached_tokens": 512, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0},
        },
        "service_tier": "default",
    }


VALUES: dict[str, Any] = {"200 B": text(200), "1 KB": text(1024), "2 KB": chat_response(), "10 KB": text(10_240)}


def encoded(size: str) -> bytes:
    """Return the bytes of a value, for those who write them without a log."""
    return Codecs().encode(VALUES[size])


def latencies(store: Path, goal: str, size: str, count: int) -> list[float]:
    """Return the seconds that each of a new run's steps takes, synced; the run ends and is closed."""
    value, times = VALUES[size], []
    clock = time.perf_counter

    def fetch(number: int) -> Any:
        return value

    @durable(goal_id=goal, store=store)
    def fetch_pages() -> int:
        for number in range(count):
            start = clock()
            step(NAME, fetch, number)
            times.append(clock() - start)
        return count

    fetch_pages()
    return times


class Unfinished:
    """A run of many steps that can be driven again and again; it never finishes.

    Args:
        store: where it lies.
        goal: its goal.
        size: what each step returns, a key of ``VALUES``.
        count: how many steps it has.
    """

    def __init__(self, store: Path, goal: str, size: str, count: int) -> None:
        self.calls = 0
        self.opened = 0.0  # CPU seconds from the call of the durable function to its first line
        self.driven = 0.0  # CPU seconds of the steps
        value = VALUES[size]
        self._open_only = False

        def fetch(number: int) -> Any:
            self.calls += 1
            return value

        @durable(goal_id=goal, store=store, sync="process")
        def fetch_pages() -> None:
            start = time.thread_time()
            self.opened = start - self._called
            if not self._open_only:
                for number in range(count):
                    step(NAME, fetch, number)
                self.driven = time.thread_time() - start
            raise Stop

        self._run: Callable[[], None] = fetch_pages

    def drive(self, *, open_only: bool = False) -> None:
        """Open the run and drive it, or open it alone."""
        self._open_only = open_only
        self.calls = 0
        self._called = time.thread_time()
        try:
            self._run()
        except Stop:
            pass
