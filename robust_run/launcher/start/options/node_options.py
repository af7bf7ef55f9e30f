"""Options of jobs of several nodes that torchrun does not have: rows of the table in `options`."""

from __future__ import annotations

from robust_run.launcher.start.options.option_types import NODES, OptionDescription, OptionLook, describe

_WHOLE = OptionLook(kind="whole")
_DECIMAL = OptionLook(kind="decimal")

NODE_OPTIONS: tuple[OptionDescription, ...] = (
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
        "coordinator",
        "etcd://HOST:PORT,...",
        "Where they agree who leads; else in the run directory, which all nodes must share.",
    ),
    describe(
        NODES,
        "found",
        "",
        "Found a new run even where this job may have one that is not over; for one start, not for scripts.",
        OptionLook(kind="flag", env=False),
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
        NODES, "tls-cert", "FILE", "Certificate of the controller (PEM); with --tls-key, all connections use TLS."
    ),
    describe(NODES, "tls-key", "FILE", "Its private key (PEM)."),
    describe(NODES, "tls-ca", "FILE", "Certificates that the controller's must be signed by (PEM)."),
)
