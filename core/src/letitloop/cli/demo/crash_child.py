"""The process of ``lil demo crash``: it carries out one refund through the ledger, and may die in the middle of it."""

from __future__ import annotations

import argparse
import json
import os

from letitloop import Ledger, UnknownOutcome
from letitloop.cli.demo.client import request
from letitloop.effects.provider import Found
from letitloop.effects.providers import FunctionProvider

TYPE_CHECKING = False
if TYPE_CHECKING:
    from letitloop.effects.provider import Dispatch

__all__ = ["DEATH", "NAMESPACE", "refunds_at"]

DEATH = 86  # the exit code of a process that dies on purpose
NAMESPACE = "shop-1"


def refunds_at(url: str, *, account: str, receipts: bool, dies: bool = False) -> FunctionProvider:
    """Make the provider that pays refunds.

    Args:
        url: the account's address at the service.
        account: whose it is: the same for ever, while the address changes.
        receipts: whether it can be asked for a receipt; otherwise it is opaque.
        dies: end this process, without any clean-up, as soon as the service has committed.
    """

    def refund(order: str, amount_minor: int, *, idempotency_key: str) -> object:
        body = json.dumps({"order": order, "amount_minor": amount_minor}).encode()
        _, reply = request("POST", f"{url}/refunds", body, {"Idempotency-Key": idempotency_key})
        if dies:
            os._exit(DEATH)  # the reply is here, and nothing of it is recorded
        return json.loads(reply)

    def receipt(dispatch: Dispatch) -> Found | None:
        status, reply = request("GET", f"{url}/refunds/{dispatch.provider_key}")
        if status == 404:
            return None
        if status != 200:
            raise ConnectionError(f"the service answered {status}")
        found = json.loads(reply)
        stated = {"order": found["order"], "amount_minor": found["amount_minor"]}
        return Found(found, found["key"], stated, {"id": found["id"]})

    lookup = receipt if receipts else None
    return FunctionProvider(refund, identity=f"refunds/1 {account}", name="refunds", lookup=lookup)


def main() -> None:
    """Carry out one refund, and print what came of it as JSON."""
    parser = argparse.ArgumentParser(description="The process that `lil demo crash` starts twice.")
    parser.add_argument("--ledger", required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--account", required=True)
    parser.add_argument("--order", required=True)
    parser.add_argument("--receipts", action="store_true", help="the provider can be asked")
    parser.add_argument("--dies", action="store_true", help="die when the service has committed")
    options = parser.parse_args()
    provider = refunds_at(options.url, account=options.account, receipts=options.receipts, dies=options.dies)
    arguments = {"operation": "refund", "order": options.order, "amount_minor": 1200}
    try:
        result = Ledger(options.ledger).run(NAMESPACE, f"{options.order}/refund-1", provider, arguments)
        told: dict[str, object] = {"outcome": "result", "result": result}
    except UnknownOutcome as unknown:
        told = {"outcome": "UNKNOWN", "result": None, "error": str(unknown)}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
