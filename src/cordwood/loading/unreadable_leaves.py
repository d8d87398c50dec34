"""The refusal of leaves that are listed and cannot be read: text, objects, unknown codecs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cordwood.errors import UnsupportedFormatError
from cordwood.index import Inline, Leaf, Naming, Unreadable
from cordwood.keypath import path_label
from cordwood.message_text import counted, first_lines, text_literal
from cordwood.plan.path_patterns import path_name

_SHOWN = 20


def unreadable_names(leaves: Sequence[Leaf], naming: Naming) -> list[str]:
    """Return the names of the leaves that cannot be read, as `select` takes them."""
    return [path_name(leaf.key_path, naming) for leaf in leaves if leaf.kind == "unreadable"]


def require_readable(
    leaves: Collection[Leaf], naming: Naming, *, name: str, remedy: str = "load"
) -> None:
    """Raise UnsupportedFormatError for leaves that cannot be read.

    The message names each and says why, and gives the `select` of the others, if there are any.

    Args:
        leaves: the leaves to read.
        naming: of their index.
        name: the checkpoint's name.
        remedy: the words before "the others" in the last line.
    """
    unreadable = [leaf for leaf in leaves if leaf.kind == "unreadable"]
    if not unreadable:
        return
    lines = []
    for leaf in unreadable:
        assert isinstance(leaf.storage, Inline)
        assert isinstance(leaf.storage.value, Unreadable)
        lines.append(f"{path_label(leaf.key_path)}: {leaf.storage.value.reason}")
    text = (
        f"{name}: {counted(len(unreadable), 'leaf', 'leaves')} cannot be read:\n"
        f"{first_lines(lines, _SHOWN)}"
    )
    if len(unreadable) < len(leaves) and naming != "positions":
        others = ", ".join(
            [text_literal(f"!{each}") for each in unreadable_names(unreadable, naming)]
        )
        text += f'\n{remedy} the others with select=["**", {others}]'
    raise UnsupportedFormatError(text)
