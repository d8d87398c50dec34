"""The refusal of 64-bit leaves that jax would truncate to 32 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from cordwood import dtypes
from cordwood.errors import MismatchError
from cordwood.keypath import format_path
from cordwood.loading.load_target import Target
from cordwood.message_text import first_lines, text_literal

_MOST_LEFT_OUT = 3  # leaves that a message proposes to leave out
_NEED_X64 = frozenset({"int64", "uint64", "float64", "complex128"})


def check_x64(
    name: str, targets: Sequence[Target], *, has_like: bool = True, cast: Any = None
) -> None:
    """Raise MismatchError for 64-bit leaves that jax would truncate to 32 bits.

    Args:
        name: the checkpoint's name in errors.
        targets: the leaves and what to make of them.
        has_like: a `like` gives the dtypes of the leaves.
        cast: the caller's argument; the message proposes a mapping that extends it.
    """
    if "jax" not in map(itemgetter(1), targets):
        return
    wide = [t for t in targets if t.kind == "jax" and (t.dtype or t.leaf.dtype) in _NEED_X64]
    if not wide:
        return
    import jax

    if jax.dtypes.canonicalize_dtype(np.int64) == np.int64:
        return
    lines = [f"{format_path(t.leaf.key_path)}: {t.dtype or t.leaf.dtype}" for t in wide]
    is_stored = any(t.leaf.dtype in _NEED_X64 for t in wide)
    what = f"{name} has 64-bit leaves" if is_stored else f"cast= makes 64-bit leaves of {name}"
    advice = "a `like` of 32-bit arrays and cast=True"
    if not has_like:
        advice = _narrower(wide, cast)
        if len(wide) <= _MOST_LEFT_OUT and len(wide) < len(targets):
            others = ", ".join([text_literal(f"!{format_path(t.leaf.key_path)}") for t in wide])
            advice += f', or leave leaves out: select=["**", {others}]'
    raise MismatchError(
        f"{what} ({len(wide)} in all), and jax's 64-bit types are off: "
        'load with to="numpy", or call jax.config.update("jax_enable_x64", True) first, or pass '
        f"{advice}:\n{first_lines(lines, 20)}"
    )


def _narrower(wide: Sequence[Target], cast: Any) -> str:
    """Return the source text of a `cast` that makes those leaves 32-bit ones."""
    entries: dict[str, str] = {}
    has_floats = False
    for target in wide:
        dtype = target.dtype or target.leaf.dtype
        if dtype == "float64":
            has_floats = True
        else:
            narrow = "complex64" if dtype == "complex128" else dtype.replace("64", "32")
            entries[format_path(target.leaf.key_path)] = narrow
    shown = [f'{text_literal(name)}: "{dtype}"' for name, dtype in list(entries.items())[:3]]
    if len(entries) > len(shown):
        shown.append("...")
    if isinstance(cast, Mapping):
        shown += [f'{text_literal(name)}: "{dtypes.parse(dtype)}"' for name, dtype in cast.items()]
        if has_floats:
            shown.append('"**": "float32"')
    elif has_floats or not isinstance(cast, bool | None):
        for_others = (
            "float32" if has_floats else cast if isinstance(cast, str) else dtypes.parse(cast)
        )
        if not shown:
            return f'cast="{for_others}"'
        shown.append(f'"**": "{for_others}"')
    return f"cast={{{', '.join(shown)}}}"
