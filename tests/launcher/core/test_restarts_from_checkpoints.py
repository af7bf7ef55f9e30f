"""Whether a job that fails is started again, where its attempts start from checkpoints, each further than the one before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.core.restart import RestartLimits, Trail, decide
from robust_run.launcher.model.job import Progress, VerdictDraft

CRASH = VerdictDraft(
    kind="crash", ranks=(0,), confidence="high", rule="died_of_signal", sentence="it crashed", exit_code=1
)


def ends_after(starts: list[tuple[int | None, int]]) -> int | None:
    """All of these attempts crash: checkpoint that each starts from, steps that it makes. Return which was the last."""
    trail, limits = Trail(), RestartLimits(max_restarts=3, progress_after_s=600.0)
    for number, (start_step, steps) in enumerate(starts):
        progress = Progress(lived_s=5.0, steps=steps, start_step=start_step)
        trail, decision = decide(trail, CRASH, progress, limits)
        if not decision.relaunch:
            return number
    return None


def test_a_job_that_goes_on_from_where_it_was_and_fails_after_as_many_steps_again_is_restarted_for_ever() -> None:
    assert ends_after([(None, 300), *((300 * n, 300) for n in range(1, 20))]) is None


def test_a_job_that_fails_at_the_same_step_again_and_again_is_not() -> None:
    assert ends_after([(None, 300), (300, 0), (300, 0), (300, 0), (300, 0)]) == 3
    assert ends_after([(None, 300), (250, 50), (250, 50), (250, 50), (250, 50)]) == 3


def test_where_a_job_began_is_no_progress_of_its_own() -> None:
    assert ends_after([(4000, 0), (4000, 0), (4000, 0), (4000, 0)]) == 3


def test_a_program_that_counts_epochs_gets_further_all_the_same() -> None:
    """Of 500 optimizer steps each: 4 and 300 are less than 3 and 500."""
    assert ends_after([(None, 1600), *((3 + n, 300) for n in range(12))]) is None


def test_an_attempt_that_had_to_go_back_brought_nothing() -> None:
    assert ends_after([(None, 300), (300, 10), (200, 50), (200, 50), (100, 50), (100, 50)]) == 4


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=8, max_size=8))
def test_without_a_later_checkpoint_and_without_more_steps_it_ends(made: list[tuple[int, int]]) -> None:
    assert ends_after([(100, 60), *((100 - start, steps) for start, steps in made)]) is not None
