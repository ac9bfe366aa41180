"""Limits, and what takes an action back, for the tests of what the application grants."""

from __future__ import annotations

from letitloop import Limit
from tests.effects.acting import KEY, SHOP

ONE = Limit(group="refund/42", max_intents=1)
SUM = Limit(group="refund/42", max_sum=("amount_minor", 3000))

TAKES_BACK = {"compensates": (SHOP, KEY)}


def keys(ledger):
    return [intent.key for intent in ledger.list()]


def take_back(ledger, bank, key="back", **options):
    return ledger.run(SHOP, key, bank, {"operation": "charge"}, **{**TAKES_BACK, **options})
