"""Lines and cells of screens: cleaned of what a terminal, or rich's markup, would obey, and never too long. Pure."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from robust_run.launcher.operator.views.show import clean


def cell(text: str, style: str = "") -> Text:
    """Return a text for a cell of a table."""
    return Text(clean(text), style=style, no_wrap=True, overflow="ellipsis", end="\n")


def one_line(text: str, style: str, width: int) -> Text:
    """Return a text as one line, cut where it is too long."""
    line = cell(text, style)
    line.truncate(width, overflow="ellipsis")
    return line


def in_lines(text: str, style: str, width: int, most: int) -> list[Text]:
    """Return a text in lines that fit, at most so many; the last says if there was more."""
    lines: list[str] = []
    rest = clean(text)
    while len(lines) < most - 1 and len(rest) > width and " " in rest[:width]:
        cut = rest.rindex(" ", 0, width + 1)
        lines.append(rest[:cut])
        rest = f"  {rest[cut:].lstrip()}"
    return [one_line(line, style, width) for line in (*lines, rest)]


def blank(count: int) -> list[RenderableType]:
    """Return so many empty lines."""
    return [Text("")] * max(count, 0)


def table_of(width: int) -> Table:
    """Return a table without borders, as wide as that."""
    return Table(
        box=None, expand=True, width=width, padding=(0, 1, 0, 0), show_edge=False, header_style="bold", pad_edge=False
    )
