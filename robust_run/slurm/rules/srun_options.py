"""Which options of `srun` a robust-run step cannot have. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from robust_run.errors import UserError
from robust_run.slurm.rules.sbatch_options import LONGEST_VALUE

OURS = frozenset(
    "nodes ntasks ntasks-per-node no-kill kill-on-bad-exit wait mpi export multi-prog pty jobid het-group".split()
)
"""What every step of ours needs as we say it."""
OF_THE_JOB = frozenset("nodelist nodefile exclude relative no-allocate".split())
"""What would make the step run on other nodes than the job has, which are others after each requeue."""
LIMITS = frozenset("time time-min begin deadline".split())
"""What would end or begin the step at another time than the job."""
TASKS = frozenset(f"ntasks-per-{what}" for what in ("core", "gpu", "socket", "tres"))
NO_JOB = frozenset("help usage version test-only".split())
REASONS = {
    **dict.fromkeys(OURS, "the script says --{} itself, as a step that outlives nodes needs it; leave it out"),
    **dict.fromkeys(TASKS, "one robust-run per node starts all workers of the node; leave --{} out"),
    **dict.fromkeys(
        OF_THE_JOB, "the step runs on all nodes of the job; choose these with options of sbatch, before --"
    ),
    **dict.fromkeys(LIMITS, "a step lives as long as its job, whose limit is watched; give --{} to sbatch, before --"),
    **dict.fromkeys(NO_JOB, "srun --{} starts nothing; call it here"),
}
LETTERS = {
    "N": "nodes", "n": "ntasks", "k": "no-kill", "K": "kill-on-bad-exit", "W": "wait", "w": "nodelist", "x": "exclude",
    "r": "relative", "t": "time", "Z": "no-allocate", "h": "help", "V": "version",
}  # fmt: skip
FLAGS = "EHIlOQsuvX"
"""Letters that take no value, or one in the same word: another may follow."""


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
        name = meant(word)
        if name:
            raise UserError(f"--srun={word}: {REASONS[name].format(name)}")


def meant(word: str) -> str:
    """Return which of the options that a step cannot have a word means, empty if none. Pure.

    As getopt_long does, a long name may be cut short where it stays unambiguous; srun refuses one that does not, so it is no harm
    to take it for one of these. Letters may be put together (`-lN3`) up to one that takes a value.
    """
    if word.startswith("--"):
        name = word[2:].partition("=")[0]
        if " " in name:
            name = name.partition(" ")[0]  # `--nodes 3` in one word
        return name if name in REASONS else next((known for known in sorted(REASONS) if known.startswith(name)), "")
    for letter in word[1:]:
        if letter in LETTERS:
            return LETTERS[letter]
        if letter not in FLAGS:
            break
    return ""
