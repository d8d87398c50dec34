"""Runs in object stores: how many requests they cost, and how many at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager, StepReader
from cordwood.manager.step_summaries import summarize_steps
from cordwood.storage.locations import parse_location
from tests.storage.web_stores import Request, WebStore, web_store
from tests.threads import until


@pytest.fixture(params=["s3", "gs"])
def web(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    with web_store(request.param, monkeypatch) as store:
        yield store


def filled(web: WebStore, count: int) -> str:
    """Return the URL of a run whose steps are copies of one save."""
    url = f"{web.url}/run"
    cordwood.save(f"{url}/0", {"w": np.zeros(3)})
    for name in web.names("run/0"):
        for step in range(1, count):
            web.put(f"run/{step}/{name}", web.objects[f"run/0/{name}"].data)
    web.requests.clear()
    web.most_at_once = 0
    return url


def index_requests(web: WebStore) -> Counter[str]:
    return Counter(each.key for each in web.requests if each.key.endswith("/cordwood.json"))


def test_steps_are_asked_in_parallel_and_once(web: WebStore) -> None:
    """One listing, which has the version of each index; the records of many; and each index."""
    url = filled(web, 200)
    at_once = threading.Semaphore(0)
    waiting: list[Request] = []

    def hook(request: Request) -> None:
        if request.key.endswith("/cordwood.json") and len(waiting) < 8:
            waiting.append(request)
            if len(waiting) == 8:
                at_once.release(8)
            assert at_once.acquire(timeout=30)

    web.hook = hook
    reader = StepReader(url)
    assert len(reader.steps()) == 200
    assert web.count("LIST") == 1
    assert sorted(index_requests(web).values()) == [1] * 200
    assert len(web.requests) == 1 + 1 + 200
    assert web.most_at_once >= 8
    web.requests.clear()
    assert len(reader.steps()) == 200
    assert [request.method for request in web.requests] == ["LIST"], "all is known"


def test_a_new_process_reads_the_records_of_many_steps_at_once(web: WebStore) -> None:
    url = f"{web.url}/run"
    with CheckpointManager(url, background=False) as manager:
        for step in range(20):
            manager.save(step, {"w": np.full(3, step)})
    web.requests.clear()
    assert StepReader(url).steps() == list(range(20))
    assert web.count("GET", r"/\.data/steps\.json") == 1
    assert set(index_requests(web)) == {f"run/{step}/cordwood.json" for step in (17, 18, 19)}


def test_the_sizes_of_steps_cost_no_requests(web: WebStore) -> None:
    url = f"{web.url}/run"
    with CheckpointManager(url, background=False) as manager:
        for step in range(20):
            manager.save(step, {"w": np.full(3, step)})
    with cordwood.open(f"{url}/7") as checkpoint:
        size = sum([each.size_bytes for each in checkpoint.index.sources])
    web.requests.clear()
    steps = summarize_steps(parse_location(url), [str(step) for step in range(20)])
    assert [each.disk_bytes for each in steps] == [size] * 20
    assert set(index_requests(web)) == {f"run/{step}/cordwood.json" for step in (17, 18, 19)}


def test_a_save_asks_no_step_twice(web: WebStore) -> None:
    url = filled(web, 30)
    with CheckpointManager(url, keep=40) as manager:
        manager.save(30, {"w": np.zeros(3)})
        manager.wait()
        web.requests.clear()
        manager.save(31, {"w": np.zeros(3)})
        manager.wait()
        asked = index_requests(web)
        assert asked["run/30/cordwood.json"] <= 2, "it was the newest before, and is looked for"
        assert {asked[f"run/{step}/cordwood.json"] for step in range(30)} == {0}
        assert web.count("LIST") <= 8


def test_a_restore_asks_for_one_step(web: WebStore) -> None:
    url = filled(web, 30)
    restored = StepReader(url).restore()
    assert restored is not None
    assert restored.step == 29
    assert set(index_requests(web)) == {"run/29/cordwood.json"}


def test_the_newest_step_costs_a_few_requests(web: WebStore) -> None:
    url = filled(web, 200)
    assert StepReader(url).latest() == 199
    assert len(web.requests) <= 4


def test_a_bucket_is_a_root(web: WebStore) -> None:
    with CheckpointManager(web.url, keep=1) as manager:
        for step in (1, 2):
            manager.save(step, {"w": np.full(3, step)})
    assert StepReader(f"{web.url}/").steps() == [2]
    assert {key.partition("/")[0] for key in web.objects} == {".data", "2"}
    assert len({key.split("/")[1] for key in web.objects if key.startswith(".data/")}) == 1


def test_a_run_that_was_deleted_in_part_is_cleaned_up(
    web: WebStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = filled(web, 3)
    for key in list(web.objects):
        if key.startswith("run/1/") and not key.endswith("model.safetensors.index.json"):
            del web.objects[key]
    with CheckpointManager(url) as manager:
        manager.save(3, {"w": np.zeros(3)})
    assert web.names("run/1") != []
    monkeypatch.setattr("cordwood.storage.object_stores.object_pool.GRACE_SECONDS", -1)
    with CheckpointManager(url) as manager:
        manager.save(4, {"w": np.zeros(3)})
    until(lambda: web.names("run/1") == [])
