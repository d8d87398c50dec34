"""The contenders, cordwood and its peers, which do the same job with their public calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import numpy as np
import safetensors.flax
import safetensors.numpy

import cordwood
from benchmarks.bare import page_aligned_copy, preadv_into_empty, write_direct
from cordwood.msgpack import to_buffers

__all__ = [
    "BARE_READ",
    "BARE_WRITE",
    "FROM_BYTES",
    "MAPPED",
    "TO_BUFFERS",
    "Job",
    "bytes_contenders",
    "loads",
    "prepare",
    "saves",
    "suffix_of",
    "views",
    "warm_up",
]

BARE_WRITE = "bare fallocate + O_DIRECT + fsync (safetensors bytes)"
BARE_READ = "bare threaded preadv into np.empty"
MAPPED = "cordwood.load .safetensors mapped"
FROM_BYTES = "cordwood.from_bytes (views)"
TO_BUFFERS = "cordwood.msgpack.to_buffers"


class Job:
    """One tree in the forms that the contenders need, without copies between them."""

    def __init__(self, tree: Any, folder: Path) -> None:
        self.tree = tree
        self.numpy_tree = jax.tree.map(np.asarray, tree)
        self.flat = _flat(tree)
        self.numpy_flat = {name: np.asarray(leaf) for name, leaf in self.flat.items()}
        self.specs = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type),
            tree,
        )
        self.leaves = len(self.flat)
        self.size_bytes = sum(leaf.nbytes for leaf in self.flat.values())
        self.ours = folder / "ours.safetensors"
        self.ours_numpy = folder / "ours-numpy.safetensors"
        self.flax_bytes = folder / "flax.msgpack"
        self.theirs = folder / "theirs.safetensors"


def prepare(job: Job) -> None:
    """Write the files to be loaded, and read them once to warm the page cache."""
    cordwood.save(job.ours, job.tree)
    cordwood.save(job.ours_numpy, job.numpy_tree)
    _flax_save(job.flax_bytes, job.tree)
    safetensors.flax.save_file(job.flat, job.theirs)
    os.sync()
    for path in (job.ours, job.ours_numpy, job.flax_bytes, job.theirs):
        preadv_into_empty(path)


def warm_up(folder: Path) -> None:
    """Run every contender once on a tiny tree, so that imports and compilations are not timed."""
    job = Job({"w": jax.device_put(np.ones((64, 64), np.float32))}, folder)
    prepare(job)
    data = page_aligned_copy(job.ours)
    for name, save in saves(job, data).items():
        path = folder / f"warm{suffix_of(name)}"
        save(path)
        path.unlink()
    for load in {**loads(job), **bytes_contenders(job)}.values():
        load()


def suffix_of(name: str) -> str:
    """Return the suffix of the file that a saving contender writes."""
    return ".safetensors" if "safetensors" in name else ".msgpack"


def saves(job: Job, same_bytes: memoryview) -> dict[str, Callable[[Path], Any]]:
    """Return the calls that write the tree. The names say what they write, and if it is durable."""
    return {
        "cordwood.save .safetensors, durable": lambda path: cordwood.save(path, job.tree),
        "cordwood.save .safetensors of numpy, durable": lambda path: cordwood.save(
            path, job.numpy_tree
        ),
        "cordwood.save .msgpack, durable": lambda path: cordwood.save(path, job.tree),
        "cordwood.save_to_file, durable": lambda path: cordwood.save_to_file(job.tree, path),
        "flax.to_bytes + write + fsync": lambda path: _flax_save(path, job.tree),
        "safetensors.flax.save_file, no fsync": lambda path: safetensors.flax.save_file(
            job.flat, path
        ),
        "safetensors.flax.save_file + fsync": lambda path: _safetensors_save(path, job.flat),
        "safetensors.numpy.save_file, no fsync": lambda path: safetensors.numpy.save_file(
            job.numpy_flat, path
        ),
        BARE_WRITE: lambda path: write_direct(path, same_bytes),
    }


def loads(job: Job) -> dict[str, Callable[[], Any]]:
    """Return the calls that read the tree from a warm page cache."""
    return {
        "cordwood.load .safetensors to jax, verified": lambda: cordwood.load(job.ours),
        "cordwood.load .msgpack to jax": lambda: cordwood.load(job.flax_bytes, like=job.specs),
        MAPPED: lambda: cordwood.load(job.ours, mmap=True),
        "cordwood.load .safetensors to numpy, verified": lambda: cordwood.load(job.ours_numpy),
        "flax read + from_bytes (numpy leaves)": lambda: flax.serialization.from_bytes(
            job.tree, job.flax_bytes.read_bytes()
        ),
        "safetensors.flax.load_file": lambda: safetensors.flax.load_file(job.theirs),
        "safetensors.numpy.load_file": lambda: safetensors.numpy.load_file(job.theirs),
        BARE_READ: lambda: preadv_into_empty(job.ours),
    }


def bytes_contenders(job: Job) -> dict[str, Callable[[], Any]]:
    """Return the calls that convert to Flax's bytes in memory, and back."""
    data = job.flax_bytes.read_bytes()
    return {
        "cordwood.to_bytes": lambda: cordwood.to_bytes(job.tree),
        TO_BUFFERS: lambda: to_buffers(job.tree),
        "flax.to_bytes": lambda: flax.serialization.to_bytes(job.tree),
        FROM_BYTES: lambda: cordwood.from_bytes(job.tree, data),
        "flax.from_bytes": lambda: flax.serialization.from_bytes(job.tree, data),
    }


def views(job: Job) -> set[str]:
    """Return the contenders that need almost no memory, because they return views."""
    most = flax.serialization.MAX_CHUNK_SIZE  # bytes; a larger leaf is joined again, and no view
    chunked = any(leaf.nbytes > most for leaf in job.flat.values())
    return {MAPPED, TO_BUFFERS} if chunked else {MAPPED, TO_BUFFERS, FROM_BYTES}


def _flat(tree: Any) -> dict[str, Any]:
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}


def _flax_save(path: Path, tree: Any) -> None:
    data = flax.serialization.to_bytes(tree)
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _safetensors_save(path: Path, flat: dict[str, Any]) -> None:
    safetensors.flax.save_file(flat, path)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
