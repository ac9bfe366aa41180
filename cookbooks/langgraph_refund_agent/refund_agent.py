"""A support agent that may refund orders. Killed between the refund and its reply, it is run again, and refunds nothing twice."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from refunds import Refunds

from letitloop import effect
from letitloop.adapters.langgraph import DurableMiddleware, LetItLoopCheckpointSaver, durable_config

HERE = Path(__file__).parent
TICKET = json.loads((HERE / "ticket.json").read_text())


def tell(line: str) -> None:
    """Print what really happened, and keep it in a file that outlives this process."""
    with Path("happened.log").open("a") as file:
        file.write(line + "\n")
    print(line, flush=True)


class SupportModel(BaseChatModel):
    """Stands in for a real model: it looks the order up, asks for the refund, asks once more to be sure, and answers."""

    die_at: int = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        turn = 1 + sum(isinstance(message, AIMessage) for message in messages)
        tell(f"model call {turn}")
        refund = {"name": "refund_order", "args": {"order_id": TICKET["order_id"], "cents": TICKET["cents"]}}
        answers = {
            1: AIMessage("", tool_calls=[{"name": "look_up_order", "args": {"order_id": TICKET["order_id"]}, "id": "call-1"}]),
            2: AIMessage("", tool_calls=[{**refund, "id": "call-2"}, {**refund, "id": "call-3"}]),
            3: AIMessage("Done: " + " / ".join(str(one.content) for one in messages if isinstance(one, ToolMessage))),
        }
        if turn == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return ChatResult(generations=[ChatGeneration(message=answers[turn])])


@tool
def look_up_order(order_id: str) -> str:
    """Look an order up."""
    tell(f"order {order_id} looked up")
    return f"order {order_id}: paid, 2 x teapot, one arrived broken"


@tool
def refund_order(order_id: str, cents: int) -> str:
    """Refund a part of an order."""
    raise AssertionError("the payment service does this")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--kill", choices=["model", "refund"], help="end the process in the model's second call, or after the refund"
    )
    kill = options.parse_args().kill

    service = Refunds("service.db", die_after_commit=kill == "refund")
    agent = create_agent(
        SupportModel(die_at=2 if kill == "model" else 0),
        [look_up_order, refund_order],
        middleware=[DurableMiddleware(tools={"refund_order": effect(key="refund/{order_id}", provider=service)})],
        checkpointer=LetItLoopCheckpointSaver(),
    )
    inputs = {"messages": [("user", TICKET["text"])]}
    answer = agent.invoke(inputs, durable_config(f"ticket-{TICKET['ticket']}", inputs))["messages"][-1]
    print("\nThe customer reads:", answer.content)
    for order_id, cents in service.made():
        print(f"The service made this refund: order {order_id}, {cents} cents")


if __name__ == "__main__":
    main()
