"""`cordwood doctor` of an object store: what it tries, what it says, and that nothing is left."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from cordwood.storage.doctor import Finding
from cordwood.storage.locations import Url, parse_location
from cordwood.storage.object_stores import store_doctor
from cordwood.storage.object_stores.list_objects import object_names
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.object_uploads import PART_BYTES
from cordwood.storage.object_stores.store_doctor import examine_store
from tests.storage.web_stores import Answer, Request, WebStore, web_store

INDEX = "cordwood.json"
WRITES = ("PUT", "CREATE_UPLOAD", "PUT_PART", "COMPLETE")
DELETIONS = ("DELETE", "DELETE_MANY")


@pytest.fixture(params=["s3", "gs"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    with web_store(request.param, monkeypatch) as web:
        yield web


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    with web_store("s3", monkeypatch) as web:
        yield web


def url_of(text: str) -> Url:
    url = parse_location(text)
    assert isinstance(url, Url)
    return url


def examine(url: str) -> dict[str, Finding]:
    findings = examine_store(url_of(url), index_name=INDEX, trial_bytes=2 * PART_BYTES)
    return {each.name: each for each in findings}


def problems(findings: dict[str, Finding]) -> list[str]:
    return [each.name for each in findings.values() if each.needed and not each.good]


def refuse(web: WebStore, *methods: str, status: int = 403) -> None:
    def hook(request: Request) -> Answer | None:
        return Answer(status) if request.method in methods else None

    web.hook = hook


def test_a_store_that_has_everything(store: WebStore) -> None:
    store.put("run/1/kept", b"kept")
    findings = examine(f"{store.url}/run")
    assert all(each.good for each in findings.values()), findings
    assert list(findings) == [
        *("write", "read", "range", "conditional writes", "replacement", "listing", "latency"),
        *("multipart upload", "upload", "download", "deletion"),
    ]
    assert "tags as the store returns them" in findings["conditional writes"].text
    assert re.fullmatch(r"\d+ MiB/s for 16\.0 MiB", findings["upload"].text)
    assert list(store.objects) == ["run/1/kept"], "the objects of the tests are removed"


def test_a_bucket_without_problems_stays_empty(s3: WebStore) -> None:
    assert not problems(examine(s3.url))
    assert not s3.objects


def test_a_store_in_memory_has_no_problems() -> None:
    findings = examine("memory://doctor")
    assert all(each.good for each in findings.values()), findings
    assert object_names(ObjectStore(url_of("memory://doctor"))) == []


@pytest.mark.parametrize(
    ("looks", "text"), [(1, "only 0."), (10**9, "not even 0.2 s after it was written: saves fail")]
)
def test_a_listing_that_lags_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, s3: WebStore, looks: int, text: str
) -> None:
    seen: Counter[str] = Counter()

    def late(store: ObjectStore) -> list[str]:
        listed = object_names(store)
        seen.update(listed)
        return [each for each in listed if seen[each] > looks or not each.startswith("listed")]

    monkeypatch.setattr(store_doctor, "object_names", late)
    url = url_of(f"{s3.url}/run")
    findings = examine_store(url, index_name=INDEX, trial_bytes=2 * PART_BYTES, lag_seconds=0.2)
    (listing,) = [each for each in findings if each.name == "listing"]
    assert listing.needed
    assert not listing.good
    assert text in listing.text
    assert not s3.objects


def test_deleted_objects_that_are_still_listed(
    monkeypatch: pytest.MonkeyPatch, s3: WebStore
) -> None:
    every: set[str] = set()

    def stale(store: ObjectStore) -> list[str]:
        every.update(object_names(store))
        return sorted(every)

    monkeypatch.setattr(store_doctor, "object_names", stale)
    findings = examine(f"{s3.url}/run")
    assert problems(findings) == ["deletion"]
    assert "is still listed after it was deleted" in findings["deletion"].text


def test_tags_without_quotes_work(s3: WebStore) -> None:
    s3.takes_tags = "bare"
    findings = examine(s3.url)
    assert findings["conditional writes"] == (
        *("conditional writes", True, True),
        "work, with tags without quotes",
    )


def test_a_store_that_ignores_conditions(s3: WebStore) -> None:
    s3.obeys_conditions = False
    findings = examine(s3.url)
    assert problems(findings) == ["conditional writes"]
    assert "ignores If-None-Match: saves are refused here" in findings["conditional writes"].text


def test_saves_work_without_deletion(s3: WebStore) -> None:
    refuse(s3, *DELETIONS)
    findings = examine(f"{s3.url}/run")
    assert not problems(findings)
    assert not findings["deletion"].good
    assert findings["deletion"].text.startswith("refused")
    assert "the data that they replace stays" in findings["deletion"].text
    folders = {key.rpartition("/")[0] for key in s3.objects}
    assert len(folders) == 1, "what stays is below one name"
    assert findings["deletion"].text.endswith(f"{s3.url}/{folders.pop()}")


def test_loads_may_work_without_writes(s3: WebStore) -> None:
    refuse(s3, *WRITES)
    findings = examine(f"{s3.url}/run")
    assert problems(findings) == ["write"]
    assert findings["write"].text == "refused (403 Forbidden): saves do not work, loads may"


def test_a_refused_listing_is_a_problem(s3: WebStore) -> None:
    refuse(s3, "LIST")
    findings = examine(f"{s3.url}/run")
    assert problems(findings) == ["listing"]
    assert findings["listing"].text == (
        "refused (403 Forbidden): saves, managers and gc do not work"
    )
    assert not s3.objects


def test_a_bucket_whose_objects_are_written_once(s3: WebStore) -> None:
    def hook(request: Request) -> Answer | None:
        is_change = request.method in DELETIONS or (
            request.method == "PUT" and request.key in s3.objects
        )
        return Answer(403) if is_change and "if-none-match" not in request.headers else None

    s3.hook = hook
    findings = examine(f"{s3.url}/run")
    assert not problems(findings)
    limits = [each.name for each in findings.values() if not each.good]
    assert limits == ["replacement", "deletion"]


def test_a_refused_multipart_upload_is_a_problem(s3: WebStore) -> None:
    refuse(s3, "CREATE_UPLOAD", status=400)
    findings = examine(f"{s3.url}/run")
    assert problems(findings) == ["multipart upload"]
    assert findings["multipart upload"].text == "failed (400 Bad Request): saves do not work"
    assert not {"upload", "download"} & set(findings)
    assert not s3.objects


def test_ranges_that_are_ignored(s3: WebStore) -> None:
    def hook(request: Request) -> Answer | None:
        is_range = request.method == "GET" and "range" in request.headers
        return Answer(200, body=b"the whole object instead") if is_range else None

    s3.hook = hook
    assert "range" in problems(examine(f"{s3.url}/run"))


def test_wrong_credentials_are_an_error(s3: WebStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    with pytest.raises(PermissionError, match="does not know this AWS_ACCESS_KEY_ID"):
        examine(s3.url)
    assert len(s3.requests) <= 2


def test_an_interrupt_leaves_nothing(s3: WebStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ObjectStore, "read_range", interrupt)
    with pytest.raises(KeyboardInterrupt):
        examine(f"{s3.url}/run")
    assert not s3.objects
