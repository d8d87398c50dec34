"""open: an open checkpoint, whose leaves and slices are read one at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import Any, Literal, Self

from cordwood.api.stored_leaf import StoredLeaf
from cordwood.did_you_mean import absent_leaf
from cordwood.errors import FormatError, LimitError, MismatchError
from cordwood.formats.detect_format import format_of, instead_of
from cordwood.formats.format_protocol import Format, Opened, OpenOptions, is_directory_format
from cordwood.index import Leaf, leaf_text
from cordwood.io.pause_python_gc import gc_paused
from cordwood.io.progress import ProgressOption, report_progress
from cordwood.io.progress_bar import progress_display, require_progress_option
from cordwood.keypath import format_path
from cordwood.loading.assign_shardings import ShardingOptions, assign_shardings
from cordwood.loading.cast import Cast, cast_targets
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.leaf_target import Target, check_x64, target_size_bytes
from cordwood.loading.load_options import validate_load_options
from cordwood.loading.match_like import Extra, Missing, match_like
from cordwood.loading.match_positions import match_by_position
from cordwood.loading.match_without_like import match_without_like
from cordwood.loading.restore_targets import restore_targets
from cordwood.message_text import counted, printable, size_text
from cordwood.plan.path_patterns import Select
from cordwood.plan.select_leaves import SelectedLeaves, select_leaves
from cordwood.plan.transpose_leaves import Transpose
from cordwood.sharding.partition_rules import Rules
from cordwood.storage.open_files import LocalFile
from cordwood.storage.paths import expand_home, local_or_url


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
    return _open(path, format, prefix, max_bytes, read_once=False, scratch=scratch)


def open_for_one_load(
    path: str | os.PathLike[str],
    *,
    format: str | None,
    prefix: str | None,
    max_bytes: int | None,
) -> Checkpoint:
    """Open a checkpoint for a single eager `load`; it frees data once it is read."""
    return _open(path, format, prefix, max_bytes, read_once=True, scratch=None)


def _open(
    path: str | os.PathLike[str],
    format: str | None,
    prefix: str | None,
    max_bytes: int | None,
    *,
    read_once: bool,
    scratch: str | os.PathLike[str] | None,
) -> Checkpoint:
    path = local_or_url(path)
    scratch = None if scratch is None else expand_home(scratch)
    detected_format = format_of(path, format=format, prefix=prefix)
    options = OpenOptions(max_bytes, read_once, scratch)
    with explaining_format(path, detected_format):
        return Checkpoint(os.fspath(path), detected_format.open(path, prefix, options))


@contextmanager
def explaining_format(path: str | os.PathLike[str], format: Format) -> Iterator[None]:
    """Name the actual format in a FormatError of the block, if the file has another format."""
    try:
        yield
    except FormatError as e:
        if is_directory_format(format) or isinstance(e, LimitError):
            raise
        with LocalFile(path) as file:
            instead = instead_of(file, format)
        if instead is None:
            raise
        raise type(e)(f"{e}; the file looks like {instead}") from e


class Checkpoint(Mapping[str, StoredLeaf]):
    """An open checkpoint: a mapping from key path strings to leaves.

    Attributes:
        path: the path or URL that was opened.
        format: the name of its format.
        index: the structure, and the type and location of each leaf (`cordwood.index.Index`).
        is_current: a function that returns True while no later save has replaced the checkpoint.
    """

    def __init__(self, path: str, opened: Opened) -> None:
        self.path = path
        self.format = opened.format
        self.index = opened.index
        self.is_current = opened.is_current
        self._reader = LeafReader(opened)

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

    def load(
        self,
        like: Any = None,
        *,
        mmap: bool = False,
        to: Literal["jax", "numpy"] | None = None,
        verify: bool | None = None,
        strict: bool = True,
        cast: bool | Cast = False,
        select: Select | None = None,
        rename: Mapping[str, str] | None = None,
        missing: Missing = "error",
        extra: Extra = "error",
        alias: bool = True,
        nest: bool = False,
        transpose: Transpose | None = None,
        mesh: Any = None,
        rules: Rules | None = None,
        shardings: Any = None,
        progress: ProgressOption = None,
    ) -> Any:
        """Return the tree, or the selected part of it; arguments as for `cordwood.load`."""
        sharding_options = ShardingOptions(mesh, rules, shardings)
        validate_load_options(
            like,
            to=to,
            cast=cast,
            missing=missing,
            extra=extra,
            sharding_options=sharding_options,
        )
        require_progress_option(progress)
        check = not mmap if verify is None else verify
        with gc_paused():
            part = self._part(select, rename, transpose)
            index = part.stored
            if like is None:
                matching = match_without_like(index, name=self.path, to=to, nest=nest)
            elif index.naming == "positions":
                if (missing, extra) != ("error", "error"):
                    raise ValueError(
                        f"{self.path} holds arrays without names: all have to be there"
                    )
                matching = match_by_position(
                    index, like, name=self.path, to=to, strict=strict, cast=cast is True
                )
            else:
                matching = match_like(
                    index,
                    like,
                    name=self.path,
                    to=to,
                    strict=strict,
                    cast=cast is True,
                    missing=missing,
                    extra=extra,
                    left_out=part.left_out,
                    transposed={index.leaves[i].key_path for i in part.axes},
                )
            targets = matching.targets
            if cast is not False and cast is not True:
                paths = [target.leaf.key_path for target in targets]
                targets = cast_targets(targets, paths, cast, naming=index.naming, where=self.path)
            if sharding_options != ShardingOptions():
                targets = assign_shardings(sharding_options, targets, matching.paths)
            check_x64(self.path, targets, has_like=like is not None, cast=cast)
            if index is not self.index:
                targets = self._targets_here(part, targets)
            with progress_display(progress, "loading") as report:
                size_bytes = 0 if report is None else sum(map(target_size_bytes, targets))
                with report_progress(size_bytes, report):
                    values = restore_targets(
                        self._reader, targets, mmap=mmap, verify=check, alias=alias
                    )
            return matching.rebuild(values)

    def _part(
        self,
        select: Select | None,
        rename: Mapping[str, str] | None,
        transpose: Transpose | None,
    ) -> SelectedLeaves:
        if select is None and not rename and transpose is None:
            return SelectedLeaves(self.index, ())
        if self.index.naming == "positions":
            raise MismatchError(
                f"{self.path} holds arrays without names, which select, rename and transpose need"
            )
        return select_leaves(
            self.index, select=select, rename=rename, transpose=transpose, where=self.path
        )

    def _targets_here(self, part: SelectedLeaves, targets: Sequence[Target]) -> list[Target]:
        """Return the targets of selected leaves, with the leaves of this checkpoint."""
        leaves = self.index.leaves
        position = {id(leaf): i for i, leaf in enumerate(part.stored.leaves)}
        positions = [position[id(target.leaf)] for target in targets]
        return [
            target._replace(leaf=leaves[part.numbers[i]], axes=part.axes.get(i))
            for target, i in zip(targets, positions, strict=True)
        ]

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
        from cordwood.notebook.tree_html import leaf_lines

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
