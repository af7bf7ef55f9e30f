"""The screen of `robust top` of a job of several roles."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from robust_run.launcher.operator.top.keys import Looking
from robust_run.orchestrator.people.views.history import Moment
from robust_run.orchestrator.people.views.screen import plain, rows_of, screen, total_of
from robust_run.roles.queue_words import Counts
from robust_run.roles.view_words import WaitChain
from tests.orchestrator.people.views import WAITS, history, member, now, view, works


def drawn(content: RenderableType, width: int = 110) -> list[str]:
    console = Console(width=width, color_system=None, highlight=False, emoji=False, force_terminal=False)
    with console.capture() as captured:
        console.print(content)
    return captured.get().splitlines()


def test_a_job_is_shown_by_role_with_its_queues_waits_and_losses() -> None:
    waits = ("trainer/0:0 has been waiting for 45 s for an item at queue samples",)
    lines = [line.rstrip() for line in drawn(plain(now(view=view(waits=waits)), 110))]
    assert lines[0] == "dapo runs"
    assert lines[1] == "since 1 min, trainer idle 90%, rollout idle 25%, 1 loss, back after 2.5 s"
    assert lines[2] == "prompts ██··················   10%  100 waiting, 2 leased, 198 of 300 done"
    assert lines[3] == "samples ····················    0%  0 waiting, 0 leased, 5 of 5 done, 1 too old"
    assert lines[4] == "! trainer/0:0 has been waiting for 45 s for an item at queue samples"
    rows = [line.split() for line in lines[6:]]
    assert rows[0] == ["MEMBER", "STATE", "GEN", "IDLE", "RESTARTS", "NODE"]
    assert rows[1] == ["trainer", "1/1", "ready", "90%", "0", "restart", "together"]
    assert rows[2] == ["trainer/0", "running", "ready", "1", "90%", "node-a", "members/trainer-0.1"]
    assert rows[3][:3] == ["rollout", "2/2", "ready"]
    assert rows[5] == ["rollout/1", "running", "ready", "2", "0%", "1", "node-a", "members/rollout-1.1"]
    assert rows[8] == ["58", "s", "rollout/1", "runs", "(generation", "2)"]
    assert rows[9] == ["1", "min", "2.5", "s", "rollout/1:", "rank", "0", "was", "killed", "by", "SIGKILL"]
    assert sum("SIGKILL" in line for line in lines) == 1, "what the journal says of a loss is not said twice"


@pytest.mark.parametrize(("waiting", "leased", "bar"), [
    (1024, 0, "████████████████████  100%"),
    (0, 1024, "▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒  100%"),
    (1, 0, "█···················    0%"),
    (0, 0, "····················    0%"),
    (5000, 0, "████████████████████  488%"),
])  # fmt: skip
def test_a_queue_is_a_bar_of_its_room(waiting: int, leased: int, bar: str) -> None:
    shown = view(queues={"q": Counts(waiting=waiting, leased=leased)})
    assert drawn(plain(now(view=shown), 110))[2].startswith(f"q {bar}")


def test_a_leader_of_another_version_that_does_not_say_the_room_has_no_bars() -> None:
    line = drawn(plain(now(view=view(queue_items=0, queue_bytes=0)), 110))[2]
    assert line.rstrip() == "prompts   100 waiting, 2 leased, 198 of 300 done"


@given(
    width=st.integers(40, 200),
    height=st.integers(5, 60),
    count=st.integers(0, 100),
    pane=st.sampled_from(["nodes", "incidents", "help"]),
    first=st.integers(0, 50),
    waits=st.lists(st.text("ab <- \x1b[31m\n", min_size=1, max_size=300), max_size=6),
)
def test_a_screen_has_exactly_its_lines_whatever_is_on_it(
    width: int, height: int, count: int, pane: str, first: int, waits: list[str]
) -> None:
    rollouts = tuple(member(f"rollout/{index}", sentence="[bold]x\x1b[2J") for index in range(count))
    moments = tuple(Moment(at_s=1000.0 + index, text=f"m {index}\x07") for index in range(count))
    shown = now(view=view(rollouts=rollouts, waits=tuple(waits)), history=history(moments=moments))
    looking = Looking(pane=pane, first=first)  # type: ignore[arg-type]
    lines = drawn(screen(shown, looking, width, height), width)
    assert len(lines) == height
    assert all(len(line) <= width for line in lines)
    assert not any("\x1b" in line or "\x07" in line for line in lines)
    assert rows_of(shown, width, height) >= 1 and total_of(shown, looking) >= 0


def test_members_that_are_not_wanted_now_and_never_ran_are_left_out() -> None:
    rollouts = (member("rollout/0"), member("rollout/1", "held", starts=0))
    shown = now(view=view(rollouts=rollouts), history=history(moments=(), losses=()))
    text = "\n".join(drawn(plain(shown, 110)))
    assert "  rollout/1" not in text


def test_a_job_whose_leader_is_gone_says_so_and_is_not_live() -> None:
    shown = now(view=view(is_led=False))
    lines = drawn(screen(shown, Looking(), 110, 30, "trouble is told"))
    assert "nobody answers" in lines[0]
    assert "! trouble is told" in lines[1]
    assert "not live" in lines[-1]


def test_what_comes_from_a_view_is_a_document() -> None:
    shown = now(view=view(WaitChain(steps=(WAITS, works("rollout/1:0")))))
    assert msgspec.json.decode(msgspec.json.encode(shown), type=type(shown)) == shown
