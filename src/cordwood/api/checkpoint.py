"""open: a checkpoint to look into, one leaf or a slice of it at a time."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from cordwood import dtypes
from cordwood.api.as_saved import fit_as_saved
from cordwood.api.boxes import read_boxes
from cordwood.api.casting import Cast, cast_targets
from cordwood.api.contents import Contents
from cordwood.api.formats import open_source, scan
from cordwood.api.layouts import Layout, module_of, origin_of
from cordwood.api.match import Extra, Missing, fit
from cordwood.api.match_positions import fit_positions
from cordwood.api.placing import Placing, place
from cordwood.api.reading import Reading
from cordwood.api.recognise import other_than
from cordwood.api.resharding import device_boxes
from cordwood.api.restore import restore, target_as_saved
from cordwood.api.slicing import select
from cordwood.api.target import Target, size_of
from cordwood.api.wishes import check_wishes
from cordwood.engine.collector import collector_paused
from cordwood.engine.files import LocalFile
from cordwood.engine.meter import Report, metering
from cordwood.engine.source_digests import SourceDigests
from cordwood.engine.urls import local_or_url
from cordwood.errors import FormatError, LimitError, MismatchError, counted
from cordwood.index import Box, Leaf, LeafKind
from cordwood.keypath import format_path
from cordwood.plan.boxes import Want
from cordwood.plan.partial import Partial, partial
from cordwood.plan.patterns import Select
from cordwood.sharding.rules import Rules
from cordwood.tree.leaves import ARRAY_KINDS

__all__ = ["Checkpoint", "StoredLeaf", "open", "open_for_one_load"]


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
        format: the name of a file's format, where the suffix does not say it.
        prefix: which tree of a directory, or item of an Orbax checkpoint. None: the one saved
            without a prefix, or the only one.
        max_bytes: how far a compressed file may grow. None: to 4 GiB, or 1100 times its size if
            that is more.
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
    row = origin_of(path, format=format, prefix=prefix)
    if isinstance(row, Layout):
        return Checkpoint(os.fspath(path), module_of(row).open_contents(path, prefix))
    try:
        file = open_source(path, row, max_bytes=max_bytes, read_once=read_once, scratch=scratch)
        try:
            return Checkpoint(os.fspath(path), Contents(row.name, scan(file, row), (file,)))
        except BaseException:
            file.close()
            raise
    except FormatError as e:
        with LocalFile(path) as found:
            other = other_than(found, row)
        if other is None or isinstance(e, LimitError):
            raise
        raise type(e)(f"{e}; this is {other}") from e


class StoredLeaf:
    """One leaf of an open checkpoint: what it is, and its elements when asked."""

    def __init__(self, leaf: Leaf, checkpoint: Checkpoint) -> None:
        self._leaf = leaf
        self._checkpoint = checkpoint

    @property
    def _is_array(self) -> bool:
        return self._leaf.kind in ARRAY_KINDS

    @property
    def kind(self) -> LeafKind:
        """What was saved: "jax", "numpy", "numpy_scalar", "prng_key", "int", "str" ..."""
        return self._leaf.kind

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; () for a Python value."""
        return self._leaf.shape if self._is_array else ()

    @property
    def dtype(self) -> str:
        """The dtype's name; "" for a Python value."""
        return self._leaf.dtype if self._is_array else ""

    @property
    def nbytes(self) -> int:
        """How many bytes its elements take in memory."""
        return math.prod(self.shape) * dtypes.itemsize(self.dtype) if self.dtype else 0

    def load(self, *, to: Literal["jax", "numpy"] | None = None) -> Any:
        """The whole leaf, as it was saved or as `to` says; verified."""
        target = target_as_saved(self._leaf, to)
        (value,) = self._checkpoint.restore([target], mmap=False, verify=True, alias=True)
        return value

    def __getitem__(self, key: Any) -> Any:
        """A part of an array leaf, numpy indexing, in memory of its own; one element is a scalar.

        Reads what the key needs along every axis, rounded out to the blocks that are checked,
        and more only where that costs less than skipping it. Compressed chunks are read whole.
        """
        leaf, checkpoint = self._leaf, self._checkpoint
        if not self._is_array:
            raise TypeError(
                f"{format_path(leaf.key_path)} is of kind {self.kind!r}, not an array; use load()"
            )
        boxes, axis, rest = select(self.shape, key, item_bytes=dtypes.itemsize(self.dtype))
        reading = Reading(
            checkpoint.index.sources, checkpoint.files, checkpoint.digests, mmap=False, verify=True
        )
        (leaf,) = checkpoint.located([leaf], [boxes])
        (arrays,) = read_boxes(reading, [Want(leaf, boxes)])
        array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis)
        part = array[rest]
        if not isinstance(part, np.ndarray) or (
            part.size == array.size and part.flags.c_contiguous
        ):
            return part
        return part.copy()

    def __repr__(self) -> str:
        what = f"{self.dtype}[{','.join(map(str, self.shape))}]" if self.dtype else self.kind
        return f"<{format_path(self._leaf.key_path) or 'root'}: {what}>"


class Checkpoint(Mapping[str, StoredLeaf]):
    """An open checkpoint: a mapping from key path strings to leaves.

    Attributes:
        path: where it lies.
        format: its format's name.
        index: everything but the bulk bytes (`cordwood.index.Index`).
        digests: those of each source.
        is_current: whether no save has replaced it since; called.
    """

    def __init__(self, path: str, contents: Contents) -> None:
        self.path = path
        self.format = contents.format
        self.index = contents.index
        self.files = contents.files
        self.digests = SourceDigests(self.index.sources, contents.fetch_digests)
        self.is_current = contents.is_current
        self._locate = contents.locate

    @cached_property
    def _by_name(self) -> dict[str, Leaf]:
        return {format_path(leaf.key_path): leaf for leaf in self.index.leaves}

    @property
    def metadata(self) -> Mapping[str, str]:
        """The strings that were saved beside the tree."""
        return self.index.metadata

    def __getitem__(self, key_path: str) -> StoredLeaf:
        return StoredLeaf(self.leaf(key_path), self)

    def leaf(self, key_path: str) -> Leaf:
        """What the index says of a leaf; KeyError where there is none."""
        try:
            return self._by_name[key_path]
        except (KeyError, TypeError):
            if not isinstance(key_path, str):
                raise KeyError(
                    f"{self.path}: expected a key path, a str such as 'params/w', found "
                    f"{key_path!r:.80}"
                ) from None
            close = difflib.get_close_matches(key_path, self._by_name, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise KeyError(f"{self.path} has no leaf {key_path!r}{hint}") from None

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
        mesh: Any = None,
        rules: Rules | None = None,
        shardings: Any = None,
        progress: Report | None = None,
    ) -> Any:
        """The tree, or what is selected of it; see `cordwood.load`."""
        placing = Placing(mesh, rules, shardings)
        check_wishes(like, to=to, cast=cast, missing=missing, extra=extra, placing=placing)
        check = not mmap if verify is None else verify
        with collector_paused():
            part = self._part(select, rename)
            index = part.stored
            if like is None:
                fitted = fit_as_saved(index, name=self.path, to=to, nest=nest)
            elif index.naming == "positions":
                if (missing, extra) != ("error", "error"):
                    raise ValueError(
                        f"{self.path} holds arrays without names: all have to be there"
                    )
                fitted = fit_positions(
                    index, like, name=self.path, to=to, strict=strict, cast=cast is True
                )
            else:
                fitted = fit(
                    index,
                    like,
                    name=self.path,
                    to=to,
                    strict=strict,
                    cast=cast is True,
                    missing=missing,
                    extra=extra,
                    left_out=part.left_out,
                )
            targets = fitted.targets
            if cast is not False and cast is not True:
                paths = [target.leaf.key_path for target in targets]
                targets = cast_targets(targets, paths, cast, naming=index.naming, where=self.path)
            if placing != Placing():
                targets = place(placing, targets, fitted.paths)
            if index is not self.index:
                targets = self._own(part, targets)
            with metering(sum(map(size_of, targets)) if progress else 0, progress):
                values = self.restore(targets, mmap=mmap, verify=check, alias=alias)
            return fitted.rebuild(values)

    def _part(self, select: Select | None, rename: Mapping[str, str] | None) -> Partial:
        if select is None and not rename:
            return Partial(self.index, ())
        if self.index.naming == "positions":
            raise MismatchError(
                f"{self.path} holds arrays without names, which neither select nor rename can take"
            )
        return partial(self.index, select=select, rename=rename, where=self.path)

    def _own(self, part: Partial, targets: Sequence[Target]) -> list[Target]:
        """Targets for leaves of a part of this checkpoint, with the leaves that it has itself."""
        leaves = self.index.leaves
        own = {
            id(leaf): leaves[n] for leaf, n in zip(part.stored.leaves, part.numbers, strict=True)
        }
        return [target._replace(leaf=own[id(target.leaf)]) for target in targets]

    def restore(
        self, targets: Sequence[Target], *, mmap: bool, verify: bool, alias: bool
    ) -> list[Any]:
        """The values of the targets, leaves of this checkpoint, in their order."""
        if self._locate is not None:
            placed = device_boxes(targets)
            wanted = [placed[i].values() if i in placed else None for i in range(len(targets))]
            leaves = self.located([target.leaf for target in targets], wanted)
            pairs = zip(targets, leaves, strict=True)
            targets = [target._replace(leaf=leaf) for target, leaf in pairs]
        return restore(
            self.index,
            self.files,
            targets,
            mmap=mmap,
            verify=verify,
            alias=alias,
            digests=self.digests,
        )

    def located(
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

    @cached_property
    def _number_of(self) -> dict[int, int]:
        return {id(leaf): number for number, leaf in enumerate(self.index.leaves)}

    def close(self) -> None:
        """Close the files. Leaves that were mapped stay valid."""
        for file in self.files:
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
        count = counted(len(self), "leaf", "leaves")
        return f"<{self.format} checkpoint {self.path}: {count}>"
