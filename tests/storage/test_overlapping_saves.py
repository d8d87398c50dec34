"""Saves of one path in a store that overlap, and verify while one commits: the last save wins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import StorageError
from cordwood.storage.object_stores import object_transaction
from cordwood.storage.object_stores.object_sidecars import write_sidecar
from cordwood.storage.object_stores.object_storage import ObjectStorage
from cordwood.storage.object_stores.object_transaction import ObjectTransaction
from cordwood.testing import assert_trees_equal
from tests.storage.stores import StoredObjects, new_url

FIRST, SECOND = {"w": np.arange(5.0)}, {"w": np.arange(5.0) + 1}


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Any:
    with new_url("memory", monkeypatch) as url:
        yield f"{url}/run/5"


def before_confirm(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Do something after the first save has replaced the index, and before it looks again."""
    confirm = ObjectTransaction._confirm

    def first(*arguments: Any) -> None:
        monkeypatch.setattr(ObjectTransaction, "_confirm", confirm)
        action()
        confirm(*arguments)

    monkeypatch.setattr(ObjectTransaction, "_confirm", first)


@pytest.mark.parametrize("prefix", [None, "ema"])
def test_the_earlier_save_returns_and_the_last_wins(
    url: str, monkeypatch: pytest.MonkeyPatch, prefix: str | None
) -> None:
    before_confirm(monkeypatch, lambda: cordwood.save(url, SECOND, prefix=prefix))
    cordwood.save(url, FIRST, prefix=prefix)
    assert_trees_equal(cordwood.load(url, prefix=prefix), SECOND)
    cordwood.verify(url)


def test_a_save_of_another_prefix_keeps_the_tree(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before_confirm(monkeypatch, lambda: cordwood.save(url, SECOND, prefix="ema"))
    cordwood.save(url, FIRST)
    assert_trees_equal(cordwood.load(url), FIRST)
    assert_trees_equal(cordwood.load(url, prefix="ema"), SECOND)


def test_data_that_was_removed_is_an_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def remove() -> None:
        objects = StoredObjects(url)
        for name in [each for each in objects if each.startswith("data-")]:
            del objects[name]

    before_confirm(monkeypatch, remove)
    with pytest.raises(StorageError, match="took longer than gc allows"):
        cordwood.save(url, FIRST)


def test_verify_looks_again_while_a_save_commits(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cordwood.save(url, FIRST)
    looks_again = threading.Event()
    wait, write = ObjectStorage.wait_for_commit, write_sidecar
    outcomes: list[object] = []

    def verify() -> None:
        try:
            outcomes.append(cordwood.verify(url))
        except BaseException as e:  # noqa: BLE001
            outcomes.append(e)
        looks_again.set()

    def waiting(self: ObjectStorage, is_whole: Callable[[], bool]) -> None:
        looks_again.set()
        wait(self, is_whole)

    def writing(*arguments: Any) -> None:
        verifier.start()
        assert looks_again.wait(60)
        write(*arguments)

    verifier = threading.Thread(target=verify)
    monkeypatch.setattr(ObjectStorage, "wait_for_commit", waiting)
    monkeypatch.setattr(object_transaction, "write_sidecar", writing)
    cordwood.save(url, {"v": np.arange(5.0)})
    verifier.join(60)
    assert isinstance(outcomes[0], cordwood.results.Verification), outcomes
