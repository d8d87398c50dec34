"""convert by an executor, in parts and with a journal writes what one process writes."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.bulk.worker_processes import WorkerProcesses
from cordwood.errors import ProcessError, StorageError, UnsupportedFormatError
from cordwood.formats.zarr.write_in_tasks import DividedArrays
from cordwood.recipes import Recipe, Rule
from cordwood.results import Progress
from cordwood.storage.staging.staging_directory import StagingDirectory
from tests.bulk.executors import InlineExecutor, WorkerThatDiesOnce

TASK_BYTES = 1 << 20
pytestmark = pytest.mark.usefixtures("small_tasks")

OPTIONS: list[dict[str, Any]] = [
    {"max_shard_bytes": 1 << 20},
    {"max_shard_bytes": 1 << 20, "cast": "bf16", "rename": {"a": "b/c"}, "prefix": ""},
    {"format": "zarr"},
    {"format": "zarr", "compression": "zstd"},
]


def tree(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "a": {str(n): rng.standard_normal((8, 1 << 14), np.float32) for n in range(5)},
        "big": np.arange(3 << 18).reshape(3, -1),
        "small": [np.full(100, seed), seed, "text", np.float32(2)],
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("convert") / "source"
    cordwood.save(path, tree(1), metadata={"x": "y"})
    cordwood.save(path, tree(2), prefix="ema")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a directory, without the numbers of the saves in names and indexes."""
    files = [each for each in sorted(folder.rglob("*")) if each.is_file()]
    files = [each for each in files if not each.name.endswith(".lock")]
    data = {str(each.relative_to(folder)): each.read_bytes() for each in files}
    if "cordwood.json" in data:
        data["cordwood.json"] = re.sub(b'"digest":"[0-9a-f]*"', b"", data["cordwood.json"], count=1)
    saves = {name.split("-")[1] for name in data if name.startswith("data-")}
    order = sorted(saves, key=lambda save: data["cordwood.json"].find(save.encode()))
    for number, save in enumerate(order):
        data = {
            name.replace(save, str(number)): text.replace(save.encode(), str(number).encode())
            for name, text in data.items()
        }
    return data


def journal_of(destination: Path) -> Path:
    return destination.parent / f".{destination.name}.cordwood-journal"


@pytest.mark.parametrize("options", OPTIONS, ids=["packs", "cast", "zarr", "compressed"])
def test_the_files_are_those_of_one_process(
    source: Path, tmp_path: Path, pool: ProcessPoolExecutor, options: dict[str, Any]
) -> None:
    seen: list[Progress] = []
    alone = cordwood.convert(source, tmp_path / "alone", **options)
    done = cordwood.convert(source, tmp_path / "x", executor=pool, progress=seen.append, **options)
    assert done == alone._replace(destination=str(tmp_path / "x"))
    assert contents(tmp_path / "x") == contents(tmp_path / "alone")
    assert sorted(each.name for each in tmp_path.iterdir() if "lock" not in each.name) == [
        "alone",
        "x",
    ]
    assert seen[-1].done_bytes == seen[-1].total_bytes
    assert cordwood.verify(tmp_path / "x").unverified_bytes == 0


def test_a_single_file_is_a_source(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "x.safetensors", tree(3))
    cordwood.convert(tmp_path / "x.safetensors", tmp_path / "x", executor=InlineExecutor())
    assert cordwood.diff(tmp_path / "x.safetensors", tmp_path / "x").equal


def test_an_existing_checkpoint_is_there_until_the_end(source: Path, tmp_path: Path) -> None:
    old = {"old": np.ones(3)}
    for each in OPTIONS[::2]:
        options = {**each, "prefix": ""}
        path = tmp_path / f"to {options.get('format')}"
        cordwood.save(path, old, format=each.get("format"))

        def check(call: int, path: Path = path) -> None:
            del call
            assert [*cordwood.load(path)] == ["old"]

        executor = InlineExecutor(check)
        with pytest.raises(FileExistsError, match="pass overwrite=True"):
            cordwood.convert(source, path, executor=executor, **options)
        cordwood.convert(source, path, executor=executor, overwrite=True, **options)
        assert executor.calls > 3
        assert cordwood.diff(source, path, prefix="").equal


def test_parts_write_files_and_a_last_call_commits(source: Path, tmp_path: Path) -> None:
    path, options = tmp_path / "x", OPTIONS[0]
    alone = cordwood.convert(source, tmp_path / "alone", **options)
    seen: list[Progress] = []
    parts = [
        cordwood.convert(source, path, part=(i, 3), progress=seen.append, **options) for i in (2, 0)
    ]
    assert 0 < seen[0].total_bytes < alone.size_bytes
    assert seen[-1].done_bytes == seen[-1].total_bytes
    assert not (path / "cordwood.json").exists()
    assert all(part.leaves == 0 and 0 < part.size_bytes < alone.size_bytes for part in parts)
    with pytest.raises(ValueError, match="journal of another call"):
        cordwood.copy(source, path)
    executor = InlineExecutor()
    done = cordwood.convert(source, path, executor=executor, **options)
    assert done == alone._replace(destination=str(path))
    assert 0 < executor.calls < 8
    assert contents(path) == contents(tmp_path / "alone")
    assert not journal_of(path).exists()


OTHER_OPTIONS: list[dict[str, Any]] = [
    {"cast": "bf16"},
    {"select": "a"},
    {"rename": {"a": "b"}},
    {"transpose": ["big"]},
    {"recipe": Recipe([Rule("**", paths="x/**")])},
    {"lossy": True},
    {"format": "zarr"},
    {"format": "zarr", "compression": "zstd"},
    {"metadata": {}},
    {"prefix": None},
    {"to_prefix": "y"},
    {"max_shard_bytes": 1 << 19},
]


@pytest.mark.parametrize("other", OTHER_OPTIONS, ids=lambda each: "-".join(each))
def test_a_last_call_with_other_options_is_refused(
    source: Path, tmp_path: Path, other: dict[str, Any]
) -> None:
    path, options = tmp_path / "x", {**OPTIONS[0], "prefix": ""}
    cordwood.convert(source, path, part=(0, 2), **options)
    files = sorted(path.iterdir())
    with pytest.raises(ValueError, match=r"journal of another call, .*which has written files at"):
        cordwood.convert(source, path, **{**options, **other})
    assert sorted(path.iterdir()) == files
    executor = InlineExecutor()
    cordwood.convert(source, path, executor=executor, **options)
    assert executor.calls < 8


def test_long_options_differ_by_their_digest(source: Path, tmp_path: Path) -> None:
    names = [f"leaf{n}" for n in range(100)]
    one: dict[str, Any] = {"prefix": "", "rename": {"a": [*names, "x"]}}
    other: dict[str, Any] = {"prefix": "", "rename": {"a": [*names, "y"]}}
    cordwood.convert(source, tmp_path / "x", part=(0, 2), **one)
    with pytest.raises(ValueError, match=r"of another call.{,500}expected that of") as e:
        cordwood.convert(source, tmp_path / "x", **other)
    assert len(str(e.value)) < 2000
    cordwood.convert(source, tmp_path / "x", **one)


@pytest.mark.parametrize("writer", ["convert", "open", "copy"])
@pytest.mark.parametrize("remedy", ["end it", "another path", "delete"])
def test_files_of_the_parts_of_another_call_are_not_removed_silently(
    source: Path, tmp_path: Path, writer: str, remedy: str
) -> None:
    def write(path: Path, **options: Any) -> None:
        if writer == "convert":
            cordwood.convert(other, path, overwrite=True, **options)
        elif writer == "copy":
            cordwood.copy(other, path, **options)
        else:
            with cordwood.open(other) as opened:
                cordwood.convert(opened, path)

    other, path, options = tmp_path / "other", tmp_path / "x", {**OPTIONS[0], "prefix": ""}
    cordwood.save(other, {"other": np.ones(3)})
    for i in range(2):
        cordwood.convert(source, path, part=(i, 2), **options)
    files = sorted(path.iterdir())
    journals: list[dict[str, Any]] = [{}] if writer == "open" else [{}, {"journal": tmp_path / "j"}]
    for journal in journals:
        with pytest.raises(
            ValueError, match="end that call, write to another path, or delete this journal"
        ):
            write(path, **journal)
        assert sorted(path.iterdir()) == files
    if remedy == "end it":
        executor = InlineExecutor()
        cordwood.convert(source, path, executor=executor, **options)
        assert executor.calls == 0
        return
    if remedy == "delete":
        shutil.rmtree(journal_of(path))
    else:
        path = tmp_path / "another"
    write(path)
    assert [*cordwood.load(path)] == ["other"]
    assert not {each.name for each in files} & {each.name for each in path.iterdir()}


def test_a_file_that_was_removed_after_its_task_is_written_again(
    source: Path, tmp_path: Path
) -> None:
    path, options = tmp_path / "x", OPTIONS[0]
    for i in range(2):
        cordwood.convert(source, path, part=(i, 2), **options)
    max(path.glob("data*")).unlink()
    cordwood.convert(source, path, **options)  # finds the journal
    assert cordwood.diff(source, path).equal
    assert not journal_of(path).exists()


def test_parts_to_a_store_need_a_journal(source: Path, tmp_path: Path) -> None:
    place = "memory://bulk-convert/x"
    with pytest.raises(
        ValueError, match=r"needs journal= \(--journal\), a directory that all jobs see"
    ):
        cordwood.convert(source, place, part=(0, 2))
    for i in range(2):
        cordwood.convert(source, place, part=(i, 2), journal=tmp_path / "j", **OPTIONS[0])
    executor = InlineExecutor()
    cordwood.convert(source, place, journal=tmp_path / "j", executor=executor, **OPTIONS[0])
    assert executor.calls == 0
    assert cordwood.diff(source, place).equal


@pytest.mark.parametrize("options", OPTIONS[::2], ids=["packs", "zarr"])
def test_a_killed_worker_is_replaced(source: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    with WorkerThatDiesOnce(WorkerProcesses(1), tmp_path / "died") as executor:
        cordwood.convert(source, tmp_path / "x", executor=executor, prefix="", **options)
    assert (tmp_path / "died").exists()
    assert cordwood.diff(source, tmp_path / "x", prefix="").equal


@pytest.mark.parametrize("options", OPTIONS[::2], ids=["packs", "zarr"])
def test_an_interrupted_conversion_leaves_no_checkpoint(
    source: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    def interrupt(call: int) -> None:
        if call == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cordwood.convert(source, tmp_path / "x", executor=InlineExecutor(interrupt), **options)
    with pytest.raises(FileNotFoundError):
        cordwood.load(tmp_path / "x")
    executor = InlineExecutor()
    cordwood.convert(source, tmp_path / "x", executor=executor, **options)
    assert cordwood.diff(source, tmp_path / "x").equal
    if "format" not in options:
        whole = InlineExecutor()
        cordwood.convert(source, tmp_path / "y", executor=whole, **options)
        assert executor.calls == whole.calls - 2  # those before were recorded


def test_two_conversions_at_once(source: Path, tmp_path: Path) -> None:
    errors: list[StorageError] = []

    def convert_too(call: int) -> None:
        if call == 1:
            with pytest.raises(StorageError, match="works on these tasks") as e:
                cordwood.convert(source, tmp_path / "x", part=(0, 2))
            errors.append(e.value)

    cordwood.convert(source, tmp_path / "x", executor=InlineExecutor(convert_too))
    assert len(errors) == 1


def test_a_source_that_is_replaced_meanwhile_is_an_error(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "x", tree(1))

    def replace(call: int) -> None:
        if call == 2:
            cordwood.save(tmp_path / "x", tree(2))

    with pytest.raises(ProcessError, match="x: a worker sees another checkpoint"):
        cordwood.convert(
            tmp_path / "x", tmp_path / "y", executor=InlineExecutor(replace), **OPTIONS[0]
        )
    assert not (tmp_path / "y" / "cordwood.json").exists()
    cordwood.convert(tmp_path / "x", tmp_path / "y", executor=InlineExecutor(), **OPTIONS[0])
    assert cordwood.diff(tmp_path / "x", tmp_path / "y").equal


@pytest.mark.parametrize("name", ["x.safetensors", "x.msgpack", "hub"])
def test_files_of_one_process_are_refused_with_the_remedy(
    source: Path, tmp_path: Path, name: str
) -> None:
    format = "hugging_face" if name == "hub" else None
    options: dict[str, Any] = {"prefix": "ema", "lossy": True, "format": format}
    with pytest.raises(UnsupportedFormatError, match=r'leave out executor=.* or write format="pac'):
        cordwood.convert(source, tmp_path / name, executor=InlineExecutor(), **options)
    with pytest.raises(UnsupportedFormatError, match=r'"packs" \(--format packs\)') as e:
        cordwood.convert(source, tmp_path / name, part=(0, 2), **options)
    assert '"zarr"' not in str(e.value)  # which has no parts
    assert ("without the suffix" in str(e.value)) == ("." in name)
    cordwood.convert(source, tmp_path / name, **options)
    path = tmp_path / "packs" / name.split(".")[0]
    options["format"] = "packs"
    cordwood.convert(source, path, part=(0, 2), **options)
    cordwood.convert(source, path, executor=InlineExecutor(), **options)
    options["format"] = "zarr"
    cordwood.convert(source, tmp_path / "zarr", executor=InlineExecutor(), **options)


def test_parts_of_zarr_are_refused_with_the_remedy(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match="use executor= without part= and journal="):
        cordwood.convert(source, tmp_path / "x", format="zarr", part=(0, 2))


def test_a_source_that_is_compressed_as_a_whole_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.msgpack.zst"
    cordwood.save(path, {"x": np.ones(3)})
    with pytest.raises(ValueError, match="each worker would decompress all of it"):
        cordwood.convert(path, tmp_path / "x", executor=InlineExecutor())
    cordwood.convert(path, tmp_path / "x")  # the remedy: no journal is in the way
    with cordwood.open(path) as opened, pytest.raises(ValueError, match="pass the path"):
        cordwood.convert(opened, tmp_path / "x", executor=InlineExecutor())


def test_a_worker_that_is_late_leaves_files_of_zarr_whole_at_every_moment(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    class RepeatingExecutor(InlineExecutor):
        def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Any:
            future = super().submit(function, *arguments, **named)
            calls.append((function, *arguments))
            return future

    cordwood.convert(source, tmp_path / "alone", prefix="", format="zarr")
    seen: list[set[str]] = []
    real_write, real_commit = StagingDirectory.write, DividedArrays.commit

    def write(stage: StagingDirectory, *arguments: Any) -> Any:
        written = real_write(stage, *arguments)
        seen.append(set(contents(Path(stage.path))))
        return written

    def commit(save: DividedArrays, reports: Any) -> None:
        for function, *arguments in [*calls]:  # once more, by workers that were believed dead
            function(*arguments)
        real_commit(save, reports)

    monkeypatch.setattr(StagingDirectory, "write", write)
    monkeypatch.setattr(DividedArrays, "commit", commit)
    cordwood.convert(source, tmp_path / "x", executor=RepeatingExecutor(), prefix="", format="zarr")
    assert len(seen) == 2 * len(calls) > 2
    whole = contents(tmp_path / "alone").keys() - {"tensorstore_index.json"}
    for names in seen[len(calls) :]:
        assert whole <= names
        assert len(names) > len(whole)  # those of the task are written beside them
    assert contents(tmp_path / "x") == contents(tmp_path / "alone")
