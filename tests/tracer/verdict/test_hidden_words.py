"""What the kernel hides is said once, in one line."""

from __future__ import annotations

from robust_run.tracer.types import RankSight
from robust_run.tracer.verdict.hidden import hidden_words


def sight(rank: int, hidden: str = "") -> RankSight:
    return RankSight(rank=rank, node="a", hidden=hidden)


def test_who_is_hidden_and_why_is_one_line() -> None:
    assert hidden_words([sight(0), sight(1)]) == ""
    line = hidden_words([sight(0), sight(1, "kernel.yama.ptrace_scope is 2")])
    assert line == (
        "the kernel does not let robust-run see what rank 1 waits for (kernel.yama.ptrace_scope is 2); "
        "verdicts name the line at most, and nothing is proven from it"
    )
    many = hidden_words([sight(rank, "it runs as user 0, robust-run as user 1000") for rank in range(4096)])
    assert "what 4096 ranks (0-4095) wait for" in many and "\n" not in many
