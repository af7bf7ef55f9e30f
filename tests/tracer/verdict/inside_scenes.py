"""Scenes of ranks whose NCCL is traced: stalls of the model as the controller gets them, cut and over the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from tracer.nccl.simulate import Model, sights_of
from tracer.nccl.stalls import Stall, run

from robust_run.launcher.control import frames
from robust_run.launcher.model.job import Sights
from robust_run.tracer.nccl.cut import counterparts, cut
from robust_run.tracer.nccl.types import NcclSight
from robust_run.tracer.types import Frame, Group, ProcessSight, RankSight, RankTrace, Scene, ThreadStack

#: When the model's traces end, and how long after that a scene is.
EVENT_S, WAITED_S = 1000.0, 6.0
#: As little as ranks of the largest jobs tell of themselves.
FEWEST = (48, 52)


def wired(sights: Sequence[RankSight]) -> tuple[RankSight, ...]:
    """What arrives of what one agent sends."""
    frame = frames.encode(Sights(attempt=0, number=1, sights=tuple(sights)))
    reader = frames.FrameReader(frames.LARGEST_FRAME_BYTES)
    reader.feed(frame)
    payload = reader.next()
    assert payload is not None
    message = frames.decode_from_agent(payload)
    assert isinstance(message, Sights)
    return message.sights


def asleep(pid: int, line: str = "data.py:88 get", **changes: object) -> ProcessSight:
    """A process that sits still where nothing is known to take long."""
    file, _, rest = line.partition(":")
    number, _, function = rest.partition(" ")
    stack = ThreadStack(is_main=True, frames=(Frame(function, f"/home/me/{file}", int(number)),))
    sight = ProcessSight(
        pid=pid, parent=1, is_rank=True, command="python", state="S", stacks=((stack,), (stack,), (stack,))
    )
    return msgspec.structs.replace(sight, **changes)


def on_the_way(sights: Sequence[NcclSight], flows: int, ops: int) -> tuple[RankSight, ...]:
    """What agents of all nodes tell of their ranks, a frame each."""
    nodes: dict[str, list[NcclSight]] = {}
    for sight in sights:
        nodes.setdefault(sight.node, []).append(sight)
    found: list[RankSight] = []
    for node, local in nodes.items():
        wanted = counterparts(sight.trace for sight in local)
        told = []
        for sight in local:
            assert sight.trace is not None
            now, before = cut(sight.trace, sight.before, flows=flows, ops=ops, wanted=wanted)
            told.append(
                RankSight(
                    rank=sight.rank,
                    node=node,
                    exit_code=None if sight.alive else 0,
                    ended_at_s=None if sight.alive else EVENT_S + 1.0,
                    processes=(asleep(100 + sight.rank),) if sight.alive else (),
                    nccl=now,
                    nccl_before=before,
                )
            )
        found += wired(told)
    return tuple(sorted(found, key=lambda sight: sight.rank))


def with_rings(sights: Sequence[RankSight], groups: Mapping[str, tuple[int, ...]]) -> tuple[RankSight, ...]:
    """The same ranks with rings in which nobody waits: on NCCL the CPU goes on at once."""
    made = [
        Group(name=str(number), desc=desc, ranks=ranks) for number, (desc, ranks) in enumerate(groups.items(), start=1)
    ]
    return tuple(
        msgspec.structs.replace(
            sight,
            trace=RankTrace(
                rank=sight.rank,
                world_size=len(sights),
                pid=100 + sight.rank,
                steps=7,
                last_at_s=EVENT_S,
                blocked_s=0.0,
                ops=(),
                groups=tuple(group for group in made if sight.rank in group.ranks),
            ),
        )
        for sight in sights
    )


def scene_of(
    model: Model, before: Model | None, *, flows: int = 1024, ops: int = 256, api: int = 6, waited_s: float = WAITED_S
) -> Scene:
    """All ranks as the controller sees them, so long after the last event."""
    return Scene(
        at_s=EVENT_S + waited_s,
        attempt=0,
        world_size=model.world.ranks,
        ranks=on_the_way(sights_of(model, api, before=before), flows, ops),
    )


def scene_of_stall(stall: Stall, **more: float) -> Scene:
    """A stall, seen twice."""
    return scene_of(run(stall), run(stall), **more)  # type: ignore[arg-type]


def changed(scene: Scene, rank: int, **changes: object) -> Scene:
    """The same scene with something else about one rank."""
    ranks = list(scene.ranks)
    ranks[rank] = msgspec.structs.replace(ranks[rank], **changes)
    return msgspec.structs.replace(scene, ranks=tuple(ranks))
