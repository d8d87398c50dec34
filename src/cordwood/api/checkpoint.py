"""open: an open checkpoint, whose leaves and slices are read one at a time."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, Self, Unpack

from cordwood.api.load import load
from cordwood.api.stored_leaf import StoredLeaf
from cordwood.formats.format_protocol import OpenOptions
from cordwood.index import Leaf, leaf_text
from cordwood.keypath import format_path
from cordwood.loading.leaf_reader import LeafReader, open_reader
from cordwood.loading.load_options import LoadOptions, ReadOptions
from cordwood.loading.load_tree import load_tree
from cordwood.message_text import absent_leaf, counted, printable, size_text
from cordwood.storage.paths import expand_home


def open(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    prefix: str | None = None,
    max_bytes: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
) -> Checkpoint:
    """Open a checkpoint to read single leaves, or parts of leaves.

    Use it in a `with` block, or call `close()`. No leaf is read yet, but a compressed file is
    decompressed here, and its contents stay in memory, or in `scratch`, until the checkpoint is
    closed. An open directory keeps its contents even if another save replaces it. This does not
    hold for directories of more than 64 files and for object stores: after such a save, reading a
    leaf may raise an error.

    Args:
        path: a file, a directory, or the URL of a directory in an object store. The suffix of a
            file gives its format; if the suffix is unknown, the bytes of the file do.
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

    Returns:
        The open checkpoint: a mapping from key paths to leaves.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        IncompleteCheckpointError: the directory has no index; it may be a directory of steps.
        PrefixError: there is no tree of that prefix; or there are several and none was chosen.
        FormatError: the file does not follow its format; names the byte offset.
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
    options = OpenOptions(max_bytes, scratch=None if scratch is None else expand_home(scratch))
    return Checkpoint(open_reader(path, format=format, prefix=prefix, options=options))


class Checkpoint(Mapping[str, StoredLeaf]):
    """An open checkpoint: a mapping from key path strings to leaves.

    Attributes:
        path: the path or URL that was opened.
        format: the name of its format.
        index: the structure, and the type and location of each leaf (`cordwood.index.Index`).
        is_current: a function that returns True while no later save has replaced the checkpoint.
    """

    def __init__(self, reader: LeafReader) -> None:
        self.path = reader.path
        self.format = reader.opened.format
        self.index = reader.index
        self.is_current = reader.opened.is_current
        self._reader = reader

    @cached_property
    def _by_name(self) -> dict[str, Leaf]:
        return {format_path(leaf.key_path): leaf for leaf in self.index.leaves}

    @property
    def metadata(self) -> Mapping[str, str]:
        """The strings that are stored beside the tree."""
        return self.index.metadata

    def __getitem__(self, key_path: str) -> StoredLeaf:
        """Return a leaf; nothing of it is read yet. Raises KeyError if there is no such leaf."""
        return StoredLeaf(self._find_leaf(key_path), self)

    def _find_leaf(self, key_path: str) -> Leaf:
        """Return the entry of a leaf in the index. Raises KeyError if there is no such leaf."""
        try:
            return self._by_name[key_path]
        except (KeyError, TypeError):
            if not isinstance(key_path, str):
                raise KeyError(
                    f"{self.path}: expected a key path, a str such as 'params/w', found "
                    f"{key_path!r:.80}"
                ) from None
            raise KeyError(absent_leaf(key_path, self._by_name, path=self.path)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self.index.leaves)

    def load(self, like: Any = None, **options: Unpack[ReadOptions]) -> Any:
        """Return the tree, or the selected part of it; arguments as for `cordwood.load`."""
        for name in options.keys() - {*LoadOptions._fields}:
            raise TypeError(f"Checkpoint.load() got an unexpected keyword argument {name!r}")
        return load_tree(self._reader, like, LoadOptions(**options))

    def close(self) -> None:
        """Close the files. Arrays that map a file stay valid."""
        self._reader.opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        from cordwood.notebook.html_parts import leaf_lines

        sizes = [StoredLeaf(leaf, self).nbytes for leaf in self.index.leaves]
        rows = (
            (name, leaf_text(leaf), size_text(size))
            for (name, leaf), size in zip(self._by_name.items(), sizes, strict=True)
        )
        count = counted(len(sizes), "leaf", "leaves")
        head = f"<{self.format} checkpoint {printable(self.path)}: {count}, {size_text(sum(sizes))}"
        return "\n".join([head, *leaf_lines(rows, len(sizes))]) + ">"

    def _repr_html_(self) -> str:
        from cordwood.notebook.checkpoint_html import checkpoint_html

        return checkpoint_html(self.path, self.format, self.index)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        del subtree_renderer
        from cordwood.notebook.checkpoint_html import treescope_checkpoint

        return treescope_checkpoint(self.path, self.format, self.index, path)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)


def _signature_of_load() -> inspect.Signature:
    """Return the signature of `Checkpoint.load` as `help` shows it: as of the function `load`."""
    parameters = inspect.signature(load).parameters
    own = inspect.signature(Checkpoint.load).parameters["self"]
    kept = [parameters[name] for name in ("like", *LoadOptions._fields)]
    return inspect.Signature([own, *kept], return_annotation="Any")


setattr(Checkpoint.load, "__signature__", _signature_of_load())  # noqa: B010
