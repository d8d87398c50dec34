"""Directories of Hugging Face's: safetensors files and an index of them, or a single file.

https://huggingface.co/docs/safetensors. The names of the files:
https://huggingface.co/docs/huggingface_hub/package_reference/serialization.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from types import MappingProxyType

from cordwood.errors import (
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    NotACheckpointError,
    StorageError,
)
from cordwood.formats.foreign_files import naming_foreign_file
from cordwood.formats.format_protocol import Opened, OpenOptions
from cordwood.formats.hugging_face.format import SHARD
from cordwood.formats.hugging_face.weight_files import Opener, WeightFiles, weight_files_at
from cordwood.formats.hugging_face.weight_map import (
    INDEX_NAME,
    SINGLE_NAME,
    find_index_name,
    read_weight_map,
)
from cordwood.formats.open_single_file import opened_file
from cordwood.formats.safetensors.read_index import read_index as read_safetensors_index
from cordwood.formats.table import Format
from cordwood.index import LEAF, Index, Leaf, Node, Pieces, Source, unreadable_leaf
from cordwood.io.open_files import LocalFile, ReadableFile
from cordwood.io.reopened_file import MAX_OPEN_FILES, ReopenedLocalFile
from cordwood.message_text import counted, first_names
from cordwood.storage.locations import Location
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import map_in_threads

_MAX_NAMED = 3  # files, in a message
FORMAT = "safetensors-shards"


def open_item(format: Format, location: Location, item: str | None, options: OpenOptions) -> Opened:
    """Return all tensors of the files that the index names, as one flat dict.

    Without an index it is what `model.safetensors` holds, or the files of a complete
    `model-*-of-N`. Symbolic links are followed: Hugging Face's own cache is made of them. Of a
    model on the hub only the index and the headers are read; the tensors of files that are not in
    the cache, while the hub cannot be reached, are leaves that cannot be read.

    Raises:
        IncompleteCheckpointError: a file that the index names is missing, or one of the N.
        FormatError, CorruptionError: as `read_index`.
        NotACheckpointError: there are several indexes; or none, and files of several checkpoints.
        ValueError: an item is asked for.
    """
    del format, options
    directory = weight_files_at(location)
    text = directory.name
    if item is not None:
        raise ValueError(f"{text}: prefix= is for directories of several trees; this one holds one")
    index_name = find_index_name(directory)
    if index_name is None and SINGLE_NAME in directory.names():
        return _open_single(directory)
    weight_map: Mapping[str, str] = {}
    by_cordwood = False
    if index_name is None:
        name = text
        shard_names = _complete_shards(directory)
    else:
        name = f"{text}/{index_name}"
        weight_map, by_cordwood = read_weight_map(directory, index_name)
        shard_names = list(dict.fromkeys(weight_map.values()))
    opener = LocalFile if len(shard_names) <= MAX_OPEN_FILES else ReopenedLocalFile
    shards: dict[str, ReadableFile] = {}
    out_of_reach: dict[str, str] = {}
    with ExitStack() as stack:
        for shard in shard_names:
            try:
                file = _open_shard(opener, directory, shard, weight_map, name)
            except StorageError as e:
                if index_name is None:
                    raise
                out_of_reach[shard] = str(e)
            else:
                shards[shard] = stack.enter_context(file)
        index = read_index(
            weight_map, shards, by_cordwood=by_cordwood, name=name, out_of_reach=out_of_reach
        )
        stack.pop_all()
    return Opened(FORMAT, index, tuple(shards.values()))


def _open_single(directory: WeightFiles) -> Opened:
    try:
        file = directory.open(SINGLE_NAME)
    except FileNotFoundError as e:
        raise IncompleteCheckpointError(
            f"{directory.name}: {SINGLE_NAME} is a link to a file that is not there: the download "
            "is not complete; get that file"
        ) from e
    return opened_file(file, _read_single, name=FORMAT)


def _read_shard(file: ReadableFile) -> Index:
    with naming_foreign_file(file, "a safetensors file"):
        return read_safetensors_index(file)


def _read_single(file: ReadableFile) -> Index:
    index = _read_shard(file)
    return index._replace(naming="dotted") if is_flat(index) else index  # as of several files


def _open_shard(
    opener: Opener,
    directory: WeightFiles,
    shard: str,
    weight_map: Mapping[str, str],
    name: str,
) -> ReadableFile:
    try:
        return directory.open(shard, opener)
    except FileNotFoundError as e:
        lost = [tensor for tensor, file in weight_map.items() if file == shard]
        listed = set(weight_map.values())
        others = [each for each in _tensor_files(directory) if each not in listed]
        advice = "the download is not complete; get that file"
        if others:
            advice = (
                f"it does not list {first_names(others, _MAX_NAMED)}: if these are the model, the "
                f"index is of an older save: remove {name}, and the files of a complete "
                "model-*-of-N load without it; otherwise get the file that is missing"
            )
        where = f", which {name} names for {lost[0]!r:.200}" if lost else ""
        more = f" and {counted(len(lost) - 1, 'tensor')} more" if len(lost) > 1 else ""
        raise IncompleteCheckpointError(
            f"{directory.name} has no {shard}{where}{more}: {advice}"
        ) from e


def _tensor_files(directory: WeightFiles) -> list[str]:
    return [name for name in directory.names() if name.endswith(".safetensors")]


def _complete_shards(directory: WeightFiles) -> list[str]:
    """Return the files of `model-*-of-N`, where there is no index.

    Raises IncompleteCheckpointError if one of them is missing, NotACheckpointError for files of
    several checkpoints.
    """
    path = directory.name
    sets: dict[tuple[str, str], dict[int, str]] = {}
    for name in _tensor_files(directory):
        match = SHARD.fullmatch(name)
        if match is not None:
            sets.setdefault((match[1], match[3]), {})[int(match[2])] = name
    if len(sets) != 1:
        of_each = [f"{stem}-*-of-{count}" for stem, count in sets]
        raise NotACheckpointError(
            f"{path} has no index ({INDEX_NAME}), and files of {len(sets)} checkpoints "
            f"({first_names(of_each, _MAX_NAMED)}): move all but one away, or get the index"
        )
    (((stem, count), numbered),) = sets.items()
    missing = [number for number in range(1, int(count) + 1) if number not in numbered]
    if missing:
        lost = [f"{stem}-{number:05}-of-{count}.safetensors" for number in missing]
        raise IncompleteCheckpointError(
            f"{path} has {len(numbered)} of {counted(int(count), 'file')} of {stem}-*-of-{count}, "
            f"and no index: {first_names(lost, _MAX_NAMED)} missing: the download is not complete; "
            "get what is missing"
        )
    return [numbered[number] for number in sorted(numbered)]


def read_index(
    weight_map: Mapping[str, str],
    shards: Mapping[str, ReadableFile],
    *,
    by_cordwood: bool,
    name: str,
    out_of_reach: Mapping[str, str] = MappingProxyType({}),
) -> Index:
    """Return what the files hold together: a flat dict of numpy arrays under their names.

    They come in the order of the index; what it does not list, and its files hold all the same,
    comes after that, as other readers have it. Files that cordwood wrote carry digests.

    Args:
        weight_map: the index.
        shards: the files that it names, open; they become the sources, in this order.
        by_cordwood: whether `convert` wrote the index and the files.
        name: the index's, for errors.
        out_of_reach: the other files that it names, with the reasons why they cannot be read.

    Raises:
        FormatError: a file is no safetensors file, a tensor is not where the index says, or two
            files hold tensors of one name.
        CorruptionError: a file is of a checkpoint of cordwood's that has lost its own index.
    """
    leaf_of: dict[str, Leaf] = {}
    place: dict[str, str] = {}
    sources: list[Source] = []
    metadata: Mapping[str, str] = {}
    is_distant = any(file.latency_bound for file in shards.values())
    threads = reading_threads(latency_bound=True) if is_distant else 1
    indexes = map_in_threads(_read_shard, [(file,) for file in shards.values()], threads=threads)
    for number, ((shard, file), index) in enumerate(zip(shards.items(), indexes, strict=True)):
        if index.naming != "dotted" and not (by_cordwood and is_flat(index)):
            raise CorruptionError(
                f"{file.name}: cordwood wrote this file, but its cordwood.json is missing: "
                "restore cordwood.json, which has the tree and the digests, or load this file alone"
            )
        metadata = metadata or index.metadata
        sources += index.sources
        for leaf in index.leaves:
            tensor = str(leaf.key_path[0])
            if tensor in leaf_of:
                raise FormatError(
                    f"{name}: {tensor!r:.200} is in {place[tensor]} and in {shard}: one of them is "
                    "of another checkpoint; remove it, and download the files again"
                )
            leaf_of[tensor], place[tensor] = _moved(leaf, number), shard
    for tensor, shard in weight_map.items():
        if shard in out_of_reach and tensor not in leaf_of:
            leaf_of[tensor] = unreadable_leaf((tensor,), out_of_reach[shard])
            place[tensor] = shard
    lost = [tensor for tensor, shard in weight_map.items() if place.get(tensor) != shard]
    if lost:
        tensor = lost[0]
        actual = f"it is in {place[tensor]}" if tensor in place else "none of its files has it"
        raise FormatError(
            f"{name}: {tensor!r:.200} is not in {weight_map[tensor]}, where the index says "
            f"({actual}): the files are not of one checkpoint; download them again"
            + (f"; and {counted(len(lost) - 1, 'tensor')} more" if len(lost) > 1 else "")
        )
    names = [*weight_map, *[tensor for tensor in leaf_of if tensor not in weight_map]]
    structure = (Node("dict", len(names), tuple(names)), *[LEAF] * len(names))
    leaves = tuple([leaf_of[tensor] for tensor in names])
    return Index(FORMAT, structure, leaves, tuple(sources), "dotted", metadata)


def is_flat(index: Index) -> bool:
    """Return True for a dict of arrays, as one of these files holds it."""
    return all(leaf.kind == "numpy" for leaf in index.leaves) and (
        len(index.structure) == len(index.leaves) + 1 and index.structure[0].kind == "dict"
    )


def _moved(leaf: Leaf, source: int) -> Leaf:
    storage = leaf.storage
    assert isinstance(storage, Pieces)
    pieces = tuple([piece._replace(source=source) for piece in storage.pieces])
    return leaf._replace(storage=storage._replace(pieces=pieces))
