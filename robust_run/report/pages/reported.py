"""What a script says of its training, drawn: loss, gradient norm and the like over its newest reports. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from robust_run.report.pages.markup import join, section, text
from robust_run.report.pages.types import ReportedSeries
from robust_run.report.pages.words import number

#: Series that are drawn: the first that the script names.
MOST_SERIES = 6
_WIDE, _HIGH, _TOP = 300, 70, 6


def reported(series: Sequence[ReportedSeries], rank: int) -> str:
    """Return a small picture per series, with its newest value; nothing where the script reports nothing."""
    drawn = [_one(each) for each in series[:MOST_SERIES] if each.values]
    if not drawn:
        return ""
    note = f"The newest reports of rank {rank} (robust_run.report)."
    return section("reported", "What the script reports", f"<div class=series>{join(drawn)}</div>", note=note)


def _one(series: ReportedSeries) -> str:
    finite = [value for value in series.values if math.isfinite(value)]
    newest, name = series.values[-1], text(series.name, 40)
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    odd = len(series.values) - len(finite)
    said = f"from {_short(low)} to {_short(high)}, {len(series.values)} reports" if finite else "no report is a number"
    said += f", {odd} of them no number" if odd and finite else ""
    tone = "" if math.isfinite(newest) else " class=bad"
    step = f"<small class=nowrap>step {number(series.step)}</small>" if series.step is not None else ""
    return (
        f"<figure><figcaption><span class=label>{name}</span> <strong{tone}>{_short(newest)}</strong>{step}</figcaption>"
        f'<svg viewBox="0 0 {_WIDE} {_HIGH + 2 * _TOP}" preserveAspectRatio=none role=img aria-label="{name}: {said}">'
        f'<path class=cum vector-effect=non-scaling-stroke d="{_line(series.values, low, high)}"/></svg>'
        f"<small class=dim>{said}</small></figure>"
    )


def _line(values: Sequence[float], low: float, high: float) -> str:
    """Return the path through the values; values that are no numbers leave a gap."""
    parts, pen = [], "M"
    for index, value in enumerate(values):
        if not math.isfinite(value):
            pen = "M"
            continue
        x = _WIDE * index / max(len(values) - 1, 1)
        share = (
            (value / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.5
        )  # halves: no difference overflows
        parts.append(f"{pen}{x:.1f} {_TOP + _HIGH * (1 - share):.1f}")
        pen = "L"
    return "".join(parts)


def _short(value: float) -> str:
    return number(value) if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"
