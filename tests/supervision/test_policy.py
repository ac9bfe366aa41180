"""The restart policy, without processes and without a clock."""

from __future__ import annotations

import pytest

from letitloop import InvalidArgument
from letitloop.supervision.deaths import Death, what_ended
from letitloop.supervision.policy import Policy, Restarts, parse_restart_on

KILLED = Death(137, signal=9)
CRASHED = Death(1, cause="ValueError: no luck", crashed=True)
EXITED = Death(3)


def restarts(**options) -> Restarts:
    return Restarts(Policy(**{"jitter": 0.0, "max_rapid_failures": 0, **options}), lambda: 0.5)


def test_backoff_doubles_to_its_maximum():
    state = restarts(backoff=0.5, max_backoff=5.0, max_restarts=100)
    waits = [state.died(KILLED, now=float(n), lived=0.0, progress=False).wait for n in range(6)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_backoff_has_a_random_part_that_makes_it_shorter():
    policy = Policy(backoff=10.0, jitter=0.2)
    assert [policy.wait(1, chance) for chance in (0.0, 0.5, 1.0)] == [10.0, 9.0, 8.0]


@pytest.mark.parametrize("recovery", [{"lived": 30.0, "progress": False}, {"lived": 0.0, "progress": True}])
def test_a_life_that_was_healthy_or_got_further_begins_the_backoff_anew(recovery):
    state = restarts(backoff=1.0, max_restarts=100)
    waits = []
    for n, life in enumerate([{}, {}, recovery, {}]):
        waits.append(state.died(KILLED, now=float(n), **{"lived": 0.0, "progress": False, **life}).wait)
    assert waits == [1.0, 2.0, 1.0, 2.0]


def test_the_budget_is_a_window_that_slides():
    state = restarts(max_restarts=3, window=600.0)
    decisions = [state.died(KILLED, now=now, lived=1.0, progress=True) for now in (0.0, 100.0, 200.0, 599.0, 600.5, 601.0, 701.0)]
    assert [decision.restart for decision in decisions] == [True, True, True, False, True, False, True]
    assert {decision.ended_by for decision in decisions} == {"", "budget"}
    assert decisions[-1].attempt == 5


def test_no_restarts_at_all():
    decision = restarts(max_restarts=0).died(KILLED, now=0.0, lived=1.0, progress=False)
    assert (decision.restart, decision.ended_by) == (False, "budget")


def test_the_breaker_counts_deaths_in_a_row_that_were_rapid_and_without_progress():
    state = restarts(max_restarts=100, max_rapid_failures=3, healthy_after=30.0)

    def died(lived=1.0, progress=False):
        return state.died(KILLED, now=0.0, lived=lived, progress=progress).ended_by

    assert [died(), died(), died(progress=True), died(), died(lived=31.0), died(), died(), died()] == [""] * 7 + ["breaker"]


def test_with_progress_each_time_the_breaker_stays_closed():
    state = restarts(max_restarts=1000, max_rapid_failures=2)
    assert all(state.died(KILLED, now=0.0, lived=0.0, progress=True).restart for _ in range(1000))


def test_causes_are_counted_and_their_number_is_bounded():
    state = restarts(max_restarts=10_000)
    for n in range(500):
        state.died(Death(1, cause=f"ValueError: {n}", crashed=True), now=0.0, lived=0.0, progress=True)
        state.died(KILLED, now=0.0, lived=0.0, progress=True)
    assert state.causes["SIGKILL"] == 500
    assert len(state.causes) <= 101


@pytest.mark.parametrize(
    ("restart_on", "again"),
    [
        ("signal", {KILLED}),
        ("crash", {CRASHED}),
        (("signal", "crash"), {KILLED, CRASHED}),
        ("any", {KILLED, CRASHED, EXITED}),
        ("exit:3", {EXITED}),
        ("exit:1,3", {EXITED, CRASHED}),
        ("signal,exit:3", {KILLED, EXITED}),
        ("exit:137", set()),
    ],
)
def test_which_deaths_are_followed_by_a_restart(restart_on, again):
    deaths = (KILLED, CRASHED, EXITED)
    assert {d for d in deaths if restarts(restart_on=restart_on).died(d, now=0.0, lived=0.0, progress=False).restart} == again


def test_what_cannot_pass_by_itself_is_not_tried_again_unless_its_code_is_named():
    usage = what_ended(2, "usage: program [-h]\nprogram: error: unrecognized arguments: -x\n")
    assert usage.permanent
    assert not restarts(restart_on="any").died(usage, now=0.0, lived=0.0, progress=False).restart
    assert restarts(restart_on="exit:2").died(usage, now=0.0, lived=0.0, progress=False).restart


def test_what_the_watcher_ended_is_started_again():
    hung = what_ended(-6, "", by="no log progress for 300 s")
    assert hung.code == 134
    assert restarts(restart_on="crash").died(hung, now=0.0, lived=0.0, progress=False).restart


@pytest.mark.parametrize("words", ["", "signals", "exit:", "exit:0", "exit:256", "exit:-1", "exit:x", "3", "signal,3", "any,"])
def test_words_that_mean_nothing_are_refused(words):
    with pytest.raises(InvalidArgument, match="restart_on"):
        parse_restart_on(words)


@pytest.mark.parametrize(
    "options",
    [
        {"max_restarts": -1},
        {"max_restarts": 1.5},
        {"max_restarts": True},
        {"max_rapid_failures": -1},
        {"backoff": -1.0},
        {"backoff": float("nan")},
        {"max_backoff": float("inf")},
        {"window": 0.0},
        {"healthy_after": "long"},
    ],
)
def test_options_that_mean_nothing_are_refused(options):
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        Policy(**options)
