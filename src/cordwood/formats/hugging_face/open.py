"""Open a directory of Hugging Face's: safetensors files and an index of them, or a single file."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping

from cordwood.errors import FormatError, IncompleteCheckpointError, NotACheckpointError
from cordwood.formats.format_protocol import Opened
from cordwood.formats.hugging_face.read_index import (
    FORMAT,
    INDEX_NAME,
    MAX_INDEX_BYTES,
    SINGLE_NAME,
    WeightMap,
    is_flat,
    parse_weight_map,
    read_index,
)
from cordwood.formats.safetensors.read_index import read_index as read_safetensors_index
from cordwood.message_text import counted
from cordwood.storage.directories import list_names
from cordwood.storage.open_files import LocalFile, ReadableFile, read_whole

_PATTERN = "*.safetensors.index.json"


def open_shards(path: str | os.PathLike[str], prefix: str | None) -> Opened:
    """Return all tensors of the files that the index names, as one flat dict.

    Without an index it is what `model.safetensors` holds. Symbolic links are followed: Hugging
    Face's own cache is made of them.

    Raises:
        IncompleteCheckpointError: a file that the index names is missing.
        FormatError, CorruptionError: as `read_index`.
        NotACheckpointError: there are several indexes.
        ValueError: a prefix is asked for.
    """
    text = os.fspath(path)
    if prefix is not None:
        raise ValueError(f"{text}: prefix= is for directories of several trees; this one holds one")
    index_name = _index_name(text)
    if index_name is None:
        return _open_single(text)
    name = f"{text}/{index_name}"
    parsed = _read_weight_map(name)
    weight_map = parsed.files
    shards: dict[str, ReadableFile] = {}
    try:
        for shard in dict.fromkeys(weight_map.values()):
            shards[shard] = _open_shard(text, shard, weight_map, name)
        index = read_index(parsed, shards, name=name)
    except BaseException:
        for file in shards.values():
            file.close()
        raise
    return Opened(FORMAT, index, tuple(shards.values()))


def _index_name(path: str) -> str | None:
    """Return the name of the index; None where there is none, but a single file."""
    names = fnmatch.filter(list_names(path), _PATTERN)
    if not names:
        return None
    if INDEX_NAME in names or len(names) == 1:
        return INDEX_NAME if INDEX_NAME in names else names[0]
    raise NotACheckpointError(
        f"{path} has {' and '.join(names)}: remove all but the one that is meant, or call it "
        f"{INDEX_NAME}"
    )


def _open_single(path: str) -> Opened:
    try:
        file = LocalFile(f"{path}/{SINGLE_NAME}")
    except FileNotFoundError as e:
        raise IncompleteCheckpointError(
            f"{path}: {SINGLE_NAME} is a link to a file that is not there: the download is not "
            "complete; get that file"
        ) from e
    try:
        index = read_safetensors_index(file)
        if is_flat(index):
            index = index._replace(naming="dotted")  # as of several files
        return Opened(FORMAT, index, (file,))
    except BaseException:
        file.close()
        raise


def _read_weight_map(name: str) -> WeightMap:
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
