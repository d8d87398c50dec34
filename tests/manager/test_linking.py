"""Steps share what has not changed: what they take, what is linked when, and what damage does."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import cordwood
from cordwood import CheckpointManager
from cordwood.errors import CorruptionError
from cordwood.formats.packs import compare_with_file
from cordwood.results import SaveReport
from cordwood.storage import syscalls
from cordwood.testing import assert_trees_equal
from tests.manager.linked_runs import (
    WrittenBytes,
    fine_tuning,
    links_of,
    occupied_bytes,
    train,
)
from tests.storage.stores import KINDS, StoredObjects, new_url

KIB, MIB = 1 << 10, 1 << 20
FROZEN = np.arange(100_000, dtype=np.float32)


@pytest.fixture
def reports() -> list[SaveReport]:
    return []


def small_tree(step: int) -> dict[str, Any]:
    return {"frozen": FROZEN, "step": np.full(3, step), "trained": np.full(1000, step, np.float32)}


def save(root: Path, *steps: int, **options: Any) -> CheckpointManager:
    with CheckpointManager(root, background=False, **options) as manager:
        for step in steps:
            manager.save(step, small_tree(step))
    return manager


def check(root: Path) -> None:
    """Every step is whole and right."""
    for step in CheckpointManager(root).steps():
        assert cordwood.verify(root / str(step)).unverified_bytes == 0
        assert_trees_equal(cordwood.load(root / str(step)), small_tree(step))


def test_fine_tuning_writes_what_has_changed(tmp_path: Path) -> None:
    tree = fine_tuning()
    written = WrittenBytes()
    reports: list[SaveReport] = []
    trees = {}
    with (
        syscalls.override(written),
        CheckpointManager(tmp_path, background=False, on_save=reports.append) as manager,
    ):
        trees[0] = jax.tree.map(np.copy, tree)
        manager.save(0, tree)
        whole = written.taken()
        assert whole > 60 * MIB
        base = occupied_bytes(tmp_path)
        for step in range(1, 21):
            delta = train(tree)
            trees[step] = jax.tree.map(np.copy, tree)
            manager.save(step, tree)
            assert written.taken() <= 1.02 * delta + 64 * KIB
            assert reports[step].written_bytes == delta
            assert reports[step].written_bytes + reports[step].linked_bytes == sum(
                array.nbytes for array in jax.tree.leaves(tree)
            )
    assert manager.steps() == list(range(21))
    assert occupied_bytes(tmp_path) <= base + 21 * delta
    kept = list(range(21))
    random.Random(0).shuffle(kept)
    while kept:
        if len(kept) in (19, 10, 2):
            for step in kept:
                assert cordwood.verify(tmp_path / str(step)).unverified_bytes == 0
            assert_trees_equal(cordwood.load(tmp_path / str(kept[0])), trees[kept[0]])
        manager.delete(kept.pop())
    assert occupied_bytes(tmp_path) == 0


@given(st.permutations(range(6)))
@settings(max_examples=20, deadline=None)
def test_deleting_any_step_leaves_the_others(order: list[int]) -> None:
    root = Path(tempfile.mkdtemp(prefix="cordwood-links-"))
    try:
        manager = save(root, *range(6))
        assert sorted(links_of(root / "5")) == [1, 6]
        for gone in order:
            manager.delete(gone)
            check(root)
        assert not os.listdir(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def test_what_changes_back_and_forth(tmp_path: Path) -> None:
    """Any part may change at any step; files that are mostly of the past are written anew."""
    rng = np.random.default_rng(1)
    tree = {str(i): rng.integers(0, 99, (50 + i, 40)) for i in range(20)}
    held = {}
    with CheckpointManager(tmp_path, background=False, rewrite_every=9) as manager:
        for step in range(30):
            for name in rng.choice(20, rng.integers(0, 12), replace=False):
                tree[str(name)] = tree[str(name)] + 1
            held[step] = dict(tree)
            manager.save(step, tree)
    for step, expected in held.items():
        assert cordwood.verify(tmp_path / str(step)).unverified_bytes == 0
        assert_trees_equal(cordwood.load(tmp_path / str(step)), expected)
        live = sum(array.nbytes for array in expected.values())
        files = (tmp_path / str(step)).glob("data-*")
        assert sum(file.stat().st_size for file in files) < 2 * live + 20 * 8192


@pytest.mark.parametrize(("every", "whole"), [(1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (4, [0, 4])])
def test_everything_is_written_anew_every_so_many_steps(
    tmp_path: Path, reports: list[SaveReport], every: int, whole: list[int]
) -> None:
    save(tmp_path, *range(5), rewrite_every=every, on_save=reports.append)
    assert [report.step for report in reports if not report.linked_bytes] == whole
    linked = {report.linked_bytes for report in reports} - {0}
    assert linked <= {FROZEN.nbytes}
    check(tmp_path)


def test_a_new_manager_goes_on_with_the_chain(tmp_path: Path, reports: list[SaveReport]) -> None:
    for step in range(7):
        save(tmp_path, step, rewrite_every=3, on_save=reports.append)
    assert [report.step for report in reports if not report.linked_bytes] == [0, 3, 6]


@pytest.mark.parametrize("every", [0, -1, 1.5, None, True])
def test_rewrite_every_is_checked(tmp_path: Path, every: Any) -> None:
    with pytest.raises(ValueError, match="rewrite_every: expected an int of at least 1, found "):
        CheckpointManager(tmp_path, rewrite_every=every)


def test_hugging_faces_index_is_there_where_files_have_no_gaps(tmp_path: Path) -> None:
    name = "model.safetensors.index.json"
    with CheckpointManager(tmp_path, background=False) as manager:
        manager.save(0, {"a": FROZEN, "b": np.zeros(5)})
        manager.save(1, {"a": FROZEN, "b": np.zeros(5)})
        manager.save(2, {"a": FROZEN, "b": np.ones(5)})
        manager.save(3, {"a": FROZEN, "b": np.zeros(5), "c": np.ones(2)})
    assert [(tmp_path / str(i) / name).exists() for i in range(4)] == [True, True, False, False]
    names = [json.loads((tmp_path / str(i) / name).read_text())["weight_map"] for i in (0, 1)]
    assert names[0] == names[1]
    assert links_of(tmp_path / "1") == [4]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record a 0 for each cell that is read, and the size of each file that is read whole."""
    seen: list[int] = []
    look, read = compare_with_file.find_difference, compare_with_file.changed_cells

    def looking(file: Any, cell: Any, value: Any) -> Any:
        seen.append(0)
        return look(file, cell, value)

    def reading(file: Any, *arguments: Any, **options: Any) -> set[int]:
        seen.append(file.size_bytes)
        return read(file, *arguments, **options)

    monkeypatch.setattr("cordwood.formats.packs.hard_links.find_difference", looking)
    monkeypatch.setattr("cordwood.formats.packs.hard_links.changed_cells", reading)
    return seen


def test_where_all_changes_the_old_step_is_not_read(tmp_path: Path, reads: list[int]) -> None:
    with CheckpointManager(tmp_path, background=False) as manager:
        for step in range(3):
            manager.save(step, {str(i): np.full(1000, step + i * 1000) for i in range(500)})
            assert set(reads) <= {0}
            assert len(reads) <= 64
            reads.clear()


def test_a_small_frozen_part_gets_files_of_its_own(
    tmp_path: Path, reports: list[SaveReport]
) -> None:
    frozen = np.arange(300_000, dtype=np.float64)
    with CheckpointManager(tmp_path, background=False, on_save=reports.append) as manager:
        for step in range(4):
            manager.save(step, {"f": frozen, "t": np.full(900_000, step, np.float64)})
    assert [report.linked_bytes for report in reports] == [0, 0, frozen.nbytes, frozen.nbytes]
    for step in range(4):
        cordwood.verify(tmp_path / str(step))
        assert (cordwood.load(tmp_path / str(step))["f"] == frozen).all()


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        file.write(bytes([byte[0] ^ 1]))


# "first" is within what a look compares.
PLACES = {"header": 200, "first": 4096 + 1000, "frozen": 4096 + 150_000, "gap": -1}


@pytest.mark.parametrize("where", ["header", "first", "frozen", "gap"])
def test_a_flipped_byte_is_healed_by_the_next_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reports: list[SaveReport], where: str
) -> None:
    save(tmp_path, 0, 1)
    name = min(os.listdir(tmp_path / "0"), key=lambda name: not name.startswith("data-"))
    flip(tmp_path / "1" / name, PLACES[where])
    with pytest.raises(CorruptionError):
        cordwood.verify(tmp_path / "1")
    save(tmp_path, 2, 3, on_save=reports.append)
    warned = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    (warning,) = warned
    assert name in warning
    assert "do not match the digest" in warning
    assert "what it held is written anew" in warning
    assert [report.linked_bytes > 0 for report in reports] == [False, True]
    for step in (2, 3):
        cordwood.verify(tmp_path / str(step))
        assert_trees_equal(cordwood.load(tmp_path / str(step)), small_tree(step))


def test_a_missing_file_of_the_base_is_not_linked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 0)
    for path in (tmp_path / "0").glob("data-*"):
        path.unlink()
    save(tmp_path, 1)
    assert "is missing" in caplog.text
    cordwood.verify(tmp_path / "1")


@pytest.mark.parametrize("moment", ["before", "after the looks"])
def test_the_base_is_deleted_meanwhile(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    moment: str,
) -> None:
    save(tmp_path, 0)
    plan = compare_with_file.find_difference

    def deleting(*arguments: Any) -> Any:
        actual = plan(*arguments)
        shutil.rmtree(tmp_path / "0", ignore_errors=True)
        return actual

    name = "find_difference" if moment == "after the looks" else "base_files"
    if name == "base_files":
        from cordwood.formats.packs.base_files import base_files

        def gone(*arguments: Any) -> Any:
            shutil.rmtree(tmp_path / "0", ignore_errors=True)
            return base_files(*arguments)

        monkeypatch.setattr("cordwood.formats.packs.write_packs.base_files", gone)
    else:
        monkeypatch.setattr("cordwood.formats.packs.hard_links.find_difference", deleting)
    save(tmp_path, 1)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    check(tmp_path)
    assert links_of(tmp_path / "1") == [1]


class NoLinks(syscalls.SystemCalls):
    def __init__(self, code: int) -> None:
        self.code = code
        self.asked = 0

    def link(self, source: str, target: str) -> None:
        del source, target
        self.asked += 1
        raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize("code", [errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP])
def test_without_hard_links_all_is_written(
    tmp_path: Path, reads: list[int], reports: list[SaveReport], code: int
) -> None:
    calls = NoLinks(code)
    with syscalls.override(calls):
        save(tmp_path, 0, 1, 2, on_save=reports.append)
    assert calls.asked == 2
    assert set(reads) == {0}  # nothing was read for nothing
    assert [report.linked_bytes for report in reports] == [0, 0, 0]
    check(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_in_object_stores_share_objects(
    kind: str, reports: list[SaveReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects have no links: the index of a step refers to those of an older one."""
    with new_url(kind, monkeypatch) as url:
        with CheckpointManager(url, background=False, keep=1, on_save=reports.append) as manager:
            for step in range(4):
                manager.save(step, small_tree(step))
        assert [report.linked_bytes for report in reports] == [0, *[FROZEN.nbytes] * 3]
        assert_trees_equal(cordwood.load(f"{url}/3"), small_tree(3))
        assert cordwood.verify(f"{url}/3").unverified_bytes == 0
        data = [name for name in StoredObjects(url) if name.startswith(".data/")]
        assert len([name for name in data if name.endswith(".safetensors")]) == 2


def test_what_is_not_a_managers_step_is_no_base(tmp_path: Path, reports: list[SaveReport]) -> None:
    cordwood.save(tmp_path / "0", small_tree(0))
    save(tmp_path, 1, on_save=reports.append)
    assert reports[0].linked_bytes == 0


def test_one_bit_where_no_look_falls(tmp_path: Path, reports: list[SaveReport]) -> None:
    """Every one of them is distinguished, the sign of zero and the bits of a NaN among them."""
    array = np.zeros(100_000, np.float32)
    array[20_000] = np.nan
    bits = array.view(np.uint32)
    with CheckpointManager(tmp_path, background=False, on_save=reports.append) as manager:
        manager.save(0, {"a": array, "b": FROZEN})
        for step, (at, bit) in enumerate([(10_000, 31), (20_000, 0), (70_000, 12)], start=1):
            bits[at] ^= np.uint32(1 << bit)
            manager.save(step, {"a": array, "b": FROZEN})
            loaded = cordwood.load(tmp_path / str(step))
            assert loaded["a"].tobytes() == array.tobytes()
            assert cordwood.verify(tmp_path / str(step)).unverified_bytes == 0
    assert [report.linked_bytes for report in reports] == [0, *[FROZEN.nbytes] * 3]


@pytest.mark.parametrize(
    "other",
    [
        {"frozen": FROZEN.astype(np.float64)},
        {"frozen": FROZEN.reshape(10, -1)},
        {"frozen": FROZEN.view(np.int32)},
        {"frozen": jnp.asarray(FROZEN)},
        {"Frozen": FROZEN},
        {"frozen": {"a": FROZEN}},
        {"frozen": -FROZEN},
    ],
    ids=["dtype", "shape", "bits", "kind", "name", "path", "values"],
)
def test_what_is_not_the_same_is_not_linked(
    tmp_path: Path, reports: list[SaveReport], other: dict[str, Any]
) -> None:
    with CheckpointManager(tmp_path, background=False, on_save=reports.append) as manager:
        manager.save(0, {"frozen": FROZEN})
        manager.save(1, other)
    assert reports[1].linked_bytes == 0
    assert_trees_equal(cordwood.load(tmp_path / "1"), other)


def test_leaves_that_come_and_go(tmp_path: Path, reports: list[SaveReport]) -> None:
    """Leaves keep their files when others are put before them, or their order changes."""
    one, two = FROZEN, FROZEN[::-1].copy()
    trees: list[dict[str, Any]] = [
        {"a": one, "b": two, "s": "text" * 3000},
        {"0": np.ones(3), "a": one, "b": two, "s": "text" * 3000},
        {"b": two, "a": one, "s": "text" * 3000},
        {"b": two, "n": None, "k": 3},
    ]
    with CheckpointManager(tmp_path, background=False, on_save=reports.append) as manager:
        for step, tree in enumerate(trees):
            manager.save(step, tree)
    both = one.nbytes + two.nbytes + 12_000
    assert [report.linked_bytes for report in reports] == [0, both, both, 0]
    for step, tree in enumerate(trees):
        cordwood.verify(tmp_path / str(step))
        assert_trees_equal(cordwood.load(tmp_path / str(step)), tree)


def sharded(step: int, *spec: str | None) -> dict[str, Any]:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    frozen = jnp.arange(65536, dtype=jnp.float32).reshape(256, 256)
    return {
        "f": jax.device_put(frozen, sharding),
        "h": jax.device_put(frozen.astype(jnp.bfloat16), sharding),
        "key": jax.random.key(7),
        "t": jax.device_put(jnp.full((64, 64), step, jnp.float32), sharding),
    }


def test_shards_are_linked_where_they_are_cut_alike(
    tmp_path: Path, reports: list[SaveReport]
) -> None:
    specs = [("x", "y"), ("x", "y"), ("y", None), ("y", None)]
    with CheckpointManager(tmp_path, on_save=reports.append) as manager:
        for step, spec in enumerate(specs):
            pending = manager.save(step, sharded(step, *spec))
            assert pending is not None
            pending.wait()
            assert pending.progress.done_bytes == pending.progress.total_bytes
    frozen = 65536 * 6 + 8
    assert [report.linked_bytes for report in reports] == [0, frozen, 0, frozen]
    for step, spec in enumerate(specs):
        cordwood.verify(tmp_path / str(step))
        tree = sharded(step, *spec)
        assert_trees_equal(cordwood.load(tmp_path / str(step), like=tree), tree)


def test_a_save_of_the_same_step_that_died_has_left_links(
    tmp_path: Path, reports: list[SaveReport]
) -> None:
    save(tmp_path, 0)
    (tmp_path / "1").mkdir()
    for path in (tmp_path / "0").glob("data-*"):
        os.link(path, tmp_path / "1" / path.name)
    save(tmp_path, 1, on_save=reports.append)
    assert reports[0].linked_bytes == FROZEN.nbytes
    check(tmp_path)


def test_links_that_a_killed_save_has_left_are_removed(tmp_path: Path) -> None:
    save(tmp_path, 0)
    (tmp_path / "1").mkdir()
    for path in (tmp_path / "0").glob("data-*"):
        os.link(path, tmp_path / "1" / path.name)
    save(tmp_path, 2, rewrite_every=1)
    assert sorted(os.listdir(tmp_path)) == ["0", "2"]
    assert links_of(tmp_path / "0") == [1]
    check(tmp_path)


def test_what_is_being_linked_is_not_garbage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither gc of the new step nor a save that fails beside this one takes a link away."""
    save(tmp_path, 0)
    real = compare_with_file.changed_cells
    removed: list[str] = []

    def meanwhile(*arguments: Any, **options: Any) -> set[int]:
        removed.extend(cordwood.gc(tmp_path / "1"))
        return real(*arguments, **options)

    monkeypatch.setattr("cordwood.formats.packs.hard_links.changed_cells", meanwhile)
    save(tmp_path, 1)
    assert removed == []
    assert 2 in links_of(tmp_path / "1")
    check(tmp_path)


def test_a_save_that_fails_leaves_no_link(tmp_path: Path) -> None:
    save(tmp_path, 0)

    class Full(syscalls.SystemCalls):
        def fsync(self, fd: int) -> None:
            del fd
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        syscalls.override(Full()),
        pytest.raises(OSError, match="No space left on device"),
        CheckpointManager(tmp_path) as manager,
    ):
        manager.save(1, small_tree(1))
    assert links_of(tmp_path / "0") == [1]
    assert os.listdir(tmp_path) == ["0"]
    save(tmp_path, 1)
    check(tmp_path)
