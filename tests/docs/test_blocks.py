"""Every code block of the README and of the documentation runs; how they are written stands in ``blocks.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import BlockFailed, parse, run_page

ROOT = Path(__file__).parents[2]
# the page of an adapter runs in the adapter's own session, which has its framework
OF_ADAPTERS = {f"{folder.name}.md" for folder in (ROOT / "packages").iterdir() if folder.is_dir()}
FOUND = [ROOT / "README.md", ROOT / "core" / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in FOUND if page.name not in OF_ADAPTERS]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_block_of_the_page_runs(page, tmp_path):
    run_page(page, tmp_path)


def test_the_readme_shows_code_and_commands():
    languages = {block.language for block in parse((ROOT / "README.md").read_text(encoding="utf-8"))}
    assert "python" in languages
    assert languages & {"console", "bash", "sh"}


def failure(text: str, tmp_path: Path) -> str:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(BlockFailed) as caught:
        run_page(page, tmp_path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("```python\n1 / 0\n```", "line 1: raised ZeroDivisionError"),
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```", "line 5: raised AssertionError"),
        ("```python\nimport os; os._exit(0)\n```", "ended the session"),
        ("```python\n# a.py\nraise SystemExit(3)\n```", "exit code 3"),
        ("<!-- raises: ValueError -->\n```python\n1\n```", "raised nothing"),
        ("```console\n$ echo one\ntwo\n```", "the page says:\ntwo"),
        ("```console\n$ test -e nothing\n```", "exit code 1, expected 0"),
        ("```console\necho\n```", "starts with a command"),
        ("```bash\ncurl example\n```", "calls curl"),
        ("```bash\necho x && curl example\n```", "calls curl"),
        ("```bash\nlil no-such-command\n```", "expected 0"),
        ("<!-- not run: -->\n```bash\ncurl example\n```", "needs its reason"),
        ("```\nwhat is this\n```", "neither how to run it"),
        ("```python\n", "never closed"),
    ],
)
def test_a_block_that_does_not_hold_is_noticed(text, told, tmp_path):
    assert told in failure(text, tmp_path)


def test_blocks_that_hold_pass(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\n```\n"
        "```python\nassert x == 1\n```\n"
        "<!-- raises: ZeroDivisionError -->\n```python\nx / 0\n```\n"
        "```python\n# saved.py\nprint('saved', 12.5)\n```\n"
        "```console\n$ python saved.py\nsaved ...\n$ VALUE=2 python -c \\\n  'print(1)' && echo two\n1\ntwo\n```\n"
        "<!-- exit: 3 -->\n```bash\npython -c 'raise SystemExit(3)'\n```\n"
        "<!-- not run: it would leave this machine -->\n```bash\ncurl example\n```\n"
        "```text\nno code\n```\n",
        encoding="utf-8",
    )
    assert run_page(page, tmp_path) == 8
