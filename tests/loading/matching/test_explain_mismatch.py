"""Problems of matching with `like` as values, and the text that is made of them alone."""

from __future__ import annotations

from typing import get_args

import numpy as np

from cordwood.index import Index, Inline, Leaf, LeafSpec, Node
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.matching.explain_mismatch import explain
from cordwood.loading.matching.match_containers import (
    Container,
    DifferentKinds,
    NoneInCheckpoint,
    NoneInLike,
)
from cordwood.loading.matching.mismatch_kinds import (
    AbsentLeaf,
    ExtraLeaf,
    LeafInLike,
    MisfitLeaf,
    Mismatch,
    NothingInCommon,
    Problem,
    SharedName,
    StaticLeaf,
)
from cordwood.tree.flatten import flatten

STORED = Leaf(("w",), "numpy", (2,), "float32", Inline(None))
SPEC = LeafSpec(("w",), "numpy", (3,), "float32")
ROOT = Container((), "dict", False)
PROBLEMS: dict[Problem, str] = {
    StaticLeaf(("w",), ("w",), "text", STORED): (
        "w: expected nothing for 'text' in `like`, found float32[2]"
    ),
    SharedName(("w",), ("w",)): "w: another leaf of `like` has the name ('w',) too",
    AbsentLeaf(("b",), ("b",), is_left_out=False, is_python_number=False): (
        'b: not in the checkpoint (missing="keep" keeps the value of `like`)'
    ),
    MisfitLeaf(("w",), ("w",), STORED, SPEC, is_transposed=True): (
        "w: expected float32[3], found float32[2] once transposed"
    ),
    ExtraLeaf(("w",), STORED): (
        'w: in the checkpoint (float32[2]), not in `like` (extra="ignore" skips it)'
    ),
    DifferentKinds((), ROOT, "list"): "the root: expected dict, found list",
    NoneInLike((), ROOT): "the root: None in `like`, and nothing in the checkpoint",
    NoneInCheckpoint(("a",), ROOT): "the root: None in the checkpoint, and nothing in `like`",
}


def mismatch(*problems: Problem) -> Mismatch:
    like = {"w": np.zeros(3, np.float32)}
    return Mismatch(
        problems=problems,
        covering=(),
        stored=Index("packs", (Node("dict", 1, ("w",)), Node("leaf")), (STORED,), ()),
        like=like,
        flat=flatten(like),
        options=LoadOptions(),
        fitting=(),
        unmatched=(),
        unread_leaves=(),
        is_disjoint=False,
    )


def test_each_kind_of_problem_has_its_line() -> None:
    assert {type(problem) for problem in PROBLEMS} == set(get_args(Problem))
    error = explain(mismatch(*PROBLEMS), "step_1")
    assert error.problems == tuple(PROBLEMS.values())
    assert str(error).startswith(f"{len(PROBLEMS)} leaves of step_1 do not fit `like`:\n")


def test_a_leaf_for_a_container_replaces_the_problems_inside_it() -> None:
    inside = AbsentLeaf(("a", "b"), ("a", "b"), is_left_out=False, is_python_number=False)
    covering = LeafInLike(("a",), Container(("a",), "dict", True), SPEC)
    error = explain(mismatch(inside)._replace(covering=[covering]), "step_1")
    assert error.problems == (
        'a: expected float32[3], found an empty dict (missing="keep" keeps the value of `like`)',
    )


def test_nothing_in_common_names_both_sides() -> None:
    error = explain(NothingInCommon([("w",)], [("kernel",)], "exact", is_part=False), "step_1")
    assert str(error) == (
        "no leaf of `like` is in step_1; the names differ: use rename= "
        "(docs/how-to/hugging-face.md)\n"
        "  in `like`: w\n"
        "  in the checkpoint: kernel"
    )
