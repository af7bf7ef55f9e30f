"""What an option is, how one is described, and the values people gave them. The table of all is in `options`."""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.launcher.model.job import JobSpec, OutputStreams
from robust_run.launcher.model.job_parts import SlurmUse

Kind = Literal["text", "whole", "decimal", "flag", "paths", "lines", "maybe"]
"""text: as typed. whole: an integer. decimal: a float. flag: no value. paths: may be given several times. lines: likewise, and in
the variable each is a line. maybe: a value after = or none at all, which stands for `alone`."""

WORKERS = "torchrun: workers"
SCRIPT = "torchrun: the script"
RENDEZVOUS = "torchrun: rendezvous"
OUTPUT = "torchrun: output"
ENDINGS = "torchrun: restarts and signals"
OWN = "robust-run's own: starts, code, pages"
FAILURES = "robust-run's own: failures and hangs"
CHECKPOINTS = "robust-run's own: checkpoints"
NODES = "robust-run's own: several nodes"
IMAGES = "robust-run's own: images"
SETUPS = "robust-run's own: set-up"
HEALTH = "robust-run's own: health"
SLURM = "robust-run's own: Slurm"
HELP = "help"
OURS = (OWN, FAILURES, CHECKPOINTS, NODES, IMAGES, SETUPS, HEALTH, SLURM)
"""Groups of options that torchrun does not have."""
GROUPS = (*OURS, WORKERS, SCRIPT, RENDEZVOUS, OUTPUT, ENDINGS, HELP)
"""Headings of the help page, in its order."""

RESUMABLE = (
    "http-port",
    "http-host",
    "prometheus-dir",
    "notify",
    "node-name",
    "token-file",
    "tls-cert",
    "tls-key",
    "tls-ca",
)
"""Options that may stand beside --resume: they are the machine's, not the job's."""


_JOB = JobSpec(
    argv=(),
    script="",
    is_python=False,
    nproc=1,
    run_id="",
    rdzv_id="",
    log_dir=None,
    streams=OutputStreams(redirects=(), tee=(), shown=()),
)
"""A job for which nothing was asked: where an option is a field of the job, its default is the field's."""
_SLURM = SlurmUse(job="", step="", node_id=0, node_name="")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The command line as typed: converted to numbers where a number was asked for, and not checked further."""

    training_script: str
    """Empty with --resume only."""
    training_script_args: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()
    """Names of the options that the command line or the environment gave, whatever their value."""
    nnodes: str = "1:1"
    nproc_per_node: str = "1"
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""
    rdzv_id: str = "none"
    rdzv_conf: str = ""
    standalone: bool = False
    max_restarts: int = _JOB.max_restarts
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    event_log_handler: str = "null"
    role: str = _JOB.role
    module: bool = False
    no_python: bool = False
    run_path: bool = False
    log_dir: str | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: str = ""
    duplicate_stdout_filters: str = ""
    duplicate_stderr_filters: str = ""
    node_rank: int = 0
    master_addr: str = _JOB.master_addr
    master_port: int | None = _JOB.master_port
    local_addr: str | None = None
    logs_specs: str | None = None
    numa_binding: str | None = _JOB.numa_binding
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    shutdown_timeout: int | None = None
    virtual_local_rank: bool = _JOB.virtual_local_rank
    run_id: str | None = None
    restart_grace: float = _JOB.restart_grace_s
    progress_after: float = _JOB.progress_after_s
    progress_path: tuple[str, ...] = ()
    no_warm: bool = False
    preload: str = "auto"
    http_port: str | None = None
    http_host: str | None = None
    prometheus_dir: str | None = None
    notify: tuple[str, ...] = ()
    resume: str | None = None
    roles: str | None = None
    on_hang: str = _JOB.on_hang
    hang_after: float = _JOB.hang_after_s
    hang_patience: str = "auto"
    on_slow: str = _JOB.on_slow
    on_outlier: str = _JOB.on_outlier
    diagnose: str = _JOB.diagnose
    diagnose_checks: str = ""
    replay: str = "auto"
    replay_unit: int = _JOB.replay_unit
    admission_checks: str = "auto"
    slow_round: float = _JOB.slow_round_s
    check_reduced: int = _JOB.check_reduced_steps
    trace_nccl: str = _JOB.trace_nccl
    ckpt_dir: str | None = None
    ckpt_ahead: str = "auto"
    ckpt_mount: bool = _JOB.ckpt_mount
    ckpt_memory: str = "auto"
    ckpt_memory_dir: str | None = None
    ckpt_every: str = _JOB.ckpt_every
    ckpt_keep: str = _JOB.ckpt_keep
    ckpt_copies: str = "auto"
    standby: str = "0"
    wait_for_nodes: float | None = None
    evict_list: str | None = None
    controller_standby: int = 0
    on_sigterm: str = "job"
    coordinator: str | None = None
    found: bool = False
    node_name: str | None = None
    node_label: str | None = None
    token_file: str | None = None
    insecure_rendezvous: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    image: str | None = None
    image_writable: str | None = None
    bind: tuple[str, ...] = ()
    image_cache: str | None = None
    record_window: float = _JOB.record_window_s
    prefetch_env: bool = _JOB.prefetch_env
    setup: tuple[str, ...] = ()
    setup_file: tuple[str, ...] = ()
    setup_store: str | None = None
    setup_token_file: str | None = None
    refresh_setup: bool = False
    code: str = "auto"
    probation_steps: int = _JOB.probation_steps
    no_sensors: bool = False
    health_rules: str | None = None
    max_evict_share: float | None = _JOB.max_evict_share
    metrics_from: tuple[str, ...] = ()
    requeue: str = _SLURM.requeue
    warn_before: float = _SLURM.warn_before_s
    revive: str = _SLURM.revive


_DEFAULTS = Options(training_script="")


class OptionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be known of one option, besides its default."""

    name: str
    """Long name with dashes and without the two in front: `nproc-per-node`."""
    group: str
    help: str
    kind: Kind = "text"
    metavar: str = ""
    short: str = ""
    """One letter, or empty."""
    choices: tuple[str, ...] = ()
    env: str | None = None
    """Environment variable that is read where the option is not given."""
    alone: str = ""
    """What an option of kind `maybe` means without a value."""

    @property
    def field(self) -> str:
        """Name of the field of `Options`."""
        return self.name.replace("-", "_")

    @property
    def default(self) -> object:
        """What `Options` holds if neither the command line nor the environment says anything."""
        return getattr(_DEFAULTS, self.field)

    @property
    def takes_value(self) -> bool:
        """Whether there may be a value."""
        return self.kind != "flag"

    @property
    def needs_value(self) -> bool:
        """Whether a value must follow."""
        return self.kind not in ("flag", "maybe")


class OptionLook(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a description that most options leave alone."""

    kind: Kind = "text"
    short: str = ""
    choices: tuple[str, ...] = ()
    env: bool = True
    alone: str = ""


def describe(group: str, name: str, metavar: str, text: str, look: OptionLook | None = None) -> OptionDescription:
    """Return a line of the table. With a metavar it takes a value; its variable is named after it, unless `look` says no."""
    look = look or OptionLook(kind="text" if metavar else "flag")
    prefix = "ROBUST" if group in OURS else "PET"
    return OptionDescription(
        name=name,
        group=group,
        help=text,
        metavar=metavar,
        kind=look.kind,
        short=look.short,
        choices=look.choices,
        env=f"{prefix}_{name.replace('-', '_').upper()}" if look.env else None,
        alone=look.alone,
    )
