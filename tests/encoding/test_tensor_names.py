"""Tensor names: the dotted key paths wherever these are usable."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.encoding.tensor_names import MAX_NAME_BYTES, dotted_name, tensor_names
from cordwood.keypath import DictKey, KeyPath
from tests.formats.safetensors.assemble import file_bytes, header_of
from tests.formats.safetensors.read_in_memory import read_bytes


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (("a", "b"), "a.b"),
        (("layers", 0, "w"), "layers.0.w"),
        (("a.b", "c/d"), "a.b.c/d"),
        (("a", ""), "a."),
        ((DictKey(3), DictKey(None), DictKey((1, "x"))), "3.None.(1, 'x')"),
        ((DictKey(10**5000),), f"0x{10**5000:x}"),
        ((), ""),
    ],
)
def test_a_key_path_has_a_dotted_name(path: KeyPath, name: str) -> None:
    assert dotted_name(path) == name


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ([("model.w",), ("model", "b")], ["model.w", "model.b"]),
        ([("a.b",), ("a", "b")], ["a.b", "a.b~2"]),
        ([("a", "b"), ("a.b",), ("a", 0), ("a.0",)], ["a.b", "a.b~2", "a.0", "a.0~2"]),
        ([("a.b",), ("a", "b"), ("a.b~2",)], ["a.b", "a.b~3", "a.b~2"]),
        ([("W",), ("w",)], ["W", "w~2"]),
        ([("\u00e9",), ("e\u0301",)], ["\u00e9", "e\u0301~2"]),
        ([("\ufb01",), ("fi",)], ["\ufb01", "fi~2"]),
        ([("stra\u00dfe",), ("STRASSE",)], ["stra\u00dfe", "STRASSE~2"]),
        ([()], ["~"]),
        ([("",)], ["~"]),
        ([("",), ("~",)], ["~~2", "~"]),
        ([("__metadata__",)], ["~__metadata__"]),
        ([("\ud800x",)], ["~d800x"]),
        ([("x" * MAX_NAME_BYTES,)], ["x" * MAX_NAME_BYTES]),
    ],
)
def test_names_change_only_where_they_must(paths: list[KeyPath], names: list[str]) -> None:
    result = tensor_names(paths)
    assert result.names == names
    assert result.changed == [i for i, path in enumerate(paths) if names[i] != dotted_name(path)]


def test_a_name_that_is_too_long_is_cut_and_made_unique_by_its_digest() -> None:
    one, two = tensor_names([("x" * 2000 + "1",), ("x" * 2000 + "2",)]).names
    assert one != two
    assert one.startswith("x" * 200 + "~")
    assert len(one) == 233


@given(st.lists(st.lists(st.text(alphabet="aA.~é\u0301\ufb01fi\ud800", max_size=3), max_size=2)))
def test_names_are_distinct_however_they_are_compared(paths: list[list[str]]) -> None:
    names = tensor_names([tuple(path) for path in {tuple(path) for path in paths}]).names
    for form in ("NFC", "NFKC"):
        folded = {unicodedata.normalize(form, name).casefold() for name in names}
        assert len(folded) == len(names)
    for name in names:
        assert name.encode()
        assert name != "__metadata__"


@pytest.mark.parametrize(
    "tree",
    [
        {"a.b": 1, "a": {"b": 2}},
        {"w": 1, "W": 2},
        {1: 1, "1": 2},
        {"": 1, "__metadata__": 2, "~": 3},
        {"\ud83d\ude00": 1, "\U0001f600": 2},
        {"k" * 3000: 1, "k" * 3000 + "!": 2},
    ],
    ids=range(6),
)
def test_trees_whose_names_would_collide_come_back(tree: dict[Any, Any]) -> None:
    def arrays(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: arrays(child) for key, child in value.items()}
        return np.array([value])

    raw = file_bytes(arrays(tree))
    loaded, _ = read_bytes(raw)
    assert loaded == arrays(tree)
    assert len(header_of(raw)) == 1 + len(tree)  # __metadata__ and the tensors
