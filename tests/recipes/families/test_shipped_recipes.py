"""Shipped recipes on tiny models: files come back, and other programs make the same of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import cordwood
from cordwood.recipes import Recipe, find_recipe
from cordwood.recipes.shipped_recipes import FAMILIES, read_table
from tests.recipes.families.cases import CASES, DATA, Case
from tests.recipes.families.tensors import arrays_by_path, compress, digest, expand, tensor

BY_NAME = {case.name: case for case in CASES}
RECIPES = [(case, to) for case in CASES for to in read_table(case.family)["to"]]
CONVERTED = [
    (case, program, dtype)
    for case in CASES
    for program, dtypes in case.converted.items()
    for dtype in dtypes
]


def recipe_of(case: Case, to: str, container: str | None = None, **fields: Any) -> Recipe:
    return find_recipe(to=to, config=case.config, container=container).replace(**fields)


def write_files(folder: Path, case: Case, dtype: str = "bfloat16") -> dict[str, np.ndarray]:
    """Write the tensors of a case, and return them by the names that come back."""
    tensors = {name: tensor(name, shape, dtype) for name, shape in case.shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return {published_name(name): array for name, array in tensors.items()}


def published_name(name: str) -> str:
    """Return the name that published files have: transformers 5 leaves out a part of some."""
    return re.sub(r"^vision_tower\.(?!vision_model\.)", "vision_tower.vision_model.", name)


def load(folder: Path, recipe: Recipe) -> dict[str, np.ndarray]:
    tree = cordwood.load(folder / "model.safetensors", recipe=recipe, to="numpy")
    return arrays_by_path(tree)


def ids(value: Any) -> str:
    return value.name if isinstance(value, Case) else str(value)


@pytest.mark.parametrize(("case", "to"), RECIPES, ids=ids)
def test_files_come_back_bit_for_bit(case: Case, to: str, tmp_path: Path) -> None:
    tensors = write_files(tmp_path, case)
    recipe = recipe_of(case, to, store_dtype="float32")
    tree = cordwood.load(tmp_path / "model.safetensors", recipe=recipe, to="numpy")
    cordwood.save(tmp_path / "tree", tree)
    back = recipe.inverse().replace(store_dtype="bfloat16")
    returned = cordwood.load(tmp_path / "tree", recipe=back, to="numpy")
    assert_equal(returned, tensors)


@pytest.mark.parametrize(("case", "program", "dtype"), CONVERTED, ids=ids)
def test_other_programs_make_the_same_arrays(
    case: Case, program: str, dtype: str, tmp_path: Path
) -> None:
    write_files(tmp_path, case, dtype)
    arrays = load(tmp_path, recipe_of(case, program, container="", lossy=True))
    digests = {path: digest(array) for path, array in arrays.items()}
    assert digests == case.converted[program][dtype]


def test_every_family_has_a_case() -> None:
    assert {case.family for case in CASES} == set(FAMILIES)
    tables = Path(cordwood.__file__).parent / "recipes" / "families"
    assert sorted(path.stem for path in tables.iterdir()) == sorted(FAMILIES)


def test_names_of_many_layers_are_short() -> None:
    shapes = {f"a.{i}.b.{k}.w": (2, i % 1 + 3) for i in range(3) for k in range(2)}
    assert compress(shapes) == {"a.{0..2}.b.{0..1}.w": [2, 3]}
    gaps = {"a.0.w": (1,), "a.2.w": (1,)}
    assert compress(gaps) == {"a.0.w": [1], "a.2.w": [1]}
    assert expand(compress(gaps)) == gaps


@pytest.mark.parametrize("name", ["llama-3.1", "mistral", "gemma2", "gemma3"])
def test_scaled_bfloat16_that_would_not_come_back_is_refused(name: str, tmp_path: Path) -> None:
    write_files(tmp_path, BY_NAME[name])
    with pytest.raises(ValueError, match="store_dtype") as error:
        load(tmp_path, recipe_of(BY_NAME[name], "maxtext"))
    assert "%" in str(error.value)


def test_parameters_are_in_the_container_of_the_framework(tmp_path: Path) -> None:
    case = BY_NAME["qwen3"]
    write_files(tmp_path, case)
    assert "params/params/decoder/decoder_norm/scale" in load(tmp_path, recipe_of(case, "maxtext"))
    other = recipe_of(case, "maxtext", container="model")
    assert "model/decoder/decoder_norm/scale" in load(tmp_path, other)
    assert "norm/scale" in load(tmp_path, recipe_of(case, "flax"))


def respell(folder: Path, *changes: tuple[str, str]) -> None:
    """Replace parts of the names in a file, by regular expressions."""
    tensors = load_file(folder / "model.safetensors")
    for pattern, text in changes:
        tensors = {re.sub(pattern, text, name): array for name, array in tensors.items()}
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "pattern", "text"),
    [
        ("gpt2", r"^transformer\.", ""),
        ("qwen3-tied", r"^model\.", ""),
        ("gemma3", r"^model\.", "language_model.model."),
        ("gemma3", r"^model\.", "model.language_model."),
        ("gemma3-images", r"^language_model\.model\.", "model.language_model."),
        ("gemma3-images", r"^vision_tower\.", "vision_tower.vision_model."),
        ("gemma3-images", r"^(?=vision|multi)", "model."),
        ("gemma3-images", r"^vision_tower\.", "model.vision_tower.vision_model."),
        ("bert-encoder", "^", "bert."),
    ],
)
def test_files_whose_names_begin_otherwise(
    name: str, pattern: str, text: str, tmp_path: Path
) -> None:
    recipe = recipe_of(BY_NAME[name], "flax")
    write_files(tmp_path, BY_NAME[name])
    expected = load(tmp_path, recipe)
    respell(tmp_path, (pattern, text))
    assert_equal(load(tmp_path, recipe), expected)


def test_files_of_a_model_without_its_head(tmp_path: Path) -> None:
    write_files(tmp_path, BY_NAME["bert-encoder"])
    expected = load(tmp_path, recipe_of(BY_NAME["bert-encoder"], "flax"))
    respell(tmp_path, ("^", "bert."))
    config = {**BY_NAME["bert-encoder"].config, "architectures": ["BertForQuestionAnswering"]}
    assert_equal(load(tmp_path, find_recipe(to="flax", config=config)), expected)


def test_a_decoder_without_its_head_comes_back_under_its_names(tmp_path: Path) -> None:
    case = BY_NAME["qwen3"]
    shapes = {name: shape for name, shape in case.shapes.items() if name != "lm_head.weight"}
    write_files(tmp_path, case._replace(shapes=shapes))
    respell(tmp_path, (r"^model\.", ""))
    recipe = find_recipe(to="flax", config={**case.config, "architectures": ["Qwen3Model"]})
    cordwood.save(tmp_path / "tree", cordwood.load(tmp_path / "model.safetensors", recipe=recipe))
    returned = cordwood.load(tmp_path / "tree", recipe=recipe.inverse(), to="numpy")
    assert_equal(returned, load_file(tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    ("name", "model", "part"),
    [
        ("t5", "T5EncoderModel", ("shared.", "encoder.")),
        ("clip", "CLIPTextModel", ("text_model.",)),
        ("clip", "CLIPVisionModelWithProjection", ("vision_model.", "visual_projection.")),
    ],
)
def test_one_part_of_a_model(name: str, model: str, part: tuple[str, ...], tmp_path: Path) -> None:
    case = BY_NAME[name]
    shapes = {name: shape for name, shape in case.shapes.items() if name.startswith(part)}
    write_files(tmp_path, case._replace(shapes=shapes))
    recipe = find_recipe(to="flax", config={**case.config, "architectures": [model]})
    cordwood.save(tmp_path / "tree", cordwood.load(tmp_path / "model.safetensors", recipe=recipe))
    assert cordwood.load(tmp_path / "tree", recipe=recipe.inverse()).keys() == shapes.keys()


def assert_equal(arrays: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert arrays.keys() == expected.keys()
    for path, array in arrays.items():
        assert digest(array) == digest(expected[path]), path


def test_old_files_of_bert(tmp_path: Path) -> None:
    case = BY_NAME["bert"]
    write_files(tmp_path, case)
    expected = load(tmp_path, recipe_of(case, "flax"))
    respell(tmp_path, (r"LayerNorm\.weight", "LayerNorm.gamma"), (r"Norm\.bias", "Norm.beta"))
    old = find_recipe(to="flax", config={**case.config, "gamma_beta": 1})
    assert_equal(load(tmp_path, old), expected)
    cordwood.save(tmp_path / "tree", cordwood.load(tmp_path / "model.safetensors", recipe=old))
    returned = cordwood.load(tmp_path / "tree", recipe=old.inverse(), to="numpy")
    assert_equal(returned, load_file(tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("gpt2", {"transformer.h.0.attn.bias": (1, 1, 8, 8), "lm_head.weight": (96, 24)}),
        ("bert", {"bert.embeddings.position_ids": (1, 32), "cls.predictions.decoder.bias": (96,)}),
        ("qwen3-tied", {"lm_head.weight": (96, 24)}),
        ("t5", {"decoder.embed_tokens.weight": (96, 24)}),
        ("clip", {"text_model.embeddings.position_ids": (1, 12)}),
        ("whisper", {"proj_out.weight": (96, 24)}),
    ],
)
def test_buffers_and_copies_in_old_files_are_left_out(
    name: str, more: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    case = BY_NAME[name]
    write_files(tmp_path, case)
    expected = load(tmp_path, recipe_of(case, "flax"))
    write_files(tmp_path, case._replace(shapes={**case.shapes, **more}))
    assert_equal(load(tmp_path, recipe_of(case, "flax")), expected)


@pytest.mark.parametrize("to", ["flax", "maxtext", "tunix", "easydel"])
def test_the_text_model_of_a_model_of_texts_and_images(to: str, tmp_path: Path) -> None:
    case = BY_NAME["gemma3-images"]
    tensors = write_files(tmp_path, case)
    config = case.config["text_config"]
    recipe = find_recipe(to=to, config=config).replace(store_dtype="float32")
    text = recipe.replace(lossy=True)
    tree = load(tmp_path, text)
    respell(tmp_path, (r"^language_model\.", ""))
    part = {name: each for name, each in tensors.items() if name.startswith("language_model.")}
    save_file(
        {name.removeprefix("language_model."): each for name, each in part.items()},
        tmp_path / "model.safetensors",
    )
    assert_equal(load(tmp_path, text), tree)
    assert not [path for path in tree if "vision" in path or "mm_" in path]


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    case = BY_NAME["qwen3"]
    write_files(tmp_path, case._replace(shapes={**case.shapes, "model.layers.0.extra": (3,)}))
    with pytest.raises(ValueError, match=r"model\.layers\.0\.extra"):
        load(tmp_path, recipe_of(case, "flax"))


def test_find_recipe_says_what_it_needs() -> None:
    config = BY_NAME["qwen3"].config
    assert find_recipe("qwen3-moe", to="flax", config=config).name == "qwen3_moe to flax"
    assert find_recipe("Llama3", to="easydel").name == "llama to easydel"
    with pytest.raises(ValueError, match=r"'qwen4'.*did you mean 'qwen"):
        find_recipe("qwen4", to="flax")
    with pytest.raises(ValueError, match="no target of mixtral 'tunix': expected one of easydel"):
        find_recipe("mixtral", to="tunix")
    with pytest.raises(ValueError, match=r"needs num_attention_heads.*config"):
        find_recipe("qwen3", to="flax")
    for nothing in (None, dict[str, Any]()):
        with pytest.raises(ValueError, match="expected a family, or a config with model_type"):
            find_recipe(to="flax", config=nothing)


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_maxtext_interleaves_the_rotary_halves_of_llama_3_1(key: str, tmp_path: Path) -> None:
    case = BY_NAME["llama-3.1"]
    write_files(tmp_path, case, "float32")
    config = {**case.config, key: case.config["rope_parameters"]}
    if key == "rope_scaling":  # as before transformers 5
        del config["rope_parameters"]
    query = "params/params/decoder/layers/self_attention/query/kernel"
    new, old = (
        load(tmp_path, find_recipe(to="maxtext", config=c).replace(lossy=True))[query]
        for c in (config, BY_NAME["llama"].config)
    )
    np.testing.assert_array_equal(new[..., ::2], old[..., :6])
    np.testing.assert_array_equal(new[..., 1::2], old[..., 6:])


def test_the_data_is_small() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 300_000


@pytest.mark.parametrize(
    ("name", "to"), [("qwen3_moe", "maxtext"), ("gemma2", "tunix"), ("bert", "flax")]
)
def test_convert_carries_the_configuration_along(name: str, to: str, tmp_path: Path) -> None:
    case = BY_NAME[name]
    source = tmp_path / "source"
    source.mkdir()
    tensors = write_files(source, case)
    (source / "config.json").write_text(json.dumps(case.config))
    recipe = recipe_of(case, to)
    cordwood.convert(source, tmp_path / "tree", recipe=recipe, format="hugging_face")
    back = recipe.inverse()
    cordwood.convert(tmp_path / "tree", tmp_path / "back", recipe=back, format="hugging_face")
    assert_equal(load_file(tmp_path / "back" / "model.safetensors"), tensors)
    assert (tmp_path / "back" / "config.json").read_bytes() == (source / "config.json").read_bytes()
