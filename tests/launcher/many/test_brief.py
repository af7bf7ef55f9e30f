"""What of a report travels: whatever can end up in a verdict, and no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from robust_run.health.types import Finding
from robust_run.launcher.core.diagnosis.verdict import attribute
from robust_run.launcher.model.events import AttemptEnded, FirstStep, RankExited
from robust_run.launcher.model.job import Progress, RankEvidence
from robust_run.launcher.start.many.wire_trim import brief

TAIL = "the end of its stderr\n" * 100


def finding_of(kind: str, excerpt: str = "Traceback ...\nValueError: boom") -> Finding:
    return Finding(kind=kind, line="ValueError: boom", exception="ValueError", message="boom", excerpt=excerpt)  # type: ignore[arg-type]


FINDINGS = [None, finding_of("exception"), finding_of("peer_connection"), finding_of("native_crash", excerpt="")]


def evidence_of(
    rank: int,
    exit_code: int | None,
    exited: int,
    told: int | None,
    spoke: int | None,
    what: int,
    raised: int | None = None,
) -> RankEvidence:
    return RankEvidence(
        rank=rank,
        pid=rank,
        exit_code=exit_code,
        exited_at_s=float(exited),
        signalled_at_s=None if told is None else float(told),
        spoke_at_s=None if spoke is None else float(spoke),
        raised_at_s=None if raised is None else float(raised),
        finding=FINDINGS[what],
        stderr_tail=TAIL,
    )


def ended(ranks: tuple[RankEvidence, ...]) -> AttemptEnded:
    return AttemptEnded(attempt=1, node="a", started_at_s=0.0, ranks=ranks, progress=Progress())


def brief_ranks(ranks: tuple[RankEvidence, ...]) -> tuple[RankEvidence, ...]:
    event = brief(ended(ranks))
    assert isinstance(event, AttemptEnded)
    return event.ranks


moments = some.integers(0, 5)
nodes = some.lists(
    some.tuples(
        some.sampled_from([0, 1, -9, -15, None]),
        moments,
        some.none() | moments,
        some.none() | moments,
        some.integers(0, 3),
        some.none() | moments,
    ),
    min_size=1,
    max_size=4,
)


@given(some.lists(nodes, min_size=1, max_size=4))
def test_the_verdict_is_the_same_to_the_last_word(
    shown: list[list[tuple[int | None, int, int | None, int | None, int]]],
) -> None:
    whole: list[RankEvidence] = []
    sent: list[RankEvidence] = []
    for node in shown:
        ranks = tuple(evidence_of(len(whole) + n, *each) for n, each in enumerate(node))
        whole += ranks
        sent += brief_ranks(ranks)
    expected, found = attribute(tuple(whole)), attribute(tuple(sent))
    assert (expected is None) == (found is None)
    if expected is None or found is None or expected.culprit is None or found.culprit is None:
        return
    assert found.sentence == expected.sentence
    assert found.culprit.finding == expected.culprit.finding
    has_excerpt = expected.culprit.finding is not None and bool(expected.culprit.finding.excerpt)
    assert has_excerpt or found.culprit.stderr_tail == TAIL


def test_of_many_ranks_that_lost_their_connections_only_the_first_sends_its_words() -> None:
    ranks = tuple(evidence_of(rank, 1, 5 - rank, None, None, 2) for rank in range(4))
    sent = brief_ranks(ranks)
    assert [bool(rank.finding and rank.finding.excerpt) for rank in sent] == [False, False, False, True]
    assert not any(rank.stderr_tail for rank in sent), "where there is a traceback nobody reads the tail"
    assert all(rank.finding and rank.finding.kind == "peer_connection" for rank in sent)


def test_ranks_that_were_told_to_end_send_no_words() -> None:
    assert [rank.stderr_tail for rank in brief_ranks((evidence_of(0, -15, 3, 2, None, 0),))] == [""]


def test_an_exit_says_what_kind_it_was_and_leaves_the_words_to_the_evidence() -> None:
    sent = brief(RankExited(attempt=1, rank=0, exit_code=1, finding=finding_of("peer_connection")))
    assert isinstance(sent, RankExited)
    assert sent.finding is not None
    assert (sent.finding.kind, sent.finding.excerpt) == ("peer_connection", "")


def test_other_reports_travel_as_they_are() -> None:
    event = FirstStep(attempt=1, node="a", at_s=2.0)
    assert brief(event) is event
