"""Checkpoints of more files than a process may have open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood.errors import FileChangedError
from tests.children import run_python

LIMITED = """
    import resource, sys
    import cordwood
    import numpy as np

    def limit(files):
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    path, other = sys.argv[1:]
    tree = {f"l{i}": np.full(2, i, np.float32) for i in range(COUNT)}
"""
MANY = 300


def run(code: str, tmp_path: Path, *, count: int = MANY) -> None:
    program = LIMITED.replace("COUNT", str(count)) + code
    run_python(program, str(tmp_path / "a"), str(tmp_path / "b"))


def tree_of(count: int = MANY) -> dict[str, np.ndarray]:
    return {f"l{i}": np.full(2, i, np.float32) for i in range(count)}


def test_more_shards_than_open_files_are_read(tmp_path: Path) -> None:
    """They load, also one tensor of them, and every other call reads them."""
    run(
        """
    cordwood.save(path, tree, format="hugging_face", max_shard_bytes=8)
    limit(128)
    assert cordwood.load(path, select=["l7"])["l7"].tolist() == [7, 7]
    assert [value[0] for value in cordwood.load(path).values()] == list(range(300))
    with cordwood.open(path) as checkpoint:
        assert checkpoint["l299"][0] == 299
    assert cordwood.verify(path).leaves == 300
    assert cordwood.diff(path, path).equal
    cordwood.convert(path, other)
    assert len(cordwood.load(other)) == 300
    """,
        tmp_path,
    )


def test_more_shards_than_may_be_open_are_written_and_read(tmp_path: Path) -> None:
    run(
        """
    cordwood.save(path, tree)
    limit(128)
    cordwood.convert(path, other, format="hugging_face", max_shard_bytes=8)
    assert len(cordwood.load(other)) == 300
    """,
        tmp_path,
    )


def test_many_files_of_zarr(tmp_path: Path) -> None:
    run(
        """
    limit(256)
    for _ in range(2):
        cordwood.save(path, tree, format="zarr")
    assert len(cordwood.load(path)) == 400
    assert cordwood.verify(path).leaves == 400
    assert cordwood.diff(path, path).equal
    cordwood.gc(path)
    cordwood.convert(path, other)
    """,
        tmp_path,
        count=400,
    )


def test_too_many_packs_are_refused_and_fewer_are_written(tmp_path: Path) -> None:
    """The old checkpoint stays, and both remedies that the error names work."""
    run(
        """
    cordwood.save(path, tree)
    soft = 128
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, 4096))
    try:
        cordwood.save(path, {"new": 1, **tree}, max_shard_bytes=8)
    except cordwood.StorageError as e:
        assert "a larger max_shard_bytes" in str(e) and "ulimit -n" in str(e), e
    else:
        raise AssertionError("no error")
    assert len(cordwood.load(path)) == 300
    cordwood.save(path, tree, max_shard_bytes=80)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
    cordwood.save(path, tree, max_shard_bytes=8)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, 4096))
    assert len(cordwood.load(path)) == 300
    assert cordwood.verify(path).leaves == 300
    assert cordwood.diff(path, path).equal
    cordwood.copy(path, other)
    cordwood.gc(path)
    """,
        tmp_path,
    )


def test_a_shard_that_changes_while_it_is_not_open(tmp_path: Path) -> None:
    path = tmp_path / "a"
    cordwood.save(path, tree_of(), format="hugging_face", max_shard_bytes=8)
    with cordwood.open(path) as checkpoint:
        shard = path / "model-00008-of-00300.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1] + b"?")
        with pytest.raises(
            FileChangedError, match=r"model-00008-of-00300\.safetensors has changed"
        ):
            checkpoint["l7"][:]
        shard.unlink()
        with pytest.raises(FileNotFoundError, match=r"model-00008-of-00300\.safetensors"):
            checkpoint["l7"][:]
        assert checkpoint["l8"][0] == 8
