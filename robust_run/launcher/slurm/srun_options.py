"""Which options of `srun` a robust-run step cannot have. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from robust_run.errors import UserError
from robust_run.launcher.slurm.sbatch_options import LONGEST_VALUE

OURS = frozenset(
    "nodes ntasks ntasks-per-node no-kill kill-on-bad-exit wait mpi export multi-prog pty jobid het-group".split()
)
"""What every step of ours needs as we say it."""
LETTERS = {"N": "nodes", "n": "ntasks", "k": "no-kill", "K": "kill-on-bad-exit", "W": "wait"}


def check_step_options(words: Sequence[str]) -> None:
    """Check what is to be added to the srun line: one option a word. Raises UserError for one that breaks the step."""
    for word in words:
        if not word.startswith("-") or word.strip("-") == "":
            raise UserError(
                f"--srun={word!r} is no option of srun: write --srun=--name=value, and --srun again for more"
            )
        if not word.isprintable() or len(word) > LONGEST_VALUE:
            raise UserError(
                f"--srun={word[:40]!r}...: more than {LONGEST_VALUE} characters, or a control character in it"
            )
        name = word[2:].partition("=")[0] if word.startswith("--") else LETTERS.get(word[1], "")
        if name in OURS:
            raise UserError(
                f"--srun={word}: the script says --{name} itself, as a step that outlives nodes needs it; leave it out"
            )
