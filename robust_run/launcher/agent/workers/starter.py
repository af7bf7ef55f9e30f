"""Starts the workers of an attempt, each by the highest rung that is safe: promoted, forked, or spawned."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from robust_run.launcher.agent.warm import ladder
from robust_run.launcher.agent.workers import workers
from robust_run.launcher.model.events import AttemptEnded, NodeEvent, StandbyWaits, WarmReady, WarmRefused
from robust_run.launcher.model.job import JobSpec

if TYPE_CHECKING:
    from robust_run.launcher.agent.output.wiring import ChildFds
    from robust_run.launcher.agent.warm.host import Standby, StandbyWatcher, WarmHost
    from robust_run.launcher.agent.warm.identity import Identity
    from robust_run.launcher.agent.warm.warm_handoff import WarmHandoff
    from robust_run.launcher.agent.workers.store import StartsHelpers

#: A warm process that died is replaced at most so many times in a job. One that was let go does not count.
WARM_REPLACEMENTS = 2
_NO_TORCH = ("(ModuleNotFoundError: No module named 'torch')",)


class StartPlan:
    """One worker about to be started."""

    __slots__ = ("argv", "cpus", "env", "output", "plain_env", "rank", "slot")

    def __init__(
        self,
        slot: int,
        rank: int,
        argv: tuple[str, ...],
        plain_env: Mapping[str, str],
        env: Mapping[str, str],
        cpus: frozenset[int],
        output: ChildFds | None,
    ) -> None:
        self.slot = slot
        """Local rank."""
        self.rank = rank
        self.argv = argv
        self.plain_env = plain_env
        """Not armed for the tracer."""
        self.env = env
        self.cpus = cpus
        self.output = output
        """None for a plan that nothing is started by: a model for the warm process."""


class Starter:
    """The rungs of a job on this node."""

    def __init__(
        self,
        spec: JobSpec,
        env: Mapping[str, str],
        setup: workers.ChildSetup,
        start_helper: StartsHelpers,
        tell: Callable[[NodeEvent], None],
        given: WarmHandoff | None = None,
        python: str | None = None,
    ) -> None:
        """`python`: the interpreter that a warm process would be; None: ours."""
        self.off = self._why_off(spec, env, python or sys.executable)
        """Why nothing is forked; empty: it may be. With an image the node says so, once it is known."""
        if given is not None and spec.max_restarts == 0:
            self.off = ""  # what speaks against a warm process is only that it would be of no use
        self._given = given
        self._is_given_taken = False
        self._spec = spec
        self._setup = setup
        self._start_helper = start_helper
        self._tell = tell
        self._host: WarmHost | None = None
        self._replacements = 0
        self._watch: StandbyWatcher | None = None
        self._doubted = self._outdated = ""
        self._forked_last = False
        self._failures: dict[int, str] = {}
        self.is_behind = False
        """What the first attempt imports is known, and `preload` was not called with it yet."""
        self.enter: Callable[[tuple[str, ...]], tuple[str, ...]] = tuple
        """Makes a worker's command line one that runs it where workers run: inside an image."""
        self.moved: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda env: env
        """Makes variables that name files of this package such as they are where workers run."""
        self.library = ""
        """Folder from which a warm process imports this package where workers run; empty: it has it."""
        self._umask = os.umask(0)  # which can only be read by setting it
        os.umask(self._umask)

    @staticmethod
    def _why_off(spec: JobSpec, env: Mapping[str, str], python: str) -> str:
        if not spec.warm:
            return "--no-warm"
        if spec.max_restarts == 0:
            return "--max-restarts is 0"
        return ladder.why_never(spec, python, env)

    # --- the warm process ---

    def launch_warm(self, plan: StartPlan) -> None:
        """Start the warm process beside the first attempt, as a twin of its rank 0; or take the one that is given."""
        self._take_given(plan)
        if self.off or self._has_warm() or self._spec.max_restarts == 0:
            return
        if self._host is None:
            self._host = self._make_host(plan)
        elif self._replacements >= WARM_REPLACEMENTS:
            return
        else:  # one has died whose standby workers may live
            self._replacements += 1
        self._host.has_died = False
        self._host.launch(self._host.proven or self._spec.preload)
        if self._watch is not None:
            self._host.attach(self._watch)

    def _take_given(self, plan: StartPlan) -> None:
        """Have the warm process that is given, once: let go, it is gone."""
        if self._given is None or self._is_given_taken:
            return
        self._is_given_taken = True
        self._host = self._make_host(plan)
        self._host.adopt(self._given.warm_pid, self._given.warm_control, self._given.modules)
        if self._watch is not None:
            self._host.attach(self._watch)

    def _make_host(self, plan: StartPlan) -> WarmHost:
        from robust_run.launcher.agent.warm.host import FORK_AMONG_NODES_S, FORK_S, WarmHost
        from robust_run.launcher.agent.warm.start_up import LIBRARY

        def start(argv: tuple[str, ...], env: Mapping[str, str], keep: tuple[int, ...]) -> int:
            library = {LIBRARY: self.library} if self.library else {}
            return self._start_helper(self.enter(argv), {**self.moved(env), **library}, keep)

        fork_s = FORK_S if self._spec.many is None else FORK_AMONG_NODES_S
        return WarmHost(start, plan.argv, plan.plain_env, os.getpid(), self._on_news, self._on_standby, fork_s)

    def _has_warm(self) -> bool:
        """Whether there is a warm process, though it may import more just now."""
        return self._host is not None and self._host.state in ("importing", "ready")

    def attach(self, watch: StandbyWatcher) -> None:
        """Listen to the warm process from now on."""
        self._watch = watch
        if self._host is not None:
            self._host.attach(watch)
        if self._given is not None:
            self._tell(WarmReady(pid=self._given.warm_pid, modules=self._given.modules, took_s=0.0))

    def _on_news(self, news: msgspec.Struct) -> None:
        from robust_run.launcher.agent.warm.messages import Preloaded, WarmStartRefused

        host = self._host
        match news:
            case Preloaded() if host is not None:
                pid = host.pid or 0
                # An image need not have torch, and nobody named it.
                unasked = _NO_TORCH if self._spec.preload_auto else ()
                skipped = tuple(each for each in news.skipped if not each.endswith(unasked))
                self._tell(WarmReady(pid=pid, modules=news.modules, took_s=news.took_s, skipped=skipped))
            case WarmStartRefused():
                self._tell(WarmRefused(reason=news.reason, module=news.module))

    def _on_standby(self, slot: int, pid: int) -> None:
        self._tell(StandbyWaits(slot=slot, pid=pid))

    def restock(self, plan: StartPlan | None) -> None:
        """Fill the slots again, once the running attempt no longer needs every core to get going."""
        if (host := self._host) is None or self._spec.max_restarts == 0:
            return
        if host.state == "refused" and host.has_died and plan is not None:
            self.launch_warm(plan)
        host.stock(self._spec.nproc)

    def preload(self, modules: tuple[str, ...]) -> bool:
        """Have more modules imported; standby workers that lack them are made anew. False: not now, try again later."""
        if self._host is None or self._host.state != "ready":
            return False
        self._host.preload(modules)
        return True

    def standby_pids(self) -> list[int]:
        """Return the pids of standby workers."""
        return self._host.pids() if self._host is not None else []

    def settle(self, off: str, library: str = "") -> None:
        """From now on there may be a warm process; or, for this reason, there may not. `library`: see there."""
        self.off, self.library = off, library
        if off:
            self._tell(WarmRefused(reason=off))

    def is_outdated(self) -> bool:
        """Whether what the warm process has imported lies on disk as something else now: the next attempt starts from nothing."""
        self._outdated = self._host.on_disk.change() if self._host is not None else ""
        return bool(self._outdated)

    def drop_warm(self) -> None:
        """Let the warm process go; `launch_warm` may start another."""
        if self._host is not None:
            self._host.close()
            self._host = None

    def close(self) -> None:
        """Let the warm process and its standby workers go."""
        if self._host is not None:
            self._host.close()

    # --- the ladder ---

    def learn(self, ended: AttemptEnded) -> None:
        """Doubt the fork if a forked attempt crashed in native code before it got anywhere."""
        codes = tuple(rank.exit_code for rank in ended.ranks)
        progressed = bool(ended.progress.steps) or ended.progress.files_advanced
        self._doubted = ladder.doubt(codes, self._forked_last, ended.progress.lived_s, progressed)

    def start(self, attempt: int, plans: list[StartPlan]) -> tuple[list[workers.Worker], list[ladder.StartChoice]]:
        """Start all workers of an attempt. Raises PlatformError; those started by then are in no list but in our tree."""
        self._take_given(plans[0])
        choices = [self._choose(attempt, plan) for plan in plans]
        started = self._promote(plans, choices) if any(choice.rung != "spawn" for choice in choices) else {}
        for index, plan in enumerate(plans):
            if plan.slot not in started:
                if choices[index].rung != "spawn":
                    choices[index] = ladder.StartChoice(
                        rung="spawn", reason=self._failures.get(plan.slot, "no standby worker")
                    )
                started[plan.slot] = self._spawn(plan)
        self._forked_last = any(choice.rung != "spawn" for choice in choices)
        if self._host is not None and self._spec.max_restarts == 0 and self._spec.many is None:
            self._host.close()  # this was the only start of the job
        return [started[plan.slot] for plan in plans], choices

    def _choose(self, attempt: int, plan: StartPlan) -> ladder.StartChoice:
        host = self._host
        if host is None:
            why = self._outdated or ("the warm process had not been started yet" if attempt > 0 else "")
            return ladder.choose(ladder.StartSituation(attempt=attempt, off=self.off, warm_reason=why))
        from robust_run.launcher.agent.warm.identity import frozen_changes

        return ladder.choose(
            ladder.StartSituation(
                attempt=attempt,
                off=self.off,
                warm_state=host.state,
                warm_reason=host.reason,
                has_standby=host.ready(plan.slot) is not None,
                doubted=self._doubted,
                is_behind=self.is_behind,
                differs=frozen_changes(host.env, plan.plain_env),
            )
        )

    def _promote(self, plans: list[StartPlan], choices: list[ladder.StartChoice]) -> dict[int, workers.Worker]:
        """Promote standby workers, all at the same time; those missing in the answer must be spawned."""
        from robust_run.launcher.agent.warm.identity import identity_of

        assert self._host is not None
        host, cwd, ours = self._host, os.getcwd(), os.getpid()

        def identity(plan: StartPlan) -> Identity:
            return identity_of(plan.argv, self.moved(plan.env), self._umask, plan.cpus, cwd=cwd, agent_pid=ours)

        self._failures = {}
        chosen = [plan for plan, choice in zip(plans, choices, strict=True) if choice.rung != "spawn"]
        host.make_now([plan.slot for plan in chosen])
        told: list[tuple[StartPlan, Standby]] = []
        for plan in chosen:
            standby = host.ready(plan.slot)
            if standby is None:
                self._failures[plan.slot] = "no standby worker could be made in time"
            elif plan.output is not None and host.promote(
                standby, identity(plan), (0, plan.output.stdout, plan.output.stderr)
            ):
                told.append((plan, standby))
        started = {}
        for plan, standby in told:
            pid = standby.pid
            if reason := host.confirm(standby):
                self._failures[plan.slot] = reason
                workers.abandon(pid)
            elif pid is not None:
                started[plan.slot] = workers.adopt(pid, plan.rank)
        return started

    def _spawn(self, plan: StartPlan) -> workers.Worker:
        assert plan.output is not None
        return workers.start(
            self.enter(plan.argv),
            self.moved(plan.env),
            lambda: self._setup(plan.cpus),
            rank=plan.rank,
            stdout=plan.output.stdout,
            stderr=plan.output.stderr,
        )
