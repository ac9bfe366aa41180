"""The demos called as a person calls them, on a terminal too; and their reports, read as a browser does."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from html.parser import HTMLParser

LOADING = ("src", "href", "srcset", "data", "xlink:href", "poster", "background", "action", "cite", "manifest")


def lil(*arguments, stdin=None, **environment) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(
        [sys.executable, "-m", "letitloop", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=100,
        env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", **environment},
        check=False,
    )


def on_terminal(columns: int, *arguments, **environment) -> list[str]:
    """Call ``lil`` on a terminal of so many columns; return the lines that it shows, without the codes between."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    path = os.pathsep.join(entry for entry in sys.path if entry)
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    child = subprocess.Popen(
        [sys.executable, "-m", "letitloop", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
        env={**kept, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "TERM": "xterm-256color", **environment},
    )
    os.close(its)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # how Linux says that nobody has the other end open any more
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert child.wait(100) == 0, shown
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r", "\n").splitlines()


class Page(HTMLParser):
    """What a page consists of, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.links += [value for name, value in attrs if name in LOADING]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def offline(text: str) -> Page:
    """Parse a report, and see that it is whole, has one picture, and loads nothing."""
    page = Page(text)
    assert page.open == []
    assert page.tags.count("svg") == 1
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert page.links == []
    assert not re.search(r"url\(|@import|https?://|//[a-z]", text)
    return page
