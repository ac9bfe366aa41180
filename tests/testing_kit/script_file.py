"""A script that a sweep runs as a file, with an argument; what it prints is its result."""

from __future__ import annotations

import sys

from letitloop import durable, step
from letitloop.testing import CallLog

calls = CallLog()


def work(number):
    with calls.call(f"work-{number}"):
        return number + 1


@durable(goal_id="script")
def goal(count):
    total = 0
    for number in range(count):
        total += step("work", work, number)
        calls.returned(f"work-{number}")
    return total


if __name__ == "__main__":
    print("the total is", goal(int(sys.argv[1])))
