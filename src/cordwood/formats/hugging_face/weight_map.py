"""The index of a directory of safetensors files: of each tensor the name of its file.

What `transformers.save_pretrained` writes: `{"metadata": {...}, "weight_map": {tensor: file}}`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError, NotACheckpointError
from cordwood.formats.hugging_face.weight_files import WeightFiles
from cordwood.io.open_files import read_whole

INDEX_PATTERN = "*.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
INDEX_NAME = f"{SINGLE_NAME}.index.json"
MAX_INDEX_BYTES = 100_000_000
WRITER = {"writer": "cordwood"}  # in the metadata of an index: its files are of cordwood's
MAX_NAME_BYTES = 255  # of a file, as file systems have it


def find_index_name(directory: WeightFiles) -> str | None:
    """Return the name of the index; None where there is none, but a single file."""
    names = fnmatch.filter(directory.names(), INDEX_PATTERN)
    if INDEX_NAME in names:
        return INDEX_NAME
    if len(names) > 1:
        raise NotACheckpointError(
            f"{directory.name} has {' and '.join(names)}: remove all but the one that is meant, or "
            f"call it {INDEX_NAME}"
        )
    return names[0] if names else None


def files_in_index(directory: WeightFiles) -> Collection[str]:
    """Return the names of the files that the index in a directory refers to; () without one.

    Raises FormatError, NotACheckpointError or LimitError if it cannot be read, and OSError.
    """
    name = find_index_name(directory)
    return () if name is None else set(read_weight_map(directory, name)[0].values())


def read_weight_map(directory: WeightFiles, index_name: str) -> tuple[Mapping[str, str], bool]:
    """Return of each tensor the name of its file, and whether `convert` wrote the index."""
    name = f"{directory.name}/{index_name}"
    with directory.open(index_name) as file:
        data = read_whole(file, limit_bytes=MAX_INDEX_BYTES)
    try:
        members = parse_json(data.decode(), f"{name}: the index")
    except UnicodeDecodeError as e:
        raise FormatError(f"{name}: it is not UTF-8 at byte {e.start}") from e
    weight_map = members.get("weight_map") if type(members) is dict else None
    if type(weight_map) is not dict:
        raise FormatError(f"{name}: expected an object with a weight_map, found {members!r:.80}")
    if not weight_map:
        raise FormatError(
            f"{name}: its weight_map is empty: expected the names of tensors and their files"
        )
    for tensor, shard in weight_map.items():
        if type(shard) is not str or not _is_plain(shard):
            raise FormatError(
                f"{name}: weight_map: {tensor!r:.200}: expected the name of a file beside it, "
                f"found {shard!r:.80}"
            )
    metadata = members.get("metadata")
    return weight_map, type(metadata) is dict and WRITER.items() <= metadata.items()


def _is_plain(name: str) -> bool:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return (
        size <= MAX_NAME_BYTES
        and name not in ("", ".", "..")
        and not any(mark in name for mark in "/\\\0")
    )
