"""The generator: what it promises about fleets and faults; and that the default detector does well on them."""

from __future__ import annotations

import os
from collections import Counter

import msgspec
import numpy as np
import pytest
from outlier_fleets import settings
from outlier_fleets.faults import make_stretch
from outlier_fleets.job import make_job
from outlier_fleets.live import said_of

from robust_run.health.outliers import feed
from robust_run.health.outliers.types import Reading
from robust_run.health.outliers.watch import default_watch


def test_the_same_seed_makes_the_same_stretch() -> None:
    one, other = make_stretch(3, machines=12, faulty=True), make_stretch(3, machines=12, faulty=True)
    assert one.fault == other.fault
    assert np.array_equal(one.values, other.values, equal_nan=True)


def test_the_shares_of_faults_are_the_papers() -> None:
    assert sum(kind.share for kind in settings.FAULTS) == pytest.approx(100)
    drawn = Counter(make_stretch(seed, machines=1, faulty=True, seconds=2).fault.kind for seed in range(400))  # type: ignore[union-attr]
    assert drawn["ECC error"] / 400 == pytest.approx(0.389, abs=0.08)
    assert drawn["CUDA execution error"] / 400 == pytest.approx(0.146, abs=0.06)


def test_a_fault_leaves_all_before_it_as_it_was() -> None:
    stretch = make_stretch(5, machines=16, faulty=True, kind="PCIe downgrade")
    assert stretch.fault is not None
    culprit = stretch.fleet.machines.index(stretch.fault.machine)
    peers = [row for row, role in enumerate(stretch.fleet.roles) if role == stretch.fleet.roles[culprit]]
    pfc = np.log1p(stretch.values[:, :, settings.METRICS.index("pfc_tx_packets_per_s")])
    onset = int(stretch.fault.onset_s)
    others = [row for row in peers if row != culprit and stretch.fleet.machines[row] not in stretch.fault.neighbours]
    before = np.nanmean(pfc[: onset - 5, culprit]) - np.nanmean(pfc[: onset - 5, others])
    after = np.nanmean(pfc[onset + 10 :, culprit]) - np.nanmean(pfc[onset + 10 :, others])
    assert abs(before) < 1.5
    assert after - before > 1.5


def test_samples_are_missing_and_values_stay_in_range() -> None:
    stretch = make_stretch(1, machines=32, faulty=False)
    assert 0.003 < np.isnan(stretch.values).mean() < 0.02
    for column, level in enumerate(settings.LEVELS.values()):
        assert np.nanmin(stretch.values[:, :, column]) >= 0
        assert np.nanmax(stretch.values[:, :, column]) <= level.most * 1.0001


def test_the_default_finds_most_faults_and_accuses_nearly_nobody_else() -> None:
    found = false = 0
    stretches = 20 if os.environ.get("TEST_EXAMPLES") == "all" else 8
    for seed in range(stretches):
        stretch = make_stretch(2_000_000 + seed, machines=16, faulty=True)
        assert stretch.fault is not None
        watch = default_watch(stretch.fleet)
        state, named = watch.begin(), set()
        for second, values in enumerate(stretch.values):
            state, news = watch.step(state, Reading(float(second), values.astype(np.float64)))
            named |= {(verdict.machine, verdict.at_s >= stretch.fault.onset_s) for verdict in news}
        found += (stretch.fault.machine, True) in named
        false += len(named - {(stretch.fault.machine, True)})
    assert found >= 0.85 * stretches
    assert false <= 1


@pytest.mark.parametrize(
    ("planted", "what"), [("PCIe width", "evict"), ("slow disk", "diagnose"), ("slow loader", "report"), ("", "")]
)
def test_a_job_s_own_feed_names_what_is_planted_and_asks_for_no_more_than_it_is_a_sign_of(
    planted: str, what: str
) -> None:
    """The way from heartbeats to what `--on-outlier evict` would do, as it is in a job."""
    stretch, steps = make_job(4_000_000, machines=8, degradation=planted)
    said = list(said_of(stretch, steps))
    named = {each.machine for each in said if each.what == "named"}
    assert named == ({stretch.fault.machine} if stretch.fault is not None else set())
    assert {each.what for each in said} - {"named"} == ({what} if what else set())


def test_the_comparing_takes_next_to_nothing_of_the_controller_s_time() -> None:
    """Counted, not timed: a node adds one line of less than a pipe's page to what the controller writes in a second."""
    stretch, _ = make_job(4_000_001, machines=8, seconds=2)
    usage = [float(value) for value in stretch.values[1, 0]]
    assert len(msgspec.json.encode(feed.row(1e6, "node-0001", "stage 0", usage))) < 1024
