"""Every format passes the conformance suite; one row for each, or for each kind of writer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import cordwood
from tests.formats.conformance import TREE, Check, Row, checks_of
from tests.golden import hugging_face_shards, msgpack_files, orbax_checkpoints

FLAT = {name: leaf for name, leaf in TREE.items() if name != "params"} | {
    "kernel": TREE["params"]["kernel"]
}
WITHOUT_EMPTY = {name: leaf for name, leaf in TREE.items() if name != "empty"}


def written(name: str, file: str, **row: Any) -> Row:
    """Return the row of a format that `save` writes."""
    options = row.pop("options", {})
    return Row(
        name,
        file,
        lambda path, tree: cordwood.save(path, tree, **options),
        options=options,
        **row,
    )


def write_npy(path: Path, tree: Any) -> None:
    np.save(path, tree)


def write_npz(path: Path, tree: Any) -> None:
    np.savez(path, **tree)


def write_eqx(path: Path, tree: Any) -> None:
    import equinox

    equinox.tree_serialise_leaves(path, tree)


def write_model_safetensors(path: Path, tree: Any) -> None:
    import safetensors.numpy

    path.mkdir()
    safetensors.numpy.save_file(tree, path / "model.safetensors")


def write_zarr_tree(path: Path, tree: Any) -> None:
    from jax.experimental.array_serialization.serialization import GlobalAsyncCheckpointManager

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    manager = GlobalAsyncCheckpointManager()
    manager.serialize_with_paths(
        [jax.numpy.asarray(leaf) for _, leaf in leaves],
        ["/".join((str(path), *(key.key for key in keys))) for keys, _ in leaves],
    )
    manager.wait_until_finished()


def write_database(path: Path, tree: Any) -> None:
    from jax.experimental.array_serialization.serialization import GlobalAsyncCheckpointManager

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    base = {"driver": "file", "path": str(path)}
    names = ["/".join(key.key for key in keys) for keys, _ in leaves]
    manager = GlobalAsyncCheckpointManager()
    manager.serialize(
        [jax.numpy.asarray(leaf) for _, leaf in leaves],
        [
            {"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": base, "path": name}}
            for name in names
        ],
        on_commit_callback=lambda: None,
    )
    manager.wait_until_finished()


def orbax(layout: str) -> Row:
    return Row(
        "orbax",
        f"orbax-{layout}",
        lambda path, tree: orbax_checkpoints.write(path, layout, tree),
        tree=WITHOUT_EMPTY,
    )


WITH_ALL: dict[str, Any] = {"has_digests": True, "has_metadata": True, "has_structure": True}
ROWS = [
    written("safetensors", "c.safetensors", **WITH_ALL),
    written("msgpack", "c.msgpack"),
    written("msgpack.gz", "c.msgpack.gz", has_digests=True),
    written("msgpack.zst", "c.msgpack.zst", has_digests=True),
    written("packs", "packs", **WITH_ALL),
    written("zarr", "zarr", options={"format": "zarr"}, **WITH_ALL),
    written("zarr", "zarr-zstd", options={"format": "zarr", "compression": "zstd"}, **WITH_ALL),
    Row("npz", "c.npz", write_npz, tree=FLAT),
    Row("npy", "c.npy", write_npy, tree=TREE["params"]["kernel"]),
    Row("eqx", "c.eqx", write_eqx, has_names=False),
    Row(
        "msgpack-records",
        "c.msgpack-records",
        lambda path, tree: shutil.copyfile(msgpack_files.STREAM, path),
        tree=msgpack_files.RECORDS,
    ),
    *map(orbax, orbax_checkpoints.LAYOUTS),
    Row(
        "safetensors-shards",
        "shards",
        lambda path, tree: shutil.copytree(hugging_face_shards.FOLDER, path),
        tree={k: v for tensors in hugging_face_shards.SHARDS.values() for k, v in tensors.items()},
    ),
    Row("safetensors-shards", "model", write_model_safetensors, tree=FLAT),
    Row("zarr-tree", "zarr-tree", write_zarr_tree),
    Row("ocdbt", "ocdbt", write_database),
]


def test_every_format_has_a_row() -> None:
    assert {row.name for row in ROWS} == {
        *("safetensors", "npz", "npy", "eqx", "msgpack", "msgpack.gz", "msgpack.zst"),
        *("msgpack-records", "packs", "zarr", "orbax", "safetensors-shards", "zarr-tree", "ocdbt"),
    }


@pytest.mark.parametrize(
    ("row", "check"),
    [
        pytest.param(row, check, id=f"{row.file}-{check.__name__}")
        for row in ROWS
        for check in checks_of(row)
    ],
)
def test_a_format_passes_each_check(row: Row, check: Check, tmp_path: Path) -> None:
    check(row, tmp_path)
