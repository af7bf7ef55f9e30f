"""What is loaded in place goes under the very keys of the state dict, whatever torch's planner made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from robust_run.ckpt_io.dcp import load, load_whole, save
from robust_run.ckpt_io.dcp.in_place import Places

KEYS = [True, None, 1.5, (1, 2), 7, "text"]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_an_object_is_put_under_its_key(tmp_path: Path, key: Any) -> None:
    save({"v": {key: 3, "t": torch.ones(2)}, "deep": [{key: {key: "a"}}, torch.ones(1)]}, tmp_path / "c")
    state: dict[str, Any] = {"v": {key: 0, "t": torch.zeros(2)}, "deep": [{key: {key: ""}}, torch.zeros(1)]}
    load(state, tmp_path / "c")
    assert list(state["v"]) == [key, "t"]
    assert state["v"][key] == 3
    assert torch.equal(state["v"]["t"], torch.ones(2))
    assert state["deep"][0] == {key: {key: "a"}}


def test_a_whole_dict_of_such_keys_is_as_it_was_saved(tmp_path: Path) -> None:
    saved = dict(zip(KEYS, range(len(KEYS)), strict=True))
    save({"v": saved}, tmp_path / "c")
    state = {"v": dict.fromkeys(KEYS, -1)}
    load(state, tmp_path / "c")
    assert state == {"v": saved}


def test_a_number_and_its_text_stay_apart(tmp_path: Path) -> None:
    saved = {1: {"a": 2, "b": {"c": 3}}, "1": {"d": 4, "b": {"e": 5}}}
    save({"v": saved}, tmp_path / "c")
    state = {"v": {1: {"a": 0, "b": {"c": 0}}, "1": {"d": 0, "b": {"e": 0}}}}
    load(state, tmp_path / "c")
    assert state == {"v": saved}


def test_a_checkpoint_by_itself_has_text_and_no_empty_dicts(tmp_path: Path) -> None:
    save({"v": {True: 3, "none": {}}, "empty": {}, "list": []}, tmp_path / "c")
    assert load_whole(tmp_path / "c") == {"v": {"True": 3}, "list": []}


def test_a_path_leads_to_one_place_or_nowhere() -> None:
    state: dict[Any, Any] = {"a": [0, {2: 3}], "b": 4}
    places = Places(state)
    assert places.find(("a", 1, "2")) == (state["a"][1], 2)
    for path in ((), ("a", 2), ("a", "0"), ("b", "c"), ("b", 0), ("c",)):
        assert places.find(path) is None, path
