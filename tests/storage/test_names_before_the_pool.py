"""Steps whose names come before the pool's in a listing, which begins after the pool elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.removing.remove_checkpoint import plan_removal, remove
from cordwood.storage.paths import POOL
from cordwood.testing import assert_trees_equal
from tests.storage.stores import StoredObjects, new_url

NAMES = ["!a", "(copy)", "-5", ".best", ".data-old"]


class CopiedStep(NamedTuple):
    """A run whose first step was copied to another name by a tool of the store."""

    root: str
    path: str
    tree: dict[str, np.ndarray]
    objects: StoredObjects


@pytest.fixture(params=["memory", "s3", "gs"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with new_url(request.param, monkeypatch) as url:
        yield url


@pytest.fixture(params=NAMES)
def copied(request: pytest.FixtureRequest, store: str) -> CopiedStep:
    root, tree = f"{store}/run", {"w": np.arange(500.0)}
    with CheckpointManager(root, background=False) as manager:
        manager.save(1, tree)
        manager.save(2, {"w": np.ones(500)})
    objects = StoredObjects(root)
    objects[f"{request.param}/cordwood.json"] = objects["1/cordwood.json"]
    return CopiedStep(root, f"{root}/{request.param}", tree, objects)


def pooled(objects: StoredObjects) -> set[str]:
    return {name for name in objects if name.startswith(POOL) and name.endswith(".safetensors")}


def test_a_deletion_leaves_what_their_indexes_refer_to(copied: CopiedStep) -> None:
    before = pooled(copied.objects)
    with CheckpointManager(copied.root) as manager:
        manager.delete(1)
    assert pooled(copied.objects) == before
    assert_trees_equal(cordwood.load(copied.path), copied.tree)


def test_gc_leaves_what_their_indexes_refer_to(
    copied: CopiedStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    del copied.objects["1/cordwood.json"]
    before = pooled(copied.objects)
    in_two_days = time.time() + 2 * 24 * 3600
    monkeypatch.setattr("cordwood.storage.object_stores.object_pool.time.time", lambda: in_two_days)
    assert cordwood.gc(copied.root) == []
    assert pooled(copied.objects) == before
    assert_trees_equal(cordwood.load(copied.path), copied.tree)


def test_their_removal_frees_what_no_other_step_refers_to(copied: CopiedStep) -> None:
    del copied.objects["1/cordwood.json"]
    before = pooled(copied.objects)
    remove(plan_removal(copied.path))
    assert not [name for name in copied.objects if f"{copied.root}/{name}".startswith(copied.path)]
    assert len(pooled(copied.objects)) < len(before)
    assert cordwood.verify(f"{copied.root}/2").unverified_bytes == 0
