"""`value_metadata_tree` in `_METADATA`: the tuples and named tuples, where Orbax recorded them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError
from cordwood.index import NodeKind


def parse_rich_types(text: Any) -> dict[tuple[str, ...], tuple[NodeKind, str]]:
    """Return the paths of tuples and named tuples, if the writer recorded them."""
    if text is None:
        return {}
    if type(text) is not str:
        raise FormatError(f"value_metadata_tree: expected a string, found {text!r:.80}")
    kinds: dict[tuple[str, ...], tuple[NodeKind, str]] = {}
    stack: list[tuple[tuple[str, ...], Any]] = [((), parse_json(text, "value_metadata_tree"))]
    while stack:
        path, value = stack.pop()
        kind, name, children = _rich_node(value)
        if kind in ("tuple", "namedtuple"):
            kinds[path] = kind, name
        stack += [((*path, key), child) for key, child in children]
    return kinds


def _rich_node(value: Any) -> tuple[NodeKind, str, Iterator[tuple[str, Any]]]:
    if type(value) is list:
        return "list", "", ((str(i), child) for i, child in enumerate(value))
    if type(value) is not dict:
        return "leaf", "", iter(())
    category, name = value.get("category"), value.get("clazz")
    if type(category) is not str or type(name) is not str:
        return "dict", "", iter(value.items())
    entries = value.get("entries")
    if type(entries) is not list:
        return "leaf", "", iter(())
    if category == "namedtuple":
        pairs = [item for item in entries if type(item) is dict and type(item.get("key")) is str]
        return "namedtuple", name, ((item["key"], item.get("value")) for item in pairs)
    return (
        ("tuple" if name == "tuple" else "list"),
        "",
        ((str(i), e) for i, e in enumerate(entries)),
    )
