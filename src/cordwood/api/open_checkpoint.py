"""open: open a checkpoint, to read its leaves and slices one at a time."""

from __future__ import annotations

import os

from cordwood.loading.checkpoint import Checkpoint, open_at
from cordwood.recipes.recipe import Recipe
from cordwood.storage.locations import parse_local_path, parse_location


def open(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    prefix: str | None = None,
    max_bytes: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    recipe: Recipe | None = None,
) -> Checkpoint:
    """Open a checkpoint to read single leaves, or parts of leaves.

    Use it in a `with` block, or call `close()`. No leaf is read yet, but a compressed file is
    decompressed here, and its contents stay in memory, or in `scratch`, until the checkpoint is
    closed. An open directory keeps its contents even if another save replaces it. This does not
    hold for directories of more than 64 files and for object stores: after such a save, reading a
    leaf may raise an error. Once another program has written to a file in place, reading from it
    raises FileChangedError.

    Args:
        path: a file, a directory, or the URL of a directory in an object store. The suffix of a
            file gives its format; if the suffix is unknown, the bytes of the file do.
            `run/latest` is the newest complete step of `run`, `run/best` the best by its metric.
        format: the name of the format, for a file whose suffix does not give it. For a directory,
            no other format is looked for.
        prefix: the name of one tree of a directory, or of one item of an Orbax checkpoint. None:
            the tree that was saved without a prefix, or the only one.
        max_bytes: the limit for the decompressed size, in bytes, of a compressed file, or of all
            compressed members of a `.npz` together. None: 4 GiB (256 MiB for zstd frames that do
            not give their size), or 1100 times the file size if that is more. A stream whose size
            differs from the size of the tree in it is refused before that.
        scratch: a directory with room for the contents of a compressed file. They are kept there,
            in a file without a name that disappears when it is closed, and not in memory.
        recipe: rules that make other names, shapes and axes of those in the checkpoint
            (`cordwood.recipes.Recipe`): the open checkpoint has the leaves that they make.

    Returns:
        The open checkpoint: a mapping from key paths to leaves.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        IncompleteCheckpointError: the directory has no index; it may be a directory of steps.
        PrefixError: there is no tree of that prefix; or there are several and none was chosen.
        FormatError: the file does not follow its format; names the byte offset.
        MismatchError: `recipe` does not fit; the message has every name that it does not take.
        CorruptionError: the index of a directory is damaged, or a file of it is missing.
        LimitError: a compressed file holds more than `max_bytes`.
        StorageError: the disk of `scratch` is full or fails.

    >>> import numpy as np
    >>> from cordwood import save
    >>> save("example.safetensors", {"a": {"w": np.arange(6.0).reshape(3, 2)}})
    >>> with open("example.safetensors") as checkpoint:
    ...     print(list(checkpoint), checkpoint["a/w"].shape, checkpoint["a/w"][1:, 0])
    ['a/w'] (3, 2) [2. 4.]
    """
    location = parse_location(path)
    folder = None if scratch is None else parse_local_path(scratch, purpose="for scratch=")
    return open_at(
        location,
        format=format,
        prefix=prefix,
        max_bytes=max_bytes,
        scratch=folder,
        recipe=recipe,
    )
