from __future__ import annotations

import os
from pathlib import Path

import pytest

from cordwood.errors import UnsupportedFormatError
from cordwood.storage.locations import SCHEMES, LocalPath, Url, parse_location


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("memory://bucket/ckpt", Url("memory", "", "bucket/ckpt")),
        ("memory://bucket/ckpt/", Url("memory", "", "bucket/ckpt")),
        ("MEMORY://x", Url("memory", "", "x")),
        ("gs://bucket/run 1/step%20?a#b", Url("gs", "bucket", "run 1/step%20?a#b")),
        ("s3://bucket/a/b/", Url("s3", "bucket", "a/b")),
        ("s3://bucket", Url("s3", "bucket", "")),
        ("az://container/a", Url("az", "container", "a")),
        ("http://host:8000/a/b", Url("http", "host:8000", "a/b")),
        ("https://host/a/", Url("https", "host", "a")),
        ("gs://bucket/", Url("gs", "bucket", "")),
    ],
)
def test_a_url_is_parsed_and_printed(text: str, expected: Url) -> None:
    location = parse_location(text)
    assert location == expected
    assert str(location) == text
    assert parse_location(expected.address) == expected
    assert isinstance(location, Url)
    assert str(location.plain) == expected.address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("file:///tmp/a%20b/", "/tmp/a b"),
        ("file://localhost/tmp/x", "/tmp/x"),
        ("file:///", "/"),
        ("a/b/", "a/b/"),
    ],
)
def test_a_text_without_a_scheme_is_a_local_path(text: str, expected: str) -> None:
    assert parse_location(text) == LocalPath(expected)


@pytest.mark.parametrize(
    ("text", "parent", "name"),
    [
        ("run/100", "run", "100"),
        ("run/100/", "run", "100"),
        ("/100", "/", "100"),
        ("100", ".", "100"),
        ("s3://bucket/run/100/", "s3://bucket/run", "100"),
        ("S3://bucket/run", "S3://bucket", "run"),
        ("memory://a/b", "memory://a", "b"),
        ("memory://a", "memory://", "a"),
    ],
)
def test_the_parent_and_the_children_of_a_location(text: str, parent: str, name: str) -> None:
    location = parse_location(text)
    assert str(location.parent) == parent
    assert location.name == name
    assert str(location.child("x")) == f"{text.rstrip('/')}/x"
    assert location.child("x").parent == parse_location(text.rstrip("/"))
    assert parse_location(str(location.child("x"))) == location.child("x")


def test_a_sibling_of_a_url() -> None:
    assert Url("s3", "bucket", "run/100").child("../.data/x") == Url("s3", "bucket", "run/.data/x")


def test_a_url_is_no_path_of_the_system() -> None:
    with pytest.raises(TypeError):
        os.stat(Url("s3", "bucket", "run"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "path",
    [
        "ckpt",
        "a/b",
        "/tmp/x",
        "./gs://x",
        "a b://c",
        "gs:b",
        "1://x",
        "://x",
        "./gs:/b/c",
        Path("/tmp/memory:/x"),
        Path("sub/file:/x"),
        Path("gs"),
        Path("ftp://x"),
    ],
)
def test_paths_are_no_urls(path: str | Path) -> None:
    assert parse_location(path) == LocalPath(str(path))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_path_made_of_a_url_is_refused(scheme: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=f"pass a str such as '{scheme}://bucket/x'"):
        parse_location(Path(f"{scheme}://bucket/x"))
    with pytest.raises(UnsupportedFormatError, match=f"pass a str such as '{scheme}://bucket/x'"):
        parse_location(str(Path(f"{scheme}://bucket/x")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "ftp://host/x",
            "'ftp' is unknown; expected a path, or a URL of one of az://, file://, gs://, hf://",
        ),
        ("gcs://b/x", "https://, memory://, s3://"),
        ("http:///x", "expected a bucket after the scheme"),
        ("zz://", "'zz' is unknown"),
        ("gs://", "expected a bucket after the scheme, as in gs://bucket/run/step-100"),
        ("s3:///run", "expected a bucket after the scheme"),
        ("memory://", "expected a name after the scheme, as in memory://run/step-100"),
        ("gs://bucket/a//b", "expected names between the slashes"),
        ("gs://bucket/a/../b", "expected names between the slashes"),
        ("memory://a/./b", "expected names between the slashes"),
        ("memory://a/b\n", "control characters"),
        ("file://relative/x", "expected an absolute path after file://"),
        ("file://", "expected an absolute path"),
        ("file:///a%00b", "expected an absolute path"),
    ],
)
def test_a_wrong_url_is_refused(text: str, message: str) -> None:
    with pytest.raises(UnsupportedFormatError) as caught:
        parse_location(text)
    assert message in str(caught.value)
