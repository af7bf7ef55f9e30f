"""What docs/ shows to be typed: fenced blocks with what is to be done with them, and lines of older pages that are only indented.

The words after the language of a fence say what a test does with it; readers do not see them:

    ```sh run                      run it, with the files of its page, in a folder of the page's own; it must end with 0
    ```sh run says="a line"        its output has that too; may be repeated
    ```sh run needs=TOOL           skipped where this program (or this path) is missing
    ```sh run first                before the others, wherever it stands
    ```sh run background until=P   leave it running, until the page is done; go on when a file matches the pattern P
    ```sh skip WHY                 not run, because it needs what a test has not got
    ```python file=NAME            a file that the page's commands use

Folders that a node may have (/ssd0, /ssd1, /mnt) are in the page's own folder. A page may have blocks in a comment: what a reader
has and a test has not.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
RECIPES = DOCS / "recipes"
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"^    (?:\$ )?((?:robust|robust-run|srun) .*(?:\\\n.*)*)", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    def values(self, name: str) -> list[str]:
        """Return what stands after `name=`."""
        return [word.partition("=")[2] for word in self.words if word.startswith(f"{name}=")]

    @property
    def what(self) -> str:
        """The first word: run, skip or nothing."""
        return self.words[0] if self.words else ""

    @property
    def where(self) -> str:
        """For messages and names of tests."""
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return all pages of the guide."""
    return sorted(DOCS.glob("*.md"))


def recipes() -> list[Path]:
    """Return the pages on frameworks. What they show is run by tests/frameworks, with those frameworks."""
    return sorted(RECIPES.glob("*.md"))


def blocks(page: Path) -> list[Block]:
    """Return a page's fenced blocks, in order."""
    text = page.read_text()
    return [
        Block(page.name, text.count("\n", 0, found.start()) + 1, found[1], _words(found[2]), found[3])
        for found in _FENCE.finditer(text)
    ]


def _words(info: str) -> tuple[str, ...]:
    if info.split()[:1] == ["skip"]:
        return ("skip", info.split(maxsplit=1)[1].strip() if len(info.split()) > 1 else "")
    return tuple(shlex.split(info))


def commands(page: Path) -> Iterator[str]:
    """Return every command of ours that a page shows, fenced or indented, one line each, without its comment."""
    fenced = [block.text for block in blocks(page) if block.language == "sh"]
    for text in (*fenced, *(found[1] for found in _INDENTED.finditer(page.read_text()))):
        for line in text.replace("\\\n", " ").splitlines():
            found = re.match(r"(?:robust|robust-run)(?: .*)?$", line.strip())
            if found and not re.match(r"(?:robust|robust-run): ", line.strip()):
                yield re.split(r"\s{2,}#|\s# ", found[0])[0].strip()
