"""Groups, layers and kinds of leaves, in the namings of many libraries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.keypath import DictKey, KeyPath, parse_path
from cordwood.viewer.leaf_kinds import group_of, place_of

IN_LAYERS = [
    # Flax linen
    ("params/h_3/attn/c_attn/kernel", 3, "qkv"),
    ("params/h_3/attn/c_attn/bias", 3, "bias"),
    ("params/h_3/attn/c_proj/kernel", 3, "o"),
    ("params/h_3/mlp/c_fc/kernel", 3, "up"),
    ("params/h_3/mlp/c_proj/kernel", 3, "down"),
    ("params/h_3/ln_1/scale", 3, "norm"),
    ("params/h_3/ln_1/bias", 3, "norm"),
    ("params/layers_11/attention/query/kernel", 11, "q"),
    ("params/Block_3/MultiHeadDotProductAttention_0/key/kernel", 3, "k"),
    ("params/Block_3/MlpBlock_0/Dense_0/kernel", 3, "up"),
    ("params/Block_3/MlpBlock_0/Dense_1/kernel", 3, "down"),
    ("params/Transformer/encoderblock_3/LayerNorm_0/scale", 3, "norm"),
    ("params/transformer/layer_3/mlp/gating_einsum", 3, "gate"),
    ("params/transformer/layer_3/attn/attn_vec_einsum/w", 3, "o"),
    # NNX
    ("layers/3/attn/q_proj/kernel", 3, "q"),
    ("layers/3/attn/q_proj/kernel/value", 3, "q"),
    ("layers/'3'/attn/q_proj/lora_a", 3, "q lora"),
    ("blocks/(3)/mlp/down_proj/kernel", 3, "down"),
    # Hugging Face
    ("model.layers.3.self_attn.q_proj.weight", 3, "q"),
    ("model.layers.3.self_attn.o_proj.weight", 3, "o"),
    ("model.layers.3.mlp.gate_proj.weight", 3, "gate"),
    ("model.layers.3.input_layernorm.weight", 3, "norm"),
    ("model.layers.3.block_sparse_moe.experts.5.w2.weight", 3, "down"),
    ("transformer.h.3.mlp.c_fc.weight", 3, "up"),
    ("gpt_neox.layers.3.attention.query_key_value.weight", 3, "qkv"),
    ("gpt_neox.layers.3.mlp.dense_4h_to_h.weight", 3, "down"),
    ("bert.encoder.layer.3.attention.self.value.weight", 3, "v"),
    ("bert.encoder.layer.3.attention.output.dense.weight", 3, "o"),
    ("bert.encoder.layer.3.intermediate.dense.weight", 3, "up"),
    ("bert.encoder.layer.3.output.dense.weight", 3, "down"),
    ("encoder.block.3.layer.0.SelfAttention.q.weight", 3, "q"),
    ("decoder.block.3.layer.1.EncDecAttention.q.weight", 3, "cross q"),
    ("decoder.block.3.layer.2.DenseReluDense.wo.weight", 3, "down"),
    ("model.decoder.layers.3.encoder_attn.k_proj.weight", 3, "cross k"),
    # Equinox
    ("blocks/3/attn/query_proj/weight", 3, "q"),
    ("blocks/3/attn/output_proj/weight", 3, "o"),
    ("layers/2/weight", 2, "weight"),
    # Haiku joins modules by '/'
    ("transformer%2Fh3_attn%2F~%2Flinear/w", 3, "o"),
    ("transformer%2F~%2Fblock_3%2Fmlp%2Flinear_1/w", 3, "down"),
    # MaxText: one array for each layer, and one for all layers
    ("params/decoder/layers_3/self_attention/out/kernel", 3, "o"),
    ("params/decoder/layers/self_attention/query/kernel", None, "q"),
    ("params/decoder/layers/mlp/wi_0/kernel", None, "gate"),
    ("params/decoder/layers/mlp/wo/kernel", None, "down"),
    # An unusual module keeps its names, without the number of the layer
    ("params/blocks_3/rotary/inverse_frequency", 3, "rotary/inverse_frequency"),
    ("layers_3/experts/7/adapter", 3, "experts/*/adapter"),
    ("layer1.0.conv1.weight", 1, "*/conv1/weight"),
]


@pytest.mark.parametrize(("path", "layer", "kind"), IN_LAYERS)
def test_a_leaf_of_a_layer_has_its_layer_and_kind(path: str, layer: int | None, kind: str) -> None:
    place = place_of(parse_path(path))
    assert place is not None
    assert (place.group, place.layer, place.kind, place.typical) == ("params", layer, kind, True)
    assert place.stack


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("params/wte/embedding", "embedding"),
        ("params/token_embedder/embedding", "embedding"),
        ("model.embed_tokens.weight", "embedding"),
        ("params/ln_f/bias", "norm"),
        ("params/decoder/decoder_norm/scale", "norm"),
        ("lm_head.weight", "head"),
        ("params/decoder/logits_dense/kernel", "head"),
        ("params/dense/kernel", "other"),
        ("params/mu/kernel", "other"),  # of a variational autoencoder, not of an optimizer
        ("w", "other"),
        ("", "other"),
    ],
)
def test_a_leaf_outside_of_layers(path: str, kind: str) -> None:
    place = place_of(parse_path(path))
    assert place is not None
    assert (place.stack, place.layer, place.kind) == ((), None, kind)


def test_stacks_of_one_model_have_different_names() -> None:
    encoder = place_of(parse_path("encoder.block.3.layer.0.SelfAttention.q.weight"))
    decoder = place_of(parse_path("decoder.block.3.layer.0.SelfAttention.q.weight"))
    assert encoder is not None
    assert decoder is not None
    assert encoder.stack == ("encoder", "block")
    assert decoder.stack == ("decoder", "block")


def test_numbered_modules_of_a_small_network_are_layers() -> None:
    place = place_of(parse_path("params/Conv_3/kernel"))
    assert place is not None
    assert (place.stack, place.layer, place.typical) == (("params", "Conv"), 3, False)


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("params/h_3/attn/c_attn/kernel", "params"),
        ("opt_state/0/mu/h_3/attn/c_attn/kernel", "mu"),
        ("opt_state/inner_states/adamw/inner_state/0/nu/params/h_3/ln_1/scale", "nu"),
        ("0/mu/layers/3/weight", "mu"),  # the state of optax alone
        ("opt_state/0/trace/layers/3/weight", "trace"),
        ("opt_state/0/v_row/layers/3/weight", "v_row"),
        ("optimizer/target/params/layers_3/kernel", "params"),
        ("ema_params/layers_3/kernel", "ema_params"),
        ("batch_stats/layers_3/mean", "batch_stats"),
        ("opt_state/0/count", None),
        ("opt_state/1/mu", None),
    ],
)
def test_moments_of_an_optimizer_are_groups_of_their_own(path: str, group: str | None) -> None:
    assert group_of(parse_path(path)) == group
    place = place_of(parse_path(path))
    assert (place.group if place else None) == group


KEYS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["params", "opt_state", "mu", "layers", "h_3", "layers.2", "~", "attn", "b"]),
    st.integers(0, 10**30),
    st.builds(DictKey, st.one_of(st.integers(), st.none(), st.tuples(st.text(max_size=3)))),
)


@given(st.lists(KEYS, max_size=8).map(tuple))
def test_every_path_has_a_place_or_none(path: KeyPath) -> None:
    place = place_of(path)
    assert (place is None) == (group_of(path) is None)
    if place is not None:
        assert place.kind
        assert place.layer is None or place.layer >= 0


def test_long_keys_are_cut() -> None:
    place = place_of(("layers_3", "x" * 1_000_000))
    assert place is not None
    assert len(place.kind) < 10_000
