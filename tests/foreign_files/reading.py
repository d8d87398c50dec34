"""Comparison of a foreign file with its values, and the match of a refusal."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood


def assert_equal_values(
    path: Path, values: Mapping[str, Any], *, unreadable: Sequence[str] = ()
) -> None:
    """Load a file and compare each leaf with `values`, by its keys joined with '/'.

    Shapes, dtypes and all bits of the elements must be equal.

    Args:
        path: the file or directory.
        values: the leaves as the tool reads them.
        unreadable: the names of the leaves that are listed and cannot be read.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # chunks that are not stored
        checkpoint = cordwood.open(path)
    leaves = {}
    refused = []
    with checkpoint:
        for leaf, stored in zip(checkpoint.index.leaves, checkpoint.values(), strict=True):
            name = "/".join(map(str, leaf.key_path))
            if stored.kind == "unreadable":
                refused.append(name)
                with pytest.raises(cordwood.CordwoodError, match=r"1 leaf cannot be read"):
                    stored.load()
            else:
                leaves[name] = np.asarray(stored.load(to="numpy"))
    assert sorted(refused) == sorted(unreadable)
    assert_equal_leaves(leaves, values)


def assert_equal_leaves(leaves: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Compare leaves by name: shapes, dtypes and all bits of the elements must be equal."""
    assert sorted(leaves) == sorted(values)
    for name, value in values.items():
        expected, leaf = np.asarray(value), np.asarray(leaves[name])
        assert (leaf.shape, leaf.dtype) == (expected.shape, expected.dtype), name
        assert leaf.tobytes() == expected.tobytes(), name


def assert_refused(path: Path, words: Sequence[str]) -> None:
    """Assert that a load raises one of cordwood's errors, whose message has all of the words."""
    with pytest.raises(cordwood.CordwoodError) as raised:
        cordwood.load(path)
    message = str(raised.value)
    assert [word for word in words if word not in message] == [], message
