"""What is saved is what is loaded, in one process: every kind of tensor and object, through dcp and through our own helpers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from robust_run.ckpt_io.dcp import ObjectRefused, RobustReader, RobustWriter, async_save, load, load_whole, save
from robust_run.ckpt_io.dcp.tensors import dtype_of
from robust_run.ckpt_io.errors import Damaged, NotACheckpoint
from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.ckpt_io.rules.boxes import BYTES_OF
from robust_run.errors import UserError

alone = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def state_of(seed: int = 1) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    big = torch.randn(600, 1000, generator=generator)
    return {
        "model": {
            "big": big,
            "strided": big[:300, :200].t(),
            "every second": big[::2],
            "scalar": torch.tensor(3.5),
            "empty": torch.empty(0, 7),
            "half": big[:100].to(torch.bfloat16),
            "flags": big[0] > 0,
            "conjugate": torch.complex(big[:3], big[3:6]).conj(),
            "parameter": torch.nn.Parameter(big[:5].clone()),
            "a name with spaces/and ünicode": torch.arange(10),
        },
        "groups": [{"lr": torch.tensor(0.1), "name": "one"}, {"lr": torch.tensor(0.2), "name": "two"}],
        "step": 7,
        "config": {"width": 3, "text": "hello", "none": None},
    }


def flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in flat(inner, f"{path}/{key}").items()}
    if isinstance(value, list):
        return {k: v for i, inner in enumerate(value) for k, v in flat(inner, f"{path}/{i}").items()}
    return {path: value}


def assert_same(one: Any, other: Any) -> None:
    left, right = flat(one), flat(other)
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == right[name].dtype and torch.equal(value, right[name]), name
        else:
            assert value == right[name], name


def blank(value: Any) -> Any:
    """The same state with other content."""
    if isinstance(value, dict):
        return {key: blank(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [blank(inner) for inner in value]
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0


def targets(tmp_path: Path) -> tuple[str, list[str]]:
    return str(tmp_path / "a" / "step-12"), [str(tmp_path / "b"), str(tmp_path / "c")]


def test_a_state_comes_back_into_place(tmp_path: Path) -> None:
    url, also = targets(tmp_path)
    save(state_of(), url, also=also, unit_bytes=1 << 20)
    state = blank(state_of())
    before = {name: tensor.data_ptr() for name, tensor in flat(state).items() if isinstance(tensor, torch.Tensor)}
    load(state, url)
    assert_same(state, state_of())
    assert before == {name: t.data_ptr() for name, t in flat(state).items() if isinstance(t, torch.Tensor)}


def test_a_state_comes_back_out_of_nothing_with_its_facts(tmp_path: Path) -> None:
    url, also = targets(tmp_path)
    save(state_of(), url, also=also, facts={"code": "abc"})
    assert_same(load_whole(url), state_of())
    with open_checkpoint(url) as checkpoint:
        assert checkpoint.manifest.step == 12
        assert checkpoint.manifest.facts["code"] == "abc"
        assert checkpoint.manifest.facts["world_size"] == "1"
        assert all(chunk.offset_bytes % 4096 == 0 for t in checkpoint.manifest.tensors for chunk in t.chunks)


@alone
@pytest.mark.parametrize("codec", ["none", "lz4", "zstd_shuffle"])
def test_torchs_own_functions_do_the_same_with_our_writer_and_reader(tmp_path: Path, codec: Any) -> None:
    dcp.save(state_of(), storage_writer=RobustWriter(tmp_path / "step-3", codec=codec), no_dist=True)
    state = blank(state_of())
    dcp.load(state, storage_reader=RobustReader(tmp_path / "step-3"), no_dist=True)
    assert_same(state, state_of())


@alone
def test_one_writer_and_one_reader_serve_many_checkpoints(tmp_path: Path) -> None:
    writer, reader = RobustWriter(also=[str(tmp_path / "more")]), RobustReader()
    for number in range(3):
        dcp.save(state_of(number), checkpoint_id=tmp_path / f"step-{number}", storage_writer=writer, no_dist=True)
    for number in range(3):
        state = blank(state_of())
        dcp.load(state, checkpoint_id=tmp_path / f"step-{number}", storage_reader=reader, no_dist=True)
        assert_same(state, state_of(number))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("name", sorted(BYTES_OF))
def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    if not hasattr(torch, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    dtype = dtype_of(name)
    bits = torch.randint(0, 2 if name == "bool" else 256, (4096,), dtype=torch.uint8)
    state = {"t": bits.view(dtype).reshape(16, -1)}
    save(state, tmp_path / "c")
    loaded = load_whole(tmp_path / "c")["t"]
    assert loaded.dtype == dtype and loaded.shape == state["t"].shape
    assert torch.equal(loaded.view(torch.uint8), state["t"].view(torch.uint8))


def test_a_tensor_may_be_loaded_in_another_dtype_or_memory_order(tmp_path: Path) -> None:
    whole = torch.randn(500, 300)
    save({"t": whole, "u": whole}, tmp_path / "c")
    state = {"t": torch.zeros(500, 300, dtype=torch.float64), "u": torch.zeros(300, 500).t()}
    load(state, tmp_path / "c")
    assert torch.equal(state["t"], whole.double()) and torch.equal(state["u"], whole)


def test_tensors_that_share_memory_both_come_back(tmp_path: Path) -> None:
    tied = torch.randn(100)
    save({"a": tied, "b": tied, "part": tied[10:20]}, tmp_path / "c")
    loaded = load_whole(tmp_path / "c")
    assert torch.equal(loaded["a"], tied) and torch.equal(loaded["b"], tied)
    assert torch.equal(loaded["part"], tied[10:20])


def test_only_what_is_asked_for_is_loaded(tmp_path: Path) -> None:
    save(state_of(), tmp_path / "c")
    state = {"model": {"scalar": torch.tensor(0.0)}}
    load(state, tmp_path / "c")
    assert state["model"]["scalar"] == 3.5


def test_saving_anew_under_a_name_replaces_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    url, also = targets(tmp_path)
    for seed in range(3):
        save(state_of(seed), url, also=also)
    assert_same(load_whole(url), state_of(2))
    assert len(list(Path(url).iterdir())) == 2  # the manifest, and the folder of parts


@alone
def test_a_save_that_fails_leaves_what_the_name_stood_for(tmp_path: Path) -> None:
    save(state_of(1), tmp_path / "c")
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    with pytest.raises(UserError, match=r"'bad'.*sparse"):
        save({**state_of(2), "bad": torch.eye(3).to_sparse()}, tmp_path / "c")
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before
    assert_same(load_whole(tmp_path / "c"), state_of(1))
    writer = RobustWriter(tmp_path / "c")
    with pytest.raises(CheckpointException) as caught:
        dcp.save({"bad": torch.empty(3, device="meta")}, storage_writer=writer, no_dist=True)
    assert isinstance(caught.value.failures[0][0], UserError)
    writer.reset()
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


@alone
@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("\ud800", r"the key 'v\.\\ud800' of the state is text with half a surrogate pair"),
        ("x" * 5000, r"the key 'v\.x{78}'\.\.\. of the state has 5002 characters, at most 4096"),
    ],
    ids=["half a pair", "too long"],
)
def test_a_key_that_no_checkpoint_can_have_is_refused_before_anything_is_written(
    tmp_path: Path, key: str, said: str
) -> None:
    for value in (torch.ones(1), 3):
        with pytest.raises(UserError, match=said):
            save({"v": {key: value}}, tmp_path / "c", step=1)
        with pytest.raises(CheckpointException, match=said):
            dcp.save({"v": {key: value}}, storage_writer=RobustWriter(tmp_path / "c"), no_dist=True)
    assert not (tmp_path / "c").exists()


def test_a_flipped_bit_is_an_error_that_names_file_unit_and_target(tmp_path: Path) -> None:
    url, also = targets(tmp_path)
    save(state_of(), url, also=also, unit_bytes=1 << 20)
    part = next(Path(also[0]).rglob("*.part"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 4
    part.write_bytes(data)
    with pytest.raises(Damaged, match=r"rank-00000\.bin.*unit \d+.*step-12") as caught:
        load(blank(state_of()), url)
    assert pickle.loads(pickle.dumps(caught.value)).unit == caught.value.unit


def test_what_is_no_checkpoint_is_our_error_and_not_torchs(tmp_path: Path) -> None:
    with pytest.raises(NotACheckpoint, match="nothing-there"):
        load({"a": torch.zeros(1)}, tmp_path / "nothing-there")


@alone
def test_torchs_own_load_says_our_reason(tmp_path: Path) -> None:
    with pytest.raises(CheckpointException, match="nothing-there is no checkpoint"):
        dcp.load({"a": torch.zeros(1)}, storage_reader=RobustReader(tmp_path / "nothing-there"), no_dist=True)


def test_an_object_that_needs_code_is_refused_unless_trusted(tmp_path: Path) -> None:
    save({"t": torch.ones(3), "path": Path("/somewhere")}, tmp_path / "c")
    with pytest.raises(ObjectRefused, match="'path'"):
        load_whole(tmp_path / "c")
    assert load_whole(tmp_path / "c", trust_objects=True)["path"] == Path("/somewhere")


@alone
def test_a_state_that_is_not_flattened_comes_back(tmp_path: Path) -> None:
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    dcp.save({"t": torch.arange(5), "o": {"x": 1}}, storage_writer=RobustWriter(tmp_path / "c"), planner=planner)
    assert_same(load_whole(tmp_path / "c"), {"t": torch.arange(5), "o": {"x": 1}})


def test_an_empty_state_is_a_checkpoint(tmp_path: Path) -> None:
    save({}, tmp_path / "c")
    assert load_whole(tmp_path / "c") == {}
    save({"e": torch.empty(0), "f": torch.empty(3, 0)}, tmp_path / "d")
    assert load_whole(tmp_path / "d")["f"].shape == (3, 0)


@alone
def test_ways_of_torch_that_would_lose_a_checkpoint_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="use_collectives"):
        RobustWriter(tmp_path / "c").set_up_storage_writer(True, rank=0, use_collectives=False)
    planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
    with pytest.raises(CheckpointException, match="enable_plan_caching"):
        dcp.save({"t": torch.ones(2)}, storage_writer=RobustWriter(tmp_path / "c"), planner=planner)
    with pytest.raises(UserError, match="checkpoint_id"):
        RobustWriter().set_up_storage_writer(True)
    with pytest.raises(UserError, match="checkpoint_id"):
        RobustReader().opened()


def test_progress_counts_the_bytes(tmp_path: Path) -> None:
    counted: list[int] = []
    state = {"t": torch.randn(1 << 20)}
    save(state, tmp_path / "c", progress=counted.append)
    assert sum(counted) == 4 << 20
    counted.clear()
    load(state, tmp_path / "c", progress=counted.append)
    assert sum(counted) == 4 << 20


@alone
def test_a_save_in_the_background_has_the_state_as_it_was(tmp_path: Path) -> None:
    state = {"t": torch.randn(1000, 1000)}
    expected = state["t"].clone()
    saving = async_save(state, tmp_path / "c")
    state["t"].zero_()
    saving.result(60)
    assert torch.equal(load_whole(tmp_path / "c")["t"], expected)
    with pytest.raises(UserError, match="process group"):
        async_save(state, tmp_path / "c", in_process=True)


def test_there_is_one_metadata_for_all_ranks(tmp_path: Path) -> None:
    save(state_of(), tmp_path / "c")
    reader = RobustReader(tmp_path / "c")
    assert reader.read_metadata(rank=3).state_dict_metadata.keys() == reader.read_metadata().state_dict_metadata.keys()
    reader.close()


def test_modules_and_optimizers_are_saved_and_loaded_as_they_are(tmp_path: Path) -> None:
    def made() -> dict[str, Any]:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    one, other = made(), made()
    save(one, tmp_path / "c")
    load(other, tmp_path / "c")
    assert_same(other["model"].state_dict(), one["model"].state_dict())
    assert_same(other["optimizer"].state_dict(), one["optimizer"].state_dict())


def test_a_state_that_does_not_fit_is_an_error_that_except_exception_catches(tmp_path: Path) -> None:
    save({"a": torch.ones(3)}, tmp_path / "c")
    with pytest.raises(RuntimeError, match="Missing key in checkpoint state_dict: b"):
        load({"b": torch.ones(3)}, tmp_path / "c")
    with pytest.raises(ValueError, match="Size mismatch"):
        load({"a": torch.ones(4)}, tmp_path / "c")
