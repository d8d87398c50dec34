"""Real processes save directories of the zarr layout together."""

from __future__ import annotations

import json
import os
import random
import re
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from eformer.serialization import serialization as eformer

import cordwood
from cordwood.processes.rendezvous import SILENCE_SECONDS
from cordwood.testing import assert_trees_equal
from tests.processes.group import Group
from tests.processes.spread_trees import SPECS, reference

KILLS = 3
ROWS = 512  # 17 MB


def save(group: Group, path: Path, step: int, **options: Any) -> None:
    group.run("spread_trees.save", path=str(path), step=step, format="zarr", **options)


def load(group: Group, path: Path, step: int, **options: Any) -> None:
    result = group.run("spread_trees.load", path=str(path), steps=[step], **options)
    assert result == [step] * group.count


def files(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


@pytest.mark.usefixtures("cut_small_arrays")  # as they are where no process has all of one
def test_the_bytes_do_not_depend_on_the_number_of_processes(tmp_path: Path, four: Group) -> None:
    save(four, tmp_path / "four", 1, columns=2)
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    tree = reference(1)
    for name, spec in SPECS.items():
        tree[name] = jax.device_put(tree[name], jax.NamedSharding(mesh, spec))
    cordwood.save(tmp_path / "one", tree, format="zarr")
    four_wrote, one_wrote = files(tmp_path / "four"), files(tmp_path / "one")
    for result in (four_wrote, one_wrote):
        del result["tensorstore_index.json"], result["partly/.zarray"]  # each process has all of it
    whole = four_wrote.pop("partly/0.0")
    assert whole == one_wrote.pop("partly/0.0") + one_wrote.pop("partly/1.0")
    assert four_wrote == one_wrote


@pytest.mark.parametrize("managed", [False, True])
def test_eformer_reads_what_processes_wrote(tmp_path: Path, two: Group, managed: bool) -> None:
    path = tmp_path / "x"
    (path / "notes").mkdir(parents=True)
    (path / "notes/note").write_text("mine")
    for step, prefix in enumerate(["model", None, "model"]):
        arguments: dict[str, Any] = {"path": str(path), "prefix": prefix, "managed": managed}
        assert two.run("directories.save_leaves", step=step, **arguments) == [[True], []]
    two.run("directories.load_leaves", path=str(path), prefix="model", step=2)
    index = json.loads((path / "tensorstore_index.json").read_text())
    assert sorted(index["prefixes"]) == ["model"]
    assert (path / "notes/note").read_text() == "mine"
    mesh = jax.make_mesh((8,), ("x",))
    for prefix, step in (("model", 2), (None, 1)):
        loaded = eformer.tree_deserialize_leaves(path, mesh, prefix=prefix)
        expected = reference(step)
        for name in SPECS:
            np.testing.assert_array_equal(np.asarray(loaded[name]), expected[name])
    assert os.listdir(tmp_path) == ["x"]


def test_keys_that_are_spread(tmp_path: Path, two: Group) -> None:
    path = tmp_path / "x"
    two.run("directories.save_keys", path=str(path))
    loaded = cordwood.load(path)["keys"]
    expected = jax.random.split(jax.random.key(5), 16)
    assert_trees_equal(jax.random.key_data(loaded), jax.random.key_data(expected))


def test_processes_with_other_options_save_nothing(tmp_path: Path, two: Group) -> None:
    path = tmp_path / "x"
    two.run("managers.hasten", silence_seconds=10.0)
    try:
        for text in two.fail("directories.save_otherwise", path=str(path)):
            assert f"process 1 came to save {path} as zarr with zstd, process 0 to save" in text
    finally:
        two.run("managers.hasten", silence_seconds=SILENCE_SECONDS)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
@pytest.mark.parametrize("process", range(2))
def test_a_process_whose_disk_fails(tmp_path: Path, two: Group, process: int, call: str) -> None:
    path = tmp_path / "x"
    save(two, path, 1)
    before = files(path)
    arguments: dict[str, Any] = {"process": process, "call": call, "step": 2, "format": "zarr"}
    texts = two.fail("directories.save_failing", path=str(path), **arguments)
    assert texts[process].startswith("StorageError: ")
    other = texts[1 - process]
    assert other.startswith(
        f"ProcessError: process {process} failed to save {path} as zarr: StorageError"
    )
    assert files(path) == before
    assert os.listdir(tmp_path) == ["x"]
    save(two, path, 3)
    load(two, path, 3)


@pytest.mark.parametrize("process", range(2))
def test_a_process_that_waits_is_interrupted(tmp_path: Path, two: Group, process: int) -> None:
    path = tmp_path / "x"
    texts = two.run("directories.save_interrupted", path=str(path), process=process, format="zarr")
    assert texts[process] == "KeyboardInterrupt: "
    expected = f"ProcessError: process {process} failed to save {path} as zarr: StoppedError: it"
    assert texts[1 - process].startswith(expected)
    assert os.listdir(tmp_path) == []
    save(two, path, 1)
    load(two, path, 1)


@pytest.mark.parametrize("call", ["mkdir", "pwrite", "fsync"])
def test_a_process_dies_while_it_writes(tmp_path: Path, call: str) -> None:
    path = tmp_path / "x"
    with Group(4) as group:
        group.run("directories.hasten", silence_seconds=5.0, probe_seconds=60.0)
        save(group, path, 1)
        before = files(path)
        arguments: dict[str, Any] = {"path": str(path), "process": 2, "call": call, "step": 2}
        group.start("directories.save_dying", format="zarr", **arguments)
        for index, result in enumerate(group.results()):
            assert result.dead == (index == 2)
            if index != 2:
                text = "ProcessError: process 2 gave no sign of life for 5 s while all met to save"
                assert str(result.error).startswith(text)
    assert files(path) == before
    assert os.listdir(tmp_path) == ["x"]


def test_a_process_is_killed_in_the_middle_of_a_save(tmp_path: Path) -> None:
    rng = random.Random(3)
    path = tmp_path / "x"
    held = 0  # the step that the checkpoint holds
    for number in range(KILLS):
        with Group(2 + 2 * (number % 2)) as group:
            group.run("directories.hasten", silence_seconds=5.0, probe_seconds=60.0)
            if held:
                load(group, path, held, rows=ROWS)
            begun = time.monotonic()
            save(group, path, held + 1, rows=ROWS)
            took = time.monotonic() - begun
            assert os.listdir(tmp_path) == ["x"]  # nothing of the one before
            victim = rng.randrange(group.count)
            wait = rng.uniform(0.2, 1.0) * took
            options: dict[str, Any] = {"rows": ROWS, "format": "zarr", "timeout_seconds": 15.0}
            group.start("spread_trees.save", path=str(path), step=held + 2, **options)
            time.sleep(wait)
            group.kill(victim)
            results = group.results()
        loaded = cordwood.load(path, to="numpy")
        current = loaded["local"]["step"]
        assert_trees_equal(loaded, reference(current, ROWS))
        for index, result in enumerate(results):
            if index == victim or current == held + 2:
                continue
            assert current == held + 1
            # A survivor whose patience ends later misses those that gave up before it, too.
            names_victim = rf"ProcessError: process(es)? [\d, and]*\b{victim}\b"
            assert victim == 0 or re.match(names_victim, str(result.error))
        held = current
