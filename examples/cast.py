"""A recording of a terminal: as an asciicast (asciinema.org plays it), and as a picture that moves, for pages.

The picture is one SVG: all lines in a column, which a CSS animation moves up line by line. Waits are shortened, and it says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape

COLUMNS, ROWS = 118, 22
CHARACTER_PX, LINE_PX, MARGIN_PX = 7.25, 17, 14
LONGEST_WAIT_S = 1.2
"""In the picture."""
END_S = 6.0
"""How long it shows the last lines before it begins again."""
_COLOURS = (
    (("-- demo: $",), "#7ee787"),
    (("-- demo:",), "#79c0ff"),
    (("   | robust-run:",), "#f0b72f"),
    (("   |",), "#8b949e"),
)


class Cast:
    """Lines, each with the moment at which it was printed."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s, self._began_s = now_s, now_s()
        self.lines: list[tuple[float, str]] = []

    def add(self, line: str) -> None:
        """Take in a line that was printed now."""
        self.lines.append((self._now_s() - self._began_s, line.rstrip("\n")))

    def asciicast(self) -> str:
        """Return it in asciinema's format, version 2."""
        head = {"version": 2, "width": COLUMNS, "height": ROWS}
        events = [[round(at_s, 3), "o", f"{line}\r\n"] for at_s, line in self.lines]
        return "".join(f"{json.dumps(each)}\n" for each in (head, *events))

    def svg(self) -> str:
        """Return it as a picture that moves."""
        rows = [(at_s, part, _colour(line)) for at_s, line in self.lines for part in _folded(line)]
        moments_s = _shortened([at_s for at_s, _, _ in rows])
        whole_s = (moments_s[-1] if moments_s else 0.0) + END_S
        width, height = COLUMNS * CHARACTER_PX + 2 * MARGIN_PX, ROWS * LINE_PX + 2 * MARGIN_PX
        first_px = MARGIN_PX + ROWS * LINE_PX
        steps = ["0%{transform:translateY(0px)}"]
        steps += [
            f"{100 * at_s / whole_s:.2f}%{{transform:translateY({-(number + 1) * LINE_PX}px)}}"
            for number, at_s in enumerate(moments_s)
        ]
        texts = [
            f'<text x="{MARGIN_PX}" y="{first_px + (number + 1) * LINE_PX - 4:.0f}" fill="{colour}">{escape(part)}</text>'
            for number, (_, part, colour) in enumerate(rows)
        ]
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}">',
                "<title>A training loses one worker to SIGKILL and another to SIGSTOP, and goes on</title>",
                "<style>text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}",
                f"#lines{{animation:up {whole_s:.1f}s step-end infinite}}",
                f"@keyframes up{{{''.join(steps)}100%{{transform:translateY({-len(rows) * LINE_PX}px)}}}}",
                "@media(prefers-reduced-motion:reduce){#lines{animation:none}}</style>",
                f'<clipPath id="screen"><rect x="0" y="{MARGIN_PX}" width="{width:.0f}" height="{ROWS * LINE_PX}"/></clipPath>',
                f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#0d1117"/>',
                f'<g clip-path="url(#screen)"><g id="lines" transform="translate(0 {-len(rows) * LINE_PX})">',
                *texts,
                "</g></g>",
                "</svg>",
                "",
            ]
        )


def _folded(line: str) -> list[str]:
    return [line[at : at + COLUMNS] for at in range(0, len(line), COLUMNS)] or [""]


def _shortened(moments_s: list[float]) -> list[float]:
    """Return moments between which no wait is longer than `LONGEST_WAIT_S`."""
    shown: list[float] = []
    for number, at_s in enumerate(moments_s):
        wait_s = at_s - moments_s[number - 1] if number else at_s
        shown.append((shown[-1] if shown else 0.0) + min(max(wait_s, 0.0), LONGEST_WAIT_S))
    return shown


def _colour(line: str) -> str:
    return next((colour for starts, colour in _COLOURS if line.startswith(starts)), "#e6edf3")
