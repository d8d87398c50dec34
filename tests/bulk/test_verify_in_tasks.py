"""verify by an executor, in parts and with a journal finds what it finds in one process."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.bulk.task_size import task_size
from cordwood.bulk.worker_processes import WorkerProcesses
from cordwood.errors import CorruptionError, ProcessError
from cordwood.results import Progress, Verification
from cordwood.storage.locations import LocalPath
from tests.bulk.executors import BrokenPool, InlineExecutor, WorkerThatDiesOnce

TASK_BYTES = 4 << 20
pytestmark = pytest.mark.usefixtures("small_tasks")

TREE = {
    "big": np.arange(3 << 20, dtype=np.float32).reshape(-1, 64),
    "small": [np.arange(12), 7],
    "other": np.ones((1 << 20) + 1, np.uint8),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "100"
    cordwood.save(path, TREE)
    cordwood.save(path, {"x": np.arange(2 << 20, dtype=np.int16)}, prefix="ema")
    return path


def damage(path: Path, *offsets: int) -> None:
    pack = max(path.glob("*.safetensors"), key=lambda each: each.stat().st_size)
    with pack.open("r+b") as file:
        for offset in offsets:
            file.seek(offset)
            byte = file.read(1)
            file.seek(offset)
            file.write(bytes([byte[0] ^ 1]))


def test_the_result_is_that_of_one_process(path: Path, pool: ProcessPoolExecutor) -> None:
    seen: list[Progress] = []
    result = cordwood.verify(path, executor=pool, progress=seen.append)
    assert result == cordwood.verify(path)
    assert seen[-1].done_bytes == seen[-1].total_bytes > 17 << 20


def test_damage_is_that_of_one_process(path: Path, pool: ProcessPoolExecutor) -> None:
    damage(path, 5 << 20, 9 << 20)
    with pytest.raises(CorruptionError, match=r"2 damaged ranges or files:\n.*: big\n.*: big") as e:
        cordwood.verify(path)
    with pytest.raises(CorruptionError) as other:
        cordwood.verify(path, executor=pool)
    assert str(other.value) == str(e.value)


@pytest.mark.parametrize("how", ["header", "missing", "short"])
def test_broken_files_are_reported_as_by_one_process(path: Path, how: str) -> None:
    pack = max(path.glob("*.safetensors"), key=lambda each: each.stat().st_size)
    if how == "header":
        damage(path, 20)
    elif how == "missing":
        pack.unlink()
    else:
        with pack.open("r+b") as file:
            file.truncate(6 << 20)
    with pytest.raises(CorruptionError) as e:
        cordwood.verify(path)
    with pytest.raises(CorruptionError) as other:
        cordwood.verify(path, executor=InlineExecutor())
    assert str(other.value) == str(e.value)


def test_parts_check_all_bytes_together(path: Path) -> None:
    whole = cordwood.verify(path)
    parts = [cordwood.verify(path, part=(i, 3)) for i in range(3)]
    index_bytes = (path / "cordwood.json").stat().st_size
    assert sum(part.verified_bytes - index_bytes for part in parts) + index_bytes == (
        whole.verified_bytes
    )
    for part in parts:
        assert part.verified_bytes + part.unverified_bytes == whole.verified_bytes
        assert index_bytes < part.verified_bytes < whole.verified_bytes
    assert cordwood.verify(path, part=(0, 1)).verified_bytes == whole.verified_bytes


def test_one_part_reports_damage(path: Path) -> None:
    damage(path, 5 << 20)
    outcomes: list[type[object]] = []
    for i in range(4):
        try:
            outcomes.append(type(cordwood.verify(path, part=(i, 4))))
        except CorruptionError as e:
            outcomes.append(type(e))
    assert sorted(outcomes, key=str) == [CorruptionError] + [Verification] * 3


def test_a_journal_is_of_all_parts_and_the_call_without_a_part_does_the_rest(
    path: Path, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    cordwood.verify(path, part=(0, 3), journal=journal)
    cordwood.verify(path, part=(2, 3), journal=journal)
    executor = InlineExecutor()
    cordwood.verify(path, executor=executor, part=(1, 3))
    tasks = executor.calls
    executor = InlineExecutor()
    assert cordwood.verify(path, executor=executor, journal=journal) == cordwood.verify(path)
    assert executor.calls == tasks > 0
    assert not journal.exists()


def test_an_interrupted_call_goes_on(path: Path, tmp_path: Path) -> None:
    def interrupt(call: int) -> None:
        if call == 3:
            raise KeyboardInterrupt

    executor = InlineExecutor()
    cordwood.verify(path, executor=executor)
    tasks = executor.calls
    executor = InlineExecutor(interrupt)
    with pytest.raises(KeyboardInterrupt):
        cordwood.verify(path, journal=tmp_path / "journal", executor=executor)
    executor = InlineExecutor()
    cordwood.verify(path, journal=tmp_path / "journal", executor=executor)
    assert executor.calls == tasks - 2 > 1


class BlindWorkers(InlineExecutor):
    """Workers that do not see the journal, as on another machine."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        *most, records = arguments
        records = records._replace(folder=LocalPath("/nowhere"))
        return super().submit(function, *most, records, **named)


def test_the_call_records_for_workers_that_do_not_see_the_journal(
    path: Path, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    cordwood.verify(path, executor=BlindWorkers(), part=(0, 1), journal=journal)
    executor = InlineExecutor()
    cordwood.verify(path, executor=executor, journal=journal)
    assert executor.calls == 0


def test_a_task_whose_worker_dies_after_it_has_ended_is_not_run_again(
    path: Path, tmp_path: Path
) -> None:
    whole, calls = InlineExecutor(), tmp_path / "calls"
    expected = cordwood.verify(path, executor=whole)
    with WorkerThatDiesOnce(WorkerProcesses(1), calls, after=True) as executor:
        assert cordwood.verify(path, executor=executor, journal=tmp_path / "j") == expected
    assert calls.stat().st_size == whole.calls


def test_only_damaged_tasks_are_read_again(path: Path, tmp_path: Path) -> None:
    damage(path, 5 << 20)
    for _ in range(2):
        executor = InlineExecutor()
        with pytest.raises(CorruptionError, match="1 damaged range"):
            cordwood.verify(path, executor=executor, journal=tmp_path / "journal")
    assert executor.calls == 1
    damage(path, 5 << 20)  # flips the bit back
    assert cordwood.verify(path, journal=tmp_path / "journal") == cordwood.verify(path)


def test_other_formats_are_one_task(tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    path = tmp_path / "x.safetensors"
    cordwood.save(path, TREE)
    whole = cordwood.verify(path)
    assert cordwood.verify(path, executor=pool) == whole
    journal = tmp_path / "journal"
    parts = [cordwood.verify(path, part=(i, 2), journal=journal) for i in range(2)]
    assert sorted(part.verified_bytes for part in parts) == [0, whole.verified_bytes]
    assert any("nothing was read" in str(part) for part in parts)
    executor = InlineExecutor()
    assert cordwood.verify(path, executor=executor, journal=journal) == whole
    assert executor.calls == 0
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x07")
    with pytest.raises(CorruptionError, match="1 damaged range"):
        cordwood.verify(path, executor=pool)


def test_a_checkpoint_that_was_replaced_is_verified_again(path: Path) -> None:
    damage(path, 5 << 20)

    def replace(call: int) -> None:
        if call == 1:
            cordwood.save(path, {"x": np.zeros(5)})

    result = cordwood.verify(path, executor=InlineExecutor(replace))
    assert result == cordwood.verify(path)


def test_workers_that_see_another_storage_are_an_error(pool: ProcessPoolExecutor) -> None:
    place = "memory://bulk/100"  # of this process alone
    cordwood.save(place, TREE)
    with pytest.raises(ProcessError, match="all workers must see the checkpoint under this path"):
        cordwood.verify(place, executor=pool)
    assert cordwood.verify(place, executor=InlineExecutor()) == cordwood.verify(place)


def test_options_of_stores_are_sent_to_the_workers(tmp_path: Path) -> None:
    """A worker takes them before it runs a task."""
    from cordwood.bulk.bulk_task import run_task
    from cordwood.storage.object_stores.bucket_cache import BUCKETS
    from cordwood.verifying.verify_tasks import BlockChoice, VerifyWhole

    cordwood.save(tmp_path / "x.safetensors", {"x": 1})
    location = LocalPath(str(tmp_path / "x.safetensors"))
    task = VerifyWhole(location, BlockChoice(), None, None, 1, "")
    with cordwood.storage_options("s3://bulk", endpoint="http://localhost:1", region="a"):
        options = BUCKETS.options()
    assert ("s3", "bulk") not in BUCKETS.options()
    with cordwood.storage_options("s3://bulk", region="b"):  # restores what was before: nothing
        run_task(task, "", pickle.loads(pickle.dumps(options)), None)
        assert BUCKETS.options()["s3", "bulk"]["region"] == "a"


def test_a_sample_is_of_the_blocks_of_each_task(path: Path) -> None:
    with task_size(256 << 20):
        results = [
            cordwood.verify(path, sample=0.5, seed=3, executor=InlineExecutor()) for _ in range(2)
        ]
    assert results[0] == results[1]
    assert 4 << 20 < results[0].verified_bytes < 14 << 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resume": "x", "part": (0, 2)}, "journal= does it with executor= and part="),
        ({"journal": "x", "sample": 0.5}, "a sample is chosen anew by each call"),
        ({"part": (2, 2)}, "counted from 0"),
    ],
)
def test_arguments_that_exclude_each_other(
    path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        cordwood.verify(path, **arguments)


@pytest.mark.parametrize("executor", [4, ThreadPoolExecutor])
def test_what_is_no_executor_is_refused(path: Path, executor: Any) -> None:
    with pytest.raises(TypeError, match=r"expected an executor of concurrent\.futures"):
        cordwood.verify(path, executor=executor)


def test_lost_workers_are_an_error_and_no_silent_loss(path: Path) -> None:
    with pytest.raises(ProcessError, match=r"0 of \d+ tasks are done"):
        cordwood.verify(path, executor=BrokenPool())


def test_a_journal_within_a_checkpoint_is_refused_and_the_message_names_another(
    path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    remedy = f"lies within {path}: name a directory beside it, such as {path}.journal"
    for call in (
        lambda journal: cordwood.verify(path, part=(0, 2), journal=journal),
        lambda journal: cordwood.copy(path, copy, part=(0, 2), journal=journal),
    ):
        with pytest.raises(ValueError, match=re.escape(remedy)):
            call(path / "journal")
    with pytest.raises(ValueError, match=r"lies within .*copy"):
        cordwood.copy(path, copy, part=(0, 2), journal=copy / "journal")
    assert not (path / "journal").exists()
    cordwood.verify(path, part=(0, 2), journal=f"{path}.journal")
    cordwood.verify(path, journal=f"{path}.journal")
