"""The races of ``tests/crash/test_intents_processes.py`` in full: 100 rounds on one key, 2,000 intents at once."""

from __future__ import annotations

import os
import random

import pytest

from tests.effects import races

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def test_a_hundred_rounds_of_eight_processes_on_one_key(tmp_path):
    assert races.one_key(tmp_path, seed=random.randrange(10**6), rounds=100) > 50


def test_two_thousand_intents_of_eight_processes(tmp_path):
    races.many_keys(tmp_path, seed=random.randrange(10**6), intents=2000)
