"""The fault matrix: 33 faults and 10 negatives that decide how good verdicts are, held-out variants, and
real hangs. A table to read.

A `Case` is a line of it; a `Run` is a case in one layout, world, position and seed. Rules and thresholds may be chosen by
looking at the TUNING runs only: world 4, the culprit in the middle, seed 0, and no held-out case. All other runs are HELD-OUT:
the first and the last rank as culprit, worlds of 8, other seeds, and the cases whose numbers begin with H, G or R.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from layouts import PRIMARY_HAS_ONE_OPERATION, shape
from plan import Plan

Who = Literal["one", "two", "node", "pair", "link", "nobody"]
"""Who is at fault: one rank, it and the next, all of a host, a sender and its receiver in the next stage of a pipeline (nothing
tells which of them is wrong), either end of a cut link, or nobody: a negative."""
Position = Literal["first", "middle", "last"]

DP = ("dp", "dp_manual")
GRID = ("tp_dp", "tp_dp_pp")
FSDP = ("fsdp", "fsdp2")
ALL = (*DP, *GRID, *FSDP)
TALKING = ("dp_manual", "tp_dp", "tp_dp_pp", "fsdp")
"""Layouts that start an asynchronous collective in Python."""
ORDER = frozenset({"desync", "mismatch"})
"""A rank left the common order: where the next operation of the group differs, that shows as a mismatch."""

AT_ONCE = frozenset({"crash", "code", "mismatch", "desync", "stopped"})
"""Kinds of what nobody can wait for."""


@dataclass(frozen=True)
class Case:
    """One line of the matrix."""

    number: str
    name: str
    fault: str
    """As the program knows it: see `acts.ACTS`, `acts.TAMPERINGS`, `habits.Habits`."""
    kinds: frozenset[str]
    """Any of these is right."""
    layouts: tuple[str, ...] = ALL
    who: Who = "one"
    rule: str = ""
    """The rule that must speak, where that matters."""
    proven: bool | None = None
    """Whether it can be proven that nobody can wait for it; None: its kinds tell."""
    stages: Literal["any", "not_first", "not_last"] = "any"
    """In which stages of a pipeline it can happen."""
    hosts: int = 1
    """Simulated hosts it needs."""
    steps: int = 1_000_000
    """After so many the program ends."""
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def held_out(self) -> bool:
        """Whether it may never be looked at while tuning."""
        return self.number[0] in "HGR"

    @property
    def negative(self) -> bool:
        """Whether nothing may be found."""
        return self.who == "nobody"

    @property
    def acted_on(self) -> bool:
        """Whether something is done about it at once. All else looks like what a healthy job may do, so it is only said."""
        return self.proven if self.proven is not None else bool(self.kinds) and self.kinds <= AT_ONCE

    @property
    def slow(self) -> bool:
        """Whether it takes rounds of measuring to see it."""
        return "slow" in self.kinds


def _case(number: int | str, name: str, fault: str, kinds: str = "", **more: object) -> Case:
    return Case(str(number), name, fault, frozenset(kinds.split()), **more)  # type: ignore[arg-type]


FAULTS = (
    _case(1, "sleeps before a collective", "sleep", "hang"),
    _case(2, "busy Python loop", "busy", "hang"),
    _case(3, "waits in C with the GIL held", "gil", "hang"),
    _case(4, "reads a file that gives nothing", "fifo", "hang"),
    _case(5, "deadlock on its own Python lock", "own_lock", "hang"),
    _case(6, "SIGSTOP outside of a collective", "stop", "stopped"),
    _case(7, "SIGSTOP inside a collective", "stop_inside", "stopped"),
    _case(8, "exits early with code 0", "exit_early", "desync", rule="early_exit"),
    _case(9, "SIGKILL", "kill", "crash"),
    _case(10, "Python exception", "exception", "code crash"),
    _case(11, "aborts in C", "abort", "crash"),
    _case(12, "other size", "size", "mismatch"),
    _case(13, "other dtype", "dtype", "mismatch"),
    _case(14, "all_gather for all_reduce", "op_type", "mismatch"),
    _case(15, "broadcast from another root", "wrong_root", "mismatch"),
    _case(16, "skips a collective", "skipped", "desync"),
    _case(17, "one collective too many", "extra", "desync"),
    _case(18, "two groups in another order", "order", "desync", layouts=GRID),
    _case(19, "sends nothing", "no_send", "desync", layouts=("tp_dp_pp",), stages="not_last"),
    _case(20, "receives once too often", "extra_recv", "desync", layouts=("tp_dp_pp",), stages="not_first"),
    _case(21, "receives from another peer", "wrong_peer", "desync", layouts=("tp_dp_pp",), stages="not_first"),
    _case(22, "issued, then never waited for", "sleep_after_issue", "hang", layouts=TALKING),
    _case(23, "sleeps before DP, after TP", "sleep_before_dp", "hang", layouts=GRID),
    _case(24, "straggler, constant", "slow_constant", "slow"),
    _case(25, "straggler, now and then", "slow_jitter", "slow"),
    _case(26, "stopped half of the time", "slow_duty", "slow"),
    _case(27, "shares its CPU with strangers", "slow_shared_cpu", "slow", numbers={"cpu_s": 0.01}),
    _case(28, "all ranks of a host are slow", "slow_node", "slow", who="node", hosts=2, layouts=(*DP, "tp_dp")),
    _case(29, "its data loader process was killed", "loader_killed", "hang"),
    _case(
        30, "a link between hosts swallows all", "link_cut", "comm_stall", who="link", hosts=4, layouts=(*DP, "fsdp")
    ),
    _case(31, "two ranks are stuck", "two_stuck", "hang", who="two"),
    _case(32, "stuck before new_group", "hang_in_init", "hang"),
    _case(33, "stuck before the last barrier", "hang_at_end", "hang", steps=40),
)
"""The 33 of the matrix."""

HELD_OUT_FAULTS = (
    _case("H1", "stuck in the optimizer's step", "optimizer_sleep", "hang"),
    _case("H2", "lock held by another thread", "others_lock", "hang"),
    _case("H3", "waits for a server's answer", "silent_socket", "hang"),
    _case("H4", "waits for an empty queue", "empty_queue", "hang"),
    _case("H5", "generator that never yields what is wanted", "generator", "hang"),
    _case("H6", "waits for a command that does not end", "subprocess_stuck", "hang"),
    _case("H7", "stuck, while a forked child goes on", "fork_child", "hang"),
    _case("H8", "DataLoader worker stuck in __getitem__", "getitem_stuck", "hang"),
    _case("H9", "never comes to init_process_group", "late_to_init", "hang"),
    _case("H10", "segmentation fault", "segfault", "crash"),
    _case("H11", "straggler that computes longer", "slow_compute", "slow"),
    _case("H12", "skips the all_gather of layer 2", "skip_layer", "desync mismatch", layouts=("fsdp",)),
    _case("H13", "swallows an error and skips the step", "swallowed", "desync mismatch"),
    _case("H14", "no_sync on one rank", "no_sync", "desync mismatch", layouts=("dp",)),
    _case("H15", "one barrier too many", "extra_barrier", "desync mismatch"),
    _case("H16", "broadcast for all_reduce", "broadcast_type", "mismatch"),
)
"""Variants that no rule was made for."""

REAL_HANGS = (
    _case("R1", "two threads wait for each other's lock", "lock_circle", "hang", proven=True),
    _case("R2", "the same with mutexes of C", "mutex_circle", "hang", proven=True),
    _case("R3", "lock whose owner has ended", "owner_ended", "hang"),
    _case("R4", "condition that is never notified", "never_notified", "hang"),
    _case("R5", "queue of a process that sleeps", "unfilled_queue", "hang"),
    _case("R6", "SIGSTOP of a DataLoader worker", "loader_stopped", "hang"),
    _case("R7", "file lock of a stopped child", "flock_of_stopped", "hang"),
    _case("R8", "request without a limit, no answer", "silent_server", "hang"),
    _case("R9", "receives from anybody, nobody sends", "recv_any", "hang", layouts=("tp_dp_pp",), stages="not_first"),
    _case(
        "R10", "sends with another tag", "other_tag", "mismatch",
        layouts=("tp_dp_pp",), who="pair", stages="not_last", rule="tag",
    ),
    _case("R11", "raised, and a thread keeps the process", "raised_but_kept", "hang"),
    _case("R12", "circle of locks that are asked for again and again", "timed_circle", "hang", proven=False),
)  # fmt: skip
"""Real hangs, written down before what proves some of them."""

NEGATIVES = (
    _case(34, "nothing", "", who="nobody"),
    _case(35, "all pause for 1 s", "all_slow", who="nobody"),
    _case(36, "rank 0 writes a checkpoint", "checkpoint", who="nobody"),
    _case(37, "evaluation, 3 s on all", "evaluation", who="nobody"),
    _case(38, "uneven pipeline stages", "uneven_stages", layouts=("tp_dp_pp",), who="nobody"),
    _case(39, "slow first step, as of a compiler", "slow_first_step", who="nobody"),
    _case(40, "pauses for garbage collection", "garbage", who="nobody"),
    _case(41, "uneven data with Join", "uneven_join", layouts=("dp",), steps=400, who="nobody"),
    _case(42, "the program's own SIGUSR2 handler", "own_signal", who="nobody"),
    _case(43, "the program's own sitecustomize", "own_sitecustomize", who="nobody"),
    _case("G1", "rank 0 writes a checkpoint for 8 s", "big_checkpoint", who="nobody"),
    _case("G2", "evaluation, uneven between ranks", "uneven_evaluation", who="nobody"),
)
"""Where nothing may be found."""

CASES = (*FAULTS, *HELD_OUT_FAULTS, *REAL_HANGS, *NEGATIVES)


@dataclass(frozen=True)
class Run:
    """A case somewhere."""

    case: Case
    layout: str
    world: int
    position: Position
    seed: int

    @property
    def tuning(self) -> bool:
        """Whether thresholds may be chosen by looking at it."""
        return not self.case.held_out and self.world == 4 and self.position == "middle" and self.seed == 0

    @property
    def name(self) -> str:
        """Names it in files and lines, and nothing else."""
        fault = self.case.fault or "none"
        return f"{self.case.number}-{fault}-{self.layout}-w{self.world}-{self.position}-s{self.seed}"

    @property
    def kinds(self) -> frozenset[str]:
        """Return the right kinds: leaving the order of a group of many operations may show as a mismatch."""
        if self.case.fault in ("skipped", "extra") and self.layout not in PRIMARY_HAS_ONE_OPERATION:
            return ORDER
        return self.case.kinds

    @property
    def at_fault(self) -> tuple[int, ...]:
        """Return the ranks that are to be named; of a link, those at both ends."""
        if self.case.negative:
            return ()
        if self.case.who == "node":
            per_host = self.world // self.case.hosts
            host = 0 if self.position == "first" else self.case.hosts - 1
            return tuple(range(host * per_host, (host + 1) * per_host))
        if self.case.who == "link":
            per_host = self.world // self.case.hosts
            return tuple(rank for host in self.cut for rank in range(host * per_host, (host + 1) * per_host))
        allowed = self._allowed()
        at = {"first": 0, "middle": len(allowed) // 2, "last": len(allowed) - 1}[self.position]
        if self.case.who == "two":
            return tuple(sorted({allowed[at], allowed[at - 1]}))
        if self.case.who == "pair":
            return (allowed[at], allowed[at] + self.world // shape(self.layout, self.world)[2])
        return (allowed[at],)

    @property
    def cut(self) -> tuple[int, int]:
        """Return the hosts that cannot reach each other; host 0 has the controller and reaches all."""
        return (2, 3) if self.position == "last" else (1, 2)

    def _allowed(self) -> list[int]:
        stages = shape(self.layout, self.world)[2]
        per_stage = self.world // stages
        begin = per_stage if self.case.stages == "not_first" else 0
        end = self.world - per_stage if self.case.stages == "not_last" else self.world
        return list(range(begin, end))

    def plan(self, notes: str) -> Plan:
        """Return what the program is told. Seeds move the fault in time and make steps longer or shorter."""
        chance = random.Random(f"{self.case.number}/{self.seed}")
        return Plan(
            notes=notes,
            layout=self.layout,
            fault=self.case.fault,
            ranks=self.at_fault,
            step=40 + (chance.randrange(30) if self.seed else 0),
            steps=self.case.steps,
            step_s=0.03 if not self.seed else chance.uniform(0.02, 0.045),
            seed=self.seed,
            numbers=self.case.numbers,
        )

    def is_exact(self, ranks: tuple[int, ...]) -> bool:
        """Whether a verdict on these ranks names who is at fault and nobody else."""
        if self.case.who == "link":
            per_host = self.world // self.case.hosts
            return bool(ranks) and set(ranks) <= set(self.at_fault) and len({rank // per_host for rank in ranks}) == 1
        return set(ranks) == set(self.at_fault)


def every_run(cases: tuple[Case, ...], worlds: tuple[int, ...], layouts: tuple[str, ...], seeds: int) -> Iterator[Run]:
    """Yield all runs: each case in each of its layouts, world, position and seed from 0."""
    for case in cases:
        positions: tuple[Position, ...] = ("middle",) if case.negative else ("middle", "first", "last")
        positions = ("middle", "last") if case.who == "link" else positions
        for seed in range(seeds):
            for world in worlds:
                for layout in (each for each in case.layouts if each in layouts):
                    yield from (Run(case, layout, world, position, seed) for position in positions)


def sample(runs: list[Run], per_cell: int, seed: int = 0) -> list[Run]:
    """Choose `per_cell` runs of each case, world, seed and set, and shuffle them: any beginning is a fair sample."""
    chance = random.Random(seed)
    cells: dict[tuple[str, int, int, bool], list[Run]] = {}
    for run in runs:
        cells.setdefault((run.case.number, run.world, run.seed, run.tuning), []).append(run)
    chosen = [run for cell in cells.values() for run in chance.sample(cell, min(per_cell, len(cell)))]
    chance.shuffle(chosen)
    return chosen
