"""Recovery ladder of a job: when it begins, and what its rungs do: diagnose, try again, roll back, replay, stop. Pure.

Which rung follows which is `health.ladder.step`'s to say. Here is what it is told of, and what is done:

- What explains itself never gets here: a user's exception, full memory or storage, a lost node, a program's mismatched calls.
- Ranks that hang are started again at once. A second hang has the nodes checked: on nodes that are suspect for the first
  (`health.ladder.suspicion`), or without progress since.
- A job that trains is suspended for some signs (`core.ladder.suspending`).
- `--diagnose auto`: NaN, an illegal memory access, a fault of a device or inside NCCL begin it at once; other crashes when they
  come again without progress, SIGSEGV and SIGBUS also with. The first crash is tried again at once: most pass.
- A signal from outside (SIGKILL, SIGTERM...) and an exit code of the program's own are no fault of a node's: no device sends
  signals. `always` includes them.
- `--max-restarts` is asked before the ladder is.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.health.checks.types import CheckJudgement
from robust_run.health.ladder import rules
from robust_run.health.ladder.rules import everything_known
from robust_run.health.ladder.step import most_evicted
from robust_run.health.ladder.suspicion import BLAMED
from robust_run.health.ladder.types import Code, Failed, FailureKind, LadderDecision, RollbackRefused, Settled
from robust_run.health.ladder.types import Diagnosed as ChecksOver
from robust_run.launcher.core.attempts import begin
from robust_run.launcher.core.diagnosis import failure as diagnosis
from robust_run.launcher.core.diagnosis.judge import AttemptJudgement as Verdict
from robust_run.launcher.core.diagnosis.judge import is_hang, is_nan, was_sent_a_signal
from robust_run.launcher.core.ladder import swapping
from robust_run.launcher.core.ladder.ladder_state import LadderState, ladder_state_of, remember
from robust_run.launcher.core.ladder.rungs import decided, evict, next_rung, stop, taken
from robust_run.launcher.core.ladder.suspects import (
    blame,
    checked,
    evict_share,
    hosts,
    is_suspect,
    outstanding,
    ranked,
    to_blame,
)
from robust_run.launcher.core.membership import is_usable
from robust_run.launcher.core.replaying import advance
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.actions import Action, RecordIncident, Say
from robust_run.launcher.model.check_events import Diagnosed, StandbyChecked
from robust_run.launcher.model.events import Event

#: SIGBUS and SIGSEGV: seldom by chance.
OF_MEMORY = frozenset((7, 11))
#: What a finding says by itself.
EXPLAINED = frozenset(("exception", "usage", "out_of_memory", "storage"))
#: Troubles that are looked into at once.
AT_ONCE = frozenset(("illegal_memory_access", "nccl", "ecc", "gpu_lost"))
ADMISSION = "robust-run, admission"


class Concluded(msgspec.Struct, frozen=True, kw_only=True):
    """What the ladder says of the end of an attempt."""

    said: tuple[Action, ...] = ()
    """For the record, in any case."""
    decision: LadderDecision | None = None
    """The rung to take; None: it is not the ladder's business."""
    known: str = ""
    """All that was tried and found, where an episode is under way."""


# --- an attempt has ended -------------------------------------------------------------------------------------------


def concluded(
    policy: CorePolicy,
    state: JobState,
    verdict: Verdict | None,
    *,
    progressed: bool,
    standing: Literal["goes_on", "spent", "over"],
    now_s: float,
) -> Concluded:
    """Take in how an attempt ended (`verdict` None: well); return what follows. `standing`: see `swapping.when`."""
    may_go_on = standing == "goes_on"
    ladder_state = ladder_state_of(state)
    said: list[Action] = []
    if (progressed or verdict is None) and ladder_state.ladder.decisions:
        ladder_state, settled = next_rung(policy, state, ladder_state, Settled(at_s=now_s))
        said = [] if settled is None else [decided(state, settled)]
        if settled is None:
            ladder = msgspec.structs.replace(ladder_state.ladder, decisions=(), failure=None, evicted=(), known=())
            ladder_state = msgspec.structs.replace(ladder_state, ladder=ladder)
    if verdict is None:
        remember(state, ladder_state)
        return Concluded(said=tuple(said))
    draft = verdict.draft
    kind, crashed, at_once = what_it_is(policy, state, ladder_state, verdict, progressed=progressed)
    evicted_before = ladder_state.evicted
    blamed = to_blame(state, draft.nodes) if kind is not None else ()
    suspect = crashed not in ("", "peers") and is_suspect(policy, ladder_state, blamed, now_s)
    if crashed and crashed != "peers":  # who lost a connection first is a victim
        weight = BLAMED if kind == "hang" else BLAMED / 2  # a crash is the program's at least as often
        here = tuple(name for name in blamed if name not in state.evicted)
        ladder_state = blame(policy, ladder_state, here, weight, draft.sentence, now_s, hung=kind == "hang")
    ladder_state = msgspec.structs.replace(
        ladder_state,
        crashed=crashed,
        evicted=state.evicted_for if verdict.evicts else (),
        exit_code=draft.exit_code,
        answer="",
    )
    ladder_state, answered = swapping.noted(policy, state, ladder_state, verdict, now_s)
    said += answered
    swap, swap_of = swapping.when(
        policy, state, ladder_state, verdict, now_s, progressed=progressed, crashed=crashed, standing=standing
    )
    is_climbing = ladder_state.ladder.is_climbing
    in_vain = evicted_before if not progressed else ()
    is_healed = verdict.heals and not state.suspended_for
    known = everything_known(ladder_state.ladder) if is_climbing else ladder_state.answer
    begins = kind is not None and may_go_on and (at_once or suspect or is_climbing or in_vain)
    if is_healed or not (begins or swap in ("now", "last")):
        remember(state, ladder_state)
        return Concluded(said=tuple(said), known="" if may_go_on else known)
    event = Failed(
        at_s=now_s,
        kind=kind or "crash",
        sentence=draft.sentence,
        nodes=hosts(state),
        code=_code(state),
        evicted_before=in_vain,
        sign=state.suspended_sign,
        suspect=suspect,
        worst_first=ranked(policy, state, ladder_state, now_s),
        outstanding=outstanding(policy, state, ladder_state, blamed, now_s),
        swap=swap,
        swap_of=swap_of,
    )
    ladder_state, decision = next_rung(policy, state, ladder_state, event)
    if decision is not None and decision.rung == "swap":
        ladder_state = swapping.begun(state, ladder_state, verdict, swap_of, now_s)
    remember(state, ladder_state)
    return Concluded(said=tuple(said), decision=decision, known="" if may_go_on else known)


def what_it_is(
    policy: CorePolicy, state: JobState, ladder_state: LadderState, verdict: Verdict, *, progressed: bool
) -> tuple[FailureKind | None, str, bool]:
    """Return what the ladder calls a failure (None: none of its business), how it is remembered, and whether it begins it."""
    draft = verdict.draft
    always = policy.diagnose == "always"
    if state.suspended_for:
        return state.suspended_for, "", True  # type: ignore[return-value]
    if is_hang(verdict):
        again = ladder_state.crashed == "hang" and not progressed
        return "hang", "hang", always or again
    if is_nan(draft):
        return "nan", "", True
    if draft.kind not in ("crash", "unknown"):
        return None, "", False
    finding = draft.culprit.finding if draft.culprit is not None else None
    again = ladder_state.crashed not in ("", "hang") and not progressed
    if draft.rule == "died_of_signal" and draft.culprit is not None:
        number = -(draft.culprit.exit_code or 0)
        if was_sent_a_signal(draft):
            return ("crash", "", True) if always else (None, "", False)
        repeated = again or (number in OF_MEMORY and ladder_state.crashed == "memory")
        return "crash", "memory" if number in OF_MEMORY else "signal", always or repeated
    if finding is not None and finding.kind in EXPLAINED:
        return None, "", False
    if draft.kind == "unknown":
        return ("unknown", "peers", always or again) if draft.rule == "only_peer_errors" else (None, "", False)
    if finding is None:
        return ("crash", "", True) if always else (None, "", False)
    return "crash", "device", always or again or finding.trouble in AT_ONCE


def _code(state: JobState) -> Code:
    if not state.code.records:
        return Code()
    from robust_run.launcher.core import ledger_queries as queries

    target = queries.rollback_target(state.code, 0)
    good = f"version {target.version.number}" if target is not None else ""
    return Code(running=f"version {state.code.running}", last_good=good)


def follow(
    policy: CorePolicy, state: JobState, decision: LadderDecision, incident: RecordIncident, now_s: float
) -> list[Action]:
    """Take the rung that follows from a failure."""
    if decision.rung == "rollback":
        back = _roll_back(state, decision)
        if not back:
            event = RollbackRefused(at_s=now_s, reason="the version is not there any more")
            ladder_state, other = next_rung(policy, state, ladder_state_of(state), event)
            remember(state, ladder_state)
            first = decided(state, decision)
            return [first, *(follow(policy, state, other, incident, now_s) if other is not None else [])]
        record = msgspec.structs.replace(incident, action="rollback", reason=decision.sentence)
        return [record, decided(state, decision), *begin(policy, state, now_s)]
    if decision.rung == "diagnose":
        record = msgspec.structs.replace(incident, action="diagnose", reason=rules.RULES[decision.rule])
        return [record, *diagnosis.begin(policy, state, decision)]
    if decision.rung == "replay":
        from robust_run.launcher.core import replaying

        record = msgspec.structs.replace(incident, action="replay", reason=rules.RULES[decision.rule])
        return [record, decided(state, decision), *replaying.start(policy, state, now_s)]
    if decision.rung in ("evict", "reattempt", "swap"):
        action = "evict" if decision.rung == "evict" else "relaunch"
        record = msgspec.structs.replace(incident, action=action, reason=rules.RULES[decision.rule])
        return [record, *taken(policy, state, decision, now_s)]
    record = msgspec.structs.replace(incident, action="stop", reason=decision.sentence)
    return [record, *stop(state, decision)]


def _roll_back(state: JobState, decision: LadderDecision) -> bool:
    from robust_run.launcher.core import code_ledger as ledger

    before = state.code.running
    state.code = ledger.taken_back(state.code, 0, decision.sentence)
    return state.code.running != before


# --- what comes of it -----------------------------------------------------------------------------------------------


def take(policy: CorePolicy, state: JobState, event: Event, now_s: float) -> list[Action]:
    """Change the state by what checks say; return what is to be done."""
    if isinstance(event, StandbyChecked):
        return _standby_checked(policy, state, event)
    if isinstance(event, Diagnosed) and state.phase == "diagnosing" and event.attempt == state.attempt:
        judged = _of_present(state, event.judgement)
        remember(state, checked(policy, ladder_state_of(state), judged, now_s))
        return advance(policy, state, ChecksOver(at_s=now_s, judgement=judged), now_s, event.at_unix_s)
    return []


def _of_present(state: JobState, judged: CheckJudgement) -> CheckJudgement:
    """Return what is said of nodes that are still there: who went meanwhile need not be evicted."""
    there = {member.info.name for member in state.members.values() if is_usable(state, member.info.id)}
    return msgspec.structs.replace(
        judged,
        suspects=tuple(each for each in judged.suspects if each.node in there),
        ambiguous=tuple(each for each in judged.ambiguous if there.intersection(each.nodes)),
    )


def _standby_checked(policy: CorePolicy, state: JobState, event: StandbyChecked) -> list[Action]:
    member = state.members.get(event.node)
    if member is None or not is_usable(state, event.node) or event.node in state.unended:
        return []  # it went, or was needed before it was known
    if state.is_stopping:
        return []  # who ends a job may end its checks, too: what they say by then tells nothing of a node
    if event.admitted:
        member.checked = "admitted"
        return [Say(text=f"{event.name} was checked and stands by: {event.sentence}")]
    refused = sum(each.by == ADMISSION for each in state.evicted.values())
    if refused >= most_evicted(evict_share(policy), len(state.members)):
        member.checked = "refused"
        others = "was 1" if refused == 1 else f"were {refused}"
        said = f"{event.name} would be refused ({event.rule}: {event.sentence}), but so {others} before it"
        return [Say(text=f"{said}: it stands by, and is taken last (--max-evict-share)")]
    said = f"{event.name} is not admitted ({event.rule}): {event.sentence}"
    return [Say(text=said), *evict(state, event.name, f"{event.sentence} ({event.rule})", ADMISSION, event.at_unix_s)]
