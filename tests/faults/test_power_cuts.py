"""A fixed small sample of what `make soak` draws: power cuts and their like."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hosts import need_hosts
from power_cuts import ACTS, LATEST_S, STANDBY, PowerCut, drawn, try_out


@pytest.mark.parametrize(
    "cut",
    [
        PowerCut("power", 2, 0.3),
        PowerCut("cut to it", 1, 1.1),
        PowerCut("reboot", STANDBY, 0.0),
        PowerCut("controller", 1, 0.6),
    ],
    ids=lambda cut: cut.name,
)
def test_the_job_goes_on(cut: PowerCut, tmp_path: Path) -> None:
    need_hosts()
    assert try_out(cut, tmp_path, admission=False) == ""


def test_a_seed_draws_the_same_again_and_all_are_drawn() -> None:
    cuts = [drawn(random.Random(seed)) for seed in range(300)]
    assert cuts == [drawn(random.Random(seed)) for seed in range(300)]
    assert {(cut.act, cut.victim) for cut in cuts} == {
        (act, victim) for act in ACTS for victim in range(1, STANDBY + 1)
    }
    assert all(0 <= cut.after_s <= LATEST_S for cut in cuts)
    assert len({cut.name for cut in cuts}) > 250
