"""A state dict made of flattened keys and their paths, which may come from anybody."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.dcp.whole import nested
from robust_run.ckpt_io.errors import ManifestRefused


def test_paths_make_dicts_and_lists() -> None:
    paths = {"model.w": ("model", "w"), "groups.0.lr": ("groups", 0, "lr"), "groups.1.lr": ("groups", 1, "lr")}
    values = {"model.w": 1, "groups.0.lr": 2, "groups.1.lr": 3, "plain": 4}
    assert nested(values, paths) == {"model": {"w": 1}, "groups": [{"lr": 2}, {"lr": 3}], "plain": 4}


@pytest.mark.parametrize(
    "paths",
    [
        {"a": ("x",), "b": ("x",)},
        {"a": ("x",), "b": ("x", "y")},
        {"a": ("x", "y"), "b": ("x",)},
        {"a": ("x", 1_000_000_000)},
        {"a": ("x", 0), "b": ("x", "y")},
    ],
)
def test_paths_that_contradict_each_other_are_refused(paths: dict[str, Any]) -> None:
    with pytest.raises(ManifestRefused):
        nested(dict.fromkeys(paths, 0), paths)


parts = st.one_of(st.integers(0, 3), st.sampled_from("ab"))


@given(st.dictionaries(st.sampled_from("pqrstu"), st.lists(parts, min_size=1, max_size=4).map(tuple), max_size=6))
def test_any_paths_give_a_state_or_our_error(paths: dict[str, Any]) -> None:
    try:
        state = nested(dict.fromkeys(paths, 0), paths)
    except ManifestRefused:
        return
    assert isinstance(state, dict)
