"""Many processes at one ledger: some are killed, and none of them acts a second time."""

from __future__ import annotations

import random

from letitloop import InFlight, Ledger
from tests.effects.bank import KINDS, Bank, Till
from tests.effects.lives import Life, check_history, lived, row_of

ARGUMENTS = {"operation": "move", "amount": 1200}
ENDS = {"value", "InFlight", "UnknownOutcome", "IntentFailed"}


def one_key(place, seed, rounds, processes=8):
    """Let processes run one and the same action at once, three of them killed somewhere; then one more, to the end."""
    dice = random.Random(seed)
    print(f"seed {seed}")
    killed = 0
    for number in range(rounds):
        kind = KINDS[number % len(KINDS)]
        folder = place / str(number)
        folder.mkdir()
        path, bank = folder / "ledger.db", Bank(str(folder / "bank"), kind, dice.choice(["", "lost"]))
        options = {"recover": "resend" if kind == "window" else "reconcile"}

        def work(life, path=path, bank=bank, options=options):
            for _ in range(500):
                try:
                    return Ledger(path).run("n", "k", bank, ARGUMENTS, **options)
                except InFlight:
                    pass
            return Ledger(path).run("n", "k", bank, ARGUMENTS, **options)

        deaths = [f"*:kill@{dice.randrange(1, 45)}" for _ in range(3)] + [""] * (processes - 3)
        dice.shuffle(deaths)
        lives = [Life(work, failpoint=death, quiet=True) for death in deaths]
        outcomes = [life.end() for life in lives]
        killed += sum(outcome is None for outcome in outcomes)
        assert all(outcome is None or outcome.get("raised", "value") in ENDS for outcome in outcomes), outcomes
        bank.fault = ""
        last = lived(work)
        assert last.get("raised", "value") in ENDS - {"InFlight"}, last
        row, effects = row_of(path), len(bank.done())
        assert effects <= 1, (number, kind, outcomes)
        assert row["state"] in ("SUCCEEDED", "UNKNOWN", "FAILED"), row
        if row["state"] != "UNKNOWN":
            assert effects == (row["state"] == "SUCCEEDED"), (number, kind, row)
        if kind != "window":
            assert len(bank.requests()) <= 1
        check_history(path, bank)
    return killed


def many_keys(place, seed, intents, processes=8):
    """Let processes run the same actions, each in an order of its own; every action is asked for twice."""
    dice = random.Random(seed)
    print(f"seed {seed}")
    till, path = Till(str(place / "till")), place / "ledger.db"
    keys = [f"order-{number}" for number in range(intents)]
    shares = [[*keys[worker::processes], *keys[(worker + 1) % processes :: processes]] for worker in range(processes)]
    for share in shares:
        dice.shuffle(share)

    def work(share):
        def run(life):
            waiting = list(share)
            while waiting:
                key = waiting.pop()
                try:
                    assert Ledger(path).run("n", key, till, {"order": key}) == key
                except InFlight:
                    waiting.insert(0, key)
            return len(share)

        return run

    lives = [Life(work(share), quiet=True) for share in shares]
    outcomes = [life.end() for life in lives]
    assert outcomes == [{"value": len(share)} for share in shares]
    assert sorted(till.counted) == sorted(keys)
    now = check_history(path)
    assert {key for _, key in now} == set(keys)
    assert {state for state, _, _ in now.values()} == {"SUCCEEDED"}
