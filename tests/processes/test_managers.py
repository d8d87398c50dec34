"""A manager in two real processes: they save, keep and restore the same steps."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from cordwood import CheckpointManager, save, verify
from cordwood.testing import assert_trees_equal
from tests.orbax_versions.trees import rows
from tests.processes.group import Group
from tests.processes.spread_trees import reference


@pytest.mark.parametrize("slow", [False, True])
def test_managers_of_two_processes_go_on_with_one_run(
    tmp_path: Path, two: Group, slow: bool
) -> None:
    path = str(tmp_path / "run")
    first, other = two.run("managers.train", path=path, steps=6, slow=slow)
    assert first == (0, [4, 5, 6])
    assert other[0] == 0
    first, other = two.run("managers.train", path=path, steps=9, slow=slow)
    assert first == (6, [4, 8, 9])
    assert other[0] == 6
    assert set(other[1]) >= {4, 8, 9}  # process 0 deletes, and may be at it still
    assert sorted(os.listdir(path)) == ["4", "8", "9"]
    for step in (4, 8, 9):
        assert verify(f"{path}/{step}").unverified_bytes == 0


def test_one_process_reads_what_two_have_saved(tmp_path: Path, two: Group) -> None:
    path = str(tmp_path / "run")
    two.run("managers.train", path=path, steps=3)
    manager = CheckpointManager(path)
    assert manager.steps() == [2, 3]
    restored = manager.restore()
    assert restored is not None
    assert (restored.step, restored.metrics) == (3, {"loss": 1 / 3})


def test_each_process_links_what_it_has_written(tmp_path: Path, two: Group) -> None:
    path = tmp_path / "run"
    first, other = two.run("managers.fine_tune", path=str(path), steps=6)
    host, half, trained = 16_000, 131_072, 512
    assert first == [
        (host + half + trained, 0) if step % 4 == 0 else (trained, host + half) for step in range(6)
    ]
    assert other == [(half + trained, 0) if step % 4 == 0 else (trained, half) for step in range(6)]
    manager = CheckpointManager(path)
    for gone in (0, 4, 2):
        manager.delete(gone)
    for step in (1, 3, 5):
        assert verify(path / str(step)).unverified_bytes == 0
        links = {file.name[22:24]: 0 for file in (path / str(step)).glob("data-*")}
        assert set(links) == {"0-", "1-"}
        for file in (path / str(step)).glob("data-*"):
            links[file.name[22:24]] = max(links[file.name[22:24]], file.stat().st_nlink)
        assert set(links.values()) == ({2} if step < 4 else {1})
        assert two.run("managers.load_tuned", path=str(path), step=step) == [True, True]


@pytest.mark.parametrize("process", [0, 1])
def test_a_process_that_receives_sigterm(tmp_path: Path, two: Group, process: int) -> None:
    path = str(tmp_path / "run")
    result = two.run("managers.train_until_sigterm", path=path, process=process, step=13)
    last, steps = result[0]
    assert result[1][0] == last
    assert steps[-1] == last
    assert last >= 13
    assert steps[:-1] == list(range(10, last, 10))


@pytest.mark.parametrize("process", [0, 1])
def test_processes_end_an_evaluation_together(tmp_path: Path, two: Group, process: int) -> None:
    result = two.run("managers.evaluate_until_sigterm", path=str(tmp_path / "run"), process=process)
    batch, steps = result[0]
    assert result[1][0] == batch
    assert batch >= 7
    assert steps == [10, 13]


def test_a_process_is_killed_in_the_middle_of_a_run(tmp_path: Path) -> None:
    rng = random.Random(5)
    path = tmp_path / "run"
    reached = 0
    for victim in (0, 1):
        with Group(2) as group:
            group.run("managers.hasten", silence_seconds=5.0)
            group.start(
                "managers.train", path=str(path), steps=10_000, rows=256, timeout_seconds=10.0
            )
            begun = time.monotonic()
            while (CheckpointManager(path).latest() or 0) < reached + 3:
                assert time.monotonic() - begun < 300
                time.sleep(0.02)
            time.sleep(rng.uniform(0, 0.2))
            group.kill(victim)
            group.results()
        steps = CheckpointManager(path).steps()
        assert steps[-1] >= reached + 3
        reached = steps[-1]
        for step in steps:
            assert verify(path / str(step)).unverified_bytes == 0
        # The last two, multiples of four, and one that a dead manager had not deleted yet.
        assert {step for step in steps if step % 4 == 0} == set(range(4, reached + 1, 4))
        assert len([step for step in steps if step % 4]) <= 3
    with Group(2) as group:
        result = group.run("managers.train", path=str(path), steps=reached + 1, rows=256)
        assert {begun for begun, _ in result} == {reached}
    entries = [entry for entry in os.listdir(path) if not entry.isdigit()]
    assert entries == []


def test_orbax_restores_the_steps_of_two_processes(tmp_path: Path, two: Group) -> None:
    two.run("managers.train", path=str(tmp_path / "run"), steps=3, orbax=True)
    step = tmp_path / "run" / "3"
    links = [path.name for path in (step / "default").iterdir() if path.is_symlink()]
    assert {name.split("-")[2] for name in links} == {"0", "1"}
    assert not verify(step).stale
    with ocp.CheckpointManager(tmp_path / "run") as orbax:
        assert orbax.all_steps() == [2, 3]
        assert orbax.metrics(2) == {"loss": 0.5}
        # Orbax orders the keys of dicts.
        assert_trees_equal(orbax.restore(3), jax.tree.map(lambda leaf: leaf, reference(3)))


def test_two_processes_replace_a_checkpoint_that_another_tool_wrote(
    tmp_path: Path, two: Group
) -> None:
    save(tmp_path / "saved", {"old": np.ones(3)}, format="orbax")
    two.run("orbax_steps.replace", path=str(tmp_path / "saved"))
    assert os.listdir(tmp_path) == ["saved"]
    assert not verify(tmp_path / "saved").stale
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "saved")
    assert {name: array.tolist() for name, array in restored.items()} == dict.fromkeys(
        ("both", "columns", "joined", "replicated", "rows"), rows().tolist()
    )


def test_a_handler_of_a_user_writes_files_on_some_or_all_processes(
    tmp_path: Path, two: Group
) -> None:
    files = {
        "settings.txt": "lr 0.1",
        "processes/0.txt": "process 0",
        "processes/1.txt": "process 1",
    }
    restored = two.run("own_handlers.save_and_restore", root=str(tmp_path))
    assert restored == [files, files]
