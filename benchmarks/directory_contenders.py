"""The contenders, cordwood and its peers, which store a tree in a directory by public calls."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp
from eformer.serialization import serialization as eformer

import cordwood
from benchmarks.bare import (
    PAGE_BYTES,
    REPEATED_BYTES,
    page_aligned_copy,
    preadv_into_empty,
    write_direct,
)
from benchmarks.contender_names import (
    ASYNC,
    BARE_READ,
    BARE_WRITE,
    EFORMER,
    ORBAX,
    ORBAX_ASYNC,
    ORBAX_RAW,
    ORBAX_RAW_FILES,
    PACKS,
    ZARR,
)
from benchmarks.directory_trees import mesh

__all__ = [
    "Job",
    "async_saves",
    "files_of",
    "loads",
    "prepare",
    "same_files",
    "saves",
    "warm_up",
]

HELD_BYTES = 2 << 30  # for the bare loop

T = TypeVar("T")


class Job:
    """One tree, its parts, and the place of each contender's copy of it.

    `without`: the contenders that do not take part.
    """

    def __init__(self, tree: Any, folder: Path, without: frozenset[str] = frozenset()) -> None:
        self.without = without
        self.tree = tree
        self.folder = folder
        self.specs = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree
        )
        leaves = jax.tree.leaves(tree)
        keys = jax.tree.leaves(eformer.leaf_key_paths(tree))
        self.shardings = {key: leaf.sharding for key, leaf in zip(keys, leaves, strict=True)}
        self.leaves = len(leaves)
        self.size_bytes = sum(leaf.nbytes for leaf in leaves)
        self.orbax = {
            ORBAX: ocp.StandardCheckpointer(),
            ORBAX_RAW: _orbax(use_compression=False),
            ORBAX_RAW_FILES: _orbax(use_compression=False, use_ocdbt=False),
        }

    def path_of(self, contender: str) -> Path:
        """Return the path of the copy that a contender loads."""
        return self.folder / "".join(c if c.isalnum() else "-" for c in contender)

    def close(self) -> None:
        for checkpointer in self.orbax.values():
            checkpointer.close()


def prepare(job: Job) -> None:
    """Write the copies to be loaded."""
    for name, save in saves(job, {}).items():
        save(job.path_of(name))
    os.sync()


def warm_up(tree: Any, folder: Path) -> None:
    """Run every contender once on a small tree, so that imports and compilations are not timed."""
    folder.mkdir()
    job = Job(tree, folder)
    prepare(job)
    for load in loads(job).values():
        jax.block_until_ready(load())
    for name, save in async_saves(job).items():
        save(folder / f"async-{name}")()
    write_files(folder / "bare", same_files(job))
    job.close()


def saves(job: Job, bare: dict[str, tuple[int, memoryview]]) -> dict[str, Callable[[Path], Any]]:
    """Return the calls that write. cordwood's saves and the bare loop are durable on return.

    `bare` is what the bare loop writes; without it there is none.
    """
    calls: dict[str, Callable[[Path], Any]] = {
        PACKS: lambda path: cordwood.save(path, job.tree),
        ZARR: lambda path: cordwood.save(path, job.tree, format="zarr"),
        ORBAX: lambda path: _orbax_save(job, ORBAX, path)(),
        ORBAX_RAW: lambda path: _orbax_save(job, ORBAX_RAW, path)(),
        ORBAX_RAW_FILES: lambda path: _orbax_save(job, ORBAX_RAW_FILES, path)(),
        EFORMER: lambda path: eformer.tree_serialize_leaves(
            path, job.tree, commit_callback=lambda: None
        ),
    }
    if bare:
        calls[BARE_WRITE] = lambda path: write_files(path, bare)
    return _taking_part(job, calls)


def loads(job: Job) -> dict[str, Callable[[], Any]]:
    """Return the calls that read the tree onto the devices that it was on."""
    calls = {
        PACKS: lambda: cordwood.load(job.path_of(PACKS), like=job.specs),
        ZARR: lambda: cordwood.load(job.path_of(ZARR), like=job.specs),
        ORBAX: lambda: job.orbax[ORBAX].restore(job.path_of(ORBAX), job.specs),
        ORBAX_RAW: lambda: _orbax_restore(job, ORBAX_RAW),
        ORBAX_RAW_FILES: lambda: _orbax_restore(job, ORBAX_RAW_FILES),
        EFORMER: lambda: eformer.tree_deserialize_leaves(
            job.path_of(EFORMER), mesh(), shardings=job.shardings
        ),
        BARE_READ: lambda: [preadv_into_empty(path) for path in files_of(job.path_of(PACKS))],
    }
    return _taking_part(job, calls)


def async_saves(job: Job) -> dict[str, Callable[[Path], Callable[[], Any]]]:
    """Return the asynchronous saves. Each call returns a function that waits for the save."""
    calls = {
        ASYNC: lambda path: cordwood.save_async(path, job.tree).wait,
        ORBAX_ASYNC: lambda path: _orbax_save(job, ORBAX, path),
    }
    return _taking_part(job, calls)


def _taking_part(job: Job, contenders: dict[str, T]) -> dict[str, T]:
    return {name: each for name, each in contenders.items() if name not in job.without}


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def same_files(job: Job) -> dict[str, tuple[int, memoryview]]:
    """Return the size and the bytes in memory of each file that cordwood wrote.

    Where they are more than a peer's copies leave room for, only the first of each.
    """
    paths = files_of(job.path_of(PACKS))
    sizes = [path.stat().st_size for path in paths]
    at_most = None if sum(sizes) <= HELD_BYTES else REPEATED_BYTES
    return {
        path.name: (-(-size // PAGE_BYTES) * PAGE_BYTES, page_aligned_copy(path, at_most=at_most))
        for path, size in zip(paths, sizes, strict=True)
    }


def write_files(folder: Path, files: dict[str, tuple[int, memoryview]]) -> None:
    folder.mkdir()
    for name, (size_bytes, data) in files.items():
        write_direct(folder / name, data, size_bytes)
    for directory in (folder, folder.parent):
        fd = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _orbax(**options: Any) -> Any:
    return ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(**options))


def _orbax_save(job: Job, name: str, path: Path) -> Callable[[], Any]:
    checkpointer = job.orbax[name]
    if name == ORBAX:
        checkpointer.save(path, job.tree)
    else:
        checkpointer.save(path, args=ocp.args.PyTreeSave(job.tree))
    return checkpointer.wait_until_finished


def _orbax_restore(job: Job, name: str) -> Any:
    restore_args = ocp.checkpoint_utils.construct_restore_args(job.specs)
    args = ocp.args.PyTreeRestore(job.specs, restore_args=restore_args)
    return job.orbax[name].restore(job.path_of(name), args=args)


for noisy in ("absl", "eformer"):
    logging.getLogger(noisy).setLevel(logging.ERROR)
