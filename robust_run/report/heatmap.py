"""The heat-map of steps: ranks down, steps across, colour for how long a rank worked compared with the others. Pure.

A slow rank is a dark orange row, a slow node a band of them, a checkpoint a single cell, uneven data speckles. The scale runs
from blue over grey to orange (safe for the colour-blind, lightness falls or rises steadily to both ends) on the logarithm of
the ratio; the picture follows the reader's light or dark mode.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from robust_run.report.heat import SLOW_RATIO, Heat, headline, heat_of, median, name
from robust_run.tracer.types import RankTrace
from robust_run.tracer.words import count_words

MOST_TITLED = 16_384
"""Cells that get a hover title each; beyond, equal neighbours are drawn as one without a title."""
MOST_NOTED = 32
"""Rows that are labelled because they stand out, however little room there is."""
LARGEST_RATIO = 2.0
"""Where the colours end, upwards; downwards at its inverse."""

LIGHT = "#0a4f8c #2a74b0 #5a9bcb #94bfdd #c5d9e6 #e6e8ea #f2dcc0 #f5bd83 #ee9444 #cc6313 #8a3a04".split()
DARK = "#8cc8ff #5ca3df #3c7cb4 #2f5b83 #2a4257 #30343a #54432f #855a2a #bd7424 #ee9a3c #ffd091".split()
"""Eleven shades each, from half as long as the others to twice as long."""
MISSING = len(LIGHT)
_MIDDLE = len(LIGHT) // 2


def shade(ratio: float | None) -> int:
    """Return the number of the colour for a ratio: 5 is as long as the others, 0 half as long or less, 10 twice or more."""
    if ratio is None:
        return MISSING
    position = math.log(max(ratio, 1e-9)) / math.log(LARGEST_RATIO)
    return round(_MIDDLE * (1.0 + max(-1.0, min(1.0, position))))


def step_heatmap_svg(traces: Sequence[RankTrace], nodes: Mapping[int, str] | None = None) -> str:
    """Return the heat-map as an SVG document of its own, without scripts. `nodes`: host names by rank, for labels."""
    heat = heat_of(traces)
    return "".join(_Picture(heat, nodes or {}).pieces())


def heatmap_fragment(heat: Heat, nodes: Mapping[int, str]) -> str:
    """Return the same for a page that has `fragment_style` and says itself what is shown: no heading, no style of its own."""
    return "".join(_Picture(heat, nodes).fragment())


def fragment_style(scope: str) -> str:
    """Return the style of a fragment within elements that a CSS selector names; on paper it is the light one."""

    def scoped(rules: str) -> str:
        return "".join(f"{scope} {rule}}}" for rule in rules.split("}") if rule)

    light, _, dark = _style().partition("@media(prefers-color-scheme:dark){")
    return f"{scoped(light)}@media screen and (prefers-color-scheme:dark){{{scoped(dark[:-1])}}}"


class _Picture:
    """Where everything is, in pixels."""

    def __init__(self, heat: Heat, nodes: Mapping[int, str]) -> None:
        self.heat, self.nodes = heat, nodes
        self.columns, self.rows = len(heat.median_ms), len(heat.ranks)
        self.cell_x = max(3.0, min(14.0, 840.0 / max(1, self.columns)))
        self.cell_y = max(2.0, min(24.0, 640.0 / max(1, self.rows)))
        self.left = 72 + 7 * max((len(name) for name in nodes.values()), default=0)
        self.left = min(self.left, 240)
        self.top = 86
        self.grid_x = max(self.cell_x * self.columns, 420.0)
        self.grid_y = self.cell_y * self.rows
        self.right = 74
        self.width = self.left + self.grid_x + self.right
        self.height = self.top + self.grid_y + 122

    def pieces(self) -> Iterator[str]:
        title = escape(headline(self.heat, self.nodes))
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'width="{self.width:g}" height="{self.height:g}" role="img" aria-labelledby="t">'
            f'<title id="t">{title}</title><style>{_style()}</style>'
            f'<rect class="page" width="100%" height="100%"/>'
            f'<text class="head" x="20" y="30">{title}</text>'
            f'<text class="dim" x="20" y="51">{self._subtitle()}</text>'
        )
        yield from self._cells()
        yield from self._rank_labels()
        yield from self._step_labels()
        yield from self._legend()
        yield "</svg>\n"

    def fragment(self) -> Iterator[str]:
        title, above = escape(headline(self.heat, self.nodes)), self.top - 22
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {above} {self.width:g} {self.height - above:g}" '
            f'width="{self.width:g}" height="{self.height - above:g}" role="img" aria-label="{title}">'
        )
        yield from self._cells()
        yield from self._rank_labels()
        yield from self._step_labels()
        yield from self._legend()
        yield "</svg>"

    def _subtitle(self) -> str:
        whose = "Own time of each step on the GPU" if self.heat.on_gpus else "Own time of each step"
        said = f"{whose} (without waiting for peers), relative to the median of all ranks at that step"
        if any(len(row) > 1 for row in self.heat.ranks):
            said += f"; each row is the slowest of {len(self.heat.ranks[0])} ranks"
        if self.heat.left_out:
            said += f"; {count_words(self.heat.left_out, 'older step')} left out"
        return said

    def _cells(self) -> Iterator[str]:
        titled = self.rows * self.columns <= MOST_TITLED
        gap = 1.0 if self.cell_x >= 5 and self.cell_y >= 5 else 0.0
        for row in range(self.rows):
            called = escape(name(self.heat, row, self.nodes))
            top = self.top + row * self.cell_y
            yield "<g>" if titled else f"<g><title>{called}</title>"
            shades = [shade(self.heat.ratio(row, column)) for column in range(self.columns)]
            column = 0
            while column < self.columns:
                until = column + 1
                while not titled and until < self.columns and shades[until] == shades[column]:
                    until += 1
                yield (
                    f'<rect class="c{shades[column]}" x="{self.left + column * self.cell_x:.5g}" y="{top:.5g}" '
                    f'width="{(until - column) * self.cell_x - gap:.4g}" height="{self.cell_y - gap:.4g}"'
                )
                yield f"><title>{called}, {self._cell(row, column)}</title></rect>" if titled else "/>"
                column = until
            yield "</g>"

    def _cell(self, row: int, column: int) -> str:
        step, own, ratio = self.heat.first_step + column, self.heat.own_ms[row][column], self.heat.ratio(row, column)
        if own is None or ratio is None:
            return f"step {step}: not on record"
        return f"step {step}: {own:.1f} ms, {ratio:.2f} times the median of {self.heat.median_ms[column]:.1f} ms"

    def _rank_labels(self) -> Iterator[str]:
        """Ranks and their typical ratio beside the rows, as many as can be read; nodes with a line between them."""
        yield f'<text class="dim end" x="{self.left - 8}" y="{self.top - 8}">rank</text>'
        yield f'<text class="dim" x="{self.left + self.grid_x + 8:g}" y="{self.top - 8}">typical</text>'
        typical = [self._typical(row) for row in range(self.rows)]
        previous = ""
        for row in self._readable(typical):
            rank, ratio = self.heat.ranks[row][0], typical[row]
            node = self._node(row)
            y = self.top + (row + 0.5) * self.cell_y + 4
            if node != previous:
                yield f'<text class="dim" x="20" y="{y:g}">{escape(node[:24])}</text>'
            previous = node
            weight = " strong" if ratio > SLOW_RATIO else ""
            yield f'<text class="end{weight}" x="{self.left - 8}" y="{y:g}">{rank}</text>'
            if ratio > 0.0:
                yield f'<text class="{weight}" x="{self.left + self.grid_x + 8:g}" y="{y:g}">{ratio:.2f}\u00d7</text>'
        starts = [r for r in range(1, self.rows) if self._node(r) != self._node(r - 1)]
        if self.grid_y / (len(starts) + 1) >= 20.0:
            for row in starts:
                yield f'<path class="rule" d="M20 {self.top + row * self.cell_y - 0.5:g}h{self.left - 20 + self.grid_x:g}"/>'

    def _readable(self, typical: Sequence[float]) -> list[int]:
        """Return the rows to label: those that stand out come first, then as many as there is room for."""
        apart = math.ceil(13.0 / self.cell_y)
        chosen: list[int] = []
        candidates = sorted(
            (row for row in range(self.rows) if typical[row] > SLOW_RATIO), key=lambda row: -typical[row]
        )
        for row in [*candidates[:MOST_NOTED], *range(0, self.rows, apart)]:
            if all(abs(row - other) >= apart for other in chosen):
                chosen.append(row)
        return sorted(chosen)

    def _typical(self, row: int) -> float:
        """Return the median ratio of a row; 0 if nothing is known of it."""
        ratios = [ratio for column in range(self.columns) if (ratio := self.heat.ratio(row, column)) is not None]
        return median(ratios) or 0.0

    def _node(self, row: int) -> str:
        return self.nodes.get(self.heat.ranks[row][0], "")

    def _step_labels(self) -> Iterator[str]:
        base = self.top + self.grid_y
        every = _round_number(60.0 / self.cell_x)
        for column in range(self.columns):
            step = self.heat.first_step + column
            if step % every == 0:
                x = self.left + (column + 0.5) * self.cell_x
                yield f'<path class="rule" d="M{x:g} {base + 1:g}v4"/>'
                yield f'<text class="mid" x="{x:g}" y="{base + 18:g}">{step}</text>'
        yield f'<text class="dim mid" x="{self.left + self.cell_x * self.columns / 2:g}" y="{base + 36:g}">step</text>'

    def _legend(self) -> Iterator[str]:
        base, width = self.top + self.grid_y + 58, 30
        typical = median([value for value in self.heat.median_ms if value is not None])
        for number in range(len(LIGHT)):
            yield f'<rect class="c{number}" x="{self.left + number * width}" y="{base:g}" width="{width}" height="12"/>'
        for position, ratio in ((0.0, 0.5), (2.5, 2**-0.5), (5.0, 1.0), (7.5, 2**0.5), (10.0, 2.0)):
            edge = "≤ " if position == 0.0 else "≥ " if position == 10.0 else ""
            own = f"{edge}{_ms(typical * ratio)}" if typical is not None else ""
            middle = self.left + (position + 0.5) * width
            yield f'<text class="mid" x="{middle:g}" y="{base + 28:g}">{edge}{ratio:.2g}\u00d7</text>'
            yield f'<text class="dim mid" x="{middle:g}" y="{base + 45:g}">{own}</text>'
        x = self.left + (len(LIGHT) + 1) * width
        yield f'<rect class="c{MISSING}" x="{x}" y="{base:g}" width="12" height="12"/>'
        yield f'<text class="dim" x="{x + 18}" y="{base + 10.5:g}">not on record</text>'


def _ms(value: float) -> str:
    return f"{value:.2g} ms" if value < 10 else f"{value:.0f} ms"


def _round_number(least: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, ... that is not less."""
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power >= least:
                return digit * power
        power *= 10


def _style() -> str:
    def shades(colours: Sequence[str]) -> str:
        return "".join(f".c{number}{{fill:{colour}}}" for number, colour in enumerate(colours))

    return (
        "text{font:12px system-ui,sans-serif;fill:#1f2328}.head{font-size:16px;font-weight:600}.dim{fill:#59636e}"
        ".end{text-anchor:end}.mid{text-anchor:middle}.strong{font-weight:700}.page{fill:#fff}.rule{stroke:#8c959f}"
        f".c{MISSING}{{fill:none;stroke:#8c959f;stroke-width:.5;stroke-dasharray:2}}{shades(LIGHT)}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.dim{fill:#9ba5b0}.page{fill:#0d1117}.rule{stroke:#6e7681}"
        f"{shades(DARK)}}}"
    )


def step_heatmap_png(traces: Sequence[RankTrace]) -> bytes:
    """Return the cells alone as a PNG image, light colours, without labels: what a terminal or a chat can show."""
    heat = heat_of(traces)
    columns, rows = max(1, len(heat.median_ms)), max(1, len(heat.ranks))
    wide, high = max(2, min(12, 960 // columns)), max(1, min(16, 640 // rows))
    picture = bytearray()
    for row in range(rows):
        cells = bytearray()
        for column in range(columns):
            known = row < len(heat.ranks) and column < len(heat.median_ms)
            cells += bytes([shade(heat.ratio(row, column) if known else None)]) * wide
        picture += (b"\0" + cells) * high
    palette = b"".join(bytes.fromhex(colour[1:]) for colour in (*LIGHT, "#ffffff"))
    header = struct.pack(">IIBBBBB", columns * wide, rows * high, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(bytes(picture), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
