"""Random state and counts of NNX are no parameters in the views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import cordwood
from cordwood.keypath import parse_path
from cordwood.viewer.diff_view import diff_view
from cordwood.viewer.leaf_kinds import place_of
from cordwood.viewer.run_view import norms_view
from cordwood.viewer.sources import OpenArguments, Sources, open_sources


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 4, 4, rngs=rngs, decode=False)


def random_leaves(state: Any) -> list[Any]:
    leaves = jax.tree.leaves(state)
    return [leaf for leaf in leaves if not jnp.issubdtype(leaf.dtype, jnp.floating)]


@pytest.fixture(params=["typed keys", "raw keys"])
def sources(request: pytest.FixtureRequest, tmp_path: Path) -> Sources:
    """Two states: each weight is multiplied by 1.1; all keys and counts are others."""
    state = nnx.state(Net(nnx.Rngs(0)))
    assert random_leaves(state)
    other = nnx.state(Net(nnx.Rngs(1)))

    def of_step(leaf: Any, later: Any, number: int) -> Any:
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return (leaf + 1) * (1 + 0.1 * number)
        chosen = later if number else leaf
        if request.param == "raw keys" and jnp.issubdtype(chosen.dtype, jax.dtypes.prng_key):
            return jax.random.key_data(chosen)
        return chosen if jnp.issubdtype(chosen.dtype, jax.dtypes.prng_key) else chosen + number

    for number in (0, 1):
        tree = jax.tree.map(lambda a, b, n=number: of_step(a, b, n), state, other)
        cordwood.save(tmp_path / str(number), tree)
    return open_sources(str(tmp_path / "0"), str(tmp_path / "1"), OpenArguments())


def test_the_update_is_that_of_the_weights(sources: Sources) -> None:
    view = diff_view(sources, None, a="a", b="b", read="all")
    (update,) = [fact for fact in view["optimizer"] if fact["name"] == "update to weight"]
    assert update["change"] == pytest.approx(0.1, rel=1e-5)
    rows = [
        position for matrix in view["matrices"] for cell in matrix["leaves"] for position in cell
    ]
    with sources.checkpoint("a") as checkpoint:
        floats = [leaf.dtype == "float32" for leaf in checkpoint.index.leaves]
    assert sorted(rows) == [position for position, is_float in enumerate(floats) if is_float]


def test_the_norms_of_the_parameters_are_those_of_the_weights(sources: Sources) -> None:
    view: Any = norms_view(sources, None, source="a", read="all")
    with sources.checkpoint("a") as checkpoint:
        dtypes = [leaf.dtype for leaf in checkpoint.index.leaves]
    groups = dict(zip(view["path"], view["group"], strict=True))
    for path, dtype in zip(view["path"], dtypes, strict=True):
        assert groups[path] == ("params" if dtype == "float32" else ""), path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("layers/0/bias/value", "bias"),
        ("layers/0/kernel/value", "kernel"),
        ("layers/0/attention/value/kernel/value", "v"),
        ("layers/0/attention/value", "v"),  # an array of that name
    ],
)
def test_the_field_of_a_variable_is_no_name(path: str, kind: str) -> None:
    place = place_of(parse_path(path))
    assert place is not None
    assert place.kind == kind


def test_quantized_weights_are_parameters(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"w": np.ones((2, 2), np.int8), "key": np.ones(2, np.uint32)})
    sources = open_sources(str(tmp_path / "a"), None, OpenArguments())
    view: Any = norms_view(sources, None, source="a", read="all")
    assert dict(zip(view["path"], view["group"], strict=True)) == {"key": "", "w": "params"}
