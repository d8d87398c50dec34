"""The string form of key paths: readable, and unique for each path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.keypath import DictKey, KeyPath, format_path, parse_path

atoms = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.binary(max_size=5),
)  # fmt: skip
text = st.text(st.characters(exclude_categories=()), max_size=8)
spiky = st.text(alphabet="a/%'()0129.\\-~ \n\ud800é", max_size=6)
dict_keys = st.builds(DictKey, atoms | st.tuples(atoms, text | st.tuples(atoms)))
keys = st.one_of(text, spiky, st.integers(0, 10**6), dict_keys)
paths = st.lists(keys, max_size=5).map(tuple)


@given(paths)
def test_a_formatted_path_parses_to_the_same_keys(path: KeyPath) -> None:
    back = parse_path(format_path(path))
    assert back == path
    assert [type(key) for key in back] == [type(key) for key in path]


@given(paths, paths)
def test_different_paths_have_different_texts(a: KeyPath, b: KeyPath) -> None:
    assert (format_path(a) == format_path(b)) == (repr(a) == repr(b))  # 0 equals False


@pytest.mark.parametrize(
    ("path", "string"),
    [
        ((), ""),
        (("params", "dense", "kernel"), "params/dense/kernel"),
        (("layers", 0), "layers/0"),
        (("layers", "0"), "layers/'0'"),
        (("",), "''"),
        (("a/b", "100%"), "a%2Fb/100%25"),
        ((DictKey(3), DictKey(None), DictKey((1, "x/y"))), "(3)/(None)/((1, 'x%2Fy'))"),
        (("(3)",), "'(3)'"),
        (("it's", "'q'"), "it's/''q''"),
        (("a.b", "é", "\ud800"), "a.b/é/%ED%A0%80"),
        ((DictKey(16**4000),), f"(0x1{'0' * 4000})"),  # of more digits than Python prints
        ((DictKey((-(16**4000),)), "b"), f"((-0x1{'0' * 4000},))/b"),
    ],
)
def test_each_kind_of_key_has_its_text(path: KeyPath, string: str) -> None:
    assert format_path(path) == string
    assert parse_path(string) == path


@pytest.mark.parametrize(
    ("string", "message"),
    [
        ("a//b", "empty key"),
        ("'a", "closing quote"),
        ("(1", "not a Python literal"),
        ("(__import__('os'))", "not a Python literal"),
        ("([1])", "cannot be a dict key"),
        ("%FF", "percent-encoded UTF-8"),
    ],
)
def test_a_text_that_is_no_path_is_refused(string: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_path(string)
