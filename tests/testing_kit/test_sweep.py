"""A kill sweep really kills, notices what it should, and can be repeated."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from letitloop.errors import InvalidArgument, LetItLoopError
from letitloop.testing import CallLog, SweepReport, kill_sweep, kill_sweeps
from letitloop.testing.evidence import Life, judge, read_lives
from tests.testing_kit import scripts

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def problems(report: SweepReport) -> str:
    return "\n".join(problem for failure in report.failures for problem in failure.problems)


def test_a_program_that_survives_is_killed_everywhere():
    report = kill_sweep(scripts.survives)
    assert report.ok, report
    assert report.trials == report.killed == len(report.events) > 10
    assert report.killed_at.keys() == set(report.events)
    assert "fs.pwrite" in report.events


def test_several_programs_are_swept_in_one_process():
    survives, forgets = kill_sweeps({scripts.survives: {"sample": 2}, scripts.forgets: {}}, sample=3, seed=5)
    assert survives.ok, survives
    assert (survives.trials, forgets.trials) == (2, 3)
    assert forgets.failures
    for failure in forgets.failures:
        shutil.rmtree(Path(failure.directory).parent, ignore_errors=True)


def test_it_is_killed_twice_and_at_random_instants():
    report = kill_sweep(scripts.survives, sample=8, instants=12, kills=2, seed=3)
    assert report.ok, report
    assert report.trials == 20
    assert sum(report.killed_at.values()) > report.killed


def test_a_draw_can_be_repeated(tmp_path):
    reports = [kill_sweep(scripts.forgets, sample=3, seed=seed, workdir=tmp_path / str(n)) for n, seed in enumerate((5, 5, 6))]
    drawn = [[failure.trial for failure in report.failures] for report in reports]
    assert drawn[0] == drawn[1]
    assert str(reports[0]).startswith("tests.testing_kit.scripts:forgets: 6 events, 3 trials")


def test_what_had_returned_and_ran_again_is_found(tmp_path, capsys):
    report = kill_sweep(scripts.forgets, workdir=tmp_path, seed=11)
    assert not report.ok
    assert "work-0 had returned and ran again in life 1" in problems(report)
    assert "seed=11" in capsys.readouterr().out
    kept = Path(report.failures[0].directory)
    assert (kept / "evidence").is_dir()
    assert report.failures[0].kills[0] in ("at event 2, returned", "at event 3, working")


def test_more_reruns_than_calls_in_flight_are_found(tmp_path):
    assert kill_sweep(scripts.forgets_silently).ok
    report = kill_sweep(scripts.forgets_silently, in_flight=1, workdir=tmp_path)
    assert "2 calls ran again in life 1, at most 1 were in flight: work-0, work-1" in problems(report)


def test_another_result_is_found(tmp_path):
    report = kill_sweep(scripts.differs, workdir=tmp_path)
    assert problems(report) == "the result is {'lives': 2}, uninterrupted it is {'lives': 1}"


def test_work_that_was_left_out_is_found(tmp_path):
    assert problems(kill_sweep(scripts.skips, workdir=tmp_path)) == "work never ran"


def test_a_life_that_hangs_is_ended_and_found(tmp_path):
    report = kill_sweep(scripts.hangs, timeout=1.0, workdir=tmp_path)
    assert "life 1 hung for 1.0 s" in problems(report)


def test_a_life_that_breaks_is_found_with_its_traceback(tmp_path):
    report = kill_sweep(scripts.breaks, workdir=tmp_path)
    assert "RuntimeError: the second life breaks" in problems(report)


def test_a_script_file_is_run_as_main_and_compared_by_what_it_prints():
    report = kill_sweep(Path(__file__).with_name("script_file.py"), argv=["3"], preload=["letitloop.runs.api"], sample=10)
    assert report.ok, report


def test_a_program_that_fails_alone_is_no_subject():
    with pytest.raises(LetItLoopError, match="not even alone"):
        kill_sweep(scripts.fails_alone)


def test_a_sweep_without_a_kill_is_not_ok():
    report = kill_sweep(scripts.passes_nothing)
    assert report.trials == 0
    assert not report.ok


def test_what_another_process_cannot_find_is_refused(tmp_path):
    def local(evidence):
        return None

    for script in (local, lambda evidence: None, print):
        with pytest.raises(InvalidArgument, match="top level of a module"):
            kill_sweep(script)
    with pytest.raises(InvalidArgument, match="is no file"):
        kill_sweep(tmp_path / "none.py")
    with pytest.raises(InvalidArgument, match="kills=0"):
        kill_sweep(scripts.survives, kills=0)


def test_a_system_without_fork_is_told_so(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(LetItLoopError, match="Linux or macOS"):
        kill_sweep(scripts.survives)


def test_a_report_survives_json():
    report = kill_sweep(scripts.survives, sample=2, instants=1)
    assert SweepReport.from_json(report.to_json()) == report


def test_the_call_log_counts_and_is_judged(tmp_path):
    calls = CallLog(tmp_path, sync=True)
    with pytest.raises(RuntimeError), calls.call("raises"):
        raise RuntimeError
    calls.life(1)
    calls.started("raises")
    calls.returned("raises")
    assert calls.count("raises") == 2
    lives = read_lives(tmp_path)
    assert lives[0].finished["raises"] == 1
    assert lives[1].finished["raises"] == 0
    alone = lives[1]
    assert judge(lives, alone, in_flight=1) == []
    assert judge(lives, alone, in_flight=0) == ["1 calls ran again in life 1, at most 0 were in flight: raises"]
    assert judge(lives, Life()) == [
        "raises ran 1 times in life 1, 0 times uninterrupted",
        "raises ran, but does not run uninterrupted",
    ]
    with pytest.raises(ValueError, match="one line"):
        calls.started("a\nb")
    calls.close()
    assert read_lives(tmp_path / "none") == []
