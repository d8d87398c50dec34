"""2,000 random bit flips in each format that has checksums, and the report of the harness."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.testing import BitFlip, FlipReport, flip_bits, random_flips


def tree() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "layers": [
            {"kernel": rng.standard_normal((8, 9), np.float32), "bias": np.zeros(9, np.float32)},
            (np.arange(5, dtype=np.int16), None),
        ],
        "table": {"a.b": rng.bytes(40), "step": 7, "rate": 0.25, "name": "a name", "on": True},
        "big": rng.standard_normal(500),
        "empty": np.ones((0, 3)),
        "scalar": np.float16(2),
    }


def say_where(report: FlipReport, data: str) -> int:
    """Assert that messages name the damaged file, and in data files also a leaf and a range.

    Data files are those whose names begin with `data`; the range must contain the flip.

    Returns:
        The number of messages about data files.
    """
    count = 0
    for flip, message in report.detected:
        name = flip.file.rpartition("/")[2]
        assert name in message, (flip, message)
        if not name.startswith(data):
            continue
        count += 1
        file = re.escape(flip.file)
        match = re.search(rf"bytes (\d+) to (\d+) of {file}: (.+)", message)
        if match is None:  # the header of a pack, which is of all its leaves
            header = rf"{file} \(leaves: (.+)\): .*?(\d+) to (\d+)"
            match = re.search(header, message)
            assert match is not None, (flip, message)
            named, start, stop = match.groups()
        else:
            start, stop, named = match.groups()
        assert int(start) <= flip.offset < int(stop)
        leaves = {"layers/0/kernel", "layers/0/bias", "layers/1/0", "empty", "scalar"}
        assert leaves & set(named.split(", ")), message
    return count


@pytest.mark.parametrize("suffix", [".safetensors", ".msgpack.zst", ".msgpack.gz"])
def test_every_flip_is_detected_or_harmless(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"tree{suffix}"
    cordwood.save(path, tree())
    before = path.read_bytes()
    report = flip_bits(path, cordwood.load, count=2000)
    assert report.all_caught, report
    assert sum(map(len, report)) == 2000
    assert len(report.detected) > 1900, report
    assert path.read_bytes() == before


def test_every_flip_in_a_directory(tmp_path: Path) -> None:
    """Flips in packs are detected; flips in the file for other readers are harmless to load."""
    path = tmp_path / "tree"
    small = {name: leaf for name, leaf in tree().items() if name != "big"}
    cordwood.save(path, small, metadata={"k": "v"})
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    report = flip_bits(path, cordwood.load, count=3000)
    assert report.all_caught, report
    assert {flip.file for flip, _ in report.harmless} == {"model.safetensors.index.json"}, report
    assert {flip.file for flip, _ in report.detected} == before.keys() - {
        "model.safetensors.index.json"
    }
    checked = flip_bits(path, lambda copy: cordwood.verify(copy).leaves, count=1000)
    assert len(checked.detected) == 1000, checked
    assert say_where(checked, "data-") > 500
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


@pytest.mark.parametrize("compression", [None, "zstd", "blosc"])
def test_every_flip_in_a_directory_of_zarr_arrays(tmp_path: Path, compression: Any) -> None:
    path = tmp_path / "tree"
    small = {name: leaf for name, leaf in tree().items() if name != "big"}
    cordwood.save(path, small, format="zarr", compression=compression, metadata={"k": "v"})
    report = flip_bits(path, cordwood.load, count=3000)
    assert report.all_caught, report
    assert len(report.detected) > 2900, report
    checked = flip_bits(path, lambda copy: cordwood.verify(copy).leaves, count=300)
    assert checked.all_caught, checked
    assert say_where(checked, "0") > 20  # chunks


def test_a_directory_that_is_not_checked(tmp_path: Path) -> None:
    for name in ("a", "b/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\0")
    report = flip_bits(tmp_path, lambda copy: (copy / "b/c").read_bytes(), count=99)
    assert {flip for flip, _ in report.silent} == {(0, bit, "b/c") for bit in range(8)}
    assert {flip for flip, _ in report.harmless} == {(0, bit, "a") for bit in range(8)}
    assert "silent: b/c: byte 0, bit" in str(report)


def test_every_bit_of_the_metadata(tmp_path: Path) -> None:
    path = tmp_path / "tiny.safetensors"
    cordwood.save(path, {"a": np.ones(1, np.uint8)})
    text = path.read_bytes().rstrip(b"\x01").rstrip(b" ")
    flips = random_flips(len(text), 8 * len(text))
    assert len(flips) == 8 * len(text)
    report = flip_bits(path, cordwood.load, flips=flips)
    assert report.all_caught, report
    assert not report.harmless, report


def test_a_format_without_digests_is_silent(tmp_path: Path) -> None:
    path = tmp_path / "tree.msgpack"
    cordwood.save(path, {"w": np.zeros(1000, np.uint8)})
    report = flip_bits(path, cordwood.load, flips=[BitFlip(500, 3), BitFlip(0, 0)])
    (silent,) = report.silent
    assert silent.flip == BitFlip(500, 3)
    assert silent.message.startswith("w: expected np.uint8(0)")
    assert len(report.detected) == 1
    assert not report.all_caught
    assert "silent: byte 500, bit 3: w: expected" in str(report)


def test_crashes_are_distinguished_from_detection(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\0\0")

    def load(path: Path) -> int:
        first, second = path.read_bytes()
        if first:
            raise IndexError(f"no {first}")
        return second & 1

    report = flip_bits(path, load, count=100)
    assert {flip for flip, _ in report.crashed} == {(0, bit, "") for bit in range(8)}
    assert {flip for flip, _ in report.silent} == {(1, 0, "")}
    assert len(report.harmless) == 7
    assert report.crashed[0].message.startswith("IndexError: no ")


def test_random_flips_are_different_and_repeatable() -> None:
    flips = random_flips(1000, 2000, seed=3)
    assert len(set(flips)) == 2000
    assert flips == random_flips(1000, 2000, seed=3)
    assert flips != random_flips(1000, 2000, seed=4)
    assert random_flips(1, 99) == [(0, bit, "") for bit in range(8)]
