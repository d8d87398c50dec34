"""User metadata: strings that several formats store beside the tree."""

from __future__ import annotations

from collections.abc import Mapping


def check_metadata_strings(metadata: Mapping[str, str]) -> None:
    """Raise unless `metadata` maps strings to strings that can be stored.

    Raises:
        TypeError: a key or a value is not a str.
        ValueError: a key or a value holds a lone surrogate.
    """
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
