"""Files of other tools that no format here is for, and advice about them."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.formats.format_protocol import Place
from cordwood.formats.numpy_files.format import members_of_zip

_PICKLE = "a Python pickle, which cordwood never loads: load it with the program that wrote it"
# First bytes, and what to do.
_MAGIC: Sequence[tuple[bytes, str]] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: run `git lfs pull`"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file: read it with h5py, or with the program that wrote it"),
    (b"GGUF", "a GGUF file: read it with gguf"),
    (b"PK", "a zip archive without .npy members"),
    (b"\x80\2", _PICKLE),
    (b"\x80\3", _PICKLE),
    (b"\x80\4", _PICKLE),
    (b"\x80\5", _PICKLE),
    (b"\x1f\x8b", "a gzip stream that does not contain Flax's msgpack: decompress it first"),
    (
        b"\x28\xb5\x2f\xfd",
        "a zstd stream that does not contain Flax's msgpack: decompress it first",
    ),
)
_TORCH = (
    "a PyTorch file (a pickle in a zip archive), which cordwood never loads: load it with torch "
    "and write it with safetensors.torch.save_file"
)


def foreign_file(place: Place) -> str | None:
    """Return what a file is, in words, and what to do; None where that is not known."""
    is_zip = place.head.startswith(b"PK")
    members = members_of_zip(place.file) if is_zip and place.file else []
    if any(name.endswith("data.pkl") for name in members):
        return _TORCH
    for magic, text in _MAGIC:
        if place.head.startswith(magic):
            return text
    return None
