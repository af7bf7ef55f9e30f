"""Steps of pipelines, played forward by a schedule of their own, and written down as traces are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from robust_run.report.what_if.types import Kind, TracedOp


@dataclass
class Pipelines:
    """`dp` equal pipelines of `pp` stages; each step: gather parameters, all forwards, all backwards, reduce gradients."""

    dp: int = 2
    pp: int = 4
    microbatches: int = 4
    steps: int = 3
    forward_s: float = 0.010
    backward_s: float = 0.020
    transfer_s: float = 0.001
    sync_s: float = 0.004
    factor: Callable[[int, int, int, Kind], float] = lambda dp, stage, step, kind: 1.0
    ops: list[TracedOp] = field(default_factory=list)

    def play(self) -> list[TracedOp]:
        """Return all that is done."""
        free = {(dp, stage): 0.0 for dp in range(self.dp) for stage in range(self.pp)}
        for step in range(self.steps):
            self._sync("params_sync", step, free)
            for dp in range(self.dp):
                self._pass("forward", dp, step, free, range(self.pp), self.forward_s)
                self._pass("backward", dp, step, free, range(self.pp - 1, -1, -1), self.backward_s)
            self._sync("grads_sync", step, free)
        return self.ops

    def _sync(self, kind: Kind, step: int, free: dict[tuple[int, int], float]) -> None:
        for stage in range(self.pp):
            end_s = max(free[dp, stage] for dp in range(self.dp)) + self.sync_s
            for dp in range(self.dp):
                self._note(kind, dp, stage, step, free[dp, stage], end_s, -1)
                free[dp, stage] = end_s

    def _pass(
        self, kind: Kind, dp: int, step: int, free: dict[tuple[int, int], float], stages: range, takes_s: float
    ) -> None:
        send: Kind = "forward_send" if kind == "forward" else "backward_send"
        recv: Kind = "forward_recv" if kind == "forward" else "backward_recv"
        posted = dict(free)
        for microbatch in range(self.microbatches):
            came_s = 0.0
            for stage in stages:
                begin_s = max(free[dp, stage], came_s)
                end_s = begin_s + takes_s * self.factor(dp, stage, step, kind)
                self._note(kind, dp, stage, step, begin_s, end_s, microbatch)
                free[dp, stage] = end_s
                if stage != stages[-1]:
                    came_s = end_s + self.transfer_s
                    next_stage = stage + stages.step
                    self._note(send, dp, stage, step, end_s, came_s, microbatch)
                    self._note(recv, dp, next_stage, step, min(posted[dp, next_stage], end_s), came_s, microbatch)
                    posted[dp, next_stage] = came_s

    def _note(self, kind: Kind, dp: int, stage: int, step: int, begin_s: float, end_s: float, microbatch: int) -> None:
        self.ops.append(
            TracedOp(
                dp=dp,
                stage=stage,
                step=step,
                kind=kind,
                start_s=begin_s,
                duration_s=end_s - begin_s,
                microbatch=microbatch,
            )
        )
