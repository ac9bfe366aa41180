"""A support team of three: triage, refunds, and the customer, who is asked before money moves."""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
from collections import Counter
from pathlib import Path

from autogen_agentchat.agents import AssistantAgent, UserProxyAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import Swarm
from script import Model

from letitloop import effect
from letitloop.adapters.autogen import AutoGenStateSerializer
from letitloop.effects.providers import SqliteProvider

CASE = json.loads((Path(__file__).parent / "case.json").read_text())
CALLS = Path("calls.log")


def note(what):
    """Note what was really done, outside letitloop, in a file that only grows."""
    with CALLS.open("a") as file:
        file.write(f"{what}\n")


# --- the shop ----------------------------------------------------------------------------------------------------------------


def book(connection, arguments):
    note("tool refund")
    connection.execute("insert into refund values (?, ?)", (arguments["order_id"], arguments["amount_minor"]))
    return {"refunded": arguments["amount_minor"]}


def open_shop():
    shop = sqlite3.connect("shop.db")
    shop.execute("create table if not exists refund(order_id text, amount_minor integer)")
    shop.commit()
    return shop


# --- the team ----------------------------------------------------------------------------------------------------------------


def look_up(order_id: str) -> str:
    """Look an order up."""
    note("tool look_up")
    order = CASE["orders"][order_id]
    return f"{order['item']}, paid {order['paid_minor']}"


def refund(order_id: str, amount_minor: int) -> str:
    """Refund an order."""
    with open_shop() as shop:
        return str(book(shop, {"order_id": order_id, "amount_minor": amount_minor}))


def customer_answers(prompt: str) -> str:
    note("customer asked")
    return CASE["answer"]


def build_team(kill_at):
    model = Model(note, kill_at)
    triage = AssistantAgent("triage", model, tools=[look_up], handoffs=["refunds"], system_message="You do triage.")
    refunds = AssistantAgent("refunds", model, tools=[refund], handoffs=["customer", "triage"], system_message="You refund.")
    customer = UserProxyAgent("customer", input_func=customer_answers)
    return Swarm([triage, refunds, customer], termination_condition=TextMentionTermination("goodbye"))


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--kill-at", type=int, default=0, help="the step of the model at which the process is killed")
    options.add_argument("--stock", action="store_true", help="without letitloop")
    given = options.parse_args()

    open_shop().close()
    team = build_team(given.kill_at)
    if not given.stock:
        till = SqliteProvider("shop.db", operations={"refund": book})
        durability = AutoGenStateSerializer(
            session_id="case 42",
            tools={"refund": effect(key="refund/{order_id}", provider=till)},
        )
        durability.wrap_team(team)
    result = asyncio.run(team.run(task=CASE["task"]))

    print(f"{result.messages[-1].source}: {result.messages[-1].content}")
    for what, count in Counter(CALLS.read_text().splitlines()).items():
        print(f"  {count} x {what}")
    rows = open_shop().execute("select order_id, amount_minor from refund").fetchall()
    print(f"refunds in the shop's books: {rows}")


if __name__ == "__main__":
    main()
