"""What `--max-restarts` counts: an exception that comes back after each step does, outages of storage do not at first."""

from __future__ import annotations

from stories import BUG, Story, evidence, incident_of, one_node, told_to_end

from robust_run.health.types import Finding
from robust_run.launcher.core.restart import LONGEST_PAUSE_S, OUTAGE_S, RestartLimits, Trail, decide
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import Finish, OpenStore, WakeAt
from robust_run.launcher.model.events import SignalReceived, Tick
from robust_run.launcher.model.job import Progress, RankEvidence, VerdictDraft
from robust_run.launcher.model.node_events import ControllerResumed

LIMITS = RestartLimits(max_restarts=3, progress_after_s=600.0)
STORAGE = Finding(kind="storage", line="OSError: [Errno 116] Stale file handle", exception="OSError", trouble="storage")
OTHER = Finding(kind="exception", line="x", exception="KeyError", message="other", frame="t.py:9")


def verdict(finding: Finding | None) -> VerdictDraft:
    culprit = RankEvidence(rank=0, pid=1, exit_code=1, exited_at_s=1.0, finding=finding)
    kind = "code" if finding is not None and finding.kind == "exception" else "crash"
    return VerdictDraft(
        kind=kind,  # type: ignore[arg-type]
        ranks=(0,),
        confidence="high",
        rule="r",
        sentence="it failed",
        exit_code=1,
        culprit=culprit,
    )


def attempts(made: list[tuple[Finding | None, int, int | None]], apart_s: float = 60.0) -> int | None:
    """Attempts that all fail: of what, from which step, after how many. Return which was the last; None: none was."""
    trail, now_s = Trail(), 0.0
    for number, (finding, start, steps) in enumerate(made):
        progress = Progress(lived_s=5.0, steps=steps, start_step=start)
        trail, decision = decide(trail, verdict(finding), progress, LIMITS, now_s)
        now_s += apart_s + decision.pause_s
        if not decision.relaunch:
            return number
    return None


# --- the same exception after each step -----------------------------------------------------------------------------


def test_an_exception_that_comes_back_after_each_step_ends_the_job_though_each_step_is_saved() -> None:
    assert attempts([(BUG, 0, 300), *((BUG, 300 + n, 1) for n in range(20))]) == 3


def test_one_that_comes_back_after_hundreds_of_steps_does_not() -> None:
    assert attempts([(BUG, 0, 300), *((BUG, 300 * n, 300) for n in range(1, 20))]) is None


def test_other_exceptions_in_between_begin_the_count_anew() -> None:
    assert attempts([(BUG, 0, 300), *(((BUG, OTHER)[n % 2], 300 + n, 1) for n in range(1, 20))]) is None


def test_a_step_that_takes_longer_than_progress_is_progress() -> None:
    trail = Trail()
    for number in range(10):
        progress = Progress(lived_s=601.0, steps=1, start_step=300 + number)
        trail, decision = decide(trail, verdict(BUG), progress, LIMITS)
        assert decision.relaunch


def test_a_program_whose_steps_nobody_counts_is_judged_by_its_files_as_ever() -> None:
    trail = Trail()
    for number in range(10):
        progress = Progress(lived_s=5.0, steps=None, start_step=300 + number, files_advanced=True)
        trail, decision = decide(trail, verdict(BUG), progress, LIMITS)
        assert decision.relaunch


def test_crashes_and_passing_troubles_after_each_step_are_progress_as_ever() -> None:
    assert attempts([(None, 0, 300), *((None, 300 + n, 1) for n in range(20))]) is None
    passing = Finding(kind="exception", line="x", exception="TimeoutError", message="late", frame="t.py:9")
    assert attempts([(passing, 0, 300), *((passing, 300 + n, 1) for n in range(20))]) is None


# --- outages of storage ---------------------------------------------------------------------------------------------


def test_an_outage_of_minutes_does_not_burn_the_restarts_of_a_job_that_has_trained() -> None:
    assert attempts([(STORAGE, 0, 300), *((STORAGE, 0, 0) for _ in range(5))]) is None


def test_an_outage_that_does_not_end_ends_the_job() -> None:
    last = attempts([(STORAGE, 0, 300), *((STORAGE, 0, 0) for _ in range(60))])
    assert last is not None and last < 20
    fast = attempts([(STORAGE, 0, 300), *((STORAGE, 0, 0) for _ in range(60))], apart_s=0.1)
    assert fast is not None and fast < 25, "the pauses grow: it is not tried hundreds of times"


def test_storage_that_fails_a_job_which_never_trained_is_most_likely_a_wrong_path() -> None:
    assert attempts([(STORAGE, 0, 0)] * 9) == 3


def test_another_failure_in_an_outage_counts_as_ever() -> None:
    made = [(STORAGE, 0, 300), (STORAGE, 0, 0), *((None, 0, 0) for _ in range(9))]
    assert attempts(made) == 5


def test_progress_begins_a_new_outage() -> None:
    trail, now_s = Trail(), 0.0
    for number in range(40):
        progress = Progress(lived_s=5.0, steps=100, start_step=100 * number)
        trail, decision = decide(trail, verdict(STORAGE), progress, LIMITS, now_s)
        assert decision.relaunch and not decision.pause_s
        now_s += OUTAGE_S


def trained(story: Story, finding: Finding = STORAGE, steps: int | None = 50) -> list[object]:
    """Rank 0 of the attempt that runs fails of storage; return what follows."""
    story.exits(0, 1, finding)
    mine = evidence(0, 1, story.now_s, finding=finding)
    return story.ends("here", mine, told_to_end(1, story.now_s + 1), steps=steps)


def test_the_next_attempt_waits_for_the_pause_and_for_nothing_else() -> None:
    story = one_node()
    assert any(isinstance(each, OpenStore) for each in trained(story))
    story.starts()
    actions = trained(story, steps=0)
    assert actions[-1] == WakeAt(story.now_s + 5.0) and story.state.phase == "gathering"
    assert "tried again in 5 s" in incident_of(actions).reason  # type: ignore[arg-type]
    assert story.happens(Tick(), 1.0) == []
    assert story.happens(Tick(), 4.1) == [OpenStore(attempt=2, node="here")]
    assert replay(story.policy, story.told).trail == story.state.trail


def test_a_job_that_pauses_is_stopped_at_once() -> None:
    story = one_node()
    trained(story)
    story.starts()
    trained(story, steps=0)
    (end,) = story.happens(SignalReceived(signal=15))
    assert isinstance(end, Finish) and end.outcome == "stopped"


def test_a_controller_that_takes_over_goes_on_at_once_and_begins_the_time_anew() -> None:
    story = one_node()
    trained(story)
    story.starts()
    trained(story, steps=0)
    story.now_s = 3.0  # another clock
    actions = story.happens(ControllerResumed(term=2))
    assert actions == [OpenStore(attempt=2, node="here")]
    assert story.state.trail.outage_since_s == 3.0


def test_pauses_are_never_longer_than_said() -> None:
    trail = Trail()
    pauses = []
    for number in range(12):
        progress = Progress(lived_s=5.0, steps=0 if number else 100)
        trail, decision = decide(trail, verdict(STORAGE), progress, LIMITS, 1.0)
        pauses.append(decision.pause_s)
    assert pauses[:4] == [0.0, 5.0, 10.0, 20.0] and max(pauses) == LONGEST_PAUSE_S
