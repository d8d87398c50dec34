"""diff by an executor, in parts and with a journal finds what it finds in one process."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.bulk.worker_processes import WorkerProcesses
from cordwood.errors import ProcessError
from cordwood.results import Progress
from tests.bulk.executors import InlineExecutor, WorkerThatDiesOnce

TASK_BYTES = 4 << 20
pytestmark = pytest.mark.usefixtures("small_tasks")


def tree(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "big": rng.standard_normal((96, 1 << 15), np.float32),  # 12 MiB
        "same": np.arange(1 << 18),
        "small": [np.full(100, seed), seed, "text"],
        "other": np.array([0.1, np.nan, np.inf, -0.0]) * seed,
        f"new{seed}": rng.standard_normal(1 << 17),
    }


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two checkpoints of two trees each."""
    folder = tmp_path_factory.mktemp("diff")
    for seed in (1, 2):
        cordwood.save(folder / str(seed), tree(seed))
        cordwood.save(folder / str(seed), tree(seed + 1), prefix="ema")
    return folder / "1", folder / "2"


@pytest.mark.parametrize("format", ["packs", "zarr"])
def test_the_result_is_that_of_one_process(
    paths: tuple[Path, Path], tmp_path: Path, pool: ProcessPoolExecutor, format: str
) -> None:
    paths = paths[0], tmp_path / "2"
    cordwood.save(paths[1], tree(2), format=format)
    cordwood.save(paths[1], tree(3), prefix="ema", format=format)
    seen: list[Progress] = []
    alone = cordwood.diff(*paths)
    assert cordwood.diff(*paths, executor=pool, progress=seen.append) == alone
    assert len(alone.leaves) > 8
    assert seen[-1].done_bytes == seen[-1].total_bytes > 40 << 20
    options: dict[str, Any] = {"prefix": "ema", "rename": {"small/0": "s"}, "strict": True}
    alone = cordwood.diff(*paths, **options)
    assert cordwood.diff(*paths, **options, executor=InlineExecutor()) == alone


def test_results_that_come_in_another_order_are_added_up_in_the_same(
    paths: tuple[Path, Path], tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    parts = [cordwood.diff(*paths, part=(i, 4), journal=journal) for i in (3, 0)]
    for part in parts:
        assert "not compared: elements of other parts, of " in str(part)
    executor = InlineExecutor()
    assert cordwood.diff(*paths, journal=journal, executor=executor) == cordwood.diff(*paths)
    assert executor.calls == 2  # one of each tree
    assert not journal.exists()


def test_a_part_of_equal_checkpoints_is_equal(paths: tuple[Path, Path], tmp_path: Path) -> None:
    cordwood.convert(paths[0], tmp_path / "x", format="zarr", compression="zstd")
    part = cordwood.diff(paths[0], tmp_path / "x", part=(1, 2))
    assert part.equal
    assert 0 < part.read_bytes < cordwood.diff(paths[0], tmp_path / "x").read_bytes


def test_a_killed_worker_is_replaced(paths: tuple[Path, Path], tmp_path: Path) -> None:
    with WorkerThatDiesOnce(WorkerProcesses(1), tmp_path / "died") as executor:
        assert cordwood.diff(*paths, prefix="ema", executor=executor) == (
            cordwood.diff(*paths, prefix="ema")
        )
    assert (tmp_path / "died").exists()


def test_an_interrupted_call_goes_on(paths: tuple[Path, Path], tmp_path: Path) -> None:
    def interrupt(call: int) -> None:
        if call == 3:
            raise KeyboardInterrupt

    whole = InlineExecutor()
    expected = cordwood.diff(*paths, prefix="ema", executor=whole)
    options: dict[str, Any] = {"prefix": "ema", "journal": tmp_path / "journal"}
    with pytest.raises(KeyboardInterrupt):
        cordwood.diff(*paths, executor=InlineExecutor(interrupt), **options)
    executor = InlineExecutor()
    assert cordwood.diff(*paths, executor=executor, **options) == expected
    assert executor.calls == whole.calls - 2 > 0


def test_a_checkpoint_that_is_replaced_between_two_tasks_is_an_error(tmp_path: Path) -> None:
    paths = tmp_path / "1", tmp_path / "2"
    cordwood.save(paths[0], {"x": np.zeros(3 << 19)})
    cordwood.save(paths[1], {"x": np.ones(3 << 19)})

    def replace(count: int) -> None:
        if count == 2:
            cordwood.save(paths[1], {"x": np.zeros(3 << 19)})

    with pytest.raises(ProcessError, match=r"2: a worker sees another"):
        cordwood.diff(*paths, executor=InlineExecutor(replace))
    assert cordwood.diff(*paths, executor=InlineExecutor()).equal  # the remedy


def test_trees_in_memory_are_refused(paths: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match="are for two paths, which workers open"):
        cordwood.diff(paths[0], tree(1), executor=InlineExecutor())
