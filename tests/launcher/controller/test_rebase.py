"""Times of an agent's reports in the controller's clock."""

from __future__ import annotations

from robust_run.health.types import Event as SensorEvent
from robust_run.launcher.core.rebase import rebase, rebased_sights
from robust_run.launcher.model.events import AttemptEnded, FirstStep, RankExited
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.job import Progress, RankEvidence, Sights
from robust_run.tracer.nccl.types import NcclGlance, NcclNote, NcclTrace
from robust_run.tracer.types import FlightSight, GroupProgress, RankSight

NOW_UNIX_S = 1.8e9


def test_what_a_sensor_said_is_of_now_whatever_the_wall_clock_of_its_node_says() -> None:
    """By a clock that is a day behind it was too old to be shown."""
    sign = SensorEvent(name="disk.full", kind="alert", subject="/tmp", detail="full", at_s=5.0)
    moved = rebase(HealthSeen(node="a", event=sign, at_unix_s=NOW_UNIX_S - 86400.0), 1000.0, NOW_UNIX_S)
    assert isinstance(moved, HealthSeen)
    assert (moved.at_unix_s, moved.event.at_s) == (NOW_UNIX_S, 1005.0)


def test_times_of_a_report_move_by_what_the_clocks_differ() -> None:
    told = RankEvidence(
        rank=0, pid=7, exit_code=-15, exited_at_s=12.0, signalled_at_s=11.0, spoke_at_s=10.5, raised_at_s=10.4
    )
    unasked = RankEvidence(rank=1, pid=8, exit_code=1, exited_at_s=11.5)
    ended = AttemptEnded(attempt=2, node="a", started_at_s=5.0, ranks=(told, unasked), progress=Progress(lived_s=7.0))
    moved = rebase(ended, 1000.0, NOW_UNIX_S)
    assert isinstance(moved, AttemptEnded)
    assert moved.started_at_s == 1005.0
    first, second = moved.ranks
    assert (first.exited_at_s, first.signalled_at_s, first.spoke_at_s) == (1012.0, 1011.0, 1010.5)
    assert (first.raised_at_s, second.raised_at_s) == (1010.4, None)
    assert (second.exited_at_s, second.signalled_at_s, second.spoke_at_s) == (1011.5, None, None)
    assert moved.progress == ended.progress, "durations stay"


def test_the_first_step_moves_too() -> None:
    assert rebase(FirstStep(attempt=0, node="a", at_s=3.0), -2.0, NOW_UNIX_S) == FirstStep(
        attempt=0, node="a", at_s=1.0
    )


def test_what_has_no_time_stays_what_it_is() -> None:
    event = RankExited(attempt=0, rank=1, exit_code=1)
    assert rebase(event, 1000.0, NOW_UNIX_S) is event


def test_times_of_nccl_are_told_how_far_they_are_off() -> None:
    """A trace is large, so it is not rewritten: who reads it adds the shift. The few notes are."""
    glance = NcclGlance(pid=1, api=6, communicators=0, ops=0, event_s=3.0, dropped=0, foreign=0, unknown=0, stale=0)
    trace = NcclTrace(glance=glance, communicators=(), flows=(), ops=())
    note = NcclNote(at_s=2.0, comm=1, channel=0, peer=1, direction="send", posted=1, gpu_ready=0, transmitted=0, done=0)
    seen = Sights(attempt=0, number=1, sights=(RankSight(rank=0, node="", nccl=trace, nccl_log=(note,)),))
    moved = rebased_sights(seen, 1000.0)
    assert isinstance(moved, Sights)
    (sight,) = moved.sights
    assert (sight.nccl, sight.nccl_shift_s) == (trace, 1000.0)
    assert [noted.at_s for noted in sight.nccl_log] == [1002.0]


def test_times_of_the_flight_recorder_move_too() -> None:
    flight = FlightSight(at_s=9.0, moved_at_s=8.0, groups=(GroupProgress("0", 5, 4, 7.0), GroupProgress("1", 4, 4)))
    moved = rebased_sights(Sights(attempt=0, number=1, sights=(RankSight(rank=0, node="", flight=flight),)), 1000.0)
    assert isinstance(moved, Sights)
    found = moved.sights[0].flight
    assert found is not None
    assert (found.at_s, found.moved_at_s) == (1009.0, 1008.0)
    assert [group.open_since_s for group in found.groups] == [1007.0, None]
