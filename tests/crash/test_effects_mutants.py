"""The mutation gate of the intent ledger: each fault in ``effects_mutants.py`` is noticed by the test it names."""

from __future__ import annotations

import os

import pytest

from tests.crash import effects_mutants
from tests.crash.effects_mutants import MUTANTS, Mutant

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="these tests fork")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.invariant} {mutant.name}".strip())
def test_mutant_is_killed(mutant, record_property):
    effects_mutants.check_texts(mutant)
    survived, text = effects_mutants.survives(mutant)
    record_property("mutant", [mutant.name, mutant.test.rpartition("::")[2], "" if survived else f"{mutant.invariant} is broken"])
    assert not survived, f"{mutant.test} does not notice: {mutant.name}\n{text}"


@pytest.mark.parametrize("test", sorted({mutant.test for mutant in MUTANTS}))
def test_that_finds_nothing_in_the_real_code(test):
    survived, text = effects_mutants.survives(Mutant("", "none", test, ()))
    assert survived, text


def test_every_invariant_has_one():
    assert {mutant.invariant for mutant in MUTANTS} >= {f"I{number}" for number in range(1, 21)}
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
