"""OCDBT databases, as TensorStore writes them."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tensorstore as ts
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.errors import (
    CordwoodError,
    CorruptionError,
    FormatError,
    LimitError,
    TruncatedError,
)
from cordwood.formats.ocdbt.data_files import DataFile
from cordwood.formats.ocdbt.envelope import MAX_NODE_BYTES
from cordwood.formats.ocdbt.manifest import parse_manifest
from cordwood.formats.ocdbt.nodes import NodeReference, parse_node
from cordwood.formats.ocdbt.values import INLINE_NAME, OcdbtValues
from cordwood.formats.zarr.array_reader import ends_in_crc32c
from cordwood.storage.local_directory import LocalDirectory
from tests.formats.orbax.orbax_trees import copied
from tests.memory import traced_memory
from tests.old_files import write_old


def written(path: Path, values: dict[str, bytes], **config: Any) -> None:
    """Return a database with these values, each put in by itself: as many versions."""
    spec = {"driver": "ocdbt", "base": f"file://{path}/", "config": config}
    store = ts.KvStore.open(spec).result()
    for key, value in values.items():
        store.write(key, value).result()


def read(path: Path) -> dict[str, bytes]:
    with LocalDirectory(path) as directory:
        database = OcdbtValues(directory)
        result = {}
        for key in database.keys:
            place = database.find("", key)
            assert place is not None
            result[key] = database.read(place, 0, place.length)
        return result


@given(
    values=st.dictionaries(st.text(max_size=12), st.binary(max_size=40), max_size=40),
    inline=st.sampled_from([0, 8, 1024]),
    node=st.sampled_from([1, 200, 100_000_000]),
    compression=st.sampled_from([None, {"id": "zstd"}]),
)
@settings(max_examples=60)
def test_every_key_and_value(
    values: dict[str, bytes], inline: int, node: int, compression: Any
) -> None:
    """Small nodes make a tree of several levels."""
    with tempfile.TemporaryDirectory() as folder:
        written(
            Path(folder),
            values,
            max_inline_value_bytes=inline,
            max_decoded_node_bytes=node,
            compression=compression,
        )
        if values:
            assert read(Path(folder)) == values


def test_many_keys_in_many_nodes(tmp_path: Path) -> None:
    values = {f"layers.{i}/c/{i % 7}": bytes([i % 256]) * (i % 300) for i in range(2000)}
    spec = {
        "driver": "ocdbt",
        "base": f"file://{tmp_path}/",
        "config": {"max_inline_value_bytes": 100, "max_decoded_node_bytes": 2000},
    }
    store = ts.KvStore.open(spec).result()
    with ts.Transaction() as transaction:
        for key, value in values.items():
            store.with_transaction(transaction)[key] = value
    assert read(tmp_path) == values
    with LocalDirectory(tmp_path) as directory:
        assert 2000 < OcdbtValues(directory).checked_bytes < 200_000


def test_databases_of_several_processes_merged(tmp_path: Path) -> None:
    """Merge as Orbax does: the merged tree refers to values, and to whole nodes, of the others."""
    config = {"max_inline_value_bytes": 10, "max_decoded_node_bytes": 300}
    context = ts.Context()

    def opened(folder: Path, **options: Any) -> Any:
        base = {"driver": "file", "path": f"{folder}/"}
        return ts.KvStore.open({"driver": "ocdbt", "base": base, **options}, context=context)

    expected: dict[str, bytes] = {}
    merged = opened(tmp_path, config=config).result()
    with ts.Transaction(atomic=True) as transaction:
        for process in range(3):
            folder = tmp_path / f"ocdbt.process_{process}"
            values = {f"{process}.{i}/c": bytes([process]) * i for i in range(50)}
            written(folder, values, **config)
            part = opened(folder).result()
            part.experimental_copy_range_to(merged.with_transaction(transaction)).result()
            expected |= values
    assert read(tmp_path) == expected
    with LocalDirectory(tmp_path) as directory:
        names = [source.name for source in OcdbtValues(directory).sources]
    assert any(name.startswith("ocdbt.process_2/d/") for name in names)


def test_the_newest_version_counts(tmp_path: Path) -> None:
    for i in range(40):  # more than the manifest lists by itself
        written(tmp_path, {"a": bytes([i])})
    assert read(tmp_path) == {"a": bytes([39])}


def test_numbered_manifests_are_refused(tmp_path: Path) -> None:
    written(tmp_path, {"a": b"1"}, manifest_kind="numbered")
    with pytest.raises(CordwoodError, match=r"manifest.ocdbt: numbered manifests are not read"):
        read(tmp_path)


def test_a_crc32c_is_checked() -> None:
    """The examples of RFC 3720, B.4."""
    assert ends_in_crc32c(bytes(32) + bytes.fromhex("aa36918a"))
    assert ends_in_crc32c(b"\xff" * 32 + bytes.fromhex("43aba862"))
    assert ends_in_crc32c(bytes(range(32)) + bytes.fromhex("4e79dd46"))
    assert not ends_in_crc32c(bytes(range(32)) + bytes.fromhex("4e79dd47"))
    assert not ends_in_crc32c(b"abc")


def nodes(path: Path) -> list[Path]:
    """Return the manifest, and the files that hold nothing but nodes."""
    return [path / "manifest.ocdbt", *path.glob("d/*")]


@pytest.mark.parametrize("layout", ["v0-zarr2-ocdbt", "v1"])
def test_every_flipped_byte_of_a_node_is_noticed(tmp_path: Path, layout: str) -> None:
    path = copied(layout, tmp_path)
    for file in nodes(path):
        data = file.read_bytes()
        for i in range(len(data)):
            write_old(file, data[:i] + bytes([data[i] ^ 0x40]) + data[i + 1 :])
            with pytest.raises((CorruptionError, FormatError), match=file.name):
                read(path)
        file.write_bytes(data)
    read(path)


@pytest.mark.parametrize("layout", ["v0-zarr2-ocdbt", "v1"])
def test_every_cut_of_a_node_is_noticed(tmp_path: Path, layout: str) -> None:
    path = copied(layout, tmp_path)
    for file in nodes(path):
        data = file.read_bytes()
        for size in (0, 3, 4, 11, 12, 14, len(data) // 2, len(data) - 1):
            file.write_bytes(data[:size])
            with pytest.raises((CorruptionError, FormatError), match=file.name):
                read(path)
        file.write_bytes(data)


def test_missing_and_short_data(tmp_path: Path) -> None:
    path = copied("v1", tmp_path)
    with LocalDirectory(path) as directory:
        sources = OcdbtValues(directory).sources
    assert sources[0].name == INLINE_NAME
    name = max((s.size_bytes, s.name) for s in sources[1:])[1]
    data = (path / name).read_bytes()
    (path / name).write_bytes(data[:1000])
    with pytest.raises(TruncatedError, match=f"{name}: expected .* the file ends at 1000; copy"):
        read(path)
    (path / name).unlink()
    with pytest.raises(CorruptionError, match=f"{name} is missing: the checkpoint is incomplete"):
        read(path)
    (path / name).mkdir()
    with pytest.raises(CorruptionError, match=f"{name} is not a regular file"):
        read(path)


# Nodes put together by hand, with right checksums.


def checksum(data: bytes) -> bytes:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return (state ^ 0xFFFFFFFF).to_bytes(4, "little")


def wrapped(magic: int, body: bytes, *, version: int = 0, compression: int = 0) -> bytes:
    rest = bytes([version, compression]) + body
    data = magic.to_bytes(4, "big") + (len(rest) + 16).to_bytes(8, "little") + rest
    return data + checksum(data)


def number(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def numbers(*values: int) -> bytes:
    return b"".join(map(number, values))


def table(*paths: bytes, bases: tuple[int, ...] = ()) -> bytes:
    shared = [0] * (len(paths) - 1)
    return (
        numbers(len(paths), *shared, *map(len, paths), *(bases or [0] * len(paths)))
        + b"".join(paths)
    )  # fmt: skip


CONFIG = bytes(16) + numbers(0, 1024, 10**8) + b"\x04" + numbers(0)
MANIFEST, NODE = 0x0CDB3A2A, 0x0CDB20DE


def manifest(
    length: int, *, path: bytes = b"n", offset: int = 0, height: int = 0, more: bytes = b""
) -> bytes:
    versions = numbers(1, 1) + bytes([height]) + numbers(0, offset, length, 0, 0, 0)
    return wrapped(MANIFEST, CONFIG + table(path) + versions + bytes(8) + numbers(0) + more)


def leaf_node(*keys: bytes, files: bytes = numbers(0), more: bytes = b"") -> bytes:
    body = b"\x00" + files + numbers(len(keys), *[0] * (len(keys) - 1), *map(len, keys))
    return wrapped(
        NODE,
        body
        + b"".join(keys)
        + numbers(*[1] * len(keys), *[0] * len(keys))
        + keys[0][:1] * len(keys)
        + more,
    )


def test_a_node_made_by_hand_is_read(tmp_path: Path) -> None:
    node = leaf_node(b"a", b"b")
    (tmp_path / "n").write_bytes(node)
    (tmp_path / "manifest.ocdbt").write_bytes(manifest(len(node)))
    assert read(tmp_path) == {"a": b"a", "b": b"a"}


def inner_node(length: int, *keys: bytes, height: int = 1, more: bytes = b"") -> bytes:
    count = len(keys)
    body = bytes([height]) + table(b"n") + numbers(count, *[0] * (count - 1), *map(len, keys))
    body += numbers(*[0] * count) + b"".join(keys) + numbers(*[0] * count * 2)
    return wrapped(NODE, body + numbers(*[length] * count, *[0] * count * 3) + more)


HOSTILE: dict[str, tuple[bytes, bytes, str]] = {
    "a path upwards": (manifest(9, path=b"../n"), b"", r"'../n' is not a path of plain names"),
    "an absolute path": (manifest(9, path=b"/etc/passwd"), b"", "is not a path of plain names"),
    "a path that is no text": (manifest(9, path=b"\xff"), b"", "is not UTF-8"),
    "a null character": (manifest(9, path=b"a\0b"), b"", "is not a path of plain names"),
    "a long name": (manifest(9, path=b"x" * 300), b"", "is too long for a file name"),
    "another version": (wrapped(MANIFEST, CONFIG, version=1), b"", "version 1, compression 0; ex"),
    "another compression": (wrapped(MANIFEST, CONFIG, compression=2), b"", "compression 2; exp"),
    "no zstd": (wrapped(MANIFEST, CONFIG, compression=1), b"", "it cannot be decompressed"),
    "no config": (wrapped(MANIFEST, b""), b"", "it ends too early: 16 bytes expected at 0 of 0"),
    "an endless number": (wrapped(MANIFEST, bytes(16) + b"\x80" * 20), b"", "numbers of up to 64"),
    "a huge number": (
        wrapped(MANIFEST, bytes(16) + b"\xff" * 9 + b"\x02"),
        b"",
        "a number of more than 64 bits",
    ),
    "a longer number": (wrapped(MANIFEST, bytes(16) + b"\x80" * 10 + b"\0"), b"", "up to 64 bits"),
    "a root that is beyond": (manifest(99, offset=2**62), b"", "but the file ends at 0; copy"),
    "another height": (
        manifest(len(leaf_node(b"a")), height=1),
        leaf_node(b"a"),
        "the node at byte 0: expected a node of height 1, found one of 0",
    ),
    "a key twice": (
        manifest(len(leaf_node(b"a", b"a"))),
        leaf_node(b"a", b"a"),
        "the key b'a' does not come after b'a'",
    ),
    "keys in no order": (
        manifest(len(leaf_node(b"b", b"a"))),
        leaf_node(b"b", b"a"),
        "the key b'a' does not come after b'b'",
    ),
    "children in no order": (
        manifest(len(inner_node(99, b"b", b"a")), height=1),
        inner_node(99, b"b", b"a"),
        "the key b'a' does not come after b'b'",
    ),
    "a long key": (
        manifest(len(leaf_node(b"k" * 9000))),
        leaf_node(b"k" * 9000),
        "a key of 9000 bytes; expected at most 8192",
    ),
    "more after a leaf": (
        manifest(len(leaf_node(b"a", more=b"xy"))),
        leaf_node(b"a", more=b"xy"),
        "expected the end at 8, found 2 more bytes",
    ),
    "more after an inner node": (
        manifest(len(inner_node(99, b"a", more=b"x")), height=1),
        inner_node(99, b"a", more=b"x"),
        "expected the end at [0-9]+, found 1 more byte",
    ),
    "more after a manifest": (manifest(9, more=b"x"), b"", "expected the end at 47, found 1 more"),
    "a node of gigabytes": (
        manifest(1 << 40),
        b"\0" * 100,
        "expected 1099511627776 bytes at offset 0, but the file ends at 100",
    ),
    "a key that is no text": (manifest(len(leaf_node(b"\xff"))), leaf_node(b"\xff"), "not UTF-8"),
    "many keys of nothing": (
        manifest(len(wrapped(NODE, b"\x00\x00" + number(2**60)))),
        wrapped(NODE, b"\x00\x00" + number(2**60)),
        "it ends too early: 1152921504606846975 numbers expected",
    ),
    "a node in itself": (
        manifest(len(inner_node(99, b"a", height=2)), height=2),
        inner_node(len(inner_node(99, b"a", height=2)), b"a", height=2),
        "expected a node of height 1, found one of 2|is referred to twice",
    ),
    "two ways to a node": (
        manifest(len(inner_node(99, b"a", b"b")), height=1),
        inner_node(len(inner_node(99, b"a", b"b")), b"a", b"b"),
        "the node at byte 0 is referred to twice",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("top", "node", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_database_is_refused(
    tmp_path: Path, top: bytes, node: bytes, message: str
) -> None:
    (tmp_path / "manifest.ocdbt").write_bytes(top)
    (tmp_path / "n").write_bytes(node)
    with pytest.raises((FormatError, CorruptionError, CordwoodError), match=message):
        read(tmp_path)


def test_keys_that_grow_without_end(tmp_path: Path) -> None:
    """Each begins as the one before: a few bytes of node would be terabytes of keys."""
    count = 60_000
    sizes = [60_000, *[0] * (count - 1)]
    body = b"\x00\x00" + numbers(count, *[60_000] * (count - 1), *sizes) + b"k" * 60_000
    node = wrapped(NODE, body)
    (tmp_path / "n").write_bytes(node)
    (tmp_path / "manifest.ocdbt").write_bytes(manifest(len(node)))
    with pytest.raises(CordwoodError, match="keys and paths of 3600000000 bytes in one node"):
        read(tmp_path)


def test_keys_that_begin_alike_without_end() -> None:
    node = leaf_node(*[b"%03d" % i for i in range(1000)])
    child = NodeReference(DataFile(b"", b"n"), 0, len(node), 0, b"k" * 1_000_000)
    with pytest.raises(LimitError, match="keys and paths of 1000000000 bytes in one node; exp"):
        parse_node(node, child)


def zstd_node(body: bytes) -> bytes:
    return wrapped(NODE, zstandard.ZstdCompressor().compress(body), compression=1)


def growing(count: int, size: int) -> bytes:
    """Return the body of a node: a key of `size` bytes, then keys that add one byte each."""
    sizes = [size, *[1] * (count - 1)]
    keys = numbers(count, *range(size, size + count - 1), *sizes) + b"k" * sum(sizes)
    return b"\x00\x00" + keys + bytes(2 * count)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (growing(6000, 100), "keys and paths of 18597000 bytes in one node; expected at most"),
        (growing(400, 1_000_000), "keys and paths of 400[0-9]{6} bytes in one node"),
        (bytes(100 << 20), "it decompresses to more than [0-9]{7,8} bytes, the limit"),
    ],
    ids=["many keys", "long keys", "a bomb"],
)
def test_a_small_node_takes_little_memory(body: bytes, message: str) -> None:
    node = zstd_node(body)
    assert len(node) < 30_000
    child = NodeReference(DataFile(b"", b"n"), 0, len(node), 0, b"")
    with traced_memory() as memory, pytest.raises(LimitError, match=message):
        parse_node(node, child)
    assert memory.peak_bytes < 2000 * len(node) + (16 << 20)


def test_a_node_of_more_than_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "n").open("wb") as file:
        file.truncate(MAX_NODE_BYTES + 1)
    (tmp_path / "manifest.ocdbt").write_bytes(manifest(MAX_NODE_BYTES + 1))
    with (
        traced_memory() as memory,
        pytest.raises(LimitError, match=r"n: the node at byte 0: 268435457 bytes; .*MAX_NODE"),
    ):
        read(tmp_path)
    assert memory.peak_bytes < 1 << 20


def test_a_manifest_of_random_bytes_never_does_worse_than_fail() -> None:
    for body in itertools.chain(map(bytes, range(40)), (b"\xff" * n for n in range(40))):
        with pytest.raises(CordwoodError):
            parse_manifest(wrapped(MANIFEST, body[:39]) if len(body) < 22 else body)
