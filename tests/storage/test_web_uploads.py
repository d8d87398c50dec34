"""Uploads in parts to S3 and GCS: their requests, and what becomes of them when some fail."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

import cordwood
from cordwood.errors import StorageError
from cordwood.storage.object_stores import object_uploads
from cordwood.storage.object_stores.object_uploads import PART_BYTES, PARTS_IN_FLIGHT
from cordwood.testing import assert_trees_equal
from tests.storage.web_stores import Answer, Request, WebStore, web_store
from tests.threads import until

SMALL = 10_000
OLD = {"w": np.arange(5)}
TREE = {"w": np.arange(25_003, dtype=np.int32)}  # of 11 small parts with its header


@pytest.fixture(params=["s3", "gs"])
def web(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    with web_store(request.param, monkeypatch) as store:
        yield store


@pytest.fixture
def small_parts(web: WebStore, monkeypatch: pytest.MonkeyPatch) -> None:
    web.min_part_size = 1
    monkeypatch.setattr(object_uploads, "PART_BYTES", SMALL)


def data_of(web: WebStore, folder: str) -> list[str]:
    return [name for name in web.names(folder) if name.startswith("data-")]


def test_a_large_object_is_sent_in_parts_of_8_mib(web: WebStore) -> None:
    tree = {"w": np.arange(5 << 20, dtype=np.uint32)}
    cordwood.save(f"{web.url}/run", tree)
    methods = Counter(request.method for request in web.requests if "/data-" in request.key)
    assert (methods["CREATE_UPLOAD"], methods["PUT_PART"], methods["COMPLETE"]) == (1, 3, 1)
    assert methods["PUT"] == methods["ABORT"] == 0
    sizes = {
        int(r.query["partNumber"]): len(r.data) for r in web.requests if "partNumber" in r.query
    }
    assert sizes[1] == sizes[2] == PART_BYTES > sizes[3]
    assert_trees_equal(cordwood.load(f"{web.url}/run"), tree)


def test_a_small_object_is_one_request(web: WebStore) -> None:
    cordwood.save(f"{web.url}/run", {"w": np.zeros(PART_BYTES // 8 - 1024)})
    methods = Counter(request.method for request in web.requests if "/data-" in request.key)
    assert methods["PUT"] == 1
    assert methods["CREATE_UPLOAD"] == 0


@pytest.mark.usefixtures("small_parts")
def test_some_parts_are_on_their_way_at_once(web: WebStore) -> None:
    """Two at first, and at most 8."""
    tree = {"w": np.arange(100_000, dtype=np.int32)}
    at_once, most, lock = 0, 0, threading.Lock()
    two = threading.Barrier(2)

    def hook(request: Request) -> None:
        nonlocal at_once, most
        if request.method != "PUT_PART":
            return
        with lock:
            at_once += 1
            most = max(most, at_once)
        if int(request.query["partNumber"]) <= 2:
            two.wait(30)
        with lock:
            at_once -= 1

    web.hook = hook
    cordwood.save(f"{web.url}/run", tree)
    assert 2 <= most <= PARTS_IN_FLIGHT
    assert_trees_equal(cordwood.load(f"{web.url}/run"), tree)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("method", ["CREATE_UPLOAD", "PUT_PART", "COMPLETE"])
@pytest.mark.parametrize("status", [503, 500, 0])
def test_a_temporary_failure_of_an_upload_is_passed_over(
    web: WebStore, method: str, status: int
) -> None:
    """A busy store, and a connection that is lost, before the request takes effect."""
    failed = itertools.count()

    def hook(request: Request) -> Answer | None:
        return Answer(status) if request.method == method and next(failed) < 2 else None

    web.hook = hook
    cordwood.save(f"{web.url}/run", TREE)
    assert next(failed) > 2
    assert_trees_equal(cordwood.load(f"{web.url}/run"), TREE)


@pytest.mark.usefixtures("small_parts")
def test_a_part_whose_answer_is_lost_is_sent_again(web: WebStore) -> None:
    lost = itertools.count()

    def hook(request: Request) -> Answer | None:
        is_lost = request.method == "PUT_PART" and next(lost) < 3
        return Answer(0, takes_effect=1) if is_lost else None

    web.hook = hook
    cordwood.save(f"{web.url}/run", TREE)
    assert_trees_equal(cordwood.load(f"{web.url}/run"), TREE)


@pytest.mark.usefixtures("small_parts")
def test_an_upload_that_was_completed_though_no_answer_came(web: WebStore) -> None:
    """The repetition finds no such upload: the object is looked for."""
    lost = itertools.count()

    def hook(request: Request) -> Answer | None:
        is_lost = request.method == "COMPLETE" and next(lost) < 1
        return Answer(0, takes_effect=1) if is_lost else None

    web.hook = hook
    cordwood.save(f"{web.url}/run", TREE)
    assert next(lost) == 2
    assert_trees_equal(cordwood.load(f"{web.url}/run"), TREE)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("method", ["CREATE_UPLOAD", "PUT_PART", "COMPLETE"])
def test_an_upload_that_is_refused_leaves_nothing(web: WebStore, method: str) -> None:
    url = f"{web.url}/run"
    cordwood.save(url, OLD)
    before = dict(web.objects)
    web.hook = lambda request: Answer(403) if request.method == method else None
    with pytest.raises(PermissionError, match=f"{url}/data-"):
        cordwood.save(url, TREE)
    web.hook = lambda _: None
    assert web.objects == before
    until(lambda: web.uploads == {})
    assert_trees_equal(cordwood.load(url), OLD)


@pytest.mark.usefixtures("small_parts")
def test_a_part_that_never_arrives(web: WebStore) -> None:
    """One part is answered with 503 each time: it is repeated a few times, and then given up."""
    url = f"{web.url}/run"
    cordwood.save(url, OLD)
    web.requests.clear()

    def hook(request: Request) -> Answer | None:
        return Answer(503) if request.query.get("partNumber") == "3" else None

    web.hook = hook
    with pytest.raises(StorageError, match="uploading it in parts"):
        cordwood.save(url, TREE)
    third = [request for request in web.requests if request.query.get("partNumber") == "3"]
    assert len(third) == 9
    until(lambda: web.uploads == {})
    assert_trees_equal(cordwood.load(url), OLD)


@pytest.mark.usefixtures("small_parts")
def test_one_of_several_uploads_fails(web: WebStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are given up, or deleted: nothing is left of the save."""
    url = f"{web.url}/run"
    cordwood.save(url, OLD)
    before = dict(web.objects)
    keys: list[str] = []

    def hook(request: Request) -> Answer | None:
        if request.method == "CREATE_UPLOAD":
            keys.append(request.key)
        is_bad = request.method == "PUT_PART" and len(keys) > 2 and request.key == keys[2]
        return Answer(403) if is_bad else None

    web.hook = hook
    with pytest.raises(OSError, match=url):
        cordwood.save(url, [np.arange(30_000) for _ in range(6)], max_shard_bytes=250_000)
    web.hook = lambda _: None
    assert len(keys) >= 3
    assert web.objects == before
    until(lambda: web.uploads == {})


@pytest.mark.usefixtures("small_parts")
def test_steps_of_a_run_are_uploaded_in_parts(web: WebStore) -> None:
    url = f"{web.url}/run"
    with cordwood.CheckpointManager(url, keep=2) as manager:
        for step in range(4):
            manager.save(step, {"w": np.full(30_000, step)})
    restored = cordwood.StepReader(url).restore()
    assert restored is not None
    assert_trees_equal(restored.tree, {"w": np.full(30_000, 3)})
    data = [key for key in web.objects if key.endswith(".safetensors")]
    assert len(data) == 2
    assert web.count("PUT_PART") > 40
