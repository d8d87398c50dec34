"""Storage of steps: listing and removal of entries."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

import pytest

from cordwood.errors import StorageError, UnsupportedFormatError
from cordwood.storage import syscalls
from cordwood.storage.directories import scan_directory
from cordwood.storage.local_step_storage import LocalStepStorage
from cordwood.storage.locations import LocalPath, parse_location
from cordwood.storage.object_stores.object_step_storage import ObjectStepStorage
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.stored_objects import StoredObject
from cordwood.storage.open_step_storage import open_step_storage
from cordwood.storage.step_storage import Removal, StepEntry, StepStorage
from cordwood.storage.storage_protocol import NamingRules
from tests.faults.systems import CountingSystem, FailingSystem
from tests.storage.conformance import FolderFiles
from tests.storage.stores import KINDS, StoredObjects, new_url

RULES = NamingRules(
    "index",
    1 << 16,
    (),
    lambda name: name.startswith("data-"),
    lambda index: frozenset([each for each in (index or b"").decode().split() if each != "1"]),
)


class Root:
    """A root of steps, and its files: a directory, or a URL of an object store."""

    def __init__(self, where: Path | str) -> None:
        self.where = where
        self.is_local = isinstance(where, Path)
        self.contents: MutableMapping[str, bytes]
        self.contents = FolderFiles(where) if isinstance(where, Path) else StoredObjects(where)

    @property
    def folder(self) -> Path:
        assert isinstance(self.where, Path)
        return self.where

    def place(self) -> StepStorage:
        return open_step_storage(parse_location(self.where), RULES)

    def put(self, name: str, data: bytes = b"1") -> None:
        self.contents[name] = data

    def files(self) -> list[str]:
        return sorted(self.contents)


def look(place: StepStorage) -> Mapping[str, StepEntry]:
    return place.entries(lambda _: True)


@pytest.fixture(params=["local", *KINDS])
def root(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Root]:
    if request.param == "local":
        yield Root(tmp_path / "run")
    else:
        with new_url(request.param, monkeypatch) as url:
            yield Root(url)


@pytest.fixture(params=KINDS)
def objects(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Root]:
    with new_url(request.param, monkeypatch) as url:
        yield Root(url)


def test_an_empty_root_has_no_entries(root: Root) -> None:
    place = root.place()
    assert look(place) == {}
    place.remove_leftovers()
    assert place.remove([]) == Removal.empty()


def test_entries_have_a_stamp_where_their_index_is(root: Root) -> None:
    root.put("10/index")
    root.put("10/data-1")
    root.put("20/data-1")
    root.put("notes")
    entries = look(root.place())
    assert sorted(entries) == ["10", "20", "notes"]
    assert entries["10"].stamp is not None
    assert entries["20"].stamp is None
    assert [name for name, entry in entries.items() if entry.is_file] == ["notes"]
    assert look(root.place()) == entries
    root.put("20/index")
    assert look(root.place())["20"].stamp is not None
    assert list(root.place().entries(lambda name: name == "20")) == ["20"]


def test_a_stamp_changes_with_the_index(root: Root) -> None:
    root.put("10/index")
    place = root.place()
    stamp = place.stamp("10")
    assert stamp is not None
    assert look(place)["10"].stamp == stamp
    root.put("10/data-1")
    assert place.stamp("10") == stamp
    root.put("10/index", b"another")
    assert place.stamp("10") not in (None, stamp)
    assert look(place)["10"].stamp == place.stamp("10")
    assert place.stamp("20") is None


def test_an_index_without_bytes_is_none(objects: Root) -> None:
    """Saves cannot delete an index on a condition; they empty it."""
    objects.put("10/index", b"")
    objects.put("10/data-1")
    assert look(objects.place()) == {"10": StepEntry(None)}
    assert objects.place().stamp("10") is None


def test_a_linked_step_is_an_entry_and_only_its_link_is_removed(tmp_path: Path) -> None:
    root = filled(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "index").write_bytes(b"1")
    (root.folder / "30").symlink_to(tmp_path / "elsewhere")
    (root.folder / "40").symlink_to(tmp_path / "nowhere")
    place = root.place()
    entries = look(place)
    assert sorted(entries) == ["10", "20", "30"]
    assert entries["30"].is_link
    assert entries["30"].stamp is not None
    assert place.remove(["30"]).removed == ["30"]
    assert sorted(os.listdir(root.folder)) == ["10", "20", "40"]
    assert os.listdir(tmp_path / "elsewhere") == ["index"]


def test_files_are_not_removed(tmp_path: Path) -> None:
    """No step of cordwood is a file; what an interrupted deletion has renamed goes."""
    root = filled(tmp_path)
    root.put("checkpoint_5")
    assert list(root.place().remove(["checkpoint_5"]).refused) == ["checkpoint_5"]
    assert sorted(os.listdir(root.folder)) == ["10", "20", "checkpoint_5"]
    remaining = f".checkpoint_6.cordwood-{'0' * 16}.deleted"
    root.put(remaining)
    root.place().remove_leftovers()
    assert sorted(os.listdir(root.folder)) == ["10", "20", "checkpoint_5"]


def test_what_is_set_aside_lies_there_until_its_step_is_saved(root: Root) -> None:
    root.put("10/index")
    root.put("10/data-1")
    place = root.place()
    place.set_aside("10")
    place.remove_leftovers()
    assert look(place).get("10", StepEntry(None)).stamp is None
    assert any(name.endswith("/data-1") for name in root.files())
    root.put("10/index")
    place.remove_leftovers()
    if root.is_local:
        assert root.files() == ["10/index"]


def test_a_file_that_is_shared_with_a_save_is_no_use_of_a_step_that_is_finished(
    tmp_path: Path,
) -> None:
    """A save that links files shares their locks, and is seen in its own step alone."""
    root = filled(tmp_path)
    (root.folder / "30").mkdir()
    os.link(root.folder / "10" / "data-1", root.folder / "30" / "data-1")
    with (root.folder / "30" / "data-1").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert root.place().remove(["10", "30"]).removed == ["10"]
    assert root.place().remove(["30"]).removed == ["30"]


@pytest.mark.parametrize("name", ["data-1", ".index.cordwood-lock"])
def test_whoever_saves_uses_an_entry(tmp_path: Path, name: str) -> None:
    """Data files, and the lock of the index, are locked while a save goes on."""
    root = filled(tmp_path)
    root.put(f"10/{name}")
    with (root.folder / "10" / name).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert root.place().in_use("10")
        assert root.place().remove(["10"]).removed == []
    assert root.place().remove(["10"]).removed == ["10"]


POOL = ".data/00000000000000a1"


def test_a_removal_takes_what_no_other_step_refers_to(objects: Root) -> None:
    objects.put(f"{POOL}/data-a")
    objects.put(f"{POOL}/data-b")
    objects.put("10/index", f"../{POOL}/data-a ../{POOL}/data-b".encode())
    objects.put("20/index", f"../{POOL}/data-b".encode())
    place = objects.place()
    assert sorted(look(place)) == ["10", "20"]
    assert place.remove(["10"]).removed == ["10"]
    assert objects.files() == [f"{POOL}/data-b", "20/index"]
    assert place.remove(["20"]).removed == ["20"]
    assert objects.files() == []


def test_a_removal_takes_nothing_where_an_index_cannot_be_read(
    objects: Root, caplog: pytest.LogCaptureFixture
) -> None:
    """It may refer to anything."""
    objects.put(f"{POOL}/data-a")
    objects.put("10/index", f"../{POOL}/data-a".encode())
    objects.put("20/index", bytes(RULES.max_index_bytes + 1))
    place = objects.place()
    assert place.remove(["10"]).removed == ["10"]
    assert objects.files() == [f"{POOL}/data-a", "20/index"]
    assert "were not removed" in caplog.text
    assert "20/index" in caplog.text


def test_a_removal_takes_nothing_but_data_of_the_pool(objects: Root) -> None:
    """Whatever an index names: it may be hostile."""
    hostile = f"../20/index ../../other/precious ../.data/steps.json ../{POOL}/../../20/index"
    objects.put("10/index", f"{hostile} ../{POOL}/cells ../{POOL}/data-a".encode())
    for name in ("20/index", ".data/steps.json", f"{POOL}/cells", f"{POOL}/data-a"):
        objects.put(name)
    objects.place().remove(["10"])
    assert objects.files() == [f"{POOL}/cells", ".data/steps.json", "20/index"]


def test_removed_entries_are_reported(root: Root) -> None:
    for step in (10, 20, 30):
        root.put(f"{step}/index")
        root.put(f"{step}/data-1")
    place = root.place()
    assert place.remove(["10", "30"]).removed == ["10", "30"]
    assert root.files() == ["20/data-1", "20/index"]
    if root.is_local:
        assert sorted(os.listdir(root.folder)) == ["20"]
        assert place.remove(["10", "20"]).removed == ["20"]  # another manager was quicker with 10


def test_an_entry_with_what_others_wrote_stays_as_it_is(root: Root) -> None:
    for name in ("10/index", "10/data-1", "10/notes", "20/data-1", "20/.data-1.bak", "20/7/index"):
        root.put(name)
    root.put("30/index")
    before = root.files()
    result = root.place().remove(["10", "20", "30"])
    assert result.removed == ["30"]
    assert result.refused.keys() == {"10", "20"}
    assert "it holds notes, which cordwood did not write" in result.refused["10"]
    assert ".data-1.bak" in result.refused["20"]
    assert root.files() == [name for name in before if name != "30/index"]


def test_of_a_finished_entry_what_others_wrote_can_be_left(root: Root) -> None:
    for name in ("10/index", "10/data-1", "10/notes", "10/logs/1", "20/data-1", "20/notes"):
        root.put(name)
    result = root.place().remove(["10", "20"], partly=True)
    assert result.removed == ["10"]
    assert result.remaining["10"] in ("logs, notes", "logs/, notes")
    assert list(result.refused) == ["20"]
    assert root.files() == ["10/logs/1", "10/notes", "20/data-1", "20/notes"]
    root.place().remove_leftovers()
    assert root.files() == ["10/logs/1", "10/notes", "20/data-1", "20/notes"]


def test_what_comes_into_an_entry_while_it_is_removed_gets_its_name_again(tmp_path: Path) -> None:
    root = filled(tmp_path)

    class Writing(syscalls.SystemCalls):
        def replace(self, source: str, target: str) -> None:
            if source.endswith("/10"):
                (root.folder / "10" / "notes").write_text("mine")
            super().replace(source, target)

    with syscalls.override(Writing()):
        assert root.place().remove(["10"]).removed == ["10"]
    assert root.files() == ["10/notes", "20/data-1", "20/data-2", "20/index"]
    assert sorted(os.listdir(root.folder)) == ["10", "20"]


SIDECAR = b'["data-1.safetensors"]'
SIDECAR_RULES = RULES._replace(sidecars=("sidecar",))


def test_what_another_process_removes_of_a_deleted_step_is_not_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next save removes the leftovers of deletions, also of one that is still going on."""
    root = Root(tmp_path)
    for name, data in (("index", b"1"), ("sidecar", SIDECAR), ("data-1", b"1")):
        root.put(f"10/{name}", data)

    def scan(folder: str | int) -> list[os.DirEntry[str]]:
        if not isinstance(folder, int):
            return scan_directory(folder)
        os.unlink("index", dir_fd=folder)
        entries = scan_directory(folder)
        for name in ("sidecar", "data-1"):
            os.unlink(name, dir_fd=folder)
        return entries

    monkeypatch.setattr("cordwood.storage.local_step_storage.scan_directory", scan)
    place = LocalStepStorage(LocalPath(str(tmp_path)), SIDECAR_RULES)
    assert place.remove(["10"]).removed == ["10"]
    assert [name for name in os.listdir(tmp_path) if not name.endswith("lock")] == []
    assert caplog.text == ""


def test_of_a_file_system_that_lists_no_kinds_what_was_removed_is_not_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = filled(tmp_path)

    class Entry:  # without a kind, as os.DirEntry answers for what is gone
        name = "data-9"

        def is_file(self, **_: bool) -> bool:
            return False

        def stat(self, **_: bool) -> os.stat_result:
            raise FileNotFoundError

    def scan(folder: str | int) -> list[object]:
        return [*scan_directory(folder), *([Entry()] if isinstance(folder, int) else [])]

    monkeypatch.setattr("cordwood.storage.local_step_storage.scan_directory", scan)
    assert root.place().remove(["10"]).removed == ["10"]
    assert not (root.folder / "10").exists()


def test_what_another_process_removes_from_a_store_is_not_somebody_elses(
    objects: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects.put("10/sidecar", SIDECAR)
    objects.put("10/data-1")
    read = ObjectStore.read

    def read_late(self: ObjectStore, name: str, *, limit_bytes: int) -> StoredObject:
        del objects.contents["10/sidecar"]
        return read(self, name, limit_bytes=limit_bytes)

    monkeypatch.setattr(ObjectStore, "read", read_late)
    result = open_step_storage(parse_location(objects.where), SIDECAR_RULES).remove(["10"])
    assert (result.removed, result.refused) == (["10"], {})
    assert objects.files() == []


def test_what_others_wrote_stays_in_what_an_interrupted_deletion_renamed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = filled(tmp_path)
    hidden = f".5.cordwood-{'0' * 16}.deleted"
    for name in ("index", "data-1", "notes"):
        root.put(f"{hidden}/{name}")
    place = root.place()
    for _ in range(2):
        place.remove_leftovers()
    assert os.listdir(root.folder / hidden) == ["notes"]
    assert caplog.text.count("it holds notes, which cordwood did not write") == 1


def test_one_entry_that_cannot_be_removed_does_not_keep_the_others(tmp_path: Path) -> None:
    root = filled(tmp_path)

    class Refusing(syscalls.SystemCalls):
        def replace(self, source: str, target: str) -> None:
            if source.endswith("/10"):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), source)
            super().replace(source, target)

    with syscalls.override(Refusing()):
        result = root.place().remove(["10", "20"])
    assert result.removed == ["20"]
    assert result.failed["10"].errno == errno.EPERM
    assert root.files() == ["10/data-1", "10/data-2", "10/index"]


def test_an_empty_directory_and_links_to_what_is_no_step_are_anybodys(tmp_path: Path) -> None:
    root = filled(tmp_path)
    (root.folder / "5").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (root.folder / "6").symlink_to(tmp_path / "elsewhere")
    (root.folder / "10" / "data-3").symlink_to(tmp_path / "elsewhere")
    result = root.place().remove(["5", "6", "10"])
    assert result.removed == []
    assert list(result.refused) == ["6", "10"]
    assert sorted(os.listdir(root.folder)) == ["10", "20", "5", "6"]


def test_a_path_and_a_url_of_a_file_are_one_place(tmp_path: Path) -> None:
    place = open_step_storage(parse_location(tmp_path.as_uri()), RULES)
    assert isinstance(place, LocalStepStorage)
    assert place.location == LocalPath(str(tmp_path))
    assert place.location_of("7") == LocalPath(f"{tmp_path}/7")
    assert isinstance(open_step_storage(parse_location("memory://a"), RULES), ObjectStepStorage)


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    root = Root(tmp_path / "run")
    root.put("10/index")
    root.put("20/index")
    held = root.folder / "10" / ".index.cordwood-0123456789abcdef.tmp"
    held.write_bytes(b"")
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert root.place().remove(["10", "20"]).removed == ["20"]
        assert look(root.place())["10"].stamp is not None
    assert root.place().remove(["10"]).removed == ["10"]  # whoever held it has gone


def calls_of_removal(tmp_path: Path) -> list[str]:
    root = filled(tmp_path)
    counting = CountingSystem()
    with syscalls.override(counting):
        root.place().remove(["10"])
    return counting.made


def filled(folder: Path) -> Root:
    root = Root(folder / "run")
    for step in (10, 20):
        root.put(f"{step}/index")
        root.put(f"{step}/data-1")
        root.put(f"{step}/data-2")
    return root


def test_a_removal_that_fails_anywhere_leaves_whole_steps(tmp_path: Path) -> None:
    made = calls_of_removal(tmp_path / "count")
    assert made.index("replace") < made.index("fsync") < len(made) - made[::-1].index("unlink")
    for number, call in enumerate(made, start=1):
        root = filled(tmp_path / str(number))
        with syscalls.override(FailingSystem(number, errno.EIO)), suppress(OSError):
            root.place().remove(["10"])
        entries = look(root.place())
        assert entries["20"].stamp is not None
        if "10" in entries:
            assert {"10/data-1", "10/data-2", "10/index"} <= set(root.files()), call
        root.place().remove_leftovers()
        root.place().remove(["10"])
        assert root.files() == ["20/data-1", "20/data-2", "20/index"], call
        assert sorted(os.listdir(root.folder)) == ["20"], call


def test_only_an_empty_entry_is_removed_as_empty(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "notes").write_text("")
    place = open_step_storage(parse_location(tmp_path), RULES)
    for entry in ("7", "8", "9"):
        place.remove_empty(entry)
    assert os.listdir(tmp_path) == ["8"]


def test_a_pinned_entry_is_not_removed(tmp_path: Path) -> None:
    root = filled(tmp_path)
    place = root.place()
    with place.pin("10"):
        assert place.in_use("10")
        assert not place.in_use("20")
        assert place.remove(["10", "20"]).removed == ["20"]
    assert not place.in_use("10")
    assert root.files() == ["10/data-1", "10/data-2", "10/index"]
    with pytest.raises(FileNotFoundError), place.pin("30"):
        pytest.fail("there is no such entry")


def test_there_are_no_pins_in_object_stores() -> None:
    place = open_step_storage(parse_location("memory://tests-of-steps/pins"), RULES)
    assert not place.in_use("10")
    with pytest.raises(UnsupportedFormatError, match="no locks in an object store"), place.pin("1"):
        pytest.fail("nothing is pinned")


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_there_are_no_pins_in_file_systems_without_locks(tmp_path: Path, code: int) -> None:
    class Lockless(syscalls.SystemCalls):
        def flock(self, fd: int, operation: int) -> None:
            raise OSError(code, os.strerror(code))

    place = filled(tmp_path).place()
    before = sorted(os.listdir(tmp_path / "run/10"))
    with (
        syscalls.override(Lockless()),
        pytest.raises(UnsupportedFormatError, match="no locks to pin a step by"),
        place.pin("10"),
    ):
        pytest.fail("nothing is pinned")
    assert sorted(os.listdir(tmp_path / "run/10")) == before


def test_a_lock_of_the_root_that_somebody_holds_is_not_waited_for_beyond_the_timeout(
    tmp_path: Path,
) -> None:
    folder = filled(tmp_path).folder
    place = open_step_storage(parse_location(folder), RULES, timeout_seconds=0.05)
    fd = os.open(folder / ".steps.cordwood-lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    before = place.entries(lambda _: True)
    with pytest.raises(StorageError, match=r"waited 0.05 s for this lock"):
        place.remove(["10"])
    with pytest.raises(StorageError, match=r"waited 0.05 s for this lock"):
        place.set_aside("10")
    with pytest.raises(StorageError, match=r"waited 0.05 s for this lock"), place.pin("10"):
        pytest.fail("nothing is pinned")
    assert place.entries(lambda _: True) == before
    os.close(fd)
    assert place.remove(["10"]).removed == ["10"]
