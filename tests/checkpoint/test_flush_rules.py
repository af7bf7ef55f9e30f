"""Who writes what, as each node works it out by itself; and how nodes wait for each other."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from robust_run.checkpoint.flush.exchange import UNLESS_S, Exchange, NotNeededError
from robust_run.checkpoint.flush.plan import RankSaid, file_of, own_of, pieces_of, tensors_of
from robust_run.checkpoint.types import Layout, SavedTensor
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.store.opening import open_store


def whole(name: str, *shape: int) -> SavedTensor:
    return SavedTensor(name, "float32", shape)


def share(name: str, rows: int, of_rows: int, at: int) -> SavedTensor:
    return SavedTensor(name, "float32", (of_rows, 2), Layout((2,), (), ("S(0)",), (rows, 2), (at, 0)))


def rank(number: int, *tensors: SavedTensor, digests: str = "") -> RankSaid:
    """`digests`: a letter for each tensor."""
    said = digests or "-" * len(tensors)
    return RankSaid(rank=number, stream="/ckpt", tensors=tensors, digests=tuple(said))


def written(*said: RankSaid) -> dict[int, list[str]]:
    pieces = pieces_of(said, own_of(said))
    return {number: [piece.name for piece in found] for number, found in pieces.items()}


def test_what_all_have_alike_is_written_once_and_shared_out() -> None:
    tensors = [whole(f"w{number}", 8) for number in range(4)]
    found = written(*(rank(number, *tensors, digests="abcd") for number in range(2)))
    assert sorted(found[0] + found[1]) == ["w0", "w1", "w2", "w3"]
    assert len(found[0]) == len(found[1]) == 2


def test_what_differs_is_each_ranks_own() -> None:
    said = [rank(number, whole("same", 1), whole("other", 1), digests=f"a{number}") for number in range(2)]
    assert own_of(said) == {0: (1,), 1: (1,)}
    found = written(*said)
    assert sorted(found[0] + found[1]) == ["robust-run/rank-0/other", "robust-run/rank-1/other", "same"]


def test_ranks_with_other_tensors_keep_all_of_theirs() -> None:
    said = [rank(0, whole("a", 1), whole("b", 1)), rank(1, whole("a", 1), share("c", 1, 2, 1))]
    assert own_of(said) == {0: (0, 1), 1: (0,)}


def test_one_rank_alone_has_nothing_of_its_own() -> None:
    assert own_of([rank(0, whole("a", 1))]) == {0: ()}


def test_shares_lie_where_they_belong_and_empty_ones_nowhere() -> None:
    said = [rank(0, share("w", 3, 3, 0)), rank(1, share("w", 0, 3, 3))]
    pieces = pieces_of(said, own_of(said))
    (tensor, *_) = tensors_of([file_of(number, pieces[number], 100) for number in range(2)])
    assert (tensor.name, tensor.sizes) == ("w", (3, 2))
    assert [(chunk.offsets, chunk.sizes, chunk.file) for chunk in tensor.chunks] == [((0, 0), (3, 2), 0)]


def test_shares_of_unknown_place_and_shapes_that_contradict_are_refused() -> None:
    unknown = SavedTensor("w", "float32", (4,), Layout((2,), (), ("S(0)",), (2,)))
    for said in ([rank(0, unknown)], [rank(0, share("w", 1, 2, 0)), rank(1, share("w", 1, 3, 1))]):
        with pytest.raises(CheckpointError, match="w"):
            pieces_of(said, own_of(said))


# --- waiting


class Word(msgspec.Struct):
    text: str


class Clock:
    """Time passes where it is waited; then something may happen elsewhere."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.then: list[tuple[float, object]] = []

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        while self.then and self.then[0][0] <= self.now_s:
            call = self.then.pop(0)[1]
            assert callable(call)
            call()


@pytest.mark.parametrize("signs", [0, 3])
def test_others_are_waited_for_as_long_as_they_go_on(tmp_path: Path, signs: int) -> None:
    clock = Clock()
    with closing(open_store(str(tmp_path))) as store:
        here, there = (
            Exchange(store, "meet", (number,), 2, 10.0, lambda: clock.now_s, clock.sleep) for number in range(2)
        )
        clock.then = [(9.0 * (number + 1), lambda: there.sign(0)) for number in range(signs)]
        with pytest.raises(CheckpointError, match="nothing was heard of the node of rank 1 for 10 s"):
            here.hear("said", Word, Word("mine"))
        assert signs * 9.0 + 10.0 <= clock.now_s < signs * 9.0 + 14.0
        clock.then = [(clock.now_s + 5.0, lambda: there.tell("said", Word("theirs")))]
        assert [each.text for each in here.hear("said", Word, Word("mine"))] == ["mine", "theirs"]


def test_nobody_is_waited_for_whose_word_is_not_needed_any_more(tmp_path: Path) -> None:
    clock = Clock()
    with closing(open_store(str(tmp_path))) as store:
        here, there = (
            Exchange(store, "meet", (number,), 2, 60.0, lambda: clock.now_s, clock.sleep) for number in range(2)
        )
        with pytest.raises(NotNeededError):
            here.hear("said", Word, Word("mine"), lambda: clock.now_s >= 7.0)
        assert 7.0 <= clock.now_s < 7.0 + UNLESS_S + 2.0
        there.tell("said", Word("theirs"))
        assert len(here.hear("said", Word, Word("mine"), lambda: True)) == 2, "who is there is heard"


def test_a_node_that_gave_up_is_not_waited_for_until_it_tries_again(tmp_path: Path) -> None:
    clock = Clock()
    with closing(open_store(str(tmp_path))) as store:
        here, there = (
            Exchange(store, "meet", (number,), 2, 10.0, lambda: clock.now_s, clock.sleep) for number in range(2)
        )
        there.tell("failed", {})
        with pytest.raises(CheckpointError, match="the node of rank 1 gave it up"):
            here.hear("said", Word, Word("mine"))
        there.begin()
        there.tell("said", Word("theirs"))
        assert len(here.hear("said", Word, Word("mine"))) == 2
        here.forget()
        assert store.list("meet") == []
