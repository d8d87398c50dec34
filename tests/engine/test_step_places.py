"""Where steps lie: what is there, and how entries go."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
from contextlib import suppress
from pathlib import Path

import pytest

from cordwood.engine import system
from cordwood.engine.kvstore import ObjectStore
from cordwood.engine.step_places import LocalSteps, ObjectSteps, StepPlace, steps_at
from cordwood.engine.urls import parse_url
from cordwood.errors import UnsupportedFormatError
from cordwood.testing.faults.systems import CountingSystem, FailingSystem

_numbers = itertools.count()


class Root:
    """A root of steps, and a way to put files there."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder / "run"
        self.url = f"memory://tests-of-steps/{next(_numbers)}"

    def place(self) -> StepPlace:
        return steps_at(str(self.folder) if self.kind == "local" else self.url, "index")

    def put(self, name: str) -> None:
        if self.kind == "local":
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(b"1")
        else:
            self._store().start_write(name, b"1").result()

    def files(self) -> list[str]:
        if self.kind == "local":
            found = self.folder.rglob("*")
            return sorted(str(f.relative_to(self.folder)) for f in found if f.is_file())
        return self._store().names()

    def _store(self) -> ObjectStore:
        url = parse_url(self.url)
        assert url is not None
        return ObjectStore(url)


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    return Root(request.param, tmp_path)


def test_nothing_is_there(root: Root) -> None:
    place = root.place()
    assert place.entries() == {}
    assert place.files() == []
    place.sweep()
    assert place.remove([]) == []


def test_entries(root: Root) -> None:
    root.put("10/index")
    root.put("10/data")
    root.put("20/data")
    root.put("notes")
    found = root.place().entries()
    assert sorted(found) == ["10", "20"]
    assert root.place().files() == ["notes"]
    assert found["10"] is not None
    assert found["20"] is None
    assert root.place().entries() == found
    root.put("20/index")
    assert root.place().entries()["20"] is not None


def test_removal(root: Root) -> None:
    for step in (10, 20, 30):
        root.put(f"{step}/index")
        root.put(f"{step}/data")
    place = root.place()
    assert place.remove(["10", "30"]) == ["10", "30"]
    assert root.files() == ["20/data", "20/index"]
    if root.kind == "local":
        assert sorted(os.listdir(root.folder)) == ["20"]
        assert place.remove(["10", "20"]) == ["20"]  # another manager was quicker with 10


def test_a_path_and_a_url_of_a_file_are_one_place(tmp_path: Path) -> None:
    place = steps_at(tmp_path.as_uri(), "index")
    assert isinstance(place, LocalSteps)
    assert place.name == str(tmp_path)
    assert place.path_of("7") == f"{tmp_path}/7"
    assert isinstance(steps_at("memory://a", "index"), ObjectSteps)


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    root = Root("local", tmp_path)
    root.put("10/index")
    root.put("20/index")
    held = root.folder / "10" / ".index.cordwood-0123456789abcdef.tmp"
    held.write_bytes(b"")
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert root.place().remove(["10", "20"]) == ["20"]
        assert root.place().entries()["10"] is not None
    assert root.place().remove(["10"]) == ["10"]  # whoever held it has gone


def calls_of_removal(tmp_path: Path) -> list[str]:
    root = filled(tmp_path)
    counting = CountingSystem()
    with system.replaced(counting):
        root.place().remove(["10"])
    return counting.made


def filled(folder: Path) -> Root:
    root = Root("local", folder)
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
        with system.replaced(FailingSystem(number, errno.EIO)), suppress(OSError):
            root.place().remove(["10"])
        entries = root.place().entries()
        assert entries["20"] is not None
        if "10" in entries:
            assert {"10/data-1", "10/data-2", "10/index"} <= set(root.files()), call
        root.place().sweep()
        root.place().remove(["10"])
        assert root.files() == ["20/data-1", "20/data-2", "20/index"], call
        assert sorted(os.listdir(root.folder)) == ["20"], call


def test_an_empty_entry(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "notes").write_text("")
    place = steps_at(tmp_path, "index")
    for entry in ("7", "8", "9"):
        place.remove_empty(entry)
    assert os.listdir(tmp_path) == ["8"]


def test_a_pin(tmp_path: Path) -> None:
    root = filled(tmp_path)
    place = root.place()
    with place.pin("10"):
        assert place.in_use("10")
        assert not place.in_use("20")
        assert place.remove(["10", "20"]) == ["20"]
    assert not place.in_use("10")
    assert root.files() == ["10/data-1", "10/data-2", "10/index"]
    with pytest.raises(FileNotFoundError), place.pin("30"):
        pytest.fail("there is no such entry")


def test_there_are_no_pins_in_object_stores() -> None:
    place = Root("memory", Path()).place()
    assert not place.in_use("10")
    with pytest.raises(UnsupportedFormatError, match="no locks in an object store"), place.pin("1"):
        pytest.fail("nothing is pinned")
