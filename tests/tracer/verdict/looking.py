"""What is said in the end of ranks that stay as they are: who wait in a circle are looked at twice before that is a proof."""

from __future__ import annotations

import msgspec

from robust_run.tracer.types import Scene, TraceVerdict
from robust_run.tracer.verdict import RankPatience, look


def settled(scene: Scene, patience: RankPatience | None = None) -> TraceVerdict | None:
    """Return what a look says; where it asks for another one soon, what that says of the same ranks."""
    patience = patience or RankPatience()
    found = look(scene, patience)
    if found.verdict is not None or found.again_s is None or found.worked:
        return found.verdict
    later = msgspec.structs.replace(scene, at_s=scene.at_s + found.again_s + 1.0)
    return look(later, patience, previous=scene).verdict
