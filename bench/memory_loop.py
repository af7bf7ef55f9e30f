"""A training loop that saves at every step beside one that does not, for `memory_ckpt.py`: CPU, blocked and wall seconds.

A step is a fixed amount of work on one core, the same on both sides, which take turns in blocks of steps. The keeper works on
another core, where one is free; what it takes there is said apart.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from memory_states import state_of

BLOCK = 5
"""Steps of a side, one after the other."""
ALONE, SAVING = "alone", "saving"
FIRST_STEP = 1_000_000
"""Beyond what was saved before: steps count up."""
MOST_COPY, AIM = 0.005, 0.01
"""Parts of a step: what the copy may take for the aim to be asked, and the aim."""

State = dict[str, torch.Tensor]
Save = Callable[[State, int], object]


class Work:
    """So much work that a step of it takes about so long on a quiet core."""

    def __init__(self, step_s: float) -> None:
        self._small = torch.randn(256, 256)
        self._turns = 1
        begun_s = time.process_time()
        self._turn(200)
        self._turns = max(1, int(step_s * 200 / (time.process_time() - begun_s)))

    def step(self) -> None:
        """Do it."""
        self._turn(self._turns)

    def _turn(self, count: int) -> None:
        small = self._small
        for _ in range(count):
            small = torch.tanh(small @ small)


def copy_s(state: State) -> float:
    """Return how long a copy into memory that is there takes: the limit of a save."""
    room = {name: tensor.clone() for name, tensor in state.items()}
    times = []
    for _ in range(20):
        begun_s = time.perf_counter()
        for name, tensor in state.items():
            room[name].copy_(tensor)
        times.append(time.perf_counter() - begun_s)
    return statistics.median(times)


def cpu_s_of(pid: int) -> float:
    """Return the CPU seconds that a process has taken."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def block(work: Work, state: State, save: Save | None, first: int) -> dict[str, float]:
    """Return what each step of a block took."""
    cpu_s, wall_s, blocked_s = time.process_time(), time.perf_counter(), 0.0
    for step in range(first, first + BLOCK):
        work.step()
        if save is not None:
            begun_s = time.perf_counter()
            save(state, step)
            blocked_s += time.perf_counter() - begun_s
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    return {"cpu_s": cpu_s / BLOCK, "wall_s": wall_s / BLOCK, "blocked_s": blocked_s / BLOCK}


def measured(save: Save, keeper: int, size_bytes: int, steps: int, step_s: float) -> dict[str, Any]:
    """Run the loops for so many steps of each side; return medians of what a step took, and parts of a step.

    `keeper` is the pid of the node's keeper.
    """
    torch.set_num_threads(1)
    state, work = state_of(size_bytes), Work(step_s)
    save(state, FIRST_STEP)  # buffers are laid out
    found: dict[str, list[dict[str, float]]] = {ALONE: [], SAVING: []}
    keeper_s = 0.0
    for number in range(max(2, steps // BLOCK)):
        for side in (ALONE, SAVING) if number % 2 else (SAVING, ALONE):
            before_s = cpu_s_of(keeper)
            saves = save if side == SAVING else None
            found[side].append(block(work, state, saves, FIRST_STEP + 1 + number * BLOCK))
            keeper_s += cpu_s_of(keeper) - before_s
    pairs = list(zip(found[SAVING], found[ALONE], strict=True))
    limit_s = copy_s(state)
    alone_s = statistics.median(each["cpu_s"] for each in found[ALONE])
    return {
        "steps": len(pairs) * BLOCK,
        "state_mib": size_bytes >> 20,
        "cpu_s_a_step_alone": round(alone_s, 5),
        "wall_s_a_step_alone": round(statistics.median(each["wall_s"] for each in found[ALONE]), 5),
        "copy_s": round(limit_s, 5),
        "copy_of_a_step": round(limit_s / alone_s, 5),
        "blocked_s_a_step": round(statistics.median(each["blocked_s"] for each in found[SAVING]), 5),
        "blocked_of_a_step": round(statistics.median(a["blocked_s"] / b["wall_s"] for a, b in pairs), 5),
        "more_cpu_of_a_step": round(statistics.median(a["cpu_s"] / b["cpu_s"] for a, b in pairs) - 1, 5),
        "more_wall_of_a_step": round(statistics.median(a["wall_s"] / b["wall_s"] for a, b in pairs) - 1, 5),
        "keeper_cpu_s_a_step": round(keeper_s / (len(pairs) * BLOCK), 5),
        "aim": f"blocked and more CPU <= {AIM:g} of a step, where the copy is <= {MOST_COPY:g} and a core is free",
    }


def print_loop(found: dict[str, Any]) -> None:
    """For people."""
    print(
        f"\na loop of {found['steps']} steps of {found['cpu_s_a_step_alone']:.3f} s, {found['state_mib']} MiB saved at each:"
    )
    for name, words in (
        ("copy_of_a_step", "the copy alone"),
        ("blocked_of_a_step", "blocked"),
        ("more_cpu_of_a_step", "more CPU in the process"),
        ("more_wall_of_a_step", "more wall time"),
    ):
        print(f"  {words:<28}{found[name] * 100:>8.2f} % of a step")
    print(f"  the keeper, on another core {found['keeper_cpu_s_a_step'] * 1000:>8.2f} ms a step")
    print(f"  aim: {found['aim']}")
