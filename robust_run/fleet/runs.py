"""Which runs count, and what of them: each once, and only what happened since a time. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from robust_run.fleet.words import RunFacts

#: Of two tellings that reach equally far: what is over is known better than what lives.
_SURER = ("lost", "live", "failed", "stopped", "done")


def once(runs: Iterable[RunFacts]) -> list[RunFacts]:
    """Return each run once, in an order of their own: two folders and links to one place may show the same run.

    A run is its name and its beginning. Of two tellings the one counts that reaches further: a run that is resumed after its end
    is told by its run directory, and one whose directory was copied by the newer copy.
    """
    found: dict[tuple[float, str], RunFacts] = {}
    for run in runs:
        key = (run.began_s, run.run_id)
        known = found.get(key)
        if known is None or _weight(run) > _weight(known):
            found[key] = run
    return [found[key] for key in sorted(found)]


def _weight(run: RunFacts) -> tuple[float, int, bytes]:
    return (run.until_s, _SURER.index(run.state), msgspec.json.encode(run, order="deterministic"))


def duration_s(run: RunFacts) -> float:
    """Return how long a run lasted, or is known."""
    return max(run.until_s - run.began_s, 0.0)


def effective_s(run: RunFacts) -> float | None:
    """Return how long it trained; None: not known. Never more than it lasted."""
    effective = run.effective_s
    if effective is None and run.ettr is not None:
        effective = run.ettr * duration_s(run)
    return None if effective is None else min(max(effective, 0.0), duration_s(run))


def since(run: RunFacts, since_s: float) -> RunFacts | None:
    """Return what of a run is of the time after `since_s`; None: nothing is.

    Incidents and starts have their times. Node time and effective time are not kept by the moment: their share is taken.
    """
    if run.until_s <= since_s:
        return None
    if run.began_s >= since_s:
        return run
    share = (run.until_s - since_s) / (run.until_s - run.began_s)
    effective = effective_s(run)
    return msgspec.structs.replace(
        run,
        began_s=since_s,
        effective_s=None if effective is None else effective * share,
        node_s={node: lasted_s * share for node, lasted_s in run.node_s.items()},
        incidents=tuple(each for each in run.incidents if each.at_s >= since_s),
        starts=tuple(each for each in run.starts if each.at_s >= since_s),
    )
