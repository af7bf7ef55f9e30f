"""A simulated job that starts from checkpoints, on hosts that see one folder late and with checkpoints that are damaged (see
`simulated_job`). The choosing is the real one: `CheckpointSurvey` and what it asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from simulated_agent import Agent
from simulated_controller import Shell, Wire
from simulated_job import World

from robust_run.ckpt_io.seen import FolderLook, SeenCheckpoint
from robust_run.health.types import Finding
from robust_run.launcher.controller.survey import CheckpointSurvey
from robust_run.launcher.model.actions import Finish, Order, StartAttempt
from robust_run.launcher.model.checkpoints_seen import CheckpointsSeen
from robust_run.launcher.model.events import AttemptEnded, NodeEvent
from robust_run.launcher.model.job import Placement
from robust_run.launcher.model.resume_events import (
    CheckpointSaved,
    Damage,
    LookForCheckpoints,
    NoResumePoint,
    ResumeChosen,
    ResumePoint,
    SavedCheckpoint,
)

DAMAGED = Finding(
    kind="exception",
    line="robust_run.ckpt_io.errors.Damaged: damaged",
    exception="robust_run.ckpt_io.errors.Damaged",
    frame="train.py:8 in <module>",
)
LAGS_S = (0.0, 0.0, 0.3, 2.5, 20.0)
"""How late a host sees what was saved."""
START_UNIX_S = 1e9


class Saved(msgspec.Struct):
    """One checkpoint as it truly is."""

    step: int
    at_s: float
    is_flipped: bool = False
    """A bit is wrong: that shows when it is read."""
    lacks_part: bool = False

    @property
    def uuid(self) -> str:
        return f"u{self.step}"


class CheckpointWorld(World):
    """A simulated job whose attempts start from checkpoints."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self.saved: list[Saved] = []
        self.lag_s: dict[str, float] = {}
        self.is_gone = False
        """The folder is not mounted anywhere."""
        self.was_told_saved = False
        """A controller has put on record that a rank has saved."""
        self.is_over = False
        self.points: dict[int, ResumePoint] = {}
        """By attempt: what any of its agents was told."""
        super().__init__(*arguments, **more)

    def make_shell(self) -> Shell:
        return CheckpointShell(self, self.state)

    def boot(self, host: str) -> Agent:
        agent = CheckpointAgent(self, host)
        agent.info = msgspec.structs.replace(agent.info, ckpt_dir="/ckpt")
        self.agents.append(agent)
        return agent

    def about_checkpoints(self, which: int) -> None:
        """One of the things that may happen to checkpoints."""
        newest = self.saved[-1] if self.saved else None
        match which % 6:
            case 0 | 1 | 2:
                self.is_gone = False  # else nothing could be saved there
                self.saved.append(Saved(step=len(self.saved) + 1, at_s=self.now_s))
                self._tell_saved(self.saved[-1])
                self.is_gone = which % 18 == 2
            case 3 if newest is not None:
                newest.is_flipped = True
            case 4 if newest is not None:
                newest.lacks_part = True
            case 5:
                host = f"host-{which % 4}"
                self.lag_s[host] = LAGS_S[which % len(LAGS_S)]

    def _tell_saved(self, newest: Saved) -> None:
        """An agent whose ranks run says that one of them has saved."""
        saved = SavedCheckpoint(
            step=newest.step,
            uuid=newest.uuid,
            name=f"step-{newest.step}",
            created_unix_s=START_UNIX_S + newest.at_s,
        )
        agent = next((each for each in self.agents if each.alive and each.running), None)
        if agent is not None:
            agent.report(CheckpointSaved(attempt=agent.newest, node=agent.id, saved=saved))

    def seen_by(self, host: str) -> FolderLook:
        """What a host sees now."""
        if self.is_gone:
            return FolderLook()
        before_s = self.now_s - self.lag_s.get(host, 0.0)
        return FolderLook(
            seen=tuple(
                SeenCheckpoint(
                    name=f"step-{each.step}",
                    uuid=each.uuid,
                    step=each.step,
                    created_s=START_UNIX_S + each.at_s,
                    fault="a part is missing" if each.lacks_part else "",
                )
                for each in reversed(self.saved)
                if each.at_s <= before_s
            )
        )

    def was_told(self, agent: Agent, attempt: int, point: ResumePoint | None) -> None:
        """All ranks of an attempt start from one point, which nobody knew to be damaged when it was chosen."""
        assert point is not None, f"attempt {attempt} starts somewhere"
        first = self.points.setdefault(attempt, point)
        assert point == first, f"attempt {attempt} starts at {first} and, on {agent.id}, at {point}"

    def check(self, event: Any, before: tuple[Placement, ...], actions: tuple[object, ...]) -> None:
        if isinstance(event, NoResumePoint):
            self.troubled.add(event.attempt)
            self.failures += 1
        super().check(event, before, actions)
        if isinstance(event, CheckpointSaved):
            self.was_told_saved = True
        if isinstance(event, ResumeChosen):
            assert event.uuid not in self.state.passed_over, "what was passed over came back"
            chosen = [each for each in self.saved if each.uuid == event.uuid]
            assert (chosen and not chosen[0].lacks_part) if event.source else not event.uuid
            known = self.state.last_point
            has_saved = known is not None or self.was_told_saved
            assert event.source or not has_saved or not self.is_number_known, "training is thrown away"
        for action in actions:
            if isinstance(action, StartAttempt):
                assert action.resume == self.state.resume

    def _check_end(self, finish: Finish) -> None:
        if finish.reason == "starting it again cannot mend that":
            old = [each for each in self.saved if each.at_s <= self.now_s - max(LAGS_S)]
            assert self.is_over or all(each.is_flipped or each.lacks_part for each in old)
            self.is_over = True
        else:
            super()._check_end(finish)


class CheckpointAgent(Agent):
    """An agent that looks at checkpoints, and whose ranks cannot read damaged ones."""

    world: CheckpointWorld

    def __init__(self, world: World, host: str) -> None:
        self.damage: dict[int, Damage] = {}
        super().__init__(world, host)

    def obey(self, order: object) -> None:
        if not isinstance(order, LookForCheckpoints):
            super().obey(order)
            return
        wire = self.wire
        if wire is not None:
            seen = CheckpointsSeen(attempt=order.attempt, number=order.number, look=self.world.seen_by(self.host))
            self.world.after(self.world.latency_s(), lambda: self._answer(wire, seen))

    def _answer(self, wire: Wire, seen: CheckpointsSeen) -> None:
        if self.alive and wire is self.wire:
            wire.send(True, lambda: wire.shell.see(wire, seen))  # type: ignore[attr-defined]

    def start(self, order: StartAttempt) -> None:
        self.world.was_told(self, order.attempt, order.resume)
        super().start(order)
        bad = next((each for each in self.world.saved if order.resume and each.uuid == order.resume.uuid), None)
        if bad is None or not bad.is_flipped or not self.running:
            return
        rank = min(self.running)
        self.damage[order.attempt] = Damage(
            rank=rank, uuid=bad.uuid, name=f"step-{bad.step}", step=bad.step, reason="a wrong digest"
        )
        self.world.failures += 1
        self.world.after(0.6, lambda: self.rank_exits(rank, 1, DAMAGED, order.attempt))

    def report(self, event: NodeEvent) -> None:
        """Say what is told of an attempt's start and end."""
        if isinstance(event, AttemptEnded) and event.attempt in self.damage and event.ranks:
            event = msgspec.structs.replace(event, damage=self.damage[event.attempt])
            self.ended[event.attempt] = event
        point = self.world.points.get(getattr(event, "attempt", -1))
        if type(event).__name__ == "AttemptStarted" and point is not None:
            event = msgspec.structs.replace(
                event,
                resumes_step=point.step,
                resumes_uuid=point.uuid,
                resumes_name=point.name,  # type: ignore[arg-type]
            )
        super().report(event)


class _Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class CheckpointShell(Shell):
    """A controller that asks what nodes see."""

    def __init__(self, world: World, state: Any) -> None:
        super().__init__(world, state)
        self.survey = CheckpointSurvey(
            state=state, clock=self, send=self._ask, later=self._later, tell=self._tell, say=lambda _: None
        )

    def monotonic_s(self) -> float:
        return self.world.now_s

    def unix_s(self) -> float:
        return START_UNIX_S + self.world.now_s

    def _ask(self, node: str, order: Order) -> None:
        self._order(node, order)

    def _tell(self, event: Any) -> None:
        if self.alive:
            self.feed(event)

    def _later(self, delay_s: float, call: Callable[[], None]) -> _Timer:
        timer = _Timer(call)
        self.world.after(delay_s, lambda: timer.call() if self.alive and timer.call is not None else None)
        return timer

    def see(self, wire: Wire, seen: CheckpointsSeen) -> None:
        """Take in what an agent sees."""
        if self._is_from(wire):
            self.survey.take(wire.agent.id, seen)

    def _perform(self, action: object) -> None:
        if isinstance(action, LookForCheckpoints):
            self.survey.begin(action)
        else:
            super()._perform(action)
