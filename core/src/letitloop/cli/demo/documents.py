"""Documents: read as text whatever their encoding, and split into sections by their headings."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from letitloop.cli.demo.textrank import sentences

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MOST_SECTIONS", "Document", "DocumentError", "Section", "read", "shipped", "split", "text_of"]

LARGEST = 20_000_000  # bytes of one document
LONGEST = 14_000  # characters of one section: ranking its sentences takes time that grows with the cube of their number
MOST_SECTIONS = 60  # of all documents together; what comes after them is left out
SHORTEST = 1_200  # characters of a group of paragraphs, where a document has no headings
LONGEST_GROUP = 5_000  # and at most: a long document is split into more groups instead
GROUPS = 6  # into how many groups a document without headings is split, if it is long enough

_FENCE = re.compile(r" {0,3}(```|~~~)")
_ATX = re.compile(r" {0,3}#{1,6}[ \t]+(\S.*?)[ \t]*#*[ \t]*$")
_RULE = re.compile(r"[ \t]*([=\-~^*+#_\"])\1{2,}[ \t]*$")
_NUMBER = r"(?:[ivxlcdm]+|\d+|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|the \w+)"
_KINDS = (
    "chapter|article|section|part|book|letter|act|scene|canto|lecture|appendix|kapitel|teil|abschnitt|artikel|"
    "chapitre|partie|livre|capítulo|capitulo|parte|libro|capitolo|atto"
)
_NUMBERED = re.compile(rf"(?P<kind>{_KINDS})\.?[ \t]+{_NUMBER}\b(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_OUTLINE = re.compile(r"\d+(?:\.\d+)*\.?[ \t]+(?P<title>\S.*)")
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")


class DocumentError(Exception):
    """A document cannot be used; the message names it and says why."""


@dataclass(frozen=True)
class Document:
    r"""A document as it was read.

    Args:
        name: its file name.
        text: its text, with ``\n`` as the line end.
    """

    name: str
    text: str


@dataclass(frozen=True)
class Section:
    """A part of a document that gets a summary of its own.

    Args:
        document: the document's name.
        title: the heading, or what stands for it.
        text: the body.
    """

    document: str
    title: str
    text: str


def shipped() -> list[Path]:
    """Name the texts that the distribution brings along; ``SOURCES.md`` beside them says where they are from."""
    return sorted((Path(__file__).parent / "texts").glob("*.txt"))


def read(path: str) -> bytes:
    """Read a document's bytes.

    Args:
        path: a file, a pipe, or ``-`` for standard input.

    Raises:
        DocumentError: it does not exist, is a directory, can't be read, or is larger than 20 MB.
    """
    try:
        if path == "-":
            data = sys.stdin.buffer.read(LARGEST + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise DocumentError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise DocumentError(f"{path} is a directory: name the documents in it, for instance {path.rstrip('/')}/*.txt") from None
    except (OSError, ValueError) as error:
        raise DocumentError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > LARGEST:
        raise DocumentError(f"{path} is larger than {LARGEST // 1_000_000} MB: give a part of it")
    return data


def text_of(data: bytes, name: str) -> Document:
    """Decode a document: UTF-8, UTF-16 with a byte order mark, else Windows-1252.

    Raises:
        DocumentError: it is no text, or holds no words.
    """
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    if b"\0" in data and not wide:
        raise DocumentError(f"{name} is a binary file, not text: convert it to plain text first")
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        text = _western(data, name, wide=wide)
    if _CONTROL.search(text):
        raise DocumentError(f"{name} is a binary file, not text: convert it to plain text first")
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n")
    if not any(character.isalnum() for character in text):
        raise DocumentError(f"{name} is empty: there is nothing to summarise")
    return Document(name, text)


def _western(data: bytes, name: str, *, wide: bool) -> str:
    try:
        return data.decode("utf-16" if wide else "cp1252")
    except UnicodeDecodeError:
        raise DocumentError(
            f"{name} is a binary file, or text in an encoding that is not UTF-8: convert it to UTF-8 first"
        ) from None


def split(document: Document) -> list[Section]:
    r"""Split a document into sections by its headings; without headings, into groups of paragraphs.

    Headings are Markdown's ``#`` and underlined ones, numbered ones (``CHAPTER I.``, ``Article 2:``, ``3.1 Scope``), and short
    lines in capitals that stand alone. A section that is very long becomes several parts.

    >>> [section.title for section in split(Document("a.md", "# One\n\nFirst text.\n\n# Two\n\nSecond text."))]
    ['One', 'Two']
    """
    stem = Path(document.name).stem.replace("_", " ") or document.name
    pieces = _demote(list(_pieces(document.text)))
    if not any(heading for heading, _ in pieces):
        return _grouped(document, [text for _, text in pieces])
    sections: list[Section] = []
    titles: list[str] = []
    body: list[str] = []
    for heading, text in [*pieces, (True, "")]:
        if not heading:
            body.append(text)
            continue
        if body:
            sections += _parts(Section(document.name, ": ".join(titles[-2:]) or stem, "\n\n".join(body)))
            titles, body = [], []
        titles.append(text)
    found = [section for section in sections if sentences(section.text)]
    return found or _grouped(document, [text for _, text in pieces])  # a document of headings alone is text as well


def _pieces(text: str) -> Iterable[tuple[bool, str]]:
    """Give the blocks of a text between blank lines, and for each whether it is a heading."""
    for block in _blocks(text):
        lines = block.split("\n")
        if _FENCE.match(lines[0]):
            yield False, block
        elif (title := _title(lines)) is not None:
            yield True, title
        else:
            yield from _inside(lines)


def _blocks(text: str) -> Iterable[str]:
    block: list[str] = []
    fence = ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if fence:
            block.append(line)
            fence = "" if mark and mark[1] == fence else fence
        elif mark or not line.strip():
            if block:
                yield "\n".join(block)
            block = [line] if mark else []
            fence = mark[1] if mark else ""
        else:
            block.append(line)
    if block:
        yield "\n".join(block)


def _title(lines: list[str]) -> str | None:
    """Tell a block that is nothing but a heading from text that looks like one."""
    whole = " ".join(line.strip() for line in lines)
    if len(lines) > 3 or len(whole) > 120 or any(_RULE.match(line) or _ATX.match(line) for line in lines):
        return None
    numbered = _NUMBERED.match(whole)
    if numbered:
        rest = numbered["rest"].strip()
        # "Article I gives Congress its powers." is a sentence; "ARTICLE I" and "Article I. Powers" are headings
        sentence = rest.endswith(".") and rest.split()[-1][0].islower()
        if not sentence and (numbered["kind"].isupper() or not rest or rest[0] in ".:-–—"):
            return whole.rstrip(".:")
    if len(lines) > 2 or len(whole) > 80:
        return None
    outline = _OUTLINE.match(whole)
    if outline and len(lines) == 1 and outline["title"][0].isupper() and outline["title"][-1] not in ".,;:!?":
        return whole
    capitals = sum(character.isalpha() for character in whole)
    return whole.rstrip(".:") if whole.isupper() and capitals >= 4 else None


def _inside(lines: list[str]) -> Iterable[tuple[bool, str]]:
    """Find the headings that a block's lines mark themselves: ``# title``, and a line under or around the title."""
    text: list[str] = []
    i = 0
    while i < len(lines):
        atx = _ATX.match(lines[i])
        under = i + 1 < len(lines) and not text and _RULE.match(lines[i + 1])
        over = i + 2 < len(lines) and _RULE.match(lines[i]) and _RULE.match(lines[i + 2]) and not _RULE.match(lines[i + 1])
        if atx or (under and not _RULE.match(lines[i])) or over:
            if text:
                yield False, "\n".join(text)
                text = []
            yield True, atx[1] if atx else lines[i + 1 if over else i].strip()
            i += 1 if atx else 3 if over else 2
        else:
            if not _RULE.match(lines[i]):
                text.append(lines[i])
            i += 1
    if text:
        yield False, "\n".join(text)


def _demote(pieces: list[tuple[bool, str]]) -> list[tuple[bool, str]]:
    """Turn four and more headings in a row back into text: they are a table of contents or a list."""
    result: list[tuple[bool, str]] = []
    i = 0
    while i < len(pieces):
        end = i
        while end < len(pieces) and pieces[end][0]:
            end += 1
        run = pieces[i:end]
        # the last line before a text may be that text's own heading
        keep = len(run) if len(run) < 4 else int(end < len(pieces))
        result += [(False, text) for _, text in run[: len(run) - keep]] + run[len(run) - keep :]
        result += pieces[end : end + 1]
        i = end + 1
    return result


def _grouped(document: Document, paragraphs: list[str]) -> list[Section]:
    goal = min(LONGEST_GROUP, max(SHORTEST, sum(map(len, paragraphs)) // GROUPS))
    groups = _gather(_small_enough(paragraphs, goal), goal)
    found: list[Section] = []
    count = 0
    for group in groups:
        first, count = count + 1, count + len(group)
        title = f"Paragraph {first}" if first == count else f"Paragraphs {first}-{count}"
        found.append(Section(document.name, title, "\n\n".join(group)))
    return [section for section in found if sentences(section.text)]


def _parts(section: Section) -> list[Section]:
    if len(section.text) <= LONGEST:
        return [section]
    count = -(-len(section.text) // LONGEST)
    goal = -(-len(section.text) // count)
    parts = _gather(_small_enough(section.text.split("\n\n"), goal), goal)
    return [
        Section(section.document, f"{section.title} ({number}/{len(parts)})", "\n\n".join(part))
        for number, part in enumerate(parts, 1)
    ]


def _small_enough(paragraphs: Iterable[str], limit: int) -> Iterable[str]:
    """Cut paragraphs that are longer than ``limit`` characters at their lines, else at their sentences."""
    for paragraph in paragraphs:
        if len(paragraph) <= limit:
            yield paragraph
            continue
        lines = paragraph.split("\n")
        yield from ("\n".join(group) for group in _gather(lines if max(map(len, lines)) <= limit else sentences(paragraph), limit))


def _gather(pieces: Iterable[str], goal: int) -> list[list[str]]:
    """Put neighbouring pieces together until a group is as near to ``goal`` characters as it gets."""
    groups: list[list[str]] = [[]]
    size = 0
    for piece in pieces:
        if size and size + len(piece) / 2 > goal:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += len(piece)
    return [group for group in groups if group]
