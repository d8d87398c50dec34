"""Configurations of transformers: tiny ones for each family, and those of published models.

Head sizes of 12 are no power of four: a query scaled by their root is not exact in bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

Settings = dict[str, Any]


class Model(NamedTuple):
    """A class of models with tiny settings, and the settings of published models.

    Attributes:
        family: the family, as `find_recipe` names it.
        config: the name of the class of configurations.
        model: the name of the class of models.
        tiny: settings of a model of some kB.
        sizes: settings of published models, by their names.
        separate: tensors that trained models have and fresh ones share with another tensor.
    """

    family: str
    config: str
    model: str
    tiny: Settings
    sizes: Mapping[str, Settings] = MappingProxyType({})
    separate: Mapping[str, tuple[int, ...]] = MappingProxyType({})


def _text(width: int, mlp: int, layers: int, heads: int, kv: int, vocabulary: int) -> Settings:
    return {
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocabulary,
    }


TEXT = {**_text(24, 40, 3, 4, 2, 96), "head_dim": 12, "max_position_embeddings": 64}
QWEN2 = {**_text(24, 40, 3, 4, 2, 96), "max_position_embeddings": 64}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
LONG = {
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "max_position_embeddings": 131072,
}
GEMMA = {"query_pre_attn_scalar": 12, "sliding_window": 8}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
    "vocab_size": 96,
}
VIT = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 4,
}
T5 = {
    "d_model": 24,
    "d_kv": 6,
    "d_ff": 40,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "vocab_size": 96,
}
WHISPER = {
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 32,
    "max_source_positions": 16,
    "max_target_positions": 24,
    "num_mel_bins": 8,
    "vocab_size": 96,
    "decoder_start_token_id": 1,
    "begin_suppress_tokens": None,
    **TOKENS,
}
CLIP = {
    "projection_dim": 16,
    "text_config": {
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 40,
        "max_position_embeddings": 12,
        "vocab_size": 96,
        **TOKENS,
    },
    "vision_config": VIT | {"hidden_size": 16, "num_hidden_layers": 2},
}
GEMMA3_4B = {**_text(2560, 10240, 34, 8, 4, 262208), "head_dim": 256}
SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 896,
    "patch_size": 14,
    "vision_use_head": False,
}

MODELS = {
    "llama": Model(
        "llama",
        "LlamaConfig",
        "LlamaForCausalLM",
        TEXT,
        {
            "Meta-Llama-3-8B": _text(4096, 14336, 32, 32, 8, 128256),
            "Meta-Llama-3-70B": _text(8192, 28672, 80, 64, 8, 128256),
        },
    ),
    "llama-3.1": Model(
        "llama",
        "LlamaConfig",
        "LlamaForCausalLM",
        TEXT | LONG,
        {
            "Llama-3.1-8B": _text(4096, 14336, 32, 32, 8, 128256) | LONG,
        },
    ),
    "llama-3.2": Model(
        "llama",
        "LlamaConfig",
        "LlamaForCausalLM",
        TEXT | LONG | {"tie_word_embeddings": True},
    ),
    "mistral": Model(
        "mistral",
        "MistralConfig",
        "MistralForCausalLM",
        TEXT,
        {"Mistral-7B-v0.1": _text(4096, 14336, 32, 32, 8, 32000)},
    ),
    "mixtral": Model(
        "mixtral",
        "MixtralConfig",
        "MixtralForCausalLM",
        TEXT | {"num_local_experts": 4},
        {"Mixtral-8x7B-v0.1": _text(4096, 14336, 32, 32, 8, 32000) | {"num_local_experts": 8}},
    ),
    "qwen2": Model(
        "qwen2",
        "Qwen2Config",
        "Qwen2ForCausalLM",
        QWEN2,
        {"Qwen2.5-7B": _text(3584, 18944, 28, 28, 4, 152064)},
    ),
    "qwen2-tied": Model(
        "qwen2", "Qwen2Config", "Qwen2ForCausalLM", QWEN2 | {"tie_word_embeddings": True}
    ),
    "qwen3": Model(
        "qwen3",
        "Qwen3Config",
        "Qwen3ForCausalLM",
        TEXT,
        {"Qwen3-8B": _text(4096, 12288, 36, 32, 8, 151936) | {"head_dim": 128}},
    ),
    "qwen3-tied": Model(
        "qwen3", "Qwen3Config", "Qwen3ForCausalLM", TEXT | {"tie_word_embeddings": True}
    ),
    "qwen3_moe": Model(
        "qwen3_moe",
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        TEXT | EXPERTS,
        {
            "Qwen3-30B-A3B": {
                **_text(2048, 6144, 48, 32, 4, 151936),
                "head_dim": 128,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 768,
            }
        },
    ),
    "gemma2": Model(
        "gemma2",
        "Gemma2Config",
        "Gemma2ForCausalLM",
        TEXT | GEMMA | {"num_hidden_layers": 4},
        {"gemma-2-9b": _text(3584, 14336, 42, 16, 8, 256000) | {"head_dim": 256}},
    ),
    "gemma3": Model(
        "gemma3",
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        TEXT | GEMMA | {"num_hidden_layers": 8},
        {"gemma-3-4b-text": GEMMA3_4B},
    ),
    "gemma3-images": Model(
        "gemma3",
        "Gemma3Config",
        "Gemma3ForConditionalGeneration",
        {
            "text_config": TEXT | GEMMA | {"num_hidden_layers": 8},
            "vision_config": VIT | {"vision_use_head": False},
            "mm_tokens_per_image": 4,
        },
        {"gemma-3-4b-pt": {"text_config": GEMMA3_4B, "vision_config": SIGLIP}},
    ),
    "gpt2": Model(
        "gpt2",
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_embd": 24, "n_layer": 3, "n_head": 2, "n_positions": 32, "vocab_size": 96}
        | {"bos_token_id": 1, "eos_token_id": 2},
        {"gpt2": {}},
    ),
    "bert": Model("bert", "BertConfig", "BertForPreTraining", BERT, {"bert-base-uncased": {}}),
    "bert-encoder": Model("bert", "BertConfig", "BertModel", BERT),
    "vit": Model(
        "vit",
        "ViTConfig",
        "ViTForImageClassification",
        VIT | {"num_labels": 5},
        {"vit-base-patch16-224": {"num_labels": 1000}},
    ),
    "vit-encoder": Model("vit", "ViTConfig", "ViTModel", VIT),
    "t5": Model(
        "t5",
        "T5Config",
        "T5ForConditionalGeneration",
        T5,
        {"t5-base": {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}},
    ),
    "t5-1.1": Model(
        "t5",
        "T5Config",
        "T5ForConditionalGeneration",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        {
            "t5-v1_1-base": {
                "d_model": 768,
                "d_ff": 2048,
                "num_layers": 12,
                "num_heads": 12,
                "feed_forward_proj": "gated-gelu",
                "tie_word_embeddings": False,
            }
        },
        {"lm_head.weight": (96, 24)},
    ),
    "whisper": Model(
        "whisper",
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        WHISPER,
        {
            "whisper-small": {
                "d_model": 768,
                "encoder_layers": 12,
                "decoder_layers": 12,
                "encoder_attention_heads": 12,
                "decoder_attention_heads": 12,
                "encoder_ffn_dim": 3072,
                "decoder_ffn_dim": 3072,
            }
        },
    ),
    "clip": Model("clip", "CLIPConfig", "CLIPModel", CLIP, {"clip-vit-base-patch32": {}}),
}
