"""Job specification, and what agents report of nodes, ranks and steps. No behaviour.

Times are seconds of the machine's monotonic clock (`_at_s`) or durations (`_s`), unless a name says `unix`.
An exit code is as `subprocess` gives it: 0-255, or minus the signal that ended the process.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.health.types import Finding
from robust_run.launcher.model.job_parts import ImageUse, SetupUse, SlurmUse
from robust_run.report.types import Confidence, VerdictKind
from robust_run.tracer.nccl.types import Rates
from robust_run.tracer.pace.types import CpuShort, NodePace, Reported
from robust_run.tracer.types import RankClocks, RankSight

Rung = Literal["promote", "fork", "spawn"]
"""How a worker is started; see `agent.warm.ladder`."""

NO_PORT = -1
"""Of `JobSpec.http_port`."""


class Std(msgspec.Struct, frozen=True):
    """Which of a worker's two streams something applies to."""

    out: bool = False
    err: bool = False


class OutputStreams(msgspec.Struct, frozen=True, kw_only=True):
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


class NodePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Membership policy: how many nodes a job runs on, and how long the core waits for them."""

    fewest: int = 1
    most: int = 1
    """Nodes the job runs on, standbys not counted."""
    join_timeout_s: float = 600.0
    """How long the job waits for `fewest` nodes."""
    last_call_s: float = 30.0
    """How long it then waits for more, up to `most`."""
    wait_for_nodes_s: float | None = None
    """After a loss without standbys: how long to wait for a node before shrinking. None: shrink at once where `fewest` allows
    it, else wait `join_timeout_s`."""


class ManyNodes(NodePolicy, frozen=True, kw_only=True):
    """How the nodes of a job meet, and what is done when one goes."""

    host: str
    """Where the controller is found: a name or an address."""
    port: int
    job: str = ""
    """What --rdzv-id or --run-id calls the job; empty: nothing, so that it is known by where its nodes meet."""
    node_rank: int | None = None
    """Static rendezvous: the place of this node in the first attempt. None: the controller chooses."""
    more_ports: tuple[int, ...] = ()
    """Where the controller may be instead, if the port belongs to another program there."""
    is_host: bool | None = None
    """Whether this node runs the controller; None: the first one that can listen on `host` does."""
    local_addr: str | None = None
    """Address of this node for the workers of others; None: the one that reaches the controller."""
    alone_s: float | None = None
    """How long a node without workers looks for a controller that is gone; None: `join_timeout_s`."""
    standby: int = 0
    """Nodes expected beyond `most`; more are welcome."""
    standby_why: str = ""
    """Why so many, where nobody said how many: a line for people."""
    heartbeat_s: float = 1.0
    lease_s: float = 3.0
    """An agent that has had no answer for so long ends its workers."""
    evict_list: str = ""
    """File that remembers evictions across jobs, absolute; empty: none."""
    controller_standby: int = 0
    """Agents that stand ready to take the controller over."""
    on_sigterm: str = "job"
    """job or node: what SIGTERM ends to the node that hosts the controller. node: and all nodes leave a moment after theirs."""
    coordinator: str = ""
    """`etcd://HOST:PORT[,HOST:PORT]`; empty: the run directory, where all nodes share it."""
    node_name: str = ""
    """What this node is called; empty: by its host name."""
    found: bool = False
    """Found a run even where this job may have one elsewhere."""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    token_file: str = ""
    """File with the secret that all nodes share; empty: ROBUST_TOKEN, else one per user."""
    insecure: bool = False
    """There is no secret: whoever reaches the controller's port is taken for a node."""


class JobPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Core policy: the part of a job's spec by which the core decides. What is stated here is the core's `CorePolicy` too."""

    max_restarts: int = 3
    """Restarts in a row without progress before the job ends. 0: never restart."""
    progress_after_s: float = 600.0
    """An attempt that lived this long counts as progress."""
    restart_grace_s: float = 3.0
    """From SIGTERM to SIGKILL for the survivors of a failure."""
    shutdown_timeout_s: float = 30.0
    """From the forwarded signal to SIGKILL when the job is told to end."""
    on_hang: str = "auto"
    """relaunch, evict, report, or auto: evict where a standby is there, else relaunch; but what may be a wait only shortly before
    torch ends it."""
    hang_after_s: float = 5.0
    """Least time a rank is waited for before evidence is collected."""
    hang_patience_s: float | None = None
    """After so long what is not proven is acted on. None: shortly before torch ends the wait."""
    on_slow: str = "report"
    """report, evict or diagnose: suspend the job and check its nodes."""
    on_outlier: str = "report"
    """The same for a node that stays apart from its peers while the job makes steps, where it shows a sign of a fault."""
    diagnose: str = "auto"
    """auto, always or never: when unexplained failures have the nodes checked (see `core.ladder.ladder`)."""
    diagnose_checks: tuple[str, ...] = ()
    """Which checks; empty: all that make sense."""
    no_replay: str = "the job has one node"
    """Why the program is not run on groups of nodes; empty: it may be."""
    saves_plain_files: bool = False
    """The program has a folder for checkpoints of any form: that none of ours is seen does not mean that it begins anew."""
    replay_unit: int = 1
    """Nodes that one replica of the model needs."""
    health_rules: str = ""
    """Text of the file that changes rules and sensors (see `health.rules.book`); empty: the defaults."""
    max_evict_share: float | None = None
    """Of the nodes: rules evict no more. None: as the file says, else a tenth."""


class JobSpec(JobPolicy, frozen=True, kw_only=True):
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
    progress_paths: tuple[str, ...] = ()
    """Files, folders or globs whose growth counts as progress (checkpoints)."""
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
    streams: OutputStreams
    omp_threads_defaulted: bool = False
    """OMP_NUM_THREADS=1 was chosen by us because it was unset."""
    notes: tuple[str, ...] = ()
    """Things to tell the user once the workers run, a line each."""
    many: ManyNodes | None = None
    """None: a job of one node, which needs no network."""
    admission_checks: bool = False
    """Whether nodes are checked that no attempt needs."""
    slow_round_s: float = 10.0
    """Length of a round of comparing ranks' own times; 0: none."""
    check_reduced_steps: int = 0
    """Every so many steps checksums of a reduced value are compared between the ranks of its group; 0: never."""
    trace_nccl: str = "auto"
    """on, off, or auto: where it can be done without compiling, and NCCL is used (see `agent.nccl.arming`)."""
    ckpt_dir: str | None = None
    """Absolute folder of checkpoints, or a URL: the newest in it is named to the workers of each attempt. None: none is looked
    for."""
    ckpt_ahead: bool = True
    """Whether what an attempt starts from is fetched ahead, where `ckpt_dir` is a URL."""
    ckpt_ahead_bytes: int | None = None
    """So much memory it may take; None: half of what is free."""
    ckpt_ahead_bytes_s: int | None = None
    """So much may be fetched a second, on average; None: no limit."""
    ckpt_mount: bool = False
    """Whether the checkpoints of `ckpt_dir`, a URL, are mounted as files where workers run (see `agent.checkpoint.mount`)."""
    ckpt_memory_dir: str | None = None
    """Absolute folder whose files are in this node's memory, above those of `ckpt_dir`. None: there is none."""
    ckpt_memory: bool | None = None
    """Whether a keeper on each node holds what `robust_run.checkpoint.save` copies. None: nothing asks for it; False: it was
    switched off, so what is not saved at all is no mistake."""
    ckpt_memory_bytes: int | None = None
    """So much it may hold; None: as much as the node has room for."""
    ckpt_every: str = ""
    """How often `robust_run.checkpoint` saves to storage (ROBUST_CKPT_EVERY): 100, 10m or 30s; empty: the program says."""
    ckpt_keep: str = ""
    """How many of its checkpoints stay in storage (ROBUST_CKPT_KEEP): a number; empty: the program says, or all do."""
    ckpt_copies: int = 0
    """Copies of what is kept in memory on other nodes: 1, or 0."""
    http_port: int | None = None
    """Port of the web server; None: a free one where there are several nodes, none where there is one. NO_PORT: none."""
    http_host: str = ""
    """Address it listens on; empty: the one of its own machine (loopback)."""
    prometheus_dir: str = ""
    """Absolute folder of a file that says where it serves, for Prometheus; empty: none."""
    image: ImageUse | None = None
    """None: workers run where we do."""
    setup: SetupUse | None = None
    """None: the environment is used as it is."""
    slurm: SlurmUse | None = None
    """None: not under Slurm, or it is not to be looked at."""
    code: str = "in-place"
    """auto, copy or in-place: whether workers run from what was captured (see `agent.code_versions.place`)."""
    probation_steps: int = 20
    """Steps of its own after which an update is trusted."""
    prefetch_env: bool = False
    """Read ahead the files of the Python environment that earlier starts read."""
    record_window_s: float = 120.0
    """How long what a start reads is recorded at most."""
    sensors: bool = True
    """Whether a process on each node watches its health."""
    metrics_from: tuple[str, ...] = ()
    """Absolute folders with event files of TensorBoard or wandb."""
    notify: tuple[str, ...] = ()
    """Whom to tell of incidents, see `records.notify.target`; in a journal without what may be secret."""

    @property
    def resume_folder(self) -> str | None:
        """Where checkpoints to start from are looked for; the folder in memory shows those of `ckpt_dir`, too."""
        return self.ckpt_memory_dir or self.ckpt_dir


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent says of itself when it joins."""

    id: str
    """Random, of this agent process: 16 hexadecimal digits."""
    name: str
    """Host name."""
    nproc: int
    """Workers it starts."""
    address: str = "127.0.0.1"
    """Where workers of other nodes reach workers of this one."""
    node_rank: int | None = None
    """The place it was given by --node-rank."""
    candidate: str = ""
    """HOST:PORT where it would serve as controller; empty: it would not."""
    blocks: str = ""
    """HOST:PORT where it gives blocks of the job's image to other nodes; after a comma, of its set-up. Empty: nowhere."""
    fetches: str = ""
    """HOST:PORT where it gives units of a checkpoint that it fetches ahead; empty: nowhere."""
    ckpt_dir: str = ""
    """Its folder of checkpoints (--ckpt-dir), or a URL; empty: it was given none."""
    has_memory: bool = False
    """A keeper holds in memory what its ranks save."""
    pid: int = 0
    version: str = ""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a node in the world of an attempt."""

    node: str
    group_rank: int
    first_rank: int
    """Its ranks are `first_rank` to `first_rank + nproc - 1`."""
    nproc: int


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
    raised_at_s: float | None = None
    """When it raised an exception that nobody caught, by its interpreter; None: it did not, or nothing of ours was in it."""
    had_ended: bool = False
    """It died of a signal when its program had come to its end, while its interpreter cleaned up."""
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
    start_step: int | None = None
    """Of the checkpoint that it started from, as the core knows it; None: it was told of none."""


class VerdictDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict before host names are known to it."""

    kind: VerdictKind
    ranks: tuple[int, ...]
    nodes: tuple[str, ...] = ()
    """Names of hosts at fault, where it is no matter of single ranks."""
    confidence: Confidence
    rule: str
    sentence: str
    aftermath: str = ""
    """What followed from it, as a clause for the end of the sentence."""
    exit_code: int
    """What the job exits with if it ends now: 1-255."""
    culprit: RankEvidence | None = None
    group: str = ""
    """The parallel group at fault or in which the fault shows."""
    over_evicted: tuple[int, ...] = ()
    """Those of `ranks` that are named only because no single one is certain."""
    evidence: tuple[str, ...] = ()
    """Further lines, for readers who want to check."""


class Sights(msgspec.Struct, frozen=True, tag="sights", kw_only=True):
    """What an agent sees of its ranks, for the controller alone: it is too much for the journal."""

    attempt: int
    number: int
    """Of the question it answers; -1: unasked, of an attempt that has ended."""
    sights: tuple[RankSight, ...]


class Paces(msgspec.Struct, frozen=True, tag="paces", kw_only=True):
    """How long the ranks of a node took for their own work in one round; likewise for the controller alone."""

    pace: NodePace
    nccl: Rates = ()
    """What NCCL completed on them meanwhile, where that is traced."""
    steps: int = 0
    """Most steps that any of them has made in the attempt."""
    since_step_s: float | None = None
    """How long ago it made the newest."""
    cpu: CpuShort | None = None
    """How short CPU time was on the node meanwhile; None: older versions do not say."""
    waiting_s: float | None = None
    """How long one of them has been waiting for peers in the call that it is in; None: none waits."""
    clocks: tuple[RankClocks, ...] = ()
    """How far they are in their groups, as torch's flight recorder counts."""
    reported: Reported | None = None
    """What the script says of its throughput, on the node's first rank that does; None: nothing."""


#: Communication calls of all ranks together that travel to the controller; few of each rank where there are many.
MOST_OPS = 1 << 19
FEWEST_OPS, USUAL_OPS = 4, 256


#: Flows of NCCL of all ranks together that travel likewise. In rings and trees a rank has some ten of them at work for a call.
MOST_FLOWS = 1 << 19
FEWEST_FLOWS, USUAL_FLOWS = 48, 1024


def flows_of(world_size: int) -> int:
    """Return how many flows of NCCL of each rank a controller is told."""
    return max(FEWEST_FLOWS, min(USUAL_FLOWS, MOST_FLOWS // max(world_size, 1)))


def ops_of(world_size: int) -> int:
    """Return how many communication calls of each rank a controller is told."""
    return max(FEWEST_OPS, min(USUAL_OPS, MOST_OPS // max(world_size, 1)))
