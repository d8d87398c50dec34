"""No writer replaces what it reads, or a part of that, by whatever path it is given."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.testing import assert_trees_equal

TREE = {"mlp": {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}}
FACTORS = {"mlp": {"a": np.ones((2, 1), np.float32), "b": np.ones((1, 3), np.float32)}}
LORA: Any = {"target": "{module}/w", "down": "{module}/a", "up": "{module}/b", "alpha": 1}

WRITERS: dict[str, tuple[Callable[[str], Any], tuple[str, ...]]] = {
    "convert": (lambda to: cordwood.convert("hf", to, overwrite=True), ("hf",)),
    "combine": (
        lambda to: cordwood.combine(to, {"tree": 0.5, "old": 0.5}, overwrite=True),
        ("old", "tree"),
    ),
    "convert an open combination": (
        lambda to: cordwood.convert(
            cordwood.open_combined({"tree": 0.5, "old": 0.5}), to, overwrite=True
        ),
        ("old", "tree"),
    ),
    "merge_lora": (
        lambda to: cordwood.merge_lora(to, "tree", "lora", overwrite=True, **LORA),
        ("lora", "tree"),
    ),
    "delta": (lambda to: cordwood.delta("old", "tree", to, overwrite=True), ("old", "tree")),
    "apply_delta": (
        lambda to: cordwood.apply_delta("tree", "changes", to, overwrite=True),
        ("changes", "tree"),
    ),
}


@pytest.fixture
def operands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Save the operands of all writers in the working directory."""
    monkeypatch.chdir(tmp_path)
    cordwood.save("tree", TREE)
    cordwood.save("lora", FACTORS)
    cordwood.save("hf", TREE, format="hugging_face")
    cordwood.save("old", TREE)
    cordwood.delta("tree", "old", "changes")
    os.makedirs("blobs")
    os.rename("hf/model.safetensors", "blobs/1.safetensors")
    os.symlink("../blobs/1.safetensors", "hf/model.safetensors")  # as in the cache of the hub
    os.symlink(tmp_path, "link")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("writer", [*WRITERS])
def test_no_file_of_an_operand_is_replaced(operands: Path, writer: str) -> None:
    write, names = WRITERS[writer]
    before = contents(operands)
    files = [file for name in names for file in Path(name).glob("*.safetensors")]
    assert len(files) == len(names)
    if "hf" in names:
        files.append(Path("blobs/1.safetensors"))
    paths = [*map(str, files), f"link/{files[0]}", f"blobs/../{files[0]}", f"{operands}/{files[0]}"]
    for path in paths:
        with pytest.raises(ValueError, match=r"or a part of it: write to another path"):
            write(path)
    assert contents(operands) == before
    write(str(operands / "made"))  # as the message says
    write(str(operands / "made"))  # nothing that is not read is refused
    assert {path: data for path, data in contents(operands).items() if path in before} == before


def test_a_new_checkpoint_may_lie_in_the_directory_of_an_operand(operands: Path) -> None:
    cordwood.convert("tree", "tree/half.safetensors", cast="bf16")
    cordwood.convert("tree", operands / "tree" / "again")
    assert_trees_equal(cordwood.load("tree"), TREE)
    assert_trees_equal(cordwood.load("tree/again"), TREE)


def test_no_step_is_replaced_by_the_item_that_is_links_to_its_files(operands: Path) -> None:
    with cordwood.CheckpointManager("run", orbax=True) as manager:
        manager.save(5, TREE)
    before = contents(operands / "run")
    with pytest.raises(ValueError, match="would be converted into itself or a part of it"):
        cordwood.convert("run/5/default", "run/5", overwrite=True)
    assert contents(operands / "run") == before
