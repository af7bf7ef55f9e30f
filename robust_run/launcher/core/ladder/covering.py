"""Over-eviction for a hang: one of several nodes is at fault, and it is not known which (`health.ladder.cover`). Pure."""

from __future__ import annotations

from robust_run.health.ladder import suspicion
from robust_run.health.ladder.cover import TimeLost, cover
from robust_run.health.ladder.step import most_evicted
from robust_run.launcher.core.ladder.ladder_state import ladder_state_of
from robust_run.launcher.core.ladder.suspects import evict_share, hosts, times_of
from robust_run.launcher.core.state import LADDER, CorePolicy, JobState

#: By whom evictions are decided that count towards the share.
OURS = ("robust-run", LADDER)


def whom(
    policy: CorePolicy, state: JobState, named: tuple[str, ...], *, spare: int, now_s: float
) -> tuple[tuple[str, ...], str]:
    """Return whom to evict of the nodes that a verdict names, and what was weighed if that is not all of them.

    `spare`: so many can be taken over for. A replay is no choice yet: the job is tried without those that are covered, and the
    ladder comes to it if that was in vain.
    """
    times, found = times_of(policy), ladder_state_of(state).suspicions
    ours = sum(each.by in OURS for each in state.evicted.values())
    allowed = most_evicted(evict_share(policy), len(hosts(state)) + ours) - ours
    ordered = suspicion.worst_first(found, named, now_s, times.half_life_s)
    blamed_s = [now_s - found[name].at_s for name in named if name in found]
    lost = TimeLost(
        find_s=None,
        standbys_s=times.standbys_s,
        mtbf_s=max(min(blamed_s, default=times.half_life_s), 1.0),
        failure_s=times.failure_s,
    )
    plan = cover(ordered, spare, allowed, lost)
    return plan.evict, plan.why if plan.rest != "none" else ""
