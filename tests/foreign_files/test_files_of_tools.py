"""Files that other tools write here: read with the same values, or refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

import cordwood
from cordwood.errors import NotACheckpointError
from tests.foreign_files import (
    cases_of_array_files,
    cases_of_other_kinds,
    cases_of_trees,
    cases_of_zarr,
)
from tests.foreign_files.case import Case, leaf_values
from tests.foreign_files.reading import assert_equal_values, assert_refused

CASES = [
    *cases_of_array_files.CASES,
    *cases_of_trees.CASES,
    *cases_of_zarr.CASES,
    *cases_of_other_kinds.CASES,
]

# A file of another kind may have any name; the empty suffix leaves all to the content.
SUFFIXES = (
    *(".safetensors", ".npz", ".npy", ".eqx", ".msgpack", ".msgpack.gz", ".msgpack.zst"),
    *(".bin", ""),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.tool}-{case.file}")
def test_a_file_is_read_as_its_tool_reads_it_or_refused_in_words(
    tmp_path: Path, case: Case
) -> None:
    path = tmp_path / case.file
    tree = case.write(path)
    if case.refused:
        assert_refused(path, case.refused)
    else:
        assert_equal_values(path, leaf_values(tree), unreadable=case.unreadable)


@pytest.mark.parametrize(
    "case", cases_of_other_kinds.CASES, ids=lambda case: f"{case.tool}-{case.file}"
)
def test_a_file_of_another_kind_is_named_under_any_suffix(tmp_path: Path, case: Case) -> None:
    case.write(tmp_path / case.file)
    data = (tmp_path / case.file).read_bytes()
    if data.startswith(b"\x93NUMPY"):  # a .npy file, which is read unless its elements are objects
        return
    for suffix in SUFFIXES:
        path = tmp_path / f"weights{suffix}"
        path.write_bytes(data)
        assert_refused(path, case.refused)
        for call in (cordwood.open, cordwood.verify, cordwood.detect):
            with pytest.raises(cordwood.CordwoodError) as raised:
                call(path)
            assert case.refused[0] in str(raised.value)
        if suffix in (".safetensors", ".msgpack", ".msgpack.gz"):
            with pytest.raises(NotACheckpointError) as refused_save:
                cordwood.save(path, {"w": 1})
            assert case.refused[0] in str(refused_save.value)
