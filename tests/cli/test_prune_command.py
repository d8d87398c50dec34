"""cordwood prune: the plan, the deletion, and what is never deleted."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood.policies.parse_keep import parse_keep
from tests.cli.conftest import Run
from tests.golden.orbax_checkpoints import GOLDEN

KEEP = "last 1 | every 300 | best 1 loss"


@pytest.fixture(params=["a disk", "an object store"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a run of the steps 100, 200 ... 600; of step 200 the loss is least."""
    root = f"{tmp_path}/run" if request.param == "a disk" else f"memory://{tmp_path.name}/run"
    with cordwood.CheckpointManager(root, keep=10) as manager:
        for step in range(100, 700, 100):
            tree = {"w": np.full(300_000, step, np.float32), "same": np.ones(500_000, np.float32)}
            manager.save(step, tree, metrics={"loss": abs(step - 200.0)})
    return root


def steps(root: str) -> list[int]:
    return cordwood.StepReader(root).steps()


def test_prune_deletes_what_the_policy_does_not_keep(run: Run, root: str) -> None:
    ran = run("prune", root, "--keep", KEEP, "--dry-run")
    assert ran.code == 0, ran.err
    assert "200  keep    loss 0, of the best 1" in ran.out
    assert "100  delete  no policy keeps it" in ran.out
    assert f"{root}: 3 steps of 6" in ran.out
    assert steps(root) == [100, 200, 300, 400, 500, 600]
    ran = run("prune", root, "--keep", KEEP, "--yes", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["deleted"] == [100, 400, 500]
    assert steps(root) == [200, 300, 600]
    for step in steps(root):
        assert cordwood.verify(f"{root}/{step}").path.endswith(str(step))


def test_the_bytes_are_those_that_the_disk_gets_back(run: Run, tmp_path: Path) -> None:
    with cordwood.CheckpointManager(tmp_path / "run", keep=10) as manager:
        for step in (1, 2, 3):
            # A file of its own for each array, so that the one that is the same is linked.
            tree = {"w": np.full(300_000, step), "same": np.ones(80_000_000, np.uint8)}
            manager.save(step, tree)
    before = sum({f.stat().st_ino: f.stat().st_size for f in _files(tmp_path)}.values())
    ran = run("prune", f"{tmp_path}/run", "--keep", "last 1", "--json", "--yes")
    after = sum({f.stat().st_ino: f.stat().st_size for f in _files(tmp_path)}.values())
    assert json.loads(ran.out)["freed_bytes"] == before - after > 0


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*/*") if file.is_file()]


def test_steps_that_are_not_a_managers_to_delete_stay(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "run"
    tree = {"w": np.ones(3)}
    with cordwood.CheckpointManager(root, keep=10) as manager:
        for step in range(1, 6):
            manager.save(step, tree)
    cordwood.save(root / "0", tree)  # no manager saved it
    (root / "2" / "notes.txt").write_text("mine")
    with cordwood.StepReader(root).pin(3):
        ran = run("prune", str(root), "--keep", "last 1", "--yes")
    assert ran.code == 1
    assert "2 stays: it holds notes.txt, which cordwood did not write" in ran.out
    assert sorted(os.listdir(root)) == ["0", "2", "3", "5"]


def test_steps_of_other_tools_are_removed_by_the_command_that_is_printed(
    run: Run, tmp_path: Path
) -> None:
    for step in range(2):
        shutil.copytree(GOLDEN / "v0-zarr2-files", tmp_path / "run" / str(step))
    ran = run("prune", f"{tmp_path}/run", "--keep", "last 1", "--yes")
    assert ran.code == 0, ran.err
    command = f"cordwood rm {tmp_path}/run/0"
    assert f"2 steps that no CheckpointManager saved: kept; to remove one: {command}" in ran.out
    assert run(*command.split()[1:], "--yes").code == 0
    assert os.listdir(tmp_path / "run") == ["1"]


def test_published_versions_stay(run: Run, tmp_path: Path) -> None:
    publisher = cordwood.WeightPublisher(tmp_path / "published", full_every=10)
    for step in range(3):
        publisher.publish(step, {"w": np.full(3, step, np.float32)}).wait()
    ran = run("prune", f"{tmp_path}/published", "--keep", "last 1", "--yes")
    assert ran.code == 0, ran.err
    assert cordwood.WeightFollower(tmp_path / "published", to="numpy").update() is not None


@pytest.mark.parametrize(("answer", "code", "count"), [("n", 1, 6), ("y", 0, 1), ("", 2, 6)])
def test_prune_asks(
    run: Run, root: str, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, count: int
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n" if answer else ""))
    ran = run("prune", root, "--keep", "last 1")
    assert ran.code == code, ran.err
    assert ("pass --yes where nobody can answer" in " ".join(ran.err.split())) == (code == 2)
    assert len(steps(root)) == count


@pytest.mark.parametrize(
    "text", ["", "last", "last x", "last 0", "best 1", "best 1 loss up", "within 3w", "newest 3"]
)
def test_other_policies_are_refused(run: Run, tmp_path: Path, text: str) -> None:
    ran = run("prune", str(tmp_path), "--keep", f"every 3 | {text}")
    assert ran.code == 2
    assert "expected last N, every N, best N METRIC" in " ".join(ran.err.split())


@pytest.mark.parametrize(
    ("term", "problem"),
    [
        ("best 1 los", "no step has the metric 'los'; the metrics that steps have: loss"),
        ("at 200 20", "there is no step 20; the steps: 100, 200, 300, 400, 500, 600"),
    ],
)
def test_a_policy_of_what_no_step_has_deletes_nothing(
    run: Run, root: str, term: str, problem: str
) -> None:
    for keep in (term, f"last 2 | {term}", f"last 2 & {term}"):
        ran = run("prune", root, "--keep", keep, "--yes")
        assert ran.code == 2
        assert problem in " ".join(ran.err.split())
        assert len(steps(root)) == 6
    assert run("prune", root, "--keep", "last 6 | best 1 los", "--yes").code == 0


def test_prune_needs_a_run(run: Run, tmp_path: Path) -> None:
    ran = run("prune", f"{tmp_path}/misspelt", "--keep", "last 1", "--yes")
    assert (ran.code, "there is nothing" in ran.err) == (3, True)
    cordwood.save(tmp_path / "tree", {"w": np.ones(3)})
    ran = run("prune", f"{tmp_path}/tree", "--keep", "last 1", "--yes")
    assert ran.code == 2
    assert "not a directory of steps" in " ".join(ran.err.split())


def test_policies_are_those_of_the_manager() -> None:
    some = (cordwood.KeepLast(2) & cordwood.KeepEvery(10)) | cordwood.KeepBest(1, "acc", mode="max")
    assert parse_keep("last 2 & every 10 | best 1 acc max") == some
    assert repr(parse_keep("within 2h")) == "KeepWithin(seconds=7200.0)"
