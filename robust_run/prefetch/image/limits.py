"""How much is unpacked of an image that others have made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerLimits:
    """What all layers of an image together may come to."""

    bytes: int = 1 << 40
    entries: int = 10_000_000
    whiteouts: int = 1_000_000
    """Of one layer: they are in memory together."""
