"""Since when nothing moves in a call to which all have come: what is known of it, and where it is never claimed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from seen_ranks import STANDARD, stack

from robust_run.tracer.types import BACKWARD, Op, RankSight, Scene
from robust_run.tracer.verdict import RankPatience, look
from tests.tracer.verdict.test_pairs import ELSEWHERE, IN_TORCH, SIDE, rank, waits

AT_S = 300.0
WAITING_SINCE_S = 10.0
TIMER = stack(f"{STANDARD}/threading.py:300 wait", f"{STANDARD}/threading.py:1376 run", main=False)
Change = Callable[[RankSight], RankSight]


def member(
    number: int, quiet_s: float | None = 250.0, backends: str = "cpu:gloo,cuda:gloo", **more: object
) -> RankSight:
    """Return a rank that waits in the all_reduce of all, and for how long no byte has come to it."""
    sight = rank(number, waits("all_reduce"), **more)
    assert sight.trace is not None
    groups = tuple(msgspec.structs.replace(group, backends=backends) for group in sight.trace.groups)
    trace = msgspec.structs.replace(sight.trace, groups=groups)
    return msgspec.structs.replace(sight, trace=trace, quiet_s=quiet_s)


def since_s(*ranks: RankSight) -> float | None:
    scene = Scene(at_s=AT_S, attempt=0, world_size=3, ranks=ranks)
    found = look(scene, RankPatience(after_s=5.0)).verdict
    assert found is not None and found.rule == "all_arrived" and not found.proven
    assert (found.inside_patience_s == 120.0) == (found.inside_since_s is not None)
    return found.inside_since_s


def test_it_is_since_the_last_byte_that_came_to_any_member() -> None:
    assert since_s(member(0), member(1, 220.0), member(2, 290.0)) == AT_S - 220.0


def test_but_not_since_before_the_last_of_them_came() -> None:
    assert since_s(*(member(number, 10_000.0) for number in range(3))) == pytest.approx(WAITING_SINCE_S, abs=1.0)


def of_process(**changes: object) -> Change:
    def change(sight: RankSight) -> RankSight:
        return msgspec.structs.replace(
            sight, processes=(msgspec.structs.replace(sight.processes[0], **changes), *sight.processes[1:])
        )

    return change


NEVER: dict[str, Change] = {
    "a member whose bytes cannot be counted": lambda sight: msgspec.structs.replace(sight, quiet_s=None),
    "a backend that moves data unseen": lambda _: member(2, backends="cpu:gloo,cuda:nccl"),
    "another backend": lambda _: member(2, backends="cpu:mpi"),
    "a backend that is not known": lambda _: member(2, backends=""),
    "a member in another call than its ring says": lambda _: member(2, at=ELSEWHERE),
    "a member whose stack is not known": of_process(stacks=()),
    "a member that was elsewhere a moment ago": of_process(stacks=((IN_TORCH,), (ELSEWHERE,), (IN_TORCH,))),
    "a member with a callback that takes long in another thread": lambda _: member(2, beside=(SIDE,)),
    "a member with a timer": lambda _: member(2, beside=(TIMER,)),
    "a member that gets no CPU": of_process(starved=1.0),
    "a member that computes": of_process(cpu=1.0),
    "a member that reads": of_process(io_bytes=10**9),
    "a member that runs": of_process(state="R"),
    "a member that waits for a disk": of_process(state="D"),
    "a member that is held by a debugger": of_process(state="t"),
}


@pytest.mark.parametrize("what", NEVER)
def test_this_is_never_taken_for_standing_still(what: str) -> None:
    ranks = [member(0), member(1), NEVER[what](member(2))]
    scene = Scene(at_s=AT_S, attempt=0, world_size=3, ranks=tuple(ranks))
    found = look(scene, RankPatience(after_s=5.0)).verdict
    assert found is None or found.inside_since_s is None


def in_backward(number: int, *states: str, quiet_s: float = 250.0) -> RankSight:
    """Return a rank in a backward pass, and how far the collectives are that torch began in it."""
    calls = tuple(
        Op(group="0", op="all_reduce", seq=seq, state=state, at_s=20.0 + number)  # type: ignore[arg-type]
        for seq, state in enumerate(states, 1)
    )
    sight = msgspec.structs.replace(member(number, quiet_s, at=ELSEWHERE), recorded=calls)
    assert sight.trace is not None
    trace = msgspec.structs.replace(sight.trace, ops=(waits(BACKWARD),))
    return msgspec.structs.replace(sight, trace=trace)


def backward_since_s(*ranks: RankSight) -> float | None:
    scene = Scene(at_s=AT_S, attempt=0, world_size=3, ranks=ranks)
    found = look(scene, RankPatience(after_s=5.0)).verdict
    return found.inside_since_s if found is not None else None


def test_in_a_backward_pass_all_have_to_be_in_the_oldest_collective_that_is_not_over() -> None:
    under_way = [in_backward(number, "done", "issued") for number in range(3)]
    assert backward_since_s(*under_way) == AT_S - 250.0
    ahead = in_backward(0, "done", "done", "issued")
    assert backward_since_s(ahead, *(in_backward(n, "done", "issued", "issued") for n in (1, 2))) == AT_S - 250.0
    assert backward_since_s(*under_way[:2], in_backward(2, "done")) is None, "the last one computes"
    assert backward_since_s(*(in_backward(number, "done", "done") for number in range(3))) is None, "all compute"


def test_a_node_that_does_not_answer_may_be_the_one_that_works() -> None:
    ranks = [member(number) for number in range(3)]
    for silent, world_size in ((("gpu-03",), 3), ((), 4)):
        scene = Scene(at_s=AT_S, attempt=0, world_size=world_size, ranks=tuple(ranks), silent_nodes=silent)
        found = look(scene, RankPatience(after_s=5.0)).verdict
        assert found is None or found.inside_since_s is None


def test_a_rank_that_never_came_is_not_the_network() -> None:
    late = rank(2, at=ELSEWHERE)
    scene = Scene(at_s=AT_S, attempt=0, world_size=3, ranks=(member(0), member(1), late))
    found = look(scene, RankPatience(after_s=5.0)).verdict
    assert found is not None and found.rule != "all_arrived" and found.inside_since_s is None
