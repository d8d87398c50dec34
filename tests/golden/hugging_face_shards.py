"""A golden directory of Hugging Face, and its generator.

python -m tests.golden.hugging_face_shards writes hugging-face-shards: files of safetensors 0.8.0,
and an index as transformers writes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "hugging-face-shards"

SHARDS: dict[str, dict[str, Any]] = {
    "model-00001-of-00002.safetensors": {
        "model.embed.weight": np.arange(24, dtype=np.float32).reshape(8, 3),
        "model.norm.weight": np.arange(3, dtype=np.float16),
    },
    "model-00002-of-00002.safetensors": {"lm_head.weight": np.arange(16, dtype=np.int8)},
}


def main() -> None:
    import safetensors.numpy

    FOLDER.mkdir(exist_ok=True)
    for name, tensors in SHARDS.items():
        safetensors.numpy.save_file(tensors, FOLDER / name, {"format": "pt"})
    weight_map = {tensor: name for name, tensors in SHARDS.items() for tensor in tensors}
    total = sum(array.nbytes for tensors in SHARDS.values() for array in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    text = json.dumps(index, indent=2, sort_keys=True) + "\n"
    (FOLDER / "model.safetensors.index.json").write_text(text)


if __name__ == "__main__":
    main()
