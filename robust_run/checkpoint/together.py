"""What ranks agree on, where there are several: torch.distributed's default group, if the program has made one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from robust_run.ckpt_io.dcp.tensors import device_of
from robust_run.ckpt_io.errors import CheckpointError, PeerFailed
from robust_run.errors import RobustRunError, UserError

T = TypeVar("T")


def are_several() -> bool:
    """Whether there are other ranks to agree with."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def rank_and_size() -> tuple[int, int]:
    """Return this rank, and how many there are. Raises UserError: a launcher says that there are, and they have not met."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if (size := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise UserError(
            f"WORLD_SIZE is {size}, and torch.distributed is not initialized: call init_process_group first"
        )
    return 0, 1


def said_by_all(value: T) -> list[T]:
    """Return what each rank says, in their order."""
    if not are_several():
        return [value]
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, value)
    return said


def first_says(decide: Callable[[], T]) -> T:
    """Return what rank 0 decides, on all ranks; an error of it, too."""
    if not are_several():
        return decide()
    said: list[Any] = [None, None]
    error: RobustRunError | None = None
    if dist.get_rank() == 0:
        try:
            said[1] = decide()
        except RobustRunError as failed:
            error = failed
            said[0] = str(failed)
    dist.broadcast_object_list(said, src=0)
    if error is not None:
        raise error
    if said[0] is not None:
        raise PeerFailed(f"rank 0: {said[0]}")
    result: T = said[1]
    return result


def first_says_yes(is_so: bool) -> bool:
    """Return what rank 0 says; one small broadcast."""
    if not are_several():
        return is_so
    answer = torch.tensor([int(is_so)], device=_device())
    dist.broadcast(answer, src=0)
    return bool(answer.item())


def all_or_none(do: Callable[[], T]) -> T:
    """Do something on every rank; if it fails on one, raise on all."""
    error: Exception | None = None
    result: T | None = None
    try:
        result = do()
    except Exception as failed:  # whatever it is: the others wait for what this rank says
        error = failed
    said = said_by_all(None if error is None else f"{type(error).__name__}: {error}"[:2000])
    if error is not None:
        raise error
    foreign = next(((rank, text) for rank, text in enumerate(said) if text is not None), None)
    if foreign is not None:
        raise PeerFailed(f"rank {foreign[0]}: {foreign[1]}")
    return result  # type: ignore[return-value]


def is_first() -> bool:
    """Whether this is rank 0, or the only one."""
    return not are_several() or dist.get_rank() == 0


def any_say_yes(*questions: bool) -> list[bool]:
    """Return of each question whether a rank says yes; one small all_reduce."""
    if not are_several():
        return list(questions)
    answers = torch.tensor([int(each) for each in questions], device=_device())
    dist.all_reduce(answers, op=dist.ReduceOp.MAX)
    return [bool(each) for each in answers.tolist()]


def check_same(what: str, numbers: tuple[int, ...]) -> None:
    """Raise CheckpointError on all ranks unless all have the same numbers (of 62 bits); one small all_gather."""
    if not are_several():
        return
    mine = torch.tensor(numbers, dtype=torch.int64, device=_device())
    all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_of_them, mine)
    said = [each.tolist() for each in all_of_them]
    for rank, other in enumerate(said):
        if other != said[0]:
            raise CheckpointError(f"ranks would load different {what}: rank 0 {said[0][0]}, rank {rank} {other[0]}")


def same_on_all(digests: list[int]) -> list[bool]:
    """Return which of the digests (of 62 bits) are the same on all ranks; all ranks have as many of them."""
    if not are_several() or not digests:
        return [True] * len(digests)
    mine = torch.tensor(digests, dtype=torch.int64)
    both = torch.stack([mine, -mine]).to(_device())
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    most, least = both.cpu()
    return (most == -least).tolist()  # type: ignore[no-any-return]


def _device() -> torch.device:
    group = dist.group.WORLD
    assert group is not None
    return device_of(group)
