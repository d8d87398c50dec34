"""open: an open checkpoint, whose leaves and slices are read one at a time.

One file, because a leaf reads from its open checkpoint.
"""

from __future__ import annotations

import inspect
import math
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self, Unpack

import numpy as np

from cordwood import dtypes
from cordwood.api.load import load
from cordwood.encoding.digests import BLOCK_BYTES
from cordwood.formats.format_protocol import OpenOptions
from cordwood.index import ARRAY_KINDS, Box, Leaf, LeafKind, leaf_text, size_in_memory
from cordwood.io.stale_handles import retry_stale
from cordwood.keypath import format_path
from cordwood.loading.leaf_reader import Array, LeafReader, open_reader
from cordwood.loading.load_request import LoadOptions, ReadOptions, default_targets
from cordwood.loading.load_tree import load_tree
from cordwood.loading.restore_targets import restore_targets
from cordwood.message_text import absent_leaf, counted, printable, size_text
from cordwood.plan.load_plan import byte_strides
from cordwood.plan.move_templates import RANGE_PRICE_BYTES
from cordwood.plan.path_spellings import plain_name, plain_pattern
from cordwood.storage.locations import LocalPath, Location, parse_local_path, parse_location

# Smaller gaps are read, because that costs less than skipping them.
_SKIP_BYTES = BLOCK_BYTES + RANGE_PRICE_BYTES
_MAX_BOXES = 4096


class SlicePlan(NamedTuple):
    """The boxes to read for an index of an array, and the key to apply to the result."""

    boxes: tuple[Box, ...]  # they differ along `axis` only; concatenate them along it
    axis: int
    key: Any


class _Axis(NamedTuple):
    """The part of an axis that a key needs: a range, or some single indices."""

    start: int
    stop: int
    key: Any
    single: range | None = None


def plan_slice(shape: Sequence[int], key: Any, *, item_bytes: int) -> SlicePlan:
    """Return the boxes to read for an index of an array of that shape.

    Axes that are indexed by arrays are read whole. On one axis, the gaps of a slice with a long
    step are not read.

    Raises whatever numpy raises for the same index of such an array.
    """
    np.broadcast_to(np.empty((), np.bool_), shape)[key]
    keys = key if isinstance(key, tuple) else (key,)
    lengths = [_axes_of(each) for each in keys]
    missing = len(shape) - sum(lengths)
    steps = byte_strides(shape, item_bytes)
    whole = [_Axis(0, size, None) for size in shape]
    axes: list[_Axis] = []
    rest: list[Any] = []
    for each, length in zip(keys, lengths, strict=True):
        at = len(axes)
        if length == 1 and isinstance(each, slice):
            may_pick = all(axis.single is None for axis in axes)
            axes.append(_slice(shape[at], each, steps[at] if may_pick else 0))
            rest.append(axes[-1].key)
        elif length == 1 and _is_index(each):
            index = operator.index(each) % shape[at]
            axes.append(_Axis(index, index + 1, 0))
            rest.append(0)
        else:
            rest.append(each)
            axes += whole[at : at + (missing if each is Ellipsis else length)]
    axes += whole[len(axes) :]
    return _boxes(axes, tuple(rest))


def _axes_of(key: Any) -> int:
    """Return the number of axes that one part of an index consumes."""
    if key is None or key is Ellipsis or isinstance(key, (bool, np.bool_)):
        return 0
    if isinstance(key, slice) or _is_index(key):
        return 1
    array = np.asarray(key)
    return array.ndim if array.dtype == np.bool_ else 1


def _is_index(key: Any) -> bool:
    try:
        operator.index(key)
    except TypeError:
        return False
    return True


def _slice(size: int, key: slice, step_bytes: int) -> _Axis:
    picked = range(size)[key]
    if not picked:
        return _Axis(0, 0, slice(0, 0))
    low, high = sorted((picked[0], picked[-1]))
    step = picked.step
    if (abs(step) - 1) * step_bytes >= _SKIP_BYTES and len(picked) <= _MAX_BOXES:
        return _Axis(low, high + 1, slice(None, None, 1 if step > 0 else -1), picked)
    return _Axis(low, high + 1, slice(None, None, step))


def _boxes(axes: Sequence[_Axis], key: tuple[Any, ...]) -> SlicePlan:
    start = tuple([axis.start for axis in axes])
    stop = tuple([axis.stop for axis in axes])
    for i, axis in enumerate(axes):
        if axis.single is not None:
            boxes = [
                Box((*start[:i], at, *start[i + 1 :]), (*stop[:i], at + 1, *stop[i + 1 :]))
                for at in sorted(axis.single)
            ]
            return SlicePlan(tuple(boxes), i, key)
    return SlicePlan((Box(start, stop),), 0, key)


_READ_IT = "take np.asarray(leaf), or a part, leaf[...]"
_NUMBERS = frozenset({"bool", "int", "float", "complex"})


class StoredLeaf:
    """One leaf of an open checkpoint: its type, and its elements when they are read.

    `numpy.asarray(leaf)` and `jax.numpy.asarray(leaf)` read it whole, `leaf[2:4]` reads a part.
    """

    def __init__(self, leaf: Leaf, checkpoint: Checkpoint) -> None:
        self._leaf = leaf
        self._checkpoint = checkpoint

    @property
    def _is_array(self) -> bool:
        return self._leaf.kind in ARRAY_KINDS

    @property
    def kind(self) -> LeafKind:
        """The kind of the saved value: "jax", "numpy", "numpy_scalar", "prng_key", "int", ..."""
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
    def ndim(self) -> int:
        """The number of axes; 0 for a Python value."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements; 1 for a Python value."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of its elements in memory, in bytes; 0 for a Python value."""
        return size_in_memory(self._leaf)

    def load(self, *, to: Literal["jax", "numpy"] | None = None) -> Any:
        """Return the whole leaf, as it was saved or as `to` says; its digests are checked."""
        targets = default_targets([self._leaf], to)
        (value,) = restore_targets(self._checkpoint._reader, targets)
        return value

    def __getitem__(self, key: Any) -> Any:
        """Return a part of an array leaf, by numpy indexing; one element is a scalar.

        The part owns its memory. Only the range that the key needs along each axis is read,
        rounded out to the blocks of the digests, and gaps that cost less to read than to skip.
        Compressed chunks are read whole.
        """
        leaf, reader = self._leaf, self._checkpoint._reader
        if self.kind == "unreadable":
            self.load()  # raises, and says why
        if not self._is_array:
            raise TypeError(f"{self._name} is of kind {self.kind!r}, not an array; use load()")
        boxes, axis, rest = plan_slice(self.shape, key, item_bytes=dtypes.itemsize(self.dtype))
        arrays = reader.read(reader.with_pieces([leaf], {0: boxes}), {0: boxes})
        array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis)
        part = array[rest]
        if not isinstance(part, np.ndarray) or (
            part.size == array.size and part.flags.c_contiguous
        ):
            return part
        return part.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the whole leaf as a numpy array, for `numpy.asarray`; its digests are checked.

        Raises:
            TypeError: the leaf is a PRNG key, a str, bytes or None.
            ValueError: `copy` is False; the elements are read into new memory.
        """
        if copy is False:
            raise ValueError(
                f"{self._name}: a stored leaf is read into new memory: leave copy= out"
            )
        if (not self._is_array and self.kind not in _NUMBERS) or self.kind == "prng_key":
            what = "a PRNG key" if self.kind == "prng_key" else f"of kind {self.kind!r}"
            raise TypeError(f"{self._name} is {what}, which is no array of numpy's; use load()")
        array = np.asarray(self.load(to="numpy"))
        return array if dtype is None else array.astype(dtype, copy=False)

    def __jax_array__(self) -> Any:
        """Return the leaf as a jax array; 64-bit types become 32-bit ones unless jax has x64 on."""
        if self.kind == "prng_key":
            return self.load()
        from jax import numpy

        return numpy.asarray(self.__array__())

    def __len__(self) -> int:
        """Return the size of the first axis. Raises TypeError if there is none."""
        if not self.shape:
            raise TypeError(f"{self._name} has no axis, and so no len()")
        return self.shape[0]

    def __bool__(self) -> bool:
        """Return True: the leaf exists, whatever its elements are."""
        return True

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError; for an attribute of arrays, it says how to read the leaf first."""
        message = f"'StoredLeaf' object has no attribute {name!r}"
        if not name.startswith("_") and hasattr(np.ndarray, name):
            message += f"; {_READ_IT}, which has"
        raise AttributeError(message)

    def _no_arithmetic(self, other: Any) -> Any:
        """Raise TypeError if the other is a number or a leaf; arrays read the leaf."""
        if type(other) in (int, float, complex) or isinstance(other, StoredLeaf):
            raise TypeError(f"{self._name} is a StoredLeaf, not read yet: {_READ_IT}")
        return NotImplemented

    __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = __pow__ = _no_arithmetic

    @property
    def _name(self) -> str:
        return printable(format_path(self._leaf.key_path), keep="") or "the root"

    def __repr__(self) -> str:
        name = printable(format_path(self._leaf.key_path), keep="")
        return f"<{name or 'root'}: {leaf_text(self._leaf)}>"

    def _repr_html_(self) -> str:
        from cordwood.notebook.checkpoint_html import leaf_html

        checkpoint = self._checkpoint
        index = checkpoint.index
        sharding = index.shardings.get(checkpoint._reader.number_of[id(self._leaf)], "")
        return leaf_html(checkpoint.path, checkpoint.format, index, self._leaf, sharding)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        del subtree_renderer
        from cordwood.notebook.checkpoint_html import treescope_leaf

        return treescope_leaf(self._leaf, path)


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
    location = parse_location(path)
    folder = None if scratch is None else parse_local_path(scratch, purpose="for scratch=")
    return open_at(location, format=format, prefix=prefix, max_bytes=max_bytes, scratch=folder)


def open_at(
    location: Location,
    *,
    format: str | None = None,
    prefix: str | None = None,
    max_bytes: int | None = None,
    scratch: LocalPath | None = None,
) -> Checkpoint:
    """Open a checkpoint, as `open`."""
    options = OpenOptions(max_bytes, scratch=scratch)
    return retry_stale(
        lambda: Checkpoint(open_reader(location, format=format, prefix=prefix, options=options))
    )


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
        """Return the entry of a leaf in the index, by its key path in any spelling.

        Raises KeyError if there is no such leaf.
        """
        try:
            return self._by_name[key_path]
        except (KeyError, TypeError):
            if not isinstance(key_path, str):
                raise KeyError(
                    f"{self.path}: expected a key path, a str such as 'params/w', found "
                    f"{key_path!r:.80}"
                ) from None
            plain = plain_pattern(key_path, self.index.naming)
            names = [name for name in self._by_name if plain_name(name, self.index.naming) == plain]
            if len(names) == 1:
                return self._by_name[names[0]]
            name = self._container(plain) or key_path
            raise KeyError(absent_leaf(name, self._by_name, path=self.path)) from None

    def _container(self, plain: str) -> str | None:
        """Return the container of a key path in plain spelling, as the leaves in it spell it."""
        for name in self._by_name:
            if plain_name(name, self.index.naming).startswith(f"{plain}/"):
                container = "/".join(name.split("/")[: plain.count("/") + 1])
                return container if name != container else None
        return None

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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
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
