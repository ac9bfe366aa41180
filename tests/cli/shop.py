"""A bank whose replies get lost, and which can be asked; ``SHOP`` says how it behaves, ``SHOP_BOOK`` is its book."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from letitloop import Approval, Ledger, register_provider
from letitloop.effects.provider import Found, NotExecuted, Unavailable, Window
from letitloop.effects.providers import FunctionProvider

NS = "shop-account-1"


@dataclass
class Money:
    amount: int


def book() -> list[list]:
    path = Path(os.environ["SHOP_BOOK"])
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def enter(key: str, amount: int) -> None:
    with Path(os.environ["SHOP_BOOK"]).open("a") as file:
        file.write(json.dumps([key, amount]) + "\n")


def pay(amount_minor, *, idempotency_key, card=None, dispatch=None):
    how = os.environ.get("SHOP", "")
    if how == "lost":
        raise TimeoutError("no reply in 30 s")
    if how == "reject":
        return NotExecuted("rejected", "402 card \x1b[31mdeclined")
    enter(idempotency_key, amount_minor)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "late":
        raise TimeoutError("no reply in 30 s")
    if how == "wait":
        print("inside", flush=True)
        sys.stdin.read()
    return {"refund": "re_1", "amount": amount_minor}


def look(dispatch):
    how = os.environ.get("SHOP_ASKED", "")
    if how == "down":
        return Unavailable("connection refused")
    found = [amount for key, amount in book() if key == dispatch.provider_key]
    if not found:
        return None
    stated = {"amount_minor": found[0] + (how == "wrong")}
    return Found({"refund": "re_1"}, dispatch.provider_key, stated, receipt={"id": "re_1"})


async def alook(dispatch):
    return look(dispatch)


async def apay(amount_minor):
    raise TimeoutError("no reply in 30 s")


refunds = FunctionProvider(pay, identity="bank/1 acct_1", name="bank", lookup=look, redispatch=Window(3600))
opaque = FunctionProvider(pay, identity="opaque/1", name="opaque")
in_loop = FunctionProvider(apay, identity="loop/1", name="loop", lookup=alook)
register_provider("bank", refunds)
number = 3


def make():
    return refunds


def fail():
    raise OSError("no credentials")


class Xor:
    """No cipher to use, and one to test with."""

    @staticmethod
    def encrypt(data: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in data)

    decrypt = encrypt


def act(key, provider=refunds, *, how="", amount=1200, ledger=None, **options):
    """Try an action, and return the class of what it raised."""
    before = os.environ.get("SHOP")
    os.environ["SHOP"] = how
    try:
        (ledger or Ledger()).run(NS, key, provider, {"amount_minor": amount}, operation="refund", **options)
    except BaseException as error:
        return type(error).__name__
    finally:
        os.environ["SHOP"] = before or ""
    return ""


def fill() -> None:
    """Make an intent of each kind."""
    act("order-1/paid")
    act("order-2/lost", how="lost")
    act("order-3/opaque", opaque, how="lost")
    act("order-4/rejected", how="reject")
    act("order-5/large", approval=Approval(ttl="1h"))
