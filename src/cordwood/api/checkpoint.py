"""open: a checkpoint to look into, one leaf or a slice of it at a time."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from cordwood import dtypes
from cordwood.api.formats import Format, format_for, open_source, scan
from cordwood.api.match import fit
from cordwood.api.nest import nest_names
from cordwood.api.restore import read_leaves, restore, target_as_saved, targets_as_saved
from cordwood.engine.collector import collector_paused
from cordwood.engine.files import ReadableFile
from cordwood.errors import counted
from cordwood.index import Index, Leaf, LeafKind, Pieces
from cordwood.keypath import format_path
from cordwood.tree.flatten import build
from cordwood.tree.leaves import ARRAY_KINDS

__all__ = ["Checkpoint", "StoredLeaf", "open", "open_for_one_load"]


def open(
    path: str | os.PathLike[str], *, format: str | None = None, max_bytes: int | None = None
) -> Checkpoint:
    """Open a checkpoint without reading its leaves.

    Use it in a `with` block, or call `close()`. A compressed file is decompressed here, and
    what it holds stays in memory as long as the checkpoint lives.

    Args:
        path: the file; its suffix says the format.
        format: the format's name, where the suffix does not say it.
        max_bytes: how far a compressed file may grow. None: to 4 GiB, or 1100 times its size if
            that is more.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        FormatError: the file is not what its format says; names the byte offset.
        LimitError: it decompresses to more than `max_bytes`.

    >>> from cordwood import save
    >>> save("/tmp/example.safetensors", {"a": {"w": np.arange(6.0).reshape(3, 2)}})
    >>> with open("/tmp/example.safetensors") as checkpoint:
    ...     print(list(checkpoint), checkpoint["a/w"].shape, checkpoint["a/w"][1:, 0])
    ['a/w'] (3, 2) [2. 4.]
    """
    return _open(path, format, max_bytes, read_once=False)


def open_for_one_load(
    path: str | os.PathLike[str], *, format: str | None, max_bytes: int | None
) -> Checkpoint:
    """As `open`, for a single eager `load`, which lets go of what it has read."""
    return _open(path, format, max_bytes, read_once=True)


def _open(
    path: str | os.PathLike[str], format: str | None, max_bytes: int | None, *, read_once: bool
) -> Checkpoint:
    row = format_for(path, format)
    file = open_source(path, row, max_bytes=max_bytes, read_once=read_once)
    try:
        return Checkpoint(os.fspath(path), row, file, scan(file, row))
    except BaseException:
        file.close()
        raise


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
        checkpoint = self._checkpoint
        (value,) = restore(
            checkpoint.index, checkpoint.files, [target], mmap=False, verify=True, alias=True
        )
        return value

    def __getitem__(self, key: Any) -> Any:
        """A part of an array leaf, numpy indexing, in memory of its own; one element is a scalar.

        Reads only the rows of the leading axis that the key needs (rounded out to the
        blocks that are checked), where those lie in one piece.
        """
        storage = self._leaf.storage
        if not isinstance(storage, Pieces) or not self._is_array:
            raise TypeError(
                f"{format_path(self._leaf.key_path)} is of kind {self.kind!r}, not an array; "
                "use load()"
            )
        rows, rest = self._rows(key)
        leaf = self._leaf
        if rows is not None:
            leaf = _leading_rows(leaf, storage, rows)
        checkpoint = self._checkpoint
        (array,) = read_leaves(checkpoint.index, checkpoint.files, [leaf], mmap=False, verify=True)
        part = array[rest]
        return part.copy() if isinstance(part, np.ndarray) else part

    def _rows(self, key: Any) -> tuple[range | None, Any]:
        """Which rows to read (None: all), and what to index them with."""
        keys = key if isinstance(key, tuple) else (key,)
        simple = isinstance(self._leaf.storage, Pieces) and self._leaf.storage.encoding == "raw"
        if not simple or not self.shape or 0 in self.shape or not keys:
            return None, key
        first, size = keys[0], self.shape[0]
        if isinstance(first, slice):
            picked = range(size)[first]
            if not picked:
                return None, key
            low, high = min(picked[0], picked[-1]), max(picked[0], picked[-1]) + 1
            step = picked.step
            start = picked[0] - low
            stop: int | None = picked[-1] - low + (1 if step > 0 else -1)
            stop = None if stop == -1 else stop
            return range(low, high), (slice(start, stop, step), *keys[1:])
        if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
            row = int(first) + (size if first < 0 else 0)
            if 0 <= row < size:
                return range(row, row + 1), (0, *keys[1:])
        return None, key

    def __repr__(self) -> str:
        what = f"{self.dtype}[{','.join(map(str, self.shape))}]" if self.dtype else self.kind
        return f"<{format_path(self._leaf.key_path) or 'root'}: {what}>"


def _leading_rows(leaf: Leaf, storage: Pieces, rows: range) -> Leaf:
    """The leaf that consists of some rows of another, stored where they are."""
    from cordwood.index import Piece, Span

    row_bytes = math.prod(leaf.shape[1:]) * dtypes.itemsize(leaf.dtype)
    start, stop = rows.start * row_bytes, rows.stop * row_bytes
    pieces = []
    begin = 0
    for piece in storage.pieces:
        low, high = max(start, begin), min(stop, begin + piece.length)
        if low < high:
            where = Span(low, high)
            pieces.append(Piece(where, piece.source, piece.offset + low - begin, high - low))
        begin += piece.length
    shape = (len(rows), *leaf.shape[1:])
    return leaf._replace(shape=shape, storage=Pieces(tuple(pieces)))


class Checkpoint(Mapping[str, StoredLeaf]):
    """An open checkpoint: a mapping from key path strings to leaves.

    Attributes:
        path: where it lies.
        format: its format's name.
        index: everything but the bulk bytes (`cordwood.index.Index`).
    """

    def __init__(self, path: str, row: Format, file: ReadableFile, index: Index) -> None:
        self.path = path
        self.format = row.name
        self.index = index
        self.files = (file,)

    @cached_property
    def _by_name(self) -> dict[str, Leaf]:
        return {format_path(leaf.key_path): leaf for leaf in self.index.leaves}

    @property
    def metadata(self) -> Mapping[str, str]:
        """The strings that were saved beside the tree."""
        return self.index.metadata

    def __getitem__(self, key_path: str) -> StoredLeaf:
        try:
            return StoredLeaf(self._by_name[key_path], self)
        except KeyError:
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
        cast: bool = False,
        alias: bool = True,
        nest: bool = False,
    ) -> Any:
        """The whole tree; see `cordwood.load`."""
        if to not in (None, "jax", "numpy"):
            raise ValueError(f'to={to!r}: expected "jax", "numpy" or None')
        check = not mmap if verify is None else verify
        with collector_paused():
            return self._load(like, to, check, mmap, strict, cast, alias, nest)

    def _load(
        self,
        like: Any,
        to: str | None,
        check: bool,
        mmap: bool,
        strict: bool,
        cast: bool,
        alias: bool,
        nest: bool,
    ) -> Any:
        if like is not None:
            fitted = fit(self.index, like, name=self.path, to=to, strict=strict, cast=cast)
            values = restore(
                self.index, self.files, fitted.targets, mmap=mmap, verify=check, alias=alias
            )
            return fitted.rebuild(values)
        targets = targets_as_saved(self.index.leaves, to)
        values = restore(self.index, self.files, targets, mmap=mmap, verify=check, alias=alias)
        tree = build(self.index.structure, values)
        if nest and self.index.naming == "dotted":
            return nest_names(tree, self.path)
        return tree

    def close(self) -> None:
        """Close the file. Leaves that were mapped stay valid."""
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
