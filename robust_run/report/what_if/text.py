"""What-if in words, for people. Pure."""

from __future__ import annotations

from robust_run.report.what_if.types import OneFixed, WhatIf
from robust_run.tracer.words import count_words

#: Less than this part of a step is not worth a line.
LEAST = 0.01
#: A stage is told as imbalanced from here on.
IMBALANCED = 1.1
#: Of fewer ranks 3 % are none.
FEW = 34
MOST_LINES = 8


def lines_of(found: WhatIf) -> list[str]:
    """Return the lines that people read."""
    saved = 1.0 - found.ideal_s / found.step_s if found.step_s > 0 else 0.0
    over = f"{count_words(found.workers, 'rank')}, {count_words(found.stages, 'stage')}, {count_words(found.steps, 'step')}"
    lines = [
        f"a step takes {_ms(found.step_s)}; were all ranks and stages alike, {_ms(found.ideal_s)} ({saved:.0%} less) [{over}]"
    ]
    if found.left_out:
        others = count_words(found.left_out, "step")
        lines.append(f"{others} of 3 times the usual length or more (a save, an evaluation) do not count")
    if found.source == "operations" and abs(found.measured_s - found.step_s) > 0.05 * found.measured_s:
        lines.append(
            f"the replay differs from what was measured ({_ms(found.measured_s)}): the trace leaves out "
            f"{_ms(abs(found.measured_s - found.step_s))} of a step"
        )
    lines += _told(found, found.ranks, "as fast as its peers")
    for stage in found.stage_rows:
        gain = _gain(found, stage)
        if stage.ratio >= IMBALANCED:
            lines.append(
                f"{stage.what} has {stage.ratio:.2f} times the work of the others (imbalance of stages, no fault of its ranks): "
                f"a step would take {_ms(stage.step_s)} ({gain:.0%} less) were it balanced"
            )
    lines += _told(found, found.kinds, "never longer than usual")
    if found.workers >= FEW and saved >= LEAST and found.slowest_share >= 0.05:
        lines.append(f"the slowest 3 % of the ranks make {found.slowest_share:.0%} of what is lost")
    if len(lines) == 1 + bool(found.left_out):
        lines.append("no rank, stage or kind of work stands out")
    return lines


def _told(found: WhatIf, rows: tuple[OneFixed, ...], at: str) -> list[str]:
    worth = [one for one in rows if _gain(found, one) >= LEAST][:MOST_LINES]
    return [
        f"{one.what} {at}: {_ms(one.step_s)} ({_gain(found, one):.0%} less)"
        + (f"; its work takes {one.ratio:.2f} times as long" if one.ratio != 1.0 else "")
        for one in worth
    ]


def _gain(found: WhatIf, one: OneFixed) -> float:
    return 1.0 - one.step_s / found.step_s if found.step_s > 0 else 0.0


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 10 else f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3f} s"
