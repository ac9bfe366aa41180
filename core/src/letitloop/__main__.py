"""``python -m letitloop`` is the command ``lil``."""

from __future__ import annotations

from letitloop.cli import main

if __name__ == "__main__":
    main()
