"""Files of an older step that a save shares: what both ways of sharing have in common."""

from __future__ import annotations

import numpy as np
import pytest

from cordwood.formats.packs.base_files import BaseFile, base_files
from cordwood.formats.packs.packed_tree import PackedTree, pack_tree
from cordwood.formats.packs.shared_files import Comparison, SharedFiles, share_files
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.cells import FileSizes
from cordwood.plan.links import MIN_UNCHANGED_BYTES
from cordwood.processes.key_value_store import SINGLE_PROCESS
from cordwood.tree.flatten import describe_tree
from tests.formats.packs.packed import directory_of

TREE = {name: np.zeros(MIN_UNCHANGED_BYTES, np.uint8) for name in "abc"}
A_FILE_FOR_EACH_LEAF = FileSizes(MIN_UNCHANGED_BYTES, 16, None)


class Answers:
    """A way to share that gives prepared answers, one for each file."""

    def __init__(self, *answers: Comparison | None) -> None:
        self._answers = list(answers)

    def share(self, file: BaseFile) -> Comparison | None:
        del file
        return self._answers.pop(0)


SHARED = Comparison(frozenset({0}), is_shared=True)
UNCHANGED = Comparison(frozenset({0}), is_shared=False)
CHANGED = Comparison(frozenset(), is_shared=False)


def shared(*answers: Comparison | None) -> SharedFiles:
    described = describe_tree(TREE, process=SINGLE_PROCESS.index, process_count=1)
    tree: PackedTree = pack_tree(described, process_count=1, sizes=A_FILE_FOR_EACH_LEAF)
    (item,) = directory_of(TREE).items.values()
    (whole,) = base_files(item, tree, 0)
    files = [BaseFile(whole.source, (cell,)) for cell in whole.cells]
    return share_files(files, Answers(*answers), tree, Leaves(TREE.values()), 0)


def test_what_is_shared_is_not_written() -> None:
    result = shared(SHARED, CHANGED, SHARED)
    assert len(result.packs) == 2
    assert result.cells == {(0, 0), (2, 0)}
    assert result.size_bytes == 2 * MIN_UNCHANGED_BYTES
    assert not result.unchanged


def test_unchanged_cells_that_are_written_get_files_of_their_own() -> None:
    assert shared(CHANGED, UNCHANGED, SHARED).unchanged == {(1, 0)}


@pytest.mark.parametrize("first", [SHARED, UNCHANGED])
def test_where_no_file_can_be_shared_nothing_gets_files_of_its_own(first: Comparison) -> None:
    result = shared(first, None)
    assert len(result.packs) == (1 if first.is_shared else 0)
    assert not result.unchanged
