"""Who is compared with whom, and medians that a liar does not move."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from robust_run.health.outliers.peers import group_by_role, medians, of_machines


def test_machines_of_one_role_are_peers() -> None:
    groups = group_by_role(("a",) * 4 + ("b",) * 5)
    assert groups.group_of.tolist() == [0] * 4 + [1] * 5
    assert groups.sizes.tolist() == [4, 5]


def test_machines_of_roles_with_too_few_of_them_are_compared_with_nobody() -> None:
    groups = group_by_role(("a",) * 3 + ("b", "b", "c"))
    assert groups.group_of.tolist() == [0, 0, 0, -1, -1, -1]


def test_two_machines_have_no_peers() -> None:
    groups = group_by_role(("a", "a"))
    assert groups.group_of.tolist() == [-1, -1]
    assert np.isnan(of_machines(medians(np.ones((2, 3)), groups), groups)).all()


@given(st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=4, max_size=12))
def test_the_median_is_the_median_of_what_is_known(values: list[float]) -> None:
    groups = group_by_role(("a",) * len(values))
    known = [value for value in values if value == value]
    ours = medians(np.array(values)[:, None], groups)[0, 0]
    assert np.isnan(ours) if len(known) < 3 else ours == np.median(known)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_one_liar_of_four_does_not_move_the_median_beyond_the_others(lie: float) -> None:
    groups = group_by_role(("a",) * 4)
    assert 1.0 <= medians(np.array([[1.0], [2.0], [3.0], [lie]]), groups)[0, 0] <= 3.0
