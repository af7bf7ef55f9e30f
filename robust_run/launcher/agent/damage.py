"""Damage reports of ranks about their resume checkpoint, read from their folders when their attempt has ended.

Imported where an attempt started from a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from robust_run.ckpt_io.notes import DamageNote, read_damage
from robust_run.launcher.model.resume_events import Damage, ResumePoint


def found_by(folders: Mapping[int, str], point: ResumePoint, path: str) -> Damage | None:
    """Return what the first rank found that found that checkpoint damaged; None: none did. `path`: as the ranks were told it.

    What a program finds wrong with another checkpoint, one that it chose itself, is not our business.
    """
    for rank, folder in folders.items():
        for note in read_damage(folder):
            if _is_of(note, point, path):
                reason = note.reason if note.reason.isprintable() else repr(note.reason)
                uuid = point.uuid or note.uuid
                return Damage(rank=rank, uuid=uuid, name=point.name, step=point.step, reason=reason)
    return None


def _is_of(note: DamageNote, point: ResumePoint, path: str) -> bool:
    if note.uuid and point.uuid:
        return note.uuid == point.uuid
    return os.path.normpath(note.url) == os.path.normpath(path)
