"""open: a checkpoint to look into, one leaf or a slice of it at a time."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import Any, Literal, Self

from cordwood.api.stored_leaf import StoredLeaf
from cordwood.api.tree_preview import leaf_lines
from cordwood.did_you_mean import absent_leaf
from cordwood.errors import FormatError, LimitError, MismatchError, counted
from cordwood.formats.detect_format import format_of, instead_of
from cordwood.formats.format_protocol import Format, Opened, OpenOptions, is_directory_format
from cordwood.index import Box, Leaf
from cordwood.io.gc_pause import gc_paused
from cordwood.io.progress import Report, report_progress
from cordwood.io.source_digests import SourceDigests
from cordwood.keypath import format_path
from cordwood.loading.assign_shardings import ShardingOptions, assign_shardings
from cordwood.loading.cast import Cast, cast_targets
from cordwood.loading.leaf_target import Target, target_size_bytes
from cordwood.loading.load_options import validate_load_options
from cordwood.loading.match_like import Extra, Missing, match_like
from cordwood.loading.match_positions import match_by_position
from cordwood.loading.match_without_like import match_without_like
from cordwood.loading.read_context import ReadContext
from cordwood.loading.restore_boxes import device_boxes
from cordwood.loading.restore_targets import check_x64, restore_targets
from cordwood.message_text import printable, size_text
from cordwood.plan.leaf_text import leaf_text
from cordwood.plan.path_patterns import Select
from cordwood.plan.select_leaves import SelectedLeaves, select_leaves
from cordwood.plan.transpose_leaves import Transpose
from cordwood.sharding.partition_rules import Rules
from cordwood.storage.open_files import LocalFile
from cordwood.storage.urls import expand_home, local_or_url


def open(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    prefix: str | None = None,
    max_bytes: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
) -> Checkpoint:
    """Open a checkpoint without reading its leaves.

    Use it in a `with` block, or call `close()`. A compressed file is decompressed here, and
    what it holds stays in memory, or in `scratch`, as long as the checkpoint lives. A directory
    stays as it was while it is open, whatever is saved there meanwhile; of very many files (64),
    and in an object store, only until then: reading a leaf may then be an error.

    Args:
        path: the file, whose suffix says the format (or its bytes, where that is unknown), or the
            directory, or the URL of one.
        format: the name of the format of a file, where the suffix does not say it, or of a
            directory, which is then not searched for an index of another format.
        prefix: which tree of a directory, or item of an Orbax checkpoint. None: the one saved
            without a prefix, or the only one.
        max_bytes: how far a compressed file may grow, and all compressed members of a `.npz`.
            None: to 4 GiB (256 MiB for zstd frames that do not tell their size), or 1100 times
            its size if that is more; a stream that is larger or smaller than the tree in it tells
            is refused before that.
        scratch: a directory with room for what a compressed file holds, which is then not kept
            in memory, but on that disk, in a file without a name: nothing is left of it.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        IncompleteCheckpointError: there is a directory without an index, perhaps one of steps.
        PrefixError: there is no such tree, or none is asked for and there are several.
        FormatError: the file is not what its format says; names the byte offset.
        CorruptionError: the index of a directory is damaged, or a file of it is missing.
        LimitError: it decompresses to more than `max_bytes`.
        StorageError: the disk of `scratch` is full, or fails.

    >>> import numpy as np
    >>> from cordwood import save
    >>> save("/tmp/example.safetensors", {"a": {"w": np.arange(6.0).reshape(3, 2)}})
    >>> with open("/tmp/example.safetensors") as checkpoint:
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
    """As `open`, for a single eager `load`, which lets go of what it has read."""
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
    found = format_of(path, format=format, prefix=prefix)
    options = OpenOptions(max_bytes, read_once, scratch)
    with explaining_format(path, found):
        return Checkpoint(os.fspath(path), found.open(path, prefix, options))


@contextmanager
def explaining_format(path: str | os.PathLike[str], format: Format) -> Iterator[None]:
    """Add to a FormatError in the block what the file is, if it is of another format."""
    try:
        yield
    except FormatError as e:
        if is_directory_format(format) or isinstance(e, LimitError):
            raise
        with LocalFile(path) as file:
            instead = instead_of(file, format)
        if instead is None:
            raise
        raise type(e)(f"{e}; this is {instead}") from e


class Checkpoint(Mapping[str, StoredLeaf]):
    """An open checkpoint: a mapping from key path strings to leaves.

    Attributes:
        path: where it lies.
        format: its format's name.
        index: everything but the bulk bytes (`cordwood.index.Index`).
        digests: those of each source.
        is_current: whether no save has replaced it since; called.
    """

    def __init__(self, path: str, opened: Opened) -> None:
        self.path = path
        self.format = opened.format
        self.index = opened.index
        self._files = opened.files
        self._digests = SourceDigests(self.index.sources, opened.fetch_digests)
        self.is_current = opened.is_current
        self._locate = opened.locate

    @cached_property
    def _by_name(self) -> dict[str, Leaf]:
        return {format_path(leaf.key_path): leaf for leaf in self.index.leaves}

    @property
    def metadata(self) -> Mapping[str, str]:
        """The strings that were saved beside the tree."""
        return self.index.metadata

    def __getitem__(self, key_path: str) -> StoredLeaf:
        return StoredLeaf(self._find_leaf(key_path), self)

    def _find_leaf(self, key_path: str) -> Leaf:
        """Return what the index says of a leaf. Raises KeyError where there is none."""
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
        progress: Report | None = None,
    ) -> Any:
        """The tree, or what is selected of it; see `cordwood.load`."""
        placing = ShardingOptions(mesh, rules, shardings)
        validate_load_options(like, to=to, cast=cast, missing=missing, extra=extra, placing=placing)
        check = not mmap if verify is None else verify
        with gc_paused():
            part = self._part(select, rename, transpose)
            index = part.stored
            if like is None:
                fitted = match_without_like(index, name=self.path, to=to, nest=nest)
            elif index.naming == "positions":
                if (missing, extra) != ("error", "error"):
                    raise ValueError(
                        f"{self.path} holds arrays without names: all have to be there"
                    )
                fitted = match_by_position(
                    index, like, name=self.path, to=to, strict=strict, cast=cast is True
                )
            else:
                fitted = match_like(
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
            targets = fitted.targets
            if cast is not False and cast is not True:
                paths = [target.leaf.key_path for target in targets]
                targets = cast_targets(targets, paths, cast, naming=index.naming, where=self.path)
            if placing != ShardingOptions():
                targets = assign_shardings(placing, targets, fitted.paths)
            check_x64(self.path, targets, has_like=like is not None, cast=cast)
            if index is not self.index:
                targets = self._own(part, targets)
            with report_progress(sum(map(target_size_bytes, targets)) if progress else 0, progress):
                values = self._restore(targets, mmap=mmap, verify=check, alias=alias)
            return fitted.rebuild(values)

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

    def _own(self, part: SelectedLeaves, targets: Sequence[Target]) -> list[Target]:
        """Return targets for leaves of a part with the leaves of this checkpoint itself."""
        leaves = self.index.leaves
        position = {id(leaf): i for i, leaf in enumerate(part.stored.leaves)}
        found = [position[id(target.leaf)] for target in targets]
        return [
            target._replace(leaf=leaves[part.numbers[i]], axes=part.axes.get(i))
            for target, i in zip(targets, found, strict=True)
        ]

    def _restore(
        self, targets: Sequence[Target], *, mmap: bool, verify: bool, alias: bool
    ) -> list[Any]:
        """The values of the targets, leaves of this checkpoint, in their order."""
        if self._locate is not None:
            placed = device_boxes(targets)
            wanted = [placed[i].values() if i in placed else None for i in range(len(targets))]
            leaves = self._with_pieces([target.leaf for target in targets], wanted)
            pairs = zip(targets, leaves, strict=True)
            targets = [target._replace(leaf=leaf) for target, leaf in pairs]
        return restore_targets(
            self.index,
            self._files,
            targets,
            mmap=mmap,
            verify=verify,
            alias=alias,
            digests=self._digests,
        )

    def _with_pieces(
        self, leaves: Sequence[Leaf], boxes: Sequence[Collection[Box] | None]
    ) -> Sequence[Leaf]:
        """Leaves of this checkpoint with their pieces, as far as boxes (None: all) need them."""
        if self._locate is None:
            return leaves
        numbers = [self._number_of[id(leaf)] for leaf in leaves]
        wanted = {
            number: None if some is None else list(dict.fromkeys(some))
            for number, some in zip(numbers, boxes, strict=True)
        }
        found = self._locate(wanted)
        return [found[number] for number in numbers]

    def _read_context(self) -> ReadContext:
        """Return the context of eager reads that check digests."""
        return ReadContext(self.index.sources, self._files, self._digests, mmap=False, verify=True)

    @cached_property
    def _number_of(self) -> dict[int, int]:
        return {id(leaf): number for number, leaf in enumerate(self.index.leaves)}

    def close(self) -> None:
        """Close the files. Leaves that were mapped stay valid."""
        for file in self._files:
            file.close()

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
        sizes = [StoredLeaf(leaf, self).nbytes for leaf in self.index.leaves]
        rows = (
            (name, leaf_text(leaf), size_text(size))
            for (name, leaf), size in zip(self._by_name.items(), sizes, strict=True)
        )
        count = counted(len(sizes), "leaf", "leaves")
        head = f"<{self.format} checkpoint {printable(self.path)}: {count}, {size_text(sum(sizes))}"
        return "\n".join([head, *leaf_lines(rows, len(sizes))]) + ">"

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)
