"""Whether a job's program may be run on groups of its nodes at the same time. Decides only.

A replay runs the user's program several times at once, on the folders it always writes to. A program that does not know of that
would overwrite its own checkpoints. So `auto` takes only one that mentions ROBUST_REPLAY.
"""

from __future__ import annotations

import math

from robust_run.errors import UserError
from robust_run.launcher.options import Options
from robust_run.launcher.types import ManyNodes
from robust_run.launcher.world import World, absolute

VARIABLE = "ROBUST_REPLAY"


def why_no_replay(options: Options, many: ManyNodes | None, world: World) -> str:
    """Return why not, as a clause; empty: it may be."""
    if many is None:
        return "the job has one node"
    if options.replay == "never":
        return "--replay never"
    if options.replay == "always":
        return ""
    text = "" if options.module else world.files.text(absolute(options.training_script, world))
    if VARIABLE in text:
        return ""
    return f"{options.training_script} does not mention {VARIABLE}, so it may save what a replay must not (--replay always)"


def admission_checks(options: Options, many: ManyNodes | None) -> bool:
    """Return whether nodes that no attempt needs are checked."""
    if many is None or options.admission_checks == "never":
        return False
    return options.admission_checks == "always" or many.standby > 0


def diagnose_checks(options: Options) -> tuple[str, ...]:
    """Return the checks that were chosen; none: all. Raises UserError for an unknown one."""
    if not options.diagnose_checks:
        return ()
    from robust_run.health.checks.plan import parse_only

    try:
        return parse_only(options.diagnose_checks)
    except UserError as error:
        raise UserError(str(error).replace("--only", "--diagnose-checks", 1)) from None


def check_numbers(options: Options) -> None:
    """Raise UserError for numbers of the ladder that cannot be."""
    share = options.max_evict_share
    if not (math.isfinite(share) and 0 <= share <= 1):
        raise UserError(f"--max-evict-share {share:g}: must be 0 to 1; 0.1 lets rules evict a tenth of the nodes")
    if options.replay_unit < 1:
        raise UserError(f"--replay-unit {options.replay_unit}: must be 1 node or more")
