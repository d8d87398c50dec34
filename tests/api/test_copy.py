"""copy: between all places, checked, safe to interrupt, and resumable."""

from __future__ import annotations

import errno
import itertools
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager, EverySteps
from cordwood.errors import (
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    NotACheckpointError,
    StepError,
    StorageError,
    UnsupportedFormatError,
)
from cordwood.formats.packs import copied_files
from cordwood.formats.packs.cordwood_json import decode_index, encode_index
from cordwood.storage.locations import LocalPath, Url, parse_location
from cordwood.storage.object_stores import object_uploads
from cordwood.storage.object_stores.list_objects import object_names
from cordwood.storage.object_stores.multipart_upload import upload_in_parts
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.testing import assert_trees_equal
from cordwood.threads.stop_check import check_stop
from tests.children import run_python
from tests.storage.web_stores import web_store

MIB = 1 << 20
_numbers = itertools.count()

Place = Callable[[str], str]  # returns a path or URL for a name


def in_memory() -> str:
    return f"memory://copies/place-{next(_numbers)}"


KINDS = ["local", "memory", "s3", "gs"]
PAIRS = [
    *itertools.product(["local", "memory"], repeat=2),
    *itertools.product(["s3", "gs"], ["local", "memory"]),
    *itertools.product(["local", "memory"], ["s3", "gs"]),
    *[("s3", "s3"), ("gs", "gs")],
]


@pytest.fixture(params=PAIRS, ids="-".join)
def places(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Place, Place]]:
    """Yield functions that return a path or URL for a name: of a source, and of a destination."""
    with ExitStack() as stack:
        for kind in sorted({*request.param} & {"s3", "gs"}):
            stack.enter_context(web_store(kind, monkeypatch))
        kinds = zip(request.param, ("source", "destination"), strict=True)
        roots = [new_place(kind, tmp_path / name) for kind, name in kinds]
        yield roots[0], roots[1]


@pytest.fixture
def source(places: tuple[Place, Place]) -> Place:
    return places[0]


@pytest.fixture
def destination(places: tuple[Place, Place]) -> Place:
    return places[1]


def new_place(kind: str, folder: Path) -> Place:
    """Return paths below a directory, or URLs below a new URL."""
    roots = {"local": str(folder), "memory": in_memory()}
    root = roots.get(kind, f"{kind}://bucket/{folder.name}")
    return lambda name: f"{root}/{name}"


def tree(number: int = 0) -> dict[str, Any]:
    return {
        "frozen": np.arange(40_000.0),
        "x": np.full((30, 40), number, np.float32),
        "empty": np.zeros((0, 3)),
        "name": f"step {number}",
    }


def save_run(root: str, steps: int = 3, values: Callable[[int], Any] = tree) -> None:
    with CheckpointManager(root, save=EverySteps(1)) as manager:
        for step in range(steps):
            manager.save(step, values(step))


def store_of(url: str) -> ObjectStore:
    parsed = parse_location(url)
    assert isinstance(parsed, Url)
    return ObjectStore(parsed)


def objects(url: str) -> dict[str, bytes]:
    store = store_of(url)
    return {name: store.read(name, limit_bytes=1 << 30).data or b"" for name in object_names(store)}


def files(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def data_file(folder: Path) -> Path:
    return max(folder.glob("data-*"), key=lambda path: path.stat().st_size)


# One step


def test_a_copy_between_any_two_places_is_equal_and_made_once(
    source: Place, destination: Place
) -> None:
    cordwood.save(source("7"), tree(), metadata={"a": "b"})
    cordwood.save(source("7"), {"y": np.ones(3)}, prefix="other")
    report = cordwood.copy(source("7"), destination("7"))
    assert (report.steps, report.files, report.skipped_bytes) == (("",), 2, 0)
    assert_trees_equal(cordwood.load(destination("7"), prefix=""), tree())
    with cordwood.open(destination("7"), prefix="") as checkpoint:
        assert checkpoint.metadata == {"a": "b"}
    assert cordwood.verify(destination("7")) == cordwood.verify(source("7"))._replace(
        path=destination("7")
    )
    again = cordwood.copy(source("7"), destination("7"))
    assert (again.steps, again.steps_there, again.files) == ((), ("",), 0)


def test_the_files_are_those_of_the_source(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", tree())
    report = cordwood.copy(tmp_path / "a", tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert report.copied_bytes == sum(
        len(data) for name, data in files(tmp_path / "a").items() if name.startswith("data-")
    )
    assert "1 file" in str(report)
    assert "copied" in report._repr_html_()


def test_a_step_of_a_pool_is_complete_by_itself(tmp_path: Path) -> None:
    run, alone = in_memory(), in_memory()
    save_run(run)
    cordwood.copy(f"{run}/2", alone)
    cordwood.copy(f"{run}/2", tmp_path / "2")
    assert not any("/" in name for name in objects(alone))
    for name in object_names(store_of(run)):
        store_of(run).delete([name])
    for path in (alone, tmp_path / "2"):
        assert_trees_equal(cordwood.load(path), tree(2))
        cordwood.verify(path)


def test_https_is_no_destination(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", tree())
    with pytest.raises(UnsupportedFormatError, match="can only be read"):
        cordwood.copy(tmp_path / "a", "https://127.0.0.1:1/a")
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


@pytest.mark.parametrize("places", [("local", kind) for kind in KINDS], indirect=True)
def test_another_checkpoint_is_never_replaced(destination: Place, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", tree(1))
    cordwood.save(destination("b"), tree(2))
    with pytest.raises(FileExistsError, match="copy replaces nothing"):
        cordwood.copy(tmp_path / "a", destination("b"))
    assert_trees_equal(cordwood.load(destination("b")), tree(2))


def test_a_checkpoint_that_comes_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cordwood.save(tmp_path / "a", tree(1))

    def write(*arguments: Any) -> None:
        monkeypatch.undo()
        copied_files.write_files(*arguments)
        cordwood.save(tmp_path / "b", tree(2))

    monkeypatch.setattr("cordwood.formats.packs.copied_files.write_files", write)
    with pytest.raises(FileExistsError, match="copy replaces nothing"):
        cordwood.copy(tmp_path / "a", tmp_path / "b")
    assert_trees_equal(cordwood.load(tmp_path / "b"), tree(2))


def test_a_foreign_directory_is_refused(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", tree())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("mine")
    with pytest.raises(NotACheckpointError, match=r"notes\.txt"):
        cordwood.copy(tmp_path / "a", tmp_path / "b")
    assert [each.name for each in (tmp_path / "b").iterdir()] == ["notes.txt"]


def test_a_step_does_not_become_another_step(tmp_path: Path) -> None:
    save_run(str(tmp_path / "run"))
    with pytest.raises(StepError, match=r"is step 1 .* taken for step 9"):
        cordwood.copy(tmp_path / "run" / "1", tmp_path / "9")
    cordwood.copy(tmp_path / "run" / "1", tmp_path / "best")
    assert not (tmp_path / "9").exists()


@pytest.mark.parametrize("places", [("local", kind) for kind in KINDS], indirect=True)
def test_a_step_is_not_copied_onto_a_run(tmp_path: Path, destination: Place) -> None:
    """The message has the command that copies it into the run."""
    save_run(str(tmp_path / "run"))
    target = destination("other run")
    cordwood.copy(tmp_path / "run", target)
    cordwood.copy(tmp_path / "run" / "2", tmp_path / "best")
    cordwood.save(tmp_path / "7", tree())
    cordwood.save(tmp_path / "mine", tree())
    for name, step in {"run/1": "1", "best": "2", "7": "7", "mine": "STEP"}.items():
        command = f"cordwood copy {tmp_path}/{name} '{target}/{step}'"
        with pytest.raises(NotACheckpointError, match=r"is a directory of steps \(0, 1, 2\)") as e:
            cordwood.copy(tmp_path / name, target)
        assert str(e.value).endswith(f"copy it to a step there: {command}")
    cordwood.copy(tmp_path / "7", f"{target}/7")
    assert_trees_equal(cordwood.load(f"{target}/7"), tree())


@pytest.mark.parametrize(("a", "b"), [("a", "a"), ("a", "a/b"), ("a/b", "a")])
def test_a_place_within_the_other(a: str, b: str, tmp_path: Path) -> None:
    for root in (str(tmp_path), in_memory()):
        cordwood.save(f"{root}/{a}", tree())
        with pytest.raises(ValueError, match="within the other"):
            cordwood.copy(f"{root}/{a}", f"{root}/{b}")


@pytest.mark.parametrize("places", [(kind, "local") for kind in KINDS], indirect=True)
def test_a_copy_of_nothing_leaves_nothing(source: Place, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cordwood.copy(source("nothing"), tmp_path / "b")
    assert not (tmp_path / "b").exists()


# Damage and hostile indexes


@pytest.mark.parametrize("places", [("local", kind) for kind in KINDS], indirect=True)
def test_damage_in_the_source_stops_the_copy(destination: Place, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"w": np.arange(2.5 * MIB, dtype=np.uint8)})
    path = data_file(tmp_path / "a")
    damage(path)
    start = path.stat().st_size - int(2.5 * MIB) + 2 * MIB
    with pytest.raises(CorruptionError, match=rf"{path.name}: bytes {start} to "):
        cordwood.copy(tmp_path / "a", destination("b"))
    with pytest.raises(FileNotFoundError):
        cordwood.load(destination("b"))
    with pytest.raises(FileNotFoundError):
        cordwood.gc(destination("b"))  # nothing is left


def test_damage_in_a_header_or_the_index_stops_the_copy(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", tree())
    for name, at in ((data_file(tmp_path / "a").name, 50), ("cordwood.json", 200)):
        path = tmp_path / "a" / name
        before = path.read_bytes()
        data = bytearray(before)
        data[at] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptionError, match=name):
            cordwood.copy(tmp_path / "a", tmp_path / "b")
        assert not (tmp_path / "b").exists()
        path.write_bytes(before)


def renamed(index: bytes, name: Callable[[str], str]) -> bytes:
    items = decode_index(index)
    for item in items.values():
        for row in item["files"]:
            row[0] = name(row[0])
    return encode_index(items)


@pytest.mark.parametrize(
    "change",
    [
        lambda _: "../../../etc/passwd",
        lambda name: f"../{name}",
        lambda name: f"../.data/../{name}",
        lambda name: f"/tmp/{name}",
        lambda name: f"{name}/../x",
        lambda _: "cordwood.json",
    ],
)
def test_hostile_names_are_refused(change: Callable[[str], str], tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", tree())
    index = tmp_path / "a" / "cordwood.json"
    index.write_bytes(renamed(index.read_bytes(), change))
    with pytest.raises(FormatError, match="no name of a data file"):
        cordwood.copy(tmp_path / "a", tmp_path / "b" / "c")
    assert not (tmp_path / "b").exists()


def test_two_files_that_would_have_one_name_are_refused(tmp_path: Path) -> None:
    root = in_memory()
    cordwood.save(f"{root}/1", tree())
    cordwood.save(f"{root}/1", tree(), prefix="other")
    store = store_of(f"{root}/1")
    pools = itertools.count()
    name = f"data-{'0' * 16}-0-0.safetensors"
    index = store.read("cordwood.json", limit_bytes=MIB).data
    assert index is not None
    store.write("cordwood.json", renamed(index, lambda _: f"../.data/{next(pools):016x}/{name}"))
    with pytest.raises(FormatError, match="two files"):
        cordwood.copy(f"{root}/1", tmp_path / "b")


# Interrupted copies


def test_a_failed_copy_copies_only_the_missing_files_when_repeated(tmp_path: Path) -> None:
    values = {str(i): np.full(50_000, i, np.uint8) for i in range(9)}
    cordwood.save(tmp_path / "a", values, max_shard_bytes=100_000)
    names = sorted(each.name for each in (tmp_path / "a").glob("data-*"))
    assert len(names) > 2
    path = tmp_path / "a" / names[-1]
    whole = path.read_bytes()
    damage(path)
    for target in (str(tmp_path / "b"), in_memory()):
        path.write_bytes(whole)
        damage(path)
        with pytest.raises(CorruptionError):
            cordwood.copy(tmp_path / "a", target)
        with pytest.raises(FileNotFoundError):
            cordwood.load(target)
        path.write_bytes(whole)
        report = cordwood.copy(tmp_path / "a", target)
        assert 0 < report.files < len(names)
        assert report.skipped_bytes > 0
        assert_trees_equal(cordwood.load(target), values)


def test_a_copy_removes_what_a_killed_one_left_beside_a_whole_file(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", tree())
    cordwood.copy(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "cordwood.json").unlink()
    (tmp_path / "b" / "model.safetensors.index.json").unlink()
    temporary = tmp_path / "b" / f".{data_file(tmp_path / 'b').name}.cordwood-{'0' * 16}.tmp"
    temporary.write_bytes(b"killed")
    (tmp_path / "b" / f".notes.cordwood-{'0' * 16}.tmp").write_bytes(b"mine")
    assert cordwood.copy(tmp_path / "a", tmp_path / "b").files == 0
    assert [each.name[:6] for each in (tmp_path / "b").glob(".*")] == [".notes"]


def test_gc_removes_an_interrupted_copy(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", tree())
    cordwood.copy(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "cordwood.json").unlink()
    (tmp_path / "b" / "model.safetensors.index.json").unlink()
    name = data_file(tmp_path / "b").name
    temporary = tmp_path / "b" / f".{name}.cordwood-{'0' * 16}.tmp"
    temporary.write_bytes(b"killed")
    (tmp_path / "b" / f".notes.cordwood-{'0' * 16}.tmp").write_bytes(b"mine")
    assert len(cordwood.gc(tmp_path / "b")) == 2
    assert [each.name[:6] for each in (tmp_path / "b").iterdir()] == [".notes"]


def save_two_days_ago(path: str, run: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save a checkpoint, or a run of two steps, whose data files have old names."""
    began = time.time() - 48 * 3600
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: began)
        if run:
            save_run(path, 2)
        else:
            cordwood.save(path, tree())


def call_after_data_files(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a function each time `copy` has written data files, before it writes an index."""
    write = copied_files.write_files

    def write_files(*args: Any) -> None:
        write(*args)
        call()

    monkeypatch.setattr("cordwood.formats.packs.copied_files.write_files", write_files)


@pytest.mark.parametrize("places", [("local", kind) for kind in KINDS], indirect=True)
@pytest.mark.parametrize("run", [False, True], ids=["step", "run"])
def test_gc_of_the_destination_of_old_steps(
    run: bool,
    tmp_path: Path,
    destination: Place,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A store tells when the copy was written, whatever the save id in its name says."""
    source, target = str(tmp_path / "a"), destination("b")
    save_two_days_ago(source, run, monkeypatch)
    is_local = isinstance(parse_location(target), LocalPath)
    steps = ("/0", "/1") if run else ("",)
    calls = itertools.count()

    def collect() -> None:
        for step in steps if is_local and next(calls) < 2 else ():
            if Path(f"{target}{step}").exists():
                cordwood.gc(f"{target}{step}")
        if not is_local:
            assert cordwood.gc(target) == []

    call_after_data_files(collect, monkeypatch)
    assert len(cordwood.copy(source, target).steps) == len(steps)
    for step in steps:
        assert_trees_equal(cordwood.load(f"{target}{step}"), cordwood.load(f"{source}{step}"))
    assert is_local == ("are copied again" in caplog.text)


def test_gc_of_the_destination_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cordwood.save(tmp_path / "a", tree())
    call_after_data_files(lambda: cordwood.gc(tmp_path / "b"), monkeypatch)
    with pytest.raises(StorageError, match=r"removed 3 times .* gc, or a manager .* copy again"):
        cordwood.copy(tmp_path / "a", tmp_path / "b")
    monkeypatch.undo()
    assert cordwood.copy(tmp_path / "a", tmp_path / "b").steps == ("",)


def test_gc_of_the_destination_of_a_copy_that_goes_on_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with web_store("s3", monkeypatch) as web:
        cordwood.save(tmp_path / "a", tree())
        web.age_seconds = 48 * 3600
        cordwood.copy(tmp_path / "a", f"{web.url}/b")
        web.age_seconds = 0
        for name in ("cordwood.json", "model.safetensors.index.json"):
            del web.objects[f"b/{name}"]
        removed: list[str] = []

        def collect() -> None:
            if not removed:
                removed.extend(cordwood.gc(f"{web.url}/b"))

        call_after_data_files(collect, monkeypatch)
        assert cordwood.copy(tmp_path / "a", f"{web.url}/b").files > 0
        assert_trees_equal(cordwood.load(f"{web.url}/b"), tree())


def test_files_that_are_there_are_checked(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", tree())
    cordwood.copy(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "cordwood.json").unlink()
    (tmp_path / "b" / "model.safetensors.index.json").unlink()
    damage(data_file(tmp_path / "b"))
    assert cordwood.copy(tmp_path / "a", tmp_path / "b").files == 1
    cordwood.verify(tmp_path / "b")


@pytest.mark.parametrize("places", [("local", kind) for kind in KINDS], indirect=True)
def test_verify_finds_and_mends_damage(destination: Place, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", tree())
    target = destination("b")
    cordwood.copy(tmp_path / "a", target)
    name = data_file(tmp_path / "a").name
    data = bytearray((tmp_path / "a" / name).read_bytes())
    data[-1] ^= 1
    if isinstance(parse_location(target), LocalPath):
        Path(target, name).write_bytes(data)
    else:
        store_of(target).write(name, bytes(data))
    assert cordwood.copy(tmp_path / "a", target).files == 0
    with pytest.raises(CorruptionError):
        cordwood.verify(target)
    assert cordwood.copy(tmp_path / "a", target, verify=True).files == 1
    cordwood.verify(target)
    assert cordwood.copy(tmp_path / "a", target, verify=True).files == 0


def test_a_damaged_copy_and_a_damaged_source(tmp_path: Path) -> None:
    """An object of the right size must not hide the error of the source."""
    cordwood.save(tmp_path / "a", tree())
    target = in_memory()
    cordwood.copy(tmp_path / "a", target)
    path = data_file(tmp_path / "a")
    damage(path)
    store_of(target).write(path.name, path.read_bytes())
    with pytest.raises(CorruptionError, match=str(path)):
        cordwood.copy(tmp_path / "a", target, verify=True)


KILLS = """
    import os, shutil, sys
    import cordwood
    from cordwood.storage import syscalls
    from tests.faults.systems import FAULT_STATUS, ExitingSystem

    source, target, torn = sys.argv[1], sys.argv[2], sys.argv[3] == "torn"
    expected = {step: cordwood.load(f"{source}/{step}") for step in os.listdir(source)}
    number = 0
    while True:
        number += 1
        pid = os.fork()
        if pid == 0:
            try:
                with syscalls.override(ExitingSystem(number, torn=torn)):
                    cordwood.copy(source, target)
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, FAULT_STATUS), status
        for step in expected:
            if os.path.exists(f"{target}/{step}/cordwood.json"):
                cordwood.verify(f"{target}/{step}")
        cordwood.copy(source, target)
        for step in expected:
            cordwood.gc(f"{target}/{step}")
        for step, tree in expected.items():
            cordwood.testing.assert_trees_equal(cordwood.load(f"{target}/{step}"), tree)
            cordwood.verify(f"{target}/{step}")
            rest = [n for n in os.listdir(f"{target}/{step}") if n.startswith(".")]
            assert not rest, (number, rest)
        shutil.rmtree(target)
        if status == 0:
            break
    print(number)
"""


@pytest.mark.parametrize("torn", ["whole", "torn"])
def test_a_copy_that_is_killed_at_any_call(torn: str, tmp_path: Path) -> None:
    save_run(str(tmp_path / "run"), 2, lambda step: {"f": np.arange(9000.0), "x": [step] * 2})
    calls = run_python(KILLS, str(tmp_path / "run"), str(tmp_path / "copy"), torn)
    assert int(calls) > 30


@pytest.mark.parametrize("takes_effect", [False, True])
def test_a_request_that_fails(takes_effect: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever request fails, there is no checkpoint or a whole one, and the next call copies."""
    run = in_memory()
    values = {"w": np.arange(9 * MIB, dtype=np.uint8), "x": np.ones(5)}
    save_run(run, 2, lambda step: {**values, "step": step})
    real = ObjectStore.ask, upload_in_parts
    for number in itertools.count(1):
        target = in_memory()
        calls = itertools.count(1)

        def failing(call: Callable[..., Any], *, at: int = number, n: Any = calls) -> Any:
            def ask(store: ObjectStore, *arguments: Any, **options: Any) -> Any:
                fails = next(n) == at
                result = None if fails and not takes_effect else call(store, *arguments, **options)
                if fails:
                    raise StorageError(errno.EIO, "the connection ended")
                return result

            return ask

        monkeypatch.setattr(ObjectStore, "ask", failing(real[0]))
        monkeypatch.setattr(object_uploads, "upload_in_parts", failing(real[1]))
        ended = True
        try:
            cordwood.copy(run, target)
        except StorageError:
            ended = False
        monkeypatch.undo()
        for step in (0, 1):
            if store_of(f"{target}/{step}").size_of("cordwood.json"):
                cordwood.verify(f"{target}/{step}")
        cordwood.copy(run, target)
        for step in (0, 1):
            assert_trees_equal(cordwood.load(f"{target}/{step}"), {**values, "step": step})
        if ended and next(calls) <= number:
            break
    assert number > 10


def test_ctrl_c_ends_a_copy_and_the_next_one_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {str(i): np.full(50_000, i, np.uint8) for i in range(9)}
    cordwood.save(tmp_path / "a", values, max_shard_bytes=100_000)
    read = copied_files._FileCopy._read_into
    calls = itertools.count()

    def interrupted(self: Any, start: int, target: memoryview) -> None:
        if next(calls) == 3:
            signal.raise_signal(signal.SIGINT)
            while True:  # until the main thread has noticed
                check_stop()
                time.sleep(0.01)
        read(self, start, target)

    for target in (str(tmp_path / "b"), in_memory()):
        calls = itertools.count()
        monkeypatch.setattr(copied_files._FileCopy, "_read_into", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cordwood.copy(tmp_path / "a", target)
        monkeypatch.undo()
        with pytest.raises(FileNotFoundError):
            cordwood.load(target)
        cordwood.copy(tmp_path / "a", target)
        assert_trees_equal(cordwood.load(target), values)


# Runs


def test_a_run_between_two_places(source: Place, destination: Place) -> None:
    save_run(source("run"))
    report = cordwood.copy(source("run"), destination("run"))
    assert report.steps == ("0", "1", "2")
    with CheckpointManager(destination("run"), save=EverySteps(1)) as manager:
        assert manager.latest() == 2
        assert manager.save(3, tree(3))
    for step in range(3):
        assert_trees_equal(cordwood.load(destination(f"run/{step}")), tree(step))
        cordwood.verify(destination(f"run/{step}"))
    again = cordwood.copy(source("run"), destination("run"))
    assert (again.steps, again.steps_there, again.files) == ((), ("0", "1", "2"), 0)
    save_run(source("other"), 2, lambda step: tree(step + 1))
    with pytest.raises(FileExistsError, match=r"run/[01]: .*copy replaces nothing"):
        cordwood.copy(source("other"), destination("run"))


def shared_run(root: str) -> int:
    """Save a run of three steps that share a file; return the size of that."""
    save_run(root, 3, lambda step: {"frozen": np.arange(200_000.0), "x": np.full(50, step)})
    return 1_600_000


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_shared_files_are_copied_once(kind: str, tmp_path: Path) -> None:
    run, url = new_place(kind, tmp_path / "source")("run"), in_memory()
    shared = shared_run(run)
    for target in (str(tmp_path / "copy"), url):
        report = cordwood.copy(run, target)
        assert shared < report.copied_bytes < 1.1 * shared
    data = {name for name in objects(url) if "data-" in name}
    assert len(data) == 3
    assert all(name.startswith(".data/") for name in data)
    links = [data_file(tmp_path / "copy" / step).stat() for step in "012"]
    assert len({each.st_ino for each in links}) == 1


def test_a_copied_pool_goes_on(tmp_path: Path) -> None:
    """The digests by which a later save refers to older objects are copied with them."""
    run, target = in_memory(), in_memory()
    shared_run(run)
    cordwood.copy(run, target)
    assert objects(target) == {
        name: data for name, data in objects(run).items() if name in objects(target)
    }
    before = set(objects(target))
    with CheckpointManager(target, save=EverySteps(1)) as manager:
        manager.save(3, {"frozen": np.arange(200_000.0), "x": np.full(50, 3)})
    added = {name: data for name, data in objects(target).items() if name not in before}
    assert sum(map(len, added.values())) < 100_000


def test_later_steps_are_added(tmp_path: Path) -> None:
    for target in (str(tmp_path / "copy"), in_memory()):
        root = tmp_path / f"run-{next(_numbers)}"
        with CheckpointManager(root, save=EverySteps(1)) as manager:
            for step in range(4):
                manager.save(step, {"f": np.arange(200_000.0), "x": np.full(50, step)})
                manager.wait()
                report = cordwood.copy(root, target)
                assert report.steps == (str(step),)
                assert (report.copied_bytes < 100_000) == (step > 0)
        assert_trees_equal(cordwood.load(f"{target}/3")["x"], np.full(50, 3))


def test_an_unfinished_step_is_not_copied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_run(str(tmp_path / "run"))
    (tmp_path / "run" / "1" / "cordwood.json").unlink()
    assert cordwood.copy(tmp_path / "run", tmp_path / "copy").steps == ("0", "2")
    assert "not finished" in caplog.text


def test_a_run_without_a_finished_step(tmp_path: Path) -> None:
    save_run(str(tmp_path / "run"), 1)
    for name in ("cordwood.json", "model.safetensors.index.json"):
        (tmp_path / "run" / "0" / name).unlink()
    with pytest.raises(IncompleteCheckpointError, match="none of its steps"):
        cordwood.copy(tmp_path / "run", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_step_that_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for run in (str(tmp_path / "run"), in_memory()):
        save_run(run)
        write = copied_files.write_files

        def deleting(
            origin: Any, *arguments: Any, run: str = run, write: Callable[..., None] = write
        ) -> None:
            if origin.name.endswith("/1"):
                with CheckpointManager(run, save=EverySteps(1)) as manager:
                    manager.delete(1)
            write(origin, *arguments)

        monkeypatch.setattr("cordwood.formats.packs.copied_files.write_files", deleting)
        target = tmp_path / f"copy-{next(_numbers)}"
        assert cordwood.copy(run, target).steps == ("0", "2")
        assert "deleted while it was copied" in caplog.text
        monkeypatch.undo()
        caplog.clear()


def test_a_checkpoint_that_is_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cordwood.save(tmp_path / "a", tree(1))
    write = copied_files.write_files

    def replacing(*arguments: Any) -> None:
        monkeypatch.undo()
        cordwood.save(tmp_path / "a", tree(2))
        write(*arguments)

    monkeypatch.setattr("cordwood.formats.packs.copied_files.write_files", replacing)
    cordwood.copy(tmp_path / "a", tmp_path / "b")
    assert_trees_equal(cordwood.load(tmp_path / "b"), tree(2))


def test_a_run_is_not_copied_into_a_checkpoint(tmp_path: Path) -> None:
    save_run(str(tmp_path / "run"))
    cordwood.save(tmp_path / "b", tree())
    with pytest.raises(NotACheckpointError, match="is a directory of steps"):
        cordwood.copy(tmp_path / "run", tmp_path / "b")


def test_steps_of_other_tools_are_refused_before_anything_is_copied(tmp_path: Path) -> None:
    save_run(str(tmp_path / "run"))
    cordwood.save(tmp_path / "run" / "9", tree(), format="zarr")
    with pytest.raises(UnsupportedFormatError, match=r"9 .*'zarr'.*cordwood\.convert"):
        cordwood.copy(tmp_path / "run", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


# Other formats, single files


@pytest.mark.parametrize("values", [{"x": np.ones(3)}, [np.ones(3), np.ones(2)]], ids=type)
def test_other_directories_are_refused(values: Any, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", values, format="zarr")
    with pytest.raises(UnsupportedFormatError, match=r"cordwood\.convert"):
        cordwood.copy(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("suffix", [".safetensors", ".msgpack", ".msgpack.zst"])
def test_a_single_file_is_copied_and_never_replaced(suffix: str, tmp_path: Path) -> None:
    source, target = tmp_path / f"a{suffix}", tmp_path / "folder" / f"b{suffix}"
    cordwood.save(source, {"x": np.arange(9000.0)})
    reports: list[Any] = []
    report = cordwood.copy(source, target, progress=reports.append)
    assert (report.files, report.copied_bytes) == (1, source.stat().st_size)
    assert reports[-1].done_bytes == reports[-1].total_bytes >= report.copied_bytes
    assert source.read_bytes() == target.read_bytes()
    assert cordwood.copy(source, target).files == 0
    cordwood.save(target, {"x": np.ones(3)})
    with pytest.raises(FileExistsError, match="copy replaces nothing"):
        cordwood.copy(source, target)


def test_a_damaged_single_file(tmp_path: Path) -> None:
    source = tmp_path / "a.safetensors"
    cordwood.save(source, {"x": np.arange(9000.0)})
    damage(source)
    with pytest.raises(CorruptionError, match=r"a\.safetensors"):
        cordwood.copy(source, tmp_path / "b.safetensors")
    assert list(tmp_path.iterdir()) == [source]


def test_a_single_file_has_one_kind_of_destination(tmp_path: Path) -> None:
    source = tmp_path / "a.safetensors"
    cordwood.save(source, {"x": np.ones(3)})
    for target in (in_memory(), tmp_path / "b.msgpack", tmp_path):
        with pytest.raises((UnsupportedFormatError, ValueError), match=r"convert|within"):
            cordwood.copy(source, target)


# Progress, memory


def test_the_progress_of_a_copy_grows_to_its_total(source: Place, destination: Place) -> None:
    reports: list[Any] = []
    save_run(source("run"))
    report = cordwood.copy(source("run"), destination("run"), progress=reports.append)
    assert reports[-1].done_bytes == reports[-1].total_bytes >= report.copied_bytes
    assert [each.done_bytes for each in reports] == sorted(each.done_bytes for each in reports)


MEMORY = """
    import sys
    import numpy as np
    import cordwood

    def status(field):
        with open("/proc/self/status") as lines:
            return next(int(x.split()[1]) * 1024 for x in lines if x.startswith(field + ":"))

    source, target = sys.argv[1:]
    cordwood.copy(source + "-small", target + "-small")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = status("VmRSS")
    cordwood.copy(source, target)
    print(status("VmHWM") - before)
"""


@pytest.mark.parametrize(
    "places",
    [("local", "local"), ("local", "s3"), ("s3", "local"), ("s3", "s3")],
    indirect=True,
    ids="-".join,
)
def test_a_copy_needs_little_memory(source: Place, destination: Place) -> None:
    values = {str(i): np.full(100 * MIB, i, np.uint8) for i in range(4)}
    cordwood.save(source("a"), values, max_shard_bytes=100 * MIB)
    cordwood.save(source("a-small"), {"x": np.ones(3)})
    assert int(run_python(MEMORY, source("a"), destination("b"))) < 200 * MIB


def test_the_command_copies_and_verifies(tmp_path: Path) -> None:
    save_run(str(tmp_path / "run"))
    code = "from cordwood.cli.main import main; main()"
    arguments = ["copy", str(tmp_path / "run" / "latest"), str(tmp_path / "best")]
    assert "2 files" in run_python(code, *arguments)
    document = json.loads(run_python(code, *arguments, "--verify", "--json"))
    assert (document["files"], document["steps_there"]) == (0, [""])


@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_a_second_copy_looks_for_the_files_that_an_index_names(tmp_path: Path, damage: str) -> None:
    """An index of a copy alone does not say that its files are there."""
    with cordwood.CheckpointManager(tmp_path / "run", background=False) as manager:
        for step in (1, 2):
            manager.save(step, {"frozen": np.arange(900.0), "w": np.full(3, step)})
    cordwood.copy(tmp_path / "run", tmp_path / "to")
    for file in (tmp_path / "to/2").glob("data-*"):
        data = file.read_bytes()
        file.unlink()
        if damage == "cut short":
            file.write_bytes(data[:-1])
    again = cordwood.copy(tmp_path / "run", tmp_path / "to")
    assert (again.steps, again.steps_there) == (("2",), ("1",))
    for step in (1, 2):
        assert cordwood.verify(tmp_path / f"to/{step}").unverified_bytes == 0
        assert_trees_equal(
            cordwood.load(tmp_path / f"to/{step}", to="numpy"),
            cordwood.load(tmp_path / f"run/{step}", to="numpy"),
        )


@pytest.mark.parametrize("destination", ["file", "file/100"])
def test_a_directory_is_not_copied_onto_a_file(tmp_path: Path, destination: str) -> None:
    cordwood.save(tmp_path / "a", {"w": 1.5})
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotACheckpointError, match=r"file is a file, .* where nothing is"):
        cordwood.copy(tmp_path / "a", tmp_path / destination)
    assert (tmp_path / "file").read_text() == "mine"
    cordwood.copy(tmp_path / "a", tmp_path / "nothing")  # as the message says
