"""The argument `items=` of saving and restoring calls."""

from __future__ import annotations

from collections.abc import Mapping


def require_mapping(items: object) -> None:
    """Raise TypeError unless items are given by name."""
    if not isinstance(items, Mapping):
        raise TypeError(
            "items: expected a dict by name, such as {'ema': ema}, or {'ema': None} to restore it "
            f"as it was saved, found {items!r:.80}"
        )
