from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import obstore
import pytest
from obstore import exceptions

from cordwood.errors import LimitError, StorageError, TruncatedError
from cordwood.storage.object_stores import conditional_writes, request_retries
from cordwood.storage.object_stores.bucket_cache import BUCKETS
from cordwood.storage.object_stores.conditional_writes import replace_object
from cordwood.storage.object_stores.list_objects import list_children, list_objects, object_names
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.object_store_errors import request_error
from cordwood.storage.object_stores.stored_objects import Tag
from tests.children import run_python
from tests.storage.stores import KINDS, new_url, open_url
from tests.threads import in_threads

LIMIT = 1 << 20


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with new_url(request.param, monkeypatch) as url:
        yield open_url(url)


def tag_of(store: ObjectStore, name: str) -> Tag | None:
    found = store.find(name)
    return None if found is None else found.tag


def test_objects_there_and_back(store: ObjectStore) -> None:
    assert object_names(store) == []
    assert store.read("a", limit_bytes=LIMIT) == (None, None)
    for name, data in {"b": b"", "a": b"0123"}.items():
        store.write(name, data)
        assert store.read(name, limit_bytes=LIMIT).data == data
    assert object_names(store) == ["a", "b"]
    store.delete(["a", "not there", *(f"none-{i}" for i in range(100))])
    assert object_names(store) == ["b"]


def test_what_is_written_is_what_the_memory_held_then(store: ObjectStore) -> None:
    data = bytearray(b"0123")
    store.write("a", memoryview(data))
    data[:] = b"4567"
    assert store.read("a", limit_bytes=LIMIT).data == b"0123"


def test_a_limit_is_a_limit(store: ObjectStore) -> None:
    store.write("a", b"0123")
    assert store.read("a", limit_bytes=4).data == b"0123"
    with pytest.raises(LimitError, match="larger than 3 bytes"):
        store.read("a", limit_bytes=3)


@pytest.mark.parametrize("size", [0, 1, 5])
def test_objects_have_sizes(store: ObjectStore, size: int) -> None:
    store.write("a", bytes(size))
    assert store.size_of("a") == size
    assert [(each.name, each.size_bytes) for each in list_objects(store)] == [("a", size)]
    assert store.size_of("not there") is None


def test_any_range_of_an_object_is_read(store: ObjectStore) -> None:
    store.write("a", b"01234")
    for start in range(5):
        for stop in range(start + 1, 6):
            part = store.read_range("a", start, stop)
            assert part is not None
            assert (bytes(part.data), part.object_bytes) == (b"01234"[start:stop], 5)
    assert store.read_range("not there", 0, 1) is None


@pytest.mark.parametrize(("start", "stop", "found"), [(3, 6, "2"), (5, 6, "its end"), (9, 12, "")])
def test_a_range_that_an_object_does_not_have(
    store: ObjectStore, start: int, stop: int, found: str
) -> None:
    store.write("a", b"01234")
    expected = f"/a: expected {stop - start} bytes at offset {start}, found {found}"
    with pytest.raises(TruncatedError, match=expected):
        store.read_range("a", start, stop)


def test_a_range_of_an_object_without_bytes(store: ObjectStore) -> None:
    store.write("a", b"")
    with pytest.raises(TruncatedError, match="found its end"):
        store.read_range("a", 0, 1)


def test_neighbours_do_not_see_each_other(store: ObjectStore) -> None:
    """A key that begins with another's characters is no part of it."""
    other = ObjectStore(store.url.parent.child(f"{store.url.name}0"))
    store.write("a", b"1")
    other.write("b", b"2")
    assert object_names(store) == list_children(store) == ["a"]
    assert object_names(other) == list_children(other) == ["b"]


def test_children_are_the_names_up_to_a_slash(store: ObjectStore) -> None:
    for name in ("b/1", "b/2/3", "a", "c%20 d/e"):
        store.write(name, b"1")
    assert object_names(store) == ["a", "b/1", "b/2/3", "c%20 d/e"]
    assert list_children(store) == ["a", "b", "c%20 d"]


def test_a_name_may_lead_to_a_neighbour(store: ObjectStore) -> None:
    store.write("b/1", b"1")
    below = ObjectStore(store.url.child("a/deep"))
    assert below.read("../../b/1", limit_bytes=LIMIT).data == b"1"
    assert below.size_of("../../b/1") == 1


def test_a_listing_begins_after_a_name(store: ObjectStore) -> None:
    for name in ("1/a", "2/a", "2/b", "3/a"):
        store.write(name, b"1")
    assert [each.name for each in list_objects(store, start_after="2/a")] == ["2/b", "3/a"]
    assert [each.name for each in list_objects(store, start_after="2")] == ["2/a", "2/b", "3/a"]
    assert list_objects(store, start_after="3/a") == []


@pytest.mark.parametrize("count", [0, 1, 1000, 1001])
def test_deleting_any_number(store: ObjectStore, count: int) -> None:
    store.write("last", b"1")
    store.write("kept", b"1")
    store.delete([*(f"none-{i}" for i in range(count - 1)), *["last"][:count]])
    assert object_names(store) == ["kept", *["last"][count:]]


def test_a_write_on_a_condition(store: ObjectStore) -> None:
    first = store.write_if("a", b"1", None)
    assert first is not None
    assert store.write_if("a", b"2", None) is None
    second = store.write_if("a", b"2", first)
    assert second is not None
    assert store.write_if("a", b"3", first) is None
    assert store.read("a", limit_bytes=LIMIT) == (b"2", second)
    assert store.write_if("not there", b"3", first) is None
    assert object_names(store) == ["a"]


def test_replace_begins_with_nothing_and_goes_on(store: ObjectStore) -> None:
    seen: list[bytes | None] = []

    def add(old: bytes | None) -> bytes:
        seen.append(old)
        return (old or b"") + b"x"

    replace_object(store, "index", add, limit_bytes=LIMIT)
    replace_object(store, "index", add, limit_bytes=LIMIT)
    assert seen == [None, b"x"]
    assert store.read("index", limit_bytes=LIMIT).data == b"xx"


def test_replace_can_remove(store: ObjectStore) -> None:
    """An object without bytes stands for none."""
    seen: list[bytes | None] = []

    def remove(old: bytes | None) -> None:
        seen.append(old)

    replace_object(store, "a", remove, limit_bytes=LIMIT)
    assert object_names(store) == []
    store.write("a", b"1")
    replace_object(store, "a", remove, limit_bytes=LIMIT)
    replace_object(store, "a", remove, limit_bytes=LIMIT)
    assert store.read("a", limit_bytes=LIMIT).data == b""
    replace_object(store, "a", lambda old: b"new" if old is None else old, limit_bytes=LIMIT)
    assert store.read("a", limit_bytes=LIMIT).data == b"new"
    assert seen == [None, b"1", None]


def test_a_tag_is_that_of_the_last_replacement(store: ObjectStore) -> None:
    assert tag_of(store, "a") is None
    first = replace_object(store, "a", lambda old: b"1", limit_bytes=LIMIT)
    assert tag_of(store, "a") == first == store.read("a", limit_bytes=LIMIT).tag
    second = replace_object(store, "a", lambda old: b"2", limit_bytes=LIMIT)
    assert tag_of(store, "a") == second == store.read("a", limit_bytes=LIMIT).tag
    assert first != second
    (entry,) = list_objects(store)
    assert first is not None
    assert second is not None
    assert entry.tag.e_tag == second.e_tag != first.e_tag


def test_tags_of_other_objects(store: ObjectStore) -> None:
    assert tag_of(store, "not there") is None
    store.write("a", b"1")
    store.write("b", b"2")
    assert store.write_if("a", b"3", tag_of(store, "b")) is None
    assert store.read("a", limit_bytes=LIMIT).data == b"1"


@pytest.mark.parametrize("first", [None, b"old"])
def test_replace_tries_again_where_another_came_first(
    store: ObjectStore, first: bytes | None
) -> None:
    if first is not None:
        store.write("index", first)
    seen: list[bytes | None] = []

    def add(old: bytes | None) -> bytes:
        seen.append(old)
        if len(seen) < 3:  # somebody else writes between our reading and our writing
            store.write("index", b"theirs %d" % len(seen))
        return b"ours after " + (old or b"")

    replace_object(store, "index", add, limit_bytes=LIMIT)
    assert seen == [first, b"theirs 1", b"theirs 2"]
    assert store.read("index", limit_bytes=LIMIT).data == b"ours after theirs 2"


def test_replace_begins_anew_where_it_is_deleted_meanwhile(store: ObjectStore) -> None:
    store.write("index", b"old")
    seen: list[bytes | None] = []

    def add(old: bytes | None) -> bytes:
        seen.append(old)
        if old is not None:
            store.delete(["index"])
        return b"ours after " + (old or b"nothing")

    replace_object(store, "index", add, limit_bytes=LIMIT)
    assert seen == [b"old", None]
    assert store.read("index", limit_bytes=LIMIT).data == b"ours after nothing"


def test_replace_passes_on_what_its_update_raises(store: ObjectStore) -> None:
    store.write("index", b"old")

    def refuse(old: bytes | None) -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replace_object(store, "index", refuse, limit_bytes=LIMIT)
    assert store.read("index", limit_bytes=LIMIT).data == b"old"


def test_replace_gives_up_in_the_end(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional_writes, "_MAX_ATTEMPTS", 4)
    calls = 0

    def lose(old: bytes | None) -> bytes:
        nonlocal calls
        calls += 1
        store.write("index", b"%d" % calls)
        return b"ours"

    with pytest.raises(StorageError, match="other writers replaced it 4 times"):
        replace_object(store, "index", lose, limit_bytes=LIMIT)
    assert calls == 4


def test_eight_threads_lose_nothing(store: ObjectStore) -> None:
    def add(number: int) -> Callable[[bytes | None], bytes]:
        def update(old: bytes | None) -> bytes:
            values = json.loads(old) if old else {}
            return json.dumps({**values, str(number): number}).encode()

        return update

    start = threading.Barrier(8)

    def save(number: int) -> None:
        own_store = ObjectStore(store.url)
        start.wait()
        replace_object(own_store, "index", add(number), limit_bytes=LIMIT)

    in_threads(save, together=start)
    values = store.read("index", limit_bytes=LIMIT).data
    assert values is not None
    assert json.loads(values) == {str(n): n for n in range(8)}


S3_ANSWER = (
    "Generic S3 error: Error performing GET http://127.0.0.1:9/b/x in 5.1ms - Server returned "
    "non-2xx status code: {status}: <Error><Code>{code}</Code></Error>\n\n"
    'Debug source:\nGeneric {{\n    store: "S3",\n}}'
)
NO_ANSWER = (
    "Generic S3 error: Error performing GET http://127.0.0.1:9/b/x in 1s - HTTP error: error "
    "sending request\n\nDebug source:\nGeneric {{ source: {source} }}"
)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (exceptions.PermissionDeniedError("403 Forbidden"), PermissionError, "403 Forbidden"),
        (exceptions.UnauthenticatedError("401"), PermissionError, "the store refused"),
        (
            exceptions.GenericError(S3_ANSWER.format(status="403 Forbidden", code="AccessDenied")),
            PermissionError,
            "AccessDenied",
        ),
        (
            exceptions.GenericError(
                S3_ANSWER.format(status="403 Forbidden", code="RequestTimeTooSkewed")
            ),
            PermissionError,
            "set the clock of this machine",
        ),
        (
            exceptions.GenericError(
                S3_ANSWER.format(status="403 Forbidden", code="SignatureDoesNotMatch")
            ),
            PermissionError,
            "AWS_SECRET_ACCESS_KEY",
        ),
        (FileNotFoundError("NoSuchBucket"), FileNotFoundError, "create the bucket"),
        (
            exceptions.GenericError(S3_ANSWER.format(status="503 Slow Down", code="SlowDown")),
            StorageError,
            "SlowDown",
        ),
        (exceptions.GenericError("Invalid key"), StorageError, "Invalid key"),
        (
            exceptions.GenericError(NO_ANSWER.format(source='"Connection refused"')),
            StorageError,
            "nothing listens at that address: look at the endpoint",
        ),
        (
            exceptions.GenericError(NO_ANSWER.format(source='error: "dns error"')),
            StorageError,
            "look at the name of the host",
        ),
        (
            exceptions.GenericError(NO_ANSWER.format(source='message: "reset by peer"')),
            StorageError,
            "(reset by peer); look at the bucket's name, the network",
        ),
        (
            exceptions.GenericError(NO_ANSWER.format(source="TimedOut")),
            StorageError,
            "timed out",
        ),
        (TimeoutError(), StorageError, "timed out"),
        (
            exceptions.GenericError("error sending request for http://169.254.169.254/latest"),
            PermissionError,
            "there are no credentials: set AWS_ACCESS_KEY_ID",
        ),
        (
            exceptions.GenericError("error sending request for http://metadata.google.internal"),
            PermissionError,
            "there are no credentials: set GOOGLE_APPLICATION_CREDENTIALS",
        ),
    ],
    ids=str,
)
def test_errors_say_where_and_in_short(error: Exception, kind: type[Exception], said: str) -> None:
    for longer in ("", " spec" * 1000):
        ours = request_error(type(error)(f"{error}{longer}"), "gs://b/x", "reading it")
        assert type(ours) is kind
        assert "gs://b/x" in str(ours)
        assert "while reading it" in str(ours)
        assert said in str(ours)
        assert "Debug source" not in str(ours)
        assert len(str(ours)) < 700


class Failing:
    """A function of obstore that fails."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, *_: Any, **__: Any) -> Awaitable[Any]:
        self.calls += 1
        error = self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]

        async def fail() -> None:
            raise error

        return fail()


def test_a_store_that_refuses(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Failing(exceptions.PermissionDeniedError("status: 403 Forbidden: it is not yours"))
    monkeypatch.setattr(obstore, "put_async", refusing)
    with pytest.raises(PermissionError, match=f"it is not yours.*{store.url}/index"):
        replace_object(store, "index", lambda old: b"1", limit_bytes=LIMIT)
    with pytest.raises(PermissionError, match=f"{store.url}/a"):
        store.write("a", b"1")
    assert refusing.calls == 2, "a refusal is final"


def test_a_write_whose_answer_is_lost_is_read_back(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = obstore.put_async

    async def lose(*args: Any, **options: Any) -> Any:
        await put(*args, **options)
        raise exceptions.GenericError("status: 400 Bad Request")

    monkeypatch.setattr(obstore, "put_async", lose)
    tag = replace_object(store, "index", lambda old: b"1", limit_bytes=LIMIT)
    assert tag == tag_of(store, "index")
    assert store.read("index", limit_bytes=LIMIT).data == b"1"


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_retries, "_delay_seconds", lambda attempt: 0.001)
    monkeypatch.setattr(BUCKETS, "_experience", {})


SILENT = exceptions.GenericError("HTTP error: error sending request")
BUSY = exceptions.GenericError("Server returned non-2xx status code: 503 Service Unavailable")
LATE = exceptions.GenericError("HTTP error: error sending request: TimedOut")
FORBIDDEN = exceptions.GenericError("Server returned non-2xx status code: 403 Forbidden")
MISSING_FEATURE = exceptions.GenericError("Server returned non-2xx status code: 501")


@pytest.mark.usefixtures("no_delay")
@pytest.mark.parametrize(
    ("error", "has_answered", "calls"),
    [
        (SILENT, False, 2),
        (SILENT, True, 9),
        (BUSY, False, 9),
        (BUSY, True, 9),
        (LATE, False, 2),
        (LATE, True, 2),
        (FORBIDDEN, False, 1),
        (FORBIDDEN, True, 1),
        (MISSING_FEATURE, True, 1),
    ],
)
def test_how_often_a_request_is_sent(
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    has_answered: bool,
    calls: int,
) -> None:
    if has_answered:
        object_names(store)
    failing = Failing(error)
    monkeypatch.setattr(obstore, "head_async", failing)
    with pytest.raises(OSError, match=f"{store.url}/a"):
        store.size_of("a")
    assert failing.calls == calls
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == calls - 1
    for number, line in enumerate(lines, start=2):
        assert f"{store.url}/a: the store failed while looking for it" in line
        assert f"attempt {number} of {calls} follows in" in line


@pytest.mark.usefixtures("no_delay")
def test_a_request_that_is_repeated_succeeds(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("a", b"123")
    head = obstore.head_async
    calls = 0

    async def busy(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < 9:
            raise BUSY
        return await head(*args)

    monkeypatch.setattr(obstore, "head_async", busy)
    assert store.size_of("a") == 3
    assert calls == 9


def test_delays_grow_and_have_a_limit() -> None:
    for attempt in range(1, 12):
        most = min(32, 2 ** (attempt - 1))
        for _ in range(10):
            assert most / 2 <= request_retries._delay_seconds(attempt) <= most


def test_the_interpreter_does_not_end_while_a_result_is_handed_over() -> None:
    """A thread of obstore that returns from Python later would abort the process."""
    run_python(
        """
        import time
        from asyncio.selector_events import BaseSelectorEventLoop
        import cordwood

        def slowly(self, write=BaseSelectorEventLoop._write_to_self):
            write(self)
            time.sleep(0.2)

        BaseSelectorEventLoop._write_to_self = slowly
        cordwood.save("memory://exit", {"x": 1})
        """
    )
