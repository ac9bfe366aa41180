"""Every public error stands on the errors page, with when, what is safe, what to do, and its attributes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import letitloop
from letitloop import errors

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0].strip(): part.partition("\n")[2] for part in re.split(r"^##+ ", PAGE, flags=re.MULTILINE)[1:]}
ROOTS = {"Halt", "LetItLoopError", "CodecError", "LogError"}  # never raised themselves


def test_every_error_is_public():
    assert set(errors.__all__) <= set(letitloop.__all__)


@pytest.mark.parametrize("name", errors.__all__)
def test_the_error_is_on_the_page(name):
    body = SECTIONS[name]
    if name not in ROOTS:
        for word in ("**When:**", "**Safe:**", "**Do:**"):
            assert word in body


@pytest.mark.parametrize("name", sorted(set(errors.__all__) - ROOTS))
def test_the_attributes_of_the_error_are_on_the_page(name):
    known = getattr(errors, name)
    own = known("x").__dict__ if "__init__" in vars(known) else {}
    inherited = {"path"} if issubclass(known, errors.LogError) else set()  # told once, at LogError
    assert {attribute for attribute in own.keys() - inherited if f"`{attribute}`" not in SECTIONS[name]} == set()


def test_nothing_else_claims_to_be_an_error_of_ours():
    assert set(SECTIONS) == set(errors.__all__)
