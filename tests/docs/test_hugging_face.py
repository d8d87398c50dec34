"""The examples of docs/hugging-face.md run as they stand, and do what the page says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import cordwood
from tests.children import SRC

PAGE = (SRC.parent / "docs" / "hugging-face.md").read_text()
LAYER = "encoder.layer.0"
BERT: dict[str, Any] = {
    "embeddings.position_ids": np.arange(6)[None],
    f"{LAYER}.attention.self.query.weight": np.arange(16, dtype=np.float32).reshape(4, 4),
    f"{LAYER}.attention.self.query.bias": np.arange(4, dtype=np.float32),
    f"{LAYER}.intermediate.dense.weight": np.arange(64, dtype=np.float32).reshape(16, 4),
    "pooler.dense.bias": np.ones(4, np.float32),
}


def test_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "config.json").write_text("{}")
    safetensors.numpy.save_file(BERT, tmp_path / "snapshot" / "model.safetensors", {"format": "pt"})
    names: dict[str, Any] = {}
    loaded_params: list[Any] = []
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/hugging-face.md", "exec"), names)
        loaded_params.append(names.get("params"))
    assert len(loaded_params) == 6
    _, mapped, fitted, cast, _, _ = loaded_params
    assert set(mapped) == set(BERT)
    query = fitted["layer_0"]["query"]
    np.testing.assert_array_equal(query["kernel"], BERT[f"{LAYER}.attention.self.query.weight"].T)
    assert fitted["layer_0"]["up"]["kernel"].shape == (4, 16)
    assert {leaf.dtype for leaf in cast.values()} == {np.dtype(ml_dtypes.bfloat16)}
    assert len(cast) == len(cordwood.load("bert")) == len(BERT) - 1
    tensors = safetensors.numpy.load_file("upload/model.safetensors")
    assert set(tensors) == {"layer_0.kernel", "layer_0.bias"}
    assert cordwood.verify("upload").unverified_bytes == 0


def test_the_command(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "run" / "100", {"params": {"w": np.ones(3)}, "step": 100})
    (command,) = re.findall(r"```sh\ncordwood (.*?)\n```", PAGE)
    subprocess.run(
        [sys.executable, "-m", "cordwood", *shlex.split(command)], cwd=tmp_path, check=True
    )
    assert list(cordwood.load(tmp_path / "upload")) == ["w"]
