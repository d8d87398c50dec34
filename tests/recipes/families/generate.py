"""The maker of data/: python -m tests.recipes.families.generate [CASE ...], in `.venv-recipes`."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from tests.recipes.families.cases import DATA
from tests.recipes.families.converters import CONVERTERS
from tests.recipes.families.models import MODELS, Model, Settings
from tests.recipes.families.tensors import Shapes, compress, tensor


def main(names: list[str]) -> None:
    DATA.mkdir(exist_ok=True)
    transformers.logging.set_verbosity_error()
    for name, model in MODELS.items():
        if not names or name in names:
            (DATA / f"{name}.json").write_text(_lines(document_of(model)))


def document_of(model: Model) -> dict[str, Any]:
    config, shapes = written_by_transformers(model)
    converted: dict[str, dict[str, dict[str, str]]] = {}
    for program, convert in CONVERTERS.items():
        for dtype in ("float32", "bfloat16"):
            if program != "maxtext" and dtype == "float32":
                continue  # Only MaxText computes: the others move elements of any dtype alike.
            tensors = {name: tensor(name, shape, dtype) for name, shape in shapes.items()}
            digests = convert(model, config, tensors)
            if digests:
                converted.setdefault(program, {})[dtype] = digests
    return {
        "family": model.family,
        "config": config,
        "tensors": compress(shapes),
        "converted": converted,
        "sizes": {
            size: {
                "config": config_of(model, settings),
                "tensors": compress(shapes_of(model, settings)),
            }
            for size, settings in model.sizes.items()
        },
    }


def written_by_transformers(model: Model) -> tuple[dict[str, Any], Shapes]:
    """Return the `config.json` that `save_pretrained` wrote, and the shapes of its tensors."""
    config = getattr(transformers, model.config)(**model.tiny)
    with tempfile.TemporaryDirectory() as folder:
        getattr(transformers, model.model)(config).save_pretrained(folder)
        written = json.loads((Path(folder) / "config.json").read_text())
        del written["transformers_version"]
        with safe_open(Path(folder) / "model.safetensors", "numpy") as file:
            names = list(file.keys())
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
    if shapes != shapes_of(model, model.tiny):
        raise AssertionError(
            f"{model.model}: the names of files and of models without memory differ"
        )
    return written, {**shapes, **model.separate}


def config_of(model: Model, settings: Settings) -> dict[str, Any]:
    """Return the `config.json` of a model, without the tables of labels."""
    config = getattr(transformers, model.config)(**settings)
    config.architectures = [model.model]
    document = json.loads(config.to_json_string(use_diff=True))
    for key in ("transformers_version", "id2label", "label2id"):
        document.pop(key, None)
    return document


def shapes_of(model: Model, settings: Settings) -> Shapes:
    """Return the shapes that `save_pretrained` would write, of a model without memory."""
    with torch.device("meta"):
        network = getattr(transformers, model.model)(
            getattr(transformers, model.config)(**settings)
        )
    tensors = remove_tied_weights_from_state_dict(network.state_dict(), network)
    for name in network._keys_to_ignore_on_save or ():
        tensors.pop(name, None)
    tensors = revert_weight_conversion(network, tensors)
    return {name: tuple(value.shape) for name, value in sorted(tensors.items())}


def _lines(document: dict[str, Any]) -> str:
    """Return JSON with each list on one line."""
    text = json.dumps(document, indent=1)
    return re.sub(r"\[\s+([^][{}]+?)\s+\]", _one_line, text) + "\n"


def _one_line(match: re.Match[str]) -> str:
    return f"[{' '.join(match[1].split())}]"


if __name__ == "__main__":
    main(sys.argv[1:])
