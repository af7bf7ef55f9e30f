"""Tags of point-to-point calls: noted where gloo meets by them, counted each for itself, and never a reason to give up."""

from __future__ import annotations

import runpy
from types import SimpleNamespace
from typing import Any

import pytest

from robust_run.tracer.files.arming import ARM_FOLDER

CALLS = runpy.run_path(f"{ARM_FOLDER}/calls.py")
TABLE = runpy.run_path(f"{ARM_FOLDER}/table.py")


def tensors(device: str = "cpu") -> list[Any]:
    return [SimpleNamespace(device=SimpleNamespace(type=device))]


@pytest.mark.parametrize(
    ("arguments", "tag"),
    [
        ((tensors(), 1, 5), 5),
        ((tensors(), 5), 5),  # recv_anysource
        ((tensors("cuda"), 1, 5), 0),
        ((tensors(), 1, -1), 0),
        ((tensors(), 1, 1 << 40), 0),
        ((tensors(), 1, "5"), 0),
        ((tensors(),), 0),
    ],
)
def test_a_tag_is_noted_as_far_as_anybody_looks_at_it(arguments: tuple[Any, ...], tag: int) -> None:
    assert CALLS["tag_of"](arguments) == tag


def backend(config: object) -> SimpleNamespace:
    def get_backend_config(_: object) -> object:
        if isinstance(config, Exception):
            raise config
        return config

    return SimpleNamespace(get_backend_config=get_backend_config)


@pytest.mark.parametrize(
    ("config", "meets"),
    [
        ("cpu:gloo", True),
        ("cpu:gloo,cuda:nccl", True),
        ("cpu:mpi,cuda:mpi", False),
        ("cuda:nccl", False),
        (ValueError("no group"), False),
    ],
)
def test_only_gloo_meets_by_tags(config: object, meets: bool) -> None:
    assert CALLS["meets_by_tag"](CALLS["backends_of"](backend(config), object())) is meets


def test_calls_of_each_tag_count_for_themselves_and_the_oldest_tags_are_forgotten() -> None:
    group = TABLE["GroupEntry"](1, (0, 1))
    assert [group.next_turn(10, 1, tag) for tag in (5, 6, 5)] == [1, 1, 2]
    assert group.next_turn(16, -1) == 1
    for tag in range(10_000):
        group.next_turn(10, 1, tag)
    assert len(group.turns) <= TABLE["TURNS_KEPT"]
    assert group.next_turn(10, 1, 9_999) == 2
