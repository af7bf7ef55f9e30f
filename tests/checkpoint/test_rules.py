"""What is decided without a tensor: nodes, how often, what the environment says."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.checkpoint.rules.cadence import Every, is_step_due, is_time_due, parse_every, stored_since_s
from robust_run.checkpoint.rules.encoding import decode, encode, pack_plain, unpack_plain
from robust_run.checkpoint.rules.settings import Generation, checked_step, generation_of, settings_of
from robust_run.checkpoint.rules.tree import Packer, unpack
from robust_run.checkpoint.types import Values
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.errors import UserError

KEYS = st.text(max_size=8) | st.integers()
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


def exactly(value: Any) -> Any:
    """The value with its types, as 1, 1.0 and True are equal, and so are 0.0 and -0.0."""
    if isinstance(value, dict):
        return dict, [(exactly(key), exactly(inner)) for key, inner in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [exactly(each) for each in value]
    return type(value), repr(value)


@given(PLAIN)
def test_plain_values_come_back_exactly(value: Any) -> None:
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(pack_plain(value)))
    assert exactly(unpack_plain(travelled)) == exactly(value)


def test_the_state_of_pythons_generator_and_no_number_come_back() -> None:
    assert (
        unpack_plain(msgspec.msgpack.decode(msgspec.msgpack.encode(pack_plain(random.getstate())))) == random.getstate()
    )
    assert math.isnan(unpack_plain(msgspec.msgpack.decode(msgspec.msgpack.encode(pack_plain(math.nan)))))


def refusals(value: Any) -> list[tuple[str, str]]:
    packer = Packer(lambda *_: None)
    packer.pack(value, ())
    return packer.refused


def test_all_that_cannot_be_kept_is_named() -> None:
    found = refusals({"a": {1, 2}, "b": [0, {"c": object()}], (1, 2): 3, True: 4, "d": "\ud800", "e": 1j})
    assert [key for key, _ in found] == ["a", "b.1.c", "(1, 2)", "True", "d", "e"]
    assert "give it state_dict" in found[0][1] and "use text or an integer" in found[2][1]


def test_what_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    assert "contains itself" in refusals(loop)[0][1]


@pytest.mark.parametrize("node", [["x"], [], ["d", "a"], ["d", 1.5, 2], ["i", "zz"], ["T", "a"], ["o"], [["l"]]])
def test_what_is_no_node_is_no_value(node: Any) -> None:
    with pytest.raises(ValueError):
        unpack(node, lambda _: None)


def values(tree: Any) -> Values:
    return Values(step=1, rank=0, world_size=1, tensors=(), tree=tree, random=None)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", encode(values(["l"])), encode(values(["d", "a", ["T", 0]])), encode(values(["d", "a"]))]
)
def test_values_that_are_none_are_an_error_of_the_checkpoint(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        decode(data, "here")


def test_how_often() -> None:
    assert [parse_every(text) for text in ("500", 7, "30s", "10m", "2h")] == [
        Every(steps=500),
        Every(steps=7),
        Every(seconds=30.0),
        Every(seconds=600.0),
        Every(seconds=7200.0),
    ]
    for wrong in ("", "0", "0m", "-1", "5d", "1.5", True):
        with pytest.raises(UserError, match="every"):
            parse_every(wrong)


def test_a_program_that_passes_multiples_by_is_saved_too() -> None:
    every, last, saved = Every(steps=10), 0, []
    for step in range(3, 50, 3):
        if is_step_due(every, last, step):
            saved.append(step)
        last = step
    assert saved == [12, 21, 30, 42]
    assert is_step_due(Every(steps=1), 0, 0)
    assert not is_step_due(every, 20, 25)
    assert is_time_due(Every(seconds=5.0), 5.0) and not is_time_due(Every(seconds=5.0), 4.9)


def test_where_it_goes() -> None:
    assert settings_of("a", None, {}).every == Every(steps=1)
    beside = settings_of(None, None, {"ROBUST_CKPT_DIR": "b", "ROBUST_CKPT_MEMORY": "/run/m"})
    assert (beside.folder, beside.memory, beside.every) == ("b", "/run/m", Every(seconds=600.0))
    off = settings_of(None, "3", {"ROBUST_CKPT_MEMORY": "off", "ROBUST_CKPT_EVERY": "9"})
    assert (off.folder, off.memory, off.every) == ("", "", Every(steps=3))
    with pytest.raises(UserError, match="nowhere to save to"):
        settings_of(None, None, {})


@pytest.mark.parametrize("step", [-1, 1.0, True, "3", 1 << 62])
def test_a_step_that_does_not_count_is_refused(step: Any) -> None:
    with pytest.raises(UserError, match="step"):
        checked_step(step)


def test_an_address_in_memory() -> None:
    assert generation_of("rrck+memory://3/4000") == Generation(3, 4000)
    assert [generation_of(text) for text in ("", "/ckpt/step-1", "rrck+memory://3", "rrck+memory://a/b")] == [None] * 4


@pytest.mark.parametrize(
    ("made_ago_s", "is_restart", "waited_s"),
    [
        (30.0, True, 30.0),
        (30.0, False, 30.0),
        (-5.0, True, 0.0),
        (-3600.0, True, float("inf")),  # this clock was set back, or another made it: else nothing is saved for an hour
        (-3600.0, False, 0.0),
        (None, True, float("inf")),
        (None, False, 0.0),
    ],
)
def test_for_how_long_storage_has_had_nothing_newer(
    made_ago_s: float | None, is_restart: bool, waited_s: float
) -> None:
    newest_s = None if made_ago_s is None else 1e9 - made_ago_s
    assert stored_since_s(newest_s, 1e9, is_restart=is_restart) == waited_s
