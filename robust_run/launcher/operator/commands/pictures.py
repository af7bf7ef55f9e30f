"""Draws what rings hold: a timeline and a heat-map, from their copies in the run directory."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from robust_run.atomic_file import write_file
from robust_run.errors import PlatformError, RobustRunError, UserError
from robust_run.tracer.types import RankTrace

if TYPE_CHECKING:
    from robust_run.launcher.operator.reading.which import Subject
    from robust_run.report.nccl_tracks import NcclTracks

#: How long agents may take to copy their rings.
COPY_S = 3.0
#: Calls of each rank in a timeline.
MOST_OPS = 4096


class PicturesDrawn(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    attempt: int
    ranks: int
    calls: int
    timeline: str
    heatmap: str = ""


def draw(about: Subject, attempt: int | None, output: str, heatmap: str) -> PicturesDrawn:
    """Write the pictures. Raises UserError for a file that cannot be, PlatformError where there is nothing to draw."""
    from robust_run.report.timeline import chrome_trace

    if heatmap and not heatmap.endswith((".svg", ".png")):
        raise UserError(f"--heatmap {heatmap!r}: the name must end with .svg or .png")
    if not about.folder:
        raise UserError("a timeline is drawn from the run directory: name the run, not --url")
    if about.is_alive and attempt is None:
        have_copied(about)
    attempt = newest_with_rings(about.folder) if attempt is None else attempt
    traces = read_rings(about.folder, attempt)
    inside = _inside(about, attempt)
    if not traces and not inside:
        raise PlatformError(
            f"no rank of attempt {attempt} left a trace here: it ran with ROBUST_TRACE=0, or elsewhere, or its launcher was "
            "killed, and the traces went with it"
        )
    path = output or os.path.join(about.folder, "timeline.json")
    nodes = _nodes(about)
    _write(path, chrome_trace(traces, nodes, inside=inside), is_ours=not output)
    if heatmap and traces:
        _draw_heatmap(heatmap, traces, nodes)
    calls = sum(len(trace.ops) for trace in traces) + sum(len(of.trace.ops) for of in inside)
    ranks = {trace.rank for trace in traces} | {of.rank for of in inside}
    return PicturesDrawn(
        attempt=attempt, ranks=len(ranks), calls=calls, timeline=path, heatmap=heatmap if traces else ""
    )


def _inside(about: Subject, attempt: int) -> list[NcclTracks]:
    """Return what NCCL did, as the newest incident of the attempt has it; of a job that runs, as it is now.

    Times are of the ranks' own clocks, as those in the copies of the rings.
    """
    from robust_run.report.nccl_tracks import NcclTracks
    from robust_run.tracer.verdict import communicator_names

    scene = None
    if about.is_alive and about.job()[0].attempt == attempt:
        with suppress(RobustRunError):
            scene = about.scene()
    else:
        newest = next((one for one in reversed(about.incidents()) if one.attempt == attempt), None)
        scene = about.scene_of(newest.id) if newest is not None else None
    if scene is None or scene.attempt != attempt or all(sight.nccl is None for sight in scene.ranks):
        return []
    names = communicator_names(scene)
    return [
        NcclTracks(rank=sight.rank, trace=sight.nccl, names=names) for sight in scene.ranks if sight.nccl is not None
    ]


def _draw_heatmap(path: str, traces: list[RankTrace], nodes: Mapping[int, str]) -> None:
    from robust_run.report.heatmap import step_heatmap_png, step_heatmap_svg

    _write(path, step_heatmap_png(traces) if path.endswith(".png") else step_heatmap_svg(traces, nodes).encode())


def have_copied(about: Subject) -> None:
    """Have a live job copy its rings, and wait until no more appear."""
    begun_s = time.time()
    about.keep_traces()
    give_up_at_s = time.monotonic() + COPY_S
    fresh = -1
    while time.monotonic() < give_up_at_s:
        time.sleep(0.2)
        paths = ring_paths(about.folder, newest_with_rings(about.folder))
        now_fresh = sum(os.path.getmtime(path) >= begun_s - 1.0 for path in paths.values())
        if now_fresh == fresh > 0:
            return
        fresh = now_fresh


def newest_with_rings(folder: str) -> int:
    """Return the newest attempt of which a ring was copied; the newest attempt at all if none was; 0 if there is none."""
    attempts = sorted(
        (int(name[8:]) for name in os.listdir(folder) if name.startswith("attempt_") and name[8:].isdecimal()),
        reverse=True,
    )
    return next((attempt for attempt in attempts if ring_paths(folder, attempt)), attempts[0] if attempts else 0)


def ring_paths(folder: str, attempt: int) -> Mapping[int, str]:
    """Return the copies of rings by rank."""
    base = os.path.join(folder, f"attempt_{attempt}")
    try:
        ranks = sorted(int(name) for name in os.listdir(base) if name.isdecimal())
    except OSError:
        return {}
    paths = {rank: os.path.join(base, str(rank), "ring") for rank in ranks}
    return {rank: path for rank, path in paths.items() if os.path.isfile(path)}


def read_rings(folder: str, attempt: int) -> list[RankTrace]:
    """Return what the copies hold, by rank; damaged ones are left out."""
    from robust_run.tracer.files import ring

    traces = (ring.read(path, MOST_OPS, with_phases=True) for path in ring_paths(folder, attempt).values())
    return [trace for trace in traces if trace is not None and trace.pid]


def _nodes(about: Subject) -> dict[int, str]:
    names: dict[int, str] = {}
    for node in about.nodes()[0].nodes:
        first, _, last = node.ranks.partition("-")
        if first.isdecimal():
            names.update(dict.fromkeys(range(int(first), int(last or first) + 1), node.name))
    return names


def _write(path: str, content: bytes, *, is_ours: bool = False) -> None:
    """`is_ours`: nobody named it. A link there, which the run's owner may have put, is replaced and not followed."""
    try:
        if is_ours:
            write_file(path, content)
            return
        with open(path, "wb") as file:
            file.write(content)
    except OSError as error:
        raise UserError(f"cannot write {path!r}: {error.strerror}") from error
