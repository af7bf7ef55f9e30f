"""Rows of the table of options that torchrun does not have."""

from __future__ import annotations

from robust_run.launcher.start.options.option_types import (
    CHECKPOINTS,
    FAILURES,
    HEALTH,
    IMAGES,
    NODES,
    OWN,
    SETUPS,
    SLURM,
    OptionDescription,
    OptionLook,
    describe,
)

_WHOLE = OptionLook(kind="whole")
_DECIMAL = OptionLook(kind="decimal")

OWN_OPTIONS: tuple[OptionDescription, ...] = (
    describe(
        OWN,
        "roles",
        "FILE",
        "Run the roles of a TOML file (trainer, rollout, ...), each healed by its own rule, instead of SCRIPT.",
        OptionLook(env=False),  # the launchers of its members would take it for theirs
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
        "report|evict|diagnose",
        "When a rank or a node is slower than its peers for five rounds in a row; diagnose: suspend the job, check, go on.",
        OptionLook(choices=("report", "evict", "diagnose")),
    ),
    describe(
        FAILURES,
        "on-outlier",
        "report|diagnose|evict",
        "When a node stays apart from its peers with a sign of a fault; diagnose: check the nodes; evict: it, if it is certain.",
        OptionLook(choices=("report", "diagnose", "evict")),
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
    describe(
        FAILURES,
        "check-reduced",
        "N",
        "Every N steps compare a checksum of the same reduced value on all ranks of its group, for 100 cheap; 0: never.",
        _WHOLE,
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
        "FOLDER|URL",
        "Checkpoints of robust_run.ckpt_io: each attempt starts from the newest that all its nodes see whole (ROBUST_RESUME).",
    ),
    describe(
        CHECKPOINTS,
        "ckpt-ahead",
        "auto|off|SIZE[,RATE]",
        "Fetch what an attempt starts from into this node's memory while SCRIPT imports, where --ckpt-dir is a URL: at most SIZE "
        "(64G), at RATE a second (500M). auto: at most half of what is free.",
    ),
    describe(
        CHECKPOINTS,
        "ckpt-mount",
        "",
        "Show the checkpoints of --ckpt-dir URL to SCRIPT as plain files, to be read: ROBUST_RESUME is a path then, in the "
        "folder of ROBUST_CKPT_MOUNTED.",
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
    describe(
        NODES, "standby", "K|auto", "Idle nodes beyond MAX that replace lost ones; auto: enough for 99 days in 100."
    ),
    describe(
        NODES,
        "wait-for-nodes",
        "SECONDS",
        "After a loss without standby: wait so long for a node before going on with fewer.",
        _DECIMAL,
    ),
    describe(
        NODES,
        "admission-checks",
        "auto|always|never",
        "Check nodes that no attempt needs before they are counted on; auto: with --standby.",
        OptionLook(choices=("auto", "always", "never")),
    ),
    describe(NODES, "evict-list", "FILE", "Remember evicted nodes in this file, and use none that is in it."),
    describe(NODES, "controller-standby", "K", "Nodes that stand ready to take the controller over.", _WHOLE),
    describe(
        NODES,
        "on-sigterm",
        "job|node",
        "What SIGTERM to the node with the controller (with --roles: to the one that leads) ends: the job, or this node's part "
        "in it, as on any other node, where another node stands ready to lead; if all nodes are told within 5 s, the job ends.",
        OptionLook(choices=("job", "node")),
    ),
    describe(
        NODES,
        "coordinator",
        "etcd://HOST:PORT,...",
        "Where they agree who leads; else in the run directory, which all nodes must share.",
    ),
    describe(
        NODES,
        "found",
        "",
        "Begin a new run even if this job may have one that is not over; for one start, not for scripts.",
        OptionLook(kind="flag", env=False),
    ),
    describe(
        NODES,
        "node-name",
        "NAME",
        "What this node is called in messages and evictions (default: its host name); in a pod, the machine's name.",
    ),
    describe(
        NODES,
        "node-label",
        "LABELS",
        'What roles with `where = "LABEL"` run on: gpu, or gpu,fast. Under Slurm the nodes of component 1 are het-1, too.',
        OptionLook(env=False),  # the launchers of members would take it for theirs
    ),
    describe(
        NODES,
        "token-file",
        "FILE",
        "The secret all nodes share, mode 0600 (default $ROBUST_TOKEN, else ~/.config/robust-run/token).",
    ),
    describe(
        NODES,
        "insecure-rendezvous",
        "",
        "No secret: whoever reaches the port is taken for a node of the job, as with torchrun. For networks of its own pods.",
        OptionLook(kind="flag"),
    ),
    describe(
        NODES, "tls-cert", "FILE", "Certificate of this node (PEM); with --tls-key, all connections of ours use TLS."
    ),
    describe(NODES, "tls-key", "FILE", "Its private key (PEM)."),
    describe(NODES, "tls-ca", "FILE", "Certificates that those of other nodes must be signed by (PEM)."),
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
        IMAGES, "prefetch-env", "", "No image: read ahead the files of the Python environment that earlier starts read."
    ),
    describe(
        SETUPS,
        "setup",
        "CMD",
        "Run this once, keep what it changes in the environment or the image, and have that on every node. May be repeated.",
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
