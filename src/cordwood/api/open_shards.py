"""Open a directory of Hugging Face's: safetensors files and an index of them."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping

from cordwood.api.contents import Checked, Contents
from cordwood.engine.files import LocalFile, ReadableFile, read_whole
from cordwood.engine.folders import names_in
from cordwood.errors import (
    FormatError,
    IncompleteCheckpointError,
    NotACheckpointError,
    counted,
)
from cordwood.formats.shards import FORMAT, MAX_INDEX_BYTES, parse_weight_map, scan

__all__ = ["open_contents", "verify_all"]

_USUAL_NAME = "model.safetensors.index.json"
_PATTERN = "*.safetensors.index.json"


def open_contents(path: str | os.PathLike[str], prefix: str | None) -> Contents:
    """All tensors of the files that the index names, as one flat dict.

    Symbolic links are followed: Hugging Face's own cache is made of them.

    Raises:
        IncompleteCheckpointError: a file that the index names is missing.
        FormatError, CorruptionError: as `formats.shards.scan`.
        NotACheckpointError: there are several indexes.
        ValueError: a prefix is asked for.
    """
    text = os.fspath(path)
    if prefix is not None:
        raise ValueError(f"{text}: prefix= is for directories of several trees; this one holds one")
    name = f"{text}/{_index_name(text)}"
    weight_map = _read_index(name)
    shards: dict[str, ReadableFile] = {}
    try:
        for shard in dict.fromkeys(weight_map.values()):
            shards[shard] = _open_shard(text, shard, weight_map, name)
        index = scan(weight_map, shards, name=name)
    except BaseException:
        for file in shards.values():
            file.close()
        raise
    return Contents(FORMAT, index, tuple(shards.values()))


def _index_name(path: str) -> str:
    names = fnmatch.filter(names_in(path), _PATTERN)
    if _USUAL_NAME in names or len(names) == 1:
        return _USUAL_NAME if _USUAL_NAME in names else names[0]
    raise NotACheckpointError(
        f"{path} has {' and '.join(names)}: remove all but the one that is meant, or call it "
        f"{_USUAL_NAME}"
    )


def _read_index(name: str) -> Mapping[str, str]:
    with LocalFile(name) as file:
        data = read_whole(file, limit_bytes=MAX_INDEX_BYTES)
    try:
        return parse_weight_map(data)
    except FormatError as e:
        raise type(e)(f"{name}: {e}") from e


def _open_shard(path: str, shard: str, weight_map: Mapping[str, str], name: str) -> ReadableFile:
    try:
        return LocalFile(f"{path}/{shard}")
    except FileNotFoundError as e:
        lost = [tensor for tensor, file in weight_map.items() if file == shard]
        raise IncompleteCheckpointError(
            f"{path} has no {shard}, which {name} names for {lost[0]!r:.200}"
            + (f" and {counted(len(lost) - 1, 'tensor')} more" if len(lost) > 1 else "")
            + ": the download is not complete; get that file"
        ) from e


def verify_all(path: str | os.PathLike[str]) -> Checked:
    """Check that all tensors are where the index says; their bytes carry no digests.

    Raises as `open_contents`.
    """
    contents = open_contents(path, None)
    for file in contents.files:
        file.close()
    sources = contents.index.sources
    return Checked(len(contents.index.leaves), 0, sum(source.size_bytes for source in sources))
