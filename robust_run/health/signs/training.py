"""Judges what a script says about its training: NaN, jumps, and a loss of speed. Pure.

ByteRobust (4.1): a loss or gradient norm that is NaN or jumps to 5 times and more what it was. What it was is here the median of
the last values, so that one bad step moves nothing. Near zero noise alone makes any ratio, and below it "times" mean nothing:
there a value has to rise above the median by 8 of the series' own spreads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from robust_run.health.metrics.reports import MetricPoint
from robust_run.health.sensors.settings import TrainingSettings
from robust_run.health.sensors.types import Condition, Event, Levels
from robust_run.health.signs.levels import follow

_HISTORY = 50
_LEAST_HISTORY = 20
_LEAST_WINDOWS, _MOST_WINDOWS = 3, 100
_SPREADS = 2.0
"""A series whose median is below so many spreads is measured by its spread, not by its size: with a ratio of 5, a jump is a rise
by 8 spreads, twice in a row, which normal noise does not make and Laplace's makes once in 50 million steps."""
_MAD_TO_SIGMA, _P90_TO_SIGMA = 1.4826, 1 / 1.645


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One number over time."""

    history: tuple[float, ...] = ()
    """The last values that were neither NaN nor a jump."""
    bad: int = 0
    """How many in a row were not finite."""
    jumped: int = 0
    """How many in a row were a jump."""


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long steps take."""

    last_step: int | None = None
    last_s: float = 0.0
    recent_s: tuple[float, ...] = ()
    """Of the last steps."""
    windows_s: tuple[float, ...] = ()
    """Medians of the last full windows: what this job does as a rule, some fast (skipped) or slow steps or not."""
    since_window: int = 0


class TrainingState(msgspec.Struct, frozen=True, kw_only=True):
    """What was said before, by one rank or file."""

    series: Mapping[str, Series] = {}
    pace: StepTimes = StepTimes()
    levels: Levels = {}


def role_of(name: str) -> str:
    """Return `loss` or `grad_norm` for what a number's name says it is, empty for any other.

    Losses of validation differ from those of training and come rarely: they are left out.
    """
    plain = name.lower().replace("-", "_").replace("/", "_").replace(".", "_")
    parts = plain.split("_")
    if any(part in ("val", "eval", "valid", "validation", "test", "scale", "ppl") for part in parts):
        return ""
    if "grad" in plain and "norm" in plain:
        return "grad_norm"
    return "loss" if "loss" in parts or plain.endswith("loss") else ""


def judge(
    settings: TrainingSettings, subject: str, state: TrainingState, points: Sequence[MetricPoint], now_s: float
) -> tuple[TrainingState, tuple[Event, ...]]:
    """Return what new points tell. Of each kind one alert at most, for any number of points."""
    series, pace = dict(state.series), state.pace
    found: dict[tuple[str, str], Event] = {}
    for point in points:
        for name, value in point.values.items():
            role = role_of(name)
            if not role or (name not in series and len(series) >= settings.most_series):
                continue
            series[name], what, detail = _next(settings, role, series.get(name, Series()), name, value)
            if what:
                at = f" at step {point.step}" if point.step is not None else ""
                event = Event(name=what, kind="alert", subject=subject, detail=detail + at, at_s=now_s, value=value)
                found.setdefault((what, name), event)
        pace = _step(pace, point)
    levels, said = follow(state.levels, _slow(settings, subject, pace), now_s)
    return TrainingState(series=series, pace=pace, levels=levels), (*found.values(), *said)


def _next(settings: TrainingSettings, role: str, series: Series, name: str, value: float) -> tuple[Series, str, str]:
    """Return the series with one value more, the event's name (or none) and its sentence."""
    if not math.isfinite(value):
        bad = series.bad + 1
        limit = settings.nan_losses if role == "loss" else settings.nan_grad_norms
        said = "training.nan" if bad == limit else ""
        often = f", {bad} times in a row" if bad > 1 else ""
        return msgspec.structs.replace(series, bad=bad), said, f"{name} is {value}{often}"
    jump, usual, scale = _limit(settings, series.history)
    if value < jump:
        history = (*series.history, value)[-_HISTORY:]
        return Series(history=history), "", ""
    jumped = series.jumped + 1
    if jumped >= _HISTORY:  # that is how it is now
        return Series(history=(value,)), "", ""
    said = {settings.jump_stays: "training.jump.stays", settings.jumps: "training.jump"}.get(jumped, "")
    often = f", for {jumped} values in a row" if said == "training.jump.stays" else ""
    far = (
        f"{value / usual:.1f} times its"
        if scale == usual
        else f"{(value - usual) / scale:.1f} times its spread above the"
    )
    detail = f"{name} is {value:.4g}, {far} median of the last {len(series.history)} steps{often}"
    return msgspec.structs.replace(series, jumped=jumped, bad=0), said, detail


def _limit(settings: TrainingSettings, history: Sequence[float]) -> tuple[float, float, float]:
    """Return from where on a value is a jump, what is usual, and what the distance is measured in.

    A series that has been nothing but zero has no scale: nothing is a jump, and what comes next shows one.
    """
    if len(history) < _LEAST_HISTORY:
        return math.inf, 0.0, 0.0
    usual = median(history)
    apart = sorted(abs(value - usual) for value in history)
    spread = max(_MAD_TO_SIGMA * median(apart), _P90_TO_SIGMA * apart[len(apart) * 9 // 10])
    scale = usual if usual >= _SPREADS * spread else spread
    limit = usual + (settings.jump_ratio - 1) * max(usual, _SPREADS * spread)
    return (limit if scale > 0 else math.inf), usual, scale


def _step(pace: StepTimes, point: MetricPoint) -> StepTimes:
    if point.step is None:
        return pace
    if pace.last_step is None or point.step <= pace.last_step:
        return msgspec.structs.replace(pace, last_step=point.step, last_s=point.at_s)
    each_s = (point.at_s - pace.last_s) / (point.step - pace.last_step)
    if not math.isfinite(each_s) or each_s <= 0:
        return msgspec.structs.replace(pace, last_step=point.step, last_s=point.at_s)
    recent = (*pace.recent_s, each_s)[-_LEAST_HISTORY:]
    windows, since = pace.windows_s, pace.since_window + 1
    if since >= _LEAST_HISTORY:
        windows, since = (*windows, median(recent))[-_MOST_WINDOWS:], 0
    return StepTimes(last_step=point.step, last_s=point.at_s, recent_s=recent, windows_s=windows, since_window=since)


def _slow(settings: TrainingSettings, subject: str, pace: StepTimes) -> list[Condition]:
    if len(pace.windows_s) < _LEAST_WINDOWS:
        return []
    usual_s, now_s = median(pace.windows_s), median(pace.recent_s)
    if now_s < settings.slow_ratio * usual_s:
        return []
    detail = f"a step takes {now_s:.3g} s, {now_s / usual_s:.1f} times what is usual ({usual_s:.3g} s)"
    condition = Condition(
        name="training.slow",
        subject=subject,
        detail=detail,
        value=now_s,
        limit=settings.slow_ratio * usual_s,
        hold_s=settings.slow_hold_s,
        repeat_s=600.0,
    )
    return [condition]
