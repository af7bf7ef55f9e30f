"""Starts of jobs, made up: what agents would tell of them."""

from __future__ import annotations

from collections.abc import Mapping

from robust_run.report.startup.summarise import summarise
from robust_run.report.startup.types import AttemptStartup, NodeStart, RankMarks, Startup
from robust_run.tracer.files.marks import KINDS, StartMark

IMPORTS, INIT, TORCH_LOAD = KINDS.index("imports"), KINDS.index("init"), KINDS.index("torch.load")
UNIX_S = 1_000_000.0


def node_start(
    number: int,
    ranks: int = 2,
    *,
    launched_s: float = 100.0,
    imports_s: float = 1.0,
    load_s: float = 2.0,
    image_s: float = 0.0,
    loads_of: Mapping[int, float] | None = None,
    first_step_s: float | None = 110.0,
    began_s: float | None = None,
    attempt: int = 0,
    how: str = "spawn",
    many: bool = True,
    uses: tuple[str, ...] = (),
    read_bytes: int = -1,
) -> NodeStart:
    """A node whose ranks import, meet at 104 s (init), load, and make their first step together."""
    ready_s = launched_s + 0.2 + image_s
    begun_s = began_s if began_s is not None else ready_s + 0.1
    made = []
    for rank in range(number * ranks, (number + 1) * ranks):
        armed_s = begun_s + 0.05
        imported_s = armed_s + imports_s
        met_s = max(104.0, imported_s) + 0.01
        loaded_s = met_s + 0.1 + (loads_of or {}).get(rank, load_s)
        spans = (
            StartMark(IMPORTS, armed_s, imported_s),
            StartMark(INIT, imported_s, met_s),
            StartMark(TORCH_LOAD, met_s + 0.1, loaded_s),
        )
        made.append(RankMarks(rank, how, armed_s, spans, 0, 0.0, first_step_s, read_bytes))
    return NodeStart(
        attempt=attempt,
        node=f"node-{number}",
        seen_s=(first_step_s or 109.0) + 0.3,
        began_s=begun_s,
        launched_s=launched_s if attempt == 0 else None,
        place="image" if image_s else "",
        place_began_s=launched_s + 0.1 if image_s else 0.0,
        place_ended_s=launched_s + 0.1 + image_s if image_s else 0.0,
        ready_s=ready_s if many else None,
        uses=uses,
        ranks=tuple(made),
        is_last=first_step_s is not None,
    )


def attempt_of(*starts: NodeStart, is_first: bool = True, **more: object) -> AttemptStartup:
    """What is kept of them."""
    world = sum(len(start.ranks) for start in starts)
    found = summarise(
        starts,
        world_size=world,
        nodes=len(starts),
        unix_offset_s=UNIX_S,
        is_first=is_first,
        **more,  # type: ignore[arg-type]
    )
    assert found is not None
    return found


def startup_of(*attempts: AttemptStartup) -> Startup:
    """A job's starts."""
    return Startup(run_id="made", attempts=attempts)


def slow_node(nodes: int = 8, ranks: int = 2) -> AttemptStartup:
    """A job of which node 7 loads for 9.8 s, the others for 2 s."""
    return attempt_of(
        *(node_start(n, ranks, load_s=9.8 if n == 7 else 2.0, image_s=0.6, first_step_s=116.0) for n in range(nodes))
    )
