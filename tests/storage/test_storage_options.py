"""Options of object stores: of the environment, and of a program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from obstore import store as stores

import cordwood
from cordwood import storage_options
from cordwood.errors import UnsupportedFormatError
from cordwood.storage.locations import Url, parse_location
from cordwood.storage.object_stores import (
    open_bucket,
    request_retries,
    s3_settings,
)
from cordwood.storage.object_stores.bucket_cache import BUCKETS
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.open_bucket import OpenBucket
from cordwood.testing import assert_trees_equal
from tests.storage.moto_server import moto_endpoint
from tests.storage.stores import open_url
from tests.storage.web_stores import web_store

TREE = {"w": np.arange(5)}
VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "STORAGE_EMULATOR_HOST",
    "CORDWOOD_STALL_SECONDS",
)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in ("_options", "_opened", "_experience"):
        monkeypatch.setattr(BUCKETS, name, {})
    monkeypatch.setattr(s3_settings, "_amazon_region", lambda bucket: None)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def opened(text: str) -> OpenBucket:
    url = parse_location(text)
    assert isinstance(url, Url)
    return BUCKETS.open(url)


def config_of(text: str) -> dict[str, Any]:
    """Return the options of a store as obstore holds them."""
    return dict(opened(text).requests.config)


# Of the environment


@pytest.mark.usefixtures("keys")
def test_a_store_is_opened_once_for_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened("s3://bucket/a/b")
    second = opened("s3://bucket/c")
    assert first.requests is second.requests
    urls = "s3://bucket/a/b", "s3://bucket/c/", "s3://bucket"
    assert [open_url(url).prefix for url in urls] == ["a/b/", "c/", ""]
    assert first.where == second.where == "s3://bucket"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:1")
    third = opened("s3://bucket/c")
    assert third.requests is not first.requests
    assert third.where == "s3://bucket at http://localhost:1"
    assert opened("s3://other").requests is not third.requests


@pytest.mark.usefixtures("keys")
def test_requests_are_not_repeated_by_obstore_and_parts_of_uploads_are() -> None:
    found = opened("s3://bucket")
    assert found.requests.retry_config["max_retries"] == 0
    assert found.uploads.retry_config["max_retries"] == open_bucket.UPLOAD_RETRIES


@pytest.mark.usefixtures("keys")
def test_timeouts_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def timeouts() -> tuple[float, str, str]:
        found = opened("s3://bucket")
        requests, uploads = found.requests.client_options, found.uploads.client_options
        assert requests["connect_timeout"] == uploads["connect_timeout"] == "4s"
        return found.stall_seconds, requests["read_timeout"], uploads["read_timeout"]

    assert timeouts() == (60, "30s", "1m")
    for text in ("no", "0", "-1"):
        monkeypatch.setenv("CORDWOOD_STALL_SECONDS", text)
        with pytest.raises(UnsupportedFormatError, match="expected a number of seconds above 0"):
            timeouts()
    monkeypatch.setenv("CORDWOOD_STALL_SECONDS", "")
    assert timeouts() == (60, "30s", "1m")
    monkeypatch.setenv("CORDWOOD_STALL_SECONDS", "0.5")
    assert timeouts() == (0.5, "250ms", "500ms")
    with storage_options("s3://bucket", stall_seconds=14):
        assert timeouts() == (14, "7s", "14s")


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "us-east-1"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-west-2"}, "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "us-west-2"}, "us-west-2"),
        ({"AWS_ENDPOINT_URL": "http://a"}, "us-east-1"),
    ],
)
def test_the_region_comes_from_the_environment_or_an_option(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert config_of("s3://bucket")["region"] == expected
    with storage_options("s3://bucket", region="ap-south-1"):
        assert config_of("s3://bucket")["region"] == "ap-south-1"


@pytest.mark.usefixtures("keys")
def test_amazon_is_asked_for_a_region_that_nobody_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def region(bucket: str) -> str:
        asked.append(bucket)
        return "eu-north-1"

    monkeypatch.setattr(s3_settings, "_amazon_region", region)
    assert config_of("s3://bucket")["region"] == "eu-north-1"
    assert config_of("s3://bucket/x")["region"] == "eu-north-1"
    assert asked == ["bucket"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://a")
    config_of("s3://bucket")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    config_of("s3://bucket")
    assert asked == ["bucket"], "neither another store nor a region that is named is asked for"


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("variables", "endpoint"),
    [
        ({}, None),
        ({"AWS_ENDPOINT_URL": "http://a"}, "http://a"),
        ({"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "http://b"}, "http://b"),
        ({"AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_S3": "http://b"}, "http://b"),
    ],
)
def test_the_endpoint_is_that_of_boto3(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], endpoint: str | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert config_of("s3://bucket").get("endpoint") == endpoint


@pytest.mark.usefixtures("keys")
def test_endpoints_that_are_to_be_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://a")
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert "eu-west-1.amazonaws.com" in config_of("s3://bucket")["endpoint"]


def test_an_emulator_of_gcs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "localhost:9023")
    found = opened("gs://bucket/run")
    assert found.where == "gs://bucket at http://localhost:9023"
    assert found.requests.config["base_url"] == "http://localhost:9023"


def test_a_container_of_azure_is_opened() -> None:
    with storage_options("az://box", account_name="me", account_key="a2V5"):
        found = opened("az://box/run")
        assert isinstance(found.requests, stores.AzureStore)
        assert found.where == "az://box"


# Credentials in files


def test_keys_in_a_file_need_boto3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("[default]\n")
    monkeypatch.setitem(__import__("sys").modules, "boto3.session", None)
    with pytest.raises(
        UnsupportedFormatError, match=r"pip install boto3 .*cordwood\[s3\]"
    ) as caught:
        cordwood.load("s3://bucket/run")
    assert "the default profile of ~/.aws" in str(caught.value)
    with pytest.raises(UnsupportedFormatError, match="the profile 'mine', which boto3 reads"):
        storage_options("s3://bucket", profile="mine")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    opened("s3://bucket/run")


def test_the_profile_of_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = d\naws_secret_access_key = s\n"
        "[mine]\naws_access_key_id = m\naws_secret_access_key = s\n"
        "[other]\naws_access_key_id = o\naws_secret_access_key = s\n"
    )
    (tmp_path / "config").write_text("[profile mine]\nregion = eu-central-1\n")

    def key_in_use() -> str:
        return opened("s3://bucket").requests.credential_provider()["access_key_id"]

    assert key_in_use() == "d"
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert key_in_use() == "o"
    with storage_options("s3://bucket", profile="mine"):
        assert key_in_use() == "m"
        assert config_of("s3://bucket")["region"] == "eu-central-1"
    assert key_in_use() == "o"


PROFILES = {  # the parts of ~/.aws/credentials, and of ~/.aws/config; {url} is that of the server
    "keys and endpoint": (
        "[mine]\naws_access_key_id = key\naws_secret_access_key = secret\n",
        "[profile mine]\nregion = eu-west-1\nendpoint_url = {url}\n",
    ),
    "services": (
        "",
        (
            "[profile mine]\naws_access_key_id = key\naws_secret_access_key = secret\n"
            "region = eu-west-1\nendpoint_url = http://127.0.0.1:1\nservices = local\n"
            "[services local]\ns3 =\n  endpoint_url = {url}\n"
        ),
    ),
    "a program that prints keys": (
        "",
        (
            "[profile mine]\nregion = eu-west-1\nendpoint_url = {url}\ncredential_process = "
            """echo '{{"Version": 1, "AccessKeyId": "key", "SecretAccessKey": "secret"}}'\n"""
        ),
    ),
}


@pytest.mark.parametrize("files", PROFILES)
@pytest.mark.parametrize("by", ["program", "environment"])
def test_a_run_with_a_profile(
    files: str, by: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Credentials, region and endpoint come from the files of boto3; the server checks them."""
    with web_store("s3", monkeypatch) as web, ExitStack() as stack:
        credentials, config = PROFILES[files]
        url = os.environ["AWS_ENDPOINT_URL"]
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for variable, text in (
            ("AWS_SHARED_CREDENTIALS_FILE", credentials),
            ("AWS_CONFIG_FILE", config.format(url=url)),
        ):
            (tmp_path / variable).write_text(text)
            monkeypatch.setenv(variable, str(tmp_path / variable))
        if by == "program":
            stack.enter_context(storage_options(web.url, profile="mine"))
        else:
            monkeypatch.setenv("AWS_PROFILE", "mine")
        with cordwood.CheckpointManager(f"{web.url}/run") as manager:
            manager.save(1, TREE)
        assert_trees_equal(cordwood.load(f"{web.url}/run/1"), TREE)


def test_a_checkpoint_with_a_profile_at_moto(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "credentials").write_text(
        "[mine]\naws_access_key_id = key\naws_secret_access_key = secret\n"
    )
    (tmp_path / "config").write_text(
        f"[profile mine]\nregion = us-east-1\nendpoint_url = {moto_endpoint()}\n"
    )
    with storage_options("s3://bucket", profile="mine"):
        cordwood.save("s3://bucket/profile", TREE)
        assert_trees_equal(cordwood.load("s3://bucket/profile"), TREE)


@pytest.mark.parametrize(
    ("line", "variables", "endpoint"),
    [
        ("", {}, "http://a"),
        ("", {"AWS_ENDPOINT_URL": "http://b"}, "http://b"),
        ("", {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}, None),
        ("ignore_configured_endpoint_urls = true\n", {}, None),
    ],
)
def test_the_endpoint_of_a_profile_comes_after_the_environment(
    line: str,
    variables: dict[str, str],
    endpoint: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "config").write_text(
        "[profile mine]\naws_access_key_id = key\naws_secret_access_key = secret\n"
        f"endpoint_url = http://a\n{line}"
    )
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with storage_options("s3://bucket", profile="mine"):
        assert config_of("s3://bucket").get("endpoint") == endpoint
    with storage_options("s3://bucket", profile="mine", endpoint="http://c"):
        assert config_of("s3://bucket")["endpoint"] == "http://c"


def test_a_profile_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("[default]\n")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(
        UnsupportedFormatError, match="expected credentials in the profile 'nobody'"
    ):
        cordwood.load("s3://bucket/run")
    monkeypatch.delenv("AWS_PROFILE")
    with pytest.raises(UnsupportedFormatError, match="expected credentials in the default profile"):
        cordwood.load("s3://bucket/run")


# Of a program


@pytest.mark.usefixtures("keys")
def test_options_hold_until_the_end_of_a_block() -> None:
    before = opened("s3://bucket")
    with storage_options("s3://bucket", endpoint="http://localhost:1") as outer:
        assert opened("s3://bucket/run").where == "s3://bucket at http://localhost:1"
        assert opened("s3://other").where == "s3://other"
        with storage_options("s3://bucket", endpoint="http://localhost:2"):
            assert opened("s3://bucket").where == "s3://bucket at http://localhost:2"
        assert opened("s3://bucket").where == "s3://bucket at http://localhost:1"
        assert isinstance(outer, cordwood.results.StorageOptions)
    assert opened("s3://bucket").where == before.where == "s3://bucket"
    assert BUCKETS._options == {}


@pytest.mark.usefixtures("keys")
def test_options_hold_until_they_are_closed() -> None:
    options = storage_options("s3://bucket", endpoint="http://localhost:1")
    assert opened("s3://bucket").where == "s3://bucket at http://localhost:1"
    options.close()
    assert opened("s3://bucket").where == "s3://bucket"


@pytest.mark.usefixtures("keys")
def test_what_a_store_has_shown_holds_for_all_clients_of_its_endpoint() -> None:
    first = open_url("s3://bucket/run")
    with cordwood.storage_options("s3://bucket", stall_seconds=3):
        second = open_url("s3://bucket/other")
    with cordwood.storage_options("s3://bucket", endpoint="http://localhost:1"):
        third = open_url("s3://bucket/run")
    assert second.bucket.requests is not first.bucket.requests
    assert second.experience is first.experience
    assert third.experience is not first.experience


@pytest.mark.usefixtures("keys")
def test_a_store_that_is_open_keeps_its_options() -> None:
    with storage_options("s3://bucket", endpoint="http://localhost:1", stall_seconds=3):
        url = parse_location("s3://bucket/run")
        assert isinstance(url, Url)
        store = ObjectStore(url)
    assert store.bucket.where == "s3://bucket at http://localhost:1"
    assert store.bucket.stall_seconds == 3


@pytest.mark.usefixtures("keys")
def test_options_of_the_client() -> None:
    with storage_options("s3://bucket", client_options={"proxy_url": "http://proxy:1"}):
        client = opened("s3://bucket").requests.client_options
    assert client["proxy_url"] == "http://proxy:1"
    assert client["read_timeout"] == "30s"


@pytest.mark.parametrize("store", ["http://a", object(), stores.MemoryStore])
def test_a_store_of_another_type(store: Any) -> None:
    with pytest.raises(TypeError, match=r"^store=.*: expected a store of obstore"):
        storage_options("s3://bucket", store=store)
    assert BUCKETS._options == {}


def test_a_store_of_ones_own() -> None:
    mine = stores.MemoryStore()
    with storage_options("s3://bucket", store=mine):
        cordwood.save("s3://bucket/run", TREE)
        assert_trees_equal(cordwood.load("s3://bucket/run"), TREE)
        names = [each["path"] for each in mine.list().collect()]
    assert "run/cordwood.json" in names


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("options", [{"endpont": "http://a"}, {"client_options": {"proxy": "a"}}])
def test_an_option_that_is_unknown(options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFormatError, match="s3://bucket: the options of the store") as e:
        storage_options("s3://bucket", **options)
    assert "endpont" in str(e.value) or "proxy" in str(e.value)
    assert "\n" not in str(e.value)
    assert BUCKETS._options == {}


@pytest.mark.parametrize(
    ("url", "options", "kind", "message"),
    [
        ("/a/path", {}, TypeError, "expected a bucket, such as 's3://bucket'"),
        ("file:///a", {}, TypeError, "expected a bucket"),
        ("memory://a", {}, TypeError, "expected a bucket"),
        ("s3://bucket/run", {}, TypeError, "options belong to a whole bucket; pass s3://bucket"),
        ("s3://bucket", {"stall_seconds": 0}, ValueError, "expected seconds above 0"),
        ("s3://bucket", {"stall_seconds": -1}, ValueError, "expected seconds above 0"),
        ("s3://bucket", {"stall_seconds": float("nan")}, ValueError, "expected seconds above 0"),
        ("s3://bucket", {"store": 1, "region": "x"}, TypeError, "expected no others beside it"),
        ("s3://bucket", {"store": 1, "profile": "x"}, TypeError, "expected no others beside it"),
    ],
)
def test_a_wrong_option_is_refused_and_changes_nothing(
    url: str, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        storage_options(url, **options)
    assert message in str(caught.value)
    assert BUCKETS._options == {}


def test_nothing_is_written_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(request_retries, "_delay_seconds", lambda attempt: 0.001)
    with (
        storage_options(
            "s3://bucket",
            endpoint="http://127.0.0.1:1",
            access_key_id="key",
            secret_access_key="secret",
        ),
        pytest.raises(OSError, match="nothing listens at that address"),
    ):
        cordwood.load("s3://bucket/run")
    assert capfd.readouterr().err == ""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    assert BUCKETS._options == {}
