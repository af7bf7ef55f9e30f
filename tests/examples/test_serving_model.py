"""The divided model says what the undivided one does, to the last bit, in whatever batches and from whichever members."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "serving"))

import decoder
import exact
import frontend
import reference
from engine import ROOM, Engine, Sequence
from words import Answer, Request, answer_of, bytes_of, packed, request_of, rows_of

ROWS = st.integers(1, 6).flatmap(
    lambda count: st.lists(
        st.lists(st.integers(-(64 << 12), 64 << 12), min_size=decoder.WIDTH, max_size=decoder.WIDTH),
        min_size=count,
        max_size=count,
    )
)
"""Rows of numbers of the grid, from its smallest to its largest."""


def grid(rows: list[list[int]]) -> exact.Array:
    return np.array(rows, dtype=np.float64) / exact.STEPS


class Here:
    """Experts of this process, each member's apart: as `links.Experts`, without a network."""

    def __init__(self, members: int) -> None:
        self.members = [
            decoder.ExpertPart([expert for expert in range(decoder.EXPERTS) if expert % members == index])
            for index in range(members)
        ]
        self.asked = 0

    async def ask(self, layer: int, rows: dict[int, exact.Array]) -> tuple[dict[int, exact.Array], int]:
        self.asked += 1
        await asyncio.sleep(0)
        made = {}
        for expert in random.sample(sorted(rows), len(rows)):
            part = self.members[expert % len(self.members)]
            made[expert] = rows_of(bytes_of(part.compute(layer, expert, rows_of(bytes_of(rows[expert])))))
        return made, 0


def answered(requests: list[Request], experts: object, *, chance: random.Random | None = None) -> dict[int, Answer]:
    """Have an engine answer requests, which come in ones and more."""
    waiting, found = list(requests), {}

    async def main() -> None:
        over = asyncio.Event()

        async def done(answer: Answer) -> None:
            found[answer.number] = answer
            if len(found) == len(requests):
                over.set()

        async def take(most: int, may_wait: bool) -> list[Sequence]:
            count = min(most, chance.randint(1, ROOM)) if chance else most
            taken = [waiting.pop() for _ in range(min(count, len(waiting)))]
            if not taken and may_wait:
                await asyncio.Event().wait()
            return [Sequence(each, done) for each in taken]

        engine = asyncio.ensure_future(Engine("attention/0", experts, take).run())  # type: ignore[arg-type]
        await asyncio.wait([engine, asyncio.ensure_future(over.wait())], return_when=asyncio.FIRST_COMPLETED)
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        assert over.is_set()

    asyncio.run(main())
    return found


@given(st.lists(st.integers(-(64 << 12), 64 << 12), min_size=2, max_size=64), st.randoms())
def test_sums_are_the_same_in_any_order(numbers: list[int], chance: random.Random) -> None:
    row, weights = np.array(numbers) / exact.STEPS, exact.weights("any", len(numbers))
    order = list(range(len(numbers)))
    chance.shuffle(order)
    one_by_one = 0.0
    for at in order:
        one_by_one += row[at] * weights[at]
    assert one_by_one == row @ weights == row[order] @ weights[order]


@given(ROWS)
def test_a_row_does_not_depend_on_those_beside_it(rows: list[list[int]]) -> None:
    batch, part = grid(rows), decoder.ExpertPart([3])
    made, normed = part.compute(1, 3, batch), exact.norm(batch)
    for at in range(len(batch)):
        assert part.compute(1, 3, batch[at : at + 1]).tobytes() == made[at : at + 1].tobytes()
        assert exact.norm(batch[at]).tobytes() == normed[at].tobytes()


@given(ROWS)
def test_nothing_is_lost_on_the_wire(rows: list[list[int]]) -> None:
    assert rows_of(bytes_of(grid(rows))).tobytes() == (grid(rows) + 0.0).tobytes()


@given(st.lists(st.floats(-1e6, 0), min_size=1, max_size=20))
def test_powers_of_two_are_about_right_and_exact_where_they_are_whole(values: list[float]) -> None:
    x = np.array(values)
    assert exact.power_of_two(x) == pytest.approx(2.0**x, rel=0.01, abs=1e-300)
    assert (exact.power_of_two(np.arange(-40.0, 1)) == 2.0 ** np.arange(-40.0, 1)).all()


def test_members_hold_the_same_weights_without_having_spoken() -> None:
    first, second = decoder.ExpertPart([2]), decoder.ExpertPart([1, 2])
    assert first.up[0, 2].tobytes() == second.up[0, 2].tobytes()
    assert (0, 1) not in first.up
    assert len({exact.weights(name, 8).tobytes() for name in ("up 0 1", "up 0 2", "up 1 1", "down 0 1")}) == 4


@pytest.mark.parametrize("members", [1, 2, 3, 8])
def test_the_divided_model_says_the_same_to_the_last_bit(members: int) -> None:
    chance = random.Random(members)
    requests = [frontend.request(number, seed=members) for number in range(14) if number != 7]
    chance.shuffle(requests)
    found = answered(requests, Here(members), chance=chance)
    for each in requests:
        assert (found[each.number].text, found[each.number].digest) == reference.generate(each.prompt, each.most)
        assert found[each.number].by == "attention/0"
    assert len({each.text for each in found.values()}) == len(requests), "it would say the same to everybody"


def test_both_micro_batches_are_on_their_way_at_once() -> None:
    """Experts that answer one only when they have the other: with one at a time, nothing would ever be answered."""

    class InPairs(Here):
        waiting: asyncio.Future[None] | None = None

        async def ask(self, layer: int, rows: dict[int, exact.Array]) -> tuple[dict[int, exact.Array], int]:
            if self.waiting is None:
                self.waiting = asyncio.get_running_loop().create_future()
                await self.waiting
            else:
                self.waiting.set_result(None)
                self.waiting = None
            return await super().ask(layer, rows)

    requests = [Request(number, "as it was", 12) for number in range(2 * ROOM)]
    experts = InPairs(2)
    found = answered(requests, experts)
    assert {(each.text, each.digest) for each in found.values()} == {reference.generate("as it was", 12)}
    assert experts.asked == 2 * decoder.LAYERS * (1 + len("as it was") + 12 - 1)


@pytest.mark.parametrize(
    ("prompt", "most", "words"),
    [
        ("", 0, "an answer of 0 letters was asked for; 1 is the least"),
        ("", -3, "an answer of -3 letters"),
        ("x" * 400, 10, "a prompt of 400 letters and an answer of 10 are more than the 95"),
        ("x" * 50, 46, "are more than the 95"),
        ("x", 1 << 60, "are more than the 95"),
        ("Größe 9", 5, "letters that the model has not: 'Größe 9'"),
        ("a\0b", 5, "letters that the model has not"),
    ],
)
def test_a_request_that_cannot_be_answered_is_told_why(prompt: str, most: int, words: str) -> None:
    async def done(answer: Answer) -> None: ...

    with pytest.raises(ValueError, match=r"are|is the least|has not") as told:
        Sequence(Request(0, prompt, most), done)
    assert words in str(told.value)


def test_an_empty_prompt_and_one_that_just_fits_are_answered() -> None:
    requests = [Request(0, "", 5), Request(1, "x" * 50, 45), Request(2, "x" * 94, 1)]
    found = answered(requests, Here(2))
    for each in requests:
        assert (found[each.number].text, found[each.number].digest) == reference.generate(each.prompt, each.most)
        assert 1 <= found[each.number].tokens <= each.most


def test_a_token_that_ends_an_answer_does() -> None:
    """One of these requests ends before it has as many tokens as it may."""
    requests = [frontend.request(number, seed=0) for number in range(20) if number != 7]
    found = answered(requests, Here(1))
    assert any(found[each.number].tokens < each.most for each in requests)


def test_words_come_out_as_they_went_in() -> None:
    request, answer = Request(5, "who?", 9), Answer(5, "a", "b", 1, "attention/0", 0.5, 2, "why")
    assert request_of(packed(request)) == request
    assert answer_of(packed(answer)) == answer


def test_an_answer_that_was_not_written_down_whole_is_none(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    assert frontend.read(str(path)) == {}
    path.write_text('[3,"abc","d",3,"attention/0",0.0,0,""]\n[4,"ab')
    assert frontend.read(str(path)) == {3: Answer(3, "abc", "d", 3, "attention/0")}
    assert path.read_text().endswith('""]\n')
