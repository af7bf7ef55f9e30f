"""Every option of the command line in one table.

The table is the only place that knows an option's names, kind, environment variable and help; the click command, the
normalising of spellings and the help page are made from it. Defaults are those of `Options`, and where an option is a
field of the job (`JobSpec`), that field's.
"""

from __future__ import annotations

from robust_run.launcher.start.options.option_types import (
    ENDINGS,
    GROUPS,
    HELP,
    NODES,
    OURS,
    OUTPUT,
    RENDEZVOUS,
    RESUMABLE,
    SCRIPT,
    WORKERS,
    OptionDescription,
    OptionLook,
    Options,
    describe,
)
from robust_run.launcher.start.options.own_options import OWN_OPTIONS

__all__ = ["GROUPS", "HELP", "HELP_OPTIONS", "NODES", "OPTIONS", "OURS", "RESUMABLE", "OptionDescription", "Options"]

_WHOLE = OptionLook(kind="whole")
_DECIMAL = OptionLook(kind="decimal")

OPTIONS: tuple[OptionDescription, ...] = (
    describe(WORKERS, "nnodes", "N|MIN:MAX", "Nodes of the job; between MIN and MAX if it may shrink and grow."),
    describe(WORKERS, "nproc-per-node", "N|auto|cpu|gpu|xpu", "Workers on this node."),
    describe(
        WORKERS,
        "node-rank",
        "N",
        "Place of this node, for --rdzv-backend static; chosen by the controller unless given.",
        _WHOLE,
    ),
    describe(WORKERS, "role", "TEXT", "Name of the workers' role; shown in the prefix of their lines."),
    describe(
        WORKERS,
        "start-method",
        "METHOD",
        "Accepted for torchrun's sake; workers are always programs of their own.",
        OptionLook(choices=("spawn", "fork", "forkserver")),
    ),
    describe(
        WORKERS,
        "numa-binding",
        "MODE",
        "Keep each worker on the CPUs near its GPU: node, socket, exclusive or core-complex.",
        OptionLook(choices=("node", "socket", "exclusive", "core-complex"), env=False),
    ),
    describe(
        WORKERS,
        "virtual-local-rank",
        "",
        "Give every worker LOCAL_RANK=0 and a CUDA_VISIBLE_DEVICES with only its own GPU.",
    ),
    describe(SCRIPT, "module", "", "SCRIPT is a module, run as `python -m` does.", OptionLook(kind="flag", short="m")),
    describe(SCRIPT, "no-python", "", "SCRIPT is a program: run it as it is, without Python."),
    describe(SCRIPT, "run-path", "", "Run SCRIPT with runpy.run_path. Wins over --no-python."),
    describe(RENDEZVOUS, "standalone", "", "One node, a free port, a fresh id; other rendezvous options are ignored."),
    describe(
        RENDEZVOUS, "rdzv-backend", "NAME", "static or c10d: how the nodes find each other. One node needs neither."
    ),
    describe(
        RENDEZVOUS,
        "rdzv-endpoint",
        "HOST:PORT",
        "Where the nodes of a job meet: a machine of the job, the same on every node (c10d port: 29400).",
    ),
    describe(
        RENDEZVOUS, "rdzv-id", "TEXT", "Name of the job, the same on every node; workers see it as TORCHELASTIC_RUN_ID."
    ),
    describe(
        RENDEZVOUS,
        "rdzv-conf",
        "KEY=VALUE,...",
        "join_timeout (600 s), last_call_timeout (30 s), is_host, keep_alive_interval, keep_alive_max_attempt.",
    ),
    describe(RENDEZVOUS, "master-addr", "HOST", "Machine where the nodes meet, for --rdzv-backend static."),
    describe(
        RENDEZVOUS,
        "master-port",
        "PORT",
        "Port they meet at (29500); with one node the workers' port, a free one unless given.",
        _WHOLE,
    ),
    describe(RENDEZVOUS, "local-addr", "HOST", "Address of this node for workers of others; found out unless given."),
    describe(OUTPUT, "log-dir", "FOLDER", "Where run directories go (default ./robust-runs). /dev/null keeps nothing."),
    describe(
        OUTPUT,
        "redirects",
        "0-3|RANK:0-3,...",
        "Streams that go to log files only: 1 stdout, 2 stderr, 3 both.",
        OptionLook(short="r"),
    ),
    describe(
        OUTPUT,
        "tee",
        "0-3|RANK:0-3,...",
        "Streams that go to log files and, prefixed line by line, to the console.",
        OptionLook(short="t"),
    ),
    describe(OUTPUT, "local-ranks-filter", "RANK,...", "Show only these local ranks on the console."),
    describe(
        OUTPUT,
        "duplicate-stdout-filters",
        "TEXT,...",
        "Write tee'd stdout lines with one of these texts to filtered_stdout.log; `,,` is a comma.",
    ),
    describe(OUTPUT, "duplicate-stderr-filters", "TEXT,...", "The same for stderr and filtered_stderr.log."),
    describe(
        OUTPUT, "logs-specs", "NAME", "Not supported: use --log-dir, --redirects and --tee.", OptionLook(env=False)
    ),
    describe(OUTPUT, "event-log-handler", "NAME", "Accepted for torchrun's sake; the journal records every event."),
    describe(
        ENDINGS,
        "max-restarts",
        "N",
        "Restarts in a row without progress before the job ends; 0 never restarts.",
        _WHOLE,
    ),
    describe(ENDINGS, "monitor-interval", "SECONDS", "Accepted for torchrun's sake; exits are seen at once.", _DECIMAL),
    describe(ENDINGS, "signals-to-handle", "NAME,...", "Signals that end the job and are forwarded to the workers."),
    describe(
        ENDINGS,
        "shutdown-timeout",
        "SECONDS",
        "From the forwarded signal to SIGKILL (default $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30).",
        _WHOLE,
    ),
    *OWN_OPTIONS,
)
"""All options that end up in `Options`."""

HELP_OPTIONS: tuple[OptionDescription, ...] = (
    OptionDescription(name="help", group=HELP, help="Show this page; -h: a short one.", kind="flag", short="h"),
    OptionDescription(name="version", group=HELP, help="Show the version.", kind="flag"),
)
"""Options that answer instead of starting a job."""
