"""Outliers as events: what is said of a node that stands out from its peers, and of one that stays apart."""

from __future__ import annotations

from robust_run.health.outliers import acting, feed
from robust_run.health.outliers.types import OutlierVerdict
from robust_run.health.types import Event


def event_of(verdict: OutlierVerdict, now_s: float) -> Event:
    """Return what is said of a node that stands out, as a sensor would say it."""
    value, peers = _short(verdict.value), _short(verdict.peers)
    also = f"; also {', '.join(verdict.also)}" if verdict.also else ""
    lasted_s = verdict.at_s - verdict.since_s
    return Event(
        name=f"outlier.{verdict.metric}",
        kind="alert",
        subject="",
        detail=f"{verdict.metric} is {value}, of its peers {peers}, for {lasted_s:.0f} s now"
        f" (confidence {verdict.confidence:.2f}{also})",
        at_s=now_s,
        value=verdict.value,
        limit=verdict.peers,
    )


def staying(verdict: OutlierVerdict, stood_s: float, now_s: float, *, knows_roles: bool) -> Event:
    """Return what is said of a node that stays apart: by its weightiest sign, where it is apart in several metrics.

    Of nodes whose roles are not known it is told without figures, by which nothing can be acted on.
    """
    metric, value, peers = verdict.metric, verdict.value, verdict.peers
    for weight in ("doubtful", "certain"):
        for sign in verdict.signs[::-1]:
            if acting.weight_of(*sign) == weight:
                metric, value, peers = sign
    said = f"{metric} is {_short(value)}, of its peers {_short(peers)}, still after {stood_s:.0f} s of training"
    if not knows_roles:
        said, value, peers = f"{said}; the roles of nodes are not known, so that it may have other work", None, None
    name = f"{feed.STAYS}.{metric}"
    return Event(name=name, kind="alert", subject="", detail=said, at_s=now_s, value=value, limit=peers)


def _short(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"
