"""The mutation gate: each fault in ``mutants.py`` is noticed by the layer it names, and no layer complains about the real code."""

from __future__ import annotations

import pytest

from tests.crash import mutants, worlds
from tests.crash.simulated import Violation


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant, record_property):
    world = worlds.mutated(mutant.name, *mutant.changes)
    try:
        mutants.LAYERS[mutant.layer](world)
    except Violation as violation:
        record_property("mutant", [mutant.name, mutant.layer, str(violation)])
        return
    record_property("mutant", [mutant.name, mutant.layer, ""])
    pytest.fail(f"{mutant.layer} does not notice: {mutant.name}")


@pytest.mark.parametrize("layer", sorted({mutant.layer for mutant in mutants.MUTANTS}))
def test_layer_finds_nothing_in_the_real_code(layer):
    mutants.LAYERS[layer](worlds.real())


def test_there_are_enough_of_them():
    assert len(mutants.MUTANTS) >= 20
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS)
