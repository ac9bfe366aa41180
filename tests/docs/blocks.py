"""Runs the code blocks of a Markdown page, in order, in one directory with a store of its own.

What counts as code, and what is done with it:

* A ``python`` block whose first line is ``# NAME.py`` is saved under that name and run as a script. Any other runs in the
  page's session: blocks of a page share their names, as they do for a reader who types them in.
* A ``console`` block is a transcript: each line that starts with ``$`` is a command, the lines below it are what it prints.
  Printed lines are compared, with ``...`` for what differs from run to run; a command without any is run and not compared.
* A ``bash`` or ``sh`` block holds one command a line, with or without ``$``.
* Other languages (``text``, ``toml``, ``json`` and so on) are not code. A fence without a language is an error.

A comment on the line above the fence changes that: ``<!-- not run: REASON -->`` leaves the block out, ``<!-- exit: N -->``
expects that exit code of the block's last command, ``<!-- raises: NAME -->`` expects that exception of a Python block.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

COMMANDS = {"lil", "letitloop", "python", "cat", "ls", "cp", "mkdir", "rm", "echo", "printf", "test"}
NOT_CODE = {"text", "toml", "json", "yaml", "ini", "html", "diff", "markdown", "mermaid", "pycon"}
TIMEOUT = 120  # seconds a block may take

# The session of a page: reads a file name a line, runs that file's text in __main__, answers with "." a line.
SESSION = """
import sys, traceback
answer = sys.__stdout__
sys.path.insert(0, "")
for _path in sys.stdin:
    _path = _path.rstrip("\\n")
    __file__ = _path
    try:
        exec(compile(open(_path, encoding="utf-8").read(), _path, "exec"))
    except BaseException as _exc:
        sys.stdout.flush()
        traceback.print_exc()
        print("\\0" + type(_exc).__name__, flush=True)
    else:
        print("\\0", flush=True)
"""


class BlockFailed(AssertionError):
    """A block did not do what the page says; the message names the page and the line."""


class Block(NamedTuple):
    language: str
    line: int
    text: str
    marks: dict[str, str]


def parse(page: str) -> list[Block]:
    """Return the fenced blocks of a Markdown text with the comments above them."""
    blocks = []
    lines = page.splitlines()
    at = 0
    while at < len(lines):
        fence = re.match(r"^( *)(`{3,}|~{3,})\s*(\S*)", lines[at])
        if not fence:
            at += 1
            continue
        indent, ticks, language = fence.groups()
        end = next((n for n in range(at + 1, len(lines)) if lines[n].strip().startswith(ticks)), None)
        if end is None:
            raise BlockFailed(f"line {at + 1}: this fence is never closed")
        above = at - 1
        marks = {}
        while above >= 0 and (mark := re.match(r"^\s*<!--\s*(not run|exit|raises)\s*:?\s*(.*?)\s*-->\s*$", lines[above])):
            marks[mark[1]] = mark[2]
            above -= 1
        if marks.get("not run") == "":
            raise BlockFailed(f"line {at + 1}: 'not run' needs its reason: <!-- not run: REASON -->")
        text = "\n".join(line.removeprefix(indent) for line in lines[at + 1 : end]) + "\n"
        blocks.append(Block(language, at + 1, text, marks))
        at = end + 1
    return blocks


def transcript(block: Block) -> list[tuple[str, str]]:
    """Split a block into commands and what each prints; a backslash at the end of a line continues it."""
    prompted = block.language == "console" or re.search(r"^\$ ", block.text, re.MULTILINE)
    found: list[list[str]] = []
    open_line = False
    for line in block.text.splitlines():
        if open_line:
            found[-1][0] += "\n" + line
        elif prompted and line.startswith("$ "):
            found.append([line[2:], ""])
        elif prompted and found:
            found[-1][1] += line + "\n"
        elif prompted and line.strip():
            raise BlockFailed(f"line {block.line}: a console block starts with a command: '$ ...'")
        elif not prompted and line.strip() and not line.startswith("#"):
            found.append([line, ""])
        else:
            continue
        open_line = found[-1][0].endswith("\\") and (open_line or not prompted or line.startswith("$ "))
    return [(command, printed.rstrip("\n")) for command, printed in found]


def first_words(command: str) -> set[str]:
    """Return the programs that a command line calls."""
    words = set()
    fresh = True
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    for word in lexer:
        if word in {"&&", "||", ";", "|", "&", "(", ")"}:
            fresh = True
        elif fresh and not re.match(r"^\w+=", word):
            words.add(word)
            fresh = False
    return words


class Page:
    """One page being run: its directory, its environment, and its Python session."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("LETITLOOP_")}
        self.env |= {
            "LETITLOOP_STORE": str(place / ".letitloop"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), self.env.get("PATH", "")]),
            "PYTHONSAFEPATH": "",
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "TERM": "dumb",
        }
        self.session: subprocess.Popen[str] | None = None
        self.log = place / "session.log"

    def close(self) -> None:
        if self.session is not None:
            self.session.stdin.close()
            self.session.stdout.close()
            self.session.wait(TIMEOUT)

    def python(self, block: Block) -> None:
        named = re.match(r"^# ([\w-]+\.py)\n", block.text)
        expected = block.marks.get("raises", "")
        if named:
            (self.place / named[1]).write_text(block.text, encoding="utf-8")
            if expected == "" and (code := self.shell(f"{shlex.quote(sys.executable)} {named[1]}")[0]):
                raise BlockFailed(f"exit code {code}:\n{self.printed}")
            return
        if self.session is None:
            self.session = subprocess.Popen(
                [sys.executable, "-c", SESSION],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=self.place,
                env=self.env,
            )
        source = self.place / f"line_{block.line}.py"
        source.write_text(block.text, encoding="utf-8")
        self.session.stdin.write(f"{source.name}\n")
        self.session.stdin.flush()
        printed = ""
        for line in self.session.stdout:
            if "\0" in line:
                raised = line.partition("\0")[2].strip()
                if raised != expected:
                    raise BlockFailed(f"raised {raised or 'nothing'}, expected {expected or 'nothing'}:\n{printed}")
                return
            printed += line
        raise BlockFailed(f"ended the session:\n{printed}")

    def shell(self, command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.place,
            env=self.env,
            timeout=TIMEOUT,
            check=False,
        )
        self.printed = done.stdout
        return done.returncode, done.stdout

    def commands(self, block: Block) -> None:
        found = transcript(block)
        for number, (command, expected) in enumerate(found, 1):
            if unknown := first_words(command) - COMMANDS:
                raise BlockFailed(f"calls {', '.join(sorted(unknown))}, which no test runs: mark the block, with the reason")
            code, printed = self.shell(command)
            wanted = int(block.marks.get("exit", 0)) if number == len(found) else 0
            if code != wanted:
                raise BlockFailed(f"$ {command}\nexit code {code}, expected {wanted}:\n{printed}")
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            if expected and not doctest.OutputChecker().check_output(expected + "\n", printed, flags):
                raise BlockFailed(f"$ {command}\nthe page says:\n{expected}\nit printed:\n{printed}")

    def run(self, block: Block) -> None:
        if "not run" in block.marks or block.language in NOT_CODE:
            return
        if block.language == "python":
            self.python(block)
        elif block.language in {"console", "bash", "sh"}:
            self.commands(block)
        else:
            raise BlockFailed(f"the language {block.language!r} says neither how to run it nor that it is 'text'")


def run_page(page: Path, place: Path) -> int:
    """Run every block of ``page`` in the directory ``place`` and return how many there were.

    Raises:
        BlockFailed: naming the page and the line of the first block that does not do what the page says.
    """
    session = Page(place)
    try:
        blocks = parse(page.read_text(encoding="utf-8"))
        for block in blocks:
            try:
                session.run(block)
            except (BlockFailed, subprocess.TimeoutExpired) as exc:
                raise BlockFailed(f"{page.name}, line {block.line}: {exc}") from None
    finally:
        session.close()
    return len(blocks)
