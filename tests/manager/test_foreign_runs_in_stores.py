"""Runs of other tools in object stores: read as on a disk, and never taken for nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager, StepReader
from cordwood.errors import IncompleteCheckpointError, StepError, UnsupportedFormatError
from tests.foreign_files.make.__main__ import GOLDEN
from tests.foreign_files.make.values import leaves_of
from tests.foreign_files.reading import assert_equal_leaves
from tests.storage.stores import KINDS, StoredObjects, new_url

LEVANTER = Path("tests/golden/jax-0.10.2-step-100")
RUNS = {
    "orbax-0.12.8/standard.run": [100, 200],
    "orbax-0.12.8/composite.run": [5],
    "orbax-0.12.8/legacy.run": [2, 3],
    "orbax-0.2.7/legacy.run": [2, 3],
    "orbax-0.4.8/legacy.run": [2, 3],
    "flax-0.6.11/flax.run": [9, 10],
    "flax-0.6.11/orbax.run": [9, 10],
}


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with new_url(request.param, monkeypatch) as url:
        yield url


def upload(source: Path, url: str) -> None:
    """Put the files of a directory below a URL; below gs:// with the file that Orbax adds there."""
    objects = StoredObjects(url)
    for path in source.rglob("*"):
        name = path.relative_to(source).as_posix()
        if path.is_file():
            objects[name] = path.read_bytes()
        elif url.startswith("gs://") and (path / "checkpoint").exists():
            objects[f"{name}/commit_success.txt"] = b"committed"
            objects[f"{name.partition('/')[0]}/commit_success.txt"] = b"committed"


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_read_as_on_a_disk(url: str, name: str, tmp_path: Path) -> None:
    root, steps = GOLDEN / name, RUNS[name]
    upload(root, url)
    reader, local = StepReader(url), StepReader(root)
    assert reader.steps() == steps == local.steps()
    for step in steps:
        tree, expected = reader.restore(step), local.restore(step)
        assert_equal_leaves(dict(leaves_of(tree.tree)), dict(leaves_of(expected.tree)))
        assert (tree.metrics, tree.extras) == (expected.metrics, expected.extras)
    restored = reader.restore()
    assert restored is not None
    assert restored.step == steps[-1]
    detected = cordwood.detect(url)
    assert detected.format == "steps"
    path = f"{url}/{detected.steps[-1]}"
    assert cordwood.detect(path).format == ("msgpack" if "flax.run" in name else "orbax")
    with pytest.raises(IncompleteCheckpointError, match=str(steps[-1])):
        cordwood.load(url)
    assert_equal_leaves(
        dict(leaves_of(cordwood.load(path))),
        dict(leaves_of(cordwood.load(root / detected.steps[-1]))),
    )
    assert cordwood.verify(path).leaves == len(leaves_of(restored.tree))
    with cordwood.open(path) as checkpoint:
        assert len(checkpoint) == len(leaves_of(restored.tree))
    cordwood.convert(path, tmp_path / "converted")
    assert cordwood.diff(path, tmp_path / "converted").equal


def test_a_run_goes_on_beside_the_steps_of_orbax(url: str) -> None:
    upload(GOLDEN / "orbax-0.12.8" / "standard.run", url)
    tree = {"w": np.ones(3, np.float32)}
    with CheckpointManager(url, keep=1) as manager:
        assert manager.metrics(100) == {"loss": 0.01}
        assert manager.best("loss") == 200
        for step in (0, 100, 200):
            with pytest.raises(StepError, match=f"step {step} (is not newer than|already exists)"):
                manager.save(step, tree)
        manager.save(300, tree)
        manager.save(400, tree)
    assert manager.steps() == [100, 200, 400]
    assert "saved by orbax" in str(manager.plan())
    with CheckpointManager(url) as manager:
        restored = manager.restore(like=tree)
        assert restored is not None
        assert restored.step == 400
        assert manager.restore(100).tree["step"] == 107


def test_a_step_of_orbax_is_not_replaced(url: str) -> None:
    upload(GOLDEN / "orbax-0.12.8" / "standard.run", url)
    before = dict(StoredObjects(url))
    with CheckpointManager(url) as manager:
        manager.restore(100)
        with pytest.raises(StepError, match="200"):
            manager.save(200, {"w": np.ones(3)}, force=True)
    assert dict(StoredObjects(url)) == before


def test_items_of_a_step_of_orbax_in_a_store_are_restored(url: str) -> None:
    upload(GOLDEN / "orbax-0.12.8" / "composite.run", url)
    restored = StepReader(url).restore(5, items={"extra": None})
    assert restored.items == {"extra": {"epoch": 3}}
    assert restored.extras == {"extra": {"epoch": 3}}
    assert restored.tree["step"] == 12
    assert cordwood.load(f"{url}/5", prefix="state")["step"] == 12


def test_a_checkpoint_of_orbax_given_as_the_root(url: str) -> None:
    upload(GOLDEN / "orbax-0.12.8" / "standard.run" / "100", url)
    with pytest.raises(ValueError, match=r"is a checkpoint itself \(an Orbax checkpoint\)"):
        StepReader(url).restore()


def test_steps_of_levanter_are_named(url: str) -> None:
    upload(LEVANTER, f"{url}/step-100")
    with pytest.warns(RuntimeWarning, match="nothing is restored, and there are step-100"):
        assert StepReader(url).restore() is None
    with pytest.raises(FileNotFoundError, match="there are step-100"):
        StepReader(url).restore(required=True)
    assert cordwood.detect(f"{url}/step-100").format == "zarr-tree"
    tree, expected = cordwood.load(f"{url}/step-100"), cordwood.load(LEVANTER)
    assert_equal_leaves(dict(leaves_of(tree)), dict(leaves_of(expected)))


def test_a_run_of_eformer_in_a_store_is_restored(url: str, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "run-7", {"w": np.arange(3.0)}, format="zarr", prefix="model")
    (tmp_path / "run-7" / "metadata.json").write_text("{}")
    upload(tmp_path, url)
    restored = StepReader(url).restore()
    assert restored is not None
    assert restored.step == 7
    assert (restored.tree["w"] == np.arange(3.0)).all()


def test_what_is_not_read_in_a_store_is_an_error(url: str, tmp_path: Path) -> None:
    cordwood.convert(LEVANTER, tmp_path / "7", format="hugging_face", lossy=True)
    upload(tmp_path, url)
    for read in (StepReader(url).restore, lambda: cordwood.load(f"{url}/7")):
        with pytest.raises(UnsupportedFormatError, match="which is read on a disk only: download"):
            read()
    shutil.rmtree(tmp_path / "7")


def test_saves_that_orbax_did_not_finish(url: str) -> None:
    """Orbax writes commit_success.txt last, where it does not rename."""
    upload(GOLDEN / "orbax-0.12.8" / "standard.run", url)
    del StoredObjects(url)["200/commit_success.txt"]
    reader = StepReader(url)
    assert reader.steps() == [100]
    with pytest.warns(RuntimeWarning, match=r"/200: the save of step 200 did not finish"):
        restored = reader.restore()
    assert restored is not None
    assert restored.step == 100
    with pytest.raises(IncompleteCheckpointError, match="the save of step 200 did not finish"):
        reader.restore(200)
    with pytest.raises(IncompleteCheckpointError, match=r"put an empty file commit_success.txt in"):
        cordwood.load(f"{url}/200")
    with (
        CheckpointManager(url) as manager,
        pytest.raises(StepError, match="saved by orbax, and is"),
    ):
        manager.save(200, {"w": np.ones(3)})
    StoredObjects(url)["200/commit_success.txt"] = b""
    assert cordwood.load(f"{url}/200")["step"] == 207
