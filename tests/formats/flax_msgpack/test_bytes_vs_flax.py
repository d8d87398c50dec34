"""Thousands of random trees: the bytes, and what is read from them, against Flax and eFormer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import numpy as np
import pytest
from eformer.pytree import _serialization as eformer

from cordwood import msgpack
from tests.random_trees import Trees, assert_same, fresh

BATCHES = range(25)
TREES_A_BATCH = 80  # 2,000 trees for each property
CHUNK_SIZES = (2**30, 2**30, 1, 5, 16, 100, 6.5)


@pytest.fixture(params=["flax", "eformer"])
def peer(request: pytest.FixtureRequest) -> Any:
    return flax.serialization if request.param == "flax" else eformer


@pytest.fixture(autouse=True)
def _restored_chunk_sizes() -> Iterator[None]:
    yield
    modules: tuple[Any, ...] = (msgpack, flax.serialization, eformer)
    for module in modules:
        module.MAX_CHUNK_SIZE = 2**30


def _trees(batch: int, peer: Any) -> Iterator[tuple[Trees, str]]:
    for seed in range(batch * TREES_A_BATCH, (batch + 1) * TREES_A_BATCH):
        trees = Trees(seed)
        size = trees.random.choice(CHUNK_SIZES)
        msgpack.MAX_CHUNK_SIZE = peer.MAX_CHUNK_SIZE = size  # type: ignore[assignment]
        yield trees, f"seed {seed}, MAX_CHUNK_SIZE {size}"


@pytest.mark.parametrize("batch", BATCHES)
def test_to_bytes_and_from_bytes(batch: int, peer: Any) -> None:
    for trees, which in _trees(batch, peer):
        tree = trees.tree()
        ours, theirs = msgpack.to_bytes(tree), peer.to_bytes(tree)
        assert ours == theirs, which
        assert b"".join(msgpack.to_buffers(tree)) == theirs, which
        from_theirs = msgpack.from_bytes(tree, theirs)
        assert_same(from_theirs, peer.from_bytes(tree, ours), which)
        assert_same(msgpack.from_bytes(None, theirs), peer.from_bytes(None, ours), which)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("in_place", [True, False])
def test_msgpack_serialize_and_restore(batch: int, in_place: bool, peer: Any) -> None:
    for trees, which in _trees(batch, peer):
        # eFormer cannot read other keys than strings (B16).
        tree = trees.plain(other_keys=peer is flax.serialization)
        ours = msgpack.msgpack_serialize(tree, in_place)
        theirs = peer.msgpack_serialize(fresh(tree), in_place)
        assert ours == theirs, which
        read, expected = msgpack.msgpack_restore(theirs), peer.msgpack_restore(ours)
        assert_same(read, expected, which)
        if msgpack.MAX_CHUNK_SIZE >= 16:  # below, an array may be a single chunk
            assert _flags(read) == _flags(expected), which


def _flags(tree: Any) -> list[bool]:
    return [x.flags.writeable for x in jax.tree.leaves(tree) if isinstance(x, np.ndarray)]


@pytest.mark.parametrize("batch", BATCHES)
def test_compressed_bytes_and_files(batch: int, tmp_path: Path) -> None:
    for trees, which in _trees(batch, eformer):
        tree = trees.tree()
        ours, theirs = msgpack.to_compressed_bytes(tree), eformer.to_compressed_bytes(tree)
        assert ours == msgpack.to_compressed_bytes(tree), which
        assert msgpack.decompress_bytes(theirs) == eformer.decompress_bytes(ours), which
        read = msgpack.from_compressed_bytes(tree, theirs)
        assert_same(read, eformer.from_compressed_bytes(tree, ours), which)
    for trees, which in _trees(batch, eformer):
        tree = trees.tree()
        ours_path, theirs_path = os.fspath(tmp_path / "ours"), os.fspath(tmp_path / "theirs")
        msgpack.save_to_file(tree, ours_path)
        eformer.save_to_file(tree, theirs_path)
        assert Path(ours_path).read_bytes() == Path(theirs_path).read_bytes(), which
        read = msgpack.load_from_file(tree, theirs_path)
        assert_same(read, eformer.load_from_file(tree, ours_path), which)


def test_serialization_info_agrees_with_eformer() -> None:
    for seed in range(2000):
        trees = Trees(seed)
        # eFormer fails on other leaves than arrays (B17).
        tree = {f"k{i}": [trees.array(), trees.random.choice(trees.jax_arrays)] for i in range(4)}
        ours, theirs = msgpack.get_serialization_info(tree), eformer.get_serialization_info(tree)
        assert set(ours) == set(theirs)
        assert ours["dtypes"] == sorted(theirs.pop("dtypes"))
        for key in theirs:
            assert ours[key] == theirs[key], (seed, key)
        assert msgpack.validate_serializable(tree) == eformer.validate_serializable(tree)
