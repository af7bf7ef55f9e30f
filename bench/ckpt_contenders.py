"""The ways to save and load a checkpoint that `ckpt.py` measures: ours, torch's, other libraries', and the plain system calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from robust_run.ckpt_io import dcp as ours
from robust_run.store.digests import digest

RAW, HASHED, OURS, RUNAI = "raw", "raw_hash", "robust_run", "runai_model_streamer"
PIECE_BYTES = 8 << 20
State = dict[str, torch.Tensor]


@dataclass
class Bench:
    """What all contenders share."""

    folder: str
    state: State
    into: State
    """Tensors that exist, to be loaded into."""
    targets: int
    kept: list[Any] = field(default_factory=list)
    """What a contender loaded into memory of its own; let go of after its time is taken."""

    def path(self, *parts: str) -> str:
        """Where something of the bench lies."""
        return os.path.join(self.folder, *parts)


@dataclass(frozen=True)
class Contender:
    """One way to save and load. None: it has none, or none of its own."""

    name: str
    save: Callable[[Bench], None] | None
    load: Callable[[Bench], None] | None
    needs: str = "torch"
    saved_by: str = ""
    """Whose files it loads, if not its own."""

    @property
    def files(self) -> str:
        """Name of the folder that it loads from."""
        return self.saved_by or self.name


def touch(tensors: State) -> None:
    """Make every page of what is only mapped be read."""
    for tensor in tensors.values():
        tensor.view(-1).view(torch.uint8)[:: os.sysconf("SC_PAGE_SIZE")].sum()


def sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


# --- contenders -----------------------------------------------------------------------------------------------------


def save_ours(bench: Bench) -> None:
    also = [bench.path(OURS, str(target)) for target in range(1, bench.targets)]
    ours.save(bench.state, bench.path(OURS, "0", "step-1"), also=also)


def load_ours(bench: Bench) -> None:
    ours.load(bench.into, bench.path(OURS, "0", "step-1"))


def save_dcp(threads: int) -> Callable[[Bench], None]:
    def save(bench: Bench) -> None:
        writer = dcp.FileSystemWriter(bench.path(f"dcp_{threads}"), thread_count=threads)
        dcp.save(bench.state, storage_writer=writer, no_dist=True)

    return save


def load_dcp(threads: int) -> Callable[[Bench], None]:
    def load(bench: Bench) -> None:
        dcp.load(bench.into, storage_reader=dcp.FileSystemReader(bench.path(f"dcp_{threads}")), no_dist=True)

    return load


def save_torch(bench: Bench) -> None:
    os.makedirs(bench.path("torch_mmap"), exist_ok=True)
    path = bench.path("torch_mmap", "model.pt")
    torch.save(bench.state, path)
    sync(path)


def load_torch(bench: Bench) -> None:
    loaded = torch.load(bench.path("torch_mmap", "model.pt"), mmap=True, weights_only=True)
    touch(loaded)
    bench.kept.append(loaded)


def save_safetensors(bench: Bench) -> None:
    from safetensors.torch import save_file

    os.makedirs(bench.path("safetensors"), exist_ok=True)
    path = bench.path("safetensors", "model.safetensors")
    save_file(bench.state, path)
    sync(path)


def load_safetensors(bench: Bench) -> None:
    from safetensors.torch import load_file

    loaded = load_file(bench.path("safetensors", "model.safetensors"))
    touch(loaded)
    bench.kept.append(loaded)


def load_runai(bench: Bench) -> None:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(bench.path("safetensors", "model.safetensors"))
        loaded = dict(streamer.get_tensors())
    touch(loaded)
    bench.kept.append(loaded)


def load_fastsafetensors(bench: Bench) -> None:
    from fastsafetensors import SafeTensorsFileLoader

    loader = SafeTensorsFileLoader(None, device="cpu", nogds=True)
    loader.add_filenames({0: [bench.path("safetensors", "model.safetensors")]})
    buffers = loader.copy_files_to_device()
    loaded = {name: buffers.get_tensor(name) for name in loader.get_keys()}
    touch(loaded)
    bench.kept += [loaded, buffers, loader]


def save_raw(bench: Bench) -> None:
    os.makedirs(bench.path(RAW), exist_ok=True)
    path = bench.path(RAW, "bytes")
    views = [memory(tensor) for tensor in bench.state.values()]
    with open(path, "wb", buffering=0) as file:
        for view in views:
            for at in range(0, len(view), PIECE_BYTES):
                file.write(view[at : at + PIECE_BYTES])
        os.fsync(file.fileno())


def load_raw(bench: Bench) -> None:
    read_raw(bench, 2)


def load_raw_more(bench: Bench) -> None:
    read_raw(bench, 4)


def load_raw_hash(bench: Bench) -> None:
    read_raw(bench, 2, digest)


def read_raw(bench: Bench, threads: int, then: Callable[[memoryview], object] = len) -> None:
    """Fill the tensors with the same bytes, and do nothing else but `then` with each piece."""
    descriptor = os.open(bench.path(RAW, "bytes"), os.O_RDONLY)
    jobs, offset = [], 0
    for tensor in bench.into.values():
        view = memory(tensor)
        jobs += [(view[at : at + PIECE_BYTES], offset + at) for at in range(0, len(view), PIECE_BYTES)]
        offset += len(view)

    def read(job: tuple[memoryview, int]) -> int:
        count = os.preadv(descriptor, [job[0]], job[1])
        then(job[0])
        return count

    try:
        with ThreadPoolExecutor(threads) as pool:
            for (view, _), count in zip(jobs, pool.map(read, jobs), strict=True):
                assert count == len(view), "a short read"
    finally:
        os.close(descriptor)


def memory(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())


CONTENDERS = [
    Contender(RAW, save_raw, load_raw),
    Contender("raw_4", None, load_raw_more, saved_by=RAW),
    Contender(HASHED, None, load_raw_hash, saved_by=RAW),
    Contender(OURS, save_ours, load_ours),
    Contender("dcp_1", save_dcp(1), load_dcp(1)),
    Contender("dcp_8", save_dcp(8), load_dcp(8)),
    Contender("torch_mmap", save_torch, load_torch),
    Contender("safetensors", save_safetensors, load_safetensors, needs="safetensors"),
    Contender(RUNAI, None, load_runai, needs="runai_model_streamer", saved_by="safetensors"),
    Contender("fastsafetensors", None, load_fastsafetensors, needs="fastsafetensors", saved_by="safetensors"),
]
