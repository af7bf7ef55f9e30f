"""A save in the background: what it copies into, when it blocks, and that the copy is what was there when it was called."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from robust_run.ckpt_io.dcp import async_save, load_whole
from robust_run.ckpt_io.dcp.pinning import Pinned
from robust_run.ckpt_io.dcp.rooms import Rooms
from robust_run.ckpt_io.dcp.staging import Room
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.errors import UserError

alone = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def staged(rooms: Rooms, state: dict[str, Any]) -> Any:
    copy, room = rooms.stage(state, is_shared=False)
    rooms.give_back(room, keep=True)
    return copy


def test_the_copy_is_the_state_whatever_its_tensors_are_like() -> None:
    grid = torch.arange(12.0).reshape(3, 4)
    leaf = torch.ones(3, requires_grad=True)
    state = {
        "columns": grid.t(),
        "row": grid[1],
        "expanded": torch.ones(1, 3).expand(4, 3),
        "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "scalar": torch.tensor(7),
        "none": torch.empty(0, 3),
        "graph": leaf * 2,
        "plain": {"list": [1, torch.zeros(2), ("a", None)], "ordered": OrderedDict(a=1)},
    }
    found = staged(Rooms(), state)
    for name in ("columns", "row", "expanded", "conjugate", "half", "scalar", "none", "graph"):
        assert torch.equal(found[name], state[name]) and found[name].dtype == state[name].dtype, name
        assert found[name].is_contiguous() and not found[name].requires_grad
    assert found["plain"]["list"][0] == 1 and found["plain"]["list"][2] == ("a", None)
    assert found["plain"]["ordered"] == {"a": 1}
    grid.zero_()
    state["plain"]["list"].append(9)
    assert found["row"].tolist() == [4.0, 5.0, 6.0, 7.0] and len(found["plain"]["list"]) == 3


def test_what_is_one_in_memory_is_copied_once() -> None:
    weight = torch.randn(100)
    found = staged(Rooms(), {"a": weight, "b": weight, "begin": weight[:50]})
    assert found["a"].data_ptr() == found["b"].data_ptr() != found["begin"].data_ptr()
    assert torch.equal(found["begin"], weight[:50])


def test_the_next_save_has_the_same_memory_and_other_shapes_if_need_be() -> None:
    rooms = Rooms()
    first = staged(rooms, {"a": torch.ones(1000), "b": torch.ones(10)})["a"].data_ptr()
    assert staged(rooms, {"a": torch.zeros(1000), "b": torch.ones(10)})["a"].data_ptr() == first
    other = staged(rooms, {"b": torch.full((500, 2), 3.0)})
    assert other["b"].data_ptr() == first and other["b"].eq(3).all()
    larger = staged(rooms, {"a": torch.full((1 << 20,), 2.0)})
    assert larger["a"].eq(2).all()


def test_two_saves_may_be_on_their_way_and_a_third_waits() -> None:
    rooms = Rooms()
    (one, first), (two, second) = (rooms.stage({"t": torch.full((9,), value)}, is_shared=False) for value in (1.0, 2.0))
    third: list[Any] = []
    waiting = threading.Thread(target=lambda: third.append(rooms.stage({"t": torch.full((9,), 3.0)}, is_shared=False)))
    waiting.start()
    assert one["t"].eq(1).all() and two["t"].eq(2).all() and waiting.is_alive()
    rooms.give_back(first, keep=True)
    waiting.join(60)
    assert third[0][0]["t"].eq(3).all() and third[0][1] is first and two["t"].eq(2).all()
    rooms.give_back(second, keep=False)


def test_a_copy_that_fails_gives_its_room_back() -> None:
    rooms = Rooms()

    class Refuses:
        def __deepcopy__(self, memo: object) -> object:
            raise ValueError("not this one")

    for _ in range(5):
        with pytest.raises(ValueError, match="not this one"):
            rooms.stage({"t": torch.ones(3), "bad": Refuses()}, is_shared=False)
    assert staged(rooms, {"t": torch.ones(3)})["t"].tolist() == [1, 1, 1]


class Cuda:
    """A runtime that page-locks, or says that it cannot."""

    def __init__(self, answer: int) -> None:
        self.answer, self.calls = answer, []  # type: ignore[var-annotated]

    def cudaHostRegister(self, at: int, size_bytes: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        self.calls.append(("register", at, size_bytes))
        return self.answer

    def cudaHostUnregister(self, at: int) -> int:  # noqa: N802 - CUDA's name
        self.calls.append(("unregister", at))
        return 0


def test_memory_is_page_locked_once_and_let_go_with_the_room() -> None:
    cuda = Cuda(0)
    room = Room(4096, library=lambda: cuda)
    shapes = ((torch.float32, torch.Size([10])),)
    room.places(shapes, pin=False)
    assert cuda.calls == []
    at = room.places(shapes, pin=True)[0].data_ptr()
    room.places((), pin=True)
    room.close()
    room.close()
    assert cuda.calls == [("register", at, 4096), ("unregister", at)]


def test_what_cannot_be_page_locked_is_used_as_it_is() -> None:
    refusing = Cuda(2)
    Pinned(1, 4096, refusing).close()
    assert refusing.calls == [("register", 1, 4096)]
    for library in (object(), None):
        pinned = Pinned(1, 4096, library)
        pinned.close()
        assert not pinned.is_pinned


@alone
def test_saves_that_follow_each_other_at_once_have_each_its_own_content(tmp_path: Path) -> None:
    state = {"t": torch.zeros(300, 1000), "step": 0}
    saving = []
    for step in range(1, 6):
        state["t"].fill_(step)
        state["step"] = step
        saving.append(async_save(state, tmp_path / f"step-{step}"))
    state["t"].fill_(-1)
    for step, each in enumerate(saving, 1):
        each.result(60)
        found = load_whole(tmp_path / f"step-{step}")
        assert found["t"].eq(step).all() and found["step"] == step


@alone
def test_an_error_in_the_background_comes_out_of_the_future_and_the_next_save_is_well(tmp_path: Path) -> None:
    bad = async_save({"t": torch.ones(3)}, "/proc/nothing/can/be/written")
    sparse = async_save({"t": torch.ones(3).to_sparse()}, tmp_path / "sparse")
    good = async_save({"t": torch.ones(3)}, tmp_path / "good", keep_memory=False)
    with pytest.raises(CheckpointError, match="/proc/nothing"):
        bad.result(60)
    with pytest.raises(UserError, match="only dense ones are saved"):
        sparse.result(60)
    good.result(60)
    assert load_whole(tmp_path / "good")["t"].tolist() == [1, 1, 1]
