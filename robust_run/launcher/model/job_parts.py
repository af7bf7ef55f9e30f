"""Parts of a job specification that most jobs do without: an image, a set-up, a Slurm step. No behaviour."""

from __future__ import annotations

import msgspec


class ImageUse(msgspec.Struct, frozen=True, kw_only=True):
    """The image that the workers run in (`--image`)."""

    url: str
    """Absolute path, or a URL."""
    binds: tuple[str, ...] = ()
    """`SRC:DST` or `SRC:DST:ro` each, absolute and checked."""
    writable: str | None = None
    """None: read-only. "memory": changes end with the job. An absolute folder: they are kept there."""
    cache: str
    """Absolute folder where its blocks are kept."""


class SetupUse(msgspec.Struct, frozen=True, kw_only=True):
    """The set-up whose result the workers' environment has (`--setup`)."""

    commands: tuple[str, ...] = ()
    """As typed; the shell gets them."""
    files: tuple[str, ...] = ()
    """Absolute paths of scripts, run after the commands."""
    store: str
    """Where snapshots lie: an absolute path, or a URL."""
    token_file: str | None = None
    """Absolute path of the secret that signs them."""
    refresh: bool = False
    """Run it anew though a snapshot is there."""
    cache: str
    """Absolute folder on a disk of this node, where snapshots are kept."""


class SlurmUse(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a Slurm step that this node is (see `slurm`)."""

    job: str
    """What `scontrol` calls it: its number, `ARRAYJOB_TASK` for a task of an array."""
    number: str = ""
    """What `srun --jobid` calls it; empty: as `job`."""
    step: str
    node_id: int
    node_name: str
    """Slurm's name of this node."""
    restart: int = 0
    """How often the job was requeued and started again."""
    end_unix_s: float | None = None
    """When its time is over, where the environment said so."""
    warn_before_s: float = 120.0
    requeue: str = "auto"
    """auto or never."""
    revive: str = "auto"
    """auto or never: whether an agent that died on a living node is started again."""
    nodes: int = 0
    """Of the step; 0: not known."""
