"""Pages in a real browser: no errors, nothing wider than a phone, usable by keyboard."""

from __future__ import annotations

from pathlib import Path

import msgspec
from fleet_histories import of_nodes
from page_ground import (
    BEGIN_S,
    DONE,
    RUNS,
    assert_they_draw_without_errors_and_fit,
    incident,
    incident_page,
    job_page,
    look_at,
    look_at_all,
    scene,
)

from robust_run.report.heat import Heat
from robust_run.report.pages.incident.page import incident_html
from robust_run.report.pages.job_page import job_html
from robust_run.report.pages.runs_page import RunAttempt, RunRow, RunsPage, runs_html
from robust_run.report.types import Evidence
from robust_run.report.usage import point_of
from robust_run.tracer.types import Op, Scene
from tests.tracer.wake import readings

LONG = "a_name_without_any_place_to_break_it_that_goes_on_and_on_and_on_and_on_and_on_and_on_and_on"


def scene_with(chain: bool = False, circle: bool = False) -> Scene:
    """The usual scene: its culprit waits for programs with long names, or ranks wait in a circle."""
    sights = list(scene().ranks)
    if chain:
        family = [
            readings.process(readings.thread("wait4", pid + 1, tid=pid), pid=pid, children=(pid + 1,), command=LONG)
            for pid in (105, 106, 107)
        ]
        path = readings.thread("openat", tid=108, at1=f"/{LONG}/{LONG}".encode())
        wake = readings.reading(*family, readings.process(path, pid=108, command=LONG[:60]))
        sights[5] = msgspec.structs.replace(sights[5], wake=wake)
    for rank in (0, 1, 2) if circle else ():
        call = Op(group="d0", op="recv", seq=1, state="waiting", at_s=95.0, peer=(rank + 1) % 3)
        trace = msgspec.structs.replace(sights[rank].trace, ops=(call,))
        sights[rank] = msgspec.structs.replace(sights[rank], trace=trace)
    return msgspec.structs.replace(scene(), ranks=tuple(sights))


def pages() -> dict[str, str]:
    cells = tuple(tuple(10.0 + rank for _ in range(200)) for rank in range(8))
    heat = Heat(tuple((rank,) for rank in range(8)), 1, cells, (10.0,) * 200)
    rows = {f"{LONG}-{n}": (9.0, 99.0, 0, 0, 50.0, 60.0, 70.0) for n in range(8)}
    usage = tuple(filter(None, (point_of(BEGIN_S, BEGIN_S + 300.0, rows),)))
    run = RunRow(
        run_id=LONG,
        run_directory=f"/runs/{LONG}",
        state="HUNG",
        tone="bad",
        script=LONG,
        started_unix_s=BEGIN_S,
        ranks=10_000,
        nodes=1250,
        ettr=0.9,
        attempts=(RunAttempt(number=0, began_unix_s=BEGIN_S, why=LONG),),
        attempts_count=12,
        incidents=1,
        verdict=LONG,
    )
    broken = RunRow(run_id="broken", run_directory="/runs/broken", problem=LONG, tone="bad")
    wordy = incident(
        verdict={"sentence": f"rank 5 raised {LONG} in {LONG}.py:3", "nodes": (LONG,), "group": LONG},
        evidence=(Evidence(what="what its program raised", rank=5, path=f"/x/{LONG}", text=f"{LONG}{LONG}\n" * 60),),
    )
    return {
        "incident": incident_html(incident_page()),
        "wordy": incident_html(incident_page(incident=wordy, run=f"/runs/{LONG}", drawn=RUNS)),
        "chain": incident_html(incident_page(scene=scene_with(chain=True))),
        "circle": incident_html(incident_page(scene=scene_with(circle=True))),
        "fleet": job_html(job_page(drawn=DONE, usage=of_nodes(16, odd=7))),
        "no-scene": incident_html(incident_page(scene=None)),
        "job": job_html(job_page(drawn=DONE, heat=heat, usage=usage)),
        "runs": runs_html(RunsPage(folder=f"/{LONG}", at_unix_s=BEGIN_S + 300.0, runs=(run, broken))),
        "wordy-job": job_html(
            job_page(
                drawn=DONE, run_id=LONG, script=LONG, command=f"python {LONG} {LONG}", outcome="failed", reason=LONG
            )
        ),
    }


def test_pages_draw_without_errors_and_fit(tmp_path: Path) -> None:
    names = ("incident", "wordy", "chain", "circle", "no-scene", "job", "runs", "wordy-job")
    made = pages()
    assert_they_draw_without_errors_and_fit(tmp_path, {name: made[name] for name in names})


def test_nothing_of_the_drawing_of_waits_is_cut_off(tmp_path: Path) -> None:
    """Words end within their box, arrows within the picture."""
    made, names = pages(), ("incident", "chain", "circle")
    for name in names:
        (tmp_path / f"{name}.html").write_text(made[name])
    script = """
        const inside = (one, other) => one.left >= other.left - 1 && one.right <= other.right + 1
            && one.top >= other.top - 1 && one.bottom <= other.bottom + 1;
        const all = (from, what) => Array.from(from.querySelectorAll(what));
        const svg = d.querySelector('.graph > svg'), whole = svg.getBoundingClientRect();
        const out = all(svg, '.edge, .box').filter(one => !inside(one.getBoundingClientRect(), whole)).map(one => one.outerHTML);
        for (const g of all(svg, 'g')) {
            const box = g.querySelector('.box').getBoundingClientRect();
            for (const said of all(g, 'text')) if (!inside(said.getBoundingClientRect(), box)) out.push(said.textContent);
        }
        return {out, boxes: all(svg, '.box').length};
    """
    seen = look_at_all(tmp_path, [(f"{name}.html", 1280) for name in names], script)
    for name, found in zip(names, (each["found"] for each in seen), strict=True):
        assert found["boxes"] > 2, name
        assert found["out"] == [], name


def test_ranks_are_walked_through_with_the_keyboard(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(incident_html(incident_page()))
    script = """
        const cell = d.querySelector('.view.v0 .cell[tabindex="0"]'), panel = d.getElementById('rank-panel'), said = [];
        cell.focus(); key(cell, 'ArrowRight'); said.push(panel.textContent);
        key(d.activeElement, 'ArrowDown'); said.push(panel.textContent);
        key(d.activeElement, 'End'); said.push(d.activeElement.dataset.r);
        return {said, stops: d.querySelectorAll('.view.v0 .cell[tabindex="0"]').length};
    """
    seen = look_at(tmp_path, "page.html", script, width=1000)
    assert not seen["bad"]
    right, down, end = seen["found"]["said"]
    assert right.startswith("rank 1 on gpu-0000, local rank 1")
    assert " in all_reduce #60" in right
    assert down.startswith("rank 5 on gpu-0001")
    assert "at fault" in down
    assert end == "7"
    assert seen["found"]["stops"] == 1, "the whole grid is one stop of the Tab key"


def test_a_command_is_copied_by_its_button_and_lines_of_evidence_are_searched(tmp_path: Path) -> None:
    printed = "".join(f"line {number}\n" for number in range(100)) + "CUDA error: out of memory\n"
    seen_lines = incident(evidence=(Evidence(what="last words", rank=5, text=printed),))
    (tmp_path / "page.html").write_text(incident_html(incident_page(incident=seen_lines, drawn=RUNS)))
    script = """
        const copied = [];
        Object.defineProperty(w.navigator, 'clipboard', {value: {writeText: t => (copied.push(t), Promise.resolve())}});
        const button = d.querySelector('.copy'); button.click(); await sleep(10);
        const field = d.getElementById('find-lines'), lines = () => Array.from(d.querySelectorAll('#evidence pre'))
            .map(p => p.textContent).join('\\n').split('\\n').filter(l => l);
        const type = word => { field.value = word; field.dispatchEvent(new w.Event('input', {bubbles: true})); };
        const all = lines().length; type('cuda ERROR');
        const hits = lines(), said = d.getElementById('find-lines-said').textContent; type('');
        return {copied, says: button.textContent, command: button.previousElementSibling.textContent, all, hits, said,
            again: lines().length};
    """
    seen = look_at(tmp_path, "page.html", script)
    assert not seen["bad"]
    found = seen["found"]
    assert found["copied"] == [found["command"]]
    assert found["says"] == "copied"
    assert found["hits"] == ["CUDA error: out of memory"]
    assert found["said"].startswith("1 of ")
    assert found["again"] == found["all"] == 101


def test_the_course_of_ettr_fits_a_phone_and_a_screen_and_its_words_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(job_html(job_page(drawn=DONE)))
    script = """
        const drawn = Array.from(d.querySelectorAll('.chart')).filter(c => c.getBoundingClientRect().width);
        const words = Array.from(drawn[0].querySelectorAll('text')).map(t => t.getBoundingClientRect());
        return {shown: drawn.map(c => c.className), high: Math.min(...words.map(b => b.height)),
            right: Math.max(...words.map(b => b.right))};
    """
    shown = {390: "narrow", 1280: "wide"}
    seen = look_at_all(tmp_path, [("page.html", width) for width in shown], script)
    for width, found in zip(shown, (each["found"] for each in seen), strict=True):
        assert found["shown"] == [f"chart {shown[width]}"]
        assert found["high"] > 9.0, "pixels"
        assert found["right"] <= width


def test_another_view_needs_no_script_and_shows_the_groups(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(incident_html(incident_page()))
    script = """
        const shown = () => Array.from(d.querySelectorAll('.view')).map(v => w.getComputedStyle(v).display !== 'none');
        const before = shown(); d.getElementById('pick1').click();
        return {before, after: shown(), rows: d.querySelectorAll('.view.v1 .row').length};
    """
    found = look_at(tmp_path, "page.html", script)["found"]
    assert found["before"] == [True, False, False]
    assert found["after"] == [False, True, False]
    assert found["rows"] == 4, "tp_0 to tp_3, since the verdict is about one of them"


def test_ten_thousand_ranks_are_looked_at_one_by_one(tmp_path: Path) -> None:
    page = incident_page(
        nodes=1250, nproc=8, scene=scene(10_000, 8), incident=incident(verdict={"nodes": ("gpu-0000",)})
    )
    (tmp_path / "page.html").write_text(incident_html(page))
    script = """
        const panel = d.getElementById('rank-panel');
        const bad = d.querySelectorAll('.view.v0 .cell.s-culprit');
        bad[0].click();
        const inside = panel.querySelector('.cell.s-culprit'); inside.click();
        return {count: bad.length, said: panel.querySelector('.said').textContent, cells: panel.querySelectorAll('.cell').length};
    """
    seen = look_at(tmp_path, "page.html", script)
    assert not seen["bad"]
    assert seen["width"] <= 390, seen["wide"]
    assert seen["found"]["count"] == 1
    assert seen["found"]["said"].startswith("rank 5 on gpu-0000, local rank 5")
    assert seen["found"]["cells"] >= 8
