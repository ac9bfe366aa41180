"""One line for each decision about a resumed kickoff."""

from __future__ import annotations

import logging

__all__ = ["tell"]

_logger = logging.getLogger("letitloop")


def tell(line: str, *, loud: bool = False) -> None:
    """Log a decision.

    Args:
        line: what is done, to what, and why.
        loud: something of the program changed: a warning, which is seen without logging being set up.
    """
    _logger.log(logging.WARNING if loud else logging.INFO, "letitloop: %s", line)
