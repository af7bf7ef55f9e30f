"""A second witness confirms or contradicts a verdict; it never changes who is accused."""

from __future__ import annotations

from typing import Any

import pytest
from tracer.ras.answers import HASH, TEXT_BEHIND, answer, communicator, lost, rank

from robust_run.tracer.nccl.types import Communicator, NcclGlance, NcclTrace
from robust_run.tracer.ras.parse import parse
from robust_run.tracer.ras.rules import EVIDENCE, second_opinion, signs
from robust_run.tracer.ras.types import RasReport
from robust_run.tracer.types import RankSight, Scene, TraceVerdict

#: Ranks of the world in the communicator tp_1, which others know by its hash.
TP_1 = {4: 0, 5: 1, 6: 2, 7: 3}


def report_of(*communicators: dict[str, Any]) -> RasReport:
    report = parse(answer(*communicators))
    assert report is not None
    return report


def nccl(comm_rank: int) -> NcclTrace:
    glance = NcclGlance(pid=1, api=6, communicators=1, ops=0, event_s=None, dropped=0, foreign=0, unknown=0, stale=0)
    comm = Communicator(serial=1, hash=HASH, name="tp_1", rank=comm_rank, ranks=4, nodes=1, opened_s=0.0, closed_s=None)
    return NcclTrace(glance=glance, communicators=(comm,), flows=(), ops=())


def scene(report: RasReport | None, world_size: int = 8) -> Scene:
    ranks = tuple(
        RankSight(
            rank=number,
            node="gpu-01",
            nccl=nccl(TP_1[number]) if number in TP_1 else None,
            ras=report if number == 0 else None,
        )
        for number in range(world_size)
    )
    return Scene(at_s=10.0, attempt=0, world_size=world_size, ranks=ranks)


def verdict(*ranks: int, kind: Any = "comm_stall", confidence: Any = "medium", **fields: Any) -> TraceVerdict:
    return TraceVerdict(
        kind=kind, ranks=ranks, nodes=("gpu-01",), confidence=confidence, rule="r", sentence="s", **fields
    )


BEHIND = communicator(rank(0), rank(1), rank(2, {"AllReduce": 99}), rank(3))
"""Rank 2 of the communicator, rank 6 of the world."""


def test_who_launched_less_is_named_by_its_rank_in_the_world():
    (sign,) = signs(report_of(BEHIND), scene(None).ranks, 8)
    assert (sign.kind, sign.ranks) == ("behind", (6,))
    assert sign.line == (
        "NCCL's RAS: rank 6 launched fewer operations in communicator tp_1 (AllReduce: 99, most ranks: 100)"
    )


def test_ranks_of_the_communicator_of_all_are_those_of_the_world():
    whole = communicator(*(rank(number, {"AllReduce": 100 - (number == 5)}) for number in range(8)), hash_=5)
    (sign,) = signs(report_of(whole), scene(None).ranks, 8)
    assert (sign.kind, sign.ranks) == ("behind", (5,))


def test_text_says_the_same():
    report = parse(TEXT_BEHIND.replace("AllGather", "Reduce").encode())
    assert report is not None
    (sign,) = signs(report, scene(None).ranks, 8)
    assert (sign.kind, sign.ranks) == ("behind", (6, 7))


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        (rank(2, async_error=6), "error"),
        (rank(2, abort_flag=True), "gone"),
        (rank(2, {"AllReduce": 99, "AllGather": 1}), "other"),
        (lost(2), "silent"),
        (lost(2, unresponsive=False), "gone"),
    ],
)
def test_other_oddities_are_told_apart(odd: dict[str, Any], kind: str):
    ranks = [rank(0), rank(1), rank(3)]
    said = communicator(*ranks, missing=(odd,)) if "unresponsive" in odd["status"] else communicator(*ranks, odd)
    (sign,) = signs(report_of(said), scene(None).ranks, 8)
    assert (sign.kind, sign.ranks) == (kind, (6,))


def test_one_that_is_ahead_and_many_that_differ_are_no_sign():
    ahead = communicator(rank(0), rank(1), rank(2, {"AllReduce": 101}), rank(3))
    assert signs(report_of(ahead), scene(None).ranks, 8) == ()
    many = communicator(*(rank(number, {"AllReduce": 100 + number}) for number in range(4)))
    assert signs(report_of(many), scene(None).ranks, 8) == ()


def test_ranks_that_nothing_names_are_no_sign():
    unknown = communicator(rank(0), rank(1), rank(2, {"AllReduce": 9}), hash_=77)
    assert signs(report_of(unknown), scene(None).ranks, 8) == ()


def test_agreement_makes_a_verdict_more_certain():
    found = second_opinion(verdict(6), scene(report_of(BEHIND)))
    assert (found.ranks, found.confidence) == ((6,), "high")
    assert "rank 6 launched fewer" in found.evidence[-1]


def test_contradiction_makes_it_less_certain_and_is_said():
    found = second_opinion(verdict(1, confidence="high"), scene(report_of(BEHIND)))
    assert (found.ranks, found.confidence) == ((1,), "medium")
    assert "speaks against" in found.evidence[-1]


def test_equal_counts_say_nothing():
    before = verdict(6)
    assert second_opinion(before, scene(report_of(communicator(*map(rank, range(4)))))) == before


def test_no_report_and_verdicts_of_another_kind_stay_as_they_are():
    assert second_opinion(verdict(6), scene(None)) == verdict(6)
    slow = verdict(6, kind="slow")
    assert second_opinion(slow, scene(report_of(BEHIND))) == slow


def test_evidence_stays_within_its_limit():
    full = verdict(6, evidence=tuple(f"line {number}" for number in range(EVIDENCE)))
    found = second_opinion(full, scene(report_of(BEHIND)))
    assert len(found.evidence) == EVIDENCE
    assert "RAS" in found.evidence[-1]
