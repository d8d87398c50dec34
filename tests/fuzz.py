"""Fuzzer of all readers of files: `make fuzz`, or `python tests/fuzz.py --seconds 60`.

Whatever the bytes, loading them gives a tree or raises an error of cordwood's. Coverage guides
the mutations (https://github.com/google/atheris, a development dependency on Linux). Targets:

    msgpack      bytes as a .msgpack
    safetensors  bytes as a .safetensors
    sealed       the same, with digests that always match, as an attacker would make them
    npy, npz     bytes as one of numpy's files
    eqx          bytes as a file of equinox's
    records      bytes as a stream of msgpack records
    gz, zst      bytes as a compressed stream
    orbax        a checkpoint of files: _METADATA, and the metadata and a chunk of an array
    ocdbt        a database: manifest and node, with checksums and sizes that always match
    zarr         a tree of arrays: the metadata and a chunk of one
    shards       Hugging Face's: an index and a file

Those of several files are divided by DIVIDER.

Each target runs in a process of its own, for its share of the time. One that fails leaves its
input in build/fuzz, and `python tests/fuzz.py TARGET FILE` runs it again.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDERS = {  # what the files of an input are called
    "orbax": ("_METADATA", "w/.zarray", "w/0", "w/zarr.json", "w/c/0", "checkpoint"),
    "ocdbt": ("manifest.ocdbt", "n"),
    "zarr": ("w/.zarray", "w/0"),
    "shards": ("model.safetensors.index.json", "a.safetensors"),
}
FILES = ("msgpack", "safetensors", "sealed", "npy", "npz", "eqx", "records", "gz", "zst")
TARGETS = (*FILES, *FOLDERS)
DIVIDER = b"\xff\xfe\xfd"
FAILURES = Path("build/fuzz")
MAX_INPUT_BYTES = 4096
MAX_DECOMPRESSED_BYTES = 1 << 24
MEMORY_MB = 512
SECONDS_PER_INPUT = 10


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz cordwood's readers.")
    parser.add_argument("target", nargs="?", choices=TARGETS, help="one target, in this process")
    parser.add_argument("input", nargs="?", type=Path, help="run this input only")
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--runs", type=int, default=10_000_000, help="at most, of each target")
    options = parser.parse_args()
    if options.input is not None:
        reader(options.target)(options.input.read_bytes())
        return 0
    if options.target is not None:
        return fuzz(options.target, options.seconds, options.runs)
    seconds = max(1, options.seconds // len(TARGETS))
    failed = [name for name in TARGETS if not run(name, seconds, options.runs)]
    print(f"failed: {', '.join(failed)}" if failed else "no target failed")
    return len(failed)


def run(name: str, seconds: int, runs: int) -> bool:
    print(f"== {name}: {seconds} s", flush=True)
    limits = ["--seconds", str(seconds), "--runs", str(runs)]
    child = subprocess.run([sys.executable, __file__, name, *limits], check=False)
    return child.returncode == 0


def fuzz(name: str, seconds: int, runs: int) -> int:
    try:
        import atheris
    except ImportError:
        print("atheris is not installed here (it has no wheel for this system): not fuzzed")
        return 0
    with atheris.instrument_imports(include=["cordwood"]):
        pass
    read = reader(name)
    FAILURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        for number, data in enumerate(seeds(name)):
            (Path(corpus) / f"seed-{number}").write_bytes(data)
        flags = [
            f"-max_total_time={seconds}",
            f"-runs={runs}",
            f"-max_len={MAX_INPUT_BYTES}",
            f"-rss_limit_mb={MEMORY_MB}",
            f"-timeout={SECONDS_PER_INPUT}",
            f"-artifact_prefix={FAILURES}/{name}-",
            "-print_final_stats=1",
            "-verbosity=0",
        ]
        atheris.Setup([sys.argv[0], *flags, corpus], read)
        atheris.Fuzz()  # ends the process
    return 0


# The functions, under cordwood.formats, that read the index of a file.
READERS = {
    "eqx": "numpy_files.read_eqx.read_eqx_index",
    "msgpack": "flax_msgpack.read_index.read_index",
    "npy": "numpy_files.read_npy.read_index",
    "npz": "numpy_files.read_npz.read_index",
    "records": "flax_msgpack.read_records.read_index",
    "safetensors": "safetensors.read_index.read_index",
    "sealed": "safetensors.read_index.read_index",
}


def reader(name: str) -> Callable[[bytes], None]:
    """Return the function that reads an input of one file."""
    if name in FOLDERS:
        return folder_reader(name)
    from cordwood.errors import CordwoodError
    from cordwood.formats.flax_msgpack.decompress import decompress
    from cordwood.formats.safetensors import read_index as read_index_module
    from cordwood.io.memory_file import MemoryFile

    if name in ("gz", "zst"):

        def expand(data: bytes) -> None:
            with contextlib.suppress(CordwoodError):
                decompress(MemoryFile(data), name, max_bytes=MAX_DECOMPRESSED_BYTES)

        return expand

    from cordwood import Checkpoint
    from cordwood.formats.format_protocol import Opened
    from cordwood.io.find_damage import check_sources
    from cordwood.loading.leaf_reader import LeafReader

    if name == "sealed":
        read_index_module.check_header = lambda _header: None  # type: ignore[attr-defined,assignment]
    module, _, function = READERS[name].rpartition(".")
    read_index = getattr(import_module(f"cordwood.formats.{module}"), function)

    def read(data: bytes) -> None:
        file = MemoryFile(data)
        try:
            index = read_index(file)
            with Checkpoint(
                LeafReader("fuzzed", Opened(index.format, index, (file,)))
            ) as checkpoint:
                checkpoint.load(to="numpy", verify=name != "sealed")
                checkpoint.load(to="numpy", mmap=True)
                if name != "sealed":
                    check_sources(index, [file], [source.digests for source in index.sources])
        except CordwoodError:
            pass

    return read


def folder_reader(name: str) -> Callable[[bytes], None]:
    """Return the function that reads an input of several files."""
    import cordwood
    from cordwood.errors import CordwoodError
    from cordwood.formats.ocdbt.values import OcdbtValues
    from cordwood.storage.local_directory import LocalDirectory

    def write(folder: str, data: bytes) -> None:
        for path, part in zip(FOLDERS[name], data.split(DIVIDER), strict=False):
            if part:
                (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / path).write_bytes(part)

    def read(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(CordwoodError):
            write(folder, data)
            if not os.listdir(folder):
                return
            with cordwood.open(folder) as checkpoint, warnings.catch_warnings(action="ignore"):
                shapes = [
                    (leaf.shape, leaf.dtype) for leaf in checkpoint.index.leaves if leaf.dtype
                ]
                size = sum(itemsize(dtype) * math.prod(shape) for shape, dtype in shapes)
                if size <= MAX_DECOMPRESSED_BYTES:  # zeros that are not stored may be any number
                    checkpoint.load(to="numpy")
                    checkpoint.load(to="numpy", mmap=True)

    def read_database(data: bytes) -> None:
        from tests.formats.ocdbt.test_ocdbt import MANIFEST, NODE, wrapped

        manifest, _, node = data.partition(DIVIDER)
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(CordwoodError):
            (Path(folder) / "manifest.ocdbt").write_bytes(wrapped(MANIFEST, manifest))
            (Path(folder) / "n").write_bytes(wrapped(NODE, node))
            with LocalDirectory(folder) as directory:
                OcdbtValues(directory)

    from cordwood.dtypes import itemsize

    return read_database if name == "ocdbt" else read


def folder_seeds(name: str) -> Iterator[bytes]:
    from tests.formats.hostile_files import changed
    from tests.formats.hugging_face.test_hostile import ONE
    from tests.formats.ocdbt.test_hostile import LEAF
    from tests.formats.ocdbt.test_ocdbt import CONFIG, NODE, numbers, table, wrapped
    from tests.formats.orbax.test_hostile import GOOD2, GOOD3, ZARR2

    def joined(files: dict[str, bytes]) -> bytes:
        return DIVIDER.join([files.get(path, b"") for path in FOLDERS[name]])

    if name == "orbax":
        for good in (GOOD2, GOOD3):
            files = {**good, "w/0": good.get("w/0.0", b""), "w/c/0": good.get("w/c/0/0", b"")}
            yield joined(
                {path: data.replace(b"[3, 2]", b"[4]").replace(b"[2, 2]", b"[4]")
                 for path, data in files.items()}
            )  # fmt: skip
        metadata = changed(ZARR2, shape=[4], chunks=[4])
        aggregate = b"\x82\xa1w\xafPLACEHOLDER://w\xa1n\x07"  # {"w": ..., "n": 7}
        yield joined({"w/.zarray": metadata, "w/0": bytes(16), "checkpoint": aggregate})
    elif name == "zarr":
        for changes in ({}, {"compressor": {"id": "zstd"}}, {"dtype": ">i2"}, {"order": "F"}):
            metadata = changed(ZARR2, shape=[4], chunks=[4], **changes)
            yield joined({"w/.zarray": metadata, "w/0": bytes(16)})
    elif name == "shards":
        files = {FOLDERS[name][1]: ONE}
        yield joined({FOLDERS[name][0]: b'{"weight_map":{"a":"a.safetensors"}}', **files})
    else:
        size = len(wrapped(NODE, LEAF))
        versions = numbers(1, 1) + bytes(1) + numbers(0, 0, size, 0, 0, 0) + bytes(8) + numbers(0)
        yield CONFIG + table(b"n") + versions + DIVIDER + LEAF.replace(b"\1v", b"\1n")


def seeds(name: str) -> Iterator[bytes]:
    """Yield valid files as seeds, and a few odd ones."""
    if name in FOLDERS:
        yield from folder_seeds(name)
        return
    if name == "eqx":
        yield from _numpy_seeds("npy")
        yield b"".join(_numpy_seeds("npy"))
        return
    if name == "records":
        from tests.formats.msgpack_records.test_hostile import ARRAY, record

        yield record(["a", "b"], ARRAY) + record(["c"], ARRAY)
        yield record(["a"], b"\x81\xa1k\x93\x01\x02\x03")
        return
    if name in ("npy", "npz"):
        yield from _numpy_seeds(name)
        return
    import gzip

    import numpy as np
    import zstandard

    import cordwood
    from cordwood import msgpack

    trees: list[Any] = [
        {},
        {"a": np.arange(3.0)},
        {"a": [1, (2.5, None)], "b": {"c": "text", "d": b"bytes"}, "e": 1 + 2j, "f": True},
        {"x": np.ones((2, 0, 3), np.int8), "y": np.float16(3), "z": np.ones(2, "datetime64[s]")},
        {str(i): np.full(i, i, np.uint8) for i in range(20)},
    ]
    kept: dict[Any, Any] = {5: np.ones(3, np.longdouble), (1, "a"): -(2**70), None: float("nan")}
    with tempfile.TemporaryDirectory() as folder:
        for number, tree in enumerate(trees if name == "msgpack" else [*trees, kept]):
            path = Path(folder) / f"{number}.{'msgpack' if name == 'msgpack' else 'safetensors'}"
            cordwood.save(path, tree)
            data = path.read_bytes()
            if name in ("gz", "zst"):
                yield msgpack.compress_bytes(data)
                yield zstandard.ZstdCompressor(write_checksum=True).compress(data)
                yield gzip.compress(data[:50]) + gzip.compress(data[50:100])
            elif name != "msgpack":
                # Data begins at a multiple of 4096: padding that is of no interest here.
                yield _without_padding(data) if name == "sealed" else data[:MAX_INPUT_BYTES]
            else:
                yield data
    if name == "msgpack":
        chunked = {"shape": {"0": 2, "1": 2}, "chunks": {"0": np.ones(3), "1": np.ones(1)}}
        yield msgpack.msgpack_serialize({"k": {"other": True, **chunked}}).replace(
            b"\xa5other", b"\xb9__msgpack_chunked_array__"
        )
        yield b"\x81\xa1k\xc7\x04\x04\x93\x01\x02\x03"
        yield b"\xd6\xff\x00\x00\x00\x01"
    elif name == "safetensors":
        header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
        header += b'"b":{"dtype":"F4","shape":[2,1],"data_offsets":[8,9]}}'
        yield len(header).to_bytes(8, "little") + header + bytes(9)
        header = b'{ "__metadata__": {"format": "pt"}, "a" : {"dtype": "BOOL", "shape": [], '
        header += b'"data_offsets": [0, 1]} }'
        yield len(header).to_bytes(8, "little") + header + b"\1"


def _numpy_seeds(name: str) -> Iterator[bytes]:
    import io

    import numpy as np

    arrays: list[Any] = [
        np.arange(3.0),
        np.asfortranarray(np.arange(12, dtype=">i2").reshape(2, 3, 2)),
        np.zeros((0, 2), "M8[s]"),
        np.array(True),
    ]
    for array in arrays:
        file = io.BytesIO()
        if name == "npy":
            np.save(file, array)
        elif array.ndim:
            np.savez_compressed(file, array, a=arrays[3])
        else:
            np.savez(file, *arrays)
        yield file.getvalue()


def _without_padding(data: bytes) -> bytes:
    stop = 8 + int.from_bytes(data[:8], "little")
    header = data[8:stop].rstrip(b" ")
    return len(header).to_bytes(8, "little") + header + data[stop:]


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.path.insert(0, str(Path(__file__).parent.parent))  # for what the tests share
    sys.exit(main())
