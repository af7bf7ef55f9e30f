"""When the launcher has ended: back into the queue where that helps, without the nodes that the job no longer wants.

This runs in the process that `srun` started, when nothing of the job is left on its node. Slurm ends what it requeues, so the
signals it sends are ignored here: what is to be said right after the requeue must be said.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping

import msgspec

from robust_run.launcher.agent.workers.environment import warning_file
from robust_run.launcher.control.errors import NoController
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.job_parts import SlurmUse
from robust_run.slurm import exclusion, required
from robust_run.slurm.node_state import is_dead
from robust_run.slurm.past import Past, past_of
from robust_run.slurm.pulse import is_silent
from robust_run.slurm.rules import reasons
from robust_run.slurm.rules.types import Reason, SlurmEnded, SlurmJobFacts, Warned
from robust_run.slurm.scontrol import ask, fields, job_facts
from robust_run.terminal import plain

#: ExcNodeList may be set once the job is pending; Slurm gives its processes KillWait (30 s) to be gone.
EXCLUDE_S = 20.0
RETRY_S = 0.1
#: A node that is not the first waits until those before it must have acted.
FIRST_WAIT_S, STEP_WAIT_S, LONGEST_WAIT_S = 1.5, 0.3, 15.0
TRIES = 5
MOST_ASKING = 16
"""Nodes that may requeue the job, the first ones: of thousands, not all need to ask."""
LOST_CODES = (NoController.exit_code, 128 + signal.SIGKILL)
"""How an agent ends that is without a controller: it gave up, or did not end its workers in time and was killed."""
LARGEST_WARNING = 1 << 16
DOWN_WITHIN_S, ASK_NODE_S = 600.0, 5.0
"""SlurmdTimeout is 300 s unless a site says otherwise."""


def follow_up(spec: JobSpec, exit_code: int, env: Mapping[str, str]) -> int:
    """Requeue the job if that is what its end asks for; return the exit code."""
    use = spec.slurm
    path = os.path.join(spec.log_dir, spec.run_id) if spec.log_dir is not None else ""
    past = past_of(path, use.restart) if path and use is not None and (exit_code or use.node_id) else None
    if use is None or use.node_id >= MOST_ASKING or (exit_code == 0 and (past is None or not past.lost)):
        return exit_code
    warned = read_warning(warning_file(path, use)) if path else None
    may_be_lost = past is not None and past.finish is None and warned is None and exit_code in LOST_CODES
    is_lost = may_be_lost and is_silent(path)
    alone = past is None and exit_code == NoController.exit_code and spec.many is not None and use.node_id > 0
    down = _batch_host_that_is_down(use, env) if alone else ""
    is_lost = is_lost or bool(down)
    ended = ended_as(exit_code, past, warned.reason if warned is not None else "", is_lost=is_lost)
    if was_told(ended, exit_code) or (past is not None and past.lost):
        facts, _ = job_facts(use.job, env)
        if facts is not None:
            reason = ended.warned or reasons.classify(facts, use.restart, time.time())
            is_orphan = facts.is_batch and past is not None and facts.batch_host in past.lost
            ended = msgspec.structs.replace(ended, warned=reason, is_orphan=is_orphan)
    decision = reasons.decide(ended, use.requeue)
    if not decision.requeue:
        _say_what_is_left(use, ended, decision.why)
    is_slurms_turn = ended.warned == "requeued"
    if not decision.requeue and not (is_slurms_turn and ended.evicted):
        return exit_code
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if use.node_id:
        time.sleep(min(LONGEST_WAIT_S, FIRST_WAIT_S + STEP_WAIT_S * use.node_id))
    facts, answer = job_facts(use.job, env)
    if facts is None:
        _say(f"{decision.why}, but Slurm cannot be asked ({answer.text}); scontrol requeue {use.job} starts it again")
        return exit_code
    if facts.state.startswith("CANCELLED"):
        return exit_code  # somebody does not want it any more, whatever else was about to end it
    unwanted = _unwanted(spec, facts, past, ended, down, env)  # before the requeue: Slurm then leaves little time
    _back(spec, facts, ended, unwanted, decision.why if decision.requeue else "", env)
    return exit_code


def follow_up_told(use: SlurmUse, ended: SlurmEnded, env: Mapping[str, str]) -> None:
    """The same for a job whose end is on record elsewhere, as one of several roles. Excludes no nodes."""
    if use.node_id >= MOST_ASKING or (ended.exit_code == 0 and ended.outcome == "done"):
        return
    if was_told(ended, ended.exit_code):
        facts, _ = job_facts(use.job, env)
        if facts is not None:
            reason = reasons.classify(facts, use.restart, time.time())
            ended = msgspec.structs.replace(ended, warned=reason)
    decision = reasons.decide(ended, use.requeue)
    if not decision.requeue:
        _say_what_is_left(use, ended, decision.why)
        return
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if use.node_id:
        time.sleep(min(LONGEST_WAIT_S, FIRST_WAIT_S + STEP_WAIT_S * use.node_id))
    facts, answer = job_facts(use.job, env)
    if facts is None:
        _say(f"{decision.why}, but Slurm cannot be asked ({answer.text}); scontrol requeue {use.job} starts it again")
    elif not facts.state.startswith("CANCELLED"):
        _requeue(use, facts, decision.why, env)


def is_batch_host_down(use: SlurmUse, env: Mapping[str, str]) -> bool:
    """Whether Slurm says that the node of the batch script, another than this one, is down. May block for some seconds."""
    facts, _ = job_facts(use.job, env)
    if facts is None or not facts.is_batch or facts.batch_host in ("", use.node_name):
        return False
    answer = ask(("show", "node", "-o", facts.batch_host), env)
    return answer.ok and "DOWN" in fields(answer.text).get("State", "")


def _back(
    spec: JobSpec, facts: SlurmJobFacts, ended: SlurmEnded, unwanted: tuple[str, ...], why: str, env: Mapping[str, str]
) -> None:
    """Put the job back into the queue, without the nodes it is to be kept from. `why`: empty if Slurm has requeued it itself."""
    assert spec.slurm is not None
    unwanted, kept = required.split(unwanted, facts.required)
    contradiction = _contradiction(spec, facts, ended, unwanted, kept) if kept else None
    if contradiction is not None and not why:  # Slurm has requeued it: it is not held
        contradiction = msgspec.structs.replace(contradiction, is_stuck=False)
    holds = contradiction is not None and contradiction.is_stuck
    if why and not _requeue(spec.slurm, facts, why, env, holds=holds):
        return
    if contradiction is not None:
        _say(contradiction.sentence)
    if unwanted:
        _exclude(spec.slurm, facts, unwanted, env)


def _contradiction(
    spec: JobSpec, facts: SlurmJobFacts, ended: SlurmEnded, unwanted: tuple[str, ...], kept: tuple[str, ...]
) -> required.Contradiction:
    assert spec.slurm is not None
    most, fewest = (spec.many.most + spec.many.standby, spec.many.fewest) if spec.many is not None else (1, 1)
    return required.Contradiction(
        job=spec.slurm.job,
        nodes=kept,
        others=required.others_of(facts.required, kept),
        excluded=_wanted_list(facts, (*unwanted, *kept)),
        is_stuck=required.is_stuck(ended.evicted, kept, nodes=most, fewest=fewest),
    )


def _say_what_is_left(use: SlurmUse, ended: SlurmEnded, why: str) -> None:
    """Say what nobody does unless an operator does it."""
    if ended.is_orphan:
        _say(f"nobody ends job {use.job}, whose batch script was lost with its node: scancel {use.job}")
    elif ended.is_short and not ended.warned and use.requeue != "never":
        _say(f"{why}: job {use.job} is not requeued; scontrol requeue {use.job} starts it again")


def was_told(ended: SlurmEnded, exit_code: int) -> bool:
    """Whether a signal ended the job and nobody has noted why. Pure.

    One that comes while nodes still look for each other ends them before anything is on record.
    """
    told = ended.outcome == "stopped" or (not ended.outcome and exit_code == 128 + signal.SIGTERM)
    return told and not ended.warned


def _unwanted(
    spec: JobSpec, facts: SlurmJobFacts, past: Past | None, ended: SlurmEnded, down: str, env: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the nodes that the job is to be kept from."""
    from robust_run.launcher.core.ladder.suspects import evict_share
    from robust_run.launcher.core.state import policy_of

    nodes = spec.many.most + spec.many.standby if spec.many is not None else 1
    candidates = exclusion.ExclusionCandidates(
        evicted=ended.evicted,
        known_dead=(down,) if down else (),
        lost=past.lost if past is not None and ended.is_short else (),
        before=exclusion.excluded_before(facts.excluded, past.members if past is not None else ()),
        most=exclusion.most_excluded(evict_share(policy_of(spec)), nodes),
    )
    return exclusion.chosen(candidates, lambda name: is_dead(name, env))


def _batch_host_that_is_down(use: SlurmUse, env: Mapping[str, str]) -> str:
    """Return the name of the node of the batch script once Slurm says that it is down; empty if it does not.

    For a node that sees no run directory but its own, and has tried for a minute to reach the controller there: it may be cut off
    itself, and Slurm knows better.
    """
    facts, _ = job_facts(use.job, env)
    if facts is None or not facts.is_batch or facts.batch_host in ("", use.node_name):
        return ""
    give_up_at_s = time.monotonic() + DOWN_WITHIN_S
    while time.monotonic() < give_up_at_s:
        answer = ask(("show", "node", "-o", facts.batch_host), env)
        if answer.ok and "DOWN" in fields(answer.text).get("State", ""):
            return facts.batch_host
        time.sleep(ASK_NODE_S)
    return ""


def ended_as(exit_code: int, past: Past | None, warned: Reason, *, is_lost: bool) -> SlurmEnded:
    """Return the end of the job as this node knows it. Pure. `is_lost`: no controller lives, and none has said how it ended."""
    finish = past.finish if past is not None else None
    gave_up = finish is not None and finish.outcome == "failed" and not finish.sentence and finish.exit_code == 1
    return SlurmEnded(
        exit_code=finish.exit_code if finish is not None else exit_code,
        outcome=finish.outcome if finish is not None else "",
        is_short=gave_up or (finish is None and is_lost),
        warned=warned,
        evicted=past.evicted if past is not None else (),
        codes=past.codes if past is not None else frozenset(),
        barren=past.barren if past is not None else 0,
    )


def read_warning(path: str) -> Warned | None:
    """Return what a warning file says, None if there is none that can be read."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(LARGEST_WARNING), type=Warned)
    except (OSError, msgspec.MsgspecError):
        return None


def _requeue(use: SlurmUse, facts: SlurmJobFacts, why: str, env: Mapping[str, str], *, holds: bool = False) -> bool:
    """Put the job back into the queue; return whether it is there. `holds`: it is not started before somebody releases it."""
    if reasons.is_requeued_already(facts, use.restart):
        return True
    if not facts.is_batch:
        _say(f"{why}; only jobs of sbatch can be requeued: sbatch --requeue, or start it again with --run-id")
        return False
    if not facts.may_requeue:
        _say(f"{why}, and the job does not allow to be requeued: sbatch --requeue")
        return False
    for number in range(TRIES):
        answer = ask(("requeuehold" if holds else "requeue", use.job), env)
        if answer.ok:
            _say(f"{why}: job {use.job} is requeued and goes on when it is {'released' if holds else 'started again'}")
            return True
        now, _ = job_facts(use.job, env)
        if now is not None and reasons.is_requeued_already(now, use.restart):
            return True
        time.sleep(0.5 * (number + 1))
    _say(f"{why}, but the job could not be requeued: {answer.text}; scontrol requeue {use.job}")
    return False


def _exclude(use: SlurmUse, facts: SlurmJobFacts, names: tuple[str, ...], env: Mapping[str, str]) -> None:
    """Keep the job from nodes; that can be said only while it is pending, so it is tried until it is."""
    wanted = _wanted_list(facts, names)
    give_up_at_s = time.monotonic() + EXCLUDE_S
    while True:
        answer = ask(("update", f"JobId={use.job}", f"ExcNodeList={wanted}"), env)
        if answer.ok:
            _say(f"job {use.job} will not be started on {', '.join(names)}")
            return
        if time.monotonic() >= give_up_at_s:
            break
        time.sleep(RETRY_S)
    _say(
        f"{', '.join(names)} could not be excluded: {answer.text}; scontrol update JobId={use.job} ExcNodeList={wanted}"
    )


def _wanted_list(facts: SlurmJobFacts, names: tuple[str, ...]) -> str:
    return ",".join(dict.fromkeys(filter(None, (facts.excluded, *names))))


def _say(text: str) -> None:
    print(f"robust-run: {plain(text)}", file=sys.stderr, flush=True)
