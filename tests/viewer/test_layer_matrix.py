"""The matrices of layers and kinds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.keypath import parse_path
from cordwood.viewer.layer_matrices import LayerMatrix, layer_matrices
from cordwood.viewer.leaf_change import LeafChange, relative_l2

NAMES = ("attn/c_attn/kernel", "attn/c_proj/kernel", "mlp/c_fc/kernel", "ln_1/scale", "ln_2/scale")


def changed(path: str, change: float, before: float = 1.0) -> LeafChange:
    return LeafChange(parse_path(path), "changed", change, before)


def cell(matrix: LayerMatrix, layer: str, kind: str) -> tuple[float | None, str | None]:
    position = matrix.layers.index(layer) * len(matrix.kinds) + matrix.kinds.index(kind)
    return matrix.values[position], matrix.states[position]


@pytest.mark.parametrize("layers", [1, 2, 12, 200])
def test_a_row_for_each_layer_and_a_column_for_each_kind(layers: int) -> None:
    changes = [
        changed(f"params/h_{layer}/{name}", 0.01) for layer in range(layers) for name in NAMES
    ]
    (matrix,) = layer_matrices(changes)
    assert matrix.group == "params"
    assert matrix.layers == tuple(map(str, range(layers)))
    assert matrix.kinds == ("norm", "qkv", "o", "up")
    assert set(matrix.states) == {"changed"}
    assert sorted(leaf for leaves in matrix.leaves for leaf in leaves) == list(range(len(changes)))


def test_several_leaves_of_a_cell_are_combined() -> None:
    (matrix,) = layer_matrices(
        [changed("h_0/ln_1/scale", 3.0, 6.0), changed("h_0/ln_2/scale", 4.0, 8.0)]
    )
    assert cell(matrix, "0", "norm") == (0.5, "changed")


def test_a_frozen_block_and_a_layer_with_nans_are_states() -> None:
    changes = [
        LeafChange(parse_path(f"params/h_{layer}/{name}"), "identical")
        if layer == 1
        else LeafChange(
            parse_path(f"params/h_{layer}/{name}"), "changed", 0.1, 1.0, broken=layer == 2
        )
        for layer in range(4)
        for name in NAMES
    ]
    (matrix,) = layer_matrices(changes)
    rows = [set(matrix.states[4 * layer : 4 * layer + 4]) for layer in range(4)]
    assert rows == [{"changed"}, {"equal"}, {"nan"}, {"changed"}]
    assert matrix.values[4:8] == (0.0, 0.0, 0.0, 0.0)


def test_leaves_outside_of_layers_are_the_first_row() -> None:
    (matrix,) = layer_matrices(
        [
            changed("params/h_0/attn/c_attn/kernel", 0.1),
            changed("params/wte/embedding", 0.2),
            changed("params/lm_head/kernel", 0.3),
            changed("params/mystery", 0.4),
        ]
    )
    assert matrix.layers == ("outside layers", "0")
    assert matrix.kinds == ("embedding", "qkv", "head", "other")
    assert cell(matrix, "outside layers", "head") == (0.3, "changed")
    assert cell(matrix, "0", "head") == (None, None)


def test_moments_have_matrices_of_their_own() -> None:
    changes = [
        changed(f"{group}/h_{layer}/mlp/c_fc/kernel", 0.1)
        for group in ("opt_state/0/mu", "opt_state/0/nu", "params")
        for layer in range(2)
    ]
    changes.append(changed("opt_state/0/count", 1.0))
    matrices = layer_matrices(changes)
    assert [matrix.group for matrix in matrices] == ["params", "mu", "nu"]
    assert [matrix.leaves for matrix in matrices] == [((4,), (5,)), ((0,), (1,)), ((2,), (3,))]


def test_several_stacks_are_labelled_by_their_names() -> None:
    (matrix,) = layer_matrices(
        [
            changed(f"{stack}.block.{layer}.layer.0.SelfAttention.q.weight", 0.1)
            for layer in range(2)
            for stack in ("encoder", "decoder")
        ]
    )
    assert matrix.layers == ("encoder 0", "encoder 1", "decoder 0", "decoder 1")


def test_an_array_of_all_layers_is_one_row() -> None:
    (matrix,) = layer_matrices([changed("params/decoder/layers/mlp/wi_0/kernel", 0.1)])
    assert (matrix.layers, matrix.kinds) == (("all layers",), ("gate",))


def test_numbered_modules_are_layers_if_there_are_no_others() -> None:
    convolutions = [changed(f"params/Conv_{i}/kernel", 0.1) for i in range(2)]
    (matrix,) = layer_matrices(convolutions)
    assert matrix.layers == ("0", "1")
    (matrix,) = layer_matrices([*convolutions, changed("params/h_0/ln_1/scale", 0.1)])
    assert matrix.layers == ("outside layers", "0")
    assert cell(matrix, "outside layers", "conv")[1] == "changed"


def test_a_model_without_layers_has_no_matrix() -> None:
    assert layer_matrices([]) == []
    assert layer_matrices([changed("w", 1.0), changed("b", 1.0)]) == []
    assert layer_matrices([changed(str(i), 1.0) for i in range(20_000)]) == []


def test_rare_kinds_share_the_last_column() -> None:
    changes = [changed(f"layers/{i}/name_{i}x", 0.1) for i in range(60)]
    changes += [changed(f"layers/{i}/q_proj/kernel", 0.1) for i in range(60)]
    (matrix,) = layer_matrices(changes)
    assert len(matrix.kinds) == 32
    assert matrix.kinds[0] == "q"
    assert matrix.kinds[-1] == "other"
    assert sum(map(len, matrix.leaves)) == len(changes)


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (["equal", "identical"], "equal"),
        (["equal", "changed"], "changed"),
        (["equal", "recast"], "changed"),
        (["unread", "equal"], "unread"),
        (["changed", "added"], "added"),
        (["changed", "removed"], "removed"),
        (["renamed"], "renamed"),
        (["reshaped", "changed"], "reshaped"),
    ],
)
def test_the_state_of_a_cell_is_the_worst_of_its_leaves(states: list[str], state: str) -> None:
    (matrix,) = layer_matrices(
        [LeafChange(("layers", 0, "ln_1", str(i)), state) for i, state in enumerate(states)]
    )
    assert matrix.states == (state,)


def test_the_relative_l2_of_leaves_is_that_of_their_sums() -> None:
    identical = LeafChange(("w",), "identical")
    assert relative_l2([]) is None
    assert relative_l2([identical]) == 0.0
    assert relative_l2([identical, changed("x", 1.0, 2.0)]) == 0.5
    assert relative_l2([LeafChange(("w",), "equal", 0.0, 3.0), changed("x", 1.0, 4.0)]) == 0.2
    assert relative_l2([LeafChange(("w",), "unread"), changed("x", 1.0, 2.0)]) is None
    assert relative_l2([changed("x", 1.0, 0.0)]) == math.inf
    assert relative_l2([changed("x", 0.0, 0.0)]) == 0.0


@given(
    st.lists(
        st.builds(
            LeafChange,
            st.lists(
                st.sampled_from(["params", "layers", "h_1", 0, 3, "q", "x", "opt_state", "mu"]),
                max_size=6,
            ).map(tuple),
            st.sampled_from(["changed", "equal", "identical", "added", "removed", "unread"]),
            st.one_of(st.none(), st.floats(0, 1e6)),
            st.one_of(st.none(), st.floats(0, 1e6)),
            st.none(),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_each_leaf_is_in_at_most_one_cell(changes: list[LeafChange]) -> None:
    positions: list[int] = []
    for matrix in layer_matrices(changes):
        assert len(matrix.values) == len(matrix.layers) * len(matrix.kinds)
        assert len(set(matrix.layers)) == len(matrix.layers)
        for leaves, state in zip(matrix.leaves, matrix.states, strict=True):
            assert (state is None) == (not leaves)
            positions += leaves
    assert len(set(positions)) == len(positions)
