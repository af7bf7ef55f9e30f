"""The words of the launcher: what a job is, what happens to it, what is done about it. No behaviour.

Times are seconds of the machine's monotonic clock (`_at_s`) or durations (`_s`), unless a name says `unix`.
An exit code is as `subprocess` gives it: 0-255, or minus the signal that ended the process.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.health.types import Finding


class Std(msgspec.Struct, frozen=True):
    """Which of a worker's two streams something applies to."""

    out: bool = False
    err: bool = False


class Streams(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to the output of the workers, besides being kept in the run directory."""

    redirects: tuple[Std, ...]
    """By local rank: streams that go to their log file and not to the console."""
    tee: tuple[Std, ...]
    """By local rank: streams that go to the console line by line, each with a prefix."""
    shown: tuple[bool, ...]
    """By local rank: whether this rank appears on the console at all (`--local-ranks-filter`)."""
    prefix_template: str | None = None
    """`${role_name}`, `${local_rank}`, `${rank}` are filled in; None means `[${role_name}${local_rank}]:`."""
    stdout_filters: tuple[str, ...] = ()
    """Lines of tee'd ranks that contain one of these are also written to `filtered_stdout.log`."""
    stderr_filters: tuple[str, ...] = ()


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A job as asked for, checked and complete: nothing in it needs guessing later."""

    argv: tuple[str, ...]
    """What a worker runs, program first. `${local_rank}` inside an argument becomes the worker's."""
    script: str
    """What people call it: the script, module or program as typed."""
    is_python: bool
    """Whether `argv[0]` is a Python interpreter that we chose (so that it can be armed)."""
    nproc: int
    """Workers on this node, 1 or more."""
    role: str = "default"
    run_id: str
    """Name of the run directory."""
    rdzv_id: str
    """What workers see as TORCHELASTIC_RUN_ID."""
    log_dir: str | None
    """Parent of the run directory, absolute. None: keep no logs (`--log-dir /dev/null`)."""
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    """Port asked for; None: a free one for each attempt."""
    max_restarts: int = 3
    """Restarts in a row without progress before the job ends. 0: never restart."""
    progress_after_s: float = 600.0
    """An attempt that lived this long counts as progress."""
    progress_paths: tuple[str, ...] = ()
    """Files, folders or globs whose growth counts as progress (checkpoints)."""
    restart_grace_s: float = 3.0
    """From SIGTERM to SIGKILL for the survivors of a failure."""
    shutdown_timeout_s: float = 30.0
    """From the forwarded signal to SIGKILL when the job is told to end."""
    end_signals: tuple[int, ...] = ()
    """Signals to the agent that end the job (`--signals-to-handle`)."""
    numa_binding: str | None = None
    virtual_local_rank: bool = False
    warm: bool = True
    """Whether later attempts may start from a pre-imported process."""
    preload: tuple[str, ...] = ("torch", "torch.distributed")
    """Modules it imports."""
    preload_auto: bool = False
    """Import also what the first attempt had imported before its first step, as far as it is known to be harmless."""
    streams: Streams
    omp_threads_defaulted: bool = False
    """OMP_NUM_THREADS=1 was chosen by us because it was unset."""
    notes: tuple[str, ...] = ()
    """Things to tell the user once the workers run, a line each."""


class RankEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one rank when its attempt is over."""

    rank: int
    pid: int
    exit_code: int | None
    """None: it never ended by itself or could not be started."""
    exited_at_s: float
    """When its end was seen."""
    signalled_at_s: float | None = None
    """When we first sent it a signal to end; None: we never did."""
    spoke_at_s: float | None = None
    """When the first line of its final traceback arrived, if one did."""
    finding: Finding | None = None
    """What its stderr or its error file says."""
    steps: int | None = None
    """Optimizer steps it made in this attempt; None: not counted."""
    stderr_path: str = ""
    """Relative to the run directory; empty where logs are not kept."""
    stderr_tail: str = ""
    """The last lines of its stderr, at most 4 KiB."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt achieved, as far as can be seen from outside."""

    lived_s: float = 0.0
    steps: int | None = None
    """Most optimizer steps of any rank."""
    files_advanced: bool = False
    """A file under `progress_paths` appeared or grew during the attempt."""


# --- events: what happened ------------------------------------------------------------------------------------------


class JobStarted(msgspec.Struct, frozen=True, tag="job_started"):
    """The run directory exists; nothing runs yet."""


class AttemptStarted(msgspec.Struct, frozen=True, tag="attempt_started", kw_only=True):
    """Every worker of an attempt has been started."""

    attempt: int
    pids: tuple[int, ...]
    """By local rank."""
    port: int
    """Where the workers' store listens."""
    how: tuple[Literal["promote", "fork", "spawn"], ...] = ()
    """By local rank: how it was started (see `warm.ladder`)."""
    why: str = ""
    """Why not by a higher rung, for the first rank that was not promoted."""


class RankExited(msgspec.Struct, frozen=True, tag="rank_exited", kw_only=True):
    """A worker's process is gone."""

    attempt: int
    rank: int
    exit_code: int
    finding: Finding | None = None
    """What its stderr says so far."""


class SpawnFailed(msgspec.Struct, frozen=True, tag="spawn_failed", kw_only=True):
    """A worker could not be started; those before it may run."""

    attempt: int
    rank: int
    message: str


class AttemptEnded(msgspec.Struct, frozen=True, tag="attempt_ended", kw_only=True):
    """No process of the attempt is left, and its output is complete."""

    attempt: int
    started_at_s: float
    ranks: tuple[RankEvidence, ...]
    progress: Progress


class SignalReceived(msgspec.Struct, frozen=True, tag="signal_received", kw_only=True):
    """The agent got a signal that ends the job."""

    signal: int
    again: bool = False
    """The same source sent one before: the user will not wait."""


class WarmReady(msgspec.Struct, frozen=True, tag="warm_ready", kw_only=True):
    """The warm process can be forked from now on."""

    pid: int
    modules: tuple[str, ...]
    took_s: float
    skipped: tuple[str, ...] = ()


class WarmRefused(msgspec.Struct, frozen=True, tag="warm_refused", kw_only=True):
    """The warm process cannot be forked (any more); workers are spawned."""

    reason: str
    module: str = ""
    """The preloaded module that did it; it is tried again without."""


class StandbyWaits(msgspec.Struct, frozen=True, tag="standby_ready", kw_only=True):
    """A standby worker waits to be promoted."""

    slot: int
    pid: int


class SignalPassedOn(msgspec.Struct, frozen=True, tag="signal_passed_on", kw_only=True):
    """The agent got a signal that is the workers' business (SIGUSR1, SIGUSR2)."""

    signal: int
    ranks: tuple[int, ...]
    """Those whose program has a handler for it; the others would have died of it and were spared."""


class StoreLost(msgspec.Struct, frozen=True, tag="store_lost", kw_only=True):
    """The process that hosts the workers' TCPStore is gone or could not start."""

    attempt: int
    detail: str


class GuardLost(msgspec.Struct, frozen=True, tag="guard_lost"):
    """The process the user started was killed; the job must not outlive it."""


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """A time the core asked to be woken at has come."""


Event = (
    JobStarted
    | AttemptStarted
    | RankExited
    | SpawnFailed
    | AttemptEnded
    | SignalReceived
    | SignalPassedOn
    | StoreLost
    | WarmReady
    | WarmRefused
    | StandbyWaits
    | GuardLost
    | Tick
)

# --- actions: what to do --------------------------------------------------------------------------------------------


class StartAttempt(msgspec.Struct, frozen=True, tag="start_attempt"):
    """Start all ranks with a new store on a new port."""

    attempt: int


class SignalWorkers(msgspec.Struct, frozen=True, tag="signal_workers", kw_only=True):
    """Send a signal to every living worker and its process group (and SIGCONT, so that a stopped one can act on it)."""

    attempt: int
    signal: int


class EndAttempt(msgspec.Struct, frozen=True, tag="end_attempt", kw_only=True):
    """End every process of the attempt, stragglers and escaped grandchildren included; then report `AttemptEnded`."""

    attempt: int
    grace_s: float = 0.0
    """Leftovers of workers get SIGTERM and this long before SIGKILL."""


class WakeAt(msgspec.Struct, frozen=True, tag="wake_at"):
    """Send a `Tick` at this time. A later WakeAt replaces an earlier one."""

    at_s: float


class RecordIncident(msgspec.Struct, frozen=True, tag="record_incident", kw_only=True):
    """Write an incident and say it on the terminal. The shell turns monotonic times into wall times."""

    attempt: int
    symptom: str
    onset_at_s: float
    detected_at_s: float
    verdict: VerdictDraft
    action: Literal["relaunch", "stop"]
    reason: str


class VerdictDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict before host names are known to it."""

    kind: Literal["crash", "stopped", "code", "node_fault", "unknown"]
    ranks: tuple[int, ...]
    confidence: Literal["high", "medium", "low"]
    rule: str
    sentence: str
    aftermath: str = ""
    """What followed from it, as a clause for the end of the sentence."""
    exit_code: int
    """What the job exits with if it ends now: 1-255."""
    culprit: RankEvidence | None = None


class Finish(msgspec.Struct, frozen=True, tag="finish", kw_only=True):
    """The job is over."""

    exit_code: int
    outcome: Literal["done", "failed", "stopped"]
    reason: str = ""


Action = StartAttempt | SignalWorkers | EndAttempt | WakeAt | RecordIncident | Finish
