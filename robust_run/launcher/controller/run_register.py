"""Registration of a new run of a job whose controller may move: an earlier one is ended for good, and this one put on record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.launcher.controller.config import ControllerConfig
from robust_run.launcher.controller.leadership.choice import open_coordinator, open_runs
from robust_run.launcher.controller.leadership.job_runs import entry_of
from robust_run.launcher.controller.leadership.types import Candidate, JobFinished
from robust_run.launcher.model.job_identity import identity_of
from robust_run.launcher.model.lease_times import leader_ttl_s, lease_times

#: Turns of an election within which a run that nobody leads can be ended.
TURNS = 8.0


async def close_earlier(config: ControllerConfig, clock: Clock, say: Callable[[str], None]) -> None:
    """End an earlier run of the job for good: win its election and say that it is over, so that no candidate of it ever leads.

    Raises PlatformError if it is led after all.
    """
    many = config.spec.many
    if not config.closes or many is None or many.coordinator:
        return  # in etcd both runs have one election, which this one has to win anyway
    earlier = config.closes.rpartition("/")[2]
    ttl_s = leader_ttl_s(lease_times(many).lease_s)
    coordinator = open_coordinator("", "", "", config.closes, clock, say)
    me = Candidate(address=config.address, host=config.host, run_id=earlier)
    try:
        leadership = await asyncio.wait_for(coordinator.campaign(me, ttl_s), TURNS * ttl_s)
        await leadership.resign(finished=True)
    except JobFinished:
        return
    except asyncio.TimeoutError:
        raise PlatformError(f"run {earlier} of this job is led after all: this node looks again") from None
    finally:
        await coordinator.close()
    say(f"run {earlier} of this job had no leader any more: it is over, and a new one begins")


async def enter(config: ControllerConfig, clock: Clock, say: Callable[[str], None]) -> None:
    """Put this run on record where the job's nodes look, unless it is there: each controller of it does so when it begins.

    Raises UserError or PlatformError where a run is new and another was founded meanwhile, or the place does not answer.
    """
    runs = open_runs(config.spec, clock)
    if runs is None:
        return
    run_id = config.run_path.rpartition("/")[2]
    try:
        newest = await runs.newest()
        number = newest.number if newest is not None else 0
        if newest is not None and newest.run_id == run_id and number:
            return
        if number == config.after or not config.resume:
            await runs.enter(entry_of(identity_of(config.spec), run_id, config.host, clock.unix_s()), config.after)
    except PlatformError as error:
        if not config.resume:
            raise
        say(f"run {run_id} could not be put on record for nodes that come later: {error}")
    finally:
        await runs.close()
