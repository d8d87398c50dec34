"""Peak memory of statistics of one large leaf, in a child process, whatever the leaf is stored as.

It does not grow with the leaf, unless its codec cannot decode a part.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import cordwood
from tests.children import run_python

MIB = 1 << 20
LEAF_BYTES = 128 * MIB
ELEMENTS = 32 * MIB  # of a leaf of one byte each; float64 numbers of all would take 256 MiB

CHILD = """
import contextlib, io, json, sys
from cordwood.cli.main import main
from cordwood.viewer.sources import OpenArguments, open_sources
from cordwood.viewer.statistics_view import statistics_view

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) << 10

def show(path, key):
    sys.argv = ["cordwood", "show", path, key]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            main()
        except SystemExit as e:
            assert not e.code, output.getvalue()

def view(path, key):
    sources = open_sources(path, None, OpenArguments())
    statistics_view(sources, None, source="a", number=0, read="all")
    sources.close()

peaks = {}
warm, *paths = sys.argv[1:]
for name in [warm, *paths]:
    path, _, key = name.partition("::")
    for read in (show, view):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = status("VmRSS")
        read(path, key)
        peaks[f"{read.__name__} {name}"] = status("VmHWM") - before
    if name == warm:
        peaks.clear()  # imports
print(json.dumps(peaks))
"""


def numbers() -> np.ndarray[Any, Any]:
    """Return integers of 8 bits, as many as ELEMENTS."""
    return np.resize(np.arange(8, dtype=np.int8), ELEMENTS)


def deflated(folder: Path) -> str:
    np.savez_compressed(folder / "x.npz", x=np.arange(LEAF_BYTES // 8) % 7.0)
    return f"{folder}/x.npz::x"


def deflated_bytes_in_fortran_order(folder: Path) -> str:
    array = numbers().reshape(-1, 1024)
    np.savez_compressed(folder / "x.npz", x=np.asfortranarray(array))
    return f"{folder}/x.npz::x"


def one_chunk(folder: Path) -> str:
    metadata = {
        "zarr_format": 2,
        "shape": [LEAF_BYTES // 8],
        "chunks": [LEAF_BYTES // 8],
        "dtype": "<f8",
        "compressor": {"id": "zstd", "level": 1},
        "fill_value": 0,
        "order": "C",
        "filters": None,
    }
    (folder / ".zarray").write_text(json.dumps(metadata))
    data = (np.arange(LEAF_BYTES // 8) % 7.0).tobytes()
    (folder / "0").write_bytes(zstandard.ZstdCompressor(level=1).compress(data))
    return f"{folder}::"


def packed(folder: Path) -> str:
    header = {"x": {"dtype": "F4", "shape": [ELEMENTS], "data_offsets": [0, ELEMENTS // 2]}}
    encoded = json.dumps(header).encode().ljust(128)
    path = folder / "x.safetensors"
    path.write_bytes(
        len(encoded).to_bytes(8, "little") + encoded + bytes(numbers()[: ELEMENTS // 2])
    )
    return f"{path}::x"


def bytes_of_a_pack(folder: Path) -> str:
    cordwood.save(folder / "x", {"x": numbers()})
    return f"{folder}/x::x"


@pytest.mark.parametrize(
    "write", [deflated, deflated_bytes_in_fortran_order, one_chunk, packed, bytes_of_a_pack]
)
def test_statistics_do_not_hold_the_leaf(tmp_path: Path, write: Callable[[Path], str]) -> None:
    cordwood.save(tmp_path / "warm", {"x": np.zeros(MIB, np.float32)})
    folder = tmp_path / "folder"
    folder.mkdir()
    peaks = json.loads(run_python(CHILD, f"{tmp_path}/warm::x", write(folder)))
    for name, peak in peaks.items():
        assert peak < LEAF_BYTES * 3 // 4, f"{name} took {peak / MIB:.0f} MiB"
    assert len(peaks) == 2
