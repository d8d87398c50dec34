from __future__ import annotations

from pathlib import Path

import pytest

from cordwood.errors import UnsupportedFormatError
from cordwood.storage.paths import SCHEMES, Url, parse_url


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
        ("file:///tmp/a%20b/", Url("file", "", "/tmp/a b")),
        ("file://localhost/tmp/x", Url("file", "", "/tmp/x")),
    ],
)
def test_urls(text: str, expected: Url) -> None:
    assert parse_url(text) == expected
    assert parse_url(str(expected).replace("a b", "a%20b")) == expected


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
    assert parse_url(path) is None


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_path_made_of_a_url_is_refused(scheme: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=f"pass a str such as '{scheme}://bucket/x'"):
        parse_url(Path(f"{scheme}://bucket/x"))
    with pytest.raises(UnsupportedFormatError, match=f"pass a str such as '{scheme}://bucket/x'"):
        parse_url(str(Path(f"{scheme}://bucket/x")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "ftp://host/x",
            "'ftp' is unknown; expected a path, or a URL of one of az://, file://, gs://, http://",
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
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(UnsupportedFormatError) as caught:
        parse_url(text)
    assert message in str(caught.value)
