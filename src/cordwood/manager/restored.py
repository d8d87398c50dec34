"""A restored step, which `restore` returns."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from cordwood.message_text import shortened
from cordwood.notebook.html_parts import (
    fields_html,
    fold_html,
    page_html,
    tree_lines,
    tree_preview_html,
)
from cordwood.public_names import document_fields

T = TypeVar("T")
_MAX_SHOWN = 10  # metrics
_MAX_EXTRAS = 200  # characters in a repr


@document_fields
class Restored(NamedTuple, Generic[T]):
    """A restored step. Its repr shows shapes and dtypes, but no elements.

    Attributes:
        step: its number.
        tree: the tree, as `cordwood.load` returns it.
        metrics: the metrics that were given to `save`, by name; {} if there are none.
        extras: the JSON value that was given to `save`; None if there is none. For a step of
            Orbax: its JSON items, by their names.
        items: by name, the trees and other values that were requested with `items=`. Objects with
            a state are not included: their state was set.
    """

    step: int
    tree: T
    metrics: dict[str, float]
    extras: Any
    items: Mapping[str, Any] = MappingProxyType({})

    def __repr__(self) -> str:
        extras = shortened(repr(self.extras), _MAX_EXTRAS)
        count, *lines = tree_lines(self.tree)
        head = f"Restored(step={self.step}, metrics={self.metrics}, extras={extras}, tree: {count}"
        for name, item in self.items.items():
            count, *inner = tree_lines(item)
            lines += [f"  items[{name!r}]: {count}", *[f"  {line}" for line in inner]]
        return "\n".join([head, *lines]) + ")"

    def _repr_html_(self) -> str:
        metrics = [(name, f"{value:.6g}") for name, value in self.metrics.items()]
        extras = "" if self.extras is None else shortened(repr(self.extras), _MAX_EXTRAS)
        body = [fields_html([*metrics[:_MAX_SHOWN], ("extras", extras)])]
        for name, tree in [("tree", self.tree), *self.items.items()]:
            note, html = tree_preview_html(tree)
            body.append(fold_html(name, note, [html], is_open=name == "tree"))
        return page_html(fold_html(f"step {self.step}", "restored", body))
