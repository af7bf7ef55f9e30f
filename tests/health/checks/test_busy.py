"""`robust check` says beforehand that a node has other work."""

from __future__ import annotations

import pytest

from robust_run.health.checks.busy import busy_words


@pytest.mark.parametrize(("load", "cpus"), [(0.0, 2), (1.0, 2), (0.9, 1), (10.0, 64), (16.0, 64)])
def test_a_node_that_rests_is_measured_without_a_word(load: float, cpus: int) -> None:
    """Its own daemons, and what ended half a minute ago, are no work."""
    assert busy_words(load, cpus) == ""


@pytest.mark.parametrize(("load", "cpus"), [(1.5, 2), (30.0, 2), (17.0, 64)])
def test_a_node_that_works_is_named_busy_with_its_load(load: float, cpus: int) -> None:
    words = busy_words(load, cpus)
    assert f"busy: a load of {load:.1f} in the last minute, {cpus} CPUs" in words
