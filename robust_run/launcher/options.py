"""Every option of the command line in one table, and the values people gave them.

The table is the only place that knows an option's names, kind, environment variable and help; the click command, the
normalising of spellings and the help page are made from it. Defaults are the defaults of `Options`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["text", "whole", "decimal", "flag", "paths"]
"""text: as typed. whole: an integer. decimal: a float. flag: no value. paths: may be given several times."""

WORKERS = "torchrun: workers"
SCRIPT = "torchrun: the script"
RENDEZVOUS = "torchrun: rendezvous"
OUTPUT = "torchrun: output"
ENDINGS = "torchrun: restarts and signals"
OWN = "robust-run's own"
HELP = "help"
GROUPS = (WORKERS, SCRIPT, RENDEZVOUS, OUTPUT, ENDINGS, OWN, HELP)
"""Headings of the help page, in its order."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The command line as typed: converted to numbers where a number was asked for, and not checked further."""

    training_script: str
    training_script_args: tuple[str, ...] = ()
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
        """Whether a value must follow."""
        return self.kind != "flag"


class _Look(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a description that most options leave alone."""

    kind: Kind = "text"
    short: str = ""
    choices: tuple[str, ...] = ()
    env: bool = True


def _describe(group: str, name: str, metavar: str, text: str, look: _Look | None = None) -> OptionDescription:
    look = look or _Look(kind="text" if metavar else "flag")
    prefix = "ROBUST" if group == OWN else "PET"
    return OptionDescription(
        name=name,
        group=group,
        help=text,
        metavar=metavar,
        kind=look.kind,
        short=look.short,
        choices=look.choices,
        env=f"{prefix}_{name.replace('-', '_').upper()}" if look.env else None,
    )


_WHOLE = _Look(kind="whole")
_DECIMAL = _Look(kind="decimal")

OPTIONS: tuple[OptionDescription, ...] = (
    _describe(WORKERS, "nnodes", "N|MIN:MAX", "Nodes of the job. Only one node is built yet."),
    _describe(WORKERS, "nproc-per-node", "N|auto|cpu|gpu|xpu", "Workers on this node."),
    _describe(WORKERS, "node-rank", "N", "Rank of this node; 0 where there is one node.", _WHOLE),
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
    _describe(RENDEZVOUS, "rdzv-backend", "NAME", "static or c10d. One node needs neither."),
    _describe(RENDEZVOUS, "rdzv-endpoint", "HOST:PORT", "Where the nodes of a job meet."),
    _describe(RENDEZVOUS, "rdzv-id", "TEXT", "Name of the job; workers see it as TORCHELASTIC_RUN_ID."),
    _describe(RENDEZVOUS, "rdzv-conf", "KEY=VALUE,...", "Settings of the rendezvous backend."),
    _describe(RENDEZVOUS, "master-addr", "HOST", "Address of rank 0, for --rdzv-backend static."),
    _describe(RENDEZVOUS, "master-port", "PORT", "Port of rank 0; a free one unless given.", _WHOLE),
    _describe(RENDEZVOUS, "local-addr", "HOST", "Address of this node."),
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
)
"""All options that end up in `Options`."""

HELP_OPTIONS: tuple[OptionDescription, ...] = (
    OptionDescription(name="help", group=HELP, help="Show this page.", kind="flag", short="h"),
    OptionDescription(name="version", group=HELP, help="Show the version.", kind="flag"),
)
"""Options that answer instead of starting a job."""
