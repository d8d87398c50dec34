"""Files of other libraries, of pinned versions: every leaf is read, and nothing is executed."""

from __future__ import annotations

import base64
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import cordwood
from cordwood.errors import IncompleteCheckpointError, MismatchError
from cordwood.testing import assert_trees_equal
from tests.golden import eformer_directories, msgpack_files, zarr_trees
from tests.golden.equinox_files import PATH as EQUINOX
from tests.golden.equinox_files import TREE as EQUINOX_TREE
from tests.golden.hugging_face_shards import FOLDER as HUGGING_FACE
from tests.golden.hugging_face_shards import SHARDS
from tests.golden.orbax_checkpoints import GOLDEN as ORBAX
from tests.golden.orbax_checkpoints import LAYOUTS
from tests.golden.orbax_checkpoints import tree as orbax_tree
from tests.golden.safetensors_files import ARRAYS as SAFETENSORS

RUN = eformer_directories.RUN


def as_state(tree: Any) -> Any:
    """Return the tree as a state dict of Flax: lists and tuples are dicts."""
    if isinstance(tree, dict):
        return {key: as_state(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return {str(i): as_state(value) for i, value in enumerate(tree)}
    return tree


def arrays_of(tree: Any) -> Any:
    """Return the tree as eFormer's directories hold it: a state dict of its arrays only."""
    state = as_state(tree)
    if not isinstance(state, dict):
        return state
    kept = {key: arrays_of(value) for key, value in sorted(state.items())}
    return {k: v for k, v in kept.items() if isinstance(v, (dict, np.ndarray, jax.Array))}


def by_key(tree: Any) -> Any:
    return {k: by_key(tree[k]) for k in sorted(tree)} if isinstance(tree, dict) else tree


CASES: dict[str, tuple[Path, Callable[[], Any], str]] = {
    "flax": (msgpack_files.WHOLE, lambda: as_state(msgpack_files.TREE), "msgpack"),
    "flax, chunked": (msgpack_files.CHUNKED, lambda: as_state(msgpack_files.TREE), "msgpack"),
    "orbax, aggregate": (msgpack_files.AGGREGATE, lambda: msgpack_files.TUPLES, "msgpack"),
    "records": (msgpack_files.STREAM, lambda: msgpack_files.RECORDS, "msgpack-records"),
    "eformer, shards": (
        eformer_directories.SHARDS,
        lambda: {
            "dense.bias": eformer_directories.PARAMS["dense"]["bias"].astype(np.float32),
            "dense.kernel": eformer_directories.PARAMS["dense"]["kernel"],
            "norm.scale": eformer_directories.PARAMS["norm"]["scale"],
        },
        "safetensors-shards",
    ),
    "zarr tree": (zarr_trees.GOLDEN, zarr_trees.tree, "zarr-tree"),
    "safetensors": (
        Path(HUGGING_FACE).parent / "reference-0.8.0.safetensors",
        lambda: SAFETENSORS,
        "safetensors",
    ),
    "hugging face": (
        HUGGING_FACE,
        lambda: {name: array for tensors in SHARDS.values() for name, array in tensors.items()},
        "safetensors-shards",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_leaf_of_a_golden_file_is_read(name: str) -> None:
    path, make, format_ = CASES[name]
    expected = make()
    assert cordwood.detect(path).format == format_
    for result in (cordwood.load(path), cordwood.load(path, mmap=True)):
        assert_trees_equal(by_key(result), by_key(expected), placement=False)
    assert_trees_equal(cordwood.load(path, like=expected), expected)
    assert cordwood.verify(path).leaves == len(jax.tree.leaves(expected))


def test_flax_into_its_own_types() -> None:
    for path in (msgpack_files.WHOLE, msgpack_files.CHUNKED):
        loaded = cordwood.load(path, like=msgpack_files.TREE)
        assert_trees_equal(loaded, msgpack_files.TREE)
    assert msgpack_files.CHUNKED.stat().st_size > msgpack_files.WHOLE.stat().st_size


def test_a_golden_file_of_equinox_is_read() -> None:
    assert_trees_equal(cordwood.load(EQUINOX, like=EQUINOX_TREE), EQUINOX_TREE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_golden_checkpoints_of_orbax_are_read(layout: str) -> None:
    assert_trees_equal(cordwood.load(ORBAX / layout, like=orbax_tree()), orbax_tree())


@pytest.mark.parametrize("step", eformer_directories.STEPS)
def test_golden_steps_of_eformer_are_read(step: int) -> None:
    path = RUN / f"run-{step}"
    tree = eformer_directories.tree(step)
    assert cordwood.detect(path).format == "zarr"
    for prefix, expected in (("state", tree), ("params", tree["params"])):
        loaded = cordwood.load(path, prefix=prefix)
        assert_trees_equal(loaded, arrays_of(expected), placement=False)
    like = {key: tree[key] for key in ("params", "opt", "int4")}
    assert_trees_equal(cordwood.load(path, prefix="state", like=like), like)
    assert cordwood.verify(path).leaves == 7


def test_the_steps_of_a_run_of_eformer_are_listed() -> None:
    detected = cordwood.detect(RUN)
    assert (detected.format, detected.steps) == ("steps", ("run-6", "run-12"))
    with pytest.raises(
        IncompleteCheckpointError,
        match=r"2 steps \(run-6, run-12\).*newest is .*/run/run-12; `cordwood steps",
    ):
        cordwood.load(RUN)


EXECUTED: list[str] = []


class Hostile:
    """Tells when it is unpickled."""

    def __reduce__(self) -> Any:
        return executed, ("a pickle",)


def executed(by: str) -> None:
    EXECUTED.append(by)


def test_pickles_are_never_read(tmp_path: Path) -> None:
    """B44: eFormer unpickles what `<prefix>_structure.json` holds."""
    path = shutil.copytree(RUN / "run-6", tmp_path / "run-6")
    file = path / "state_structure.json"
    structure = json.loads(file.read_text())
    hostile = base64.b64encode(pickle.dumps(Hostile())).decode()
    structure["treedef_b64"] = hostile
    structure["nonarray_payload"] = dict.fromkeys(structure["nonarray_payload"], hostile)
    for text in (json.dumps(structure), "{", "[" * 10_000):
        file.write_text(text)
        assert cordwood.detect(path).format == "zarr"
        cordwood.load(path, prefix="state")
        cordwood.verify(path)
        with cordwood.open(path, prefix="state") as checkpoint:
            assert "params/kernel" in checkpoint
        with pytest.raises(MismatchError, match="name: not in the checkpoint"):
            cordwood.load(path, prefix="state", like=eformer_directories.tree(6))
    assert EXECUTED == []
    pickle.loads(base64.b64decode(hostile))
    assert EXECUTED == ["a pickle"]
    EXECUTED.clear()
