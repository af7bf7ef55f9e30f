"""`robust ckpt restore` and `convert` of folders: all below them is taken, wherever they lie, and compared as it is there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from counting_server import counting_server
from made_checkpoints import make_checkpoint
from object_store import Objects, object_store
from safetensors.torch import load_file, save_file
from servers.awkward import Request, awkward_server

from robust_run.ckpt_io.address import parse
from robust_run.ckpt_io.catalog import latest, list_checkpoints, prune
from robust_run.ckpt_io.commands.ckpt import ckpt
from robust_run.ckpt_io.copying.restore import restore
from robust_run.ckpt_io.copying.sources import open_source
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.errors import RobustRunError

Told = tuple[int, str, str]
Typed = Callable[..., Told]
MIB = 1 << 20
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def typed() -> Typed:
    """Type a command; returns exit code, standard output, and standard error or the error raised."""
    from click.testing import CliRunner

    def run(*arguments: object) -> Told:
        result = CliRunner().invoke(ckpt, list(map(str, arguments)), standalone_mode=False)
        if isinstance(result.exception, RobustRunError):
            return result.exception.exit_code, result.stdout, str(result.exception)
        if result.exception is not None:
            raise result.exception
        return result.return_value or 0, result.stdout, result.stderr

    return run


@pytest.fixture
def objects() -> Iterator[Objects]:
    with object_store() as held:
        yield held


def megatron(root: Path) -> Path:
    """A folder as Megatron-LM saves it."""
    for step in (100, 200):
        for rank in ("mp_rank_00", "mp_rank_01"):
            folder = root / f"iter_{step:07d}" / rank
            folder.mkdir(parents=True)
            torch.save({"model": torch.randn(200), "iteration": step}, folder / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text("200")
    return root


def repository(root: Path) -> Path:
    """A folder as the Hugging Face hub has it, of a model with parts."""
    for part in ("unet", "vae", "onnx/decoder"):
        (root / part).mkdir(parents=True)
        save_file({f"{part}.w": torch.randn(50, 3)}, root / part / "diffusion_pytorch_model.safetensors")
        (root / part / "config.json").write_text(json.dumps({"part": part}))
    save_file({"a": torch.randn(10)}, root / "model-00001-of-00002.safetensors")
    save_file({"b": torch.randn(10)}, root / "model-00002-of-00002.safetensors")
    index = {
        "metadata": {},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }
    (root / "model.safetensors.index.json").write_text(json.dumps(index))
    (root / "model_index.json").write_text("{}")
    (root / ".gitattributes").write_text("*.bin filter=lfs")
    (root / ".cache" / "huggingface").mkdir(parents=True)
    (root / ".cache" / "huggingface" / ".gitignore").write_text("*")
    return root


def everything(folder: Path) -> dict[str, object]:
    """Return what lies below a folder: bytes of files, words of links, None for folders."""
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else (path.read_bytes() if path.is_file() else None)
        for path in sorted(folder.rglob("*"))
    }


def uploaded(objects: Objects, folder: Path, prefix: str) -> str:
    for path, data in everything(folder).items():
        if isinstance(data, bytes):
            objects.put(f"{prefix}/{path}", data)
    return f"s3://{prefix}"


@pytest.mark.parametrize("make", [megatron, repository])
@pytest.mark.parametrize("where", ["folder", "object store"])
def test_everything_below_a_folder_is_restored(
    typed: Typed, tmp_path: Path, objects: Objects, make: Callable[[Path], Path], where: str
) -> None:
    made = make(tmp_path / "src")
    source = str(made) if where == "folder" else uploaded(objects, made, "bucket/run")
    code, out, _ = typed("restore", source, tmp_path / "dst")
    assert code == 0
    files = sum(path.is_file() for path in made.rglob("*"))
    assert f"{files} files, " in out
    assert everything(tmp_path / "dst") == everything(made)
    assert typed("restore", source, tmp_path / "dst", "--verify-only")[0] == 0
    assert not list(tmp_path.glob(".dst*"))


@pytest.mark.parametrize("make", [megatron, repository])
@pytest.mark.parametrize("where", ["folder", "object store"])
def test_everything_below_a_folder_is_converted_and_comes_out_again(
    typed: Typed, tmp_path: Path, objects: Objects, make: Callable[[Path], Path], where: str
) -> None:
    made = make(tmp_path / "src")
    source = str(made) if where == "folder" else uploaded(objects, made, "bucket/run")
    assert typed("convert", source, tmp_path / "ours", "--also", tmp_path / "b")[0] == 0
    with open_checkpoint(str(tmp_path / "ours")) as opened:
        assert opened.check() == []
    assert typed("convert", tmp_path / "ours", tmp_path / "back", "--to", "files")[0] == 0
    there = {path: data for path, data in everything(made).items() if data is not None}
    assert {path: data for path, data in everything(tmp_path / "back").items() if data is not None} == there


def test_a_folder_whose_only_file_lies_deeper_comes_out_as_a_folder(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "src" / "a" / "b").mkdir(parents=True)
    (tmp_path / "src" / "a" / "b" / "x.bin").write_bytes(b"data")
    assert typed("convert", tmp_path / "src", tmp_path / "ours")[0] == 0
    assert typed("convert", tmp_path / "ours", tmp_path / "back", "--to", "files")[0] == 0
    assert (tmp_path / "back" / "a" / "b" / "x.bin").read_bytes() == b"data"


def test_what_lies_beside_the_files_of_a_dcp_folder_is_taken_as_well(typed: Typed, tmp_path: Path) -> None:
    """As Megatron's distributed checkpoints have it: `common.pt` and `metadata.json` are in no `.metadata`."""
    state = {"w": torch.randn(20, 3)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "src"), no_dist=True)
    torch.save({"args": 1}, tmp_path / "src" / "common.pt")
    (tmp_path / "src" / "extra").mkdir()
    (tmp_path / "src" / "extra" / "metadata.json").write_text("{}")
    assert typed("restore", tmp_path / "src", tmp_path / "dst")[0] == 0
    assert everything(tmp_path / "dst") == everything(tmp_path / "src")
    assert typed("convert", tmp_path / "src", tmp_path / "ours")[0] == 0
    with open_checkpoint(str(tmp_path / "ours")) as opened:
        assert sorted(file.name for file in opened.manifest.files) == [
            "common.pt",
            "extra/metadata.json",
            "tensors.bin",
        ]
        index, file = opened.file("common.pt")
        assert opened.read_bytes(index, 0, file.size_bytes) == (tmp_path / "src" / "common.pt").read_bytes()
    assert typed("convert", tmp_path / "ours", tmp_path / "x.safetensors")[0] == 0
    assert torch.equal(load_file(tmp_path / "x.safetensors")["w"], state["w"])


# What --verify-only says


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda root: (root / "unet" / "config.json").unlink(), "unet/config.json: is missing"),
        (lambda root: shutil.rmtree(root / "vae"), "vae/config.json: is missing"),
        (lambda root: (root / "model_index.json").write_text("{} "), "model_index.json: has 3 bytes, 2 are expected"),
        (lambda root: (root / "model_index.json").write_text("[]"), "model_index.json: unit 0 differs"),
        (lambda root: (root / ".gitattributes").unlink(), ".gitattributes: is missing"),
        (lambda root: (root / "empty").rmdir(), "empty: is missing"),
        (lambda root: (root / "latest").unlink(), "latest: is missing"),
        (lambda root: ((root / "latest").unlink(), (root / "latest").symlink_to("vae")), "latest: leads to vae, unet"),
        (
            lambda root: ((root / "model_index.json").unlink(), (root / "model_index.json").mkdir()),
            "model_index.json: is a folder, a file is expected",
        ),
    ],
)
def test_what_is_missing_or_differs_at_the_destination_is_named(
    typed: Typed, tmp_path: Path, change: Callable[[Path], object], said: str
) -> None:
    source = repository(tmp_path / "src")
    (source / "empty").mkdir()
    (source / "latest").symlink_to("unet")
    assert typed("restore", source, tmp_path / "dst")[0] == 0
    assert typed("restore", source, tmp_path / "dst", "--verify-only")[0] == 0
    change(tmp_path / "dst")
    code, out, _ = typed("restore", source, tmp_path / "dst", "--verify-only")
    assert code == 1
    assert f"robust: {tmp_path}/dst/{said}" in out


def test_what_came_to_the_source_since_is_missing(typed: Typed, tmp_path: Path) -> None:
    """It is compared with what is there now, not with what was copied."""
    source = megatron(tmp_path / "src")
    assert typed("restore", source, tmp_path / "dst")[0] == 0
    (source / "iter_0000200" / "mp_rank_02").mkdir()
    (source / "iter_0000200" / "mp_rank_02" / "model_optim_rng.pt").write_bytes(b"new")
    code, out, _ = typed("restore", source, tmp_path / "dst", "--verify-only")
    assert code == 1 and "mp_rank_02/model_optim_rng.pt: is missing" in out


def test_what_lies_at_the_destination_besides_is_said_and_does_no_harm(typed: Typed, tmp_path: Path) -> None:
    source = megatron(tmp_path / "src")
    (tmp_path / "dst" / "mine" / "deeper").mkdir(parents=True)
    (tmp_path / "dst" / "mine" / "deeper" / "notes").write_text("mine")
    assert typed("restore", source, tmp_path / "dst")[0] == 0
    code, _, err = typed("restore", source, tmp_path / "dst", "--verify-only")
    assert code == 0
    assert err.splitlines() == [f"robust: {tmp_path}/dst/mine/ is not in {source}"]
    assert (tmp_path / "dst" / "mine" / "deeper" / "notes").read_text() == "mine"
    assert json.loads(typed("restore", source, tmp_path / "dst", "--verify-only", "--json")[1])["extra"]


def test_of_many_only_some_are_told(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for number in range(100):
        (tmp_path / "src" / f"{number:03d}").write_text("x")
    (tmp_path / "dst").mkdir()
    code, out, _ = typed("restore", tmp_path / "src", tmp_path / "dst", "--verify-only")
    assert code == 1 and len(out.splitlines()) == 21 and "and 80 more such lines" in out
    assert (
        len(json.loads(typed("restore", tmp_path / "src", tmp_path / "dst", "--verify-only", "--json")[1])["wrong"])
        == 100
    )


@pytest.mark.parametrize("what", ["manifest", "part", "another", "layout"])
def test_a_checkpoint_of_ours_that_is_not_all_there_is_named(typed: Typed, tmp_path: Path, what: str) -> None:
    make_checkpoint([tmp_path / "src"], {"x": os.urandom(3 * MIB)}, step=3)
    assert typed("restore", tmp_path / "src", tmp_path / "dst")[0] == 0
    said = "dst/MANIFEST: "
    also: list[object] = []
    if what == "manifest":
        (tmp_path / "dst" / "MANIFEST").unlink()
    elif what == "part":
        next((tmp_path / "dst").rglob("*.part")).unlink()
        said = ".part: is missing"
    elif what == "another":
        shutil.rmtree(tmp_path / "dst")
        make_checkpoint([tmp_path / "dst"], {"x": os.urandom(3 * MIB)}, step=3)
    else:
        also = ["--also", tmp_path / "b"]
    code, out, _ = typed("restore", tmp_path / "src", tmp_path / "dst", *also, "--verify-only")
    assert code == 1 and said in out


# What cannot be copied, and what could lead elsewhere


@pytest.mark.parametrize(
    "key", ["bucket/r/../up", "bucket/r/./dot", "bucket/r/a//b", "bucket/r//b", "bucket/r/" + "x" * 1100]
)
@pytest.mark.parametrize("command", ["restore", "convert"])
def test_names_that_no_path_can_have_are_refused_by_name(
    typed: Typed, tmp_path: Path, objects: Objects, key: str, command: str
) -> None:
    objects.put("bucket/r/good", b"1")
    objects.put(key, b"2")
    code, _, said = typed(command, "s3://bucket/r", tmp_path / "dst")
    assert code == 1 and "no path can be made of" in said and key.removeprefix("bucket/r/")[:20] in said
    assert os.listdir(tmp_path) == []


def test_names_with_anything_in_them_are_taken_and_do_nothing_to_a_terminal(typed: Typed, tmp_path: Path) -> None:
    names = [
        "new\nline",
        "escape\x1b[2J",
        "a b",
        "%20",
        "ä",
        "-rf",
        "~",
        "x" * 250,
        ".x.restoring",
        "x",
        "q?a=1#b",
        "日本",
    ]
    (tmp_path / "src" / "sub\ndir").mkdir(parents=True)
    for name in names:
        (tmp_path / "src" / "sub\ndir" / name).write_bytes(name.encode())
    assert typed("restore", tmp_path / "src", tmp_path / "dst")[0] == 0
    assert everything(tmp_path / "dst") == everything(tmp_path / "src")
    assert typed("convert", tmp_path / "src", tmp_path / "ours")[0] == 0
    shutil.rmtree(tmp_path / "dst" / "sub\ndir")
    code, out, _ = typed("restore", tmp_path / "src", tmp_path / "dst", "--verify-only")
    assert code == 1 and "\x1b" not in out and len(out.splitlines()) == len(names)


def test_a_name_that_is_no_text_is_refused_and_not_left_out(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "good").write_bytes(b"1")
    Path(os.fsdecode(bytes(tmp_path / "src") + b"/\xff\xfe")).write_bytes(b"2")
    code, _, said = typed("restore", tmp_path / "src", tmp_path / "dst")
    assert code == 1 and "udcff" in said and not (tmp_path / "dst").exists()


def test_objects_that_stand_for_folders(typed: Typed, tmp_path: Path, objects: Objects) -> None:
    objects.put("bucket/r/", b"")
    objects.put("bucket/r/empty/", b"")
    objects.put("bucket/r/dir/", b"")
    objects.put("bucket/r/dir/x", b"1")
    objects.put("bucket/r/mark", b"")
    objects.put("bucket/r/mark/y", b"2")
    assert typed("restore", "s3://bucket/r", tmp_path / "dst")[0] == 0
    assert everything(tmp_path / "dst") == {"dir": None, "dir/x": b"1", "empty": None, "mark": None, "mark/y": b"2"}
    assert typed("restore", "s3://bucket/r", tmp_path / "dst", "--verify-only")[0] == 0
    assert typed("restore", "s3://bucket/r/mark", tmp_path / "mark")[0] == 0
    assert everything(tmp_path / "mark") == {"y": b"2"}


def test_an_object_that_is_a_file_and_a_folder_is_refused(typed: Typed, tmp_path: Path, objects: Objects) -> None:
    objects.put("bucket/r/both", b"file")
    objects.put("bucket/r/both/x", b"1")
    code, _, said = typed("restore", "s3://bucket/r", tmp_path / "dst")
    assert code == 1 and "both: a file and a folder of one name" in said and not (tmp_path / "dst").exists()
    code, _, said = typed("restore", "s3://bucket/r/both", tmp_path / "dst")
    assert code == 2 and "write it with '/' at its end" in said
    assert typed("restore", "s3://bucket/r/both/", tmp_path / "dst")[0] == 0
    assert everything(tmp_path / "dst") == {"x": b"1"}


def test_links_within_the_folder_stay_links(typed: Typed, tmp_path: Path) -> None:
    source = megatron(tmp_path / "src")
    (source / "latest").symlink_to("iter_0000200")
    (source / "absolute").symlink_to(source / "iter_0000100" / "mp_rank_00")
    (source / "iter_0000200" / "again.pt").symlink_to("../iter_0000100/mp_rank_00/model_optim_rng.pt")
    (source / "gone").symlink_to("nothing")
    (source / "itself").symlink_to(".")
    assert typed("restore", source, tmp_path / "dst")[0] == 0
    want = everything(source) | {"absolute": "iter_0000100/mp_rank_00"}
    assert everything(tmp_path / "dst") == want
    assert typed("restore", source, tmp_path / "dst", "--verify-only")[0] == 0
    code, _, said = typed("convert", source, tmp_path / "ours")
    assert code == 0
    assert all(f"robust: {name} is a link to" in said for name in ("latest", "gone", "itself", "absolute"))
    with open_checkpoint(str(tmp_path / "ours")) as opened:
        index, file = opened.file("iter_0000200/again.pt")
        expected = (source / "iter_0000100" / "mp_rank_00" / "model_optim_rng.pt").read_bytes()
        assert opened.read_bytes(index, 0, file.size_bytes) == expected


@pytest.mark.parametrize("command", ["restore", "convert"])
def test_links_that_lead_out_are_refused_by_name_unless_they_are_to_be_followed(
    typed: Typed, tmp_path: Path, command: str
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    source = tmp_path / "src"
    (source / "sub").mkdir(parents=True)
    (source / "x").write_text("x")
    (source / "sub" / "file").symlink_to("../../secret/key")
    (source / "folder").symlink_to(tmp_path / "secret")
    (source / "through").symlink_to("folder/key")
    code, _, said = typed(command, source, tmp_path / "dst")
    assert code == 1 and "sub/file -> ../../secret/key" in said and "folder -> " in said and "through -> " in said
    assert not (tmp_path / "dst").exists()
    assert typed(command, source, tmp_path / "dst", "--follow-links")[0] == 0
    if command == "restore":
        followed = {"sub": None, "sub/file": b"secret", "folder": None, "folder/key": b"secret", "through": b"secret"}
        assert everything(tmp_path / "dst") == {"x": b"x", **followed}
    code, out, _ = typed("inspect", source)
    assert code == 0 and "folder -> " in out and "it is not taken" in out


def test_links_that_go_round_in_a_circle_are_an_error(typed: Typed, tmp_path: Path) -> None:
    for name, target in (("src", "out"), ("out", "src")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "round").symlink_to(tmp_path / target)
        (tmp_path / name / "x").write_text("x")
    code, _, said = typed("restore", tmp_path / "src", tmp_path / "dst", "--follow-links")
    assert code == 1 and "in which it lies itself" in said
    (tmp_path / "src" / "round").unlink()
    (tmp_path / "src" / "gone").symlink_to(tmp_path / "nothing")
    code, _, said = typed("restore", tmp_path / "src", tmp_path / "dst", "--follow-links")
    assert code == 1 and "which is not there" in said


def test_a_snapshot_in_the_cache_of_the_hub_is_taken_with_its_blobs(typed: Typed, tmp_path: Path) -> None:
    cache = tmp_path / "hub" / "models--a--b"
    (cache / "blobs").mkdir(parents=True)
    (cache / "blobs" / "1234").write_bytes(b"weights")
    (cache / "snapshots" / "rev" / "unet").mkdir(parents=True)
    (cache / "snapshots" / "rev" / "model.bin").symlink_to("../../blobs/1234")
    (cache / "snapshots" / "rev" / "unet" / "model.bin").symlink_to("../../../blobs/1234")
    assert typed("restore", cache / "snapshots" / "rev", tmp_path / "dst")[0] == 0
    assert everything(tmp_path / "dst") == {"model.bin": b"weights", "unet": None, "unet/model.bin": b"weights"}
    (tmp_path / "secret").write_bytes(b"secret")
    (cache / "snapshots" / "rev" / "evil").symlink_to(tmp_path / "secret")
    assert typed("restore", cache / "snapshots" / "rev", tmp_path / "other")[0] == 1


def test_what_is_no_file_is_said(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "x").write_text("x")
    os.mkfifo(tmp_path / "src" / "pipe")
    code, _, said = typed("restore", tmp_path / "src", tmp_path / "dst")
    assert (code, said) == (0, "robust: pipe is no file: it is not taken\n")
    with socket.socket(socket.AF_UNIX) as opened:
        os.chdir(tmp_path / "src")
        opened.bind("socket")
    assert "socket is no file" in typed("restore", tmp_path / "src", tmp_path / "dst")[2]


def test_nothing_is_copied_into_itself(typed: Typed, tmp_path: Path) -> None:
    source = megatron(tmp_path / "src")
    before = everything(source)
    for destination in (source / "copy", source, source / "iter_0000200", tmp_path / "src" / "." / "deep" / "er"):
        code, _, said = typed("restore", source, destination)
        assert code == 2 and ("lies in" in said or "are the same" in said)
    assert everything(source) == before
    (tmp_path / "alias").symlink_to(source)
    assert typed("restore", source, tmp_path / "alias" / "copy")[0] == 2
    assert everything(source) == before


def test_a_source_in_the_destination_is_not_harmed(typed: Typed, tmp_path: Path) -> None:
    source = repository(tmp_path / "run" / "src")
    before = everything(source)
    assert typed("restore", source, tmp_path / "run")[0] == 0
    assert everything(source) == before
    (source / "src").mkdir()
    (source / "src" / "model_index.json").write_text("another")
    code, _, said = typed("restore", source, tmp_path / "run")
    assert code == 2 and "source and destination are the same" in said
    assert (source / "model_index.json").read_text() == "{}"


@pytest.mark.parametrize(
    "in_the_way", ["a file for a folder", "a folder for a file", "a link for a folder", "a file itself"]
)
def test_what_stands_in_the_way_is_named_before_anything_is_written(
    typed: Typed, tmp_path: Path, in_the_way: str
) -> None:
    source, destination = repository(tmp_path / "src"), tmp_path / "dst"
    if in_the_way != "a file itself":
        destination.mkdir()
    if in_the_way == "a file for a folder":
        (destination / "unet").write_text("mine")
    elif in_the_way == "a folder for a file":
        (destination / "model_index.json").mkdir()
    elif in_the_way == "a link for a folder":
        (tmp_path / "elsewhere").mkdir()
        (destination / "unet").symlink_to(tmp_path / "elsewhere")
    else:
        destination.write_text("mine")
    before = everything(tmp_path)
    code, _, said = typed("restore", source, destination)
    assert code and ("remove it" in said or "name another" in said)
    assert everything(tmp_path) == before


def test_checkpoints_of_ours_in_a_folder_are_taken_whole_or_not_at_all(typed: Typed, tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "run" / "step-1"], {"x": b"1"}, step=1)
    make_checkpoint([tmp_path / "run" / "step-2"], {"x": b"2"}, step=2)
    assert typed("restore", tmp_path / "run", tmp_path / "copy")[0] == 0
    found = latest(str(tmp_path / "copy"))
    assert found is not None and found.name == "step-2"
    make_checkpoint([tmp_path / "run" / "step-3", tmp_path / "b" / "step-3"], {"x": os.urandom(3 * MIB)}, step=3)
    code, _, said = typed("restore", tmp_path / "run", tmp_path / "other")
    assert code == 2 and "step-3 in it is a checkpoint with parts on 2 targets" in said
    assert not (tmp_path / "other").exists()


def test_what_was_restored_is_no_checkpoint_of_ours_and_is_not_pruned(typed: Typed, tmp_path: Path) -> None:
    source = megatron(tmp_path / "src")
    make_checkpoint([tmp_path / "run" / "step-1"], {"x": b"1"}, step=1)
    assert typed("restore", source, tmp_path / "run" / "megatron")[0] == 0
    assert [found.name for found in list_checkpoints(str(tmp_path / "run"))] == ["step-1"]
    assert prune(str(tmp_path / "run"), keep=1, grace_s=0, now_s=lambda: 4e9) == []
    assert everything(tmp_path / "run" / "megatron") == everything(source)


# What changes or is cut short


def test_a_file_that_changes_while_it_is_copied_is_named_and_nothing_is_put_in_place(tmp_path: Path) -> None:
    source = megatron(tmp_path / "src")
    opened = open_source(str(source))
    changed = source / "latest_checkpointed_iteration.txt"

    def change(_: int) -> None:
        (tmp_path / "draft").write_text("300")
        (tmp_path / "draft").replace(changed)

    with pytest.raises(CheckpointError, match=r"changed while it was copied: latest_checkpointed_iteration.txt"):
        restore(opened, parse(str(tmp_path / "dst")), progress=change)
    opened.close()
    assert not [
        path for path in (tmp_path / "dst").rglob("*") if path.is_file() and not path.name.endswith(".restoring")
    ]
    opened = open_source(str(source))
    done = restore(opened, parse(str(tmp_path / "dst")))
    opened.close()
    assert everything(tmp_path / "dst") == everything(source)
    assert done.kept_bytes == done.size_bytes - 3, "what had not changed was kept"


RESTORE = "import sys; from robust_run.robust_cli import main; sys.argv = ['robust', *sys.argv[1:]]; main()"


@pytest.mark.parametrize("meanwhile", ["nothing", "a file changes", "a file comes", "a file goes"])
def test_a_restore_of_many_files_that_was_killed_goes_on(typed: Typed, tmp_path: Path, meanwhile: str) -> None:
    source, destination = tmp_path / "src", tmp_path / "dst"
    for number in range(40):
        (source / f"dir{number % 7}").mkdir(parents=True, exist_ok=True)
        (source / f"dir{number % 7}" / f"{number}").write_bytes(os.urandom(100_000))
    (source / "zz").write_bytes(os.urandom(20 * MIB))
    slow = (
        "import os, sys, threading; from robust_run.store.local import LocalStore; read = LocalStore.read_into; count = [0]\n"
        "def slow(self, path, *more):\n"
        "    count[0] += 1\n"
        "    if count[0] == 30: print('here', flush=True)\n"
        "    if count[0] >= 30: threading.Event().wait()\n"
        "    return read(self, path, *more)\n"
        "LocalStore.read_into = slow\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", slow + RESTORE, "ckpt", "restore", str(source), str(destination)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    if meanwhile == "a file changes":
        (source / "dir0" / "0").write_bytes(os.urandom(100_000))
    elif meanwhile == "a file comes":
        (source / "dir0" / "another").write_bytes(b"x")
    elif meanwhile == "a file goes":
        (source / "dir0" / "0").unlink()
    code, out, _ = typed("restore", source, destination, "--json")
    assert code == 0
    left = {"dir0/.0.restoring"} if meanwhile == "a file goes" else set()
    assert {path: data for path, data in everything(destination).items() if path not in left} == everything(source)
    assert json.loads(out)["kept_bytes"] >= 20 * 100_000
    assert typed("restore", source, destination, "--verify-only")[0] == 0


def test_thousands_of_small_files_are_copied_many_at_a_time(typed: Typed, tmp_path: Path, objects: Objects) -> None:
    for number in range(3000):
        objects.put(f"bucket/r/{number % 50}/{number}", str(number).encode())
    objects.meeting = threading.Barrier(2)
    assert typed("restore", "s3://bucket/r", tmp_path / "dst")[0] == 0
    assert sum(path.is_file() for path in (tmp_path / "dst").rglob("*")) == 3000
    objects.meeting = threading.Barrier(2)
    assert typed("convert", "s3://bucket/r", tmp_path / "ours")[0] == 0
    with open_checkpoint(str(tmp_path / "ours")) as opened:
        assert len(opened.manifest.files) == 3000 and opened.check() == []


# What is cut off


def cut(path: Path, share: float = 0.5) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


@pytest.mark.parametrize(
    "name", ["unet/diffusion_pytorch_model.safetensors", "pytorch_model.bin", "extra.pt", "sub/array.npz"]
)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.999])
def test_a_file_that_is_cut_off_is_not_converted_and_what_was_there_stays(
    typed: Typed, tmp_path: Path, name: str, share: float
) -> None:
    import numpy as np

    source = repository(tmp_path / "src")
    (source / "sub").mkdir()
    torch.save({"w": torch.randn(1000)}, source / "pytorch_model.bin")
    torch.save({"w": torch.randn(1000)}, source / "extra.pt")
    np.savez(source / "sub" / "array.npz", a=np.arange(1000))
    assert typed("convert", source, tmp_path / "ours")[0] == 0
    before = everything(tmp_path / "ours")
    cut(source / name, share)
    code, _, said = typed("convert", source, tmp_path / "ours")
    assert code == 1 and f"{name} is cut off" in said and "nothing was converted" in said
    assert everything(tmp_path / "ours") == before
    assert typed("convert", source / name, tmp_path / "one")[0] == 1
    assert not (tmp_path / "one").exists()


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("name", ["unet/diffusion_pytorch_model.safetensors", "extra.pt"])
def test_a_file_that_is_cut_off_at_the_source_is_not_restored_and_no_copy_of_it_is_called_the_same(
    typed: Typed, tmp_path: Path, name: str, share: float
) -> None:
    source = repository(tmp_path / "src")
    torch.save({"w": torch.randn(1000)}, source / "extra.pt")
    assert typed("restore", source, tmp_path / "dst")[0] == 0
    before = everything(tmp_path / "dst")
    cut(source / name, share)
    fault = "is cut off" if share else "is empty"
    for verb, done in (("restore", "restored"), ("convert", "converted")):
        code, _, said = typed(verb, source, tmp_path / "new")
        assert code == 1 and f"{name} {fault}" in said and f"nothing was {done}" in said
        assert not (tmp_path / "new").exists()
    assert everything(tmp_path / "dst") == before
    shutil.copyfile(source / name, tmp_path / "dst" / name)
    code, out, said = typed("restore", source, tmp_path / "dst", "--verify-only")
    assert code == 1 and f"source: {name} {fault}" in out + said


def test_a_format_that_was_left_out_with_all_its_shards_is_not_missed(typed: Typed, tmp_path: Path) -> None:
    """`ignore_patterns="*.bin"` leaves the index of what was not fetched."""
    source = repository(tmp_path / "src")
    index = {"weight_map": {"w": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert typed("convert", source, tmp_path / "ours")[0] == 0
    assert typed("restore", source, tmp_path / "dst")[0] == 0


def test_a_tree_is_not_converted_into_itself(typed: Typed, tmp_path: Path) -> None:
    source = repository(tmp_path / "src")
    before = everything(source)
    code, _, said = typed("convert", source, source / "ours")
    assert code == 2 and "name a folder outside of it" in said
    assert everything(source) == before


def test_a_dcp_folder_that_is_cut_off_is_not_converted(typed: Typed, tmp_path: Path) -> None:
    dcp.save({"w": torch.randn(2000, 3)}, storage_writer=dcp.FileSystemWriter(tmp_path / "src"), no_dist=True)
    cut(tmp_path / "src" / "__0_0.distcp", 0.9)
    code, _, said = typed("convert", tmp_path / "src", tmp_path / "ours")
    assert code == 1 and "__0_0.distcp is cut off" in said
    (tmp_path / "src" / "__0_0.distcp").unlink()
    code, _, said = typed("convert", tmp_path / "src", tmp_path / "ours")
    assert code == 1 and "__0_0.distcp is missing" in said
    assert not (tmp_path / "ours").exists()


def test_a_shard_that_an_index_names_must_be_there(typed: Typed, tmp_path: Path) -> None:
    source = repository(tmp_path / "src")
    (source / "model-00002-of-00002.safetensors").unlink()
    code, _, said = typed("convert", source, tmp_path / "ours")
    assert code == 1 and "model-00002-of-00002.safetensors: missing, and model.safetensors.index.json" in said


def test_a_folder_over_http_is_not_taken_for_empty(typed: Typed, tmp_path: Path) -> None:
    repository(tmp_path / "served" / "src")
    with counting_server(tmp_path / "served") as server:
        code, _, said = typed("restore", f"{server.url}/src", tmp_path / "dst")
    assert code == 1 and "a web server's folders cannot be listed" in said


def test_a_folder_that_a_web_server_refuses_to_show_is_not_taken_for_a_file(typed: Typed, tmp_path: Path) -> None:
    def refuse(request: Request) -> None:
        request.answer("403 Forbidden" if request.path.endswith("/src") else "404 Not Found")

    with awkward_server(refuse) as server:
        code, _, said = typed("restore", f"{server.url}/src", tmp_path / "dst")
    assert code == 1 and "if it is a folder: a web server's folders cannot be listed" in said


class Dying(BaseException):
    """Ends a restore as a signal would."""


def test_a_file_that_was_replaced_between_three_attempts_is_no_mixture(tmp_path: Path) -> None:
    """Over HTTP, nobody says when it changed: a sample of what was fetched tells, for all attempts that follow."""
    old, new = os.urandom(40 * MIB), os.urandom(40 * MIB)
    (tmp_path / "src").mkdir()

    def attempt(data: bytes, units: int) -> int:
        (tmp_path / "src" / "x.bin").write_bytes(data)
        left = [units]

        def die(_: int) -> None:
            left[0] -= 1
            if not left[0]:
                raise Dying

        with counting_server(tmp_path / "src") as server:
            opened = open_source(f"{server.url}/x.bin")
            object.__setattr__(opened.store, "threads", 1)
            object.__setattr__(opened, "url", "http://the-same/x.bin")
            try:
                return restore(opened, parse(str(tmp_path / "x.bin")), progress=die).kept_bytes
            finally:
                opened.close()

    with pytest.raises(Dying):
        attempt(old, 4)
    with pytest.raises(Dying):
        attempt(new, 2)
    assert attempt(new, 99) >= 8 * MIB
    assert (tmp_path / "x.bin").read_bytes() == new


def test_a_folder_that_may_not_be_looked_into_is_named(typed: Typed, tmp_path: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("root may look into all of them")
    (tmp_path / "src" / "a" / "closed").mkdir(parents=True)
    (tmp_path / "src" / "a" / "closed").chmod(0)
    code, _, said = typed("restore", tmp_path / "src", tmp_path / "dst")
    (tmp_path / "src" / "a" / "closed").chmod(0o755)
    assert code == 1 and "a/closed" in said


def test_an_object_that_was_replaced_within_the_same_second_is_fetched_anew(
    typed: Typed, tmp_path: Path, objects: Objects
) -> None:
    objects.put("bucket/r/x", b"1" * 1000)
    objects.put("bucket/r/y", b"1" * 1000)
    opened = open_source("s3://bucket/r")

    def change(_: int) -> None:
        objects.keys["bucket/r/x"] = b"2" * 1000  # of the same length and time

    with pytest.raises(CheckpointError, match="changed while it was copied: x"):
        restore(opened, parse(str(tmp_path / "dst")), progress=change)
    opened.close()
    assert typed("restore", "s3://bucket/r", tmp_path / "dst")[0] == 0
    assert everything(tmp_path / "dst") == {"x": b"2" * 1000, "y": b"1" * 1000}
