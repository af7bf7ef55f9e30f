"""Cached blocks that were not what they must be: which are still to come again, and what is said of them. Pure: time comes in."""

from __future__ import annotations

import os

#: Between sentences; doubled with each, for a disk that goes on like that.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 320.0
_MOST_NAMED = 5


class Repairs:
    """The wrong blocks of one image. Not safe for threads: its owner holds a lock."""

    def __init__(self, image: str, folder: str) -> None:
        """`image`: its name, `folder`: of the cache; for messages."""
        self._image, self._folder = os.path.basename(image.partition("?")[0]) or image, folder
        self._wrong: dict[int, str] = {}
        self._untold: list[int] = []
        self._pause_s = 0.0
        self._quiet_until_s = float("-inf")
        self.count = 0
        """Of those that came again."""

    def found(self, block: int, how: str) -> None:
        """Note that a cached block is of no use. `how`: a verb, "did not match its digest"."""
        self._wrong.setdefault(block, how)

    def is_wrong(self, block: int) -> bool:
        """Whether a block was found to be wrong and has not come again."""
        return block in self._wrong

    def came(self, block: int, now_s: float, *, kept: bool) -> str:
        """Note that a wrong block came again; `kept`: in the cache. Return what is to be said at once; "": nothing is."""
        how = self._wrong.pop(block)
        self.count += 1
        if now_s < self._quiet_until_s or self._untold:
            self._untold.append(block)
            return ""
        self._said(now_s)
        left = "" if kept else ", and not kept"
        return f"block {block} of {self._image} in the cache {self._folder} {how}; fetched again{left}"

    def due(self, now_s: float) -> str:
        """Return what is to be said of those that came since the last sentence; "": nothing is, now."""
        if not self._untold or now_s < self._quiet_until_s:
            return ""
        self._said(now_s)
        untold, self._untold = self._untold, []
        named = ", ".join(map(str, untold[:_MOST_NAMED])) + (", ..." if len(untold) > _MOST_NAMED else "")
        blocks = "1 more block" if len(untold) == 1 else f"{len(untold)} more blocks"
        return f"{blocks} of {self._image} in the cache {self._folder}, damaged there: {named}; fetched again"

    def reason(self, block: int, reason: str) -> str:
        """Return why a read fails, with what was found in the cache."""
        how = self._wrong.get(block)
        return f"{reason}; what the cache {self._folder} had of it {how}" if how else reason

    def _said(self, now_s: float) -> None:
        self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2 or _FIRST_PAUSE_S)
        self._quiet_until_s = now_s + self._pause_s
