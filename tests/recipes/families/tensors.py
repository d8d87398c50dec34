"""Values that numpy makes from a name and a shape, their digests, and short lists of many names."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes  # noqa: F401  # numpy then knows bfloat16
import numpy as np

Shapes = dict[str, tuple[int, ...]]


def tensor(name: str, shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Return values below 1/4 that depend on the name and on nothing else.

    They are multiples of 1/512 with at most 8 significant bits: bfloat16 holds each of them.
    """
    bits = np.arange(math.prod(shape), dtype=np.uint32) * np.uint32(2654435761)
    bits = bits + np.uint32(zlib.crc32(name.encode()))
    bits = (bits ^ (bits >> np.uint32(15))) * np.uint32(2246822519)
    bits = (bits ^ (bits >> np.uint32(13))) * np.uint32(3266489917)
    numbers = (bits >> np.uint32(24)).astype(np.int16) - 128
    return (numbers.astype(np.float32) / 512).astype(dtype).reshape(shape)


def digest(array: np.ndarray) -> str:
    """Return dtype, shape and a digest of the elements: `"bfloat16 (3, 4) 2f0c..."`."""
    elements = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=8)
    return f"{array.dtype} {array.shape} {elements.hexdigest()}"


def expand(patterns: Mapping[str, Sequence[int]]) -> Shapes:
    """Return shapes by name, of patterns such as `layers.{0..31}.w`."""
    return {
        name: tuple(shape) for pattern, shape in patterns.items() for name in _names_of(pattern)
    }


def _names_of(pattern: str) -> Iterator[str]:
    parts = re.split(r"\{(\d+)\.\.(\d+)\}", pattern)
    ranges = [range(int(a), int(b) + 1) for a, b in zip(parts[1::3], parts[2::3], strict=True)]
    for numbers in itertools.product(*ranges):
        words = [text + str(n) for text, n in zip(parts[::3], numbers, strict=False)]
        yield "".join([*words, parts[-1]])


def compress(shapes: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Return the inverse of `expand`: one pattern for names that differ in numbers alone."""
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        numbers = tuple(int(word) for word in name.split(".") if word.isdigit())
        stem = ".".join(["#" if word.isdigit() else word for word in name.split(".")])
        groups.setdefault((stem, tuple(shape)), []).append(numbers)
    patterns: dict[str, list[int]] = {}
    for (stem, shape), numbers_of_names in groups.items():
        columns = [sorted(set(column)) for column in zip(*numbers_of_names, strict=True)]
        rows = [tuple(map(str, numbers)) for numbers in numbers_of_names]
        if math.prod([column[-1] - column[0] + 1 for column in columns]) == len(rows):
            rows = [tuple(map(_range, columns))]
        for row in rows:
            parts = [text + word for text, word in zip(stem.split("#"), (*row, ""), strict=True)]
            patterns["".join(parts)] = list(shape)
    assert expand(patterns) == {name: tuple(shape) for name, shape in shapes.items()}
    return patterns


def _range(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    return str(first) if first == last else f"{{{first}..{last}}}"


def arrays_by_path(tree: Any, path: str = "") -> dict[str, np.ndarray]:
    """Return the arrays of nested dicts and lists by their keys, joined by "/"."""
    if isinstance(tree, dict):
        items = list(tree.items())
    elif isinstance(tree, list | tuple):
        items = list(enumerate(tree))
    else:
        return {path: np.asarray(tree)}
    arrays: dict[str, np.ndarray] = {}
    for key, value in items:
        arrays |= arrays_by_path(value, f"{path}/{key}" if path else str(key))
    return arrays
