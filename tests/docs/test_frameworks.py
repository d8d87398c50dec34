"""The recipes of docs/frameworks.md run as they stand, and do what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cordwood
from cordwood.testing import assert_trees_equal
from tests.children import SRC

PAGE = (SRC.parent / "docs" / "frameworks.md").read_text()
SECTIONS = {
    title: re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for title, text in re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
}


def run(title: str) -> dict[str, Any]:
    """Run the blocks of a section; what they have defined."""
    names: dict[str, Any] = {"cw": cordwood}
    (section,) = [each for each in SECTIONS if each.startswith(title)]
    for block in SECTIONS[section]:
        exec(compile(block, f"docs/frameworks.md, {section}", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_equinox() -> None:
    names = run("equinox")
    model = eqx.nn.MLP(2, 3, 64, 2, key=jax.random.key(0))
    assert eqx.tree_equal(names["model"], model)


def test_nnx() -> None:
    names = run("NNX")
    assert list(cordwood.open("for_others.safetensors")) == ["bias", "kernel"]
    assert_trees_equal(jax.tree.leaves(names["state"]), jax.tree.leaves(names["pure"]))


def test_lora() -> None:
    names = run("LoRA")
    dense = names["model"]["dense"]
    np.testing.assert_array_equal(dense["lora_a"], np.ones((4, 2)))
    assert dense["kernel"] is names["base"]["dense"]["kernel"]
    assert names["adapters"]["dense"]["kernel"] is None


def test_flax_train_state() -> None:
    names = run("Flax: a TrainState")
    assert_trees_equal(names["state"], names["train_step"](names["make_state"]()))


def test_another_optimizer_and_inference() -> None:
    names = run("Another optimizer")
    assert names["state"]["step"] == 100
    assert repr(jax.tree.structure(names["state"])) == repr(jax.tree.structure(names["fresh"]))
    names = {"cw": cordwood, "params": {"w": jnp.zeros((2, 2))}}
    (section,) = [each for each in SECTIONS if each.startswith("Params only")]
    exec(SECTIONS[section][0], names)
    assert_trees_equal(names["params"], {"w": jnp.ones((2, 2))})
    assert cordwood.load("params.safetensors")["w"].dtype == jnp.bfloat16


def test_hugging_face() -> None:
    params = run("Hugging Face")["params"]
    assert params["layer_1"]["query"]["kernel"].dtype == jnp.bfloat16
    assert params["embed"]["embedding"].shape == (16, 4)
    assert params["embed"]["position_ids"].dtype == jnp.int32


def test_every_section_with_code_has_a_test() -> None:
    assert [title.split()[0].rstrip(":") for title, blocks in SECTIONS.items() if blocks] == [
        *["Flax", "equinox", "NNX", "LoRA", "Another", "Params", "Hugging"]
    ]


def test_static_fields_are_neither_stored_nor_compared() -> None:
    """See the table in docs/frameworks.md."""

    class Model(eqx.Module):
        w: jax.Array
        heads: int = eqx.field(static=True)

    cordwood.save("m", Model(jnp.ones(2), heads=3))
    loaded = cordwood.load("m", like=Model(jnp.zeros(2), heads=5))
    assert loaded.heads == 5
    np.testing.assert_array_equal(loaded.w, np.ones(2))
