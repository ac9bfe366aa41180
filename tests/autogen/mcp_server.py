"""A server of the Model Context Protocol over stdio: a process of its own that notes what its tools are called with."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server.fastmcp import FastMCP

server = FastMCP("desk")
NOTES = Path(sys.argv[1])


def note(text: str) -> None:
    with NOTES.open("a") as file:
        file.write(text + "\n")


@server.tool()
def look(what: str) -> str:
    """Look something up."""
    note(f"look {what}")
    return f"{what}: found"


@server.tool()
def pay(number: int, amount: int) -> str:
    """Pay an invoice."""
    note(f"pay {number}")
    return f"paid {amount}"


if __name__ == "__main__":
    server.run("stdio")
