"""Buckets that do not exist, and endpoints that are not those of an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.errors import UnsupportedFormatError
from tests.storage.web_stores import Answer, Request, WebStore, web_store

TREE = {"w": 1.5}
PAGE = b"<!DOCTYPE html>\n<html><head><title>Console</title></head></html>"


@pytest.fixture(params=["s3", "gs"])
def web(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    with web_store(request.param, monkeypatch) as store:
        yield store


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    with web_store("s3", monkeypatch) as store:
        yield store


@pytest.fixture
def local(tmp_path: Path) -> str:
    """Return a directory with a step 5."""
    cordwood.save(tmp_path / "5", TREE)
    return str(tmp_path)


def _save_by_manager(url: str) -> None:
    with cordwood.CheckpointManager(url) as manager:
        manager.save(5, TREE)


CALLS: dict[str, Callable[[str, str], object]] = {  # of a run in a store, and a local run
    "load": lambda run, _: cordwood.load(f"{run}/5"),
    "save": lambda run, _: cordwood.save(f"{run}/5", TREE),
    "open": lambda run, _: cordwood.open(f"{run}/5"),
    "detect": lambda run, _: cordwood.detect(f"{run}/5"),
    "verify": lambda run, _: cordwood.verify(f"{run}/5"),
    "gc": lambda run, _: cordwood.gc(run),
    "steps": lambda run, _: cordwood.StepReader(run).steps(),
    "latest": lambda run, _: cordwood.StepReader(run).latest(),
    "restore": lambda run, _: cordwood.StepReader(run).restore(),
    "manager": lambda run, _: _save_by_manager(run),
    "copy from": lambda run, local: cordwood.copy(f"{run}/5", f"{local}/6"),
    "copy to": lambda run, local: cordwood.copy(f"{local}/5", f"{run}/5"),
    "copy a run": lambda run, local: cordwood.copy(local, run),
    "diff": lambda run, local: cordwood.diff(f"{run}/5", f"{local}/5"),
    "convert": lambda run, local: cordwood.convert(f"{local}/5", f"{run}/5"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_bucket_is_the_same_error_in_each_call(
    web: WebStore, call: str, local: str
) -> None:
    url = f"{web.scheme}://bukcet/run"
    with pytest.raises(FileNotFoundError, match="create the bucket, or mend its name") as caught:
        CALLS[call](url, local)
    assert url in str(caught.value)


@pytest.mark.parametrize("status", [200, 403, 404, 405])
@pytest.mark.parametrize("call", CALLS)
def test_an_endpoint_that_answers_with_web_pages(
    s3: WebStore, call: str, status: int, local: str
) -> None:
    """The console of a store has a page for each path."""
    s3.hook = lambda _: Answer(status, body=PAGE)
    with pytest.raises(OSError, match=r"answers with a web page.*look at AWS_ENDPOINT_URL"):
        CALLS[call](f"{s3.url}/run", local)


def test_an_empty_bucket_is_asked_once_whether_it_is_one(s3: WebStore) -> None:
    for run in "ab":
        assert cordwood.StepReader(f"{s3.url}/{run}").steps() == []
    assert s3.count("HEAD") == 1


def test_a_bucket_that_may_only_be_listed_is_listed(s3: WebStore) -> None:
    def hook(request: Request) -> Answer | None:
        return Answer(403) if request.method == "HEAD" else None

    s3.hook = hook
    assert cordwood.StepReader(f"{s3.url}/run").steps() == []


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("https://bucket.s3.eu-west-1.amazonaws.com", "'https://s3.eu-west-1.amazonaws.com'"),
        ("http://bucket.store:9000/", "'http://store:9000'"),
        ("http://127.0.0.1:9000/bucket", "'http://127.0.0.1:9000'"),
        ("http://127.0.0.1:9000/proxy/bucket/", "'http://127.0.0.1:9000/proxy'"),
    ],
)
@pytest.mark.usefixtures("s3")
def test_an_endpoint_that_contains_the_bucket(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, expected: str
) -> None:
    """The store would take the bucket's name once more, for the beginning of all keys."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(UnsupportedFormatError, match="contains the bucket") as caught:
        cordwood.save("s3://bucket/run", TREE)
    assert f"expected that of the store, {expected}" in str(caught.value)
    with pytest.raises(UnsupportedFormatError, match="contains the bucket"):
        cordwood.storage_options("s3://bucket", endpoint=endpoint)
    cordwood.storage_options("s3://bucke", endpoint=endpoint).close()


@pytest.mark.usefixtures("s3")
def test_a_store_may_want_the_bucket_in_its_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = "http://bucket.store:9000"
    options: dict[str, Any] = {"endpoint": endpoint, "virtual_hosted_style_request": True}
    cordwood.storage_options("s3://bucket", **options).close()
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "false")
    cordwood.storage_options("s3://bucket", endpoint=endpoint).close()
