"""The user's own strings, which several formats carry."""

from __future__ import annotations

from collections.abc import Mapping


def check_metadata_strings(metadata: Mapping[str, str]) -> None:
    """Raise TypeError or ValueError for what is no mapping of strings, or cannot be stored."""
    for key, value in metadata.items():
        if type(key) is not str or type(value) is not str:
            raise TypeError(
                f"metadata: expected str keys and values, found {key!r:.80}: {value!r:.80}; "
                "convert it (json.dumps, for one)"
            )
        try:
            f"{key}{value}".encode()
        except UnicodeEncodeError as e:
            raise ValueError(f"metadata: {key!r:.80}: holds a lone surrogate") from e
