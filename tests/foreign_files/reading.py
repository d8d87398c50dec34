"""Comparison of a foreign file with its values, and the match of a refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood


def assert_equal_values(path: Path, values: Mapping[str, Any], **options: Any) -> None:
    """Load a file and compare each leaf with `values`, by its keys joined with '/'.

    Shapes, dtypes and all bits of the elements must be equal.
    """
    with cordwood.open(path, **options) as checkpoint:
        leaves = {
            "/".join(map(str, leaf.key_path)): np.asarray(stored.load(to="numpy"))
            for leaf, stored in zip(checkpoint.index.leaves, checkpoint.values(), strict=True)
        }
    assert_equal_leaves(leaves, values)


def assert_equal_leaves(leaves: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Compare leaves by name: shapes, dtypes and all bits of the elements must be equal."""
    assert sorted(leaves) == sorted(values)
    for name, value in values.items():
        expected, leaf = np.asarray(value), np.asarray(leaves[name])
        assert (leaf.shape, leaf.dtype) == (expected.shape, expected.dtype), name
        assert leaf.tobytes() == expected.tobytes(), name


def assert_refused(path: Path, words: Sequence[str], **options: Any) -> None:
    """Assert that a load raises one of cordwood's errors, whose message has all of the words."""
    with pytest.raises(cordwood.CordwoodError) as raised:
        cordwood.load(path, **options)
    message = str(raised.value)
    assert [word for word in words if word not in message] == [], message
