"""The paths of arrays: eFormer's paths, and escaped ones where those would not do."""

from __future__ import annotations

import re

import pytest

from cordwood.formats.zarr.array_paths import (
    MAX_COMPONENT_BYTES,
    MAX_PATH_BYTES,
    array_paths,
    ordinary_path,
    prefix_path,
)
from cordwood.formats.zarr.nested_dicts import within_prefix
from cordwood.keypath import DictKey, KeyPath

ESCAPED = re.compile(r"(?:.*/)?[0-9A-Za-z_-]*~[0-9a-f]{32}(~[0-9]+)?")


@pytest.mark.parametrize(
    ("key_path", "prefix", "expected"),
    [
        (("a", "w"), "", "a/w"),
        (("a", 0, "w"), "", "a/0/w"),
        (("a", DictKey(1)), "model", "model/a/1"),
        (("a.b",), "", "a/b"),
        (("a/b",), "", "a/b"),
        (("w",), "x.y/z", "x/y/z/w"),
        ((), "m", "m"),
        (("é b",), "", "é b"),
        ((DictKey(0.5),), "", "0/5"),
    ],
)
def test_as_eformer_lays_them_out(key_path: KeyPath, prefix: str, expected: str) -> None:
    assert array_paths([key_path], prefix) == [expected]


@pytest.mark.parametrize(
    "key_path",
    [
        (),
        ("",),
        ("a", ""),
        ("", "a"),
        ("..",),
        ("../../evil",),
        ("/abs",),
        ("a/",),
        ("a//b",),
        (".",),
        ("a..b",),
        ("a\\b",),
        ("a\0b",),
        ("\x1b[31mred",),
        ("a\x9b31m",),
        ("a\u202eb",),
        ("a\u2066b",),
        ("\ud800",),
        ("x" * (MAX_COMPONENT_BYTES + 1),),
        ("é" * 128,),
        ("x",) * MAX_PATH_BYTES,
    ],
    ids=lambda path: repr(path)[:30],
)
@pytest.mark.parametrize("prefix", ["", "m", "../esc", "\x1b[31m", "a\u202e"])
def test_what_would_not_do_is_escaped(key_path: KeyPath, prefix: str) -> None:
    if not key_path and prefix == "m":
        return  # the array itself lies where the prefix says
    (path,) = array_paths([key_path], prefix)
    assert ESCAPED.fullmatch(path)
    steps = path.split("/")
    assert all(step and step not in (".", "..") and len(step) < 255 for step in steps)
    assert path.startswith(prefix_path(prefix))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("a.b",), ("a", "b")),
        (("a", "b"), ("a.b",)),
        (("a/b",), ("a", "b")),
        (("a",), ("a.0",)),
        (("a", "b"), ("a",)),
        (("Kernel",), ("kernel",)),
        (("é",), ("e\u0301",)),
        ((DictKey(1),), ("1",)),
        (("A", "b"), ("a",)),
        (("STRASSE",), ("straße",)),
    ],
)
def test_the_second_of_two_that_collide_is_escaped(first: KeyPath, second: KeyPath) -> None:
    one, two = array_paths([first, second], "")
    assert not ESCAPED.fullmatch(one)
    assert ESCAPED.fullmatch(two)
    assert array_paths([second], "", others=[one]) == [two]


def test_a_key_that_looks_escaped() -> None:
    (escaped,) = array_paths([("",)], "")
    first, second = array_paths([(escaped,), ("",)], "")
    assert first == escaped
    assert second == f"{escaped}~2"


def test_paths_depend_on_the_tree_alone() -> None:
    paths: list[KeyPath] = [("a", "b"), ("a.b",), ("..",), ("x" * 300,)]
    assert array_paths(paths, "p") == array_paths(paths, "p")
    assert len(set(array_paths(paths, "p"))) == len(paths)


def test_a_dotted_path_is_ordinary_unless_a_part_is_empty() -> None:
    assert ordinary_path("a.b/c") == "a/b/c"
    assert ordinary_path("a..b") is None


@pytest.mark.parametrize(
    ("path", "prefix", "steps"),
    [
        ("m/a/w", "m", ["a", "w"]),
        ("m/a/w", "", ["m", "a", "w"]),
        ("x/y/w", "x/y", ["w"]),  # B36
        ("x/y/w", "x.y", ["w"]),
        ("m", "m", ["m"]),
        ("other/w", "m", ["other", "w"]),
    ],
)
def test_steps_below_a_prefix(path: str, prefix: str, steps: list[str]) -> None:
    assert within_prefix(path, prefix) == steps
