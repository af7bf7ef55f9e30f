"""Writing a rank's logical file: at once where memory is written as it lies, as a stream where too much must be copied."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex

from robust_run.ckpt_io.dcp.sources import SavedItem, write
from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.ckpt_io.rules.segments import StoredItem
from robust_run.ckpt_io.saving import begin_save, commit
from robust_run.errors import UserError


def sources() -> list[SavedItem]:
    big = torch.randn(900, 1000)
    rows = [
        (big.t(), False),
        (torch.frombuffer(bytearray(b"object"), dtype=torch.uint8), True),
        (big[:, ::3], False),
        (torch.tensor(2.5), False),
        (torch.empty(0), False),
        (big[:7], False),
    ]
    return [SavedItem(MetadataIndex(str(number)), tensor, is_object) for number, (tensor, is_object) in enumerate(rows)]


def saved(folder: Path, copies_bytes: int) -> tuple[list[SavedItem], list[StoredItem], bytes]:
    given = sources()
    plan = begin_save(str(folder / "c"), also=[str(folder / "more")], unit_bytes=1 << 20)
    counted: list[int] = []
    stored = write(plan, 0, "f", given, copies_bytes=copies_bytes, progress=counted.append)
    commit(plan, [stored[0].logical])
    assert sum(counted) == stored[0].logical.size_bytes
    with open_checkpoint(str(folder / "c")) as checkpoint:
        return given, stored, checkpoint.read_bytes(0, 0, stored[0].logical.size_bytes)


@pytest.mark.parametrize("copies_bytes", [1 << 30, 0])
def test_each_source_lies_where_it_is_said_to(tmp_path: Path, copies_bytes: int) -> None:
    given, stored, data = saved(tmp_path, copies_bytes)
    for source, item in zip(given, stored, strict=True):
        segment = item.segment
        expected = source.tensor.contiguous().reshape(-1).view(torch.uint8)
        found = data[segment.offset_bytes : segment.offset_bytes + segment.size_bytes]
        assert found == bytes(expected.tolist())
        assert segment.sizes == tuple(source.tensor.shape)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_a_tensor_that_cannot_be_saved_is_named(tmp_path: Path) -> None:
    plan = begin_save(str(tmp_path / "c"))
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(UserError, match=r"'w' of dtype qint8.*dequantize"):
        write(plan, 0, "f", [SavedItem(MetadataIndex("w"), quantised, is_object=False)])
