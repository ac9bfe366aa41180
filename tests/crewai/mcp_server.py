"""A server of the Model Context Protocol over stdio: a process of its own that notes what is ordered."""

from __future__ import annotations

import sys

from mcp.server.fastmcp import FastMCP

server = FastMCP("shop")


@server.tool()
def order(item: str) -> str:
    """Order an item."""
    with open(sys.argv[1], "a") as file:
        file.write(item + "\n")
    return f"ordered {item}"


if __name__ == "__main__":
    server.run("stdio")
