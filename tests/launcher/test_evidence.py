"""What travels with a report: enough to judge by, and not the words of a whole choir."""

from __future__ import annotations

from robust_run.launcher.evidence import MOST_TAILS, without_chorus
from robust_run.launcher.types import RankEvidence


def rank(number: int, exit_code: int, at_s: float, **more: object) -> RankEvidence:
    return RankEvidence(  # type: ignore[arg-type]
        rank=number, pid=number, exit_code=exit_code, exited_at_s=at_s, stderr_tail=f"words of {number}", **more
    )


def test_only_the_first_to_fail_by_themselves_keep_their_last_words() -> None:
    ranks = (
        rank(0, 1, 5.0),
        rank(1, -15, 6.0, signalled_at_s=5.5),
        rank(2, 1, 4.0),
        rank(3, 1, 4.5),
        rank(4, 0, 1.0),
    )
    kept = [each.rank for each in without_chorus(ranks) if each.stderr_tail]
    assert kept == [2, 3]
    assert len(kept) == MOST_TAILS
    assert [each.rank for each in without_chorus(ranks)] == [0, 1, 2, 3, 4], "nothing else changes"
