"""Trees of arrays as zarr-python 3 and TensorStore write them."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.foreign_files.case import Case

ROWS = np.arange(20, dtype=np.float32).reshape(5, 4)


def arrays_of(group: Any, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the arrays of a group, nested, as zarr reads them; those of `without` are left out."""
    arrays = {
        name: array[...].astype(array.dtype.newbyteorder("="))
        for name, array in group.arrays()
        if name not in without
    }
    return arrays | {name: arrays_of(child, without=without) for name, child in group.groups()}


def write_group(path: Path, version: Any) -> Any:
    """Write arrays of which all chunks are stored, in groups."""
    import zarr

    group: Any = zarr.open_group(path, mode="w", zarr_format=version)
    group.create_array("kernel", data=ROWS, chunks=(2, 3))
    group.create_array("raw", data=ROWS.astype(">f8"), chunks=(5, 4), compressors=None)
    inner = group.create_group("layers").create_group("0")
    inner.create_array("mask", data=np.array([True, False, True]), chunks=(2,))
    inner.create_array("step", shape=(), dtype="i8")[...] = 7
    return arrays_of(group)


def write_missing_chunks(path: Path, version: Any) -> Any:
    """Write arrays with chunks that equal the fill value, which zarr does not store."""
    import zarr

    group: Any = zarr.open_group(path, mode="w", zarr_format=version)
    for name, dtype, fill in (
        ("zeros", "f4", 0.0),
        ("nan", "f4", np.nan),
        ("minus_infinity", "f8", -np.inf),
        ("minus_zero", "f2", -0.0),
        ("sevens", ">i2", 7),
        ("complex", "c8", 1 - 2j),
        ("true", "bool", True),
        ("largest", "u8", 2**64 - 1),
    ):
        array = group.create_array(name, shape=(5,), chunks=(2,), dtype=dtype, fill_value=fill)
        array[2] = 1
    group.create_array("nothing", shape=(4, 3), chunks=(2, 2), dtype="i4", fill_value=3)
    return arrays_of(group)


def write_compressed(path: Path, version: Any) -> Any:
    """Write arrays of several compressors, each with a chunk that is not stored."""
    import numcodecs
    import zarr

    group: Any = zarr.open_group(path, mode="w", zarr_format=version)
    compressors: dict[str, Any] = {
        "blosc": numcodecs.Blosc(),
        "bz2": numcodecs.BZ2(),
        "gzip": numcodecs.GZip(),
        "lz4": numcodecs.LZ4(),
        "zlib": numcodecs.Zlib(),
        "zstd": numcodecs.Zstd(),
    }
    if version == 3:
        codecs = zarr.codecs
        compressors = {
            "blosc": codecs.BloscCodec(),
            "gzip": codecs.GzipCodec(),
            "zstd": codecs.ZstdCodec(),
        }
    for name, compressor in compressors.items():
        for fill in (0, 9):
            array = group.create_array(
                f"{name}-{fill}",
                shape=(100,),
                chunks=(40,),
                dtype="i4",
                compressors=compressor,
                fill_value=fill,
            )
            array[:40] = np.arange(40)
    return arrays_of(group)


def write_shards(path: Path) -> Any:
    import zarr

    group: Any = zarr.open_group(path, mode="w", zarr_format=3)
    array = group.create_array(
        "w", shape=(8, 8), chunks=(2, 2), shards=(4, 4), dtype="i4", fill_value=5
    )
    array[:3, :3] = 9
    return arrays_of(group)


def write_one_array(path: Path) -> Any:
    import zarr

    zarr.save_array(path, ROWS)
    return ROWS


def write_text_beside(path: Path, version: Any) -> Any:
    import zarr

    group: Any = zarr.open_group(path, mode="w", zarr_format=version)
    group.create_array("kernel", data=ROWS)
    names = group.create_array("names", shape=(2,), dtype=str)
    names[:] = np.array(["a", "bc"], dtype=object)
    return arrays_of(group, without=("names",))


def write_foreign_codecs(path: Path, version: Any) -> Any:
    """Write an array with a filter (version 2) or a checksum for each chunk (version 3)."""
    import numcodecs
    import zarr

    group: Any = zarr.open_group(path, mode="w", zarr_format=version)
    group.create_array("kernel", data=ROWS)
    options: dict[str, Any] = {"filters": [numcodecs.Delta("i4")]}
    if version == 3:
        options = {"compressors": [zarr.codecs.Crc32cCodec()]}
    group.create_array("other", data=np.arange(4, dtype="i4"), **options)
    return arrays_of(group, without=("other",))


def write_consolidated(path: Path, version: Any) -> Any:
    import zarr

    values = write_group(path, version)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # version 3 has no such thing in its specification
        zarr.consolidate_metadata(str(path), zarr_format=version)
    return values


def write_by_tensorstore(path: Path, driver: str, fill_value: Any) -> Any:
    import tensorstore

    metadata: dict[str, Any] = {"shape": [5, 4]}
    if driver == "zarr":
        metadata |= {"chunks": [2, 2], "dtype": "bfloat16", "fill_value": fill_value}
    else:
        grid = {"name": "regular", "configuration": {"chunk_shape": [2, 2]}}
        metadata |= {"chunk_grid": grid, "data_type": "bfloat16", "fill_value": fill_value}
    kvstore = {"driver": "file", "path": f"{path}/layers/kernel"}
    spec = {"driver": driver, "kvstore": kvstore, "metadata": metadata, "create": True}
    array = tensorstore.open(spec).result()
    array[:2, :2] = ROWS[:2, :2].astype(array.dtype.numpy_dtype)
    return {"layers": {"kernel": np.asarray(array.read().result())}}


VERSIONS = (2, 3)
CASES = [
    *[
        Case("zarr-python 3", f"{content}, zarr {version}", f"{file}-{version}", write, **options)
        for version in VERSIONS
        for content, file, write, options in (
            ("arrays in groups", "group", partial(write_group, version=version), {}),
            (
                "chunks equal to the fill value, which are not stored",
                "fill",
                partial(write_missing_chunks, version=version),
                {},
            ),
            ("compressors", "compressed", partial(write_compressed, version=version), {}),
            (
                "arrays beside one of text",
                "text",
                partial(write_text_beside, version=version),
                {"unreadable": ("names",)},
            ),
            (
                "arrays beside one with a codec that is not read",
                "codec",
                partial(write_foreign_codecs, version=version),
                {"unreadable": ("other",)},
            ),
            (
                "consolidated metadata",
                "consolidated",
                partial(write_consolidated, version=version),
                {},
            ),
        )
    ],
    Case("zarr-python 3", "shards", "shards", write_shards),
    Case("zarr-python 3", "one array", "array.zarr", write_one_array),
    Case(
        "TensorStore",
        "zarr 2, zeros not stored",
        "tensorstore-2",
        partial(write_by_tensorstore, driver="zarr", fill_value=0.0),
    ),
    Case(
        "TensorStore",
        "zarr 3, NaN not stored",
        "tensorstore-3",
        partial(write_by_tensorstore, driver="zarr3", fill_value="NaN"),
    ),
]
