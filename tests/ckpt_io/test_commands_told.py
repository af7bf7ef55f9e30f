"""What `robust ckpt` says, and its exit codes, where something is wrong or comes from somebody else."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from click.testing import CliRunner
from counting_server import counting_server
from made_checkpoints import UNIT_BYTES, make_checkpoint
from safetensors.torch import save_file

from robust_run.ckpt_io import dcp
from robust_run.ckpt_io.commands.ckpt import ckpt
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.rules.layout import copy_path
from robust_run.ckpt_io.rules.manifest import decode, encode
from robust_run.errors import RobustRunError
from robust_run.store import progress
from robust_run.terminal import plain

ESCAPE = "\x1b]0;owned\x07"
Told = tuple[int, str, str]
Typed = Callable[..., Told]


@pytest.fixture
def typed() -> Typed:
    """Type a command; returns exit code, standard output, and standard error or the error raised."""

    def run(*arguments: object) -> Told:
        result = CliRunner().invoke(ckpt, list(map(str, arguments)), standalone_mode=False)
        if isinstance(result.exception, RobustRunError):
            return result.exception.exit_code, result.stdout, str(result.exception)
        if result.exception is not None:
            raise result.exception
        return result.return_value or 0, result.stdout, result.stderr

    return run


def hostile(folder: Path) -> None:
    """Write a checkpoint whose facts do things to a terminal."""
    manifest = make_checkpoint([folder], {"a": b"content"})
    manifest = msgspec.structs.replace(manifest, facts={"who": f"me{ESCAPE}\u202e"})
    (folder / "MANIFEST").write_bytes(encode(manifest))


def test_plain_keeps_what_can_be_printed() -> None:
    assert plain("step-1 ä 日本") == "step-1 ä 日本"
    assert plain("a\x1b[2Jb\nc\u202ed\udc80") == "a\\x1b[2Jb\\nc\\u202ed\\udc80"


def test_inspect_and_list_do_nothing_to_a_terminal(typed: Typed, tmp_path: Path) -> None:
    hostile(tmp_path / "root" / f"x{ESCAPE}")
    hostile(tmp_path / "root" / "plain")
    for arguments in (("inspect", tmp_path / "root" / "plain"), ("list", tmp_path / "root")):
        code, out, _ = typed(*arguments)
        assert code == 0
        assert "\x1b" not in out
        assert "\\x1b]0;owned\\x07" in out
    code, out, _ = typed("inspect", tmp_path / "root" / "plain", "--json")
    assert json.loads(out)["facts"] == {"who": f"me{ESCAPE}\u202e"}


def test_latest_is_a_path_for_scripts_and_harmless_on_a_terminal(typed: Typed, tmp_path: Path) -> None:
    hostile(tmp_path / f"x{ESCAPE}")
    assert typed("latest", tmp_path)[1] == f"{tmp_path}/x{ESCAPE}\n"
    ours, theirs = pty.openpty()
    try:
        command = "import sys; from robust_run.ckpt_io.commands.ckpt import ckpt; ckpt(sys.argv[1:])"
        subprocess.run([sys.executable, "-c", command, "latest", tmp_path], stdout=theirs, check=True, timeout=60)
        said = os.read(ours, 4096).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "x\\x1b]0;owned\\x07" in said
    assert "\x1b" not in said


@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
def test_inspect_of_a_file_that_is_cut_off_is_1(typed: Typed, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    state = {"a": torch.zeros(1000)}
    torch.save(state, path) if name == "x.pt" else save_file(state, path)
    assert typed("inspect", path)[0] == 0
    path.write_bytes(path.read_bytes()[:500])
    code, out, _ = typed("inspect", path)
    assert code == 1
    assert f"damaged: {name}: " in out
    assert json.loads(typed("inspect", path, "--json")[1])["damaged"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_inspect_of_a_dcp_folder_that_is_not_whole_is_1(typed: Typed, tmp_path: Path) -> None:
    state = {"a": torch.zeros(1000), "n": 3}
    torch_dcp.save(state, storage_writer=torch_dcp.FileSystemWriter(tmp_path / "x"), no_dist=True)
    assert typed("inspect", tmp_path / "x")[0] == 0
    (data,) = (tmp_path / "x").glob("*.distcp")
    os.truncate(data, 100)
    code, out, _ = typed("inspect", tmp_path / "x")
    assert code == 1
    assert f"damaged: {data.name} is cut off: it has 100 bytes, and by .metadata something in it ends at " in out
    data.unlink()
    code, out, _ = typed("inspect", tmp_path / "x")
    assert code == 1
    assert f"damaged: {data.name} is missing, and .metadata names it" in out


@pytest.mark.parametrize("targets", [1, 2])
def test_inspect_of_ours_with_parts_that_are_not_whole_is_1(typed: Typed, tmp_path: Path, targets: int) -> None:
    folders = [tmp_path / str(target) / "x" for target in range(targets)]
    make_checkpoint(folders, {"a": os.urandom(2 * UNIT_BYTES + 5)})
    assert typed("inspect", folders[0])[0] == 0
    parts = [part for folder in folders for part in folder.rglob("*.part")]
    os.truncate(parts[-1], 100)
    code, out, _ = typed("inspect", folders[0])
    assert code == 1
    assert f"damaged: {folders[-1]}: part " in out
    assert "and has 100\n" in out
    for part in parts:
        part.unlink()
    code, out, _ = typed("inspect", folders[0], "--json")
    assert code == 1
    assert "and has none" in json.loads(out)["damaged"][0]


def test_inspect_of_a_folder_tells_each_file_that_is_not_whole_once(typed: Typed, tmp_path: Path) -> None:
    for name in ("a.pt", "b.ckpt"):
        torch.save({"a": torch.zeros(1000)}, tmp_path / name)
        os.truncate(tmp_path / name, 500)
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}'
    )
    save_file({"a": torch.zeros(1)}, tmp_path / "1.safetensors")
    code, out, _ = typed("inspect", tmp_path)
    assert code == 1
    damaged = [line for line in out.splitlines() if line.startswith("damaged: ")]
    assert [line.split()[1] for line in damaged] == ["a.pt:", "b.ckpt", "2.safetensors:"]


def test_inspect_of_an_old_file_says_so(typed: Typed, tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(3)}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    code, out, _ = typed("inspect", tmp_path / "x.pt")
    assert code == 0
    assert "an old or foreign format" in out


def test_what_another_format_has_no_place_for_is_named(typed: Typed, tmp_path: Path) -> None:
    dcp.save({"weight": torch.ones(3), "bias": torch.ones(1), "n": 3}, tmp_path / "ck" / "step-30", step=30)
    code, out, said = typed("convert", tmp_path / "ck" / "step-30", tmp_path / "z.safetensors")
    assert (code, "written" in out) == (0, True)
    assert said == "robust: 1 object is left out: safetensors has tensors alone: n\n"
    document = json.loads(typed("convert", tmp_path / "ck" / "step-30", tmp_path / "y.safetensors", "--json")[1])
    assert [(each["kind"], each["names"]) for each in document["left_out"]] == [("object", ["n"])]
    code, _, said = typed("convert", tmp_path / "ck" / "step-30", tmp_path / "folder", "--to", "dcp")
    assert (code, said) == (0, "")


def test_files_that_were_taken_over_are_named_where_only_tensors_go_on(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    save_file({"weight": torch.ones(3)}, tmp_path / "hub" / "model.safetensors")
    (tmp_path / "hub" / "config.json").write_text("{}")
    (tmp_path / "hub" / "vocabulary.txt").write_text("a")
    assert typed("convert", tmp_path / "hub", tmp_path / "ours")[0] == 0
    for to, holds in (("safetensors", "safetensors has tensors"), ("dcp", "a DCP folder has tensors and objects")):
        code, _, said = typed("convert", tmp_path / "ours", tmp_path / to, "--to", to)
        assert code == 0
        assert f"2 files are left out: {holds} alone (files go with --to files): config.json, vocabulary.txt\n" in said
    assert typed("convert", tmp_path / "ours", tmp_path / "files", "--to", "files")[2] == ""


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_progress_is_over_before_the_result_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.0)  # a line at each step, as of a conversion that takes long
    state = {"a": torch.ones(1 << 20), "b": torch.ones(9)}
    torch_dcp.save(state, storage_writer=torch_dcp.FileSystemWriter(tmp_path / "theirs"), no_dist=True)
    told = CliRunner().invoke(ckpt, ["convert", f"{tmp_path}/theirs", f"{tmp_path}/ours"]).output.splitlines()
    assert told[0].startswith("robust: converting: ")
    assert told[-1].startswith(f"robust: {tmp_path}/ours: ")


def test_a_target_that_may_not_be_followed_is_no_damage(typed: Typed, tmp_path: Path) -> None:
    manifest = make_checkpoint([tmp_path / "a" / "x", tmp_path / "b" / "x"], {"a": os.urandom(2 * UNIT_BYTES)})
    with counting_server(tmp_path / "a") as server:
        code, out, said = typed("verify", f"{server.url}/x")
        assert code == 2
        assert "damaged" not in out + said
        assert "name it with --also" in said
        assert typed("verify", f"{server.url}/x", "--also", tmp_path / "b")[0] == 0
    assert decode((tmp_path / "b" / "x" / copy_path(manifest.uuid)).read_bytes()) == manifest


def test_files_without_tensors_are_no_dcp_folder_and_no_state_dict(typed: Typed, tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "base"], {"tokenizer.json": b"{}"})
    code, _, said = typed("convert", tmp_path / "base", tmp_path / "folder", "--to", "dcp")
    assert code == 1
    assert "no tensors" in said
    assert not (tmp_path / "folder").exists()
    with pytest.raises(CheckpointError, match="no tensors"):
        dcp.load_whole(tmp_path / "base")


def test_a_dcp_folder_that_does_not_fit_leaves_nothing_and_names_the_disk(tmp_path: Path) -> None:
    dcp.save({"a": torch.zeros(1 << 20)}, tmp_path / "src")
    command = "from robust_run.robust_cli import main; import sys; sys.exit(main())"
    arguments = [sys.executable, "-c", command, "ckpt", "convert", tmp_path / "src", tmp_path / "out", "--to", "dcp"]
    limited = ["sh", "-c", 'ulimit -f 1000; exec "$@"', "sh", *map(str, arguments)]
    done = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert f"robust: {tmp_path}/out cannot be written to: " in done.stderr
    assert f"bytes are free on the disk of {tmp_path}" in done.stderr
    assert not (tmp_path / "out").exists()


def test_how_to_save_is_said_to_who_writes_to_rrck(tmp_path: Path) -> None:
    import fsspec

    with pytest.raises(
        RobustRunError, match=r"save with robust_run.ckpt_io.dcp.save, or storage_writer=dcp.RobustWriter"
    ):
        fsspec.filesystem("rrck").open(str(tmp_path / "x" / "file"), "wb")


def test_an_error_that_quotes_a_name_shows_it_escaped(tmp_path: Path) -> None:
    program = "from robust_run.robust_cli import main; main()"
    argv = [sys.executable, "-c", program, "ckpt", "inspect", str(tmp_path / "x\x1b[2J")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "\\x1b[2J" in done.stderr
    assert "\x1b" not in done.stderr
