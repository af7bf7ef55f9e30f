"""Every option of the command line in one table, and the values people gave them.

The table is the only place that knows an option's names, kind, environment variable and help; the click command, the
normalising of spellings and the help page are made from it. Defaults are the defaults of `Options`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["text", "whole", "decimal", "flag", "paths", "maybe"]
"""text: as typed. whole: an integer. decimal: a float. flag: no value. paths: may be given several times. maybe: a value after
= or none at all, which stands for `alone`."""

WORKERS = "torchrun: workers"
SCRIPT = "torchrun: the script"
RENDEZVOUS = "torchrun: rendezvous"
OUTPUT = "torchrun: output"
ENDINGS = "torchrun: restarts and signals"
OWN = "robust-run's own"
NODES = "robust-run's own: several nodes"
IMAGES = "robust-run's own: images"
HELP = "help"
GROUPS = (WORKERS, SCRIPT, RENDEZVOUS, OUTPUT, ENDINGS, OWN, NODES, IMAGES, HELP)
"""Headings of the help page, in its order."""
OURS = (OWN, NODES, IMAGES)
"""Groups of options that torchrun does not have."""

RESUMABLE = ("http-port", "token-file", "tls-cert", "tls-key", "tls-ca")
"""Options that may stand beside --resume: they are the machine's, not the job's."""


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
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    event_log_handler: str = "null"
    role: str = "default"
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
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    local_addr: str | None = None
    logs_specs: str | None = None
    numa_binding: str | None = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    shutdown_timeout: int | None = None
    virtual_local_rank: bool = False
    run_id: str | None = None
    restart_grace: float = 3.0
    progress_after: float = 600.0
    progress_path: tuple[str, ...] = ()
    no_warm: bool = False
    preload: str = "torch,torch.distributed"
    http_port: int | None = None
    resume: str | None = None
    on_hang: str = "auto"
    hang_after: float = 5.0
    on_slow: str = "report"
    slow_round: float = 10.0
    trace_nccl: str = "auto"
    ckpt_dir: str | None = None
    standby: str = "0"
    wait_for_nodes: float | None = None
    evict_list: str | None = None
    controller_standby: int = 0
    coordinator: str | None = None
    token_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    image: str | None = None
    image_writable: str | None = None
    bind: tuple[str, ...] = ()
    image_cache: str | None = None
    record_window: float = 120.0
    prefetch_env: bool = False
    code: str = "auto"
    probation_steps: int = 20


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


class _Look(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a description that most options leave alone."""

    kind: Kind = "text"
    short: str = ""
    choices: tuple[str, ...] = ()
    env: bool = True
    alone: str = ""


def _describe(group: str, name: str, metavar: str, text: str, look: _Look | None = None) -> OptionDescription:
    look = look or _Look(kind="text" if metavar else "flag")
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


_WHOLE = _Look(kind="whole")
_DECIMAL = _Look(kind="decimal")

OPTIONS: tuple[OptionDescription, ...] = (
    _describe(WORKERS, "nnodes", "N|MIN:MAX", "Nodes of the job; between MIN and MAX if it may shrink and grow."),
    _describe(WORKERS, "nproc-per-node", "N|auto|cpu|gpu|xpu", "Workers on this node."),
    _describe(
        WORKERS,
        "node-rank",
        "N",
        "Place of this node, for --rdzv-backend static; chosen by the controller unless given.",
        _WHOLE,
    ),
    _describe(WORKERS, "role", "TEXT", "Name of the workers' role; shown in the prefix of their lines."),
    _describe(
        WORKERS,
        "start-method",
        "METHOD",
        "Accepted for torchrun's sake; workers are always programs of their own.",
        _Look(choices=("spawn", "fork", "forkserver")),
    ),
    _describe(
        WORKERS,
        "numa-binding",
        "MODE",
        "Keep each worker on the CPUs near its GPU: node, socket, exclusive or core-complex.",
        _Look(choices=("node", "socket", "exclusive", "core-complex"), env=False),
    ),
    _describe(
        WORKERS,
        "virtual-local-rank",
        "",
        "Give every worker LOCAL_RANK=0 and a CUDA_VISIBLE_DEVICES with only its own GPU.",
    ),
    _describe(SCRIPT, "module", "", "SCRIPT is a module, run as `python -m` does.", _Look(kind="flag", short="m")),
    _describe(SCRIPT, "no-python", "", "SCRIPT is a program: run it as it is, without Python."),
    _describe(SCRIPT, "run-path", "", "Run SCRIPT with runpy.run_path. Wins over --no-python."),
    _describe(RENDEZVOUS, "standalone", "", "One node, a free port, a fresh id; other rendezvous options are ignored."),
    _describe(
        RENDEZVOUS, "rdzv-backend", "NAME", "static or c10d: how the nodes find each other. One node needs neither."
    ),
    _describe(
        RENDEZVOUS,
        "rdzv-endpoint",
        "HOST:PORT",
        "Where the nodes of a job meet: a machine of the job, the same on every node (c10d port: 29400).",
    ),
    _describe(
        RENDEZVOUS, "rdzv-id", "TEXT", "Name of the job, the same on every node; workers see it as TORCHELASTIC_RUN_ID."
    ),
    _describe(
        RENDEZVOUS,
        "rdzv-conf",
        "KEY=VALUE,...",
        "join_timeout (600 s), last_call_timeout (30 s), is_host, keep_alive_interval, keep_alive_max_attempt.",
    ),
    _describe(RENDEZVOUS, "master-addr", "HOST", "Machine where the nodes meet, for --rdzv-backend static."),
    _describe(
        RENDEZVOUS,
        "master-port",
        "PORT",
        "Port they meet at (29500); with one node the workers' port, a free one unless given.",
        _WHOLE,
    ),
    _describe(
        RENDEZVOUS,
        "local-addr",
        "HOST",
        "Address of this node for workers of others; found out unless given.",
    ),
    _describe(
        OUTPUT,
        "log-dir",
        "FOLDER",
        "Where run directories go (default ./robust-runs). /dev/null keeps nothing.",
    ),
    _describe(
        OUTPUT,
        "redirects",
        "0-3|RANK:0-3,...",
        "Streams that go to log files only: 1 stdout, 2 stderr, 3 both.",
        _Look(short="r"),
    ),
    _describe(
        OUTPUT,
        "tee",
        "0-3|RANK:0-3,...",
        "Streams that go to log files and, prefixed line by line, to the console.",
        _Look(short="t"),
    ),
    _describe(OUTPUT, "local-ranks-filter", "RANK,...", "Show only these local ranks on the console."),
    _describe(
        OUTPUT,
        "duplicate-stdout-filters",
        "TEXT,...",
        "Write tee'd stdout lines with one of these texts to filtered_stdout.log; `,,` is a comma.",
    ),
    _describe(OUTPUT, "duplicate-stderr-filters", "TEXT,...", "The same for stderr and filtered_stderr.log."),
    _describe(OUTPUT, "logs-specs", "NAME", "Not supported: use --log-dir, --redirects and --tee.", _Look(env=False)),
    _describe(OUTPUT, "event-log-handler", "NAME", "Accepted for torchrun's sake; the journal records every event."),
    _describe(
        ENDINGS,
        "max-restarts",
        "N",
        "Restarts in a row without progress before the job ends; 0 never restarts.",
        _WHOLE,
    ),
    _describe(
        ENDINGS,
        "monitor-interval",
        "SECONDS",
        "Accepted for torchrun's sake; exits are seen at once.",
        _DECIMAL,
    ),
    _describe(ENDINGS, "signals-to-handle", "NAME,...", "Signals that end the job and are forwarded to the workers."),
    _describe(
        ENDINGS,
        "shutdown-timeout",
        "SECONDS",
        "From the forwarded signal to SIGKILL (default $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30).",
        _WHOLE,
    ),
    _describe(OWN, "run-id", "TEXT", "Name of the run directory (default: date, time and four letters)."),
    _describe(OWN, "restart-grace", "SECONDS", "From SIGTERM to SIGKILL for survivors of a failure.", _DECIMAL),
    _describe(OWN, "progress-after", "SECONDS", "An attempt that lived this long counts as progress.", _DECIMAL),
    _describe(
        OWN,
        "progress-path",
        "PATH",
        "A file, folder or glob whose growth counts as progress (checkpoints). May be repeated.",
        _Look(kind="paths"),
    ),
    _describe(OWN, "no-warm", "", "Start every worker from nothing, never from a pre-imported process."),
    _describe(
        OWN, "preload", "MODULE,...|auto", "What the pre-imported process imports; auto: what the first attempt did."
    ),
    _describe(
        OWN,
        "http-port",
        "PORT",
        "Port for the robust commands and the status page; 0 is a free one.",
        _WHOLE,
    ),
    _describe(
        OWN,
        "on-hang",
        "auto|relaunch|evict|report",
        "When ranks wait for one that is stuck; auto: evict its node if a standby is there, else relaunch.",
        _Look(choices=("auto", "relaunch", "evict", "report")),
    ),
    _describe(
        OWN,
        "hang-after",
        "SECONDS",
        "How long a rank may be waited for before somebody looks why; longer where steps are longer.",
        _DECIMAL,
    ),
    _describe(
        OWN,
        "on-slow",
        "report|evict",
        "When a rank or a node is slower than its peers for five rounds in a row.",
        _Look(choices=("report", "evict")),
    ),
    _describe(OWN, "slow-round", "SECONDS", "Length of such a round; 0: nobody looks.", _DECIMAL),
    _describe(
        OWN,
        "trace-nccl",
        "auto|on|off",
        "Look inside NCCL with a profiler plugin; auto: where there are GPUs, NCCL is 2.26 or later and has no plugin yet.",
        _Look(choices=("auto", "on", "off")),
    ),
    _describe(
        OWN,
        "ckpt-dir",
        "FOLDER",
        "Checkpoints of robust_run.ckpt_io: at each attempt, workers get the newest one's path as ROBUST_RESUME.",
    ),
    _describe(
        OWN,
        "code",
        "auto|copy|in-place",
        "Where workers run from. copy: what was captured at the start; auto: that too, once the folder has been edited.",
        _Look(choices=("auto", "copy", "in-place")),
    ),
    _describe(OWN, "probation-steps", "N", "Optimizer steps after which a code update is trusted.", _WHOLE),
    _describe(
        OWN,
        "resume",
        "RUN_DIR",
        "Go on with the controller of a job that is in its journal; needs no SCRIPT.",
        _Look(env=False),
    ),
    _describe(
        NODES, "standby", "K|auto", "Idle nodes beyond MAX that replace lost ones; auto: enough for 99 days in 100."
    ),
    _describe(
        NODES,
        "wait-for-nodes",
        "SECONDS",
        "After a loss without standby: wait so long for a node before going on with fewer.",
        _DECIMAL,
    ),
    _describe(NODES, "evict-list", "FILE", "Remember evicted nodes in this file, and use none that is in it."),
    _describe(NODES, "controller-standby", "K", "Nodes that stand ready to take the controller over.", _WHOLE),
    _describe(
        NODES,
        "coordinator",
        "etcd://HOST:PORT,...",
        "Where they agree who leads; else in the run directory, which all nodes must share.",
    ),
    _describe(
        NODES,
        "token-file",
        "FILE",
        "The secret all nodes share, mode 0600 (default $ROBUST_TOKEN, else ~/.config/robust-run/token).",
    ),
    _describe(
        NODES, "tls-cert", "FILE", "Certificate of the controller (PEM); with --tls-key, all connections use TLS."
    ),
    _describe(NODES, "tls-key", "FILE", "Its private key (PEM)."),
    _describe(NODES, "tls-ca", "FILE", "Certificates that the controller's must be signed by (PEM)."),
    _describe(IMAGES, "image", "URL", "Run the workers inside this image: path or URL of a .sqsh or .sif file."),
    _describe(
        IMAGES,
        "image-writable",
        "FOLDER",
        "Let workers change what they see of it; changes are kept in FOLDER, or in memory until the job ends.",
        _Look(kind="maybe", alone="memory"),
    ),
    _describe(
        IMAGES,
        "bind",
        "SRC[:DST][:ro]",
        "Show a file or folder of this machine inside the image. May be repeated.",
        _Look(kind="paths", env=False),
    ),
    _describe(
        IMAGES,
        "image-cache",
        "FOLDER",
        "Where blocks of images are kept, on a disk of this node (default /var/tmp/robust-run-UID).",
    ),
    _describe(
        IMAGES,
        "record-window",
        "SECONDS",
        "What is read before the first optimizer step, or in this time, is fetched first the next time.",
        _DECIMAL,
    ),
    _describe(
        IMAGES,
        "prefetch-env",
        "",
        "No image: read ahead the files of the Python environment that earlier starts read.",
    ),
)
"""All options that end up in `Options`."""

HELP_OPTIONS: tuple[OptionDescription, ...] = (
    OptionDescription(name="help", group=HELP, help="Show this page.", kind="flag", short="h"),
    OptionDescription(name="version", group=HELP, help="Show the version.", kind="flag"),
)
"""Options that answer instead of starting a job."""
