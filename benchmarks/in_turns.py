"""The benchmark that everybody writes first: one process in which each library saves, then loads.

Nothing is prepared: each load finds what its own save has left in the page cache and in the memory
of the process. Each save writes a new path, and a loaded tree is dropped before the next contender.
The savers are called as their users call them: cordwood's saves are on the disk when they return,
the others' are not.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contender_names import ORBAX

__all__ = [
    "CONTENDERS",
    "FLAX",
    "ORBAX",
    "OURS",
    "OURS_DIRECTORY",
    "OURS_MSGPACK",
    "ROUNDS",
    "SAFETENSORS",
    "run_in_turns",
]

OURS = "cordwood .safetensors"
OURS_MSGPACK = "cordwood .msgpack"
OURS_DIRECTORY = "cordwood, a directory"
SAFETENSORS = "safetensors.flax"
FLAX = "flax to_bytes and from_bytes"
EFORMER = "eformer save_to_file and load_from_file"
CONTENDERS = [OURS, OURS_MSGPACK, OURS_DIRECTORY, SAFETENSORS, FLAX, ORBAX, EFORMER]
ROUNDS = 4  # of one process; the first is not counted


class _Contender(NamedTuple):
    name: str  # of what it writes
    save: Callable[[Path], Any]
    load: Callable[[Path], Any]


def run_in_turns(tree: Any, folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of each save and of the load after it, in the second and later rounds."""
    import jax

    contenders = _contenders(tree)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for number in range(ROUNDS):
        for name, contender in contenders.items():
            path = folder / f"{number}-{contender.name}"
            begun = time.perf_counter()
            contender.save(path)
            saved = time.perf_counter()
            value = contender.load(path)
            jax.block_until_ready(value)
            loaded = time.perf_counter()
            del value
            if number:
                seconds[name].append((saved - begun, loaded - saved))
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return seconds


def _contenders(tree: Any) -> Mapping[str, _Contender]:
    import flax.serialization
    import jax
    import orbax.checkpoint as ocp
    import safetensors.flax
    from eformer.pytree import load_from_file, save_to_file

    import cordwood

    specs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), tree
    )
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    flat = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}
    checkpointer = ocp.StandardCheckpointer()

    def save_orbax(path: Path) -> None:
        checkpointer.save(path, tree)
        checkpointer.wait_until_finished()

    def save(path: Path) -> None:
        cordwood.save(path, tree)

    def load(path: Path) -> Any:
        return cordwood.load(path, like=specs)

    return {
        OURS: _Contender("ours.safetensors", save, load),
        OURS_MSGPACK: _Contender("ours.msgpack", save, load),
        OURS_DIRECTORY: _Contender("ours", save, load),
        SAFETENSORS: _Contender(
            "theirs.safetensors",
            lambda path: safetensors.flax.save_file(flat, path),
            safetensors.flax.load_file,
        ),
        FLAX: _Contender(
            "flax.msgpack",
            lambda path: path.write_bytes(flax.serialization.to_bytes(tree)),
            lambda path: flax.serialization.from_bytes(specs, path.read_bytes()),
        ),
        ORBAX: _Contender("orbax", save_orbax, lambda path: checkpointer.restore(path, placed)),
        EFORMER: _Contender(
            "eformer.msgpack",
            lambda path: save_to_file(tree, str(path)),
            lambda path: load_from_file(tree, str(path)),
        ),
    }
