"""Reads each byte once in a group of ranks that want much the same, and gives it to those who want it too.

All ranks of the group go through the same rounds: in each, every rank reads its share (`shares`) into a stage, verified, and
broadcasts it; the others take out of it what they want. The share of the next round is read meanwhile. Memory: two stages
and one buffer for what comes in, each of `ROUND_BYTES`, for a checkpoint of any size.

An owner that cannot read says so in the last byte of its broadcast. All ranks see that at the same place and stop there; a rank
that is in trouble of its own goes on to take part, and raises at the end. So no rank waits for one that has left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
import torch.distributed as dist

from robust_run.ckpt_io.dcp.landing import Landing
from robust_run.ckpt_io.dcp.tensors import byte_view, device_of
from robust_run.ckpt_io.errors import CheckpointError, PeerFailed
from robust_run.ckpt_io.reading import Wanted
from robust_run.ckpt_io.rules.layout import unit_size
from robust_run.ckpt_io.rules.shares import ReadRound, Shares, UnitId, UnitInterval, intervals, share_out
from robust_run.ckpt_io.rules.types import Manifest

#: Of what one rank reads in a round. Large enough that a broadcast is not all latency.
ROUND_BYTES = 64 << 20

Progress = Callable[[int], None]


class BroadcastSource(Protocol):
    """What is read from: an open checkpoint."""

    @property
    def manifest(self) -> Manifest:
        """What it says of its files."""

    def read(self, wanted: Sequence[Wanted]) -> None:
        """Fill all buffers, verified."""


class _Arrival:
    """A landing of which bytes come in, in any order."""

    def __init__(self, landing: Landing) -> None:
        self.landing = landing
        self._left_bytes = landing.size_bytes
        self._memory: torch.Tensor | None = None

    def take(self, at_bytes: int, data: torch.Tensor) -> None:
        """Put bytes where they belong; the last ones settle it."""
        if self._memory is None:
            direct = self.landing.direct
            self._memory = (
                self.landing.own_memory() if direct else torch.empty(self.landing.size_bytes, dtype=torch.uint8)
            )
        self._memory[at_bytes : at_bytes + data.numel()].copy_(data)
        self._left_bytes -= data.numel()
        if self._left_bytes == 0:
            if not self.landing.direct:
                self.landing.settle(self._memory)
            self._memory = None


class _Part:
    """Some bytes of a unit, and where they go."""

    __slots__ = ("arrival", "at_bytes", "begin_bytes", "size_bytes")

    def __init__(self, arrival: _Arrival, at_bytes: int, begin_bytes: int, size_bytes: int) -> None:
        self.arrival = arrival
        self.at_bytes = at_bytes
        self.begin_bytes = begin_bytes
        self.size_bytes = size_bytes


class Exchange:
    """One load of one group; the device is where the group's backend moves data: cuda for nccl, cpu for gloo."""

    def __init__(
        self,
        source: BroadcastSource,
        landings: Sequence[Landing],
        group: dist.ProcessGroup,
        *,
        round_bytes: int = ROUND_BYTES,
        trouble: Exception | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`trouble`: what keeps this rank from taking anything; it is raised here, and the others learn of it."""
        self._source = source
        self._files = source.manifest.files
        self._group = group
        self._rank = dist.get_rank(group)
        self._device = device_of(group)
        self._round_bytes = round_bytes
        self._progress = progress
        self._parts: dict[UnitId, list[_Part]] = {}
        for landing in landings:
            self._expect(landing)
        self._trouble = trouble

    def run(self) -> None:
        """Fill all landings of all ranks of the group. A collective call.

        Raises:
            CheckpointError: Ours: the checkpoint cannot be read, or ranks read different ones. `PeerFailed`: another rank's.
        """
        shares = self._agree()
        most = max((self._bytes(units) for step in shares.rounds for units in step.reads), default=0)
        pinned = self._device.type == "cuda"
        stages = [torch.empty(most + 1, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        incoming = torch.empty(most + 1, dtype=torch.uint8, device=self._device)
        with ThreadPoolExecutor(1, thread_name_prefix="rrck-share") as reader:
            ahead: Future[None] | None = None
            for number, step in enumerate(shares.rounds):
                stage = stages[number % 2]
                reading = ahead or reader.submit(self._read, step.reads[self._rank], stage)
                failure = reading.exception()
                if number + 1 < len(shares.rounds):
                    following = shares.rounds[number + 1].reads[self._rank]
                    ahead = reader.submit(self._read, following, stages[(number + 1) % 2])
                self._pass_round(step, stage, incoming, failure)
        if self._trouble is not None:
            raise self._trouble
        self._take_alone(shares.alone[self._rank])

    def _expect(self, landing: Landing) -> None:
        arrival = _Arrival(landing)
        for run in landing.runs():
            unit_bytes = self._files[run.file].unit_bytes
            offset, end, at_bytes = run.offset_bytes, run.offset_bytes + run.size_bytes, run.at_bytes
            while offset < end:
                unit, begin = divmod(offset, unit_bytes)
                size = min(unit_bytes - begin, end - offset)
                self._parts.setdefault(UnitId(run.file, unit), []).append(_Part(arrival, at_bytes, begin, size))
                offset, at_bytes = offset + size, at_bytes + size

    def _agree(self) -> Shares:
        """Learn what each rank wants, and share it out."""
        mine = (self._source.manifest.uuid, intervals(set(self._parts)), self._trouble is None)
        everybody: list[tuple[str, list[UnitInterval], bool]] = [mine] * dist.get_world_size(self._group)
        dist.all_gather_object(everybody, mine, group=self._group)
        if self._trouble is not None:
            raise self._trouble
        for rank, (_, _, well) in enumerate(everybody):
            if not well:
                raise PeerFailed(f"rank {rank} of the group cannot load what it was asked to; its own error says why")
        uuids = sorted({uuid for uuid, _, _ in everybody})
        if len(uuids) > 1:
            raise CheckpointError(
                f"ranks of one group opened different checkpoints ({', '.join(uuids)}): save none while one is loaded"
            )
        return share_out([wants for _, wants, _ in everybody], self._unit_bytes, self._round_bytes)

    def _pass_round(
        self, step: ReadRound, stage: torch.Tensor, incoming: torch.Tensor, failure: BaseException | None
    ) -> None:
        for owner, units in enumerate(step.reads):
            if not units:
                continue
            size_bytes = self._bytes(units)
            buffer = incoming[: size_bytes + 1]
            if owner == self._rank:
                stage[size_bytes] = failure is not None
                buffer = (
                    stage[: size_bytes + 1] if self._device.type == "cpu" else buffer.copy_(stage[: size_bytes + 1])
                )
            dist.broadcast(buffer, src=dist.get_global_rank(self._group, owner), group=self._group)
            if int(buffer[size_bytes]):
                if failure is not None and owner == self._rank:
                    raise failure
                raise PeerFailed(
                    f"rank {owner} of the group could not read its {size_bytes} bytes; its own error says why"
                )
            self._deliver(units, buffer)

    def _take_alone(self, units: Sequence[UnitId]) -> None:
        """Read what no other rank wants; no rank waits for it."""
        begin = 0
        while begin < len(units):
            end = begin + 1
            while end < len(units) and self._bytes(units[begin : end + 1]) <= self._round_bytes:
                end += 1
            buffer = torch.empty(self._bytes(units[begin:end]), dtype=torch.uint8)
            self._read(units[begin:end], buffer)
            self._deliver(units[begin:end], buffer)
            begin = end
        if self._trouble is not None:
            raise self._trouble

    def _read(self, units: Sequence[UnitId], stage: torch.Tensor) -> None:
        view, at_bytes, wanted = byte_view(stage), 0, []
        for unit in units:
            size = self._unit_bytes(unit)
            start = unit.unit * self._files[unit.file].unit_bytes
            wanted.append(Wanted(file=unit.file, offset_bytes=start, buffer=view[at_bytes : at_bytes + size]))
            at_bytes += size
        self._source.read(wanted)

    def _deliver(self, units: Sequence[UnitId], buffer: torch.Tensor) -> None:
        at_bytes = 0
        for unit in units:
            for part in self._parts.pop(unit, ()):
                begin = at_bytes + part.begin_bytes
                try:
                    part.arrival.take(part.at_bytes, buffer[begin : begin + part.size_bytes])
                except Exception as error:
                    self._trouble = self._trouble or error
                if self._progress is not None:
                    self._progress(part.size_bytes)
            at_bytes += self._unit_bytes(unit)

    def _unit_bytes(self, unit: UnitId) -> int:
        file = self._files[unit.file]
        return unit_size(file.size_bytes, file.unit_bytes, unit.unit)

    def _bytes(self, units: Sequence[UnitId]) -> int:
        return sum(self._unit_bytes(unit) for unit in units)
