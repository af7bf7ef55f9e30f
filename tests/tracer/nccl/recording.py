"""Stalls of each kind as the plugin recorded them, kept as small files and replayed into the rules.

`python tests/tracer/nccl/recording.py` (with tests/ and the repository on PYTHONPATH) makes them anew: it plays what the model
did to the plugin through the driver, a process for each rank.
"""

from __future__ import annotations

import lzma
import tempfile
from pathlib import Path

from tracer.nccl.playing import Rank, compile_driver
from tracer.nccl.simulate import Broken, Model, commands_of
from tracer.nccl.stalls import Stall, grid, one_group, pipeline, run

from robust_run.tracer.nccl.types import NcclSight
from robust_run.tracer.plugin import build, layout, reader

FOLDER = Path(__file__).with_name("recorded")
_RING, _PIPE, _GRID = one_group(3, "ring", 12, 2, "AllGather"), pipeline(3, 12, 1), grid(3, 2, "ring", 8, 1)
RECORDED = (
    Stall("gpu", _RING, Broken("gpu", 1, 2, 4), 1),
    Stall("receiver_gpu", _PIPE, Broken("receiver_gpu", 2, 3, 2), 2),
    Stall("proxy", _RING, Broken("proxy", 2, 1, 5), 3),
    Stall("network", _RING, Broken("network", 0, 3, 6, peer=1), 4),
    Stall("refused", _RING, Broken("refused", 1, 1, 3, peer=2), 5),
    Stall("late", _RING, Broken("late", 0, 2), 6),
    Stall("dead", one_group(3, "tree", 12, 2), Broken("dead", 2, 2, 5), 7),
    Stall("node", _GRID, Broken("node", 2, 3), 8),
    Stall("stopped", _PIPE, Broken("stopped", 1, 2, 3), 9),
)


def sight(stall: Stall, rank: int, path: str) -> NcclSight:
    """A rank as its file shows it."""
    dead = stall.broken.kind == "dead" and stall.broken.rank == rank
    return NcclSight(rank=rank, node=stall.world.node(rank), trace=reader.read(path), alive=not dead)


def packed(stall: Stall, rank: int) -> Path:
    """Where the recorded file of a rank is."""
    return FOLDER / f"{stall.name}.rank{rank}.xz"


def play(model: Model, rank: int, process: Rank, version: int) -> None:
    """Play what a rank did."""
    process.play(commands_of(model, rank, version))


def record(stall: Stall, driver: str, plugin: str, folder: str, version: int = 6) -> None:
    """Record one stall."""
    for rank in range(stall.world.ranks):
        path = f"{folder}/rank"
        layout.create(path)
        process = Rank(driver, plugin, version, path)
        try:
            play(run(stall), rank, process, version)
        finally:
            process.close()
        packed(stall, rank).write_bytes(lzma.compress(Path(path).read_bytes(), preset=9))


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        plugin = build.ensure(f"{folder}/cache")
        assert plugin.path, plugin.reason
        driver = f"{folder}/driver"
        assert compile_driver("cc", driver) == ""
        for stall in RECORDED:
            record(stall, driver, plugin.path, folder)


if __name__ == "__main__":
    main()
