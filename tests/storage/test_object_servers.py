"""The servers of the tests answer obstore as S3 and GCS do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import obstore
import pytest
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    PermissionDeniedError,
    PreconditionError,
)
from obstore.store import GCSStore, S3Store

from tests.storage.bucket import BUCKET, MIN_PART_SIZE, Answer, Bucket, Request
from tests.storage.gcs_server import TOKEN, GcsHandler
from tests.storage.object_servers import ObjectHandler, serve
from tests.storage.s3_server import ACCESS_KEY, REGION, S3Handler

OPTIONS: dict[str, Any] = {
    "client_options": {"allow_http": True},
    "retry_config": {"max_retries": 0},
}


def s3_client(url: str, **changes: Any) -> S3Store:
    config = {"access_key_id": ACCESS_KEY, "secret_access_key": "secret", "region": REGION}
    return S3Store(changes.pop("bucket", BUCKET), endpoint=url, **{**config, **changes}, **OPTIONS)


def gcs_client(url: str, token: str = TOKEN, bucket: str = BUCKET) -> GCSStore:
    return GCSStore(bucket, config={"base_url": url, "bearer_token": token}, **OPTIONS)


@pytest.fixture(params=["s3", "gs"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Bucket, Any]]:
    bucket = Bucket()
    providers: dict[str, tuple[type[ObjectHandler], Any]] = {
        "s3": (S3Handler, s3_client),
        "gs": (GcsHandler, gcs_client),
    }
    handler, client = providers[request.param]
    with serve(handler, bucket) as url:
        yield bucket, client(url)


def test_an_object_is_written_looked_at_read_in_ranges_and_deleted(served: Any) -> None:
    bucket, client = served
    written = obstore.put(client, "a/k", b"0123456789")
    head = obstore.head(client, "a/k")
    assert (head["size"], head["e_tag"]) == (10, written["e_tag"])
    assert bytes(obstore.get_range(client, "a/k", start=2, end=5)) == b"234"
    assert bytes(obstore.get_range(client, "a/k", start=8, end=20)) == b"89"
    assert bytes(obstore.get(client, "a/k").bytes()) == b"0123456789"
    with pytest.raises(BaseError, match="InvalidRange"):
        obstore.get_range(client, "a/k", start=10, end=12)
    obstore.delete(client, "a/k")
    assert not bucket.objects
    with pytest.raises(FileNotFoundError, match="NoSuchKey"):
        obstore.get(client, "a/k")


def test_one_of_many_creators_wins_and_a_stale_tag_is_refused(served: Any) -> None:
    bucket, client = served
    outcomes: list[str] = []

    def create() -> None:
        try:
            obstore.put(client, "k", b"x", mode="create")
            outcomes.append("won")
        except AlreadyExistsError:
            outcomes.append("lost")

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost"] * 7 + ["won"]
    old = obstore.head(client, "k")
    mode: Any = {name: old[name] for name in ("e_tag", "version") if old[name]}
    obstore.put(client, "k", b"y", mode=mode)
    with pytest.raises(PreconditionError):
        obstore.put(client, "k", b"z", mode=mode)
    assert bucket.objects["k"].data == b"y"


def test_the_server_accepts_an_etag_in_one_form() -> None:
    bucket = Bucket()
    with serve(S3Handler, bucket) as url:
        client = s3_client(url)
        tag = obstore.put(client, "k", b"x")["e_tag"] or ""
        for form, right, wrong in (("quoted", tag, tag[1:-1]), ("bare", tag[1:-1], tag)):
            bucket.takes_tags = form
            obstore.put(client, "k", b"x", mode={"e_tag": right})
            with pytest.raises(PreconditionError):
                obstore.put(client, "k", b"x", mode={"e_tag": wrong})


def test_lists_have_pages_prefixes_and_sizes(served: Any) -> None:
    bucket, client = served
    bucket.page_size = 3
    for number in range(8):
        bucket.put(f"run/{number}/a&b <c>", b"x" * number)
    bucket.put("other", b"")
    items = obstore.list(client, "run").collect()
    assert [(item["path"], item["size"]) for item in items] == [
        (f"run/{number}/a&b <c>", number) for number in range(8)
    ]
    assert bucket.count("LIST") == 3
    assert obstore.list_with_delimiter(client, "run")["common_prefixes"] == [
        f"run/{number}" for number in range(8)
    ]


def test_a_multipart_upload_becomes_one_object(served: Any) -> None:
    bucket, client = served
    data = bytes(range(256)) * (2 * MIN_PART_SIZE // 256) + b"end"
    result = obstore.put(client, "k", data, use_multipart=True, chunk_size=MIN_PART_SIZE)
    assert bucket.objects["k"].data == data
    assert str(result["e_tag"]).endswith('-3"')
    assert (bucket.count("PUT_PART"), bucket.uploads) == (3, {})
    across = obstore.get_range(client, "k", start=MIN_PART_SIZE - 2, end=MIN_PART_SIZE + 2)
    assert bytes(across) == data[MIN_PART_SIZE - 2 : MIN_PART_SIZE + 2]


def test_parts_that_are_too_small_are_refused(served: Any) -> None:
    bucket, client = served
    with pytest.raises(GenericError, match="EntityTooSmall"):
        obstore.put(client, "k", b"x" * 3000, use_multipart=True, chunk_size=1000)
    assert not bucket.objects


def test_many_objects_are_deleted(served: Any) -> None:
    bucket, client = served
    for number in range(1100):
        bucket.put(f"k/{number}", b"")
    obstore.delete(client, [f"k/{number}" for number in range(1100)])
    assert not bucket.objects


def test_the_client_aborts_an_upload_when_a_part_fails(served: Any) -> None:
    bucket, client = served
    bucket.hook = lambda request: Answer(503) if request.method == "PUT_PART" else None
    with pytest.raises(GenericError, match="SlowDown"):
        obstore.put(client, "k", b"x" * 100, use_multipart=True)
    assert (bucket.uploads, bucket.count("ABORT")) == ({}, 1)


def test_wrong_and_absent_credentials_and_buckets_are_refused() -> None:
    with serve(S3Handler, Bucket()) as url:
        with pytest.raises(PermissionDeniedError, match="InvalidAccessKeyId"):
            obstore.put(s3_client(url, access_key_id="other"), "k", b"")
        with pytest.raises(PermissionDeniedError, match="AccessDenied"):
            obstore.put(s3_client(url, skip_signature=True), "k", b"")
        with pytest.raises(GenericError, match="AuthorizationHeaderMalformed"):
            obstore.put(s3_client(url, region="us-east-1"), "k", b"")
        with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
            obstore.put(s3_client(url, bucket="other"), "k", b"")
    with serve(GcsHandler, Bucket()) as url:
        with pytest.raises(BaseError, match="AuthenticationRequired"):
            obstore.put(gcs_client(url, token="other"), "k", b"")
        with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
            obstore.put(gcs_client(url, bucket="other"), "k", b"")


def test_a_request_can_be_refused_lost_doubled_delayed_and_its_answer_cut(served: Any) -> None:
    bucket, client = served
    answers = {"refused": Answer(403), "lost": Answer(0, 1), "doubled": Answer(None, 2)}
    bucket.hook = lambda request: answers.get(request.key)
    with pytest.raises(PermissionDeniedError, match="AccessDenied"):
        obstore.put(client, "refused", b"x")
    with pytest.raises(GenericError):
        obstore.put(client, "lost", b"x")
    with pytest.raises(AlreadyExistsError):
        obstore.put(client, "doubled", b"x", mode="create")
    assert sorted(bucket.objects) == ["doubled", "lost"]

    release, started = threading.Event(), threading.Event()

    def wait(request: Request) -> Answer:
        started.set()
        return Answer(None, delay=release)

    bucket.hook = wait
    thread = threading.Thread(target=obstore.put, args=(client, "late", b"x"))
    thread.start()
    assert started.wait(60)
    assert "late" not in bucket.objects
    release.set()
    thread.join()
    assert bucket.objects["late"].data == b"x"

    bucket.hook = lambda request: Answer(None, cut=True)
    bucket.put("long", b"x" * 1000)
    with pytest.raises(GenericError):
        obstore.get(client, "long").bytes()
