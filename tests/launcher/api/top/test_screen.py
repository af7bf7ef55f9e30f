"""The screen of `robust top`: it fits every terminal, says what matters first, and nothing from a job can steer it."""

from __future__ import annotations

import io

import msgspec
import pytest
from dashboards import job_view
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from robust_run.launcher.operator.top.keys import Looking
from robust_run.launcher.operator.top.screen import plain, rows_of, screen
from robust_run.launcher.operator.views.live import LiveIncident, LiveView
from robust_run.launcher.operator.views.status_types import AttemptView, LiveNode


def a_view(nodes: int = 1250, incidents: int = 3, text: str = "rank 5 was killed by SIGKILL") -> LiveView:
    attempts = tuple(
        AttemptView(
            number=each, began_unix_s=5000.0 + 1000 * each, ranks=8 * nodes, nodes=nodes, startup_s=4.0, why=text
        )
        for each in range(4)
    )
    job = msgspec.structs.replace(
        job_view(),
        attempt=3,
        restarts=3,
        now_unix_s=10_000.0,
        nodes_active=nodes,
        attempts=attempts,
        ettr=0.957,
        ettr_hour=0.61,
        step=1234,
        step_s=0.51,
    )
    return LiveView(
        job=job,
        findings=(f"gpu-4: {text}",),
        incidents=tuple(
            LiveIncident(
                number=each,
                attempt=each - 1,
                kind="crash",
                action="relaunch",
                sentence=text,
                onset_unix_s=9000.0,
                detected_unix_s=9001.0,
                resumed_unix_s=9012.4,
            )
            for each in range(incidents, 0, -1)
        ),
        incidents_total=incidents,
        nodes=tuple(
            LiveNode(
                name=f"gpu-{each}",
                standing="active",
                ranks=f"{8 * each}-{8 * each + 7}",
                silent_s=0.4,
                step=1234,
                own_s=0.2,
                slow=1.6 if each == 0 else 1.0,
                rank=8 * each,
                odd="1.60 times the usual work" if each == 0 else "",
            )
            for each in range(min(nodes, 200))
        ),
        nodes_total=nodes,
        nodes_odd=1,
    )


def drawn(
    view: LiveView, looking: Looking, width: int, height: int, trouble: str = "", colours: bool = False
) -> list[str]:
    console = Console(
        width=width,
        height=height,
        file=io.StringIO(),
        force_terminal=colours,
        color_system="truecolor" if colours else None,
        highlight=False,
    )
    with console.capture() as captured:
        console.print(screen(view, looking, width, height, trouble))
    return captured.get().rstrip("\n").split("\n")


@pytest.mark.parametrize(("width", "height"), [(200, 60), (120, 30), (80, 24), (60, 16), (40, 10)])
@pytest.mark.parametrize("pane", ["nodes", "incidents", "help"])
def test_it_fills_a_terminal_of_any_size_and_no_more(width: int, height: int, pane: str) -> None:
    lines = drawn(a_view(), Looking(pane=pane), width, height)  # type: ignore[arg-type]
    assert len(lines) == height
    assert all(len(line) <= width for line in lines)


def test_the_first_lines_say_what_happens_and_how_well_it_goes() -> None:
    lines = drawn(a_view(), Looking(), 120, 30)
    assert lines[0].startswith("running: attempt 3 on 1250 nodes (10000 ranks), step 1234; restarted 3 times")
    assert "0.51 s a step (1.96/s), ETTR 95.7% (61.0% in the last hour), 3 incidents" in "\n".join(lines[:4])
    assert any(line.startswith("! gpu-4: rank 5 was killed") for line in lines)


def test_nodes_are_a_page_of_all() -> None:
    lines = drawn(a_view(), Looking(), 120, 30)
    (heading,) = [line for line in lines if line.startswith("Nodes:")]
    assert heading.startswith("Nodes: 1250, 1 of them odd, 1 to ")
    first = lines[lines.index(heading) + 2]
    assert first.split()[:2] == ["gpu-0", "active"]
    assert "1.60 times the usual work (rank 0)" in first
    rows = [line for line in lines if line.startswith("gpu-")]
    assert len(rows) == rows_of(a_view(), 120, 30)


def test_incidents_say_what_they_cost() -> None:
    lines = drawn(a_view(), Looking(pane="incidents"), 120, 30)
    (row,) = [line for line in lines if line.lstrip().startswith("3 ")]
    assert row.split()[:6] == ["3", "16", "min", "crash", "relaunch", "12.4"]


def test_trouble_in_asking_is_said() -> None:
    assert "! no controller listens" in drawn(a_view(), Looking(), 100, 20, "no controller listens")[1]


@given(st.text(max_size=80))
def test_what_a_job_says_cannot_steer_the_terminal(text: str) -> None:
    for pane in ("nodes", "incidents"):
        lines = drawn(a_view(3, text=f"[red]{text}[/red]\x1b[2J"), Looking(pane=pane), 100, 24)  # type: ignore[arg-type]
        assert len(lines) == 24
        assert all(line.isprintable() for line in lines)


def test_markup_in_what_a_job_says_is_shown_as_it_is() -> None:
    assert "[bold]x[/bold]" in "\n".join(drawn(a_view(3, text="[bold]x[/bold]"), Looking(), 100, 24))


def test_there_are_colours_on_a_terminal_alone() -> None:
    assert "\x1b[" in "".join(drawn(a_view(), Looking(), 100, 24, colours=True))
    assert "\x1b" not in "".join(drawn(a_view(), Looking(), 100, 24))


def test_piped_it_is_one_text_with_everything_that_fits() -> None:
    console = Console(width=120, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        console.print(plain(a_view(), 120))
    text = captured.get()
    assert text.startswith("running: attempt 3")
    assert "and 1210 more nodes; robust nodes lists them" in text
    assert "relaunch" in text
    assert "\x1b" not in text
