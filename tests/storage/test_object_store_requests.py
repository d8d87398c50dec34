"""Requests to object stores: where they go, how long they are tried, what is logged."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood import storage_options
from cordwood.errors import StorageError
from cordwood.storage.object_stores import (
    gcs_settings,
    multipart_upload,
    object_uploads,
    s3_settings,
)
from cordwood.storage.object_stores.bucket_cache import BUCKETS
from cordwood.testing import assert_trees_equal
from cordwood.threads import wait_logger
from tests.storage.web_stores import Answer, Request, WebStore, web_store
from tests.threads import until

TREE = {"w": np.arange(5)}
SKEWED = b"<Error><Code>RequestTimeTooSkewed</Code><Message>no</Message></Error>"
VARIABLES = [
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "STORAGE_EMULATOR_HOST",
]


@pytest.fixture(params=["s3", "gs"])
def web(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    with web_store(request.param, monkeypatch) as store:
        yield store


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("variables", "endpoint", "region"),
    [
        ({}, None, None),
        ({"AWS_ENDPOINT_URL": "http://a"}, "http://a", None),
        ({"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "http://b"}, "http://b", None),
        ({"AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_S3": "http://b"}, "http://b", None),
        (
            {"AWS_ENDPOINT_URL": "http://a", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
            None,
            None,
        ),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-west-2"}, None, "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "us-west-2"}, None, "us-west-2"),
    ],
)
def test_the_environment_names_an_s3_endpoint_as_boto3_reads_it(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    endpoint: str | None,
    region: str | None,
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert s3_settings.s3_endpoint() == endpoint
    assert s3_settings.s3_region() == region


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (None, None),
        ("", None),
        ("localhost:9023", "http://localhost:9023"),
        ("http://localhost:9023/", "http://localhost:9023"),
        ("https://emulator", "https://emulator"),
    ],
)
def test_the_environment_names_a_gcs_emulator(
    monkeypatch: pytest.MonkeyPatch, host: str | None, expected: str | None
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    if host is not None:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", host)
    assert gcs_settings.gcs_endpoint() == expected


def test_a_bucket_holds_a_checkpoint_itself(web: WebStore) -> None:
    cordwood.save(web.url, TREE)
    assert "cordwood.json" in web.objects
    assert_trees_equal(cordwood.load(f"{web.url}/"), TREE)


def test_the_region_is_signed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with web_store("s3", monkeypatch) as web:
        cordwood.save(f"{web.url}/run", TREE)
        signed = [request.headers["authorization"] for request in web.requests]
        assert all("/eu-west-1/s3/" in each for each in signed)
        monkeypatch.setenv("AWS_REGION", "ap-south-1")
        with pytest.raises(StorageError, match="AuthorizationHeaderMalformed"):
            cordwood.load(f"{web.url}/run")


def test_a_store_that_has_never_answered_is_soon_given_up(web: WebStore) -> None:
    web.hook = lambda _: Answer(0)
    with pytest.raises(StorageError, match="the store failed while reading it") as caught:
        cordwood.load(f"{web.url}/run")
    assert "look at the bucket's name, the network, and what AWS_ENDPOINT_URL" in str(caught.value)
    assert len(web.requests) == 2


def test_a_refused_connection_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with web_store("s3", monkeypatch) as web:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
        with pytest.raises(StorageError, match="nothing listens at that address"):
            cordwood.save(f"{web.url}/run", TREE)
        assert web.requests == []


def test_a_store_that_has_answered_is_asked_again_and_again(
    web: WebStore, caplog: pytest.LogCaptureFixture
) -> None:
    cordwood.save(f"{web.url}/run", TREE)
    assert warnings_of(caplog) == []
    web.requests.clear()
    web.hook = lambda _: Answer(0) if len(web.requests) <= 5 else None
    assert_trees_equal(cordwood.load(f"{web.url}/run"), TREE)
    warnings = warnings_of(caplog)
    assert len(warnings) == 5
    assert [f"attempt {n} of 9 follows" in each for n, each in enumerate(warnings, 2)] == [True] * 5
    text = f"{web.url}/run/cordwood.json: the store failed while reading it"
    assert all(text in each for each in warnings)


def test_a_store_that_is_busy_at_first_is_asked_again_and_again(
    web: WebStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cordwood.save(f"{web.url}/run", TREE)
    monkeypatch.setattr(BUCKETS, "_experience", {})
    web.requests.clear()
    web.hook = lambda _: Answer(503) if len(web.requests) <= 5 else None
    assert_trees_equal(cordwood.load(f"{web.url}/run"), TREE)
    assert ["503" in warning for warning in warnings_of(caplog)] == [True] * 5


def test_the_error_of_a_wrong_clock_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with web_store("s3", monkeypatch) as web:
        web.hook = lambda _: Answer(403, body=SKEWED)
        with pytest.raises(OSError, match="set the clock of this machine"):
            cordwood.load(f"{web.url}/run")
        assert len(web.requests) < 8


def test_a_request_without_an_answer_is_logged(
    web: WebStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cordwood.save(f"{web.url}/run", TREE)
    monkeypatch.setattr(wait_logger, "REPORT_SECONDS", 0.01)
    go = threading.Event()

    def stall(_: Request) -> None:
        assert go.wait(60)

    web.hook = stall
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(cordwood.load(f"{web.url}/run")))
    thread.start()
    until(lambda: any("waiting for an answer" in each for each in warnings_of(caplog)))
    go.set()
    thread.join()
    assert_trees_equal(result[0], TREE)
    assert f"{web.url}/run/cordwood.json" in caplog.text


def test_nothing_but_the_log_is_written_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Profiles that are not there are not missed where the variables have the keys."""
    with web_store("s3", monkeypatch) as web:
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere/config")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/credentials")
        cordwood.save(f"{web.url}/run", TREE)
    assert capfd.readouterr().err == ""


@contextmanager
def stalled(web: WebStore, monkeypatch: pytest.MonkeyPatch, method: str = "") -> Iterator[None]:
    """Let requests have no answer, and fail after a second, in the block."""
    go = threading.Event()
    with monkeypatch.context() as patch:
        patch.setenv("CORDWOOD_STALL_SECONDS", "1")
        web.hook = lambda r: Answer(None, delay=go) if method in ("", r.method) else None
        try:
            yield
        finally:
            web.hook = lambda _: None
            go.set()


@pytest.mark.parametrize("has_answered", [False, True])
def test_a_store_that_falls_silent_is_given_up(
    web: WebStore, monkeypatch: pytest.MonkeyPatch, has_answered: bool
) -> None:
    url = f"{web.url}/run"
    if has_answered:
        cordwood.save(url, TREE)
    web.requests.clear()
    with stalled(web, monkeypatch):
        with pytest.raises(StorageError, match="timed out") as caught:
            cordwood.load(url)
        assert url in str(caught.value)
        assert len(web.requests) == 2, "it is asked once more"


def test_an_upload_of_which_no_part_arrives_is_given_up(
    web: WebStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_uploads, "PART_BYTES", 10_000)
    monkeypatch.setattr(multipart_upload, "_ABORT_SECONDS", 0.1)
    url = f"{web.url}/run"
    cordwood.save(url, TREE)
    with stalled(web, monkeypatch, "PUT_PART"):
        with pytest.raises(StorageError, match="acknowledged no byte") as caught:
            cordwood.save(url, {"w": np.arange(50_000)})
        assert f"{url}/data-" in str(caught.value)
        assert "CORDWOOD_STALL_SECONDS" in str(caught.value)
    assert_trees_equal(cordwood.load(url), TREE)
    web.uploads.clear()  # who gives up an upload that hangs cannot abort it


def test_options_of_a_program_replace_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with web_store("s3", monkeypatch) as web:
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        with storage_options(
            web.url,
            endpoint=endpoint,
            region="eu-west-1",
            access_key_id="key",
            secret_access_key="secret",
        ):
            cordwood.save(f"{web.url}/run", TREE)
            assert_trees_equal(cordwood.load(f"{web.url}/run"), TREE)
        count = len(web.requests)
        with pytest.raises(OSError, match="nothing listens at that address"):
            cordwood.load(f"{web.url}/run")
        assert len(web.requests) == count


def test_an_answer_that_is_cut_off_is_asked_for_again(web: WebStore) -> None:
    url = f"{web.url}/run"
    cordwood.save(url, TREE)
    web.requests.clear()
    cut: list[str] = []

    def hook(request: Request) -> Answer | None:
        if request.method != "GET" or cut.count(request.key) == 2:
            return None
        cut.append(request.key)
        return Answer(None, cut=True)

    web.hook = hook
    assert_trees_equal(cordwood.load(url), TREE)
    assert len(cut) >= 4, "of the index and of the data, twice each"


def test_a_bucket_that_is_not_there(web: WebStore) -> None:
    url = web.url.replace("bucket", "none")
    with pytest.raises(FileNotFoundError, match="create the bucket") as caught:
        cordwood.load(f"{url}/run")
    assert f"{url}/run" in str(caught.value)
    with pytest.raises(FileNotFoundError, match="create the bucket"):
        cordwood.save(f"{url}/run", TREE)


def test_keys_that_the_store_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    with web_store("s3", monkeypatch) as web:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
        with pytest.raises(PermissionError, match="does not know this AWS_ACCESS_KEY_ID"):
            cordwood.load(f"{web.url}/run")
