"""One leaf of an open checkpoint, of which the elements are read when they are needed."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from cordwood import dtypes
from cordwood.index import ARRAY_KINDS, Leaf, LeafKind, leaf_text, size_in_memory
from cordwood.keypath import format_path
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.load_target import default_targets
from cordwood.loading.restore_targets import restore_targets
from cordwood.loading.slice_plan import plan_slice
from cordwood.message_text import printable

_READ_IT = "take np.asarray(leaf), or a part, leaf[...]"
_NUMBERS = frozenset({"bool", "int", "float", "complex"})


class StoredLeaf:
    """One leaf of an open checkpoint: its type, and its elements when they are read.

    `numpy.asarray(leaf)` and `jax.numpy.asarray(leaf)` read it whole, `leaf[2:4]` reads a part.
    """

    def __init__(self, leaf: Leaf, reader: LeafReader) -> None:
        self._leaf = leaf
        self._reader = reader

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
        (value,) = restore_targets(self._reader, targets)
        return value

    def __getitem__(self, key: Any) -> Any:
        """Return a part of an array leaf, by numpy indexing; one element is a scalar.

        The part owns its memory. Only the range that the key needs along each axis is read,
        rounded out to the blocks of the digests, and gaps that cost less to read than to skip.
        Compressed chunks are read whole.
        """
        leaf, reader = self._leaf, self._reader
        if self.kind == "unreadable":
            self.load()  # raises, and says why
        if not self._is_array:
            raise TypeError(f"{self._name} is of kind {self.kind!r}, not an array; use load()")
        boxes, axis, key_in_boxes = plan_slice(
            self.shape, key, item_bytes=dtypes.itemsize(self.dtype)
        )
        arrays = reader.read(reader.with_pieces([leaf], {0: boxes}), {0: boxes})
        array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis)
        part = array[key_in_boxes]
        if not isinstance(part, np.ndarray) or (
            part.size == array.size and part.flags.c_contiguous
        ):
            return part
        return part.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
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

        reader = self._reader
        sharding = reader.index.shardings.get(reader.number_of[id(self._leaf)], "")
        return leaf_html(reader.path, reader.opened.format, reader.index, self._leaf, sharding)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        del subtree_renderer
        from cordwood.notebook.checkpoint_html import treescope_leaf

        return treescope_leaf(self._leaf, path)
