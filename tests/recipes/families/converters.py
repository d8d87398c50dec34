"""The mappings of MaxText, Tunix and EasyDeL, run on tensors; nothing of theirs is copied here.

Each function returns digests by path, or nothing for a model that the program does not convert.
Their mapping modules are imported alone: the packages around them need accelerators, or other
versions of jax.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from tests.recipes.families.models import Model
from tests.recipes.families.tensors import digest

# A name of MaxText's for each family; its mappings differ by family alone.
MAXTEXT_MODELS = {
    "gemma2": "gemma2-9b",
    "gemma3": "gemma3-4b",
    "llama": "llama3.1-8b",
    "mixtral": "mixtral-8x7b",
    "qwen2": "qwen2.5-7b",
    "qwen3": "qwen3-8b",
    "qwen3_moe": "qwen3-30b-a3b",
}

TUNIX_FILES = {
    "gemma2": "gemma/params_safetensors.py",
    "gemma3": "gemma3/params_safetensors.py",
    "llama": "llama3/params.py",
    "qwen2": "qwen2/params.py",
    "qwen3": "qwen3/params.py",
    "qwen3_moe": "qwen3/params.py",
}

Tensors = Mapping[str, np.ndarray]
Digests = dict[str, str]


def maxtext(model: Model, config: dict[str, Any], tensors: Tensors) -> Digests:
    """Return what MaxText's mapping makes of the tensors, with scanned layers."""
    name = MAXTEXT_MODELS.get(model.family)
    rotary = (config.get("rope_parameters") or {}).get("rope_type")
    if name is None or (model.family == "llama" and rotary != "llama3"):
        return {}  # Its mapping is of Llama 3.1: MaxText permutes no other rotary embeddings.
    tensors = _with_names_in_memory(tensors, config)
    images = config.get("vision_config", {"num_hidden_layers": 0})
    config = config.get("text_config", config)
    mapping = _import_file("maxtext", "maxtext/checkpoint_conversion/utils/param_mapping.py")
    handling = _import_file("maxtext", "maxtext/checkpoint_conversion/utils/tensor_handling.py")
    sizes = SimpleNamespace(
        param_scan_axis=1,
        scan_layers=True,
        head_dim=config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]),
        num_experts=config.get("num_local_experts", 0),
    )
    nested = {"text_config": config, "vision_config": images, **config}
    nested["head_dim"] = sizes.head_dim
    sources = mapping.PARAM_MAPPING[name](nested, sizes, scan_layers=True)
    hooks = mapping.HOOK_FNS[name](nested, sizes, scan_layers=True, saving_to_hf=False)
    dtype = next(iter(tensors.values())).dtype
    digests = {}
    for path, names in sources.items():
        if not images.get("hidden_size"):
            names = _names_of_text_model(names)
        first = names
        while isinstance(first, list):
            first = first[0]
        if first not in tensors:
            continue  # Its table has the rows of all models of the family.
        part = images if "vision_encoder" in path else config
        head = part.get("head_dim", part["hidden_size"] // part["num_attention_heads"])
        layers = len(names) if isinstance(names, list) else 0
        experts = layers and isinstance(names[0], list)
        shape = _maxtext_shape(path, tensors[first].shape, head, config)
        if experts:
            shape = (len(names), len(names[0]), *shape)
        elif layers:
            shape = (*shape[:1], layers, *shape[1:])
        leaf = jax.ShapeDtypeStruct(
            shape, dtype, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])
        )
        load = handling.get_hf_loading_function(
            names, lambda key: tensors[key], hooks.get(path), leaf, sizes, path
        )
        # numpy adds 1.0 to bfloat16 in float32; MaxText casts stacked leaves alone before it saves.
        digests[path.removeprefix("params-").replace("-", "/")] = digest(
            np.asarray(load()).astype(dtype)
        )
    return digests


def _names_of_text_model(names: Any) -> Any:
    """Return names of a text model, of those of a model of texts and images."""
    if isinstance(names, list):
        return [_names_of_text_model(name) for name in names]
    return names.replace("model.language_model.", "model.")


def _with_names_in_memory(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """Return the tensors of a model of texts and images by their names in memory.

    They are those of transformers 4, which the three programs know.
    """
    if config["model_type"] != "gemma3":
        return tensors
    changes = {
        "language_model.model.": "model.language_model.",
        "vision_tower.": "model.vision_tower.vision_model.",
        "multi_modal_projector.": "model.multi_modal_projector.",
    }
    named = {}
    for name, array in tensors.items():
        beginning = next(each for each in changes if name.startswith(each))
        named[changes[beginning] + name.removeprefix(beginning)] = array
    return named


def _maxtext_shape(
    path: str, shape: tuple[int, ...], head: int, config: dict[str, Any]
) -> tuple[int, ...]:
    """Return the shape of one layer in MaxText, of the shape in a file."""
    if re.search(r"(query|key|value)-kernel$", path):
        return (shape[1], shape[0] // head, head)
    if re.search(r"(query|key|value)-bias$", path):
        return (shape[0] // head, head)
    if path.endswith("out-kernel"):
        return (shape[1] // head, head, shape[0])
    if path == "params-token_embedder-embedding":
        padding = 128 if config["model_type"] == "gemma2" else 0
        return (shape[0] + padding, shape[1])
    if path.endswith("embedding-kernel"):
        return (*shape[2:], shape[1], shape[0])
    if path.endswith("-pos_embedding"):
        return (1, *shape)
    if path.endswith("mm_input_projection-w"):
        return shape
    return shape[::-1]


def tunix(model: Model, config: dict[str, Any], tensors: Tensors) -> Digests:
    """Return what Tunix's mapping makes of the tensors."""
    if model.family not in TUNIX_FILES:
        return {}
    images = config.get("vision_config")
    config = config.get("text_config", config)
    with _stand_ins("tunix"):
        module = _import_file("google-tunix", f"tunix/models/{TUNIX_FILES[model.family]}")
    sizes = SimpleNamespace(
        embed_dim=config["hidden_size"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]),
        vision_config=images,
    )
    table = module._get_key_and_transform_mapping(sizes)
    arrays: dict[str, Any] = {}
    for name, array in tensors.items():
        name = re.sub(r"^vision_tower\.", "vision_tower.vision_model.", name)
        rows = [row for row in table.items() if re.match(row[0], name)]
        if len(rows) != 1:
            raise AssertionError(f"{name}: {len(rows)} rows of Tunix match")
        pattern, (path, change) = rows[0]
        if change is not None:
            axes, shape = change
            array = array.transpose(axes)
            array = array if shape is None else array.reshape(shape)
        arrays[re.sub(pattern, path, name)] = jnp.asarray(array)
    if hasattr(module, "_stack_experts"):
        arrays = module._stack_experts(arrays)
    if hasattr(module, "_make_preprocess_fn"):
        arrays = module._make_preprocess_fn(sizes)(arrays)
    return {path.replace(".", "/"): digest(np.asarray(array)) for path, array in arrays.items()}


def easydel(model: Model, config: dict[str, Any], tensors: Tensors) -> Digests:
    """Return what EasyDeL's four rules make of the tensors."""
    if model.family in ("bert", "vit", "t5"):
        return {}
    tensors = _with_names_in_memory(tensors, config)
    with _stand_ins("easydel", "eformer"):
        module = _import_file("easydel", "easydel/utils/parameters_transformation.py")
    convert = module.StateDictConverter
    settings = {
        "embedding_layer_names": _modules(model, torch.nn.Embedding),
        "layernorm_names": _modules(model, torch.nn.LayerNorm),
        "dtype": jnp.dtype(next(iter(tensors.values())).dtype),
    }
    weights = {name: _torch_tensor(array) for name, array in tensors.items()}
    experts = [name for name in tensors if ".experts." in name]
    if experts:
        blocks = sorted({name.partition(".experts.")[0] for name in experts})
        parts = sorted({name.split(".")[-2] for name in experts})
        weights, settings["consolidated_moe_keys"] = convert.apply_moe_transformations(
            weights,
            moe_block_names=["block"],
            moe_names=parts,
            moe_block_path=blocks,
            moe_path=[f"{block}.experts.{part}" for block in blocks for part in parts],
        )
    digests = {}
    with _stand_in_arrays(module):
        for name, value in weights.items():
            for path, array in convert.process_tensor(name, value, settings):
                digests["/".join(map(str, path))] = digest(array)
    return digests


def _torch_tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype == np.float32:
        return torch.from_numpy(array.copy())
    return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)


@contextmanager
def _stand_in_arrays(module: ModuleType) -> Iterator[None]:
    """Let EasyDeL return numpy arrays: DLPack to jax is not what is compared."""
    converter = module.TensorConverter
    original = converter.convert_pytorch_to_jnp

    def to_numpy(value: torch.Tensor, dtype: Any) -> np.ndarray:
        value = value.contiguous()
        if value.dtype == torch.bfloat16:
            return value.view(torch.int16).numpy().view(dtype)
        return value.numpy()

    converter.convert_pytorch_to_jnp = staticmethod(to_numpy)
    try:
        yield
    finally:
        converter.convert_pytorch_to_jnp = original


def _modules(model: Model, kind: type) -> list[str]:
    """Return the paths of the modules of one class."""
    with torch.device("meta"):
        config = getattr(transformers, model.config)(**model.tiny)
        network = getattr(transformers, model.model)(config)
    names = [name for name, module in network.named_modules() if isinstance(module, kind)]
    # In transformers 4 the image encoder has one more module around it.
    return [name.replace("vision_tower.", "vision_tower.vision_model.") for name in names]


def _import_file(distribution: str, path: str) -> ModuleType:
    """Import one file of an installed package, without the package."""
    name = path.replace("/", ".").removesuffix(".py")
    file = importlib.metadata.distribution(distribution).locate_file(path)
    package = name.rpartition(".")[0]
    spec = importlib.util.spec_from_file_location(name, str(file))
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    module.__package__ = package
    spec.loader.exec_module(module)
    return module


@contextmanager
def _stand_ins(*packages: str) -> Iterator[None]:
    """Let every import of these packages succeed with a stand-in."""

    class Finder:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if name.partition(".")[0] in packages:
                return importlib.util.spec_from_loader(name, self, is_package=True)  # type: ignore[arg-type]
            return None

        def create_module(self, spec: Any) -> Any:
            module = MagicMock(name=spec.name)
            module.__path__ = []
            module.__spec__ = spec
            return module

        def exec_module(self, module: Any) -> None:
            pass

    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
            del sys.modules[name]


CONVERTERS: dict[str, Callable[[Model, dict[str, Any], Tensors], Digests]] = {
    "maxtext": maxtext,
    "tunix": tunix,
    "easydel": easydel,
}
