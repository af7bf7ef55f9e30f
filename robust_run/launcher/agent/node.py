"""Node resources of an attempt: the run directory, the output router, the store, and the means to start processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.harmless import Harmless
from robust_run.launcher.agent.output.route import OutputRouter
from robust_run.launcher.agent.places.workplace import Workplace
from robust_run.launcher.agent.warm.ladder import how_started
from robust_run.launcher.agent.warm.learning import Learning
from robust_run.launcher.agent.workers import workers
from robust_run.launcher.agent.workers.devices import has_nvidia
from robust_run.launcher.agent.workers.environment import RankPlace, worker_argv, worker_environment
from robust_run.launcher.agent.workers.starter import Starter, StartPlan
from robust_run.launcher.agent.workers.store import (
    DIED,
    NO_STORE,
    StoreHost,
    own_python,
    torch_is_installed,
    with_last_line,
)
from robust_run.launcher.agent.workers.this_machine import RealFiles
from robust_run.launcher.model.events import NodeEvent, StoreLost
from robust_run.launcher.model.job import JobSpec, RankEvidence, Rung
from robust_run.launcher.records.run_directory import RunDirectory, steady_links
from robust_run.signals import describe_exit
from robust_run.tracer.files.arming import arm_environment, create_files
from robust_run.tracer.files.steps import create as create_steps
from robust_run.tracer.files.steps import read as read_steps

if TYPE_CHECKING:
    from robust_run.launcher.agent.checkpoint.ahead import CheckpointAhead
    from robust_run.launcher.agent.checkpoint.early import EarlyCheckpoint
    from robust_run.launcher.agent.checkpoint.sharing import CheckpointSharing
    from robust_run.launcher.agent.code_versions.node_code import NodeCode
    from robust_run.launcher.agent.nccl.arming import NcclArming
    from robust_run.launcher.agent.places.place import OpenedPlace
    from robust_run.launcher.agent.recorder_build import RecorderBuild
    from robust_run.launcher.agent.warm.warm_handoff import WarmHandoff
    from robust_run.report.startup.types import Fetch

#: An attempt whose steps are not counted is taken to have got going after this time.
RESTOCK_AFTER_S = 1.0
#: Between a process closing its descriptors and its end being seen.
STORE_END_S = 0.2
#: Signals by which code in C that is wrong ends its process: SIGILL, SIGBUS, SIGFPE, SIGSEGV. (torch ends ranks by SIGABRT.)
FAULTS = (4, 7, 8, 11)
#: How long workers are left alone with their imports on a node that has no core to spare.
IMPORTS_S = 2.0


class Node:
    """This machine as one job sees it."""

    _recorder: RecorderBuild | None = None
    """Has the recorder in C built once ranks run; None: they have not run yet."""
    _records_in_python = False
    """Whether that in C is left out."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of a node
        self,
        spec: JobSpec,
        env: Mapping[str, str],
        clock: Clock,
        run_directory: RunDirectory,
        router: OutputRouter,
        complain: Callable[[str, OSError], None],
        tell: Callable[[NodeEvent], None],
        mask: Iterable[int],
        given: WarmHandoff | None = None,
        address: str = "127.0.0.1",
        opened: OpenedPlace | None = None,
        memory_key: bytes = b"",
        early: EarlyCheckpoint | None = None,
    ) -> None:
        """`opened`: the place of the workers, where the job has one. `memory_key`: what keepers of the job prove to each other;
        empty: nothing is copied between nodes. `early`: what is being fetched of a checkpoint already.
        """
        self.workplace = Workplace(spec, opened)
        spec = self.spec = self.workplace.spec
        self.address = address
        """Where workers of other nodes reach those of this one."""
        self.memory_key = memory_key
        self.clock = clock
        self.run_directory = run_directory
        self.router = router
        self.complain = complain
        self._tell = tell
        self.env = env
        setup = workers.ChildSetup(mask)
        self.helpers, self.early = early or _begun_now(setup, run_directory, clock)
        """What serves attempts: the warm process, the store, what reads sensors. What is fetched of a checkpoint before there is
        an attempt; None: nothing is."""
        # The torch of a place may be another one than ours, and then the two may not understand each other.
        self._has_torch = self.workplace.has_our_torch and torch_is_installed()
        self._cpus: tuple[frozenset[int], ...] = ()
        if spec.numa_binding:
            from robust_run.launcher.agent.workers.numa import cpus_for_ranks, system_topology

            self._cpus = cpus_for_ranks(spec.numa_binding, spec.nproc, system_topology(env))
        self.spare: Callable[[], list[int]] = list
        """Further children of this process that outlive an attempt."""
        self.explain: Callable[[RankEvidence], RankEvidence] = lambda rank: rank
        """Adds what the sensors know of a rank that was killed."""
        self._twin: StartPlan | None = None
        self._first_rank = 0
        self._warm_launched = False
        self.learning = Learning(spec, run_directory.modules, self._preload)
        """What the warm process is to import of what workers import."""
        self._code: NodeCode | None = None
        self.has_told_of_grace = False
        """Whether it was said in this job that ranks used up --restart-grace."""
        self.looking = Harmless("looking at what ranks do", self.say)
        self.starter = Starter(spec, env, setup, self.helpers.start, tell, given, self.workplace.warm_python)
        self.workplace.show_checkpoints(env, clock, run_directory, self.say)
        self.workplace.enter_through(self.starter, self.helpers.start)
        self.store = StoreHost(self.helpers.start, own_python(), env, self._on_store_lost)
        self._has_nvidia = has_nvidia(RealFiles(), env)
        self._nccl = self._nccl_arming()
        self.sharing: CheckpointSharing | None = None
        """How nodes share what they fetch of a checkpoint; None: they do not."""
        self.fetches_of_checkpoint: Callable[[], tuple[Fetch, ...]] = tuple
        """What is fetched of it beside the start of ranks, as far as it has come."""
        self.nccl_news = ""
        """Whether NCCL is traced in the newest attempt, and why not, if that is not what was said of the one before."""
        self.daemon_pid = given.daemon_pid if given is not None else 0
        self.workplace.read_ahead(env, clock, run_directory, self.say)
        if given is not None:
            self.helpers.adopt(given.warm_pid, given.store_pid)
            self.store.adopt(given.store_pid, given.store_control)

    def _on_store_lost(self, attempt: int, detail: str) -> None:
        if detail == DIED:
            detail = self._how_store_died()
        self._tell(StoreLost(attempt=attempt, detail=with_last_line(detail, self.run_directory.store_log)))

    def _how_store_died(self) -> str:
        exit_code = self.helpers.exit_code(self.store.pid, STORE_END_S)
        return DIED if exit_code is None else f"the store's process {describe_exit(exit_code)}"

    def say(self, text: str) -> None:
        """Say a line to the user on stderr."""
        self.router.say(f"robust-run: {text}")

    def _nccl_arming(self) -> NcclArming | None:
        """Return what has NCCL traced; None where that is not wanted, or no NVIDIA device is there and no `on` insists."""
        spec = self.spec
        cannot_tell = not self.workplace.has_our_torch or not self._has_nvidia  # which NCCL there is
        if spec.trace_nccl == "off" or (spec.trace_nccl == "auto" and cannot_tell):
            return None
        from robust_run.launcher.agent.nccl.arming import NcclArming

        memory = self.run_directory.memory if self.run_directory.memory != self.run_directory.path else None
        return NcclArming(spec, self.env, memory, self.say, self.helpers.start)

    @property
    def ras_address(self) -> str:
        """Where the workers' NCCL answers for the job (its RAS), HOST:PORT; empty: it was not told to."""
        return self._nccl.ras_address if self._nccl is not None else ""

    @property
    def memory_folder(self) -> str:
        """Where workers find the keeper of what they save in memory; empty: the job has none."""
        return os.path.join(self.run_directory.memory, "keeper") if self.spec.ckpt_memory else ""

    @property
    def code(self) -> NodeCode:
        """The versions of the job's code here; imported when that is first needed, after the first workers were started."""
        if self._code is None:
            from robust_run.launcher.agent.code_versions.node_code import NodeCode

            self._code = NodeCode(self.spec, self.env, self.run_directory, self.say)
        return self._code

    def saw_end(self, exit_code: int) -> None:
        """Note how a rank ended. What kills one by a fault of memory may be the recorder in C: no attempt after it has that."""
        self._records_in_python = self._records_in_python or -exit_code in FAULTS

    def forget_warm(self) -> None:
        """What workers find in their environment has changed: a warm process of before cannot become one.

        What they import without harm may have changed with it, so the next attempt lists that anew.
        """
        self._warm_launched = False
        self.learning.forget()
        self.starter.drop_warm()

    @property
    def _hosts_store(self) -> bool:
        """Whether the agent of rank 0's node hosts the workers' store; else rank 0 does."""
        return self._has_torch and self.env.get(NO_STORE) != "1"

    def open_store(self, attempt: int) -> tuple[str, int]:
        """Listen for the workers of an attempt and return where. Raises PlatformError."""
        spec = self.spec
        address = spec.master_addr if spec.many is None else self.address
        many = spec.many is not None
        listener = self.store.open(address, spec.master_port, for_others=many, hosts=self._hosts_store)
        if listener.note and attempt == 0:
            self.say(listener.note)
        return listener.address, listener.port

    def serve_store(self, attempt: int) -> None:
        """Serve the store of an attempt, once its workers were started. Raises PlatformError."""
        self.store.serve_opened(attempt, hosts=self._hosts_store)

    def start_workers(self, place: RankPlace) -> tuple[list[workers.Worker], tuple[Rung, ...], str]:
        """Start every rank; return the workers, the rung of each, and why one was not promoted, or will import much again.

        Raises PlatformError; what was started by then is in our tree and ends with the attempt.
        """
        self.store.retire(place.attempt)
        self.starter.is_behind = bool(self.learning.to_preload())
        told = self._environment(place, 0) if self.workplace.mount is not None else {}
        store = f"{place.address}:{place.port}"
        if self.workplace.begin(place.group_rank, store, self.run_directory, told) or self.starter.is_outdated():
            self.forget_warm()
        self.nccl_news = self._nccl.begin() if self._nccl is not None else ""
        plans: list[StartPlan] = []
        self._first_rank = place.first_rank
        try:
            for slot in range(self.spec.nproc):
                plans.append(self._plan(place, slot))  # noqa: PERF401 - what there is by then must be closed
            started, choices = self.starter.start(place.attempt, plans)
        finally:
            for plan in plans:
                if plan.output is not None:
                    plan.output.close()
        self._twin = plans[0]
        why = next((choice.reason for choice in choices if choice.reason), "")
        if place.attempt == 0 and self.daemon_pid:
            self.say(how_started(self.daemon_pid, choices, why))
        return started, tuple(choice.rung for choice in choices), why

    def _plan(self, place: RankPlace, slot: int) -> StartPlan:
        attempt, rank = place.attempt, place.first_rank + slot
        self._make_folder(place, rank)
        plain_env = self._environment(place, slot)
        env = dict(plain_env)
        if (attempt, slot, self.daemon_pid) == (0, 0, 0):  # a process that was forked has opened all that before
            env.update(self.workplace.variables(plain_env))
        if self.spec.is_python:
            env.update(arm_environment(env, self.run_directory.steps_file(attempt, rank)))
            env.update(self._code_armed())
            if self._records_in_python:
                env["ROBUST_TRACE_NATIVE"] = "0"
        if self._nccl is not None:
            env.update(self._nccl.variables(self.run_directory.steps_file(attempt, rank)))
        output = self.router.open_rank(attempt, rank, slot, self.run_directory.logs_of(attempt, rank))
        words = worker_argv(self.spec, slot)
        argv = self.workplace.program(words if self._code is None else self._code.argv(words))
        return StartPlan(slot, rank, argv, plain_env, env, self._cpus_of(slot), output)

    def _environment(self, place: RankPlace, slot: int) -> dict[str, str]:
        return worker_environment(
            self.spec,
            {**self.workplace.environment(self.env), **self._code_seen()},
            local_rank=slot,
            place=place,
            agent_hosts_store=self._hosts_store,
            error_file=self.run_directory.error_file(place.attempt, place.first_rank + slot),
            run_dir=self.run_directory.path,
            reports=self.run_directory.reports(place.attempt),
        )

    def _code_seen(self) -> Mapping[str, str]:
        """Return what a version of the code sets. The first is being captured while its workers start."""
        if self._code is None or self._code.ground is None:
            return {} if self.spec.code == "in-place" else {"ROBUST_CODE_VERSION": "1"}
        return self._code.seen_by_program()

    def _code_armed(self) -> Mapping[str, str]:
        """Return what has a version of the code imported as it is. The first is kept while its workers start."""
        if self._code is None or self._code.ground is None:
            return {"ROBUST_CODE_STEADY": steady_links(self.run_directory.path)} if self.spec.code == "auto" else {}
        return self._code.seen_by_tracer()

    def _cpus_of(self, rank: int) -> frozenset[int]:
        return self._cpus[rank] if self._cpus else frozenset()

    def launch_warm(self, age_s: float) -> None:
        """Start the warm process beside a running attempt, once; where cores are few, only when workers had their imports."""
        if self._warm_launched or self._twin is None or not (self._has_torch or self.workplace.place):
            return  # without torch there is nothing worth keeping warm
        if not self.workplace.can_be_warm(self._twin, age_s):
            return
        if len(os.sched_getaffinity(0)) > self.spec.nproc or age_s >= IMPORTS_S:
            self._warm_launched = True
            self.starter.launch_warm(self._twin)

    def warm_up(self) -> None:
        """Start the warm process while this node waits for its first attempt: no worker needs its cores."""
        if self._twin is None:
            place = RankPlace(attempt=0, address=self.address, port=0, world_size=self.spec.nproc)
            env = self._environment(place, 0)
            argv = self.workplace.program(worker_argv(self.spec, 0))
            self._twin = StartPlan(0, 0, argv, env, env, self._cpus_of(0), None)
        self.launch_warm(IMPORTS_S)
        self.starter.restock(self._twin)
        self._prepare_store()

    def _prepare_store(self) -> None:
        """Have the store's process ready: any node may be the one of rank 0 after a loss."""
        if self.spec.many is not None and self._hosts_store:
            try:
                self.store.prepare()
            except PlatformError:
                return  # said when it is needed

    def restock(self, attempt: int, age_s: float) -> None:
        """Make standby workers again once the running attempt has got going; call now and then."""
        if self._nccl is not None:
            self._nccl.build_beside(own_python(), age_s)
        if self._recorder is None:
            from robust_run.launcher.agent.recorder_build import RecorderBuild

            self._recorder = RecorderBuild(self.env, self.helpers.start, is_wanted=self.spec.is_python)
        self._recorder.build_beside(own_python(), age_s)
        # One that imports by itself takes so long that the standby workers are in no worker's way.
        imports_itself = attempt == 0 and not self.daemon_pid
        if imports_itself or age_s > RESTOCK_AFTER_S or self.first_step_s(attempt, self._first_rank) is not None:
            self.starter.restock(self._twin)
            self._prepare_store()

    def _preload(self, modules: tuple[str, ...]) -> bool:
        return self.starter.preload(modules)

    @property
    def tells_standbys(self) -> bool:
        """Whether nodes that stand by are to learn from this one: it has rank 0."""
        return self.spec.many is not None and self._first_rank == 0

    def first_step_s(self, attempt: int, first_rank: int = 0) -> float | None:
        """Return the monotonic time of the first optimizer step of this node in an attempt, None before it."""
        for rank in range(first_rank, first_rank + self.spec.nproc):
            count = read_steps(self.run_directory.steps_file(attempt, rank))
            if count is not None and count.first_step_monotonic_s is not None:
                return count.first_step_monotonic_s
        return None

    def _make_folder(self, place: RankPlace, rank: int) -> None:
        """Make the rank's folder; without one it runs all the same (a full disk), only its steps are not counted."""
        attempt = place.attempt
        try:
            self.run_directory.make_rank(attempt, rank)
            create_steps(self.run_directory.steps_file(attempt, rank))
            if rank == place.first_rank:
                self.learning.ask(self.run_directory.modules_file(attempt, rank))
        except OSError as error:
            self.complain(self.run_directory.rank(attempt, rank), error)
        if self.env.get("ROBUST_TRACE") != "0" and self.spec.is_python:
            steps_file = self.run_directory.steps_file(attempt, rank)
            try:
                create_files(
                    steps_file,
                    rank,
                    place.world_size,
                    times_start=self.env.get("ROBUST_STARTUP") != "0",
                    times_phases=self._has_nvidia or self.env.get("ROBUST_TRACE_PHASES") == "host",
                    check_reduced=self.spec.check_reduced_steps,
                )
            except OSError as error:
                self.complain(steps_file, error)

    def helper_pids(self) -> list[int]:
        """Return our own helper processes that outlive an attempt; ended ones are collected on the way."""
        return [*self.helpers.pids(), *self.starter.standby_pids(), *self.workplace.pids(), *self.spare()]

    def lasting_pids(self) -> list[int]:
        """Return those of them that never become workers: what serves an image, the store, the warm process, the controller."""
        return [*self.workplace.pids(), *self.helpers.pids_uncollected(), *self.spare()]

    def end_helpers(self, exit_code: int = 1) -> None:
        """End our helper processes and wait for them. `exit_code`: the job's."""
        import time

        self.workplace.close(did_well=exit_code == 0)
        self.store.give_up()
        self.store.close()
        self.starter.close()
        if self._nccl is not None:
            self._nccl.close()
        give_up_at_s = time.monotonic() + 5.0  # killed, they are gone at once, unless one hangs in the kernel
        self.helpers.kill()
        while set(self.helper_pids()) - set(self.spare()) and time.monotonic() < give_up_at_s:
            time.sleep(0.001)


def _begun_now(
    setup: workers.ChildSetup, run_directory: RunDirectory, clock: Clock
) -> tuple[workers.Helpers, CheckpointAhead | None]:
    """Return what serves attempts where nothing was begun before."""
    return workers.Helpers(setup, run_directory.store_log, clock.monotonic_s), None
