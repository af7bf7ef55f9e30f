"""Point-to-point calls that never meet, and those that look alike and do."""

from __future__ import annotations

import pytest
from seen_ranks import TORCH, process, sight, stack
from tracer.verdict.looking import settled

from robust_run.tracer.types import Group, Op, RankSight, RankTrace, Scene, TraceVerdict
from robust_run.tracer.verdict import RankPatience

WORLD = Group(name="0", desc="default_pg", ranks=(0, 1, 2))
IN_TORCH = stack(
    f"{TORCH}/distributed/distributed_c10d.py:2810 recv", "/app/train.py:52 step", "/app/train.py:90 <module>"
)
ELSEWHERE = stack("/app/data.py:88 get", "/app/train.py:90 <module>")
SIDE = stack("/app/side.py:9 run", main=False)


def waits(op: str, seq: int = 1, **fields: object) -> Op:
    return Op(group="0", op=op, seq=seq, state="waiting", at_s=10.0, waiting_at_s=10.0, **fields)  # type: ignore[arg-type]


def done(op: str, seq: int = 1, **fields: object) -> Op:
    return Op(group="0", op=op, seq=seq, state="done", at_s=5.0, done_at_s=5.1, **fields)  # type: ignore[arg-type]


def rank(number: int, *ops: Op, at=IN_TORCH, beside=()) -> RankSight:
    """Return a rank with these calls, whose main thread is there and whose other threads are beside it."""
    trace = RankTrace(
        rank=number, world_size=3, pid=100 + number, steps=1, last_at_s=10.0, blocked_s=0.0, ops=ops, groups=(WORLD,)
    )
    seen = process(pid=100 + number)
    seen = type(seen)(pid=seen.pid, parent=1, is_rank=True, command="python", state="S", stacks=((at, *beside),) * 3)
    return sight(seen, rank=number, trace=trace)


def verdict_on(*ranks: RankSight, at_s: float = 20.0) -> TraceVerdict | None:
    scene = Scene(at_s=at_s, attempt=0, world_size=3, ranks=ranks)
    return settled(scene, RankPatience(after_s=5.0))


MEETS = (waits("all_reduce"), waits("all_reduce"))


def test_a_send_and_a_receive_with_other_tags_never_meet() -> None:
    found = verdict_on(
        rank(0, waits("send", peer=1, tag=5)), rank(1, waits("recv", peer=0, tag=6)), rank(2, waits("all_reduce"))
    )
    assert found is not None
    assert (found.kind, found.rule, found.ranks, found.proven) == ("mismatch", "tag", (0, 1), True)
    assert found.sentence == (
        "rank 0 sends to rank 1 with tag 5, and rank 1 receives from it with tag 6: 2 ranks have been "
        "waiting for 12.5 s for each other"
    )


def test_the_same_tag_meets_whatever_went_before_with_others() -> None:
    found = verdict_on(
        rank(0, done("send", peer=1, tag=5), waits("send", peer=1, tag=6)),
        rank(1, waits("recv", peer=0, tag=6)),
        rank(2, waits("all_reduce")),
    )
    assert found is None or found.rule not in ("tag", "cycle", "order")


def test_a_send_whose_receive_was_begun_before_another_only_takes_its_time() -> None:
    begun = Op(group="0", op="recv", seq=1, state="issued", at_s=9.0, peer=0, tag=5)
    found = verdict_on(
        rank(0, waits("send", peer=1, tag=5)),
        rank(1, begun, waits("recv", peer=0, tag=6)),
        rank(2, waits("all_reduce")),
    )
    assert found is None or (found.rule != "tag" and not found.proven)


def test_with_a_thread_that_may_receive_the_other_tag_nothing_is_proven() -> None:
    found = verdict_on(
        rank(0, waits("send", peer=1, tag=5)),
        rank(1, waits("recv", peer=0, tag=6), beside=(SIDE,)),
        rank(2, waits("all_reduce")),
    )
    assert found is not None and not found.proven


def receives_from_any(*others: RankSight, tag: int = 0) -> TraceVerdict | None:
    return verdict_on(rank(0, waits("recv_any", tag=tag)), *others)


def test_who_receives_from_any_rank_waits_in_vain_where_all_others_wait_for_it() -> None:
    found = receives_from_any(rank(1, waits("all_reduce")), rank(2, waits("all_reduce")))
    assert found is not None
    assert (found.rule, found.ranks, found.proven) == ("nobody_sends", (0,), False)
    assert found.sentence == (
        "rank 0 has been waiting in recv_any #1 from any rank for 10.0 s, and no rank is left that "
        "could send; ranks 1 and 2 wait for it"
    )


def test_a_message_that_is_under_way_may_take_its_time() -> None:
    sent = Op(group="0", op="send", seq=1, state="issued", at_s=9.0, peer=0)
    found = receives_from_any(rank(1, sent, waits("all_reduce")), rank(2, waits("all_reduce")))
    assert found is None or found.rule != "nobody_sends"


def test_messages_that_have_been_received_are_not_under_way() -> None:
    sent = done("send", peer=0)
    receiver = rank(0, done("recv_any"), waits("recv_any", seq=2))
    found = verdict_on(receiver, rank(1, sent, waits("all_reduce")), rank(2, waits("all_reduce")))
    assert found is not None and found.rule == "nobody_sends"


def test_of_two_messages_one_is_under_way_though_it_was_sent_before_the_other_was_received() -> None:
    receiver = rank(0, done("recv_any"), waits("recv_any", seq=2))
    found = verdict_on(
        receiver, rank(1, done("send", seq=2, peer=0), waits("all_reduce")), rank(2, waits("all_reduce"))
    )
    assert found is None or found.rule != "nobody_sends"


def test_one_rank_that_is_free_may_send() -> None:
    found = receives_from_any(rank(1, waits("all_reduce")), rank(2, done("all_reduce", seq=0), at=ELSEWHERE))
    assert found is None or found.rule != "nobody_sends"


def test_a_sender_that_waits_for_a_rank_that_is_free_may_send_later() -> None:
    found = receives_from_any(rank(1, waits("recv", peer=2)), rank(2, at=ELSEWHERE))
    assert found is None or found.rule != "nobody_sends"


def test_a_sender_in_a_call_to_which_all_have_come_may_send_later() -> None:
    found = receives_from_any(rank(1, waits("recv", peer=2)), rank(2, waits("send", peer=1)))
    assert found is None or found.rule != "nobody_sends"


def test_a_sender_that_has_waited_for_a_moment_only_is_no_proof() -> None:
    young = Op(group="0", op="all_reduce", seq=1, state="waiting", at_s=19.0, waiting_at_s=19.0)
    found = receives_from_any(rank(1, young), rank(2, young))
    assert found is None or found.rule != "nobody_sends"


@pytest.mark.parametrize("seen", [1, 2])
def test_a_rank_that_is_not_seen_may_send(seen: int) -> None:
    found = receives_from_any(rank(seen, waits("all_reduce")))
    assert found is None or found.rule != "nobody_sends"
