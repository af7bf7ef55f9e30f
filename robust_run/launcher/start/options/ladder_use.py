"""How far the ladder may go in a job: which checks, whether replays, how many nodes rules may evict. Decides only.

A replay runs the user's program several times at once, on the folders it always writes to. A program that does not know of that
would overwrite its own checkpoints. So `--replay auto` takes only one that mentions ROBUST_REPLAY.
"""

from __future__ import annotations

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.model.job import JobSpec, ManyNodes
from robust_run.launcher.model.world import World, absolute
from robust_run.launcher.start.options.options import Options

VARIABLE = "ROBUST_REPLAY"


def with_ladder(spec: JobSpec, options: Options, world: World) -> JobSpec:
    """Return a job with what was asked for. Raises UserError for what cannot be."""
    if options.replay_unit < 1:
        raise UserError(f"--replay-unit {options.replay_unit}: must be 1 node or more")
    return msgspec.structs.replace(
        spec,
        diagnose_checks=_checks(options),
        no_replay=_why_no_replay(options, spec.many, world),
        replay_unit=options.replay_unit,
        admission_checks=_admission(options, spec.many),
    )


def _why_no_replay(options: Options, many: ManyNodes | None, world: World) -> str:
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


def _admission(options: Options, many: ManyNodes | None) -> bool:
    if many is None or options.admission_checks == "never":
        return False
    return options.admission_checks == "always" or many.standby > 0


def _checks(options: Options) -> tuple[str, ...]:
    if not options.diagnose_checks:
        return ()
    from robust_run.health.checks.plan import parse_only

    try:
        return parse_only(options.diagnose_checks)
    except UserError as error:
        raise UserError(str(error).replace("--only", "--diagnose-checks", 1)) from None
