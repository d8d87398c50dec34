"""Directories of other tools that are not read: the error says which tool, and what to load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import safetensors.numpy

import cordwood
from cordwood.errors import IncompleteCheckpointError
from tests.foreign_files.cases_of_array_files import ARRAYS, write_hub_cache

FILES = {
    ("pytorch_model.bin", "config.json"): "PyTorch's weights for transformers (pickles): load it",
    ("__0_0.distcp", ".metadata"): "a distributed checkpoint of PyTorch (pickles)",
    ("mp_rank_00_model_states.pt",): "a checkpoint of DeepSpeed or Megatron (pickles)",
    ("saved_model.pb", "fingerprint.pb"): "a SavedModel of TensorFlow: read it with TensorFlow",
    ("checkpoint", "ckpt-1.index", "ckpt-1.data-00000-of-00001"): "a checkpoint of TensorFlow",
}


@pytest.mark.parametrize(("names", "words"), FILES.items(), ids=lambda value: str(value)[:30])
def test_directories_by_the_names_in_them(
    tmp_path: Path, names: tuple[str, ...], words: str
) -> None:
    for name in names:
        (tmp_path / name).write_text('model_checkpoint_path: "ckpt-1"\n')
    for call in (cordwood.load, cordwood.open, cordwood.verify, cordwood.detect):
        with pytest.raises(IncompleteCheckpointError, match=re.escape(words)):
            call(tmp_path)


def test_the_snapshot_that_the_error_names_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "models--org--name"
    write_hub_cache(path)
    older = path / "snapshots" / ("f" * 40)
    older.mkdir()
    safetensors.numpy.save_file({"old": ARRAYS["mask"]}, older / "model.safetensors")
    with pytest.raises(IncompleteCheckpointError) as raised:
        cordwood.load(path)
    match = re.search(r"load (\S+) \(of 2 snapshots\)", str(raised.value))
    assert match is not None
    assert list(cordwood.load(match[1])) == ["w"]  # of refs/main
    with pytest.raises(IncompleteCheckpointError, match=r"load a snapshot, .*/models--org--name/"):
        cordwood.load(tmp_path)


def test_a_model_in_the_cache_without_a_snapshot(tmp_path: Path) -> None:
    for name in ("blobs", "snapshots", "refs"):
        (tmp_path / name).mkdir()
    with pytest.raises(IncompleteCheckpointError, match="without a snapshot: download it again"):
        cordwood.load(tmp_path)
