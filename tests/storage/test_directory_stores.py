"""One suite for every kind of directory store: what saves leave, whatever becomes of them."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordwood.encoding.digests import digest_of
from cordwood.errors import CorruptionError, StorageError, TruncatedError
from cordwood.index import HeaderDigest, Source
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.file_plan import FilePlan, LeafBytes
from cordwood.storage.local_storage import LocalStorage
from cordwood.storage.object_stores.conditional_writes import replace_object
from cordwood.storage.object_stores.object_pool import GRACE_SECONDS
from cordwood.storage.object_stores.object_storage import ObjectStorage
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.stored_objects import Tag
from cordwood.storage.paths import new_save_id
from cordwood.storage.storage_protocol import (
    Garbage,
    IndexChange,
    NamingRules,
    NewDataFile,
    Storage,
    Transaction,
)
from tests.storage.conformance import FolderFiles
from tests.storage.stores import KINDS, StoredObjects, new_url, open_url
from tests.threads import in_threads

HEADER = b"h" * 4096
RULES = NamingRules(
    "index",
    1 << 16,
    ("beside",),
    lambda name: name.startswith("data-"),
    lambda index: frozenset(name for names in json.loads(index or "{}").values() for name in names),
)
NOW = f"data-{new_save_id()}"


class Place:
    """A storage location, and its real contents: a directory, or a URL of an object store."""

    def __init__(self, where: Path | str) -> None:
        self.where = where
        self.is_local = isinstance(where, Path)
        self.files: MutableMapping[str, bytes]
        self.files = FolderFiles(where) if isinstance(where, Path) else StoredObjects(where)

    def store(self) -> Storage:
        if isinstance(self.where, Path):
            return LocalStorage(self.where, RULES)
        return ObjectStorage(open_url(self.where).url, RULES)

    def beside(self) -> Place:
        """Return another place."""
        if isinstance(self.where, Path):
            return Place(self.where.parent / "elsewhere" / self.where.name)
        return Place(f"{self.where}/elsewhere")

    def found(self) -> list[str]:
        """Return the names of all files, but for an index or sidecar that a save has emptied."""
        emptied = {name for name in ("index", "beside") if self.content(name) == b""}
        return sorted(self.files.keys() - emptied)

    def content(self, name: str) -> bytes | None:
        return self.files.get(name)

    def put(self, name: str, data: bytes) -> None:
        self.files[name] = data


@pytest.fixture(params=["local", *KINDS])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    if request.param == "local":
        yield Place(tmp_path / "a" / "b")
    else:
        with new_url(request.param, monkeypatch) as url:
            yield Place(url)


@pytest.fixture(params=KINDS)
def objects(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with new_url(request.param, monkeypatch) as url:
        yield Place(url)


def sevens() -> Leaves:
    """Return the only leaf of the new files, for any number of them."""
    leaves = Leaves([np.full(1 << 10, 7, np.uint8)])
    leaves.expect([0] * 99)
    return leaves


def new_file(name: str, size: int = 100) -> NewDataFile:
    plan = FilePlan(4096 + size, (LeafBytes(0, 0, size),) if size else (), 4096, lambda _: HEADER)
    return NewDataFile(name, plan)


def put(
    key: str, *names: str, beside: bytes | None = None
) -> Callable[[bytes | None], IndexChange]:
    def update(old: bytes | None) -> IndexChange:
        items = json.loads(old or b"{}")
        before = {name for names_of_key in items.values() for name in names_of_key}
        items[key] = names
        kept = {name for names_of_key in items.values() for name in names_of_key}
        return IndexChange(
            json.dumps(items).encode(),
            dict.fromkeys(names, 4196),
            {"beside": beside},
            kept=frozenset(kept),
            dropped=frozenset(before - kept),
        )

    return update


def save(place: Place, key: str, *names: str, beside: bytes | None = None) -> None:
    with place.store().transaction(others_commit=False) as saving:
        saving.write([new_file(name) for name in names], sevens())
        saving.commit(put(key, *names, beside=beside))


def test_save_ids_tell_when_a_save_began() -> None:
    seconds = int(time.time())
    save_id = new_save_id()
    assert re.fullmatch("[0-9a-f]{16}", save_id)
    assert seconds <= int(save_id[:8], 16) <= seconds + 60
    assert len({new_save_id() for _ in range(100)}) == 100


def test_a_save_and_the_next(place: Place) -> None:
    store = place.store()
    assert store.read_index() is None
    assert store.names() == []
    save(place, "x", f"{NOW}-1", f"{NOW}-2", beside=b"map")
    assert place.found() == store.names() == ["beside", f"{NOW}-1", f"{NOW}-2", "index"]
    assert place.content("beside") == store.read_sidecar("beside") == b"map"
    assert store.read_sidecar("elsewhere") is None
    assert place.content(f"{NOW}-1") == HEADER + b"\7" * 100
    save(place, "y", f"{NOW}-3")
    assert place.found() == [f"{NOW}-1", f"{NOW}-2", f"{NOW}-3", "index"]
    assert store.read_sidecar("beside") is None
    place.put("notes.txt", b"kept")
    save(place, "x", f"{NOW}-4")
    assert place.found() == [f"{NOW}-3", f"{NOW}-4", "index", "notes.txt"]
    assert json.loads(store.read_index() or b"") == {"x": [f"{NOW}-4"], "y": [f"{NOW}-3"]}


def test_what_a_file_is_known_by(place: Place) -> None:
    with place.store().transaction(others_commit=False) as saving:
        sealed = saving.write([new_file(f"{NOW}-1"), new_file(f"{NOW}-2", 0)], sevens())
    assert sealed == [HeaderDigest(4096, digest_of(HEADER))] * 2


@pytest.mark.parametrize("count", [1, 65])
def test_reading_what_is_and_is_not_as_the_index_says(place: Place, count: int) -> None:
    names = [f"{NOW}-{i}" for i in range(count)]
    save(place, "x", *names)

    def read(size: int, offset: int = 4090, length: int = 10) -> bytes:
        sources = [Source(names[0], size), *[Source(name, 4196) for name in names[1:]]]
        files = place.store().open(sources)
        assert all(file.read(4195, 1) == b"\7" for file in files[1:])
        return files[0].read(offset, length)

    assert read(4196) == b"h" * 6 + b"\7" * 4
    with pytest.raises(TruncatedError, match="-0: expected 9 bytes at offset 4190, found 6"):
        read(4196, 4190, 9)
    with pytest.raises(TruncatedError, match="-0: expected 4197 bytes, found"):
        read(4197)
    with pytest.raises(CorruptionError, match="-0: expected 4195 bytes, found"):
        read(4195)
    del place.files[names[0]]
    with pytest.raises(CorruptionError, match="-0 is missing"):
        read(4196)


def save_and(
    place: Place, *names: str, then: Callable[[Transaction], None], others_commit: bool = False
) -> None:
    with place.store().transaction(others_commit=others_commit) as saving:
        saving.write([new_file(name) for name in names], sevens())
        then(saving)


def test_an_exception_leaves_nothing(place: Place) -> None:
    save(place, "x", f"{NOW}-1")

    def fail(saving: Transaction) -> None:
        assert place.found() == [f"{NOW}-1", f"{NOW}-2", "index"]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        save_and(place, f"{NOW}-2", then=fail)

    def refuse(old: bytes | None) -> IndexChange:
        assert old is not None
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        save_and(place, f"{NOW}-2", then=lambda saving: saving.commit(refuse))
    assert place.found() == [f"{NOW}-1", "index"]


def test_files_of_other_processes_stay_after_a_commit(place: Place) -> None:
    """Files of other processes stay when they fail after the commit, and go when there is none.

    In an object store nobody can tell that there will be none: there it is left to `collect`.
    """

    def fail_late(saving: Transaction) -> None:
        with place.store().transaction(others_commit=False) as first:
            first.write([new_file(f"{NOW}-1")], sevens())
            first.commit(put("x", f"{NOW}-1", f"{NOW}-2"))
        raise ZeroDivisionError

    def fail(saving: Transaction) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        save_and(place, f"{NOW}-2", then=fail_late, others_commit=True)
    assert place.found() == [f"{NOW}-1", f"{NOW}-2", "index"]
    with pytest.raises(ZeroDivisionError):
        save_and(place, f"{NOW}-3", then=fail, others_commit=True)
    remaining = [] if place.is_local else [f"{NOW}-3"]
    assert place.found() == [f"{NOW}-1", f"{NOW}-2", *remaining, "index"]


def test_a_commit_needs_all_that_was_written(place: Place) -> None:
    save(place, "x", f"{NOW}-1")

    def then(saving: Transaction) -> None:
        del place.files[f"{NOW}-3"]
        saving.commit(put("x", f"{NOW}-2", f"{NOW}-3"))

    with pytest.raises(StorageError, match=f"{NOW}-3.* found nothing") as raised:
        save_and(place, f"{NOW}-2", f"{NOW}-3", then=then)
    assert "what was there before is untouched" in str(raised.value)
    assert place.found() == [f"{NOW}-1", "index"]


def test_threads_that_save_at_once(place: Place) -> None:
    """Each of eight keys is saved five times; none is lost, and nothing else is left."""
    together = threading.Barrier(8)

    def work(thread: int) -> None:
        for step in range(5):
            together.wait()
            save(place, str(thread), f"{NOW}-{thread}-{step}", beside=b"map")

    in_threads(work, together=together)
    items = json.loads(place.content("index") or b"")
    assert items == {str(i): [f"{NOW}-{i}-4"] for i in range(8)}
    assert place.found() == ["beside", *[f"{NOW}-{i}-4" for i in range(8)], "index"]


def test_files_of_a_killed_save_are_collected(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of a killed save are removed: at once where there are locks, else after a day."""
    store = place.store()
    with pytest.raises(FileNotFoundError, match=store.name):
        store.collect(dry_run=False)
    save(place, "x", f"{NOW}-1")
    place.put(f"{NOW}-dead", b"dead")
    place.put("mine", b"")
    if not place.is_local:
        young = store.collect(dry_run=True)
        assert young[:3] == ([], 1, 4)
        assert young.young_until is not None
        assert abs(young.young_until - time.time() - GRACE_SECONDS) < 3600
        later = time.time() + GRACE_SECONDS + 1
        monkeypatch.setattr(time, "time", lambda: later)
    assert store.collect(dry_run=True) == Garbage([f"{NOW}-dead"])
    assert f"{NOW}-dead" in place.found()
    assert store.collect(dry_run=False).names == [f"{NOW}-dead"]
    assert place.found() == [f"{NOW}-1", "index", "mine"]


def test_a_living_save_is_left_alone(place: Place) -> None:
    save(place, "x", f"{NOW}-1")
    with place.store().transaction(others_commit=False) as living:
        living.write([new_file(f"{NOW}-2")], sevens())
        save(place, "y", f"{NOW}-3")
        assert place.store().collect(dry_run=False).names == []
        living.commit(put("x", f"{NOW}-2"))
    assert place.found() == [f"{NOW}-2", f"{NOW}-3", "index"]


def test_a_mark_is_seen_where_the_place_is_the_same(place: Place) -> None:
    elsewhere = place.beside()
    with place.store().transaction(others_commit=False) as saving:
        mark = saving.create_probe()
        for other_place, expected in ((place, True), (elsewhere, False)):
            with other_place.store().transaction(others_commit=True) as other:
                assert other.sees_probe(mark, timeout_seconds=0.1) == expected
        save(place, "x", f"{NOW}-1")
        place.store().collect(dry_run=False)
        assert mark in place.found()
    assert place.found() == [f"{NOW}-1", "index"]
    if isinstance(elsewhere.where, Path):
        assert not elsewhere.where.exists()


def test_the_mark_of_a_killed_save_is_removed_after_a_day(
    objects: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(objects, "x", f"{NOW}-1")  # which tries whether the store has conditional writes
    with objects.store().transaction(others_commit=False) as saving:
        mark = saving.create_probe()
        objects.put("copy", b"")
        objects.put(mark.replace("index", "other"), b"")
        later = time.time() + GRACE_SECONDS + 1
        monkeypatch.setattr(time, "time", lambda: later)
        assert objects.store().collect(dry_run=True).names == [mark]


def test_an_answer_that_is_lost_on_the_way(objects: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index was replaced, though the store said that it failed: the data must stay."""
    save(objects, "x", f"{NOW}-1")
    replace = replace_object

    def failing(store: ObjectStore, name: str, *args: Any, **kwargs: Any) -> Tag | None:
        replace(store, name, *args, **kwargs)
        raise StorageError(5, "the connection was lost", name)

    monkeypatch.setattr("cordwood.storage.object_stores.object_transaction.replace_object", failing)
    with pytest.raises(StorageError, match="connection was lost"):
        save(objects, "x", f"{NOW}-2")
    monkeypatch.undo()
    assert json.loads(objects.content("index") or b"") == {"x": [f"{NOW}-2"]}
    assert f"{NOW}-2" in objects.found()


def test_what_lies_beside_is_the_last_saves(
    objects: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save that another overtakes after its index leaves what the other put beside."""
    replace = replace_object
    calls = 0

    def overtaken(store: ObjectStore, name: str, *args: Any, **kwargs: Any) -> Tag | None:
        nonlocal calls
        calls += 1
        if calls == 2:  # the first save has replaced the index, and comes to what lies beside
            save(objects, "y", f"{NOW}-2", beside=b"second")
        return replace(store, name, *args, **kwargs)

    monkeypatch.setattr(
        "cordwood.storage.object_stores.object_transaction.replace_object", overtaken
    )
    monkeypatch.setattr("cordwood.storage.object_stores.object_sidecars.replace_object", overtaken)
    save(objects, "x", f"{NOW}-1", beside=b"first")
    assert objects.content("beside") == b"second"
    assert sorted(json.loads(objects.content("index") or b"")) == ["x", "y"]


def test_only_what_lies_directly_there_counts(objects: Place) -> None:
    objects.put("deeper/data-0", b"")
    assert objects.store().names() == ["deeper"]
    save(objects, "x", f"{NOW}-1")
    assert objects.store().collect(dry_run=False).names == []
    assert objects.found() == [f"{NOW}-1", "deeper/data-0", "index"]
