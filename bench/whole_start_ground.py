"""What `whole_start` starts from: an image, packages and a checkpoint on an origin, and nodes that have nothing of them.

All of it is made once in a folder, and used again if that is given again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from env_ways import say, sources
from image_start import pad

from robust_run.prefetch import blockmap
from robust_run.prefetch.image.build import BuildOptions, build

TESTS = Path(__file__).resolve().parents[1] / "tests"
REPOSITORY = TESTS.parent
PACKAGES = ("pandas", "scikit-learn", "pyarrow", "transformers", "polars")
MODULES = ("pandas", "sklearn.linear_model", "pyarrow", "transformers", "polars")
PYTHON = "/opt/python/bin/python3"
TENSORS = 25
"""Of each rank, in the checkpoint."""
_LEFT_OUT = shutil.ignore_patterns(
    "site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "config-*", "*.a"
)
_PROGRAMS = ("sh", "cat", "id", "env", "mkdir", "rm", "ls")


@dataclass(frozen=True)
class Material:
    """Where everything is that an origin serves."""

    folder: Path
    nodes: int
    checkpoint_bytes: int

    @property
    def origin(self) -> Path:
        """The folder that the origin serves."""
        return self.folder / "origin"

    @property
    def image(self) -> Path:
        """The image that is not padded."""
        return self.origin / "small.sqsh"

    def make(self, padded_gb: list[float]) -> None:
        """Make what is not there yet."""
        self.origin.mkdir(parents=True, exist_ok=True)
        if not self.image.exists():
            self._image()
        small = blockmap.decode(Path(blockmap.sidecar(str(self.image))).read_bytes())
        for size_gb in padded_gb:
            padded = self.origin / f"{size_gb:g}.sqsh"
            if not padded.exists():
                pad(str(self.image), small, str(padded), int(size_gb * 1e9) >> 20 << 20)
        if not (self.origin / "wheels.html").exists():
            self._wheels()
        for kind in ("dcp", "ours"):
            folder = self.checkpoint(kind)
            if not folder.exists():
                _run([sys.executable, __file__, kind, str(folder), str(self.nodes), str(self.checkpoint_bytes)])

    def checkpoint(self, kind: str) -> Path:
        """Return the folder of the checkpoint of one kind, "dcp" or "ours", that these nodes read."""
        return self.origin / f"{kind}-{self.nodes}-{self.checkpoint_bytes}"

    def _image(self) -> None:
        root = self.folder / "rootfs"
        shutil.rmtree(root, ignore_errors=True)
        begin_root(root)
        tools = self.folder / "tools"
        _run([sys.executable, "-m", "pip", "install", "-q", "--target", str(tools), "uv"])
        torch = f"torch=={metadata.version('torch').partition('+')[0]}"
        into = [
            "--python",
            str(root / PYTHON[1:]),
            "--break-system-packages",
            "--compile-bytecode",
            "--link-mode",
            "copy",
        ]
        constraints = self.folder / "constraints.txt"
        constraints.write_text(f"{torch}\n")
        packages = [torch, "uv", "aiohttp", f"{REPOSITORY}"]
        _run(
            [
                str(tools / "bin/uv"),
                "pip",
                "install",
                "-q",
                *into,
                *sources(),
                "--constraint",
                str(constraints),
                *packages,
            ]
        )
        finish_root(root)
        made = build(str(root), str(self.image), BuildOptions(compression="zstd"))
        say(f"image: {made.size_bytes >> 20} MiB")
        shutil.rmtree(root)

    def _wheels(self) -> None:
        folder = self.origin / "wheels"
        folder.mkdir(exist_ok=True)
        constraints = str(self.folder / "constraints.txt")
        _run([sys.executable, "-m", "pip", "download", "-q", "-d", str(folder), "-c", constraints, *PACKAGES])
        links = "".join(f'<a href="wheels/{path.name}">{path.name}</a><br>\n' for path in sorted(folder.iterdir()))
        (self.origin / "wheels.html").write_text(f"<!DOCTYPE html><html><body>\n{links}</body></html>\n")
        say(f"wheels: {sum(path.stat().st_size for path in folder.iterdir()) >> 20} MiB")


def begin_root(root: Path) -> None:
    """Make a root file system that has this interpreter at `PYTHON`, with its library, and nothing else."""
    for part in ("bin", "etc", "proc", "sys", "dev", "tmp", "run", "root", "opt"):
        (root / part).mkdir(parents=True)
    _python(root / "opt/python")


def finish_root(root: Path) -> None:
    """Add a shell and some programs, and the libraries that all that is there needs."""
    wanted = [os.path.realpath(sys.executable)]
    for program in _PROGRAMS:
        found = shutil.which(program)
        assert found, program
        shutil.copy(found, root / "bin" / program)
        wanted.append(found)
    wanted += [str(path) for path in (root / "opt/python/lib").rglob("*.so*")]
    for library in {each for program in wanted for each in _libraries(program)}:
        if not (root / library[1:]).exists() and "/opt/" not in library and "libpython" not in library:
            (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, root / library[1:])
    (root / "etc/environment").write_text("PATH=/opt/python/bin:/bin\nLD_LIBRARY_PATH=/opt/python/lib\n")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")


def save(kind: str, folder: str, nodes: int, checkpoint_bytes: int) -> None:
    """Write the checkpoint, as DCP or as robust-run does: of tensors that are cut over so many ranks, as under FSDP."""
    import torch.multiprocessing as processes

    meeting = f"{folder}.meeting"
    processes.spawn(_save, (kind, folder, nodes, checkpoint_bytes, meeting), nprocs=nodes)
    Path(meeting).unlink(missing_ok=True)


def _save(rank: int, kind: str, folder: str, nodes: int, checkpoint_bytes: int, meeting: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed import checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=nodes)
    mesh, numbers = init_device_mesh("cpu", (nodes,)), checkpoint_bytes // nodes // TENSORS // 4
    state = {
        f"w{number}": DTensor.from_local(torch.full((numbers,), float(rank * 100 + number)), mesh, [Shard(0)])
        for number in range(TENSORS)
    }
    if kind == "dcp":
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder))
    else:
        from robust_run.ckpt_io import dcp as ours

        ours.save(state, os.path.join(folder, "step-100"), step=100)
    dist.destroy_process_group()


def _python(folder: Path) -> None:
    """Put this interpreter with its library, but without packages, into a folder."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    interpreter = os.path.realpath(sys.executable)
    shutil.copy(interpreter, folder / "bin" / name)
    for link in ("python3", "python"):
        (folder / "bin" / link).symlink_to(name)
    shutil.copytree(sysconfig.get_path("stdlib"), folder / "lib" / name, ignore=_LEFT_OUT, symlinks=True)
    for path in _libraries(interpreter):
        if "libpython" in path:
            shutil.copy(path, folder / "lib")


def _libraries(program: str) -> list[str]:
    words = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout.split()
    return [word for word in words if word.startswith("/") and not word.endswith(":")]


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)[:300]} ended with {done.returncode}:\n{done.stderr[-3000:]}")


def put(folder: str, url: str) -> None:
    """Copy a folder to an HDFS."""
    from robust_run.store.opening import open_store

    store = open_store(url)
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            size_bytes = path.stat().st_size
            writer = store.create(str(path.relative_to(folder)), size_bytes)
            with path.open("rb", buffering=0) as file:
                for at in range(0, size_bytes, 8 << 20):
                    writer.write_at(at, [memoryview(file.read(8 << 20))])
            writer.finish()


if __name__ == "__main__" and sys.argv[1] == "put":
    put(sys.argv[2], sys.argv[3])
elif __name__ == "__main__":
    save(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
