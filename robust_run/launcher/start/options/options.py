"""Every option of the command line in one table.

The table is the only place that knows an option's names, kind, environment variable and help; the click command, the
normalising of spellings and the help page are made from it. Defaults are those of `Options`, and where an option is a
field of the job (`JobSpec`), that field's.
"""

from __future__ import annotations

from robust_run.launcher.start.options.option_types import (
    CHECKPOINTS,
    ENDINGS,
    FAILURES,
    GROUPS,
    HEALTH,
    HELP,
    IMAGES,
    NODE_OPTIONS,
    NODES,
    OURS,
    OUTPUT,
    OWN,
    RENDEZVOUS,
    RESUMABLE,
    SCRIPT,
    SETUPS,
    SLURM,
    WORKERS,
    OptionDescription,
    OptionLook,
    Options,
    describe,
)

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
    describe(
        RENDEZVOUS,
        "local-addr",
        "HOST",
        "Address of this node for workers of others; found out unless given.",
    ),
    describe(
        OUTPUT,
        "log-dir",
        "FOLDER",
        "Where run directories go (default ./robust-runs). /dev/null keeps nothing.",
    ),
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
    describe(
        ENDINGS,
        "monitor-interval",
        "SECONDS",
        "Accepted for torchrun's sake; exits are seen at once.",
        _DECIMAL,
    ),
    describe(ENDINGS, "signals-to-handle", "NAME,...", "Signals that end the job and are forwarded to the workers."),
    describe(
        ENDINGS,
        "shutdown-timeout",
        "SECONDS",
        "From the forwarded signal to SIGKILL (default $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30).",
        _WHOLE,
    ),
    describe(OWN, "run-id", "TEXT", "Name of the run directory (default: date, time and four letters)."),
    describe(FAILURES, "restart-grace", "SECONDS", "From SIGTERM to SIGKILL for survivors of a failure.", _DECIMAL),
    describe(FAILURES, "progress-after", "SECONDS", "An attempt that lived this long counts as progress.", _DECIMAL),
    describe(
        FAILURES,
        "progress-path",
        "PATH",
        "A file, folder or glob whose growth counts as progress (checkpoints). May be repeated.",
        OptionLook(kind="paths"),
    ),
    describe(OWN, "no-warm", "", "Start every worker from nothing, never from a pre-imported process."),
    describe(
        OWN, "preload", "MODULE,...|auto", "What the pre-imported process imports; auto: what the first attempt did."
    ),
    describe(OWN, "http-port", "PORT|off", "Port of the status page and Prometheus; 0 is a free one, off none."),
    describe(
        OWN,
        "http-host",
        "HOST",
        "Address that the port listens on; unless given, of this machine alone. 0.0.0.0 or :: for all of its addresses.",
    ),
    describe(
        OWN,
        "prometheus-dir",
        "FOLDER",
        "Write where the metrics are into a file there, for Prometheus (file_sd); it goes when the job ends.",
    ),
    describe(
        FAILURES,
        "on-hang",
        "auto|relaunch|evict|report",
        "When ranks wait for one that is stuck: evict its node, or start again. auto: at once if it is proven, "
        "else shortly before torch's own time limit.",
        OptionLook(choices=("auto", "relaunch", "evict", "report")),
    ),
    describe(
        FAILURES,
        "hang-after",
        "SECONDS",
        "A rank that is waited for so long is looked at and named; longer where steps are longer.",
        _DECIMAL,
    ),
    describe(
        FAILURES,
        "hang-patience",
        "auto|TIME",
        "With --on-hang auto: when a wait that is not proven to be a hang is acted on (90s, 5m, 2h). auto: after "
        "2 min where all have come to a call and no byte moves, else shortly before torch's own time limit.",
    ),
    describe(
        FAILURES,
        "on-slow",
        "report|evict",
        "When a rank or a node is slower than its peers for five rounds in a row.",
        OptionLook(choices=("report", "evict")),
    ),
    describe(
        FAILURES,
        "diagnose",
        "auto|always|never",
        "When a failure is unexplained: check the nodes, try again, roll back, replay; auto: not for the first plain crash.",
        OptionLook(choices=("auto", "always", "never")),
    ),
    describe(
        FAILURES,
        "replay",
        "auto|always|never",
        "Let groups of nodes run SCRIPT to find a bad one; auto: where SCRIPT minds ROBUST_REPLAY, so that it saves nothing.",
        OptionLook(choices=("auto", "always", "never"), env=False),  # ROBUST_REPLAY is what workers of a replay see
    ),
    describe(
        FAILURES,
        "diagnose-checks",
        "CHECK,...",
        "Checks that --diagnose makes (default: all that apply); robust check --list shows them.",
    ),
    describe(
        FAILURES, "replay-unit", "N", "Nodes that one replica of the model needs: groups are multiples of it.", _WHOLE
    ),
    describe(FAILURES, "slow-round", "SECONDS", "Length of a round of that comparison; 0: none is made.", _DECIMAL),
    describe(
        FAILURES,
        "trace-nccl",
        "auto|on|off",
        "Look inside NCCL with a profiler plugin; auto: where there are GPUs, NCCL is 2.26 or later and has no plugin yet.",
        OptionLook(choices=("auto", "on", "off")),
    ),
    describe(
        CHECKPOINTS,
        "ckpt-dir",
        "FOLDER",
        "Checkpoints of robust_run.ckpt_io: each attempt starts from the newest that all its nodes see whole (ROBUST_RESUME).",
    ),
    describe(
        CHECKPOINTS,
        "ckpt-memory",
        "auto|off|SIZE",
        "Keep what robust_run.checkpoint saves in this node's memory, for the next attempt; at most SIZE (64G). auto: where "
        "SCRIPT mentions it, as much as there is room for.",
        OptionLook(env=False),  # ROBUST_CKPT_MEMORY is where workers find it
    ),
    describe(
        CHECKPOINTS,
        "ckpt-memory-dir",
        "FOLDER",
        "A folder whose files are in this node's memory: what SCRIPT saves there is written to --ckpt-dir behind it. Jobs of one "
        "node; at most as much as --ckpt-memory says.",
        OptionLook(env=False),  # ROBUST_CKPT_MEMORY_DIR is what workers are told
    ),
    describe(
        CHECKPOINTS,
        "ckpt-every",
        "N|TIME",
        "How often robust_run.checkpoint saves to --ckpt-dir: every N steps, or 30s, 10m, 2h; unless given, as SCRIPT says.",
    ),
    describe(
        CHECKPOINTS,
        "ckpt-keep",
        "N|all",
        "How many checkpoints of robust_run.checkpoint stay in --ckpt-dir, at least: what it saved with this option goes when N "
        "newer ones are whole. Nothing else does, nor what the job started from. Unless given, nothing is removed.",
    ),
    describe(
        CHECKPOINTS,
        "ckpt-copies",
        "0|1|auto",
        "Copies on other nodes of what is kept in memory: a lost node costs a step then. auto: 1 where there are several.",
        OptionLook(choices=("auto", "0", "1")),
    ),
    describe(
        OWN,
        "code",
        "auto|copy|in-place",
        "Where workers run from. copy: what was captured at the start; auto: that too, once the folder has been edited.",
        OptionLook(choices=("auto", "copy", "in-place")),
    ),
    describe(OWN, "probation-steps", "N", "Optimizer steps after which a code update is trusted.", _WHOLE),
    describe(
        OWN,
        "notify",
        "URL|CMD|@FILE",
        "Tell a webhook or a command of incidents; @FILE: the one in its first line, which keeps a secret. May be repeated.",
        OptionLook(kind="lines"),
    ),
    describe(
        OWN,
        "resume",
        "RUN_DIR",
        "Go on with the controller of a job that is in its journal; needs no SCRIPT.",
        OptionLook(env=False),
    ),
    *NODE_OPTIONS,
    describe(IMAGES, "image", "URL", "Run the workers inside this image: path or URL of a .sqsh or .sif file."),
    describe(
        IMAGES,
        "image-writable",
        "FOLDER",
        "Let workers change what they see of it; changes are kept in FOLDER, or in memory until the job ends.",
        OptionLook(kind="maybe", alone="memory"),
    ),
    describe(
        IMAGES,
        "bind",
        "SRC[:DST][:ro]",
        "Show a file or folder of this machine inside the image. May be repeated.",
        OptionLook(kind="paths", env=False),
    ),
    describe(
        IMAGES,
        "image-cache",
        "FOLDER",
        "Where images and snapshots are kept, on a disk of this node (default /var/tmp/robust-run-UID).",
    ),
    describe(
        IMAGES,
        "record-window",
        "SECONDS",
        "What is read before the first optimizer step, or in this time, is fetched first the next time.",
        _DECIMAL,
    ),
    describe(
        IMAGES,
        "prefetch-env",
        "",
        "No image: read ahead the files of the Python environment that earlier starts read.",
    ),
    describe(
        SETUPS,
        "setup",
        "CMD",
        "Run this command once, keep what it changes in the environment, and have that on every node. May be repeated.",
        OptionLook(kind="lines"),
    ),
    describe(SETUPS, "setup-file", "FILE", "The same with a shell script. May be repeated.", OptionLook(kind="paths")),
    describe(
        SETUPS,
        "setup-store",
        "URL",
        "Where it is kept; with several nodes a place that all of them reach (default: the user's cache).",
    ),
    describe(SETUPS, "setup-token-file", "FILE", "A secret that signs what is kept; what others made is refused."),
    describe(SETUPS, "refresh-setup", "", "Run the commands anew, though what they brought is there."),
    describe(
        HEALTH, "no-sensors", "", "Start no process that watches GPUs, links, disks, memory and the kernel's log."
    ),
    describe(
        HEALTH,
        "health-rules",
        "FILE",
        "TOML that changes what follows from what is seen, and how sensors look; the same on every node.",
    ),
    describe(
        HEALTH,
        "max-evict-share",
        "FRACTION",
        "Rules evict no more than this of the nodes within an hour, but at least one; 0: none (default 0.1).",
        _DECIMAL,
    ),
    describe(
        HEALTH,
        "metrics-from",
        "FOLDER",
        "Look for NaN, jumps and a loss of speed in event files of TensorBoard or wandb there. May be repeated.",
        OptionLook(kind="paths"),
    ),
    describe(
        SLURM,
        "requeue",
        "auto|never",
        "Put a batch job back into the queue when its time is over or too few nodes are left; it then goes on.",
        OptionLook(choices=("auto", "never")),
    ),
    describe(
        SLURM,
        "warn-before",
        "SECONDS",
        "How long before the time limit the script is warned; it may use all but what --shutdown-timeout needs.",
        _DECIMAL,
    ),
    describe(
        SLURM,
        "revive",
        "auto|never",
        "Start an agent that died on a node that lives again, with srun.",
        OptionLook(choices=("auto", "never")),
    ),
)
"""All options that end up in `Options`."""

HELP_OPTIONS: tuple[OptionDescription, ...] = (
    OptionDescription(name="help", group=HELP, help="Show this page; -h: a short one.", kind="flag", short="h"),
    OptionDescription(name="version", group=HELP, help="Show the version.", kind="flag"),
)
"""Options that answer instead of starting a job."""
