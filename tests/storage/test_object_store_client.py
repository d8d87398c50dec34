from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cordwood.errors import LimitError, StorageError, TruncatedError
from cordwood.storage import object_store_client
from cordwood.storage.object_store_client import ObjectStore, replace_object, storage_error
from tests.storage.stores import KINDS, new_store
from tests.threads import in_threads

LIMIT = 1 << 20


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return new_store(request.param, tmp_path)


def put(store: ObjectStore, name: str, data: bytes) -> None:
    store.start_write(name, data).result()


def test_objects_there_and_back(store: ObjectStore) -> None:
    assert store.names() == []
    assert store.read("a", limit_bytes=LIMIT).data is None
    for name, data in {"b": b"", "a": b"0123"}.items():
        put(store, name, data)
        assert store.read(name, limit_bytes=LIMIT).data == data
    assert store.names() == ["a", "b"]
    store.delete(["a", "not there", *(f"none-{i}" for i in range(100))])
    assert store.names() == ["b"]


def test_a_limit_is_a_limit(store: ObjectStore) -> None:
    put(store, "a", b"0123")
    assert store.read("a", limit_bytes=4).data == b"0123"
    with pytest.raises(LimitError, match="larger than 3 bytes"):
        store.read("a", limit_bytes=3)


@pytest.mark.parametrize("size", [0, 1, 5])
def test_sizes(store: ObjectStore, size: int) -> None:
    put(store, "a", bytes(size))
    assert [store.has_byte_at("a", n) for n in range(8)] == [n < size for n in range(8)]
    assert store.has_byte_at("not there", 0) is None


def test_neighbours_do_not_see_each_other(tmp_path: Path) -> None:
    """A key that begins with another's characters is no part of it."""
    for kind in KINDS:
        one = new_store(kind, tmp_path)
        two = ObjectStore(one.url._replace(key=f"{one.url.key}0"))
        put(one, "a", b"1")
        put(two, "b", b"2")
        assert one.names() == ["a"]
        assert two.names() == ["b"]


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
    put(store, "a", b"1")
    replace_object(store, "a", lambda old: None, limit_bytes=LIMIT)
    replace_object(store, "a", lambda old: None, limit_bytes=LIMIT)
    assert store.names() == []


def test_a_generation_is_that_of_the_last_replacement(store: ObjectStore) -> None:
    first = replace_object(store, "a", lambda old: b"1", limit_bytes=LIMIT)
    assert store.generation("a") == first
    second = replace_object(store, "a", lambda old: b"1", limit_bytes=LIMIT)
    assert store.generation("a") == second != first


@pytest.mark.parametrize("first", [None, b"old"])
def test_replace_tries_again_where_another_came_first(
    store: ObjectStore, first: bytes | None
) -> None:
    if first is not None:
        put(store, "index", first)
    seen: list[bytes | None] = []

    def add(old: bytes | None) -> bytes:
        seen.append(old)
        if len(seen) < 3:  # somebody else writes between our reading and our writing
            put(store, "index", b"theirs %d" % len(seen))
        return b"ours after " + (old or b"")

    replace_object(store, "index", add, limit_bytes=LIMIT)
    assert seen == [first, b"theirs 1", b"theirs 2"]
    assert store.read("index", limit_bytes=LIMIT).data == b"ours after theirs 2"


def test_replace_passes_on_what_its_update_raises(store: ObjectStore) -> None:
    put(store, "index", b"old")

    def refuse(old: bytes | None) -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replace_object(store, "index", refuse, limit_bytes=LIMIT)
    assert store.read("index", limit_bytes=LIMIT).data == b"old"


def test_replace_gives_up_in_the_end(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store_client, "_MAX_ATTEMPTS", 4)
    calls = 0

    def lose(old: bytes | None) -> bytes:
        nonlocal calls
        calls += 1
        put(store, "index", b"%d" % calls)
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


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("OUT_OF_RANGE: Requested byte range", TruncatedError),
        ("PERMISSION_DENIED: 403", PermissionError),
        ("UNAUTHENTICATED: 401", PermissionError),
        ("NOT_FOUND: bucket", FileNotFoundError),
        ("UNAVAILABLE: 503", StorageError),
        ("Invalid key", StorageError),
    ],
)
def test_errors_say_where_and_in_short(message: str, kind: type[Exception]) -> None:
    error = storage_error(ValueError(message + " spec" * 1000), "gs://b/x", "reading it")
    assert type(error) is kind
    assert "gs://b/x" in str(error)
    assert message in str(error)
    assert len(str(error)) < 500


def test_a_store_that_refuses(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = new_store("file", tmp_path / "file")
    with pytest.raises(OSError, match="file:///"):
        replace_object(store, "index", lambda old: b"", limit_bytes=LIMIT)
