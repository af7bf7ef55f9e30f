"""docs/checkpoint-format.md is enough to read a checkpoint: this reader was written from it, and uses nothing of ours."""

from __future__ import annotations

import base64
import json
import re
import struct
from pathlib import Path
from typing import Any

import lz4.block
import msgspec
import pytest
import xxhash
import zstandard
from saved_checkpoints import MIB, content, contents, save

from robust_run.ckpt_io.rules import boxes, manifest, types
from robust_run.ckpt_io.rules.types import Codec
from robust_run.ckpt_io.saving import FilePiece, begin_save, commit, write_file

DOCUMENT = (Path(__file__).parents[2] / "docs" / "checkpoint-format.md").read_text()


def read_by_the_document(folder: Path) -> dict[str, bytes]:
    """All logical files of a checkpoint."""
    line, _, body = (folder / "MANIFEST").read_bytes().partition(b"\n")
    word, version, digest, length = line.decode("ascii").split(" ")
    assert (word, version, int(length)) == ("rrck", "1", len(body))
    assert xxhash.xxh3_128(body, seed=0).hexdigest() == digest
    held = json.loads(body)
    targets = [folder, *map(Path, held.get("targets", ["."])[1:])]
    for target in targets[1:]:
        assert (target / f"MANIFEST-{held['uuid']}").read_bytes() == line + b"\n" + body
    return {file["name"]: read_file(held["uuid"], targets, index, file) for index, file in enumerate(held["files"])}


def read_file(uuid: str, targets: list[Path], index: int, file: dict[str, Any]) -> bytes:
    size, unit_bytes, codec = file["size_bytes"], file.get("unit_bytes", 8388608), file.get("codec", "none")
    digests, count = base64.b64decode(file["digests"]), -(-size // unit_bytes)
    lengths = [min(size, (unit + 1) * unit_bytes) - unit * unit_bytes for unit in range(count)]
    raw = base64.b64decode(file.get("raw_units", "")) or bytes(count)
    stored = lengths if codec == "none" else list(struct.unpack(f"<{count}I", base64.b64decode(file["stored"])))
    whole = b""
    for unit in range(count):
        target = (unit + file.get("first_target", 0)) % len(targets)
        offset = sum(stored[before] for before in range(unit - len(targets), -1, -len(targets)))
        if codec == "none":
            assert offset == unit // len(targets) * unit_bytes
        with open(targets[target] / f"parts-{uuid}" / f"{index:05d}-{target}.part", "rb") as part:
            part.seek(offset)
            data = part.read(stored[unit])
        assert xxhash.xxh3_128(data).digest() == digests[16 * unit : 16 * unit + 16]
        is_raw = codec == "none" or raw[unit // 8] >> unit % 8 & 1
        whole += data if is_raw else decoded(codec, file.get("item_bytes", 1), data, lengths[unit])
    return whole


def decoded(codec: str, k: int, data: bytes, length: int) -> bytes:
    if codec == "lz4":
        return bytes(lz4.block.decompress(data, uncompressed_size=length))
    plain, m = zstandard.ZstdDecompressor().decompress(data), length // k
    return bytes(plain[place * m + item] for item in range(m) for place in range(k)) + plain[m * k :]


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd_shuffle"])
@pytest.mark.parametrize("targets", [1, 3])
def test_the_document_is_enough_to_read(tmp_path: Path, codec: Codec, targets: int) -> None:
    held = {**contents(4, size_bytes=3_200_001), "none": b"", "deep/er": b"abc"}
    save(f"{tmp_path}/0/ck", held, [f"{tmp_path}/{target}" for target in range(1, targets)], codec=codec)
    assert read_by_the_document(tmp_path / "0/ck") == held


def test_a_mix_of_raw_and_encoded_units_is_read(tmp_path: Path) -> None:
    plan = begin_save(f"{tmp_path}/ck", unit_bytes=MIB, codec="lz4")
    import os

    data = os.urandom(MIB) + bytes(MIB) + os.urandom(MIB) + bytes(100)
    file = write_file(plan, 0, "mix", [FilePiece(0, memoryview(data))], len(data))
    commit(plan, [file])
    assert base64.b64decode(file.raw_units) == bytes([0b101])
    assert read_by_the_document(tmp_path / "ck") == {"mix": data}


def test_a_checkpoint_written_by_the_document_is_ours(tmp_path: Path) -> None:
    """As it stands in the document: only fields without a default, white space, any order."""
    from robust_run.ckpt_io.reading import open_checkpoint

    data, uuid = content(1, 10_000), "0123456789abcdef" * 2
    digests = base64.b64encode(xxhash.xxh3_128(data).digest()).decode()
    held = {
        "files": [{"digests": digests, "size_bytes": len(data), "name": "model.bin"}],
        "created_s": 1700000000,
        "uuid": uuid,
    }
    body = json.dumps(held, indent=1).encode()
    (tmp_path / f"parts-{uuid}").mkdir()
    (tmp_path / f"parts-{uuid}" / "00000-0.part").write_bytes(data)
    line = f"rrck 1 {xxhash.xxh3_128(body).hexdigest()} {len(body)}\n"
    (tmp_path / "MANIFEST").write_bytes(line.encode() + body)
    with open_checkpoint(str(tmp_path)) as opened:
        assert opened.read_bytes(0, 0, len(data)) == data and opened.check() == []


def test_the_document_names_all_fields_dtypes_and_limits() -> None:
    for kind in (types.Manifest, types.LogicalFile, types.Tensor, types.Chunk, types.Blob):
        for field in msgspec.structs.fields(kind):
            assert f"`{field.name}`" in DOCUMENT or f'"{field.name}"' in DOCUMENT, f"{kind.__name__}.{field.name}"
    for dtype in boxes.BYTES_OF:
        assert f"`{dtype}`" in DOCUMENT
    assert f"rrck`, version {types.VERSION}" in DOCUMENT
    limits = {manifest.TARGETS, types.UNIT_BYTES, manifest.PATH_PARTS, manifest.TEXT_BYTES, boxes.DIMENSIONS}
    assert all(re.search(rf"\b{limit}\b", DOCUMENT) for limit in limits)
