"""Other spellings of key paths: as jax prints them, without quotes and parentheses, or split. Pure.

A pattern is matched with the names that `open` lists. Where it matches none of them, its plain form
is matched with the plain form of the names:

(0)/blocks/'w'     0/blocks/w      keys without quotes and parentheses
[0].blocks['w']    0/blocks/w      as jax.tree_util.keystr prints a path
model.layers.0     model/layers/0  keys that the format has joined by dots
"""

from __future__ import annotations

import re

from cordwood.index import Naming

_STEP = r"""\.[A-Za-z_]\w*|\[(?:-?\d+|'[^']*'|"[^"]*"|<flat index \d+>)\]"""
_JAX_PATH = re.compile(rf"(?:[A-Za-z_]\w*)?(?:{_STEP})+")
_JAX_KEY = re.compile(r"""[A-Za-z_]\w*|-?\d+|'[^']*'|"[^"]*\"""")


def plain_name(name: str, naming: Naming) -> str:
    """Return a name, as `path_name` returns it, in its plain form.

    >>> plain_name("table/(3)/'0'", "exact"), plain_name("h.0.w", "dotted")
    ('table/3/0', 'h/0/w')
    """
    if naming == "dotted":
        return name.replace(".", "/")
    return "/".join(map(_plain_key, name.split("/")))


def plain_pattern(pattern: str, naming: Naming = "exact") -> str:
    """Return a pattern or a key path, spelled in any way, in its plain form.

    >>> plain_pattern("[0].blocks['w']/**"), plain_pattern("(0)/blocks/*")
    ('0/blocks/w/**', '0/blocks/*')
    """
    if naming == "slashed":  # as `open` lists a name that the format has joined
        pattern = pattern.replace("%2F", "/")
    ends = "$" if pattern.endswith("$") else ""
    parts = pattern.removesuffix("$").split("/")
    return "/".join([_plain_key(key) for part in parts for key in _keys_of(part)]) + ends


def is_jax_path(text: str) -> bool:
    """Return True if a key path has a part of the form that jax.tree_util.keystr prints."""
    return any(len(_keys_of(part)) > 1 or _keys_of(part) != [part] for part in text.split("/"))


def listed_form(text: str) -> str:
    """Return a key path with each part in jax's form as the keys that it stands for."""
    ends = "$" if text.endswith("$") else ""
    parts = text.removesuffix("$").split("/")
    return "/".join([key for part in parts for key in _keys_of(part)]) + ends


def _keys_of(part: str) -> list[str]:
    """Return the keys of a part in jax's form, such as blocks[0].w; else the part itself."""
    is_listed = "[" not in part and not part.startswith(".")
    if is_listed or _JAX_PATH.fullmatch(part) is None:
        return [part]
    return [key.replace('"', "'") for key in _JAX_KEY.findall(part.replace("<flat index ", "<"))]


def _plain_key(key: str) -> str:
    """Return a key without the quotes or the parentheses around it."""
    is_wrapped = len(key) > 1 and key[0] + key[-1] in ("''", "()")
    return key[1:-1] if is_wrapped else key
