"""The wake chain: through a queue, into the member at its end, to the line of code or the rank that all wait for."""

from __future__ import annotations

import msgspec
import pytest
from page_ground import scene
from seen_ranks import process, sight, stack

from robust_run.orchestrator.people.views.chain_words import (
    Inside,
    asked_at,
    elsewhere,
    inside_of,
    lines_of,
    rank_of,
    whole,
)
from robust_run.roles.view_words import WaitChain, WaitStep
from robust_run.tracer.types import Op, Scene
from tests.orchestrator.people.views import WAITS, member, view, works

GENERATES = stack("/app/rollout.py:88 generate", "/app/rollout.py:12 <module>")


def one_rank(**fields: object) -> Scene:
    looked_at = process(GENERATES, GENERATES, pid=4711, **fields)
    return Scene(at_s=100.0, attempt=0, world_size=1, ranks=(sight(looked_at),))


def test_a_chain_goes_on_to_the_line_of_code() -> None:
    chain = WaitChain(steps=(WAITS, works("rollout/1:0")))
    shown = view(chain)
    (made,) = whole(shown, {"rollout/1": {0: inside_of(one_rank(), 0)}})
    assert made.line == (
        "trainer/0:0 has been waiting for 45 s for an item at queue samples"
        " <- rollout/1:0, which fills it, has worked on 2 items of prompts for 44 s"
        " <- its rank 0: asleep in rollout.py:88 generate"
    )
    assert made.run == "members/rollout-1.1"
    assert lines_of(shown, (made,), "runs/dapo")[-1] == "more: robust stacks runs/dapo/members/rollout-1.1"


def test_a_worker_that_was_stopped_is_told_how_to_go_on() -> None:
    inside = inside_of(one_rank(state="T"), 0)
    assert inside == Inside(
        text="its rank 0: stopped in rollout.py:88 generate",
        hints=("stopped on gpu-01: type there: kill -CONT 4711",),
    )


def test_in_a_member_of_several_ranks_the_chain_ends_at_the_rank_that_all_wait_for() -> None:
    """Rank 4 waits for rank 5, its peer; rank 1 for rank 5 in another group; rank 0 for those who wait for it."""
    for rank in (0, 1, 4):
        assert inside_of(scene(culprit=5), rank).text == (
            "its rank 5 has been waited for in all_reduce #60 of group dp_1 for 5.0 s: ranks 0,2,6 ← ranks 1,3-4,7"
            " ← rank 5 (gpu-0001, data.py:88 batch in queue.py get) <- its rank 5: asleep"
        )


def test_the_rank_that_all_wait_for_is_told_what_it_does_itself() -> None:
    assert inside_of(scene(culprit=5), 5).text == "its rank 5: asleep in data.py:88 batch in queue.py get"


def test_ranks_of_a_member_that_wait_for_each_other_are_a_circle() -> None:
    sights = list(scene().ranks)
    for rank in (0, 1, 2):
        call = Op(group="d0", op="recv", seq=1, state="waiting", at_s=95.0, peer=(rank + 1) % 3)
        sights[rank] = msgspec.structs.replace(
            sights[rank], trace=msgspec.structs.replace(sights[rank].trace, ops=(call,))
        )
    text = inside_of(msgspec.structs.replace(scene(), ranks=tuple(sights)), 0).text
    assert text.startswith("its 3 ranks (0-2) have been waiting for each other for 5.0 s")


def test_a_rank_that_is_not_seen_is_said() -> None:
    silent = msgspec.structs.replace(one_rank(), silent_nodes=("node-b",))
    assert inside_of(silent, 3).text == "its rank 3 is not seen, and no answer came from node-b"
    gone = Scene(at_s=1.0, attempt=0, world_size=1, ranks=(sight(exit_code=-9),))
    assert inside_of(gone, 0).text == "its rank 0: has ended with exit code -9"


def test_a_member_on_another_node_names_the_node_and_the_command_there() -> None:
    found = elsewhere(member("rollout/1", nodes=("node-b",)), "/runs/a b/members/rollout-1.1", "node-a")
    assert found.text == "it runs on node-b, and its files are not to be seen here"
    assert found.hints == ("on node-b: robust why '/runs/a b/members/rollout-1.1'",)


@pytest.mark.parametrize(
    "chain",
    [
        WaitChain(steps=(WAITS,), end="nobody has put anything into it yet"),
        WaitChain(steps=(WAITS,), circle=0),
        WaitChain(steps=(WAITS, works("stranger/0:0"))),
        WaitChain(steps=(WAITS, WaitStep(worker="rollout/1:0", does="is_away", what="pausing"))),
    ],
)
def test_where_a_chain_ends_at_nobody_who_runs_nobody_is_asked(chain: WaitChain) -> None:
    assert asked_at(chain, view(chain)) is None


def test_a_member_that_is_away_has_its_last_word() -> None:
    chain = WaitChain(steps=(WAITS, WaitStep(worker="rollout/0:0", does="is_away", for_s=9.0, what="pausing")))
    away = member("rollout/0", "pausing", sentence="rank 0 exited with code 3")
    (made,) = whole(view(chain, rollouts=(away,)), {})
    assert made.line.endswith(
        "<- rollout/0:0, which fills it, is pausing; it did so 9 s ago (rank 0 exited with code 3)"
    )


def test_chains_that_are_told_by_a_longer_one_are_said_once_and_those_alike_together() -> None:
    end = works("rollout/1:0")
    long = WaitChain(steps=(WaitStep(worker="a/0:0", does="waits", for_s=50.0, queue="x", what="an item"), WAITS, end))
    alike = WaitChain(steps=(WaitStep(worker="a/1:0", does="waits", for_s=20.0, queue="x", what="an item"), WAITS, end))
    shown = view(long, WaitChain(steps=(WAITS, end)), alike)
    lines = lines_of(shown, whole(shown, {"rollout/1": {0: Inside(text="its rank 0: asleep")}}), "r")
    assert len(lines) == 2
    assert lines[0].startswith("a/0:0 has been waiting for 50 s") and lines[0].endswith("asleep; so does a/1:0 (20 s)")


def test_where_nobody_waits_it_is_said_how_to_look_further() -> None:
    assert lines_of(view(), (), "runs/dapo") == [
        "no worker has waited for long at a queue",
        "what ranks of one member wait for: robust why runs/dapo/members/trainer-0.1",
    ]


def test_the_rank_is_that_of_the_last_worker() -> None:
    assert rank_of(WaitChain(steps=(WAITS, works("rollout/1:7")))) == 7
