"""A file of torch.save without a storage that it names is told from every kind of whole one. Nothing is unpickled."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.foreign.torch_records import missing_records, storage_keys

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, of what is deprecated


def saved(value: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def missing(data: bytes) -> str:
    return missing_records(lambda offset, size: data[offset : offset + size], len(data))


def scripted() -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), buffer)
    return buffer.getvalue()


def zipped(records: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def numpy_archive() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.arange(100))
    return buffer.getvalue()


def without_data() -> bytes:
    with torch.serialization.skip_data():
        return saved(STATE)


def packaged() -> bytes:
    buffer = io.BytesIO()
    with torch.package.PackageExporter(buffer) as exporter:
        exporter.save_pickle("model", "data.pkl", torch.arange(3))
    return buffer.getvalue()


def exported() -> bytes:
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), buffer)
    return buffer.getvalue()


def stepped() -> dict[str, Any]:
    model = torch.nn.Linear(20, 20)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 20)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state(), "step": 7}


BASE = torch.arange(40.0)
STATE = {"a": torch.arange(4.0), "b": torch.ones(3, dtype=torch.bfloat16), "0": 1, "cpu": "storage"}
WHOLE: dict[str, Callable[[], bytes]] = {
    "a state": lambda: saved(STATE),
    "a model and its optimizer": lambda: saved(stepped()),
    "a whole module": lambda: saved(torch.nn.Linear(2, 2)),
    "views of one storage": lambda: saved([BASE, BASE[3:5], BASE.view(4, 10).t()]),
    "one tensor": lambda: saved(BASE),
    "empty tensors": lambda: saved({"e": torch.empty(0), "f": torch.empty(3, 0), "a": BASE}),
    "sparse": lambda: saved({"s": torch.eye(3).to_sparse(), "c": torch.eye(3).to_sparse_csr()}),
    "quantized": lambda: saved(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)),
    "nested": lambda: saved(
        {"a": [{"b": (BASE, {"c": [torch.ones(2)]})}], "many": {n: torch.ones(1) for n in range(300)}}
    ),
    "no tensors": lambda: saved({"step": 3, "text": "storage", "list": list(range(1000))}),
    "nothing": lambda: saved(None),
    "tuples of five": lambda: saved([("storage", "x", "9", "cpu", 4), BASE, ("storage", "x", "9", "cpu", 4)]),
    "on meta": lambda: saved({"m": torch.empty(3, device="meta"), "a": BASE}),
    "storages": lambda: saved([torch.UntypedStorage(5), torch.ones(3).storage(), BASE.untyped_storage()]),
    "numpy and bytes": lambda: saved({"n": np.arange(30), "b": saved(STATE)}),
    "protocol 4": lambda: saved(STATE | {"views": [BASE, BASE[1:]]}, pickle_protocol=4),
    "protocol 5": lambda: saved(stepped(), pickle_protocol=5),
    "the pickle module in Python": lambda: saved(STATE, pickle_module=PurePickle),
    "without data": without_data,
    "of before 1.6": lambda: saved(STATE, _use_new_zipfile_serialization=False),
    "a script": scripted,
    "a package": packaged,
    "an export": exported,
    "numpy": numpy_archive,
    "a zip archive": lambda: zipped({"a/b": b"1", "c": b"2"}),
    "a folder with a pickle": lambda: zipped({"a/data.pkl": pickle.dumps([1]), "a/x": b"2"}),
    "an empty zip archive": lambda: zipped({}),
    "a version": lambda: zipped({"a/version": b"1"}),
}


class PurePickle:
    Pickler = pickle._Pickler  # type: ignore[attr-defined]
    Unpickler = pickle._Unpickler  # type: ignore[attr-defined]


@cache
def whole(kind: str) -> bytes:
    return WHOLE[kind]()


@pytest.mark.parametrize("kind", WHOLE)
def test_nothing_is_missing_in_whole_ones(kind: str) -> None:
    assert missing(whole(kind)) == ""


TORN = ("a state", "a model and its optimizer", "views of one storage", "one tensor", "nested", "protocol 4", "protocol 5",
        "the pickle module in Python", "sparse")  # fmt: skip


def torn(data: bytes, keep: Callable[[str], bool]) -> bytes:
    """Write an archive of torch as an exception leaves it: some records, and its directory."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return zipped({name: archive.read(name) for name in archive.namelist() if keep(name)})


@pytest.mark.parametrize("kind", TORN)
def test_what_an_exception_leaves_is_not_whole(kind: str) -> None:
    with zipfile.ZipFile(io.BytesIO(whole(kind))) as archive:
        storages = [name for name in archive.namelist() if "/data/" in name]
    assert storages
    for name in storages[:3] + storages[-3:]:
        assert "without 1 of its" in missing(torn(whole(kind), lambda each, name=name: each != name))
    assert f"without {len(storages)} of its {len(storages)}" in missing(
        torn(whole(kind), lambda each: "/data/" not in each)
    )


def test_what_an_exception_leaves_before_the_first_record() -> None:
    class Bad:
        def __reduce__(self) -> Any:
            raise KeyboardInterrupt

    buffer = io.BytesIO()
    with pytest.raises(KeyboardInterrupt):
        torch.save({"a": Bad()}, buffer)
    assert "nothing was saved" in missing(buffer.getvalue())


def test_what_torch_itself_writes_when_it_is_unwound() -> None:
    buffer = io.BytesIO()
    with pytest.raises(NotImplementedError):  # a storage that cannot be written, behind those that could
        torch.save([torch.ones(1000), torch.UntypedStorage(5, device="meta"), torch.ones(9)], buffer)
    assert "without 1 of its 2 storages" in missing(buffer.getvalue())


@given(st.binary(max_size=300))
def test_any_bytes_are_a_pickle_without_names_of_storages(data: bytes) -> None:
    assert storage_keys(data) == ()


@given(st.data())
def test_a_damaged_pickle_is_no_crash(data: st.DataObject) -> None:
    with zipfile.ZipFile(io.BytesIO(whole("a model and its optimizer"))) as archive:
        pickled = bytearray(archive.read("archive/data.pkl"))
    pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(st.integers(0, 255))
    storage_keys(bytes(pickled))
