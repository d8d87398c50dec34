"""The steps of a run in an object store share objects: bytes sent, bytes kept, and deletion."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator

import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.testing import assert_trees_equal
from tests.manager.linked_runs import fine_tuning, train
from tests.storage.stores import StoredObjects
from tests.storage.web_stores import WebStore, web_store

KIB = 1 << 10
STEPS = 20


@pytest.fixture(params=["s3", "gs"])
def web(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    with web_store(request.param, monkeypatch) as store:
        yield store


def uploaded_bytes(web: WebStore) -> int:
    """Return the bytes of all requests so far, and forget them."""
    total = sum(len(request.data) for request in web.requests)
    web.requests.clear()
    return total


def kept_bytes(web: WebStore) -> int:
    return sum(stored.size for stored in web.objects.values())


def test_what_is_sent_and_kept(web: WebStore) -> None:
    """A step sends what has changed; all steps keep the first one, and what each has changed."""
    tree = fine_tuning()
    sent = []
    with CheckpointManager(f"{web.url}/run", background=False) as manager:
        for step in range(STEPS + 1):
            changed_bytes = train(tree)
            uploaded_bytes(web)
            manager.save(step, tree)
            sent.append(uploaded_bytes(web))
            assert step == 0 or sent[-1] <= 1.02 * changed_bytes + 64 * KIB
    assert kept_bytes(web) <= sent[0] + (STEPS + 1) * max(sent[1:])


def test_deletion_in_any_order_leaves_the_others_whole(web: WebStore) -> None:
    root = f"{web.url}/run"
    tree = fine_tuning(columns=32)
    saved = {}
    with CheckpointManager(root, background=False) as manager:
        for step in range(8):
            train(tree)
            saved[step] = copy.deepcopy(tree)
            manager.save(step, tree)
        order = random.Random(5).sample(sorted(saved), len(saved))
        for deleted in order[:-1]:
            manager.delete(deleted)
            del saved[deleted]
            assert manager.steps() == sorted(saved)
            for step, tree in saved.items():
                assert_trees_equal(cordwood.load(f"{root}/{step}"), tree)
                assert cordwood.verify(f"{root}/{step}").unverified_bytes == 0
        alone = kept_bytes(web)
        manager.delete(order[-1])
    assert alone > 0
    left = [name for name in StoredObjects(root) if not name.endswith("steps.json")]
    assert left == []
