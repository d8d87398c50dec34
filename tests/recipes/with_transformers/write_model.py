"""Files of a tiny model, with values of tests/recipes/families/tensors.py, and the model itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

from tests.recipes.families.cases import Case
from tests.recipes.families.tensors import tensor


def write_model(folder: Path, case: Case) -> None:
    """Write `config.json` and `model.safetensors`, in float32."""
    (folder / "config.json").write_text(json.dumps(case.config))
    tensors = {name: tensor(name, shape, np.float32) for name, shape in case.shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load_model(folder: Path, case: Case) -> Any:
    """Return the model of transformers that the files hold, all of whose weights are in them."""
    kind = getattr(transformers, case.config["architectures"][0])
    model, report = kind.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, attn_implementation="eager"
    )
    assert not report["missing_keys"], report
    assert not report["unexpected_keys"], report
    return model.eval()
