"""`robust ckpt`, as it is typed."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from counting_server import counting_server
from made_checkpoints import UNIT_BYTES, make_checkpoint
from safetensors.torch import load_file, save_file

from robust_run.ckpt_io.dcp import load_whole
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.errors import RobustRunError
from robust_run.robust_cli import robust

Run = Callable[..., tuple[int, str]]
MIB = 1 << 20


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command; returns its exit code and what it said on standard output, or its error."""

    def typed(*arguments: object) -> tuple[int, str]:
        capfd.readouterr()
        try:
            code = robust(["ckpt", *map(str, arguments)], standalone_mode=False)
        except RobustRunError as error:
            return error.exit_code, str(error)
        return code or 0, capfd.readouterr().out

    return typed


def dcp_folder(folder: Path) -> dict:
    """Save a nested state dict as torch does."""
    state = {
        "model": {
            "weight": torch.randn(300, 70),
            "bias": torch.randn(5).to(torch.bfloat16),
            "scale": torch.tensor(3.5),
            "none": torch.zeros(0, 4),
        },
        "optimizer": {"state": [torch.arange(7), torch.arange(3, dtype=torch.int8)], "lr": 0.1},
        "step": 12,
    }
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    return state


def assert_alike(one: object, other: object) -> None:
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor)
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert isinstance(other, dict)
        assert one.keys() == other.keys()
        for key in one:
            assert_alike(one[key], other[key])
    elif isinstance(one, list):
        assert isinstance(other, list)
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_alike(a, b)
    else:
        assert one == other


def damage(folder: Path, at: int) -> None:
    part = max(folder.rglob("*.part"), key=lambda path: path.stat().st_size)
    with part.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 16]))


pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd_shuffle"])
def test_a_dcp_folder_becomes_ours_and_a_dcp_folder_again(run: Run, tmp_path: Path, codec: str) -> None:
    state = dcp_folder(tmp_path / "theirs")
    ours, again = tmp_path / "a" / "step-12", tmp_path / "again"
    code, said = run("convert", tmp_path / "theirs", ours, "--also", tmp_path / "b", "--codec", codec, "--step", 12)
    assert (code, "6 tensors, 2 objects" in said) == (0, True), said
    assert_alike(load_whole(str(ours)), state)
    assert run("convert", ours, again, "--to", "dcp")[0] == 0
    loaded = {
        "model": {key: torch.zeros_like(value) for key, value in state["model"].items()},
        "optimizer": {"state": [torch.zeros_like(each) for each in state["optimizer"]["state"]], "lr": None},
        "step": None,
    }
    dcp.load(loaded, storage_reader=dcp.FileSystemReader(again), no_dist=True)
    assert_alike(loaded, state)
    assert open_checkpoint(str(ours)).manifest.step == 12


def test_a_dcp_folder_becomes_a_safetensors_file(run: Run, tmp_path: Path) -> None:
    state = dcp_folder(tmp_path / "theirs")
    assert run("convert", tmp_path / "theirs", tmp_path / "ours")[0] == 0
    assert run("convert", tmp_path / "ours", tmp_path / "x.safetensors")[0] == 0
    loaded = load_file(tmp_path / "x.safetensors")
    assert torch.equal(loaded["model.weight"], state["model"]["weight"])
    assert torch.equal(loaded["optimizer.state.1"], state["optimizer"]["state"][1])
    code, said = run("convert", tmp_path / "theirs", tmp_path / "y.safetensors")
    assert (code, "convert SRC to rrck first" in said) == (2, True)


def test_files_are_taken_over_bit_by_bit_and_tensors_of_safetensors_load_singly(run: Run, tmp_path: Path) -> None:
    weight = torch.randn(900, 1000)
    save_file({"w": weight, "b": torch.zeros(3, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    torch.save({"w": weight}, tmp_path / "model.pt")
    for name in ("model.safetensors", "model.pt"):
        ours = tmp_path / "run" / name
        assert run("convert", tmp_path / name, ours, "--to", "rrck", "--unit", 1)[0] == 0
        assert run("convert", ours, tmp_path / "back", "--to", "files")[0] == 0
        assert (tmp_path / "back").read_bytes() == (tmp_path / name).read_bytes()
    assert run("convert", tmp_path / "model.pt", tmp_path / "run" / "step-1")[0] == 0
    assert open_checkpoint(str(tmp_path / "run" / "step-1")).manifest.files[0].name == "model.pt"
    loaded = load_whole(str(tmp_path / "run" / "model.safetensors"))
    assert torch.equal(loaded["w"], weight)


def test_list_latest_verify_repair_and_prune(run: Run, tmp_path: Path) -> None:
    root, copy = tmp_path / "run", tmp_path / "copy"
    torch.save(torch.arange(700_000), tmp_path / "x.pt")
    for step in (1, 2, 3):
        assert run("convert", tmp_path / "x.pt", root / f"step-{step}", "--step", step, "--unit", 1)[0] == 0
    assert run("restore", root / "step-3", copy / "step-3")[0] == 0
    assert run("latest", root) == (0, f"{root}/step-3\n")
    code, said = run("list", root)
    assert (code, [line.split()[0] for line in said.splitlines()]) == (0, ["step-1", "step-2", "step-3"])
    damage(root / "step-3", MIB + 5)
    code, said = run("verify", root / "step-3", "--json")
    assert code == 1
    assert [fault["unit"] for fault in json.loads(said)["damaged"]] == [1]
    code, said = run("repair", root / "step-3", "--from", copy / "step-3")
    assert (code, "1 units" in said) == (0, True)
    assert run("verify", root / "step-3")[0] == 0
    code, said = run("prune", root, "--keep", 1, "--keep-every", 2, "--dry-run", "--json")
    assert [removal["name"] for removal in json.loads(said)["removed"]] == ["step-1"]
    assert run("prune", root, "--keep", 1, "--keep-every", 2)[0] == 0
    assert sorted(os.listdir(root)) == ["step-2", "step-3"]


def test_what_is_not_there_is_1_and_what_is_mistyped_is_2(run: Run, tmp_path: Path) -> None:
    assert run("latest", tmp_path)[0] == 1
    assert run("list", tmp_path)[0] == 1
    code, said = run("verify", tmp_path / "none")
    assert (code, "no checkpoint" in said) == (1, True)
    code, said = run("restore", tmp_path / "none", tmp_path / "x")
    assert (code, "no file" in said) == (1, True)
    make_checkpoint([tmp_path / "a"], {"x": b"1"})
    assert run("restore", tmp_path / "a", "hdfs://host/x")[0] == 2
    assert run("unmount", tmp_path)[0] == 2


def test_inspect_tells_what_is_in_all_kinds(run: Run, tmp_path: Path) -> None:
    dcp_folder(tmp_path / "theirs")
    run("convert", tmp_path / "theirs", tmp_path / "ours", "--step", 5)
    torch.save({"a": {"b": torch.zeros(2, 3)}}, tmp_path / "x.pt")
    save_file({"w": torch.zeros(4, dtype=torch.float16)}, tmp_path / "x.safetensors")
    for name in ("theirs", "ours"):
        found = json.loads(run("inspect", tmp_path / name, "--json")[1])
        tensors = {tensor["name"]: (tensor["dtype"], tensor["sizes"]) for tensor in found["tensors"]}
        assert tensors["model.weight"] == ("float32", [300, 70])
        assert tensors["model.bias"] == ("bfloat16", [5])
        assert sorted(found["objects"]) == ["optimizer.lr", "step"]
    assert "step 5" in run("inspect", tmp_path / "ours")[1]
    assert "tensor a.b: float32 [2, 3]" in run("inspect", tmp_path / "x.pt")[1]
    assert "tensor w: float16 [4]" in run("inspect", tmp_path / "x.safetensors")[1]


def test_restore_of_ours_over_http_is_striped_anew_and_the_same(run: Run, tmp_path: Path) -> None:
    data = os.urandom(7 * UNIT_BYTES + 99)
    made = make_checkpoint([tmp_path / "src" / "one"], {"x": data, "y": b"", "z": b"12"}, step=3)
    with counting_server(tmp_path / "src") as server:
        code, said = run("restore", f"{server.url}/one", tmp_path / "a" / "one", "--also", tmp_path / "b")
        assert code == 0, said
        code, said = run(
            "restore", f"{server.url}/one", tmp_path / "a" / "one", "--also", tmp_path / "b", "--verify-only"
        )
        assert code == 0, said
    with open_checkpoint(str(tmp_path / "a" / "one")) as opened:
        assert (opened.manifest.uuid, opened.manifest.step) == (made.uuid, 3)
        assert opened.read_bytes(0, 0, len(data)) == data
        assert opened.check() == []
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["one"]
    assert list((tmp_path / "b").rglob("*.part"))


def test_a_damaged_source_is_not_restored(run: Run, tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "one"], {"x": os.urandom(3 * UNIT_BYTES)})
    damage(tmp_path / "one", UNIT_BYTES + 1)
    code, said = run("restore", tmp_path / "one", tmp_path / "two")
    assert (code, "unit 1" in said) == (1, True)
    assert not (tmp_path / "two" / "MANIFEST").exists()


def test_verify_only_finds_what_differs(run: Run, tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "one"], {"x": os.urandom(3 * UNIT_BYTES)})
    assert run("restore", tmp_path / "one", tmp_path / "two")[0] == 0
    damage(tmp_path / "two", 2 * UNIT_BYTES)
    code, said = run("restore", tmp_path / "one", tmp_path / "two", "--verify-only")
    assert (code, "unit 2" in said) == (1, True)


RESTORE = "import sys; from robust_run.robust_cli import main; sys.argv = ['robust', *sys.argv[1:]]; main()"


@pytest.mark.parametrize("kind", ["ours", "file"])
def test_a_restore_that_was_killed_goes_on_and_fetches_nothing_twice(run: Run, tmp_path: Path, kind: str) -> None:
    units, unit_bytes = 12, UNIT_BYTES if kind == "ours" else 8 * MIB
    data = os.urandom(units * unit_bytes)
    source = tmp_path / "src"
    if kind == "ours":
        make_checkpoint([source / "one"], {"x": data})
        name, destination = "one", tmp_path / "dst"
    else:
        source.mkdir()
        (source / "one.bin").write_bytes(data)
        name, destination = "one.bin", tmp_path / "dst.bin"
    with counting_server(source) as server:
        server.allowed_bytes = 5.5 * unit_bytes
        command = [sys.executable, "-c", RESTORE, "ckpt", "restore", f"{server.url}/{name}", str(destination)]
        process = subprocess.Popen(command)
        assert server.is_waiting.wait(120)
        journal = next(iter(tmp_path.glob(".dst*.restore-journal")))
        until_s = time.monotonic() + 60
        while journal.stat().st_size < 5 * 32:  # records of what was sent, if not all of them then some
            if time.monotonic() > until_s:
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        assert not (destination / "MANIFEST").exists()
        assert kind == "ours" or not destination.exists()
        server.forget_the_dead()
        before = server.sent_bytes
        server.allowed_bytes = float("inf")
        code, said = run("restore", f"{server.url}/{name}", destination, "--json")
        assert code == 0, said
        done = json.loads(said)
        assert done["kept_bytes"] >= unit_bytes
        assert done["kept_bytes"] + done["fetched_bytes"] == len(data)
        assert server.sent_bytes - before <= len(data) - done["kept_bytes"] + MIB  # and a manifest or a sample
    assert not list(tmp_path.glob(".dst*"))
    if kind == "ours":
        with open_checkpoint(str(destination)) as opened:
            assert opened.read_bytes(0, 0, len(data)) == data
    else:
        assert destination.read_bytes() == data


def test_a_journal_of_another_file_is_not_believed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1" * 9 * MIB)
    (tmp_path / ".two.restoring").write_bytes(b"2" * 9 * MIB)
    (tmp_path / ".two.restore-journal").write_bytes(b"plain elsewhere\n" + os.urandom(100))
    assert run("restore", tmp_path / "one", tmp_path / "two")[0] == 0
    assert (tmp_path / "two").read_bytes() == b"1" * 9 * MIB


def test_restore_of_a_dcp_folder_over_http(run: Run, tmp_path: Path) -> None:
    state = dcp_folder(tmp_path / "src" / "theirs")
    with counting_server(tmp_path / "src") as server:
        assert run("restore", f"{server.url}/theirs", tmp_path / "dst")[0] == 0
    code, said = run("restore", tmp_path / "src" / "theirs", tmp_path / "dst")
    assert (code, "holds a checkpoint already" in said) == (2, True)
    assert run("restore", tmp_path / "src" / "theirs", tmp_path / "dst", "--verify-only")[0] == 0
    loaded = {"model": {"weight": torch.zeros(300, 70)}}
    dcp.load(loaded, storage_reader=dcp.FileSystemReader(tmp_path / "dst"), no_dist=True)
    assert torch.equal(loaded["model"]["weight"], state["model"]["weight"])


def test_a_pickle_that_would_run_something_is_refused_and_nothing_is_run(run: Run, tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / ".metadata").write_bytes(pickle.dumps({"x": Evil()}))
    for command in (("inspect",), ("restore", tmp_path / "x"), ("convert", tmp_path / "x")):
        code, said = run(command[0], tmp_path / "theirs", *command[1:])
        assert (code, "mkdir" in said) == (1, True)
    assert not (tmp_path / "ran").exists()
    buffer = io.BytesIO()
    torch.save({"x": Evil()}, buffer)
    (tmp_path / "evil.pt").write_bytes(buffer.getvalue())
    code, said = run("inspect", tmp_path / "evil.pt")
    assert "refuses" in said
    assert not (tmp_path / "ran").exists()


def test_robust_status_does_not_load_checkpoints() -> None:
    program = (
        "import sys; from robust_run.robust_cli import robust; robust(['status', '--help'], standalone_mode=False);"
    )
    program += "sys.exit(any(name.startswith('robust_run.ckpt_io') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_an_error_is_a_checkpoint_error(tmp_path: Path) -> None:
    from robust_run.ckpt_io.copying.sources import open_source

    with pytest.raises(CheckpointError):
        open_source(str(tmp_path / "nothing"))
