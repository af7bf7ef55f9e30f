"""The heat-map shows who is slow, is well-formed, and stays small."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.report.heat import heat_of
from robust_run.report.heatmap import DARK, LIGHT, MISSING, shade, step_heatmap_png, step_heatmap_svg
from robust_run.tracer.types import RankTrace, StepMark, StepPhases

SVG = "{http://www.w3.org/2000/svg}"


def trace(rank: int, own_ms: list[float], steps: int | None = None, length_ms: float = 200.0) -> RankTrace:
    marks = [StepMark(50.0, 0.0)]
    for own in own_ms:
        marks.append(StepMark(marks[-1].at_s + length_ms / 1e3, marks[-1].blocked_s + (length_ms - own) / 1e3))
    return of_marks(rank, tuple(marks), len(marks) if steps is None else steps)


def of_marks(rank: int, marks: tuple[StepMark, ...], steps: int) -> RankTrace:
    fields = {"world_size": 8, "pid": 1, "last_at_s": 0.0, "blocked_s": 0.0, "ops": (), "groups": ()}
    return RankTrace(rank=rank, steps=steps, marks=marks, **fields)  # type: ignore[arg-type]


def job(ranks: int, steps: int, own_ms: Callable[[int, int], float]) -> list[RankTrace]:
    return [trace(rank, [own_ms(rank, step) for step in range(steps)]) for rank in range(ranks)]


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def cells(svg: str) -> list[ElementTree.Element]:
    return [rect for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]


def test_the_title_says_who_is_slow_and_the_row_is_dark() -> None:
    svg = step_heatmap_svg(job(4, 50, lambda rank, step: 80.0 if rank == 2 and step >= 10 else 50.0), {2: "GPU-01"})
    assert texts(svg)[0] == "Rank 2 (GPU-01) works 1.6 times as long as the others in 40 of 50 steps"
    drawn = cells(svg)
    assert len(drawn) == 4 * 50
    titles = [cell.findtext(f"{SVG}title") for cell in drawn]
    assert titles[2 * 50 + 10] == "rank 2 (GPU-01), step 12: 80.0 ms, 1.60 times the median of 50.0 ms"
    assert drawn[2 * 50 + 10].get("class") == f"c{shade(1.6)}" != drawn[0].get("class") == "c5"


def test_where_nobody_is_slow_the_title_says_that() -> None:
    svg = step_heatmap_svg(job(4, 40, lambda rank, step: 300.0 if (rank, step) == (0, 20) else 50.0))
    assert texts(svg)[0] == "No rank stands out: own time of 40 steps on 4 ranks"
    assert "No steps are on record" in texts(step_heatmap_svg([]))[0]


def test_of_ranks_on_gpus_it_is_the_gpus_that_are_compared_but_only_if_all_say_something() -> None:
    def on_gpu(rank: int, own_ms: float) -> RankTrace:
        steps = tuple(StepPhases(n, 10.0 + n, own_ms, 0.0, 0.0, 200.0 - own_ms, 0.0, 0.0) for n in range(1, 41))
        return msgspec.structs.replace(trace(rank, [200.0] * 40), phases=steps)

    traces = [on_gpu(rank, 150.0 if rank == 2 else 75.0) for rank in range(4)]
    said = texts(step_heatmap_svg(traces))
    assert said[0] == "Rank 2 works 2 times as long as the others in 40 of 40 steps"
    assert said[1].startswith("Own time of each step on the GPU (without waiting for peers)")
    traces[1] = trace(1, [200.0] * 40)
    said = texts(step_heatmap_svg(traces))
    assert said[0].startswith("No rank stands out") and said[1].startswith("Own time of each step (without")


def test_two_slow_ranks_are_counted() -> None:
    svg = step_heatmap_svg(job(8, 40, lambda rank, step: 90.0 if rank in (3, 4) else 50.0))
    assert texts(svg)[0] == "2 of 8 ranks work longer than the others, rank 3 most often"


def test_the_legend_is_in_milliseconds() -> None:
    assert {"≤ 25 ms", "50 ms", "≥ 100 ms"} <= set(texts(step_heatmap_svg(job(2, 30, lambda rank, step: 50.0))))


def test_many_ranks_share_rows_and_old_steps_are_left_out_and_it_says_so() -> None:
    traces = job(1100, 300, lambda rank, step: 100.0 if rank == 700 else 50.0)
    heat = heat_of(traces)
    assert (len(heat.ranks), len(heat.median_ms), heat.first_step) == (367, 256, 46)
    assert heat.own_ms[700 // 3][5] == pytest.approx(100.0)
    svg = step_heatmap_svg(traces)
    assert "each row is the slowest of 3 ranks; 44 older steps left out" in svg
    assert texts(svg)[0] == "The slowest of ranks 699-701 works 2 times as long as the others in 256 of 256 steps"
    assert len(svg) < 2_000_000


def test_a_step_that_a_rank_does_not_remember_is_a_gap() -> None:
    heat = heat_of([trace(0, [50.0] * 10, steps=20), trace(1, [50.0] * 4, steps=20)])
    assert heat.own_ms[1][:6] == (None,) * 6 and heat.ratio(1, 5) is None
    assert shade(None) == MISSING


def test_shades_grow_with_the_ratio_and_the_palette_gets_steadily_darker_or_lighter() -> None:
    numbers = [shade(ratio / 100) for ratio in range(1, 400)]
    assert numbers == sorted(numbers) and numbers[0] == 0 and numbers[-1] == len(LIGHT) - 1 and shade(1.0) == 5

    def luminance(colour: str) -> float:
        channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = [luminance(c) for c in LIGHT], [luminance(c) for c in DARK]
    assert light[:6] == sorted(light[:6]) and light[5:] == sorted(light[5:], reverse=True)
    assert dark[:6] == sorted(dark[:6], reverse=True) and dark[5:] == sorted(dark[5:])


def test_names_from_outside_cannot_break_the_document() -> None:
    svg = step_heatmap_svg(job(2, 20, lambda rank, step: 50.0), {0: '<script>"&', 1: "x" * 500})
    assert "<script>" not in svg
    assert ElementTree.fromstring(svg).tag == f"{SVG}svg"


def test_the_png_has_the_same_colours() -> None:
    png = step_heatmap_png(job(4, 80, lambda rank, step: 150.0 if rank == 3 else 50.0))
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length)[0] == zlib.crc32(kind + body)
        chunks[kind], at = body, at + 12 + length
    width, height, depth, colours = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    pixels = zlib.decompress(chunks[b"IDAT"])
    assert (width % 80, height % 4, depth, colours) == (0, 0, 8, 3) and len(pixels) == height * (width + 1)
    assert set(pixels[1 : width + 1]) == {5} and set(pixels[-width:]) == {10}
    assert chunks[b"PLTE"][30:33].hex() == LIGHT[10][1:]


@given(
    st.lists(st.tuples(st.lists(st.tuples(st.floats(), st.floats()), max_size=12), st.integers(0, 1 << 62)), max_size=4)
)
def test_whatever_rings_hold_there_is_a_picture(rings: list[tuple[list[tuple[float, float]], int]]) -> None:
    traces = [
        of_marks(rank, tuple(StepMark(at, blocked) for at, blocked in marks), steps)
        for rank, (marks, steps) in enumerate(rings)
    ]
    assert ElementTree.fromstring(step_heatmap_svg(traces)).tag == f"{SVG}svg"
    assert step_heatmap_png(traces).startswith(b"\x89PNG")
    assert all(value is None or math.isfinite(value) for row in heat_of(traces).own_ms for value in row)
