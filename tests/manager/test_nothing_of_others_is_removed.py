"""No call that changes something removes or changes a byte that cordwood did not write.

Roots of random content, runs of other tools, users' directories, links, mount points and unfinished
steps, under every kind of name, and random calls. Afterwards everything that is not cordwood's is
there, byte for byte.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import flax.serialization
import numpy as np
import orbax.checkpoint as ocp
import pytest

import cordwood
from cordwood import CheckpointManager, CordwoodError
from tests.cli.conftest import Run, run
from tests.storage.conformance import FolderFiles
from tests.storage.stores import StoredObjects, new_url

__all__ = ["run"]

DISK_SEEDS, STORE_SEEDS, CALLS = range(12), range(4), 9
TREE = {"w": np.arange(5.0), "frozen": np.ones(40)}
HEX = "0123456789abcdef"
DATA = f"data-{HEX}-0-0.safetensors"
MINE = {
    "notes.txt": b"mine",
    "logs/1/events": b"events",
    "100/readme": b"readme",
    "data-1.safetensors": b"data of mine",
    "model.safetensors.index.json": b'{"weight_map":{"w":"model-00001.safetensors"}}',
    ".hidden/.keep": b"",
    f"backup/{DATA}": b"a copy of mine",
}


def names(dice: random.Random) -> Iterator[str]:
    """Yield names: of steps in every form, names like temporary ones of cordwood, and others."""
    numbers = dice.sample(range(20, 90), 30)
    forms = ["{}", "0{}", "000{}", "checkpoint_{}", "run-{}", "step_{}", "ckpt-{}", "{}.old"]
    forms += ["{}.safetensors", ".{}.cordwood-tmp", ".{}.cordwood-xyz.deleted", "{}.cordwood-stage"]
    forms += [".cordwood-{}", "{}.orbax-checkpoint-tmp-1", "exp{}", "{} (copy)"]
    for number in numbers:
        yield ("{}" if dice.random() < 0.5 else dice.choice(forms)).format(number)


def put(files: MutableMapping[str, bytes], where: str, content: Mapping[str, bytes]) -> None:
    for name, data in content.items():
        files[f"{where}/{name}"] = data


def some_of_mine(dice: random.Random) -> dict[str, bytes]:
    return {name: MINE[name] for name in dice.sample(sorted(MINE), dice.randint(1, 4))}


# Each puts something into a root under a name. What it returns may go: cordwood wrote it.

Put = Callable[[str, str, MutableMapping[str, bytes], random.Random], None]


def directory_of_mine(
    root: str, name: str, files: MutableMapping[str, bytes], dice: random.Random
) -> None:
    put(files, name, some_of_mine(dice))


def another_run(
    root: str, name: str, files: MutableMapping[str, bytes], dice: random.Random
) -> None:
    with CheckpointManager(f"{root}/{name}") as manager:
        for step in (1, 2):
            manager.save(step, {**TREE, "step": step})
    put(files, name, {"config.yaml": b"lr: 1"} if dice.random() < 0.5 else {})


def unfinished_with_mine(
    root: str, name: str, files: MutableMapping[str, bytes], dice: random.Random
) -> None:
    put(files, name, {DATA: b"dead", **some_of_mine(dice)})


def step_with_mine(
    root: str, name: str, files: MutableMapping[str, bytes], dice: random.Random
) -> None:
    cordwood.save(f"{root}/{name}", TREE)
    put(files, name, some_of_mine(dice) | {"model.safetensors.index.json.bak": b"x"})
    with suppress(KeyError):
        del files[f"{name}/model.safetensors.index.json"]  # cordwood's name beside its index


IN_STORES: list[Put] = [directory_of_mine, another_run, unfinished_with_mine, step_with_mine]


def step_of_orbax(
    root: str, name: str, files: MutableMapping[str, bytes], dice: random.Random
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ocp.PyTreeCheckpointer(use_ocdbt=dice.random() < 0.5).save(Path(root) / name, TREE)


def step_of_eformer(
    root: str, name: str, files: MutableMapping[str, bytes], dice: random.Random
) -> None:
    cordwood.save(f"{root}/{name}/", TREE, format="zarr")
    put(files, name, {"metadata.json": b"{}"})


def file_of_flax(
    root: str, name: str, files: MutableMapping[str, bytes], dice: random.Random
) -> None:
    files[name] = flax.serialization.to_bytes(TREE)


def link(root: str, name: str, files: MutableMapping[str, bytes], dice: random.Random) -> None:
    target = Path(root).parent / "elsewhere" / name
    put(files, f"../elsewhere/{name}", some_of_mine(dice))
    (Path(root) / name).symlink_to(target)


def mount_point(
    root: str, name: str, files: MutableMapping[str, bytes], dice: random.Random
) -> None:
    """Mount a directory of mine there; where that is not permitted it is a link."""
    target = Path(root).parent / "mounted" / name
    put(files, f"../mounted/{name}", {DATA: b"dead", **some_of_mine(dice)})
    (Path(root) / name).mkdir()
    command = ["mount", "--bind", str(target), f"{root}/{name}"]
    with suppress(FileNotFoundError):
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            return
    (Path(root) / name).rmdir()
    (Path(root) / name).symlink_to(target)


ON_DISKS = [*IN_STORES, step_of_orbax, step_of_eformer, file_of_flax, link, mount_point]


def is_written_by_cordwood(name: str) -> bool:
    """Return True for a file that a manager may remove: by its name, directly in a step."""
    folder, _, last = name.rpartition("/")
    if "/" in folder or not folder:
        return False
    return last in (DATA, "cordwood.json", "model.safetensors.index.json") or (
        last.startswith("data-") and len(last) > len("data-1.safetensors")
    )


def call(root: str, entries: set[str], dice: random.Random, run: Run, outside: str) -> None:
    """Make one call that changes something; what it refuses does not matter here."""
    entry = dice.choice(sorted(entries))
    step = int((re.findall(r"\d{1,9}", entry) or ["7"])[0])
    manager = CheckpointManager(root, keep=1, background=False)
    actions: dict[str, Callable[[], Any]] = {
        "save": lambda: manager.save(dice.randrange(90, 10_000), TREE),
        "save over": lambda: cordwood.save(f"{root}/{entry}", TREE),
        "delete": lambda: manager.delete(step),
        "delete_after": lambda: manager.delete_after(step),
        "gc": lambda: cordwood.gc(root),
        "gc of a step": lambda: cordwood.gc(f"{root}/{step}"),
        "copy": lambda: cordwood.copy(root, outside),
        "copy in": lambda: cordwood.copy(outside, root),
        "convert": lambda: cordwood.convert(f"{root}/{entry}", f"{root}/{step}", overwrite=True),
        "rm": lambda: run("rm", root, "--yes"),
        "rm of a step": lambda: run("rm", f"{root}/{step}", "--dry-run"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(CordwoodError, OSError, ValueError):
            actions[dice.choice(sorted(actions))]()


def fill(
    root: str, files: MutableMapping[str, bytes], dice: random.Random, kinds: list[Put]
) -> None:
    with CheckpointManager(root) as manager:
        for step in (1, 5):
            manager.save(step, TREE)
    each_name = names(dice)
    files["README"] = b"of mine"
    for kind in [*kinds, *dice.choices(kinds, k=3)]:
        name = next(each_name)
        while "safetensors" in name and kind is not directory_of_mine:
            name = next(each_name)
        kind(root, name, files, dice)


def work(
    root: str, files: MutableMapping[str, bytes], dice: random.Random, run: Run, outside: str
) -> None:
    existing = {f"{step}/" for step in (1, 5)}
    theirs = {
        name: data
        for name, data in dict(files).items()
        if not name.startswith((*existing, ".data/")) and not is_written_by_cordwood(name)
    }
    assert len(theirs) > 10
    for _ in range(CALLS):
        entries = {name.partition("/")[0] for name in files}
        call(root, entries or {"7"}, dice, run, outside)
        current = dict(files)
        lost = [name for name, data in theirs.items() if current.get(name) != data]
        assert not lost


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "run"
    root.mkdir()
    yield root
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    for line in mounts:  # wherever a mount point has gone; a space is \\040 there
        target = line.split()[1].encode().decode("unicode_escape")
        if target.startswith(f"{tmp_path}/"):
            subprocess.run(["umount", target], check=True)


@pytest.mark.parametrize("seed", DISK_SEEDS)
def test_no_file_of_others_on_a_disk_is_removed(disk: Path, run: Run, seed: int) -> None:
    dice = random.Random(seed)
    files = FolderFiles(disk)
    fill(str(disk), files, dice, ON_DISKS)
    elsewhere = {each: dict(FolderFiles(disk.parent / each)) for each in ("elsewhere", "mounted")}
    links = {each.name: os.readlink(each) for each in disk.iterdir() if each.is_symlink()}
    work(str(disk), files, dice, run, str(disk.parent / "copied"))
    for each, before in elsewhere.items():
        current = dict(FolderFiles(disk.parent / each))
        assert {name: data for name, data in before.items() if name.rpartition("/")[2] != DATA} == {
            name: data for name, data in current.items() if name.rpartition("/")[2] != DATA
        }
    assert links == {each.name: os.readlink(each) for each in disk.iterdir() if each.is_symlink()}


@pytest.mark.parametrize("kind", ["memory", "s3"])
@pytest.mark.parametrize("seed", STORE_SEEDS)
def test_no_object_of_others_in_a_store_is_removed(
    run: Run, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    dice = random.Random(seed)
    with new_url(kind, monkeypatch) as url:
        files = StoredObjects(f"{url}/run")
        fill(f"{url}/run", files, dice, IN_STORES)
        work(f"{url}/run", files, dice, run, f"{url}/copied")
