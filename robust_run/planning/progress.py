"""How far a plan is: in place on a terminal, else a line every half a minute."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

#: Lines that are read later come no oftener than that.
LINE_S = 30.0


class Progress:
    """`stream`: where it is told; `now_s`: a clock that goes on."""

    def __init__(self, stream: TextIO, now_s: Callable[[], float]) -> None:
        self._stream, self._now_s = stream, now_s
        self._in_place = stream.isatty()
        self._next_s = now_s() + LINE_S

    def says(self, done: float, of: int) -> None:
        """Tell that so many seeds of so many are done, parts of one included."""
        text = f"{int(done)} of {of} simulated ({100 * done / of:.0f} %)"
        if self._in_place:
            self._write(f"\r{text}" + "\n" * (done >= of))
        elif self._now_s() >= self._next_s:
            self._next_s = self._now_s() + LINE_S
            self._write(f"robust: {text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
