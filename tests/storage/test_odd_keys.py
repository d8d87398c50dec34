"""Objects below the URL of a run whose keys no path can name: they are passed over, and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager, StepReader
from cordwood.errors import StorageError
from tests.storage.web_stores import WebStore, web_store

T = TypeVar("T")
TREE = {"w": np.arange(5.0)}
BESIDE_STEPS = ["run//log", "run//1/x", "run/../1", "run/./y"]
PASSED_OVER = [*BESIDE_STEPS, "run/logs//1", "run/1/more//x", "run/logs/../../other/1"]


@pytest.fixture(params=["s3", "gs"])
def web(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    with web_store(request.param, monkeypatch) as store:
        yield store


def put(web: WebStore, key: str) -> None:
    web.objects[key] = next(iter(web.objects.values()))


def answer(call: Callable[[], T], key: str) -> T | None:
    """Return the result of a call; None if its error names the key, and what to do."""
    try:
        return call()
    except StorageError as e:
        message = str(e)
    assert f"an object with the key {key!r}" in message
    assert "remove or rename that object" in message
    return None


@pytest.mark.parametrize("key", PASSED_OVER)
def test_they_are_passed_over(web: WebStore, key: str, caplog: pytest.LogCaptureFixture) -> None:
    root = f"{web.url}/run"
    with CheckpointManager(root) as manager:
        for step in (1, 2, 3):
            manager.save(step, {**TREE, "step": step})
    put(web, key)
    manager = CheckpointManager(root, keep=2, background=False)
    assert manager.steps() == [1, 2, 3]
    restored = manager.restore()
    assert restored is not None
    assert restored.step == 3
    manager.save(4, TREE)
    manager.delete(4)
    assert manager.steps() == [3]
    assert cordwood.gc(root) == []
    assert "3" in cordwood.detect(root).steps
    assert cordwood.verify(f"{root}/3").unverified_bytes == 0
    assert key in web.objects
    assert caplog.text.count(f"passed over {key!r}: no path can name such a key") == 1


def test_all_of_them_at_once(web: WebStore) -> None:
    root = f"{web.url}/run"
    with CheckpointManager(root) as manager:
        manager.save(1, TREE)
    old = "run/.data/0000000000000001/data-0000000000000001-0-0.safetensors"
    for key in (*BESIDE_STEPS, old):
        put(web, key)
    assert StepReader(root).steps() == [1]
    with CheckpointManager(root, keep=1) as manager:
        manager.save(2, TREE)
    assert manager.steps() == [2]
    assert set(BESIDE_STEPS) <= set(web.objects)
    assert cordwood.gc(root).young_files == 1  # the pool is listed all the same


def test_a_folder_that_cannot_be_listed_is_no_step(
    web: WebStore, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no index, so it refers to nothing."""
    root, key = f"{web.url}/run", "run/logs/a\x01"
    with CheckpointManager(root) as manager:
        for step in (1, 2):
            manager.save(step, {**TREE, "step": step})
    put(web, key)
    with CheckpointManager(root, keep=1) as manager:
        assert manager.restore(required=True).step == 2
        manager.save(3, TREE)
    assert manager.steps() == [3]
    assert cordwood.verify(f"{root}/3").unverified_bytes == 0
    assert "passed over 'run/logs/a\\x01'" in caplog.text
    assert cordwood.gc(root) == []
    put(web, "run/logs/cordwood.json")
    with pytest.raises(StorageError, match="an object with the key 'run/logs/a"):
        cordwood.gc(root)


@pytest.mark.parametrize("key", ["run/a\x01b", "run/1//x"])
def test_one_that_cannot_be_passed_over_is_named(web: WebStore, key: str) -> None:
    root = f"{web.url}/run"
    cordwood.save(f"{root}/1", TREE)
    put(web, key)
    path = root if key == "run/a\x01b" else f"{root}/1"
    with pytest.raises(StorageError) as e:
        StepReader(root).steps() if path == root else cordwood.save(path, TREE)
    assert f"an object with the key {key!r}" in str(e.value)
    assert "remove or rename that object" in str(e.value)
    assert "network" not in str(e.value)
    del web.objects[key]  # as the error says
    assert StepReader(root).steps() == [1]


@pytest.mark.parametrize("key", ["//log", "//1/x", "../x", "1//x", "1/../x", "x//y"])
def test_a_bucket_that_is_itself_the_root(
    web: WebStore, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(web.url) as manager:
        for step in (1, 2):
            manager.save(step, TREE)
    put(web, key)
    steps = answer(StepReader(web.url).steps, key)
    if steps is None:
        assert key.startswith("1/")  # it lies directly in a step
    else:
        assert steps == [1, 2]
        if not key.startswith("."):  # the listing begins behind it
            assert f"passed over {key!r}: no path can name such a key" in caplog.text
    del web.objects[key]
    assert StepReader(web.url).steps() == [1, 2]


@pytest.mark.parametrize("key", ["run/2//x", "run/2/../x", "run/2/a\x01", "run/2/more//x"])
def test_no_older_step_takes_the_place_of_one_with_an_odd_key(web: WebStore, key: str) -> None:
    root = f"{web.url}/run"
    for step in (1, 2):
        cordwood.save(f"{root}/{step}", {**TREE, "step": step})
    put(web, key)
    loaded = answer(lambda: cordwood.load(f"{root}/latest"), key)
    assert loaded is None or loaded["step"] == 2
    detected = answer(lambda: cordwood.detect(root), key)
    assert detected is None or detected.steps == ("1", "2")
    assert cordwood.load(f"{root}/2")["step"] == 2


@pytest.mark.parametrize(
    "key", ["run/1//x", "run/1/../x", "run/1/a\x01", "run/1/w//x", "run/1/w/a\x01", "run/1/v//x"]
)
def test_a_step_of_another_tool_is_never_called_absent_or_damaged(
    web: WebStore, key: str, tmp_path: Path
) -> None:
    """An error names the key if its objects cannot all be listed; without the key all is well."""
    root = f"{web.url}/run"
    cordwood.save(tmp_path / "1", TREE, format="zarr")
    cordwood.save(f"{web.url}/other", TREE)
    like = next(iter(web.objects.values()))
    for file in filter(Path.is_file, (tmp_path / "1").rglob("*")):
        name = file.relative_to(tmp_path).as_posix()
        web.objects[f"run/{name}"] = like._replace(pieces=(file.read_bytes(),))
    put(web, key)
    calls: list[Callable[[], Any]] = [
        lambda: cordwood.load(f"{root}/1"),
        lambda: cordwood.load(f"{root}/latest"),
        lambda: StepReader(root).restore(required=True).tree,
        lambda: cordwood.verify(f"{root}/1"),
        lambda: cordwood.detect(f"{root}/1"),
        lambda: cordwood.detect(root),
    ]
    for call in calls:
        result = answer(call, key)
        assert not isinstance(result, dict) or list(result["w"]) == list(TREE["w"])
    del web.objects[key]
    for call in calls:
        call()
