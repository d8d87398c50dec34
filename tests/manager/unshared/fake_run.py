"""Runs of fake processes, which are threads, each with a root and a part of every array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cordwood import CheckpointManager
from cordwood.sharding import boxes
from cordwood.testing import assert_trees_equal
from tests.processes.fake_processes import FakeProcesses, Outcome, Store, run_processes
from tests.processes.test_process_group import in_the_foreground

__all__ = [
    "Run",
    "every_device_is_a_process",
    "in_the_foreground",
    "like",
    "packs",
    "replicate",
    "tree_of",
]

ROWS = 24  # divides by 1, 2, 3 and 4
TIMEOUT_SECONDS = 20.0


class _Device(NamedTuple):
    id: int
    process_index: int


@pytest.fixture(autouse=True)
def every_device_is_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the device of each number belong to the fake process of that number."""
    device_boxes = boxes.device_boxes

    def of_processes(sharding: Any, shape: Sequence[int]) -> dict[Any, Any]:
        holders = device_boxes(sharding, shape)
        return {_Device(device.id, device.id): box for device, box in holders.items()}

    monkeypatch.setattr(boxes, "device_boxes", of_processes)


def sharding(count: int) -> NamedSharding:
    mesh = Mesh(np.array(jax.devices()[:count]), ("x",))
    return NamedSharding(mesh, PartitionSpec("x"))


def tree_of(step: int, count: int) -> dict[str, Any]:
    """Return the tree of a step, its arrays in equal parts at some processes."""
    values = np.arange(ROWS * 500, dtype=np.float32).reshape(ROWS, 500) + step
    frozen = np.arange(ROWS * 2000, dtype=np.float32).reshape(ROWS, 2000)
    return {
        "w": jax.device_put(values, sharding(count)),
        "frozen": jax.device_put(frozen, sharding(count)),
        "host": np.arange(100) + step,
        "step": step,
    }


def like(count: int) -> dict[str, Any]:
    return tree_of(0, count)


class Run:
    """A run in roots below a directory: `p0`, `p1`, ..."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: dict[int, int] = {}  # how many each process has made

    def root(self, process: int) -> Path:
        return self.path / f"p{process}"

    def start(
        self,
        count: int,
        work: Callable[[CheckpointManager, int], Any],
        *,
        dies_at: Mapping[int, int] | None = None,
        roots: Sequence[Path] = (),
        store: Store | None = None,
        **options: Any,
    ) -> list[Outcome]:
        """Call `work` on every process with its manager."""

        def run(processes: FakeProcesses) -> Any:
            root = roots[processes.index] if roots else self.root(processes.index)
            try:
                chosen = {"shared": False, "timeout_seconds": TIMEOUT_SECONDS, **options}
                with CheckpointManager(root, **chosen) as each:
                    return work(each, processes.index)
            finally:
                self.calls[processes.index] = processes.calls

        return run_processes(count, run, dies_at=dies_at, store=store)

    def values(
        self, count: int, work: Callable[[CheckpointManager, int], Any], **options: Any
    ) -> Any:
        """Call `work` on every process, which must succeed; return the values."""
        outcomes = self.start(count, work, **options)
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return [outcome.value for outcome in outcomes]

    def save(self, count: int, steps: Sequence[int], **options: Any) -> list[list[int]]:
        """Restore, and save some steps by all processes; return the steps that each sees then."""

        def work(manager: CheckpointManager, index: int) -> list[int]:
            manager.restore(like=like(count))
            for step in steps:
                manager.save(step, tree_of(step, count), metrics={"loss": 1 / (step + 1)})
            manager.wait()
            return manager.steps()

        return self.values(count, work, **options)

    def restore(self, count: int, **options: Any) -> int | None:
        """Restore the newest step by all processes, to the bit; return its number."""

        def work(manager: CheckpointManager, index: int) -> int | None:
            restored = manager.restore(like=like(count))
            if restored is None:
                return None
            assert_trees_equal(restored.tree, tree_of(restored.step, count))
            return restored.step

        (step,) = set(self.values(count, work, **options))
        return step


def packs(path: Path) -> Iterator[Path]:
    return path.glob("data-*")


def replicate(run: Run, process: int, step: int, to: int) -> None:
    """Copy the packs of a process to another root, as replicas are."""
    for pack in packs(run.root(process) / str(step)):
        (run.root(to) / str(step) / pack.name).write_bytes(pack.read_bytes())
