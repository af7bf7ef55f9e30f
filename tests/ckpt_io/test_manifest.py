"""Whatever bytes a manifest has: it is what was encoded, or it is refused. Nothing else, and at bounded cost."""

from __future__ import annotations

import base64
import copy
import json
import tracemalloc
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from robust_run.ckpt_io.errors import ManifestRefused
from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.ckpt_io.rules import manifest as manifests
from robust_run.ckpt_io.rules.layout import pack_bits, pack_lengths
from robust_run.ckpt_io.rules.types import Blob, Chunk, LogicalFile, Manifest, Tensor
from robust_run.store import paths
from robust_run.store.engine import Retry
from robust_run.store.errors import NotFound

MIB = 1 << 20


def digests(units: int) -> str:
    return base64.b64encode(bytes(16 * units)).decode()


VALID = Manifest(
    uuid="ab" * 16,
    created_s=1.5e9,
    step=7,
    targets=(".", "/ssd1/run/step-7", "hdfs://nn/run/step-7"),
    files=(
        LogicalFile(name="rank0.bin", size_bytes=3 * MIB + 5, unit_bytes=MIB, digests=digests(4)),
        LogicalFile(
            name="more/rank1.bin",
            size_bytes=2 * MIB,
            unit_bytes=MIB,
            first_target=1,
            codec="zstd_shuffle",
            item_bytes=4,
            digests=digests(2),
            stored=pack_lengths([100, MIB]),
            raw_units=pack_bits([False, True]),
        ),
        LogicalFile(name="empty", size_bytes=0),
    ),
    tensors=(
        Tensor(
            name="model.w",
            dtype="bfloat16",
            sizes=(1024, 512),
            chunks=(
                Chunk(offsets=(0, 0), sizes=(512, 512), file=0, offset_bytes=0),
                Chunk(offsets=(512, 0), sizes=(512, 512), file=1, offset_bytes=4096),
            ),
        ),
        Tensor(
            name="step", dtype="int64", sizes=(), chunks=(Chunk(offsets=(), sizes=(), file=0, offset_bytes=2 * MIB),)
        ),
    ),
    blobs=(Blob(name="optimizer.groups", file=0, offset_bytes=3 * MIB, size_bytes=5),),
    paths={"model.w": ("model", "w"), "optimizer.groups": ("optimizer", 0, "groups")},
    facts={"world_size": "2"},
)


def signed(body: bytes, version: int = 1) -> bytes:
    """What an attacker writes: right in form, and with the right digest."""
    return b"rrck %d %s %d\n" % (version, xxhash.xxh3_128_hexdigest(body).encode(), len(body)) + body


def tree() -> dict[str, Any]:
    found = json.loads(msgspec.json.encode(VALID))
    assert isinstance(found, dict)
    return found


def test_a_manifest_comes_back() -> None:
    data = manifests.encode(VALID)
    assert manifests.decode(data) == VALID
    assert data.startswith(b"rrck 1 ") and manifests.decode(signed(json.dumps(tree()).encode())) == VALID


def test_every_flipped_bit_is_refused() -> None:
    data = bytearray(manifests.encode(VALID))
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            with pytest.raises(ManifestRefused):
                manifests.decode(bytes(data))
            data[at] ^= 1 << bit


def test_every_truncation_and_anything_after_it_is_refused() -> None:
    data = manifests.encode(VALID)
    for end in range(len(data)):
        with pytest.raises(ManifestRefused):
            manifests.decode(data[:end])
    with pytest.raises(ManifestRefused, match="bytes"):
        manifests.decode(data + b"\n")


def test_another_version_is_refused_by_its_number() -> None:
    with pytest.raises(ManifestRefused, match="of version 2, this robust-run reads version 1"):
        manifests.decode(signed(b'{"new": "format"}', version=2))


def changed(*path_and_value: Any) -> bytes:
    *path, last, value = path_and_value
    changed_tree = tree()
    place: Any = changed_tree
    for step in path:
        place = place[step]
    place[last] = value
    return signed(json.dumps(changed_tree).encode())


REFUSED = [
    (changed("files", 0, "name", "../../etc/passwd"), "relative path"),
    (changed("files", 0, "name", "/etc/passwd"), "relative path"),
    (changed("files", 0, "name", "a\0b"), "relative path"),
    (changed("files", 0, "name", "more"), "is a file itself"),
    (changed("files", 0, "name", "empty"), "named twice"),
    (changed("files", 0, "size_bytes", 1 << 50), "digests has"),
    (changed("files", 0, "size_bytes", 10**4000), "is not from 0"),
    (changed("files", 0, "size_bytes", -1), "is not from 0"),
    (changed("files", 0, "size_bytes", "12"), "Expected `int`"),
    (changed("files", 0, "unit_bytes", 1), "no power of two"),
    (changed("files", 0, "unit_bytes", 3 * MIB), "no power of two"),
    (changed("files", 0, "unit_bytes", 1 << 40), "no power of two"),
    (changed("files", 0, "first_target", 3), "first target"),
    (changed("files", 0, "codec", "pickle"), "Invalid enum value"),
    (changed("files", 0, "surprise", 1), "unknown field"),
    (changed("files", 1, "stored", pack_lengths([100, MIB + 1])), "stored length"),
    (changed("files", 1, "stored", pack_lengths([0, MIB])), "stored length"),
    (changed("files", 1, "item_bytes", 3), "item of"),
    (changed("targets", []), "0 targets"),
    (changed("targets", ["/elsewhere"]), "first of them"),
    (changed("targets", 1, "../../secrets"), "no absolute path"),
    (changed("targets", 1, "/a/../../secrets"), "no absolute path"),
    (changed("targets", 1, "hdfs://nn/run/step-7"), "named twice"),
    (changed("uuid", "../" + "a" * 29), "hexadecimal"),
    (changed("uuid", "AB" * 16), "hexadecimal"),
    (changed("step", -1), "step"),
    (changed("created_s", -5), "no time"),
    (changed("tensors", 0, "chunks", 1, "offset_bytes", 2 * MIB - 1000), "are not within"),
    (changed("tensors", 0, "chunks", 1, "offset_bytes", -4096), "are not within"),
    (changed("tensors", 0, "chunks", 1, "file", 9), "no logical file"),
    (changed("tensors", 0, "chunks", 1, "file", -1), "no logical file"),
    (changed("tensors", 0, "chunks", 0, "sizes", [1 << 40, 1 << 40]), r"2\*\*60|not within"),
    (changed("tensors", 0, "sizes", [1024, 513]), "elements"),
    (changed("tensors", 0, "dtype", "float31"), "not known"),
    (changed("tensors", 0, "chunks", 1, "offsets", [0, 0]), "overlap"),
    (changed("tensors", 1, "chunks", 0, "offset_bytes", 100), "both own"),
    (changed("tensors", 1, "name", "model.w"), "named twice"),
    (changed("blobs", 0, "size_bytes", 6), "are not within"),
    (changed("blobs", 0, "size_bytes", 1 << 62), "are not within"),
    (changed("paths", "model.w", []), "has 0 parts"),
    (changed("paths", "nobody", ["a"]), "neither"),
    (changed("paths", "model.w", ["a", 1.5]), "Expected"),
    (signed(b"[" * 200_000), "does not say"),
    (signed(b'{"facts":' * 100_000), "does not say"),
    (signed(b""), "does not say"),
    (signed(b"\xff\xfe"), "does not say"),
    (signed(b'{"files": [' + b"1," * (1 << 24) + b"1]}"), "values"),
    (b"", "does not begin"),
    (b"\x80\x04cos\nsystem\n", "does not begin"),
    (b"rrck 1 " + b"0" * 32 + b" 99999999999\n{}", "after its first line"),
]


@pytest.mark.parametrize(("data", "why"), REFUSED, ids=[f"{index}: {why}" for index, (_, why) in enumerate(REFUSED)])
def test_what_cannot_be_is_refused_and_says_why(data: bytes, why: str) -> None:
    with pytest.raises(ManifestRefused, match=why) as refused:
        manifests.decode(data)
    assert len(str(refused.value)) < 1000 and "\n" not in str(refused.value)


def test_more_than_the_limit_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MANIFEST_BYTES", 1000)
    with pytest.raises(ManifestRefused, match="at most 1000"):
        manifests.decode(signed(json.dumps(tree()).encode()))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 5)
    | st.sampled_from([1 << 31, 1 << 53, 1 << 62, 1 << 63, 1 << 64, 10**400, MIB])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["..", "../x", "/etc", ".", "lz4", "zstd_shuffle", "float32", "AAAA", "model.w", "hdfs://x/y"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    for key, below in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        found += places(below, (*path, key))
    return found


PLACES = places(tree())


@settings(max_examples=600)
@given(st.lists(st.tuples(st.sampled_from(PLACES), json_values, st.booleans()), min_size=1, max_size=3))
def test_a_crafted_manifest_leads_nowhere(changes: list[tuple[tuple[Any, ...], Any, bool]]) -> None:
    """With any of its values replaced, doubled or left out, and the digest made right again."""
    crafted = copy.deepcopy(tree())
    for (*above, last), value, leave_out in changes:
        node: Any = crafted
        try:
            for key in above:
                node = node[key]
            if leave_out:
                del node[last]
            else:
                node[last] = value
        except (KeyError, IndexError, TypeError):
            continue
    data = signed(json.dumps(crafted).encode())
    tracemalloc.start()
    try:
        accepted = manifests.decode(data)
    except ManifestRefused:
        return
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < 4 * MIB
    for layout in manifests.layouts(accepted):
        assert paths.is_clean(layout.file.name)
        for unit in range(layout.units):
            place = layout.place(unit)
            assert paths.is_clean(place.path) and place.path.startswith(f"parts-{accepted.uuid}/")
            assert 0 < place.stored_bytes <= place.size_bytes <= 64 * MIB
    assert manifests.decode(manifests.encode(accepted)) == accepted
    opened = OnlyManifest(data)
    with open_checkpoint("/disk/run/ck", stores=opened, retry=Retry(attempts=1)) as checkpoint:
        faults = checkpoint.check()
        assert len(faults) >= sum(layout.units for layout in checkpoint.layouts)  # there are no parts
    assert all(paths.scheme_of(url) in ("", "file") for url in opened.urls)


class OnlyManifest:
    """Opens stores that hold the same manifest and nothing else, and notes which."""

    writable, threads, url = False, 1, "/disk/run/ck"

    def __init__(self, data: bytes) -> None:
        self.data, self.urls = data, list[str]()

    def __call__(self, url: str) -> OnlyManifest:
        self.urls.append(url)
        return self

    def read_all(self, path: str, limit_bytes: int) -> bytes:
        if path != "MANIFEST":
            raise NotFound(self.url, paths.clean(path), "no such file")
        return self.data

    def read_into(self, path: str, *_: object) -> None:
        raise NotFound(self.url, paths.clean(path), "no such file")

    def close(self) -> None:
        """Nothing is open."""


@settings(max_examples=300)
@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_refused(garbage: bytes, with_header: bool) -> None:
    with pytest.raises(ManifestRefused):
        manifests.decode(signed(garbage) if with_header else garbage)


def test_what_could_not_be_read_back_is_not_written() -> None:
    for wrong in ({"uuid": "x"}, {"facts": {"lone surrogate": "\ud800"}}, {"targets": ("elsewhere",)}):
        with pytest.raises(ManifestRefused):
            manifests.encode(msgspec.structs.replace(VALID, **wrong))
