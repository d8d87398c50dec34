"""Every request of a publication and of an update goes wrong, in each way.

Whatever happens, a follower returns exactly a version that was published, and the next publication
and the next update work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

import cordwood as cw
from cordwood.testing import assert_trees_equal
from tests.storage.test_every_request import FAULTS, Fault, error_of
from tests.storage.web_stores import Answer, Request, WebStore, web_store

WEIGHTS = np.random.default_rng(0).standard_normal(5000).astype(np.float32)


def tree_of(version: int) -> dict[str, np.ndarray]:
    weights = WEIGHTS.copy()
    for number in range(version):
        weights[number::997] *= np.float32(1.25)
    return {"w": weights}


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    with web_store("s3", monkeypatch) as store:
        yield store


def requests_of(web: WebStore, call: Callable[[], object]) -> int:
    """Return the number of requests of a call."""
    count = 0

    def hook(_: Request) -> Answer | None:
        nonlocal count
        count += 1
        return None

    web.hook = hook
    call()
    web.hook = lambda _: None
    return count


def publisher_at(root: str, version: int) -> cw.WeightPublisher:
    """Return a publisher that has published the versions up to this one."""
    publisher = cw.WeightPublisher(root, full_every=3)
    for number in range(1, version + 1):
        publish(publisher, number)
    return publisher


def publish(publisher: cw.WeightPublisher, version: int, _: str = "") -> None:
    publisher.publish(version, tree_of(version)).wait()


def update(follower: cw.WeightFollower, _: str) -> None:
    follower.update()


@pytest.mark.parametrize("version", [1, 2, 4], ids=["first", "delta", "whole, with a delta"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_of_a_publication(web: WebStore, fault: Fault, version: int) -> None:
    publisher = publisher_at(f"{web.url}/count", version - 1)
    count = requests_of(web, partial(publish, publisher, version))
    assert count > 3
    for number in range(1, count + 1):
        root = f"{web.url}/{number}"
        publisher, follower = publisher_at(root, version - 1), cw.WeightFollower(root, to="numpy")
        if version > 1:
            follower.update()
        web.hook = fault.make_hook(number)
        error = error_of(partial(publish, publisher, version), "")
        web.hook = lambda _: None
        web.uploads.clear()
        assert not (error and fault.is_harmless), f"request {number}: {error}"
        newest = follower.newest() or 0
        assert newest in ({version} if error is None else {version - 1, version})
        if newest:
            for reader in (follower, cw.WeightFollower(root, to="numpy")):
                assert_trees_equal(reader.update(), tree_of(newest))
        publish(publisher, version + 1)
        assert_trees_equal(follower.update(), tree_of(version + 1))


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "behind"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_of_an_update(web: WebStore, fault: Fault, *, is_new: bool) -> None:
    root = f"{web.url}/run"
    publisher = publisher_at(root, 1)

    def make_follower() -> cw.WeightFollower:
        return cw.WeightFollower(root, to="numpy")

    followers = [make_follower() for _ in range(40)]
    for follower in followers if not is_new else []:
        follower.update()
    publisher.publish(2, tree_of(2)).wait()
    count = requests_of(web, followers.pop().update)
    assert 3 <= count < len(followers)
    for number in range(1, count + 1):
        follower = followers.pop()
        web.hook = fault.make_hook(number)
        error = error_of(partial(update, follower), "")
        web.hook = lambda _: None
        assert not (error and fault.is_harmless), f"request {number}: {error}"
        assert follower.version in ({2} if error is None else {None, 1})
        assert_trees_equal(follower.update(), tree_of(2))


class PublishingHook:
    """A hook that publishes three versions before one request, by its number."""

    def __init__(self, web: WebStore, publisher: cw.WeightPublisher, number: int) -> None:
        self._web = web
        self._publisher = publisher
        self._remaining = number

    def __call__(self, _: Request) -> Answer | None:
        self._remaining -= 1
        if not self._remaining:
            self._web.hook = lambda _: None
            newest = self._publisher._newest or 0
            for version in range(newest + 1, newest + 4):
                publish(self._publisher, version)
        return None


def test_versions_that_are_removed_at_each_moment_of_an_update(web: WebStore) -> None:
    """A publisher commits new versions and removes those that a follower is about to read."""
    count = 8
    for number in range(1, count + 1):
        root = f"{web.url}/{number}"
        publisher = cw.WeightPublisher(root, full_every=2, keep=1)
        publisher.publish(1, tree_of(1)).wait()
        behind, new = cw.WeightFollower(root, to="numpy"), cw.WeightFollower(root, to="numpy")
        behind.update()
        publisher.publish(2, tree_of(2)).wait()
        for follower in (behind, new):
            web.hook = PublishingHook(web, publisher, number)
            tree = follower.update()
            web.hook = lambda _: None
            assert follower.version is not None
            assert_trees_equal(tree, tree_of(follower.version))
            assert_trees_equal(follower.update(), tree_of(publisher._newest or 0))


def test_later_versions_remove_what_a_failed_one_has_left(
    web: WebStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = cw.WeightPublisher(f"{web.url}/weights")
    publisher.publish(1, tree_of(1)).wait()

    def hook(request: Request) -> Answer | None:
        is_index = request.method == "PUT" and request.key.endswith("/cordwood.json")
        return Answer(403) if is_index else None

    web.hook = hook
    with pytest.raises(PermissionError):
        publisher.publish(2, tree_of(2)).wait()
    web.hook = lambda _: None
    assert any("/2/" in key for key in web.objects)
    publisher.publish(3, tree_of(3)).wait()
    assert any("/2/" in key for key in web.objects)  # it may belong to a save that is running
    monkeypatch.setattr("cordwood.storage.object_stores.object_pool.GRACE_SECONDS", -1)
    publisher.publish(4, tree_of(4)).wait()
    assert not any("/2/" in key for key in web.objects)
    assert_trees_equal(cw.WeightFollower(publisher.location).update(), tree_of(4))
