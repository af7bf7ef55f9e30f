"""docs/papers.md: everything it names is there, and every mechanism has something that shows it."""

from __future__ import annotations

import re

import pytest
from shown_commands import DOCS

PAGE = (DOCS / "papers.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| mechanism", "| from"))]
PATH = re.compile(r"`((?:robust_run|tests|bench|examples)/[\w/.]+)`")


@pytest.mark.parametrize("path", sorted(set(PATH.findall(PAGE))))
def test_what_is_named_is_there(path: str) -> None:
    assert (DOCS.parent / path).exists()


@pytest.mark.parametrize("row", ROWS)
def test_a_mechanism_has_code_and_something_that_shows_it_or_is_said_to_be_missing(row: str) -> None:
    if "**Not here**" not in row:
        paths = PATH.findall(row)
        assert any(path.startswith("robust_run/") or path.startswith("tests/faults/matrix") for path in paths), row
        assert any(path.startswith(("tests/", "bench/")) for path in paths), row


@pytest.mark.parametrize("paper", ["Bootseer", "ByteRobust", "Mycroft", "Minder", "MegaScale", "AEGIS"])
def test_each_paper_has_its_section(paper: str) -> None:
    assert re.search(rf"^## {paper}", PAGE, re.MULTILINE)


def test_there_are_rows() -> None:
    assert len(ROWS) > 40
