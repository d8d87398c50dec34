"""Files that transformers wrote, and files for it: they come back bit for bit, and load again."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import cordwood
from cordwood.recipes import find_recipe
from cordwood.recipes.shipped_recipes import read_table
from tests.recipes.families.cases import CASES, Case
from tests.recipes.families.tensors import digest
from tests.recipes.families.test_shipped_recipes import published_name
from tests.recipes.with_transformers.write_model import load_model, write_model


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_files_of_transformers_come_back(case: Case, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    write_model(tmp_path / "source", case)
    files = tmp_path / "files"
    load_model(tmp_path / "source", case).to(torch.bfloat16).save_pretrained(files)
    written = load_file(files / "model.safetensors")
    assert written.keys() == case.shapes.keys()
    written = {published_name(name): array for name, array in written.items()}
    for to in read_table(case.family)["to"]:
        recipe = find_recipe(to=to, config=case.config).replace(store_dtype="float32")
        tree = cordwood.load(files / "model.safetensors", recipe=recipe, to="numpy")
        cordwood.save(tmp_path / to, tree)
        back = recipe.inverse().replace(store_dtype="bfloat16")
        returned = cordwood.load(tmp_path / to, recipe=back, to="numpy")
        assert returned.keys() == written.keys()
        for name, array in written.items():
            assert digest(np.asarray(returned[name])) == digest(array), (to, name)
        copy = tmp_path / f"{to}-files"
        copy.mkdir()
        cordwood.save(copy / "model.safetensors", returned)
        shutil.copy(files / "config.json", copy)
        load_model(copy, case)  # asserts that no weight is missing, and none is left over
