"""Compressed files through the public calls: limits, checksums, and memory that is let go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import cordwood
from cordwood.errors import CorruptionError, FormatError, LimitError, TruncatedError
from cordwood.msgpack import compress_bytes, from_compressed_bytes, to_compressed_bytes

SUFFIXES = [".msgpack.gz", ".msgpack.zst"]


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "cordwood.formats.flax_msgpack.decompress"
    monkeypatch.setattr(f"{module}.MIN_LIMIT_BYTES", 1 << 20)
    monkeypatch.setattr(f"{module}.MAX_RATIO", 1)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_very_compressible_tree_loads_with_max_bytes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    tree = {"w": np.zeros(4 << 20, np.uint8)}
    cordwood.save(path, tree)
    calls: list[Callable[..., Any]] = [cordwood.load, cordwood.open, cordwood.verify]
    for call in calls:
        with pytest.raises(LimitError, match=rf"x{suffix}: .* pass max_bytes"):
            call(path)
    assert cordwood.load(path, max_bytes=5 << 20)["w"].nbytes == 4 << 20
    assert cordwood.load(path, mmap=True, max_bytes=5 << 20)["w"].nbytes == 4 << 20
    assert cordwood.verify(path, max_bytes=5 << 20).leaves == 1
    with cordwood.open(path, max_bytes=5 << 20) as checkpoint:
        assert not checkpoint["w"][:10].any()


@pytest.mark.usefixtures("small_limits")
def test_the_message_tells_how_much_to_accept(tmp_path: Path) -> None:
    path = tmp_path / "x.msgpack.zst"
    cordwood.save(path, np.zeros(2 << 20, np.uint8))
    size = len(cordwood.to_bytes(np.zeros(2 << 20, np.uint8)))
    with pytest.raises(LimitError, match=f"pass max_bytes={size} to accept it"):
        cordwood.load(path)
    assert cordwood.load(path, max_bytes=size).nbytes == 2 << 20
    with pytest.raises(LimitError, match="pass max_bytes"):
        from_compressed_bytes(None, compress_bytes(bytes(2 << 20)))
    data = to_compressed_bytes(7)
    assert from_compressed_bytes(None, data, max_bytes=1) == 7


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_eager_leaves_are_writable_and_whole(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(0)
    tree: dict[str, Any] = {f"small{i}": rng.integers(0, 9, 1001) for i in range(100)}
    tree |= {f"big{i}": rng.integers(0, 9, (5 << 20) + i, np.uint8) for i in range(4)}
    cordwood.save(tmp_path / f"x{suffix}", tree)
    loaded = cordwood.load(tmp_path / f"x{suffix}")
    with cordwood.open(tmp_path / f"x{suffix}") as checkpoint:
        twice = [checkpoint.load(), checkpoint.load()]  # nothing is given back here
    for got in (loaded, *twice):
        for name, array in tree.items():
            np.testing.assert_array_equal(got[name], array)
            assert got[name].flags.writeable


def test_a_frame_without_checksum_is_not_verified(tmp_path: Path) -> None:
    path = tmp_path / "x.msgpack.zst"
    data = cordwood.to_bytes({"w": np.ones(100)})
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=False).compress(data))
    report = cordwood.verify(path)
    assert (report.verified_bytes, report.unverified_bytes) == (0, len(data))
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(data))
    report = cordwood.verify(path)
    assert (report.verified_bytes, report.unverified_bytes) == (len(data), 0)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_streams_given_to_the_plain_readers_are_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    cordwood.save(path, {"w": np.ones(3)})
    kind = "gzip" if suffix.endswith("gz") else "zstd"
    message = rf'this is a {kind} stream; cordwood.load\(path, format="{suffix[1:]}"\) reads'
    for call in (
        lambda: cordwood.load_from_file(None, path),
        lambda: cordwood.load(path, format="msgpack"),
        lambda: cordwood.msgpack_restore(path.read_bytes()),
    ):
        with pytest.raises(FormatError, match=message):
            call()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_damaged_stream_is_not_taken_for_another_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    cordwood.save(path, {"w": np.arange(10_000)})
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TruncatedError) as error:
        cordwood.load(path)
    assert "looks like" not in str(error.value)


def test_counts_of_one_read_well(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    cordwood.save(path, {"w": np.ones(3)})
    with cordwood.open(path) as checkpoint:
        assert "x.safetensors: 1 leaf, 24 B" in repr(checkpoint)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"^1 damaged range \(the stored"):
        cordwood.verify(path)
    with pytest.raises(FormatError, match=r"expected the end of the data, found 1 more byte$"):
        cordwood.msgpack_restore(b"\xc0\xc0")
