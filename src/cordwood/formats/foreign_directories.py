"""Directories that no format here reads: the tool that wrote them, by names in them; advice."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cordwood.io.open_files import LocalFile
from cordwood.storage.directories import list_subdirectories

_MAX_REVISION_BYTES = 100
_TORCH = "load it with torch, which cordwood never does, and write safetensors"
_TENSORFLOW = "read it with TensorFlow, and save the arrays with cordwood.save"
# Patterns of names, of which each must be there; the tool, and what to do.
_KINDS: Sequence[tuple[tuple[str, ...], str]] = (
    (("pytorch_model*.bin*",), f"PyTorch's weights for transformers (pickles): {_TORCH}"),
    (("*.distcp", ".metadata"), f"a distributed checkpoint of PyTorch (pickles): {_TORCH}"),
    (("mp_rank_*",), f"a checkpoint of DeepSpeed or Megatron (pickles): {_TORCH}"),
    (("saved_model.pb",), f"a SavedModel of TensorFlow: {_TENSORFLOW}"),
    (("*.index", "*.data-*-of-*"), f"a checkpoint of TensorFlow: {_TENSORFLOW}"),
    (("tf_model.h5",), f"a model of transformers for TensorFlow (HDF5): {_TENSORFLOW}"),
    (
        ("flax_model*.msgpack*",),
        "a model of transformers for Flax: load its file flax_model.msgpack",
    ),
)


def foreign_directory(path: str, names: Sequence[str]) -> str | None:
    """Return what a directory is, in words, and what to do; None for none of a known tool.

    Args:
        path: the directory, as the caller calls it.
        names: the names in it.
    """
    if "snapshots" in names and ("blobs" in names or "refs" in names):
        return _cached_model(path)
    models = fnmatch.filter(names, "models--*")
    if models:
        return f"the cache of huggingface_hub: load a snapshot, {path}/{models[0]}/snapshots/..."
    for patterns, what in _KINDS:
        if all(fnmatch.filter(names, pattern) for pattern in patterns):
            return what
    return None


def _cached_model(path: str) -> str:
    """Return the text for a model in the cache of huggingface_hub; names the current snapshot."""
    revisions = sorted(list_subdirectories(f"{path}/snapshots"))
    what = "a model in the cache of huggingface_hub"
    if not revisions:
        return f"{what}, without a snapshot: download it again"
    main = ""
    with suppress(OSError, UnicodeDecodeError), LocalFile(f"{path}/refs/main") as file:
        main = file.read(0, min(_MAX_REVISION_BYTES, file.size_bytes)).decode().strip()
    revision = main if main in revisions else revisions[-1]
    others = f" (of {len(revisions)} snapshots)" if len(revisions) > 1 else ""
    return f"{what}: load {Path(path) / 'snapshots' / revision}{others}"
