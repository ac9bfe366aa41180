"""Reading documents and splitting them into sections."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letitloop.cli.demo.documents import LONGEST, Document, DocumentError, read, shipped, split, text_of


def titles(text: str, name: str = "doc.txt") -> list[str]:
    return [section.title for section in split(Document(name, text))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# One\n\nText one.\n\n## Two ##\nText two.\n", ["One", "Two"]),
        ("One\n===\nText one.\n\nTwo\n---\n\nText two.", ["One", "Two"]),
        ("=====\nOne\n=====\n\nText one.", ["One"]),
        (
            "CHAPTER I.\nLoomings\n\nCall me Ishmael.\n\n\nCHAPTER II.\n\nI stuffed a shirt.",
            ["CHAPTER I. Loomings", "CHAPTER II"],
        ),
        ("Chapter 1\n\nText.\n\nChapter 2: The End\n\nText.", ["Chapter 1", "Chapter 2: The End"]),
        ("ARTICLE I\n\nSECTION. 1. All powers are here.\n\nARTICLE II\n\nMore of it.", ["ARTICLE I", "ARTICLE II"]),
        ("Kapitel 1\n\nEin Satz.\n\nKapitel 2\n\nNoch einer.", ["Kapitel 1", "Kapitel 2"]),
        ("1. Introduction\n\nText.\n\n2.1 Scope of this\n\nText.", ["1. Introduction", "2.1 Scope of this"]),
        ("THE SPEECH\n\nFriends, hear me.\n\nTHE ANSWER\n\nNo.", ["THE SPEECH", "THE ANSWER"]),
        ("Before it.\n\n# One\n\nText.", ["doc", "One"]),
        ("# Title\n\n## Part\n\nText.", ["Title: Part"]),
        ("# Title\n\n```\n# a comment, no heading\n```\n\nText.", ["Title"]),
        ("# Empty\n\n# Full\n\nText.\n\n# Last", ["Empty: Full"]),
        ("Article I gives Congress its powers.\n\nSo it does.", ["Paragraphs 1-2"]),
        ("Only one paragraph of text.", ["Paragraph 1"]),
        ("# Only a heading", ["Paragraph 1"]),
        ("1. Milk\n\n2. Bread\n\n3. Tea\n\n4. Salt\n\n5. Rice", ["Paragraphs 1-5"]),
    ],
)
def test_headings(text, expected):
    assert titles(text) == expected


def test_a_table_of_contents_makes_no_sections():
    contents = "\n\n".join(f"CHAPTER {number}." for number in ("I", "II", "III"))
    assert titles(f"{contents}\n\nCHAPTER I.\n\nText one.\n\nCHAPTER II.\n\nText two.") == ["doc", "CHAPTER I", "CHAPTER II"]


def test_without_headings_paragraphs_are_grouped():
    paragraphs = [f"Paragraph number {i} says something about itself. " * 12 for i in range(30)]
    sections = split(Document("doc.txt", "\n\n".join(paragraphs)))
    assert 5 <= len(sections) <= 7
    assert sections[0].title.startswith("Paragraphs 1-")
    assert sections[-1].title.endswith("-30")
    assert "".join(section.text for section in sections).count("something") == 30 * 12


@pytest.mark.parametrize("separator", ["\n\n", "\n", " "])
def test_a_very_long_section_becomes_parts_and_nothing_is_lost(separator):
    text = "# Long\n\n" + separator.join(f"This is sentence number {i} of them all." for i in range(2000))
    sections = split(Document("doc.md", text))
    assert sections[0].title == f"Long (1/{len(sections)})"
    assert all(len(section.text) <= 1.5 * LONGEST for section in sections)
    assert sum(section.text.count("sentence number") for section in sections) == 2000


@given(st.text(alphabet="aB1.#=-~`\n *Iéж中", max_size=300))
def test_any_text_with_a_letter_has_a_section(text):
    sections = split(Document("doc.txt", text + "\n\nz"))
    assert sections
    assert all(section.text.strip() and section.title.strip() for section in sections)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("Grüße".encode(), "Grüße"),
        (b"\xef\xbb\xbf# BOM", "# BOM"),
        ("Grüße".encode("utf-16"), "Grüße"),
        (b"Gr\xfc\xdfe \x80 5", "Grüße € 5"),
        (b"a\r\nb\rc", "a\nb\nc"),
        (b"a\fb", "a\n\nb"),
    ],
)
def test_encodings(data, text):
    assert text_of(data, "doc.txt").text == text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "doc.txt is empty"),
        (b" \n\t\n", "doc.txt is empty"),
        (b"\xef\xbb\xbf", "doc.txt is empty"),
        (b"text\0text", "doc.txt is a binary file"),
        (b"\x7fELF\x01\x02", "doc.txt is a binary file"),
        (b"\x89PNG\r\n\x1a\n\x81\x8d", "doc.txt is a binary file"),
        (b"\xff\xfea", "doc.txt is a binary file"),
    ],
)
def test_what_is_no_text_is_named(data, message):
    with pytest.raises(DocumentError, match=message):
        text_of(data, "doc.txt")


def test_paths_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(DocumentError, match=r"no\.txt: there is no such file"):
        read(str(tmp_path / "no.txt"))
    with pytest.raises(DocumentError, match="is a directory"):
        read(str(tmp_path))
    with pytest.raises(DocumentError, match="cannot be read"):
        read("a\0b")
    monkeypatch.setattr("letitloop.cli.demo.documents.LARGEST", 10)
    big = tmp_path / "big.txt"
    big.write_bytes(b"x" * 11)
    with pytest.raises(DocumentError, match="larger than"):
        read(str(big))


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello.")))
    assert read("-") == b"Hello."


def test_the_shipped_texts_have_sections_and_a_note_of_their_source():
    texts = shipped()
    notes = (texts[0].parent / "SOURCES.md").read_text(encoding="utf-8")
    assert len(texts) == 3
    assert all(path.name in notes for path in texts)
    sections = [section for path in texts for section in split(text_of(read(str(path)), path.name))]
    assert 8 <= len(sections) <= 16
    assert any(section.text.count("\n\n") >= 4 for section in sections)
