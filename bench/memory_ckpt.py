"""What saving a checkpoint costs a training loop: seconds that it is blocked, per GiB, against the ways people have today.

    python bench/memory_ckpt.py --rounds 7 --gb 1
    python bench/memory_ckpt.py --steps 40 --rounds 0     # what a loop pays that saves at every step

One state dict (24 large tensors, 200 small ones; --gb of them in all) is saved by each contender in each round, the order turning
from round to round; a ratio is the median of the rounds' ratios. Blocked: until the call returns and training may change the
state. What a contender does afterwards in the background is waited for, and shown beside it (`until_done`), not counted.

    memcpy          a copy into tensors that are there and warm: the limit
    robust_run      `robust_run.checkpoint.save` into the memory of this node's keeper, a real process
    ours_async      `robust_run.ckpt_io.dcp.async_save`, to the same disk as the following
    ours_fresh      `dcp.async_save` as it is, with our writer: the same into fresh memory
    dcp_stager      `dcp.async_save` with torch's DefaultStager in shared memory, reused
    dcp_async       `dcp.async_save` as it is
    torch_save      `torch.save` to the same disk
    dlrover         DLRover's flash checkpoint, into memory, in a process and an environment of its own (--no-dlrover: without)

The loop (`memory_loop.py`): --steps of fixed work, of --step-s each on a quiet core, alone and saving --loop-mb at every step, in
turns: CPU and blocked seconds, and wall time. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from memory_loop import cpu_s_of, measured, print_loop
from memory_states import state_of
from peer_venv import DLROVER, PYTHON, PeerError, environment
from sidebyside import print_result, spread

OURS, LIMIT = "robust_run", "memcpy"
PEERS = ("dcp_stager", "dcp_async", "torch_save", "dlrover")
FLASH_MEMORY = "/dev/shm/ckpt_shm_0"
"""What DLRover leaves where its process is killed."""
ASYNC = "ours_async"
#: A keeper that takes no CPU in so many looks has nothing left to do.
QUIET_LOOKS, QUIET_LOOK_S = 3, 0.03
State = dict[str, torch.Tensor]
Save = Callable[[State, int], "Callable[[], object] | float"]
"""Saves; returns what waits until the rest of it is done, or how long it took where that was measured elsewhere."""


@contextlib.contextmanager
def keeper(folder: str) -> Iterator[int]:
    """Run a node's keeper, as an agent does, and name it to this process as a worker's environment does; yield its pid."""
    from robust_run.ckpt_io.memory.agent_protocol import AttemptBegins, KeeperSetup
    from robust_run.ckpt_io.memory.frames import frame

    ours, theirs = socket.socketpair()
    argv = [sys.executable, "-m", "robust_run.ckpt_io.memory.process", str(theirs.fileno())]
    child = subprocess.Popen(argv, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
    theirs.close()
    try:
        ours.sendall(frame(KeeperSetup(folder=folder)))
        ours.sendall(frame(AttemptBegins(attempt=0, ranks=(0,), world_size=1)))
        os.environ.update(
            ROBUST_CKPT_MEMORY=folder, RANK="0", WORLD_SIZE="1", TORCHELASTIC_RESTART_COUNT="0", ROBUST_JOB="bench"
        )
        yield child.pid
    finally:
        ours.close()
        child.wait(30)


def memcpy(state: State) -> Save:
    """The limit."""
    room = {name: tensor.clone() for name, tensor in state.items()}

    def save(state: State, step: int) -> Callable[[], object]:  # noqa: ARG001 - as all of them
        for name, tensor in state.items():
            room[name].copy_(tensor)
        return lambda: None

    return save


def robust_run(state: State, keeper_pid: int) -> Save:  # noqa: ARG001 - as all of them
    """Ours, into memory alone. Its keeper hashes the part afterwards: what comes next must not be measured beside that."""
    from robust_run import checkpoint

    def wait() -> None:
        before_s, quiet = cpu_s_of(keeper_pid), 0
        while quiet < QUIET_LOOKS:
            time.sleep(QUIET_LOOK_S)
            now_s = cpu_s_of(keeper_pid)
            before_s, quiet = now_s, quiet + 1 if now_s == before_s else 0

    def save(state: State, step: int) -> Callable[[], object]:
        checkpoint.save(state, step=step)
        return wait

    return save


def dcp(folder: str, *, staged: bool) -> Save:
    """torch's, which writes to disk in the background."""
    import torch.distributed.checkpoint as torch_dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    options = StagingOptions(
        use_pinned_memory=False, use_shared_memory=True, use_async_staging=True, use_non_blocking_copy=False
    )
    stager = DefaultStager(options) if staged else None

    def save(state: State, step: int) -> Callable[[], object]:
        place = os.path.join(folder, f"{'staged' if staged else 'plain'}-{step}")
        more = {"async_stager": stager} if stager is not None else {}
        answer: Any = torch_dcp.async_save(state, checkpoint_id=place, no_dist=True, **more)
        if stager is not None:
            answer.staging_completion.result()  # until then the state may not change
        future = getattr(answer, "upload_completion", answer)

        def wait() -> None:
            future.result()
            shutil.rmtree(place)

        return wait

    return save


def ours_async(folder: str, *, is_fresh: bool) -> Save:
    """Ours to disk in the background."""
    import torch.distributed.checkpoint as torch_dcp

    from robust_run.ckpt_io import dcp

    def save(state: State, step: int) -> Callable[[], object]:
        place = os.path.join(folder, f"ours-{is_fresh}-{step}")
        if is_fresh:
            answer: Any = torch_dcp.async_save(state, storage_writer=dcp.RobustWriter(place), no_dist=True)
            future = getattr(answer, "upload_completion", answer)
        else:
            future = dcp.async_save(state, place)

        def wait() -> None:
            future.result()
            shutil.rmtree(place)

        return wait

    return save


def torch_save(folder: str) -> Save:
    """What most scripts do."""

    def save(state: State, step: int) -> Callable[[], object]:
        path = os.path.join(folder, f"{step}.pt")
        torch.save(state, path)
        return lambda: os.remove(path)

    return save


@contextlib.contextmanager
def dlrover(size_bytes: int, folder: str) -> Iterator[Save | None]:
    """DLRover's, which has the same state in its own process; None: it cannot be had here, as was said."""
    try:
        venv, _ = environment(DLROVER)
    except PeerError as error:
        print(f"dlrover is left out: {error}", flush=True)
        yield None
        return
    was_there = os.path.exists(FLASH_MEMORY)
    here = os.path.dirname(os.path.abspath(__file__))
    argv = [os.path.join(venv, PYTHON), "-W", "ignore", os.path.join(here, "memory_peer.py"), str(size_bytes)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("ROBUST_")}
    env |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "TMPDIR": folder}
    child = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env,
        start_new_session=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None

    def save(state: State, step: int) -> float:  # noqa: ARG001 - as all of them
        print(step, file=child.stdin, flush=True)
        return float(answer())

    def answer() -> str:
        for line in child.stdout or ():
            if line.strip() == "ready" or line[:1].isdecimal():
                return line
        raise SystemExit("dlrover has ended; --no-dlrover measures without it")

    try:
        answer()
        yield save
    finally:
        child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(20)
        with contextlib.suppress(ProcessLookupError):  # its own process, which holds the memory, and is in its session
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if not was_there:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(FLASH_MEMORY)


def blocked(saves: dict[str, Save], state: State, rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return seconds until each call returned, and until all of it was done, round by round; the first two warm up."""
    returned: dict[str, list[float]] = {name: [] for name in saves}
    done: dict[str, list[float]] = {name: [] for name in saves}
    names = list(saves)
    for number in range(rounds + 2 if saves else 0):
        cut = number % len(names)
        for name in names[cut:] + names[:cut]:
            begun_s = time.perf_counter()
            wait = saves[name](state, number + 1)
            returned_s = time.perf_counter() - begun_s
            if isinstance(wait, float):
                returned_s = wait
            else:
                wait()
            if number >= 2:
                returned[name].append(returned_s)
                done[name].append(time.perf_counter() - begun_s)
    return returned, done


def ratio(times: dict[str, list[float]], one: str, other: str) -> list[float]:
    """Per round: how many times as long `one` took."""
    return [a / b for a, b in zip(times[one], times[other], strict=True)]


def main() -> int:
    """Run the bench."""
    parser = argparse.ArgumentParser(description="What saving a checkpoint costs a training loop.")
    parser.add_argument("--gb", type=float, default=0.5, help="GiB of the state (default 0.5)")
    parser.add_argument("--rounds", type=int, default=7, help="of saves that are compared; 0: the loop alone")
    parser.add_argument("--steps", type=int, default=0, help="of a loop that saves every step; 0: none")
    parser.add_argument("--step-s", type=float, default=1.0, help="what a step of it computes for")
    parser.add_argument("--loop-mb", type=int, default=32, help="MiB that the loop saves at each step (default 32)")
    parser.add_argument("--no-dlrover", action="store_true", help="leave out what must be installed first")
    parser.add_argument("--folder", help="where files are written (default: a temporary one)")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    os.environ.pop("ROBUST_CKPT_DIR", None)
    state = state_of(int(args.gb * (1 << 30)))
    gib = sum(tensor.nbytes for tensor in state.values()) / (1 << 30)
    with (
        tempfile.TemporaryDirectory(prefix="memory-ckpt-", dir=args.folder) as folder,
        tempfile.TemporaryDirectory(prefix="memory-ckpt-", dir="/dev/shm") as memory,
        contextlib.nullcontext()
        if args.no_dlrover or not args.rounds
        else dlrover(int(args.gb * (1 << 30)), folder) as flash,
        keeper(memory) as keeper_pid,
    ):
        saves: dict[str, Save] = {
            LIMIT: memcpy(state), OURS: robust_run(state, keeper_pid), ASYNC: ours_async(folder, is_fresh=False),
            "ours_fresh": ours_async(folder, is_fresh=True), "dcp_stager": dcp(folder, staged=True),
            "dcp_async": dcp(folder, staged=False), "torch_save": torch_save(folder),
        }  # fmt: skip
        if flash is not None:
            saves["dlrover"] = flash
        if not args.rounds:
            saves = {}
        returned, done = blocked(saves, state, args.rounds)
        looped: dict[str, Any] = {}
        if args.steps:
            looped = measured(robust_run(state, keeper_pid), keeper_pid, args.loop_mb << 20, args.steps, args.step_s)
    cases = []
    print(f"\n{gib:.2f} GiB{'':<12}{'blocked, s/GiB':>16}{'until done':>14}")
    for name in saves:
        case: dict[str, Any] = {
            "name": name,
            "blocked_s_per_gib": spread([round(each / gib, 5) for each in returned[name]]),
        }
        case["until_done_s_per_gib"] = round(statistics.median(done[name]) / gib, 4)
        cases.append(case)
        print(f"{name:<20}{case['blocked_s_per_gib']['median']:>16.4f}{case['until_done_s_per_gib']:>14.3f}")
    ratios = [
        {"ratio": f"blocked: {one} over {other}", "median": round(statistics.median(ratio(returned, one, other)), 3),
         "rounds": [round(each, 3) for each in ratio(returned, one, other)], "aim": aim}
        for one in (OURS, ASYNC)
        for other, aim in ((LIMIT, "<= 1.3"), *((peer, "<= 1") for peer in (*PEERS, *(["ours_fresh"] if one == ASYNC else []))))
        if one in saves and other in saves
    ]  # fmt: skip
    for each in ratios:
        print(f"{each['ratio']:<40}{each['median']:>8.3f}   aim {each['aim']}")
    if looped:
        print_loop(looped)
    print_result("memory_ckpt", cases, ratios=ratios, loop=looped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
