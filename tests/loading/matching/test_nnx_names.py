"""The documented rules between the names of a state of flax.nnx and those of a pure dict."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import pytest
from flax import nnx

import cordwood
from cordwood.errors import MismatchError
from cordwood.testing import assert_trees_equal
from tests.loading.tree_writers import WRITERS

RNGS = nnx.Rngs(0)
TO_PURE = {"**/value$": "**"}
TO_STATE = {"**": "**/value"}

LAYERS: Mapping[str, Callable[[], nnx.Module]] = {
    "BatchNorm": lambda: nnx.BatchNorm(4, rngs=RNGS),
    "Bidirectional": lambda: nnx.Bidirectional(
        nnx.RNN(nnx.SimpleCell(2, 3, rngs=RNGS)), nnx.RNN(nnx.GRUCell(2, 3, rngs=RNGS)), rngs=RNGS
    ),
    "Conv": lambda: nnx.Conv(2, 3, (2,), rngs=RNGS),
    "ConvTranspose": lambda: nnx.ConvTranspose(2, 3, (2,), rngs=RNGS),
    "Dict": lambda: nnx.Dict(value=nnx.Linear(2, 3, rngs=RNGS), x=nnx.Param(jax.numpy.ones(2))),
    "Dropout": lambda: nnx.Dropout(0.5, rngs=RNGS),
    "Einsum": lambda: nnx.Einsum("ab,bc->ac", (2, 3), (3,), rngs=RNGS),
    "Embed": lambda: nnx.Embed(3, 2, rngs=RNGS),
    "GRUCell": lambda: nnx.GRUCell(2, 3, rngs=RNGS),
    "GroupNorm": lambda: nnx.GroupNorm(4, 2, rngs=RNGS),
    "InstanceNorm": lambda: nnx.InstanceNorm(4, rngs=RNGS),
    "LSTMCell": lambda: nnx.LSTMCell(2, 3, rngs=RNGS),
    "LayerNorm": lambda: nnx.LayerNorm(4, use_bias=False, rngs=RNGS),
    "Linear": lambda: nnx.Linear(2, 3, rngs=RNGS),
    "LinearGeneral": lambda: nnx.LinearGeneral(2, (3, 2), rngs=RNGS),
    "List": lambda: nnx.List([nnx.Linear(2, 3, rngs=RNGS), nnx.Linear(3, 3, rngs=RNGS)]),
    "LoRA": lambda: nnx.LoRA(2, 1, 3, base_module=nnx.Linear(2, 3, rngs=RNGS), rngs=RNGS),
    "LoRALinear": lambda: nnx.LoRALinear(2, 3, lora_rank=1, rngs=RNGS),
    "MultiHeadAttention": lambda: nnx.MultiHeadAttention(
        2, 4, decode=False, dropout_rate=0.5, keep_rngs=True, normalize_qk=True, rngs=RNGS
    ),
    "OptimizedLSTMCell": lambda: nnx.OptimizedLSTMCell(2, 3, rngs=RNGS),
    "PReLU": lambda: nnx.PReLU(),
    "RMSNorm": lambda: nnx.RMSNorm(4, rngs=RNGS),
    "RNN": lambda: nnx.RNN(nnx.LSTMCell(2, 3, rngs=RNGS), rngs=RNGS),
    "Sequential": lambda: nnx.Sequential(nnx.Linear(2, 3, rngs=RNGS), nnx.relu),
    "SimpleCell": lambda: nnx.SimpleCell(2, 3, rngs=RNGS),
    "SpectralNorm": lambda: nnx.SpectralNorm(nnx.Linear(2, 3, rngs=RNGS), rngs=RNGS),
    "WeightNorm": lambda: nnx.WeightNorm(nnx.Linear(2, 3, rngs=RNGS), rngs=RNGS),
}
# Base classes, and layers without state.
OTHERS = {"Module", "RNNCellBase", "RoPE"}


def test_all_layers_of_nnx_are_tried() -> None:
    classes = {
        name
        for name, each in vars(nnx).items()
        if inspect.isclass(each) and issubclass(each, nnx.Module)
    }
    assert classes - OTHERS == LAYERS.keys()


@pytest.mark.parametrize("name", LAYERS)
def test_the_names_of_every_layer(name: str, tmp_path: Path) -> None:
    state = nnx.state(LAYERS[name]())
    pure = nnx.to_pure_dict(state)
    cordwood.save(tmp_path / "state", state)
    assert_trees_equal(cordwood.load(tmp_path / "state", like=pure, rename=TO_PURE), pure)
    assert_trees_equal(cordwood.load(tmp_path / "state", rename=TO_PURE), pure)
    cordwood.save(tmp_path / "pure", pure)
    rename = TO_STATE
    leaves = jax.tree.leaves(state, is_leaf=lambda each: isinstance(each, nnx.Variable))
    if not all(isinstance(each, nnx.Variable) for each in leaves):  # scales of WeightNorm
        with pytest.raises(MismatchError, match=r"\(in no variable of flax.nnx: ") as error:
            cordwood.load(tmp_path / "pure", like=state, rename=rename)
        (advice,) = re.findall(r"rename=(\{.*\}) keeps its name", str(error.value))
        rename = ast.literal_eval(advice)
    loaded = cordwood.load(tmp_path / "pure", like=state, rename=rename)
    assert_trees_equal(nnx.to_pure_dict(loaded), pure)


@pytest.mark.parametrize("format", WRITERS)
def test_an_attention_in_every_format(format: str, tmp_path: Path) -> None:
    state = nnx.state(nnx.MultiHeadAttention(2, 4, decode=False, rngs=RNGS))
    pure = nnx.to_pure_dict(state)
    path = WRITERS[format](tmp_path, pure if format == "orbax" else state)
    rename = {} if format == "orbax" else TO_PURE
    assert_trees_equal(cordwood.load(path, like=pure, rename=rename), pure)


def test_select_by_the_last_key(tmp_path: Path) -> None:
    tree = {"value": {"w": 1, "value": 2}, "x": {"value": 3, "value$": 4}, "$": {"y": 5}}
    cordwood.save(tmp_path / "a", tree)
    path = tmp_path / "a"
    expected = {"value": {"value": 2}, "x": {"value": 3}}
    assert cordwood.load(path, select="**/value$") == expected
    assert cordwood.load(path, select="x/value$") == {"x": {"value$": 4}}  # an exact name
    assert cordwood.load(path, select="**/value%24") == {"x": {"value$": 4}}
    assert cordwood.load(path, select="$") == {"$": {"y": 5}}
    assert cordwood.load(path, select="!**/value$")["value"] == {"w": 1}
    assert cordwood.load(path, rename={"**/value$": "**/z"})["value"] == {"w": 1, "z": 2}
    with pytest.raises(ValueError, match=r"a new path such as '\*\*/z\$' has no \$"):
        cordwood.load(path, rename={"**/value$": "**/z$"})
    numbers = {(0): {"v": 1}, "0": {"v": {"v": 2}}}
    cordwood.save(tmp_path / "b", numbers)
    for spelling in ("'0'/v/v$", "['0'].v.v$", "['0']['v']['v']$"):
        assert cordwood.load(tmp_path / "b", select=spelling) == {"0": {"v": {"v": 2}}}
