"""Root cause attribution: which rank failed first, and why, from what every rank showed. Pure.

Ranks of a distributed job fall like dominoes: one fails, and its peers die of broken connections moments later, sometimes
before the first one has finished dying. So the order of exits alone is not enough, and five rules are used:

1. A rank's failure dates from its first sign: what it raised and did not catch, its traceback's arrival, or its exit, whichever
   came earliest.
2. What a rank shows after we told it to end is our doing, not a cause.
3. A broken connection is never the cause while any rank shows something else.
4. An exit weighs more than words: a program may print a traceback that it has dealt with. What a rank said before we ended it
   counts only if every rank that ended by itself shows no more than a broken connection. An exception of which the interpreter
   says that nobody caught it is as good as an exit: that may take it seconds more (exit handlers, CUDA, millions of objects).
5. A rank that died while its interpreter cleaned up, its program being done, is the cause only where no other failed, or others
   show no more than that it was gone.
"""

from __future__ import annotations

import re

import msgspec

from robust_run.launcher.model.job import RankEvidence, VerdictDraft
from robust_run.signals import describe_exit

SIGABRT = 6

CRASHED_AT_EXIT = "crashed_at_exit"
"""The rule that names a rank which died when its program had come to its end."""

#: From a traceback to the end of its process: interpreter teardown, exit handlers. A program that lived longer after it had
#: dealt with it.
DYING_S = 3.0
_OWNERS = re.compile(r" (?:Including non-PyTorch memory|Process \d+ has|Of the allocated memory).*")


class RankFailure(msgspec.Struct, frozen=True):
    """One rank that failed by itself."""

    evidence: RankEvidence
    at_s: float
    """First sign of it."""
    by_words: bool = False
    """It was about to fail, by its words, when we ended it."""

    @property
    def is_peer_error(self) -> bool:
        """Whether all it shows is that a peer went away."""
        finding = self.evidence.finding
        return finding is not None and finding.kind == "peer_connection"

    @property
    def is_mismatch(self) -> bool:
        """Whether gloo ended it because ranks called different collectives."""
        finding = self.evidence.finding
        return finding is not None and finding.trouble == "mismatch"


def own_failure(rank: RankEvidence) -> RankFailure | None:
    """Return this rank's failure if it failed by itself, None if it did well or we ended it."""
    told_at_s = rank.signalled_at_s
    if rank.raised_at_s is not None and rank.finding is not None and rank.exit_code != 0:
        if told_at_s is None or rank.raised_at_s <= told_at_s:
            return RankFailure(rank, min(rank.raised_at_s, rank.exited_at_s))
        return None
    spoke_at_s = rank.spoke_at_s if rank.finding is not None else None
    if rank.exit_code not in (0, None) and (told_at_s is None or rank.exited_at_s <= told_at_s):
        recent = spoke_at_s is not None and rank.exited_at_s - spoke_at_s <= DYING_S
        return RankFailure(rank, spoke_at_s if recent and spoke_at_s is not None else rank.exited_at_s)
    if spoke_at_s is not None and told_at_s is not None and 0 <= told_at_s - spoke_at_s <= DYING_S:
        return RankFailure(rank, spoke_at_s, by_words=True)
    return None


def attribute(ranks: tuple[RankEvidence, ...]) -> VerdictDraft | None:
    """Return the verdict on an attempt, or None if no rank failed by itself."""
    failures = sorted(filter(None, map(own_failure, ranks)), key=lambda failure: (failure.at_s, failure.evidence.rank))
    others = [failure for failure in failures if not failure.evidence.had_ended]
    if not all(failure.is_peer_error for failure in others):  # else they needed one that had ended, and that is why
        failures = others
    exits = [failure for failure in failures if not failure.by_words]
    causes = [failure for failure in failures if not failure.is_peer_error]
    first = next((failure for failure in causes if not failure.by_words), causes[0] if causes else None)
    if first is not None and first.is_mismatch:
        return _of_calls(first.evidence, exits)
    if first is not None:
        followers = sum(failure is not first for failure in exits)
        return _from_cause(first.evidence, followers)
    return _peers_only(failures[0]) if failures else None


def crashed_at_exit(ranks: tuple[RankEvidence, ...]) -> VerdictDraft | None:
    """Return the verdict on ranks whose programs all came to their end, and of which one or more died after that; else None."""
    crashed = [rank for rank in ranks if rank.had_ended]
    if not crashed or not all(rank.exit_code == 0 or rank.had_ended for rank in ranks):
        return None
    if any(rank.signalled_at_s is not None and rank.exited_at_s > rank.signalled_at_s for rank in ranks):
        return None
    first = min(crashed, key=lambda rank: (rank.exited_at_s, rank.rank))
    others = len(crashed) - 1
    so_did = f"; {others} other rank{'s' if others > 1 else ''} died so, too" if others else ""
    return VerdictDraft(
        kind="crash",
        ranks=(first.rank,),
        confidence="high",
        rule=CRASHED_AT_EXIT,
        sentence=f"rank {first.rank} {describe_exit(first.exit_code)}",
        aftermath=f"its program had ended before{so_did}",
        exit_code=job_exit_code(first.exit_code),
        culprit=first,
    )


def _peers_only(first: RankFailure) -> VerdictDraft:
    rank = first.evidence
    return VerdictDraft(
        kind="unknown",
        ranks=(rank.rank,),
        confidence="low",
        rule="only_peer_errors",
        sentence=f"rank {rank.rank} was first to lose a connection, and no rank shows why{_at_step(rank)}",
        exit_code=job_exit_code(rank.exit_code),
        culprit=rank,
    )


def _of_calls(rank: RankEvidence, exits: list[RankFailure]) -> VerdictDraft:
    """Name whom gloo ended for it. They are no more suspect than all others."""
    from robust_run.health import other_size
    from robust_run.tracer.words import ranks_words

    ranks = tuple(sorted({rank.rank, *(each.evidence.rank for each in exits if each.is_mismatch)}))
    said = f"{rank.finding.line} {rank.finding.message}" if rank.finding is not None else ""
    when = f"; that was{_at_step(rank)}" if rank.steps else ""
    return VerdictDraft(
        kind="mismatch",
        ranks=ranks,
        confidence="low",
        rule=other_size.RULE,
        sentence=f"{other_size.sentence(ranks_words(ranks), len(ranks), said)}{when}",
        aftermath=_followers(sum(each.evidence.rank not in ranks for each in exits)),
        exit_code=job_exit_code(rank.exit_code),
        culprit=rank,
        over_evicted=ranks,
    )


def _followers(count: int) -> str:
    return f"{count} other rank{'s' if count > 1 else ''} failed after it" if count else ""


def _from_cause(rank: RankEvidence, followers: int) -> VerdictDraft:
    finding = rank.finding
    told = rank.signalled_at_s is not None and rank.exited_at_s > rank.signalled_at_s
    if finding is not None and finding.kind in ("exception", "usage") and not _was_killed(rank):
        kind, rule, confidence = "code", "user_exception", "high"
    elif rank.exit_code is not None and rank.exit_code < 0 and not told:
        is_oom = finding is not None and finding.kind == "out_of_memory"
        kind, rule, confidence = "crash", "out_of_memory" if is_oom else "died_of_signal", "high"
        if is_oom and finding is not None and finding.trouble == "host_memory":
            from robust_run.health.rules.workers import PERHAPS

            confidence = "medium" if finding.line.startswith(PERHAPS) else "high"
    else:
        kind, rule, confidence = "crash", finding.kind if finding else "exit_code", "high" if finding else "medium"
    return VerdictDraft(
        kind=kind,  # type: ignore[arg-type]
        ranks=(rank.rank,),
        confidence=confidence,  # type: ignore[arg-type]
        rule=rule,
        sentence=f"rank {rank.rank} {_what_happened(rank)}{_at_step(rank)}",
        aftermath=_followers(followers),
        exit_code=1 if told else job_exit_code(rank.exit_code),
        culprit=rank,
    )


def _what_happened(rank: RankEvidence) -> str:
    finding = rank.finding
    if finding is None:
        return describe_exit(rank.exit_code)
    if finding.exception:
        where = f" ({finding.frame})" if finding.frame else ""
        text = _shortened(finding.message.splitlines()[0]) if finding.message else ""
        raised = f"{finding.exception}{': ' + text if text else ''}{where}"
        return (
            f"{describe_exit(rank.exit_code)}; its last traceback: {raised}"
            if _was_killed(rank)
            else f"raised {raised}"
        )
    return f"{describe_exit(rank.exit_code)}: {finding.line.strip()}"


def _shortened(message: str) -> str:
    """Leave out of CUDA's message of too little memory who has how much: it may be of many processes, and is in the evidence."""
    return message if "out of memory" not in message else _OWNERS.sub("", message)


def _was_killed(rank: RankEvidence) -> bool:
    """Whether a signal ended it that was not ours and is no exception's doing, as SIGABRT is when C++ is being torn down."""
    return (
        rank.exit_code is not None and rank.exit_code < 0 and rank.exit_code != -SIGABRT and rank.signalled_at_s is None
    )


def _at_step(rank: RankEvidence) -> str:
    return f" after {rank.steps} steps of this attempt" if rank.steps else ""


def job_exit_code(exit_code: int | None) -> int:
    """Return what the launcher exits with for a worker's exit code: the code itself, 128 + n for signal n, never 0."""
    if exit_code is None or exit_code == 0:
        return 1
    return 128 - exit_code if exit_code < 0 else exit_code
