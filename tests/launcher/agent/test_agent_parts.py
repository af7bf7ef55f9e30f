"""Parts of an agent that nothing was asked of: every question about them has an answer, and none is made for it."""

from __future__ import annotations

from typing import Any, cast

from robust_run.launcher.agent.parts import AgentParts


def parts() -> AgentParts:
    """Return those of an agent that has nothing: whatever made one of them would fail."""
    nothing = cast("Any", None)
    return AgentParts(nothing, "node", nothing, nothing, nothing, nothing, nothing)


def test_checks_that_never_began_are_over() -> None:
    assert parts().end_checks()


def test_who_looked_for_no_checkpoints_has_no_save_to_tell_of() -> None:
    attempt = cast("Any", None)
    assert parts().last_save(attempt) is parts().new_save(attempt) is None


def test_a_lost_connection_and_the_end_of_an_attempt_make_none() -> None:
    made = parts()
    made.forget_asked()
    made.prepare_look()
    made.let_memory_go()
    assert (made.has_codes, made.keeper) == (False, None)
