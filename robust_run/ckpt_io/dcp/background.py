"""Saving while training goes on: the copy is what a program waits for, all else is done by one thread, save after save.

What ranks say to each other about saves is in the order of the calls on each of them, so a save that was begun before the one
before it was written does not mix with it. They have a group of their own: two threads that use one group mix what they say. With
every backend that has a part for the CPU training may talk over it, if only to exchange objects.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlanner

from robust_run.ckpt_io.dcp.failures import plain
from robust_run.ckpt_io.dcp.quiet import alone_is_fine
from robust_run.ckpt_io.dcp.rooms import Rooms
from robust_run.ckpt_io.dcp.writer import RobustWriter
from robust_run.ckpt_io.rules.types import Codec
from robust_run.errors import UserError

Where = str | os.PathLike[str]


class _Saver:
    """The thread of a process that saves, and the buffers; a fork begins its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.rooms = Rooms()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="rrck-save")
        self.groups: dict[dist.ProcessGroup, dist.ProcessGroup] = {}


_saver: _Saver | None = None
_lock = threading.Lock()


def _here() -> _Saver:
    global _saver  # noqa: PLW0603 - one a process
    with _lock:
        if _saver is None or _saver.pid != os.getpid():
            _saver = _Saver()
        return _saver


def async_save(  # noqa: PLR0913 - options, all by name and with a default
    state: Mapping[str, Any],
    url: Where,
    *,
    also: Sequence[str] = (),
    step: int | None = None,
    facts: Mapping[str, str] | None = None,
    codec: Codec = "none",
    durable: bool = True,
    threads: int | None = None,
    in_process: bool = False,
    keep_memory: bool = True,
    planner: SavePlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> Future[Metadata]:
    """Copy a state dict to CPU memory, return, and save the copy while training goes on; ask the future for the outcome.

    It blocks for the copy, the first time into fresh memory, then into the same, which stays with the process: as large as the
    state, twice if a save begins while the one before is written. A third waits. `keep_memory=False` gives it back when the save
    is over. `in_process`: save in another process, which torch starts at the first call and which needs a process group here.
    With a process group, its backend must have a part for the CPU (`cpu:gloo,cuda:nccl`). Saves come one after the other.

    Raises:
        UserError: There is no process group, or none for the CPU.
        The future, what `save` raises. What a failed save leaves is removed with a thread, and by `prune` with a process.
    """
    saver = _here()
    in_process_words = _saver_words(in_process=in_process)
    group = _group_for(saver, process_group, in_process=in_process)
    staged, room = saver.rooms.stage(state, is_shared=in_process)
    writer = (_StagedWriter if in_process else RobustWriter)(
        url, also=also, step=step, facts=facts, codec=codec, durable=durable, threads=threads
    )

    def save() -> Metadata:
        with alone_is_fine():
            return dcp.save(staged, storage_writer=writer, planner=planner, process_group=group)

    outcome: Future[Metadata] = Future()
    outcome.set_running_or_notify_cancel()

    def settle(done: Future[Metadata]) -> None:
        writer.abandon()
        saver.rooms.give_back(room, keep=keep_memory)
        error = done.exception()
        if error is None:
            outcome.set_result(done.result())
        else:
            outcome.set_exception(plain(error))

    running: Future[Metadata]
    try:
        if in_process:
            words: dict[str, Any] = {"planner": planner, "process_group": group, **in_process_words}
            answer = dcp.async_save(staged, storage_writer=writer, **words)
            running = getattr(answer, "upload_completion", answer)
        else:
            running = saver.thread.submit(save)
    except BaseException:
        saver.rooms.give_back(room, keep=False)
        raise
    running.add_done_callback(settle)
    return outcome


class _StagedWriter(RobustWriter):
    """A writer that tells torch's `async_save` that the state it is given is a copy already.

    All versions of torch ask a writer that has these three; a stager as an argument has come later.
    """

    _synchronize_after_execute = False
    should_synchronize_after_execute = False

    def stage(self, state_dict: Any) -> Any:
        """Return it as it is."""
        return state_dict

    def synchronize_staging(self) -> None:
        """Nothing is left to be done."""

    def close(self) -> None:
        """Nothing is held."""


def _saver_words(*, in_process: bool) -> dict[str, Any]:
    """Return how torch is told who saves. Older versions know threads only, and have no word for it."""
    if not in_process:
        return {}
    if not (dist.is_available() and dist.is_initialized()):
        raise UserError(
            "in_process=True: torch needs a process group for it, here and there; save in a thread without one"
        )
    try:
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
    except ImportError as error:
        raise UserError("in_process=True: this version of torch saves in threads only; leave it out") from error
    return {"async_checkpointer_type": AsyncCheckpointerType.PROCESS}


def _group_for(saver: _Saver, group: dist.ProcessGroup | None, *, in_process: bool) -> dist.ProcessGroup | None:
    """Return over which group ranks talk about saves. A collective call, at the first save over a group.

    Raises:
        UserError: It moves no data of the CPU.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    given = group if group is not None else dist.group.WORLD
    assert given is not None, "it is initialized"
    devices = {device.type for device in getattr(given, "_device_types", [torch.device("cpu")])}
    if "cpu" not in devices:
        raise UserError(
            "a save in the background talks over the CPU, which this process group has no backend for: "
            "init_process_group('cpu:gloo,cuda:nccl')"
        )
    if in_process:  # torch asks the others in this thread, and the processes have a group of their own
        return group
    if given not in saver.groups:
        ranks = dist.get_process_group_ranks(given)
        saver.groups[given] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    return saver.groups[given]
